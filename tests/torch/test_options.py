"""Options of the backend, sizes that change, and what a second process finds on disk."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from sources import run_python

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
backend: Any = pytest.importorskip("tedsl.torch.backend.entry").tedsl
rewrite: Any = pytest.importorskip("tedsl.torch.backend.rewrite")
region: Any = pytest.importorskip("tedsl.torch.backend.region")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are made from now on."""
    made: list[str] = []

    class Counted(region.Compiled):
        def __init__(self, *given: Any) -> None:
            made.append(str(given[0]))
            super().__init__(*given)

    monkeypatch.setattr(region, "Compiled", Counted)
    return made


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"serach": "quick"}, "unknown option 'serach'(?s:.*)did you mean 'search'"),
        ({"search": "quik"}, "unknown search 'quik'(?s:.*)did you mean 'quick'"),
        ({"zzz": 1}, "allowed products, channels_last, report, explain, search, seconds, records"),
        ({"products": 3}, "the option 'products' is 3(?s:.*)bool"),
        ({"explain": "yes"}, "the option 'explain' is 'yes'"),
    ],
)
def test_what_is_no_option_is_told(options: dict[str, Any], words: str) -> None:
    call = torch.compile(lambda x: x + 1, backend=backend, options=options)
    with pytest.raises(Exception, match=words):
        call(torch.ones(2))


def test_a_mode_is_refused() -> None:
    with pytest.raises(Exception, match="mode='reduce-overhead' has no meaning"):
        backend(None, [], mode="reduce-overhead")


