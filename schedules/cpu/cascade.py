"""Flash attention on the CPU: cascaded reductions (online softmax) between two contractions, one
loop over blocks of keys for a block of query rows whose accumulators stay in the L1 and L2 caches.

    for blocks of i: for pieces of j: S = sum(d)(q, k); m, l, O updated online
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.chains import (
    Chained,
    depended_on,
    follow,
    in_terms_of,
    inline_around,
    inner_folds,
    root_of,
    take_chains,
)
from tedsl.schedules.analysis.nests import among, any_order, first, products, reduce_axes
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.schedules.cpu.contraction import crosses, fold_in_tiles, pack, packable, pick_tile
from tedsl.schedules.cpu.tasks import SMALL
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Columns of a block of results, none of which is split (attention: the head dimension).
WIDEST = 1024
# Rows of a block, and elements of a block of one piece.
ROWS = 48
PIECE = ROWS * 128
# Rows from which the inner contraction is computed in register tiles; fewer are vectorised along
# its reduced axis.
TILED = 4


def schedule_chains(s: Schedule) -> list[str]:
    """Schedule the contractions that depend on other reductions of the axis they reduce; returns
    the stages that are scheduled then."""
    return take_chains(s, _found, _reduce_chain)


def _found(s: Schedule, view: View, name: str) -> Chained | None:
    """The cascade that ends in the contraction `name`, if there is one of known extents."""
    op = s[name].op
    if not isinstance(op, ComputeOp) or not s[name].plan.placement.at_root:
        return None
    shape = products(op)
    if shape is None or len(shape.folded) != 1 or len(shape.columns) != 1 or not any_order(op):
        return None
    names = depended_on(s, view, name)
    if not names:
        return None
    inner = inner_folds(
        s, view, (*names, name), lambda each: products(each) is not None and any_order(each)
    )
    width = extent_of(shape.columns[0])
    held = (*shape.folded, *shape.rows, *(a for each in inner for a in view[each].reduce_axes))
    if width is None or width > WIDEST or volume(held) is None:
        return None
    root = root_of(s, view, name)
    if shape.columns[0] not in in_terms_of(view[root], view[name]):
        return None
    return Chained(name, root, names, inner, shape)


def _reduce_chain(s: Schedule, found: Chained) -> list[str]:
    """One kernel; returns the stages in it."""
    known = {stage.name for stage in s.stages}
    between = inline_around(s, found)
    stage, last = s[found.root], found.last
    if last == stage.name:
        last = s[first(s.cache_write(stage.op.outputs[0], "local"))].name
    fold, root = s[last], definitions(s)[stage.name]
    shape = products(definitions(s)[last])
    if shape is None:
        return []
    axes = in_terms_of(root, definitions(s)[last])
    long = [axis for axis in shape.rows if axis in axes]
    row = max(reversed(long), key=lambda a: extent_of(a) or 1) if long else None
    column = shape.columns[0]
    rows = 1
    if row is not None:
        rows = pick(s, f"{stage.name}.block", (12, 24, 48, 96, 192), ROWS, extent_of(row))
    task = _blocks(stage, root, None if row is None else axes[row], axes[column], rows)
    folded = volume((*shape.folded, *root.axes))
    if folded is None or folded > SMALL:
        stage.parallel(task)
    fold.compute_at(stage, task)
    piece = max(128, min(512, PIECE // rows))
    depth = pick(s, f"{stage.name}.depth", (64, 128, 256, 512), piece, volume(shape.folded))
    pieces, inside = fold.split(reduce_axes(fold)[0], factor=depth)
    tile = pick_tile(s, stage.name, root, rows, extent_of(column), half=True)
    fold_in_tiles(fold, (row, column), tile, [pieces], [inside])
    follow(fold, pieces)
    for name in (*between, *found.inner):
        if s[name].plan.placement.at_root:
            s[name].compute_at(fold, pieces)
    for name in found.inner:
        _fold_between(s, s[name], rows)
    for name in (*between, *found.members):
        if not s[name].plan.placement.inlined:
            s[name].vectorize(s[name].leaf_iter_vars[-1])
    made = [each.name for each in s.stages if each.name not in known]
    return [found.root, found.last, *found.members, *found.inner, *between, *made]


def _blocks(stage: Stage, root: ComputeOp, row: Axis | None, column: Axis, rows: int) -> Axis:
    """Blocks of rows over the threads, all columns as SIMD lanes; the loop around a block."""
    others = [a for a in root.axes if a is not row and a is not column]
    inside: Sequence[Axis] = [column]
    if row is not None:
        block, own = stage.split(row, factor=rows)
        others, inside = [*others, block], [own, column]
    elif not others:
        block, column = stage.split(column, nparts=1)
        others, inside = [block], [column]
    stage.reorder(*others, *inside)
    stage.vectorize(inside[-1])
    return fused(stage, others)


def _fold_between(s: Schedule, inner: Stage, rows: int) -> None:
    """A piece of the inner contraction (the scores of attention): in register tiles, or vectorised
    along its reduced axis."""
    op = definitions(s)[inner.name]
    shape = products(op)
    if shape is None:
        return
    lane = op.axes[-1]
    sides = shape.rows, shape.columns
    side = next((each for each in sides if each and not among(lane, each)), ())
    if not side or rows < TILED or not among(lane, (*shape.rows, *shape.columns)):
        for axis in op.reduce_axes:
            inner.vectorize(axis)
        return
    tile = pick_tile(s, inner.name, op, min(rows, extent_of(side[-1]) or rows), extent_of(lane))
    panel = fold_in_tiles(inner, (side[-1], lane), tile, [], op.reduce_axes)
    crossed = [r for r in packable(s, definitions(s), inner, lane) if crosses(s, r, lane)]
    if crossed and flip(s, f"{inner.name}.pack", True):
        pack(s, inner, inner, crossed, lane, panel)
