"""Small problems as users write them through `torch.compile(backend="tedsl")`: as eager."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
written: Any = pytest.importorskip("written_problems")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
LIGHT = {
    "conv2d group norm scale max pool clamp": 0,
    "scatter reduced": 0,
    "a slice set": 1,
    "not finite": 1,
    "named results": 0,
    "rms norm over channels": 2,
}
"""What every run looks at, each in one of the ways; the slow one looks at all in all ways."""


@pytest.fixture(autouse=True)
def plain() -> None:
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operator in place of a graph


def cases() -> list[Any]:
    """The light ones, then all."""
    return [pytest.param(name, n, id=name) for name, n in LIGHT.items()] + [
        pytest.param(name, n, id=f"{name} {n}", marks=pytest.mark.slow)
        for name in written.PROBLEMS
        for n in range(len(written.WAYS))
    ]


@pytest.mark.parametrize(("problem", "way"), cases())
def test_as_eager(problem: str, way: int) -> None:
    fault, report = written.compared(problem, written.WAYS[way])
    assert not fault, f"{written.PROBLEMS[problem]}\n{fault}"
    assert not report.faults, f"{written.PROBLEMS[problem]}\n{report.faults}"


@pytest.mark.parametrize("what", ["results", "grads", "after"])
def test_a_difference_is_noticed(what: str) -> None:
    problem, way = "a running mean in a module", written.TRAINING
    outcomes = []
    for _ in range(2):
        module, given, named = written.given_of(problem)
        outcomes.append(written.outcome(module, module, given, named, way))
    found, wanted = outcomes
    assert not written.difference(found, wanted, list)
    getattr(found, what)[0] = getattr(found, what)[0].detach() * 1.01
    assert written.difference(found, wanted, list).startswith(what)


def test_there_are_many() -> None:
    assert len(written.PROBLEMS) >= 150
