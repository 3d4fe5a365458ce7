"""A reduction of everything whose terms depend on reductions of rows, in two: row by row, in the
kernel of those, and of what that gives.

    for i: m[i] = max(j)(A[i, j])
    L = sum(i, j)(f(A[i, j], m[i]))
    --> for i: m[i] = max(j)(A[i, j])
        for i: L.rf[i] = sum(j)(f(A[i, j], m[i]))
        L = sum(i)(L.rf[i])

A loss after a softmax is one.
"""

from __future__ import annotations

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.nests import (
    View,
    among,
    any_order,
    definitions,
    is_reduction,
    long_axes,
    volume,
)
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp


def reduce_rows_first(s: Schedule, fewest: int) -> None:
    """The knob `row_by_row` of each reduction of everything after reductions of its rows, where
    there are at least `fewest` rows."""
    view = definitions(s)
    for name in view:
        rows = _rows(view, view[name])
        if rows and (volume(rows) or fewest) >= fewest and flip(s, f"{name}.row_by_row", True):
            stage = s[name]
            stage.reorder(*rows, *(a for a in stage.leaf_iter_vars if not among(a, rows)))
            s.rfactor(stage.op.outputs[0], fused(stage, rows))


def _rows(view: View, op: ComputeOp) -> list[Axis]:
    """The axes, among those that `op` reduces, that number the rows which are reduced before it;
    none where it keeps an axis, has no other ones, or rows of several kinds come before it."""
    if long_axes(op.axes) or not is_reduction(op) or len(op.bodies) > 1 or not any_order(op):
        return []
    found = {rows for rows in _before(view, op, {a: a for a in op.reduce_axes}) if rows}
    if len(found) != 1:
        return []
    (rows,) = found
    others = [axis for axis in long_axes(op.reduce_axes) if not among(axis, rows)]
    return [axis for axis in op.reduce_axes if among(axis, rows)] if others else []


def _before(view: View, op: ComputeOp, known: dict[Axis, Axis]) -> list[tuple[Axis, ...]]:
    """Of each reduction that a stage reads, itself or through pointwise ones, what its axes are."""
    found: list[tuple[Axis, ...]] = []
    for read in reads(*op.bodies):
        name = view.names.get(read.tensor.op) if isinstance(read.tensor.op, ComputeOp) else None
        if name is None:
            continue
        at = _placed(read, known)
        if is_reduction(view[name]):
            found.append(() if at is None else tuple(a for a in at if a is not None))
        elif at is not None:
            own = {a: b for a, b in zip(view[name].axes, at, strict=True) if b is not None}
            found += _before(view, view[name], own)
    return found


def _placed(read: TensorRead, known: dict[Axis, Axis]) -> list[Axis | None] | None:
    """What the indices of a read are, None for a constant; no list where one is something else."""
    at = [known.get(index) if isinstance(index, Axis) else None for index in read.indices]
    axes = [index for index in read.indices if isinstance(index, Axis)]
    fine = len(set(axes)) == len(axes) and all(axis in known for axis in axes)
    return at if fine else None
