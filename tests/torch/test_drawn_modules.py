"""Modules that nobody chose through `torch.compile(backend="tedsl")`: as eager, or left to it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
drawn: Any = pytest.importorskip("drawn_modules")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
LIGHT = (2, 6, 9)
SLOW = range(10, 410)


def seeds() -> list[Any]:
    """A few modules for every run of the tests, hundreds for the slow one."""
    return [*LIGHT, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SLOW)]


@pytest.fixture(autouse=True)
def plain() -> None:
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operator in place of a graph


@pytest.mark.parametrize("seed", seeds())
def test_as_eager(seed: int) -> None:
    program = drawn.draw(seed)
    dynamic = True if seed % 5 == 0 else None
    for train in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault, report = drawn.unlike(program, train, dynamic)
        assert not fault, f"{program}\n{fault}"
        assert dynamic or not report.faults, f"{program}\n{report.faults}"


def test_programs_are_drawn_alike() -> None:
    assert str(drawn.draw(7)) == str(drawn.draw(7))
    assert len({str(drawn.draw(seed)) for seed in range(20)}) == 20
