"""Folds of the same long rows by one kernel, which loads them once.

    for i: a[i] = sum(k)(f(x[i, k]));  for i: b[i] = max(k)(g(x[i, k], y[i, k]))
    --> for i: a[i] = sum(k)(f(x[i, k])), b[i] = max(k)(g(x[i, k], y[i, k]))

Rows that a program has whole in registers are shared when their kernels are scheduled
(`gpu.rows.horizontal_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Along, Group
from tedsl.schedules.analysis.kernel_order import Kernels, stages_of
from tedsl.schedules.analysis.nests import (
    is_reduction,
    long_axes,
    needs_one_of,
    pow2_at_least,
    same_axes,
)
from tedsl.schedules.analysis.views import View, extent_of, volume
from tedsl.schedules.fusion.horizontal import LATEST
from tedsl.schedules.gpu.rows.rows import MAX_TILE
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor

RowsOf = Callable[[Group], Sequence[Axis]]


def siblings(
    s: Schedule,
    view: View,
    groups: Sequence[Group],
    order: Kernels,
    rows_of: RowsOf,
    chosen: Callable[[str], bool],
) -> dict[str, Along]:
    """The kernels that are to be part of an earlier one: what they store, which that stores beside
    its own.

    Args:
        s: the schedule.
        view: its stages.
        groups: its kernels.
        order: what runs in one kernel.
        rows_of: the rows of a kernel that folds along them.
        chosen: whether the result of that name is to be stored by another kernel.
    """
    found: dict[str, Along] = {}
    kernels: list[list[Group]] = []
    for other in groups:
        rows = tuple(rows_of(other)) if _is_long(view, other) else ()
        if not rows or other.regions or not _single(view, other, rows):
            continue
        for members in kernels[-LATEST:] if not other.beside else ():
            host, stages = members[0], [n for each in members for n in stages_of(each)]
            theirs = tuple(rows_of(host))
            apart = _sizes(rows) != _sizes(theirs) or not _shares(view, members, other)
            if apart or _needs(view, members, other):
                continue
            both = [*stages, *stages_of(other)]
            if order.may_be_one(s, both) and chosen(other.root):
                order.join(both)
                pairs = zip(long_axes(rows), long_axes(theirs), strict=True)
                found[other.root] = Along(host.root, dict(pairs))
                members.append(other)
                break
        else:
            kernels.append([other])
    for name in found:
        if is_reduction(view[name]):
            s.cache_write(s[name].op.outputs[0], "local")
    return found


def _sizes(rows: Sequence[Axis]) -> list[int | None]:
    return [extent_of(axis) for axis in long_axes(rows)]


def _single(view: View, group: Group, rows: Sequence[Axis]) -> bool:
    """True for one result for each row."""
    return same_axes(rows, view[group.root].axes) and len(view[group.root].bodies) == 1


def _folds(view: View, group: Group) -> list[str]:
    return [name for name in (*group.inner, group.root) if is_reduction(view[name])]


def _is_long(view: View, group: Group) -> bool:
    """True for folds of rows that a program does not have whole beside others."""
    lengths = [volume(view[name].reduce_axes) for name in _folds(view, group)]
    single = not (group.contracts or group.in_parts or group.pairs or group.apart)
    long = all(n is not None and pow2_at_least(n) >= MAX_TILE for n in lengths)
    return single and bool(lengths) and len(set(lengths)) == 1 and long


def _needs(view: View, members: Sequence[Group], other: Group) -> bool:
    """True where a kernel needs what others store, or they what it stores."""
    stored = [name for each in members for name in (each.root, *each.beside)]
    inside = [name for each in members for name in stages_of(each)]
    return any(needs_one_of(view, name, stored) for name in stages_of(other)) or any(
        needs_one_of(view, name, [other.root]) for name in inside
    )


def _shares(view: View, members: Sequence[Group], other: Group) -> bool:
    """True where half of the bytes that a kernel reads along its rows are read by others too."""
    own = _along_rows(view, other)
    theirs = {tensor for each in members for tensor in _along_rows(view, each)}
    return 2 * sum(own[t] for t in own if t in theirs) >= sum(own.values()) > 0


def _along_rows(view: View, group: Group) -> dict[Tensor, int]:
    """What is read along folded rows, and the bytes of an element of it."""
    return {
        read.tensor: read.tensor.dtype.nbytes
        for name in _folds(view, group)
        for read in reads(*view[name].bodies)
        if not axes_of(*read.indices).isdisjoint(view[name].reduce_axes)
    }
