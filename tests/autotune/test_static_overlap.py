"""What overlapping and masked loads ask of the caches, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest
from model_cases import HOPPER

import tedsl as te
from tedsl.cost.devices import WEIGHTS
from tedsl.cost.dram_traffic import THOROUGH
from tedsl.cost.gpu import KernelEstimate, estimate_kernel
from tedsl.cost.instruction_costs import operations
from tedsl.cost.l2_sharing import Range, range_of
from tedsl.devices import H200
from tedsl.ir.nodes import Accumulate, Func
from tedsl.ir.visit import tile_axes, walk_stmts
from tedsl.schedules import default_schedule

pytestmark = pytest.mark.uncompiled("looked at, not compiled")


def kernel(tensor: te.Tensor) -> Func:
    (func,) = te.lower(default_schedule(tensor, HOPPER), HOPPER).funcs
    return func


def figures(func: Func) -> KernelEstimate:
    return estimate_kernel(func, {}, H200, WEIGHTS, slots=THOROUGH)


def summed(func: Func) -> Accumulate:
    (found,) = (stmt for stmt in walk_stmts(func.body) if isinstance(stmt, Accumulate))
    return found


@pytest.mark.parametrize(
    ("steps", "shifts", "span", "count"),
    [
        ([(1, 128), (1, 3)], (0,), 130, 130),
        ([(2, 16), (1, 3)], (0,), 33, 33),
        ([(4, 16), (1, 2)], (0,), 62, 32),
        ([(-1, 8), (0, 5)], (0,), 8, 8),
        ([(1, 64)], (0, 1, 2), 66, 66),
        ([(8, 4)], (0, 1), 26, 8),
        ([], (0,), 1, 1),
    ],
)
def test_what_steps_touch(
    steps: list[tuple[int, int]], shifts: tuple[int, ...], span: int, count: int
) -> None:
    assert range_of(steps, shifts) == Range(span, count)


def window() -> te.Tensor:
    x, w = te.placeholder((1026, 1538), name="x"), te.placeholder((3, 3), name="w")
    a, b = te.reduce_axis((0, 3), name="a"), te.reduce_axis((0, 3), name="b")
    return te.compute(
        (1024, 1536), lambda i, j: te.sum(x[i + a, j + b] * w[a, b], axis=[a, b]), name="out"
    )


def stencil() -> te.Tensor:
    x = te.placeholder((1026, 1538), name="x")
    return te.compute(
        (1024, 1536),
        lambda i, j: sum((x[i + a, j + b] for a in range(3) for b in range(3)), te.const(0.0)),
        name="out",
    )


def test_a_window_is_asked_for_once() -> None:
    """Of nine loads of a tile the second-level cache sees one, with a margin of two."""
    func = kernel(window())
    rows, columns = (t.extent for t in tile_axes(summed(func)))
    found = figures(func)
    sectors = (rows + 2) * math.ceil((columns + 2) * 4 / 32)
    own = 32 * sectors + 4 * rows * columns
    weights = 9 * 4 * H200.sms
    assert found.l2 == pytest.approx(found.programs * own + weights)


def test_loads_of_one_statement_share_too() -> None:
    """A window written out over tiles of 8 rows by 512: each of ten rows once, of nine loads."""
    found = figures(kernel(stencil()))
    assert found.l2 == pytest.approx(4 * (10 * 128 * 3 * 514 + 1024 * 1536), rel=0.05)


def test_what_is_masked_is_not_moved() -> None:
    """The lower triangle is half of the rows; its rest and the tile's, past the end, stay."""
    x, k = te.placeholder((1000, 1000), name="x"), te.reduce_axis((0, 1000), name="k")
    y = te.compute((1000,), lambda i: te.sum(x[i, k], axis=k, where=k <= i), name="y")
    found = figures(kernel(y))
    assert found.l2 == pytest.approx(4 * 1000 * 1001 / 2, rel=0.1)


def test_a_mask_is_evaluated_once() -> None:
    """Both conditions once, though the load and the sum each join them; and the addition."""
    x, k = te.placeholder((1000, 1000), name="x"), te.reduce_axis((0, 1000), name="k")
    y = te.compute((1000,), lambda i: te.sum(x[i, k], axis=k, where=k <= i), name="y")
    stmt = summed(kernel(y))
    assert stmt.mask is not None
    assert operations(stmt, (*stmt.values, stmt.mask)).plain == 5 * 1024
