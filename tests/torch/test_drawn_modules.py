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
LIGHT_WIDE = (7004, 8004)  # the second has a result of open sizes that repeats its memory
SLOW_WIDE = range(7010, 7410)


def seeds(light: Any, slow: Any) -> list[Any]:
    """A few modules for every run of the tests, hundreds for the slow one."""
    return [*light, *(pytest.param(seed, marks=pytest.mark.slow) for seed in slow)]


@pytest.fixture(autouse=True)
def plain() -> None:
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operator in place of a graph


@pytest.mark.parametrize("seed", seeds(LIGHT, SLOW))
def test_as_eager(seed: int) -> None:
    look(drawn.draw(seed), True if seed % 5 == 0 else None)


@pytest.mark.parametrize("seed", seeds(LIGHT_WIDE, SLOW_WIDE))
def test_any_type_and_changes_in_place(seed: int) -> None:
    look(drawn.draw_wide(seed), True if seed % 3 == 0 else None)


def look(program: Any, dynamic: bool | None) -> None:
    """Training and inference, and no region that the compiler should have compiled and did not."""
    for train in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault, report = drawn.unlike(program, train, dynamic)
        assert not fault, f"{program}\n{fault}"
        assert not report.faults, f"{program}\n{report.faults}"


def test_programs_are_drawn_alike() -> None:
    assert str(drawn.draw(7)) == str(drawn.draw(7))
    assert len({str(drawn.draw(seed)) for seed in range(20)}) == 20
    wide = [drawn.draw_wide(seed) for seed in range(20)]
    assert len({str(each) for each in wide}) == 20
    assert len({each.dtype for each in wide}) >= 4
