"""Kernels that run together, and regions of one stage inside the tiles of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import interpreted

import tedsl as te
from tedsl.expr.tensor import Tensor
from tedsl.lower.pipeline import lower
from tedsl.scheduling.schedule import Schedule
from tedsl.target import Target


def step(size: int, n: int) -> list[Tensor]:
    x, y = c.p(size, name=f"x{n}"), c.p(size, name=f"y{n}")
    first = te.compute((size,), lambda i: x[i] * 0.5 + y[i], name=f"first{n}")
    return [first, te.compute((size,), lambda i: x[i] - first[i], name=f"second{n}")]


def steps(count: int, same: bool) -> Sequence[Tensor]:
    """Two results for each of several inputs, the second of which reads the first."""
    return [made for n in range(count) for made in step(40 if same else 40 + 33 * n, n)]


def both(m: int, n: int) -> Sequence[Tensor]:
    """Two results of one input."""
    x = c.p(m, n)
    return [
        te.compute((m, n), lambda i, j: te.exp(x[i, j]), name="up"),
        te.compute((m, n), lambda i, j: x[i, j] * 2.0, name="twice"),
    ]


def kernels(s: Schedule, target: str) -> int:
    return len(lower(s.plan, Target.parse(target)).funcs)


@pytest.mark.parametrize("same", [False, True])
def test_small_kernels_share_a_launch(same: bool) -> None:
    case = RuleCase("steps", lambda: steps(4, same))
    assert kernels(interpreted(case, "cuda"), "cuda") == 2
    alone = {f"{name}{n}.beside": "alone" for name in ("first", "second") for n in range(1, 4)}
    assert kernels(interpreted(case, "cuda", alone), "cuda") == 8


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_results_of_one_input_share_a_loop(target: str) -> None:
    case = RuleCase("both", lambda: both(33, 1025))
    s = interpreted(case, target)
    assert kernels(s, target) == 1
    assert {k.name: k.chosen for k in s.knobs}["twice.beside"] == "loops"
    assert kernels(interpreted(case, target, {"twice.beside": "alone"}), target) == 2


REGIONS: dict[str, Callable[[], Tensor]] = {
    "small": lambda: c.heavy_rows(7, 9),
    "tiles": lambda: c.heavy_rows(70, 530),
}


@pytest.mark.parametrize("place", ["inline", "root", "tile"])
@pytest.mark.parametrize("name", REGIONS)
def test_regions_of_a_stage_in_tiles_of_its_reader(name: str, place: str) -> None:
    s = interpreted(RuleCase(name, REGIONS[name]), "cpu", {"rows.place": place})
    assert kernels(s, "cpu") == (2 if place == "root" else 1)
    default = interpreted(RuleCase(name, REGIONS[name]), "cpu")
    assert {k.name: k.chosen for k in default.knobs}["rows.place"] == "tile"
