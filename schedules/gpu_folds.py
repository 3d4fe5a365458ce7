"""The rules for folds whose lanes are results, and for folds into one element.

Both leave a large device idle when there are few results, so the fold is then split: partial
results in a kernel of their own, and a second kernel that folds those.
"""

from __future__ import annotations

from tedsl.expr.nodes import Axis
from tedsl.expr.tensor import ComputeOp
from tedsl.schedules.analysis import (
    Group,
    View,
    any_order,
    crossed_row,
    definitions,
    extent_of,
    first,
    pow2_at_least,
    reduce_axes,
    volume,
)
from tedsl.schedules.choices import pick
from tedsl.schedules.gpu_tiles import PROCESSORS, bind_all, pick_warps
from tedsl.schedules.loops import fused
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage

# Programs that keep a large device busy; a reduction with fewer results is split.
MANY_PROGRAMS = 2 * PROCESSORS
# Elements of a tile: 64 for each thread of four warps.
TILE = 8192
PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def reduce_columns(s: Schedule, group: Group) -> None:
    """Folds across rows: a tile of neighbouring results and some rows, split when results are
    few."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    lane = crossed_row(view, group)
    if lane is None:
        return
    extent, folded = extent_of(lane), _fold_length(view, group)
    widest = None if extent is None else pow2_at_least(extent)
    width = pick(s, f"{stage.name}.columns", (32, 64, 128, 256, 512), 128, widest)
    deepest = TILE // width if folded is None else min(TILE // width, pow2_at_least(folded))
    depth = max(16, pow2_at_least(1024 // width)) if width < 128 else 16
    depth = pick(s, f"{stage.name}.rows", (4, 8, 16, 32, 64), min(depth, 512), deepest)
    parts = _parts(s, view, group, lane, width, depth)
    if parts > 1:
        _split_columns(s, group.inner[0], group.axes[group.inner[0]], lane, parts, width, depth)
        depth = min(parts, max(1, TILE // width))
    lo, li = stage.split(lane, factor=width)
    others = [a for a in root.axes if a is not lane]
    stage.reorder(*others, lo, li)
    grid = bind_all(stage, (*others, lo))
    stage.vectorize(li)
    for name in reversed(group.inner):
        _fold_inside(s, s[name], depth)
        if reduce_axes(s[name]):
            s[name].compute_at(stage, grid)
    stage.launch(num_warps=pick_warps(s, stage, (2, 4, 8), 4, width * depth))


def _fold_length(view: View, group: Group) -> int | None:
    """The longest fold; None when one is symbolic."""
    lengths = [volume(view[name].reduce_axes) for name in group.inner]
    return None if None in lengths else max((n or 1 for n in lengths), default=1)


def _parts(s: Schedule, view: View, group: Group, lane: Axis, width: int, depth: int) -> int:
    """In how many stretches to fold, so that there are programs enough."""
    folded, size = _fold_length(view, group), extent_of(lane)
    others = volume([a for a in view[group.root].axes if a is not lane])
    if group.in_parts or len(group.inner) > 1 or folded is None or size is None or others is None:
        return 1
    programs = others * -(-size // width)
    if programs == 0 or programs >= MANY_PROGRAMS or not any_order(view[group.inner[0]]):
        return 1
    most = folded // (2 * depth)
    fitting = max(1, min(256, 4 * MANY_PROGRAMS // programs, folded // depth))
    return pick(s, f"{s[group.root].name}.parts", PARTS, pow2_at_least(fitting), max(1, most))


def _fold_inside(s: Schedule, inner: Stage, depth: int) -> None:
    """Lanes of `depth` rows, folded element by element; one row at a time where order counts."""
    axes = reduce_axes(inner)
    if not axes:
        inner.compute_inline()
        return
    flat = fused(inner, axes)
    if any_order(definitions(s)[inner.name]):
        _, piece = inner.split(flat, factor=depth)
        inner.vectorize(piece)


def _split_columns(
    s: Schedule,
    name: str,
    known: dict[Axis, Axis],
    lane: Axis,
    parts: int,
    width: int,
    depth: int,
) -> None:
    """Partial results of `parts` stretches of the fold, in a kernel of their own."""
    stage = s[name]
    place = next(n for n, a in enumerate(definitions(s)[name].axes) if known.get(a) is lane)
    axes = reduce_axes(stage)
    flat = fused(stage, axes)
    part, _ = stage.split(flat, nparts=parts)
    outer = s[first(s.rfactor(stage.op.outputs[0], part))]
    outputs = list(outer.op.outputs)
    inner = s[first(s.cache_write(outputs if len(outputs) > 1 else outputs[0], "local"))]
    op = definitions(s)[outer.name]
    own = op.axes[1 + place]
    lo, li = outer.split(own, factor=width)
    others = [a for a in op.axes if a is not own]
    outer.reorder(*others, lo, li)
    grid = bind_all(outer, (*others, lo))
    outer.vectorize(li)
    _fold_inside(s, inner, depth)
    inner.compute_at(outer, grid)
    outer.launch(num_warps=4)


def reduce_whole(s: Schedule, stage: Stage) -> None:
    """A fold into one element: parts over the grid, then one program over the parts."""
    op = stage.op
    if not isinstance(op, ComputeOp):
        return
    axes = op.reduce_axes
    flat = fused(stage, axes)
    if not any_order(op):
        return
    total = volume(axes)
    most = None if total is None else pow2_at_least(total)
    block = pick(s, f"{stage.name}.block", (512, 1024, 2048, 4096), 2048, most)
    if total is not None and total <= 4 * block:
        _, piece = stage.split(flat, factor=block)
        stage.vectorize(piece)
        return
    fitting = 1 << 10 if total is None else pow2_at_least(total // (2 * block))
    choices = (32, 64, 128, 256, 512, 1024, 2048)
    parts = pick(s, f"{stage.name}.parts", choices, min(1024, fitting), max(fitting, 32))
    part, _ = stage.split(flat, nparts=parts)
    partial = s[first(s.rfactor(op.outputs[0], part))]
    inner = definitions(s)[partial.name]
    folded = inner.reduce_axes
    piece = fused(partial, folded)
    _, lanes = partial.split(piece, factor=block)
    partial.vectorize(lanes)
    partial.bind(inner.axes[0], "blockIdx.x")
    partial.launch(num_warps=pick(s, f"{stage.name}.warps", (4, 8, 16), 8))
    for axis in reduce_axes(stage):
        stage.vectorize(axis)