def test_explain_tells_each_graph(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(4, requires_grad=True)
    torch.compile(lambda x: x.exp() * 2, backend=backend, options={"explain": True})(x)
    told = capsys.readouterr().err
    assert re.search(r"forward of training: 2 of \d operators in tedsl's kernels", told)
    assert "aten.detach.default" in told, "what is left to PyTorch"
    torch._dynamo.reset()
    texts: list[str] = []
    call = torch.compile(lambda x: x.exp() * 2, backend=backend, options={"explain": texts.append})
    call(x).sum().backward()
    assert [text.split(":")[0] for text in texts] == ["forward of training", "backward"]


class Block(torch.nn.Module):
    """Attention over a sequence, a norm and a table of places."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = torch.nn.Linear(8, 24), torch.nn.LayerNorm(8)
        self.places = torch.nn.Embedding(64, 8)

    def forward(self, x: Any) -> Any:
        x = x + self.places(torch.arange(x.shape[1]))
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return x + scores.masked_fill(~mask, -1e9).softmax(-1) @ v


@pytest.mark.parametrize("train", [False, True])
def test_no_kernel_is_made_for_another_batch_or_length(built: list[str], train: bool) -> None:
    report = tt.Report()
    model = Block()
    call = torch.compile(model, backend=backend, options={"report": report})
    counts = set()
    for batch, length in ((3, 12), (5, 7), (2, 16), (9, 33)):
        x = torch.randn(batch, length, 8)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 1)
        found, wanted = call(x), model(x)
        torch.testing.assert_close(found, wanted)
        if train:
            parameters = list(model.parameters())
            pulled = [torch.autograd.grad(y.square().sum(), parameters) for y in (found, wanted)]
            torch.testing.assert_close(*pulled, rtol=1e-4, atol=1e-4)
        counts.add((len(report.graphs), len(built)))
    assert len(counts) == 1, counts
    regions = [each for graph in report.graphs for each in graph.regions]
    assert not report.faults
    assert regions
    assert not any(each.specialised or each.eager_calls for each in regions)


def test_a_symbol_that_no_input_has_by_itself(built: list[str]) -> None:
    def function(x: Any, y: Any) -> Any:
        return torch.sigmoid(x.reshape(-1).cumsum(0).view(-1) + y) * x.shape[0]

    report = tt.Report()
    options = {"report": report}
    call = torch.compile(function, backend=backend, dynamic=True, options=options)
    for rows, columns in ((3, 4), (5, 6)):
        x, y = torch.randn(rows, columns), torch.randn(rows * columns)
        torch.testing.assert_close(call(x, y), function(x, y))
    assert not report.faults


def test_a_search_tunes_regions_and_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options_of: Any = pytest.importorskip("tedsl.torch.backend.options")
    monkeypatch.setitem(options_of.SEARCHES, "quick", options_of.Budget(2, 120.0))

    def function(x: Any, w: Any) -> Any:
        return torch.softmax(torch.relu(x * w) @ w.t(), -1)

    x, w = torch.randn(64, 96), torch.randn(64, 96)
    texts: list[str] = []
    for _ in range(2):
        torch._dynamo.reset()
        report = tt.Report()
        options = {
            "search": "quick",
            "records": tmp_path / "records.db",
            "report": report,
        }
        call = torch.compile(function, backend=backend, options=options)
        torch.testing.assert_close(call(x, w), function(x, w))
        texts += [each.search for graph in report.graphs for each in graph.regions]
    first, second = texts[:2], texts[2:]
    assert any("trials" in each for each in first), texts
    for before, after in zip(first, second, strict=True):
        assert after == "found on disk" or "trials" not in before, texts
    assert (tmp_path / "records.db").stat().st_size > 0


def test_a_spent_budget_leaves_the_rules() -> None:
    report = tt.Report()
    options = {"search": "quick", "seconds": 0, "report": report, "records": False}
    call = torch.compile(lambda x: x.exp() + 1, backend=backend, options=options)
    torch.testing.assert_close(call(torch.ones(3)), torch.ones(3).exp() + 1)
    assert report.graphs[0].regions[0].search == "the budget is spent"


SECOND = """
import json, sys, torch
import tedsl.torch
from tedsl import build
from tedsl.schedules import fallback
import tedsl.torch.compiled as compiled
from tedsl.torch.backend.entry import tedsl
made = []
old = compiled.build
compiled.build = lambda *given: (made.append(1), old(*given))[1]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.LayerNorm(9), torch.nn.GELU())
call = torch.compile(model, backend=tedsl, dynamic=True)
x = torch.randn(4, 6)
wanted = model(x)
torch.testing.assert_close(call(x), wanted)
call(x).sum().backward()
print(json.dumps(len(made)))
"""


def test_a_second_process_schedules_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEDSL_CACHE_DIR", str(tmp_path))
    first, second = (json.loads(run_python(SECOND).splitlines()[-1]) for _ in range(2))
    assert first > 0
    assert second == 0


@pytest.mark.ptxas
def test_regions_for_a_gpu_compile_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same kernels in as many threads as are asked for; without the device PyTorch computes."""

    def model(x: Any) -> Any:
        for n in range(3):  # a sort between them is left to PyTorch
            x = torch.softmax(x[:, n:] * (n + 1), 1).sort(1).values
        return x

    monkeypatch.setattr(rewrite, "_target", lambda _: "cuda:sm_90")
    x, plain = torch.randn(8, 32), region.Compiled

    def codes(count: str) -> tuple[list[str], set[int]]:
        met: set[int] = set()
        made: list[Any] = []

        class Seen(plain):
            def __init__(self, *given: Any) -> None:
                met.add(threading.get_ident())
                super().__init__(*given)
                made.append(self.kernel.code)

        monkeypatch.setattr(region, "Compiled", Seen)
        monkeypatch.setenv("TEDSL_COMPILE_THREADS", count)
        monkeypatch.setenv("TEDSL_CACHE_DIR", str(tmp_path / count))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / count / "triton"))
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
        return sorted(made), met

    alone, caller = codes("1")
    together, several = codes("3")
    assert len(alone) == 3
    assert together == alone
    assert caller == {threading.get_ident()}
    assert len(several) > 1
