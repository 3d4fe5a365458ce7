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

from collections.abc import Mapping, Sequence

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.nests import among, any_order, is_reduction, long_axes
from tedsl.schedules.analysis.views import View, definitions, volume
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import fused
from tedsl.schedules.trial import takes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp


def reduce_rows_first(s: Schedule, fewest: int) -> None:
    """The knob `row_by_row` of each reduction of everything after reductions of its rows, where
    there are at least `fewest` rows."""
    for name in definitions(s):
        view = definitions(s)
        rows = _rows(view, view[name])

        def split(trial: Schedule, name: str = name, rows: Sequence[Axis] = rows) -> None:
            stage = trial[name]
            stage.reorder(*rows, *(a for a in stage.leaf_iter_vars if not among(a, rows)))
            trial.rfactor(stage.op.outputs[0], fused(stage, rows))

        worth = bool(rows) and (volume(rows) or fewest) >= fewest
        fits = worth and takes(s, (reduce_rows_first, name), split)
        if fits and flip(s, f"{name}.row_by_row", True):
            split(s)


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


def _before(view: View, op: ComputeOp, known: Mapping[Axis, Axis]) -> list[tuple[Axis, ...]]:
    """Of each reduction that a stage reads, itself or through pointwise ones, what its axes are."""
    found: list[tuple[Axis, ...]] = []
    waiting, met = [(op, known)], set[tuple[str, tuple[Axis | None, ...]]]()
    while waiting:
        reader, axes = waiting.pop()
        for read in reads(*reader.bodies):
            source = read.tensor.op
            name = view.names.get(source) if isinstance(source, ComputeOp) else None
            at = None if name is None else _placed(read, axes)
            if name is None or (name, at or ()) in met:
                continue
            met.add((name, at or ()))
            if is_reduction(view[name]):
                found.append(() if at is None else tuple(a for a in at if a is not None))
            elif at is not None:
                pairs = zip(view[name].axes, at, strict=True)
                waiting.append((view[name], {a: b for a, b in pairs if b is not None}))
    return found


def _placed(read: TensorRead, known: Mapping[Axis, Axis]) -> tuple[Axis | None, ...] | None:
    """What the indices of a read are, None for a constant; nothing where one is something else."""
    at = tuple(known.get(index) if isinstance(index, Axis) else None for index in read.indices)
    axes = [index for index in read.indices if isinstance(index, Axis)]
    fine = len(set(axes)) == len(axes) and all(axis in known for axis in axes)
    return at if fine else None
