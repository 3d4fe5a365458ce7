"""Column reductions and full reductions (to a scalar) on the CPU: SIMD lanes across results, and
long reductions split with `rfactor` into partial results on all threads.

A strip of neighbouring results accumulates row by row.  The rows of a part lie together in memory.
Long sums are sums of the sums of runs, as in pairwise summation: the error of a sum grows with the
terms that one accumulator adds (N. Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tedsl.expr.nodes import Axis, BinaryOp, Reduce
from tedsl.schedules.analysis.groups import Group, crossed_row
from tedsl.schedules.analysis.nests import (
    among,
    any_order,
    computed,
    first,
    is_reduction,
    reduce_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.schedules.cpu.tasks import SMALL, spread
from tedsl.schedules.devices import cpu_of
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused, fused_folds
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Results that accumulate in registers while the rows of a reduction stream by.
WIDTH = 256
PART_WIDTH = 128
# Rows added between a load and a store of an accumulator in memory.
AT_ONCE = 8
# Elements of a part, and how many parts make a split worth it.
PART = 1 << 18
FEW_PARTS = 4
# Terms from which a sum is one of runs, and the least and the most of a run.
LONG_SUM = 512
RUNS = 16, 128


def fold_across(s: Schedule, group: Group) -> None:
    """A column reduction: strips of neighbouring results over the threads, each reduced row by
    row."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    lane = crossed_row(view, group)
    if lane is None:
        return
    _split_long(s, view, group, lane)
    view = definitions(s)
    work = [volume((*view[name].axes, *view[name].reduce_axes)) for name in group.inner]
    runs = {name: _in_runs(s, s[name]) for name in group.inner if is_reduction(view[name])}
    view = definitions(s)
    rows = [a for a in group.rows or () if a is not lane]
    columns = [a for a in root.axes if a is not lane and not among(a, rows)]
    usual = _width(s, root, extent_of(lane), volume(rows))
    width = pick(s, f"{stage.name}.width", (64, 256, 1024), usual, extent_of(lane))
    lo, li = stage.split(lane, factor=width)
    stage.reorder(*rows, lo, *columns, li)
    stage.vectorize(li)
    task = fused(stage, (*rows, lo))
    for name in reversed(group.inner):
        inner, op = s[name], view[name]
        if not is_reduction(op):
            inner.compute_inline()
            continue
        inner.compute_at(stage, task)
        mine = {n: a for n, a in enumerate(op.axes) if group.axes[name].get(a) is lane}
        inner.reorder(*op.reduce_axes, *mine.values())
        for axis in mine.values():
            inner.vectorize(axis)
        run = runs.get(name)
        if run is not None:
            _fold_run(run, inner, list(mine))
    if None in work or sum(n or 0 for n in work) > SMALL:
        stage.parallel(task)


def _width(s: Schedule, root: ComputeOp, size: int | None, rows: int | None) -> int:
    """The results of a strip: fewer where each thread would not have one, of whole vectors."""
    width, here = WIDTH, cpu_of(s)
    least = 2 * here.lanes(max(t.dtype.nbytes for t in root.outputs))
    while size and rows and width > least and rows * -(-size // width) < here.cores:
        width //= 2
    return width


def _split_long(s: Schedule, view: View, group: Group, lane: Axis) -> None:
    """Split one long column reduction with `rfactor`, where strips of columns would leave threads
    idle or stride over memory."""
    name = group.inner[0]
    op, size = view[name], extent_of(lane)
    folded, points = volume(op.reduce_axes), volume((*op.axes, *op.reduce_axes))
    if len(group.inner) > 1 or folded is None or points is None or size is None:
        return
    others = volume([a for a in op.axes if group.axes[name].get(a) is not lane])
    idle = -(-size // WIDTH) < cpu_of(s).cores
    usual = spread(s, PART, points, SMALL) if idle else PART
    few = others == 1 and points >= FEW_PARTS * usual
    if not few or not any_order(op):
        return
    height = max(AT_ONCE, usual // size)
    sizes = (height // 4, height, height * 4)
    height = pick(s, f"{group.root}.part", [n for n in sizes if n > 0], height, folded // 2)
    stage = s[name]
    part, _ = stage.split(fused(stage, op.reduce_axes), factor=height)
    partial = s[first(s.rfactor(stage.op.outputs[0], part))]
    own = definitions(s)[partial.name]
    place = next(n for n, a in enumerate(op.axes) if group.axes[name].get(a) is lane)
    _fold_part(s, partial, own, 1 + place)


def _fold_part(s: Schedule, stage: Stage, op: ComputeOp, place: int) -> None:
    """Unroll several rows into a strip of accumulators, then the next strip."""
    lane = op.axes[place]
    width = pick(s, f"{stage.name}.width", (64, 128, 256), PART_WIDTH, extent_of(lane))
    run = _in_runs(s, stage)
    stage.parallel(op.axes[0])
    if run is not None:
        lo, li = stage.split(lane, factor=width)
        over = reduce_axes(stage)[0]
        stage.reorder(*(a for a in op.axes if a is not lane), over, lo, li)
        stage.vectorize(li)
        run.compute_at(stage, over)
        stage, op = run, computed(run)
        lane = op.axes[1 + place]
    ko, ki = stage.split(fused(stage, reduce_axes(stage)), factor=AT_ONCE)
    lo, li = stage.split(lane, factor=width)
    stage.reorder(*(a for a in op.axes if a is not lane), ko, lo, ki, li)
    stage.unroll(ki)
    stage.vectorize(li)


def _in_runs(s: Schedule, stage: Stage) -> Stage | None:
    """The sums of the runs of a long sum of floats, of about as many terms as there are runs."""
    op = computed(stage)
    body, length = op.bodies[0], volume(op.reduce_axes)
    if not isinstance(body, Reduce) or body.reducer.operator is not BinaryOp.ADD:
        return None
    dtype = op.outputs[0].dtype
    if length is None or length <= LONG_SUM or not dtype.is_float or not any_order(op):
        return None
    least, most = RUNS
    run = min(most, max(least, 1 << (math.isqrt(length).bit_length() - 1)))
    over, _ = stage.split(fused_folds(s, stage), factor=run)
    return s[first(s.rfactor(stage.op.outputs[0], over))]


def _fold_run(run: Stage, stage: Stage, places: Sequence[int]) -> None:
    """Add up a run inside the loop over runs, in accumulators of its own."""
    op = computed(run)
    lanes = [op.axes[1 + place] for place in places]
    run.compute_at(stage, reduce_axes(stage)[-1])
    run.reorder(*op.reduce_axes, *lanes)
    for lane in lanes:
        run.vectorize(lane)


def fold_whole(s: Schedule, stage: Stage, op: ComputeOp) -> None:
    """A full reduction: partial results over the threads, then their sum."""
    total = volume(op.reduce_axes)
    flat = fused_folds(s, stage)
    if not any_order(op):
        return
    if total is not None and total <= SMALL:
        _, piece = stage.split(flat, factor=max(1, min(64, total)))
        stage.vectorize(piece)
        return
    sizes = (4096, 16384, 65536, 262144)
    chunk = pick(s, f"{stage.name}.piece", sizes, spread(s, 65536, total, 8192), total)
    part, _ = stage.split(flat, factor=chunk)
    partial = s[first(s.rfactor(stage.op.outputs[0], part))]
    inner = definitions(s)[partial.name]
    _, lanes = partial.split(fused(partial, inner.reduce_axes), factor=128)
    partial.vectorize(lanes)
    partial.parallel(inner.axes[0])
