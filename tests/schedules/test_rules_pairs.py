"""Folds over pairs: each row of one operand with each column of another."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import compiled, drawn, interpreted

import tedsl as te
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.analysis.views import definitions
from tedsl.schedules.gpu.pairwise.pairwise import sides
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

CUDA = Target.parse("cuda:sm_90")


def kernels(s: Schedule) -> list[str]:
    return [func.name for func in lower(s.plan, CUDA).funcs]


def far(points: Any, centres: int, depth: int, name: str = "far") -> Tensor:
    """The L1 distance of each point to each centre."""
    x, y = c.p(points, depth), c.p(depth, centres, name="y")
    k = te.reduce_axis((0, depth), name="k")
    return te.compute(
        (points, centres), lambda i, j: te.sum(te.abs(x[i, k] - y[k, j]), axis=k), name=name
    )


def nearest(points: Any, centres: int, depth: int) -> Tensor:
    each = far(points, centres, depth)
    j = te.reduce_axis((0, centres), name="j")
    return te.compute((points,), lambda i: te.min(each[i, j], axis=j), name="near")


def nearest_of_columns(points: int, centres: int, depth: int) -> Tensor:
    """For each centre the nearest point, and what follows on it."""
    each = far(points, centres, depth)
    i = te.reduce_axis((0, points), name="i")
    least = te.compute((centres,), lambda j: te.min(te.sqrt(each[i, j]), axis=i), name="least")
    return te.compute((centres,), lambda j: least[j] + 1.0, name="more")


def which(points: int, centres: int, depth: int) -> list[Tensor]:
    """The nearest centre and its distance: a reducer of two values."""
    each = far(points, centres, depth)

    def less(a: Any, b: Any) -> Any:
        first = (a[1] < b[1]) | ((a[1] == b[1]) & (a[0] < b[0]))
        return te.select(first, a[0], b[0]), te.select(first, a[1], b[1])

    argmin = te.comm_reducer(
        less, lambda t0, t1: (te.max_value(t0), te.max_value(t1)), name="argmin"
    )
    j = te.reduce_axis((0, centres), name="j")
    return list(te.compute((points,), lambda i: argmin((j.var, each[i, j]), axis=j), name="which"))


def tropical(m: int, n: int, batch: int = 2) -> Tensor:
    """The longest way over one stop, in batches: a product of (max, +), and what follows."""
    x, y = c.p(batch, m, 24), c.p(batch, 24, n, name="y")
    k = te.reduce_axis((0, 24), name="k")
    way = te.compute(
        (batch, m, n), lambda b, i, j: te.max(x[b, i, k] + y[b, k, j], axis=k), name="way"
    )
    return te.compute((batch, m, n), lambda b, i, j: way[b, i, j] * 2.0, name="twice")


CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "distances": (lambda: far(150, 130, 33), ["far"]),
    "ways": (lambda: tropical(100, 90), ["twice"]),
    "nearest of few": (lambda: nearest(300, 100, 5), ["far", "near"]),
    "nearest of many": (lambda: nearest(1100, 40, 5), ["near"]),
    "nearest point": (lambda: nearest_of_columns(40, 1100, 5), ["more"]),
    "which": (lambda: which(1100, 20, 3), ["which"]),
}


@pytest.mark.parametrize("name", CASES)
def test_folds_over_pairs(name: str) -> None:
    make, names = CASES[name]
    s = interpreted(RuleCase(name, make), "cuda")
    assert kernels(s) == names
    assert any(knob.name.endswith(".tall") for knob in s.knobs)


@pytest.mark.ptxas
@pytest.mark.parametrize("name", CASES)
def test_folds_over_pairs_in_tritons_interpreter(name: str) -> None:
    compiled(RuleCase(name, CASES[name][0]), "triton-interpret")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_every_choice_of_a_fold_over_pairs_agrees(name: str, seed: int) -> None:
    case = RuleCase(name, CASES[name][0])
    interpreted(case, "cuda", drawn(case, "cuda", random.Random(seed)))


def test_operands_are_vectors_and_results_a_tile() -> None:
    """As many loads as sides of a tile, not as it has elements; nothing between goes to memory."""
    kernel = te.build(nearest(1 << 17, 256, 32), "cuda:sm_90")
    assert "x_tile[:, None] - y_tile[None, :]" in kernel.source
    assert "tl.sum(" not in kernel.source
    (info,) = kernel.resources.values()
    assert info.stack == 0
    cost = kernel.explain()
    assert cost.nbytes == pytest.approx(cost.least_bytes, rel=0.05)


def test_the_prediction_is_that_tiles_gain() -> None:
    """Against what the rules did with them before: every result by itself, of a row of terms."""
    points = 1 << 17
    s = te.create_schedule(far(points, 256, 32))
    sums = s[s.cache_write(s["far"], "local")]
    i, j = s["far"].op.axis
    outer, lanes = s["far"].split(j, factor=16)
    grid = s["far"].fuse(i, outer)
    s["far"].bind(grid, "blockIdx.x")
    s["far"].vectorize(lanes)
    sums.vectorize(sums.op.reduce_axis[0])
    sums.compute_at(s["far"], grid)
    s["far"].launch(num_warps=1)
    before = te.build(s, "cuda:sm_90").explain().seconds
    assert te.build(far(points, 256, 32), "cuda:sm_90").explain().seconds < before / 1.5


def test_what_is_no_fold_over_pairs() -> None:
    x, w, y = c.p(64, 64), c.p(64, name="w"), c.p(64, 64, name="y")
    k = te.reduce_axis((0, 64), name="k")
    for define in (
        lambda i, j: te.sum(x[i, k] * y[k, j], axis=k),  # a contraction has a rule of its own
        lambda i, j: te.sum(x[i, k] * w[k] + y[i, j], axis=k),  # one side only
        lambda i, j: te.max(x[i, k] + x[i, j], axis=k),  # the columns are not folded
    ):
        made = te.compute((64, 64), define, name="made")
        assert sides(definitions(te.create_schedule(made))["made"]) is None


@pytest.mark.parametrize(
    ("points", "centres", "depth"),
    [pytest.param(50_000, 3, 32, id="short side"), pytest.param(64, 64, 1 << 16, id="few")],
)
def test_sides_that_are_short_and_few_results_have_no_tile(
    points: int, centres: int, depth: int
) -> None:
    s = schedule_for(far(points, centres, depth), CUDA)
    assert not any(knob.name.endswith((".tall", ".wide")) for knob in s.knobs)
