"""Calls over and over: memory stays as it is, and a new batch size compiles nothing."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
backend: Any = pytest.importorskip("tedsl.torch.backend.entry").tedsl
compiled: Any = pytest.importorskip("tedsl.torch.compiled")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
GROWTH = 4 << 20
"""Bytes that a process may have more after a loop: what allocators keep, not what calls leave."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Block(torch.nn.Module):
    """A residual block with a norm, a product and statistics that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(24)
        self.inner = torch.nn.Linear(24, 24)
        self.batch = torch.nn.BatchNorm1d(24)

    def forward(self, x: Any) -> Any:
        return x + self.batch(torch.nn.functional.gelu(self.inner(self.norm(x))))


def resident() -> int:
    """Bytes of memory of this process."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def steps(call: Any, model: Any, given: Any, count: int, train: bool) -> None:
    """Calls, each with a step of training where asked for."""
    for n in range(count):
        with torch.set_grad_enabled(train):
            result = call(given[n % len(given)])
        if train:
            model.zero_grad(set_to_none=True)
            result.square().mean().backward()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_loop_keeps_its_memory(count: int, train: bool) -> None:
    model = Block().train(train)
    report = tt.Report()
    call = torch.compile(model, backend=backend, options={"report": report}, dynamic=True)
    given = [torch.randn(rows, 24) for rows in (32, 57)]
    steps(call, model, given, 100, train)
    gc.collect()
    objects, memory = len(gc.get_objects()), resident()
    steps(call, model, given, count, train)
    gc.collect()
    assert len(gc.get_objects()) < objects + 200
    assert resident() < memory + GROWTH
    assert all(region.calls >= count for graph in report.graphs for region in graph.regions)


@pytest.mark.parametrize("train", [False, True])
def test_another_batch_size_compiles_nothing(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []

    class Counted(compiled.Compiled):
        def __init__(self, *arguments: Any) -> None:
            built.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr("tedsl.torch.backend.region.Compiled", Counted)
    model, own = Block().train(train), Block().train(train)
    own.load_state_dict(model.state_dict())
    report = tt.Report()
    call = torch.compile(model, backend=backend, options={"report": report})
    first = torch.randn(16, 24)
    torch._dynamo.mark_dynamic(first, 0)
    torch.testing.assert_close(call(first), own(first))
    steps(call, model, [first], 1, train)
    steps(own, own, [first], 1, train)
    before, graphs = len(built), len(report.graphs)
    assert before >= (2 if train else 1)
    for rows in (17, 5, 64, 3):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(call(x), own(x))
        steps(call, model, [x], 1, train)
        steps(own, own, [x], 1, train)
        for ours, theirs in zip(model.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert (len(built), len(report.graphs)) == (before, graphs)
    assert not report.faults
