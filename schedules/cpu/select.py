"""Dispatch on the CPU: which rule each kernel gets by the shape of its loops, and the rule for
pointwise kernels (multithreaded, SIMD-vectorised, tiled where something is read transposed).

Each rule is a function for one shape of loop nest, and each of its choices a named knob.
"""

from __future__ import annotations

from functools import partial

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import reads
from tedsl.schedules.analysis.groups import Group, crossed_row, expose_epilogue, find_groups
from tedsl.schedules.analysis.nests import (
    among,
    contraction,
    crossing,
    first,
    is_reduction,
    plain,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.schedules.cpu.columns_and_full import fold_across, fold_whole
from tedsl.schedules.cpu.contraction import contract, parts_of_fold
from tedsl.schedules.cpu.rows import fold_rows, reduce_rows
from tedsl.schedules.cpu.tasks import SMALL, run_parallel, spread, tasks_wanted
from tedsl.schedules.fusion.horizontal import Beside, joined, lead
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused
from tedsl.schedules.trial import takes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Rows that keep the threads of a common machine busy.
BUSY_ROWS = 8


def schedule_group(s: Schedule, group: Group, beside: Beside) -> None:
    """Choose the rule for one kernel by the shape of its nests."""
    view = definitions(s)
    root = view[group.root]
    if is_reduction(root):
        _schedule_reduction(s, group, root, beside)
    elif group.contracts:
        if group.in_parts or not _in_parts(s, group, beside):
            contract(s, group)
    elif group.regions:
        tiles_with_regions(s, group, beside)
    elif group.rows is None:
        pointwise(s, s[group.root], root, beside)
    elif crossed_row(view, group) is not None:
        fold_across(s, group)
    else:
        reduce_rows(s, group)


def _schedule_reduction(s: Schedule, group: Group, root: ComputeOp, beside: Beside) -> None:
    """A root that is itself a reduction: to a scalar, over rows, or over columns with results as
    SIMD lanes."""
    if not root.axes:
        fold_whole(s, s[group.root], root)
        return
    columns = [a for a in root.axes if not among(a, group.rows or root.axes)]
    if volume(columns) is None:
        _apart(s, group, beside)
        return
    alone = Group(group.root, [group.root], root.axes)
    alone.axes = {group.root: {a: a for a in root.axes}}
    lane = crossed_row(definitions(s), alone)
    crossed = lane is not None and _crossed_alike(definitions(s), group, lane)
    spread = group.rows is not None and len(group.rows) < len(root.axes)
    if contraction(root, masked=True) is not None or crossed or spread:
        schedule_group(s, expose_epilogue(s, group, masked=True), beside)
    else:
        fold_rows(s, group, root)


def _crossed_alike(view: View, group: Group, lane: Axis) -> bool:
    """True when all that the root reads is reduced along other axes than `lane`, too."""
    inside = any(is_reduction(view[name]) for name in group.inner)
    return not inside or crossed_row(view, group) is lane


def _in_parts(s: Schedule, group: Group, beside: Beside) -> bool:
    """Split-K: the contraction of a kernel in parts of its longest reduced axis, in a kernel of
    their own, and their sum in this one; False where one part is enough."""
    view = definitions(s)
    name = next(name for name in group.inner if contraction(view[name], masked=True) is not None)
    axis, parts = parts_of_fold(s, group.root, view[name])
    if parts < 2:
        return False
    outer, _ = s[name].split(axis, nparts=parts)
    partial = s[first(s.rfactor(s[name].op.outputs[0], outer))].name
    view = definitions(s)
    members = View({each: view[each] for each in (*group.inner, partial, group.root)})
    for each in find_groups(members, [partial, group.root], masked=True):
        if each.root != partial:
            schedule_group(s, each, beside)
            continue
        whole = expose_epilogue(s, each, masked=True)
        whole.in_parts = True
        schedule_group(s, whole, beside)
    return True


def _apart(s: Schedule, group: Group, beside: Beside) -> None:
    """Each reduction as a kernel of its own, where a row of the root's results has no constant
    size, so that no buffer can hold it until the row is done."""
    view = definitions(s)
    members = View({name: view[name] for name in (*group.inner, group.root)})
    folds = [name for name in members if is_reduction(members[name])]
    for each in find_groups(members, folds, masked=True):
        schedule_group(s, each, beside)


def pointwise(s: Schedule, stage: Stage, op: ComputeOp, beside: Beside) -> None:
    """A pointwise kernel: chunks of the flattened index space over the threads, SIMD lanes inside;
    where something is read transposed, tiles of both axes."""
    if not op.axes:
        return
    total = volume(op.axes)
    everything = reads(*op.bodies)
    if len(op.axes) == 1 or all(same_axes(plain(r), op.axes) for r in everything):
        if joined(s, stage.name, beside, small=False):
            return
        flat = fused(stage, op.axes)
        sizes = (1024, 4096, 16384, 65536)
        piece = pick(s, f"{stage.name}.piece", sizes, spread(s, 16384, total, 2048), total)
        outer, inner = stage.split(flat, factor=piece)
        stage.vectorize(inner)
        if total is None or total > SMALL:
            stage.parallel(outer)
        lead(s, beside, stage.name, piece, small=False)
        return
    across = crossing(op, everything)
    if across is not None:
        _crossed(s, stage, op, across[0], total)
        return
    last = op.axes[-1]
    width = pick(s, f"{stage.name}.width", (64, 256, 1024, 4096), 1024, extent_of(last))
    if extent_of(last) is not None:
        width = min(extent_of(last) or 1, max(width, 1))
    lo, li = stage.split(last, factor=width)
    outer = op.axes[:-1]
    stage.reorder(*outer, lo, li)
    stage.vectorize(li)
    block = _blocks(s, stage, (lo, _strips(last, width)), volume(outer), total)
    if block is None:
        run_parallel(s, stage, outer, total)
    else:
        stage.parallel(fused(stage, (*outer, block)))


def _strips(axis: Axis, width: int) -> int:
    """How many strips of a width there are along an axis; 0 where that is not known."""
    return -(-(extent_of(axis) or 0) // width)


def _blocks(
    s: Schedule,
    stage: Stage,
    strips: tuple[Axis, int],
    outside: int | None,
    total: int | None,
) -> Axis | None:
    """The loop over blocks of strips, of which there are so many, where the loops outside of theirs
    have too few iterations to keep all threads busy."""
    loop, count = strips
    wanted = tasks_wanted(s)
    if outside is None or outside >= wanted or count < 2 or total is None or total <= SMALL:
        return None
    return stage.split(loop, nparts=min(count, -(-wanted // max(1, outside))))[0]


def tiles_with_regions(s: Schedule, group: Group, beside: Beside) -> None:
    """A stencil pipeline: tiles of the last two axes over the threads; the region of a producer
    that a tile reads, halo included, is computed just before it (`compute_at`) into a buffer that
    stays in cache, if it is of a constant size."""
    stage, op = s[group.root], definitions(s)[group.root]
    row, column = op.axes[-2:]
    total = volume(op.axes)
    usual = spread(s, 128 * 128, total, 16 * 128) // 128
    tall = pick(s, f"{stage.name}.tall", (1, 8, 16, 32, 64, 128), usual, extent_of(row))
    wide = pick(s, f"{stage.name}.width", (64, 128, 256, 512, 1024, 2048), 128, extent_of(column))
    lanes = min(wide, pick(s, f"{stage.name}.lanes", (16, 64, 256), 16, wide))
    ro, ri = stage.split(row, factor=tall)
    co, ci = stage.split(column, factor=wide)
    stage.reorder(*op.axes[:-2], ro, co, ri, ci)
    if lanes < wide:
        _, ci = stage.split(ci, factor=lanes)
    stage.vectorize(ci)
    task = fused(stage, (*op.axes[:-2], ro, co))
    for name in group.regions:
        inner = s[name]
        if not takes(s, (tiles_with_regions, name), partial(_attach, name, stage.name, task)):
            pointwise(s, inner, definitions(s)[name], beside)
            continue
        inner.compute_at(stage, task)
        last = definitions(s)[name].axes[-1]
        _, piece = inner.split(last, factor=lanes)
        inner.vectorize(piece)
    if total is None or total > SMALL:
        stage.parallel(task)


def _attach(name: str, at: str, loop: Axis, s: Schedule) -> None:
    s[name].compute_at(s[at], loop)


def _crossed(s: Schedule, stage: Stage, op: ComputeOp, across: Axis, total: int | None) -> None:
    """A transposing kernel: two-dimensional SIMD tiles.  What is contiguous along the other axis is
    loaded along it and transposed in registers, and each cache line fetched for a tile is used up
    in it."""
    last = op.axes[-1]
    tall = pick(s, f"{stage.name}.tall", (16, 32, 64, 128), 64, extent_of(across))
    wide = pick(s, f"{stage.name}.width", (16, 32, 64, 128, 256), 64, extent_of(last))
    ao, ai = stage.split(across, factor=tall)
    lo, li = stage.split(last, factor=wide)
    others = [a for a in op.axes if a is not across and a is not last]
    stage.reorder(*others, ao, lo, ai, li)
    stage.vectorize(ai)
    stage.vectorize(li)
    outside, high = volume(others), _strips(across, tall)
    outside = None if outside is None else outside * high
    block = _blocks(s, stage, (lo, _strips(last, wide)), outside, total)
    if block is not None:
        stage.parallel(fused(stage, (*others, ao, block)))
    elif total is None or total > SMALL:
        stage.parallel(fused(stage, (*others, ao)))
