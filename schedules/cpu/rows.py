"""Row reductions and what reads them (softmax, norms) on the CPU, fused: rows over the threads, and
inside a row one SIMD pass for each stage over data that stays in the L1 cache."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    along,
    among,
    any_order,
    first,
    in_memory_order,
    is_reduction,
    neighbours,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.schedules.cpu.tasks import SMALL, spread
from tedsl.schedules.devices import cpu_of
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused, fused_folds
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Elements of a row that stay in the L1 cache while several stages pass over it.
MAX_ROW = 16384
# Fewer rows than this leave threads idle; long ones are then split with `rfactor`.
FEW_ROWS = 8
PIECE = 65536
# Neighbours in memory that are worth a loop of their own, and that are vectorised as they are.
RUN, LONG_RUN = 32, 2048


def reduce_rows(s: Schedule, group: Group) -> None:
    """Every stage of a row before the next row."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    rows = list(group.rows or ())
    columns = [a for a in root.axes if not among(a, rows)]
    stage.reorder(*rows, *columns)
    row = fused(stage, rows)
    lengths = [
        volume([*_own(view, group, name, rows), *view[name].reduce_axes]) for name in group.inner
    ]
    longest = None if None in lengths else max((n or 1 for n in lengths), default=1)
    whole = longest is not None and longest <= MAX_ROW and volume(columns) is not None
    for axis in _lanes(s, stage, columns, whole):
        stage.vectorize(axis)
    for name in reversed(group.inner):
        _inner_row(s, view[name], s[name], (stage, row), _own(view, group, name, rows), whole)
    total = volume(root.axes)
    work = None if longest is None or total is None else max(total, longest * (volume(rows) or 0))
    if work is None or work > SMALL:
        stage.parallel(row)


def fold_rows(s: Schedule, group: Group, root: ComputeOp) -> None:
    """A root that reduces rows, with the reductions that it reads inside."""
    stage, view = s[group.root], definitions(s)
    length, count = volume(root.reduce_axes), volume(root.axes)
    piece = spread(s, PIECE, None if length is None else length * (count or 1), SMALL // 2)
    few = count is not None and count < max(FEW_ROWS, cpu_of(s).cores)
    if few and length is not None and length >= 2 * piece and not group.inner and any_order(root):
        _split_rows(s, stage, length, piece)
        root = definitions(s)[group.root]
        length = volume(root.reduce_axes)
    row = fused(stage, root.axes)
    whole = length is not None and length <= MAX_ROW
    if any_order(root):
        for axis in _lanes(s, stage, root.reduce_axes, whole):
            stage.vectorize(axis)
    for name in reversed(group.inner):
        own = _own(view, group, name, root.axes)
        _inner_row(s, view[name], s[name], (stage, row), own, whole)
    work = volume((*root.axes, *root.reduce_axes))
    if work is None or work > SMALL:
        stage.parallel(row)


def _split_rows(s: Schedule, stage: Stage, length: int, usual: int) -> None:
    """Partial results of few long rows over the threads, so that none is idle."""
    sizes = (PIECE // 4, PIECE, PIECE * 4)
    piece = pick(s, f"{stage.name}.part", sizes, usual, length // 2)
    part, _ = stage.split(fused_folds(s, stage), factor=piece)
    partial = s[first(s.rfactor(stage.op.outputs[0], part))]
    own = definitions(s)[partial.name]
    for axis in _lanes(s, partial, own.reduce_axes, whole=False):
        partial.vectorize(axis)
    partial.parallel(fused(partial, own.axes))


def _own(view: View, group: Group, name: str, rows: Sequence[Axis]) -> list[Axis]:
    """The axes of a stage inside a row: along the others it has one element there."""
    return [a for a in view[name].axes if not among(group.axes[name].get(a), rows)]


def _lanes(s: Schedule, stage: Stage, axes: Sequence[Axis], whole: bool) -> tuple[Axis, ...]:
    """The axes to vectorise: all of a short row, pieces of a long one; where the row lies in memory
    in runs, these or pieces of them, in loops over the others.  The lanes of a run that is folded
    are one loop: more of them accumulate side by side."""
    if not axes:
        return ()
    op = definitions(s)[stage.name]
    reduced = among(axes[0], op.reduce_axes)
    if whole:
        runs = neighbours(axes, reads(*op.bodies)) if reduced else [(axis,) for axis in axes]
        return tuple(fused(stage, run) for run in runs)
    order = in_memory_order(op) if reduced else tuple(axes)
    runs = neighbours(order, reads(*op.bodies))
    length = (volume(runs[-1]) or 0) if len(runs) > 1 else 0
    in_runs = length >= RUN
    if in_runs and not same_axes(order, axes):
        stage.reorder(*order)
    lane = fused(stage, runs[-1] if in_runs else axes)
    if in_runs and length <= LONG_RUN:
        return (lane,)
    piece = pick(s, f"{stage.name}.piece", (64, 128, 256, 1024), 128, volume(axes))
    return (stage.split(lane, factor=piece)[1],)


def _inner_row(
    s: Schedule,
    op: ComputeOp,
    inner: Stage,
    place: tuple[Stage, Axis],
    own: Sequence[Axis],
    whole: bool,
) -> None:
    """One pass over a row, along its `own` axes or what it reduces; `whole`: of the root's row."""
    if not is_reduction(op):
        if not whole or not _is_short(own):
            inner.compute_inline()
            return
        inner.compute_at(*place)
        for axis in own:
            inner.vectorize(axis)
        return
    lane = along(op)
    if lane is not None and among(lane, op.axes):
        inner.reorder(*(a for a in op.axes if a is not lane), *op.reduce_axes, lane)
        if among(lane, own) and extent_of(lane) is not None:
            inner.vectorize(lane)
    elif any_order(op):
        for axis in _lanes(s, inner, op.reduce_axes, whole and _is_short(op.reduce_axes)):
            inner.vectorize(axis)
    inner.compute_at(*place)


def _is_short(axes: Sequence[Axis]) -> bool:
    """True when lanes along all of `axes` are few enough, and counted when the kernel is built."""
    count = volume(axes)
    return count is not None and count <= MAX_ROW
