"""Implicit GEMM: short output axes of a contraction (image, row and column of a convolution) are
flattened into one long M (or N) axis, and operands are gathered with computed indices.

    for n, y, x, f: C[n, y, x, f] = sum(k)(a(n, y, x, k) * b[k, f])
    --> for m, f:   C[m, f]       = sum(k)(a(m // (Y * X), m // X % Y, m % X, k) * b[k, f])

A tile then spans the ends of some rows and the starts of the next ones, so that it is as large as
tensor cores want it however short a row is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.nests import Contraction, among
from tedsl.schedules.analysis.views import extent_of
from tedsl.schedules.gpu.gemm.operand_layouts import is_box
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

Sides = tuple[()] | tuple[tuple[Axis, ...], tuple[Axis, ...]]
"""For M and N the axes that are flattened into one, outer first; or nothing."""


def joined_axes(
    s: Schedule,
    name: str,
    root: ComputeOp,
    known: Mapping[Axis, Axis],
    shape: Contraction,
    tiled: tuple[Axis, Axis],
) -> Sides:
    """The axes of `root` to flatten, where some are, by the knobs `join_rows` and `join_columns`.

    Those of each side of a contraction, whose axes are `known` in terms of the root's: some around
    the `tiled` one, which is alone on a side where nothing is flattened.

    An operand that is read in boxes can be loaded by TMA: flattening is then no default.
    """
    found: list[tuple[Axis, ...]] = []
    sides = (shape.rows, "rows"), (shape.columns, "columns")
    for (side, kind), axis, operand in zip(sides, tiled, shape.operands, strict=True):
        run = _run(root, [known[each] for each in side], known[axis])
        gathered = any(not is_box(read, shape.batch) for read in reads(operand))
        apart = any(each in shape.groups for each in side)  # a tile is to lie within a group
        one = len(run) > 1 and not apart and flip(s, f"{name}.join_{kind}", gathered)
        found.append(run if one else (known[axis],))
    return (found[0], found[1]) if max(map(len, found)) > 1 else ()


def _run(root: ComputeOp, side: Sequence[Axis], axis: Axis) -> tuple[Axis, ...]:
    """The axes next to `axis` among those of one side, in the order of the root's loops; all but
    the outermost of known extent.

    The outermost has more than one element.  Lanes past the end have an index beyond those of the
    outermost axis, by which the flat index of all of them is that of the lane; an axis of one
    element has the index 0 in every lane, and the flat index would start again.
    """
    start = end = next(n for n, each in enumerate(root.axes) if each is axis)
    while start and extent_of(root.axes[start]) and among(root.axes[start - 1], side):
        start -= 1
    while end + 1 < len(root.axes) and extent_of(root.axes[end + 1]):
        if not among(root.axes[end + 1], side):
            break
        end += 1
    run = list(root.axes[start : end + 1])
    while len(run) > 1 and extent_of(run[0]) == 1:
        run.pop(0)
    return (axis,) if not among(axis, run) else tuple(run)


def join(inner: Stage, known: Mapping[Axis, Axis], sides: Sides) -> None:
    """Flatten the axes of each side, which are axes of the root, in the layout of a contraction."""
    if not isinstance(inner.op, ComputeOp) or not sides:
        return
    own = [known[axis] for axis in inner.op.axes]

    def place(*indices: Expr) -> tuple[Expr, ...]:
        at = dict(zip(own, indices, strict=True))
        made: list[Expr] = []
        for axis in own:
            side = next((each for each in sides if among(axis, each)), (axis,))
            if side[-1] is axis:
                made.append(_flat(side, at))
        return tuple(made)

    inner.transform_layout(place)


def own_programs(
    stage: Stage, others: Sequence[Axis], across: Axis, down: Axis, lanes: Sequence[Axis]
) -> Axis:
    """Bind the tiles of M, of N and the batch loops to a grid axis each, so that the start of a
    tile is a multiple of it and an element of the flattened axes keeps one index.

    Returns:
        The loop around one tile.
    """
    stage.reorder(*others, across, down, *lanes)
    if others:
        stage.bind(fused(stage, others), "blockIdx.z")
    stage.bind(across, "blockIdx.y")
    stage.bind(down, "blockIdx.x")
    return down


def _flat(axes: Sequence[Axis], at: Mapping[Axis, Expr]) -> Expr:
    """The flat index of a point."""
    result = at[axes[0]]
    for axis in axes[1:]:
        result = result * (extent_of(axis) or 1) + at[axis]
    return result
