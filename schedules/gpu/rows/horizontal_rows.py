"""Horizontal fusion of row reductions: kernels with a result for each row run in the loops of
another kernel that reduces the same rows.

    for i: a[i] = sum(k)(f(x[i, k]))          for i: b[i] = sum(k)(g(x[i, k]))
    --> for i: a[i] = sum(k)(f(x[i, k])); b[i] = sum(k)(g(x[i, k]))

A row that both reduce is loaded once.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    any_order,
    innermost,
    is_reduction,
    long_axes,
    reduce_axes,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of
from tedsl.schedules.fusion.horizontal import LATEST, Beside, Leader, all_computed, join
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor


def lead_rows(s: Schedule, beside: Beside, group: Group, each: int, place: Axis) -> None:
    """Later row kernels may be fused into `group`, whose programs have `each` whole rows in the
    loop `place`."""
    stage = s[group.root]
    if stage.leaf_iter_vars[0] is place and not group.beside and not group.apart:
        leader = Leader(group.root, each, False, {group.root, *group.inner})
        leader.rows, leader.folded = _sizes(group.rows or ()), _folded(definitions(s), group)
        beside.leaders.append(leader)


def rows_joined(s: Schedule, group: Group, beside: Beside) -> bool:
    """Fuse a kernel of a result for each row into an earlier one that reduces the same rows, by the
    knob `beside`, which is on by default; True when that was chosen."""
    view = definitions(s)
    root = view[group.root]
    own = same_axes(group.rows, root.axes) and not group.beside and not group.in_parts
    free = all(is_reduction(view[n]) and any_order(view[n]) for n in group.inner)
    if not own or not free or group.apart or not beside.leaders or not all_computed(s):
        return False
    sizes, folded = _sizes(root.axes), _folded(view, group)
    alike = [
        leader
        for leader in beside.leaders
        if leader.rows == sizes and not folded.isdisjoint(leader.folded)
    ][-LATEST:]
    names = [group.root, *group.inner]
    for leader in beside.free(s, alike, names):
        if not _joins(s, group, leader):
            continue
        if not flip(s, f"{group.root}.beside", True):
            return False
        _split(s, group, leader)
        beside.join(names, leader, loops=True)
        return True
    return False


def _sizes(rows: tuple[Axis, ...]) -> tuple[int | None, ...]:
    return tuple(map(extent_of, long_axes(rows)))


def _folded(view: View, group: Group) -> set[tuple[Tensor, int | None]]:
    """What is read along reduced rows, and how long those are."""
    return {
        (read.tensor, extent_of(axis))
        for name in group.inner
        if len(view[name].reduce_axes) == 1
        for axis in view[name].reduce_axes
        for read in reads(*view[name].bodies)
        if axis in axes_of(*read.indices) and group.axes[name].keys() <= axes_of(*read.indices)
    }


def _joins(s: Schedule, group: Group, leader: Leader) -> bool:
    """True when the primitives accept the fusion."""
    trial = s.copy(decided=False)
    try:
        _split(trial, group, leader)
        join(trial, group.root, leader.name, loops=True)
    except ScheduleError:
        return False
    return True


def _split(s: Schedule, group: Group, leader: Leader) -> None:
    """Tiles of rows as the leader has them, and whole rows of what is reduced."""
    stage = s[group.root]
    row = innermost(group.rows or ())
    others = [axis for axis in group.rows or () if axis is not row]
    outer, inner = stage.split(row, factor=leader.tile)
    stage.reorder(*others, outer, inner)
    place = fused(stage, (*others, outer))
    stage.vectorize(inner)
    for name in reversed(group.inner):
        for axis in reduce_axes(s[name]):
            s[name].vectorize(axis)
        s[name].compute_at(stage, place)
