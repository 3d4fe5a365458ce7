"""Row-epilogue fusion: a kernel that reads the results of rows and the rows again, pointwise over a
matrix or a reduction of the same rows, joins the kernel of the row reductions (cross entropy with
its gradient).

    for i: l[i] = sum(k)(x[i, k])
    for i: loss[i] = f(l[i])          for i, j: dx[i, j] = g(x[i, j], l[i])
    --> for i: l = sum(k)(x[i, k]); for j: dx[i, j] = g(x[i, j], l); loss[i] = f(l)

A row is then read again while it is in registers or cache, and its results stay in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Group, crossed_row
from tedsl.schedules.analysis.kernel_order import kernels_of, stages_of
from tedsl.schedules.analysis.nests import (
    along,
    among,
    in_step,
    innermost,
    is_reduction,
    long_axes,
    needs_one_of,
    plain,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, reads_of, size_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.knobs import flip
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.relations import extents
from tedsl.tensor.tensor import Tensor


def take_along(s: Schedule, groups: Sequence[Group]) -> list[Group]:
    """The kernels, after a pointwise kernel over a matrix has been fused with the kernel of its
    rows' results, and with what else is computed of those, by the knob `along`."""
    view = definitions(s)
    readers, outputs = view.readers, {s[t].name for t in s.outputs}
    kept = {group.root: group for group in groups}
    owners = {name: group.root for group in groups for name in (*group.inner, group.root)}
    for group in groups:
        if group.root not in kept or group.root in outputs or not _is_of_results(view, group):
            continue
        if group.beside:
            continue
        users = dict.fromkeys(owners.get(user, user) for user, _ in readers[group.root])
        known = [kept[user] for user in users if user in kept]
        takers = [
            each
            for each in known
            if _reads_rows(view, group, each) or _folds_rows(s, view, group, each)
        ]
        others = [each for each in known if not any(each is taker for taker in takers)]
        if len(known) != len(users) or len(takers) != 1:
            continue
        (taker,) = takers
        apart = all(_is_beside(view, each, group, taker) for each in others)
        names = [name for each in (taker, group, *others) for name in stages_of(each)]
        apart = apart and kernels_of(kept.values()).may_be_one(s, names)
        if apart and flip(s, f"{taker.root}.along", True):
            _take(view, taker, group)
            taker.beside += [each.root for each in others]
            for each in (group, *others):
                del kept[each.root]
            owners |= dict.fromkeys(taker.inner, taker.root)
    return list(kept.values())


def _is_of_results(view: View, group: Group) -> bool:
    """True for a kernel that reduces contiguous rows to one element for each."""
    root = view[group.root]
    if group.contracts or group.in_parts or not root.axes:
        return False
    if is_reduction(root):
        return not group.inner and among(along(root), root.reduce_axes)
    return same_axes(group.rows, root.axes) and crossed_row(view, group) is None


def _reads_rows(view: View, group: Group, other: Group) -> bool:
    """True for a pointwise kernel over a matrix that reads the results of its rows and a matrix
    that is reduced there."""
    root = view[other.root]
    if other.rows is not None or other.inner or len(root.axes) != 2 or is_reduction(root):
        return False
    if len(view[group.root].axes) != 1:
        return False
    if not all(same_axes(plain(r), root.axes[:1]) for r in _reads_of(view, other.root, group.root)):
        return False
    folded: set[Tensor] = set()
    for name in group.inner:
        op = view[name]
        if is_reduction(op) and len(op.reduce_axes) == 1 and len(op.axes) == 1:
            both = (op.axes[0], op.reduce_axes[0])
            folded |= {r.tensor for r in reads(*op.bodies) if same_axes(plain(r), both)}
    again = {r.tensor for r in reads(*root.bodies) if same_axes(plain(r), root.axes)}
    return not folded.isdisjoint(again)


def _folds_rows(s: Schedule, view: View, group: Group, other: Group) -> bool:
    """True for a kernel of reductions of the same rows, of which there are enough for a device."""
    if other.contracts or other.in_parts or not other.rows or crossed_row(view, other) is not None:
        return False
    if (volume(other.rows) or gpu_of(s).sms) < gpu_of(s).sms:
        return False  # few rows are split
    rows = long_axes(other.rows)
    both = [_long(view, each, len(rows)) for each in (group, other)]
    return not both[0].isdisjoint(both[1]) and all(
        same_axes([other.axes[name].get(a, a) for a in long_axes(plain(read) or ())], rows)
        for name in (*other.inner, other.root)
        for read in _reads_of(view, name, group.root)
    )


def _long(view: View, group: Group, rows: int) -> set[Tensor]:
    """What a kernel reads along its rows."""
    found = (read for name in (*group.inner, group.root) for read in reads_of(view[name]))
    return {read.tensor for read in found if len(axes_of(*read.indices)) > rows}


def _is_beside(view: View, other: Group, group: Group, taker: Group) -> bool:
    """True for a kernel of one element for each row, which is independent of `taker`."""
    root = view[other.root]
    if other.rows is not None or other.inner or is_reduction(root):
        return False
    found = _reads_of(view, other.root, group.root)
    free = not (
        needs_one_of(view, other.root, [taker.root]) or needs_one_of(view, taker.root, [other.root])
    )
    return free and all(in_step(r, root.axes) for r in found)


def _reads_of(view: View, name: str, source: str) -> list[TensorRead]:
    return [r for r in reads(*view[name].bodies) if r.tensor.op is view[source]]


def _take(view: View, taker: Group, group: Group) -> None:
    """Make the stages of `group` parts of `taker`."""
    taker.rows = taker.rows or view[taker.root].axes[:1]
    own, rows = view[group.root].axes, taker.rows
    pairs = (own, rows) if len(own) == len(rows) else (long_axes(own), long_axes(rows))
    known = dict(zip(*pairs, strict=True))
    taker.inner = [*group.inner, group.root, *taker.inner]
    for name in (*group.inner, group.root):
        mine = group.axes[name].items()
        taker.axes[name] = {axis: known[to] for axis, to in mine if to in known}


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
