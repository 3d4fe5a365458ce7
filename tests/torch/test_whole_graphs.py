"""Whole graphs on disk: found by a second compilation, which traces and schedules nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tedsl as te

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
backend: Any = pytest.importorskip("tedsl.torch.backend.entry").tedsl
counters: Any = pytest.importorskip("torch._dynamo.utils").counters
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: None) -> Iterator[Path]:
    """Folders of their own; what is kept of kernels."""
    del anew
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "graphs"))
    te.runtime.set_cache_dir(tmp_path / "kernels")
    torch.manual_seed(0)
    with torch._functorch.config.patch(enable_autograd_cache=True):
        yield tmp_path / "kernels"
    te.runtime.set_cache_dir(None)


def compiled(function: Any, **options: Any) -> tuple[Any, Any]:
    """As a second process would compile it."""
    torch._dynamo.reset()
    counters.clear()
    report = tt.Report()
    dynamic = options.pop("dynamic", None)
    options = {"report": report, **options}
    return torch.compile(function, backend=backend, options=options, dynamic=dynamic), report


def told() -> tuple[int, int]:
    """How many graphs were found, and how many kept."""
    found = counters["aot_autograd"]
    return found["autograd_cache_hit"], found["autograd_cache_saved"]


def step(call: Any, model: Any, x: Any) -> list[Any]:
    model.zero_grad()
    result = call(x)
    result.square().sum().backward()
    return [result.detach(), *(p.grad.clone() for p in model.parameters())]


def network() -> Any:
    torch.manual_seed(1)
    layers = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.GELU(), torch.nn.Linear(5, 3)
    return torch.nn.Sequential(*layers)


def test_a_training_step_is_found_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, own = torch.randn(7, 6), network()
    wanted = step(own, own, x)
    model = network()
    call, first = compiled(model)
    torch.testing.assert_close(step(call, model, x), wanted)
    assert told() == (0, 1)
    for module, name in (("entry", "rewritten"), ("compiling", "structure")):
        place = pytest.importorskip(f"tedsl.torch.backend.{module}")
        monkeypatch.setattr(place, name, None)  # nothing of this is called again
    model = network()
    call, second = compiled(model)
    torch.testing.assert_close(step(call, model, x), wanted)
    torch.testing.assert_close(model[1].running_mean, own[1].running_mean)
    assert told() == (1, 0)
    assert [graph.kind for graph in second.graphs] == ["forward of training", "backward"]
    assert [graph.taken for graph in second.graphs] == [graph.taken for graph in first.graphs]
    assert second.graphs[0].regions[0].calls == 1
    assert second.graphs[0].regions[0].shared


def test_options_and_sources_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    function = lambda x, w: (x @ w).relu() + 1  # noqa: E731
    for options in ({}, {"products": True}):
        call, report = compiled(function, **options)
        torch.testing.assert_close(call(x, w), function(x, w))
        assert told() == (0, 1)
        assert bool(report.graphs[0].left) is not bool(options)
    monkeypatch.setattr(pytest.importorskip("tedsl.torch.kept"), "tools", lambda: "other sources")
    compiled(function)[0](x, w)
    assert told() == (0, 1)


def test_kernels_that_are_lost_are_compiled_again(kept: Path) -> None:
    x = torch.randn(3, 4)
    compiled(lambda x: x.exp().sum(0))[0](x)
    for path in kept.rglob("*.entry"):
        path.unlink()
    call, report = compiled(lambda x: x.exp().sum(0))
    torch.testing.assert_close(call(x), x.exp().sum(0))
    assert told() == (0, 1)
    assert len(report.graphs) == 1
    compiled(lambda x: x.exp().sum(0))[0](x)
    assert told() == (1, 0)


def test_an_index_outside_is_still_pytorchs_error() -> None:
    table, fine = torch.randn(10, 4), torch.tensor([9, 0])
    for hits in (0, 1):
        call, _ = compiled(lambda i, t: torch.nn.functional.embedding(i, t) * 2)
        torch.testing.assert_close(call(fine, table), table[fine] * 2)
        assert told()[0] == hits
        with pytest.raises(IndexError, match="out of range"):
            call(torch.tensor([10, 0]), table)


@pytest.mark.parametrize("train", [False, True])
def test_graphs_of_open_sizes_are_found_whole(monkeypatch: pytest.MonkeyPatch, train: bool) -> None:
    """They serve other sizes than those of the call for which they were found."""

    def run(call: Any, model: Any, x: Any) -> Any:
        if train:
            return step(call, model, x)
        with torch.no_grad():
            return call(x)

    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
    call, first = compiled(model, dynamic=True)

    def agrees(rows: int) -> None:
        x = torch.randn(rows, 6)
        torch.testing.assert_close(run(call, model, x), run(model, model, x), rtol=1e-4, atol=1e-4)

    agrees(7)
    assert told() == (0, 1)
    for module, name in (("entry", "rewritten"), ("compiling", "structure")):
        place = pytest.importorskip(f"tedsl.torch.backend.{module}")
        monkeypatch.setattr(place, name, None)  # nothing of this is called again
    call, second = compiled(model, dynamic=True)
    for rows in (4, 9, 33):
        agrees(rows)
    assert told() == (1, 0)
    regions = [region for graph in second.graphs for region in graph.regions]
    assert regions
    assert all(region.calls == 3 and not region.eager_calls for region in regions)
    assert [graph.taken for graph in second.graphs] == [graph.taken for graph in first.graphs]


def test_faults_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 6)

    def broken(*_: Any) -> Any:
        raise KeyError("a table of the compiler")

    monkeypatch.setattr(pytest.importorskip("tedsl.torch.backend.region"), "Compiled", broken)
    call, report = compiled(lambda x: x.cos() + 1)
    torch.testing.assert_close(call(x), x.cos() + 1)
    assert told() == (0, 0)
    assert report.faults


def test_without_the_folder_nothing_is_kept(kept: Path) -> None:
    kept.write_text("no folder")
    x = torch.randn(4)
    with pytest.warns(RuntimeWarning, match="without its on-disk cache"):
        compiled(lambda x: x.sin() * 2)[0](x)
    assert told() == (0, 0)
