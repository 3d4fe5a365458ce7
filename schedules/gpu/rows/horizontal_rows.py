"""Horizontal fusion of row reductions: kernels with a result for each row run in the loops of
another kernel that reduces the same rows.

    for i: a[i] = sum(k)(f(x[i, k]))          for i: b[i] = sum(k)(g(x[i, k]))
    --> for i: a[i] = sum(k)(f(x[i, k])); b[i] = sum(k)(g(x[i, k]))

A row that both reduce is loaded once.  So are reductions of one kernel that do not need each other
in one loop over the pieces of long rows: what several of them are computed of is computed once.

    for pieces of k: a = sum(k)(f(x[k], m));  for pieces of k: b = sum(k)(g(x[k], m))
    --> for pieces of k: a = sum(k)(f(x[k], m)), b = sum(k)(g(x[k], m))
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    any_order,
    innermost,
    is_reduction,
    long_axes,
    needs_one_of,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, reads_of, volume
from tedsl.schedules.fusion.horizontal import LATEST, Beside, Leader, all_computed, join_first
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import fold_at_once, fused
from tedsl.schedules.trial import takes
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
    names, tiled = [group.root, *group.inner], partial(_like, group=group)
    return join_first(s, beside, names, alike, f"{group.root}.beside", tiled)


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


def _like(s: Schedule, leader: Leader, group: Group) -> str:
    """Tiles of rows as the leader has them, and whole rows of what is reduced."""
    stage = s[group.root]
    row = innermost(group.rows or ())
    others = [axis for axis in group.rows or () if axis is not row]
    outer, inner = stage.split(row, factor=leader.tile)
    stage.reorder(*others, outer, inner)
    place = fused(stage, (*others, outer))
    stage.vectorize(inner)
    for name in reversed(group.inner):
        fold_at_once(s[name], stage, place)
    return group.root


def share_loops(s: Schedule, turns: Mapping[str, Axis]) -> None:
    """Let reductions, which are at one place and split alike, each with its loop over pieces, run
    in the loops of earlier ones that fold as much and read the same, by its knob `beside`."""
    view, leaders = definitions(s), dict[str, list[str]]()
    for name in (each for each in view if each in turns):
        for leader, members in leaders.items():
            free = _alike(view, leader, name) and not needs_one_of(view, name, members)
            question = (share_loops, name, leader)
            steps = partial(_share, name=name, leader=leader, turns=turns)
            if free and takes(s, question, steps) and flip(s, f"{name}.beside", True):
                _share(s, name, leader, turns)
                members.append(name)
                break
        else:
            leaders[name] = [name]


def _alike(view: View, one: str, other: str) -> bool:
    """True for folds of as many elements that read a tensor in common."""
    same = volume(view[one].reduce_axes) == volume(view[other].reduce_axes) is not None
    read = [{each.tensor for each in reads_of(view[name])} for name in (one, other)]
    return same and not read[0].isdisjoint(read[1])


def _share(s: Schedule, name: str, leader: str, turns: Mapping[str, Axis]) -> None:
    """One loop over pieces, outside of the loops of tiles."""
    for each in (leader, name):
        stage, turn = s[each], turns[each]
        stage.reorder(turn, *(axis for axis in stage.leaf_iter_vars if axis is not turn))
    s[name].compute_with(s[leader], turns[leader])
