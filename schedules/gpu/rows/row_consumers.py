"""Row-epilogue fusion: what is computed of rows, or of their results, runs in the loops of the
kernel that reduces them (cross entropy with its gradient).

    for i: l[i] = sum(k)(x[i, k])
    for i: loss[i] = f(l[i])          for i, j: dx[i, j] = g(x[i, j], l[i])
    --> for i: l = sum(k)(x[i, k]); for j: dx[i, j] = g(x[i, j], l); loss[i] = f(l)

A row is then read again while it is in registers or cache, and its results stay in registers; which
stages those are is decided by `schedules/fusion/row_results.py`.
"""

from __future__ import annotations

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import among, innermost, long_axes
from tedsl.schedules.analysis.views import size_of
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.relations import extents


def run_beside(
    s: Schedule, group: Group, stage: Stage, each: int, place: Axis, piece: int | None
) -> None:
    """Let the stages beside a kernel run in the loop `place` of `stage`, which goes over tiles of
    `each` rows (`compute_with`): those of several elements for each row in pieces of `piece`, or
    without it whole rows at once."""
    first, *_ = stage.leaf_iter_vars
    programs = None if first is place else size_of(extents(stage.plan)[first])
    for name in group.beside:
        own = s[name]
        columns = _columns(group, own)
        rows = _in_order(group, own, [a for a in own.op.axis if not among(a, columns)])
        row = innermost(rows) if rows else own.fuse()  # one row, of which it has no axis
        outer, inner = own.split(row, factor=each)
        others = [axis for axis in rows if axis is not row]
        if others or columns:
            own.reorder(*others, outer, inner, *columns)
        if others:
            outer = fused(own, (*others, outer))
        if programs is not None:
            turn, program = own.split(outer, factor=programs)
            own.reorder(program, turn, inner)
        if piece is not None and columns:
            across, lane = own.split(fused(own, columns), factor=piece)
            own.reorder(across, inner, lane)
            columns = [lane]
        for axis in (inner, *columns):
            own.vectorize(axis)
        own.compute_with(stage, place)


def _columns(group: Group, stage: Stage) -> list[Axis]:
    """The axes of a stage beside a kernel that are no rows of it."""
    known = group.axes.get(stage.name)
    if known is None:  # one element for each row
        return []
    rows = group.rows or ()
    return [axis for axis in long_axes(stage.op.axis) if not among(known.get(axis), rows)]


def _in_order(group: Group, stage: Stage, rows: list[Axis]) -> list[Axis]:
    """Axes of a stage beside a kernel in the order of the rows that they are there."""
    known, order = group.axes.get(stage.name, {}), list(group.rows or ())
    places = {axis: n for n, axis in enumerate(order)}
    return sorted(rows, key=lambda axis: places.get(known.get(axis, axis), -1))
