"""GEMM, batched GEMM and convolution on the CPU: register tiles of the accumulator (a microkernel),
cache blocking, and the vectorised operand packed panel by panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.nests import (
    Contraction,
    Group,
    View,
    among,
    contraction,
    definitions,
    extent_of,
    is_reduction,
    nbytes_of,
    plain,
    pow2_at_least,
    volume,
)
from tedsl.schedules.cpu.tasks import SMALL
from tedsl.schedules.devices import cpu_of
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Tasks for each thread, for load balance, and how many are enough of them unless there are more
# than half as many threads.
TASKS_EACH = 4
TASKS = 32
# Rows of a block from which the cost of packing its panel again does not matter.
ROWS = 1024
# Elements along a row of an operand that are transposed at a time.
TURNED = 64
# The fixed cost of a tile, in rows that take as long.
BESIDE = 2


def contract(s: Schedule, group: Group) -> None:
    """Register tiles of the accumulator; the vectorised operand is packed panel by panel."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    inner = [name for name in group.inner if is_reduction(view[name])]
    shape = contraction(view[inner[0]], masked=True)
    if shape is None:
        return
    mapping = group.axes[inner[0]]
    lane = _lane(shape, mapping, root)
    side = shape.rows if among(lane, shape.columns) else shape.columns
    row, column = mapping[side[-1]], mapping[lane]
    tall, wide = pick_tile(s, stage.name, view[inner[0]], extent_of(row), extent_of(column))
    ro, ri = stage.split(row, factor=tall)
    co, ci = stage.split(column, factor=wide)
    # The panel of a packed operand serves all tiles beside each other, whatever axes they are on.
    within = [mapping[a] for a in side[:-1]]
    around = [a for a in root.axes if a is not row and a is not column and not among(a, within)]
    heights = [extent_of(a) for a in within]
    heights.append(None if extent_of(row) is None else -(-(extent_of(row) or 0) // tall))
    longer = next((n for n, height in enumerate(heights) if height != 1), len(heights) - 1)
    panels = None if extent_of(column) is None else -(-(extent_of(column) or 0) // wide)
    rows = volume([mapping[a] for a in side])
    beside = _beside(s, view[inner[0]], lane, wide, (volume(around), rows, panels))
    beside = pick(s, f"{stage.name}.panels", (1, 2, 4, 8), beside, panels or 1)
    blocks = _row_blocks(s, (volume(around) or 1) * -(-panels // beside) if panels else None)
    blocks = pick(s, f"{stage.name}.row_blocks", (1, 2, 4, 8, 16), blocks, heights[longer])
    tiles = [*within, ro]
    rb, tiles[longer] = stage.split(tiles[longer], nparts=blocks)
    if beside > 1:
        co, panel = stage.split(co, factor=beside)
        tiles.append(panel)
    stage.reorder(*around, rb, co, *tiles, ri, ci)
    stage.vectorize(ri)
    stage.vectorize(ci)
    several = wide if beside > 1 else None
    for name in inner:
        places = (tiles[-1], co)
        known = group.axes[name]
        _contract_inner(s, view, s[name], stage, places, known, (row, column), several)
    work = volume((*root.axes, *shape.folded))
    if work is None or work > SMALL:
        stage.parallel(fused(stage, (*around, rb, co)))


def _row_blocks(s: Schedule, tasks: int | None) -> int:
    """Into how many blocks the rows are split where there are `tasks` without that: as few as keep
    the threads busy, since each packs the panel again."""
    return 1 if tasks is None else min(16, pow2_at_least(-(-_tasks_wanted(s) // tasks)))


def _tasks_wanted(s: Schedule) -> int:
    threads = cpu_of(s).cores
    return max(min(TASKS, TASKS_EACH * threads), 2 * threads)


def _beside(
    s: Schedule,
    op: ComputeOp,
    lane: Axis,
    wide: int,
    counts: tuple[int | None, int | None, int | None],
) -> int:
    """How many panels, side by side in the L2 cache, each tile of rows is multiplied by in turn;
    `counts` are the batch, the rows and the panels.

    One panel after the other would fetch the rows again for each, which costs something only where
    they do not stay in the L2 cache themselves.
    """
    around, rows, panels = counts
    half = cpu_of(s).l2 // 2
    single = [r.tensor for r in reads(*op.bodies) if lane not in axes_of(*r.indices)]
    fetched = max((nbytes_of(tensor) for tensor in single), default=0)
    folded, size = volume(op.reduce_axes), max(t.dtype.nbytes for t in op.outputs)
    if not around or not rows or not panels or not folded or fetched // around <= half:
        return 1
    tasks = around * panels * max(1, rows // ROWS)
    most = min(8, panels, half // (wide * folded * size), tasks // _tasks_wanted(s))
    return pow2_at_least(most + 1) // 2 if most > 1 else 1


def _lane(shape: Contraction, mapping: dict[Axis, Axis], root: ComputeOp) -> Axis:
    """The axis to vectorise: the one along which the result is contiguous."""
    last = root.axes[-1]
    for axis in (*shape.rows, *shape.columns):
        if mapping[axis] is last:
            return axis
    return shape.columns[-1]


def pick_tile(
    s: Schedule, name: str, op: ComputeOp, m: int | None, n: int | None, half: bool = False
) -> tuple[int, int]:
    """A register tile: two vectors wide and as tall as the remaining vector registers, or `half` of
    them, allow; wider where there are fewer rows."""
    here = cpu_of(s)
    lanes = here.lanes(max(t.dtype.nbytes for t in op.outputs))
    rows = max(4, 3 * here.vector_registers // (16 if half else 8))
    default = rows if half or m is None else _height(rows, (here.vector_registers - 4) // 2, m)
    tall = pick(s, f"{name}.rows", (4, 6, 8, 12, 14), default, m)
    spare = 1 if m is None else max(1, min(4, rows // max(m, 1)))
    widths = [n * lanes for n in (1, 2, 3, 4, 8) if n <= max(3, 2 * spare)]
    return tall, pick(s, f"{name}.columns", widths, 2 * spare * lanes, n)


def _height(rows: int, most: int, extent: int) -> int:
    """`rows` for a tile, or another height of at most `most` that wastes clearly less: rows past
    the end, and the fixed cost of tiles."""

    def cost(height: int) -> int:
        return -(-extent // height) * (height + BESIDE)

    best = min(range(4, most + 1), key=cost, default=rows)
    return best if 20 * cost(best) < 19 * cost(rows) else rows


def fold_in_tiles(
    inner: Stage,
    tiled: tuple[Axis | None, Axis],
    tile: tuple[int, int],
    around: Sequence[Axis],
    folded: Sequence[Axis],
) -> Axis:
    """Register tiles of rows and columns inside of the loops `around` them, with the loops `folded`
    over K outside of the tile; returns the loop over panels of columns."""
    row, column = tiled
    data = inner.op.axes if isinstance(inner.op, ComputeOp) else ()
    others = [a for a in data if a is not row and a is not column]
    panel, ci = inner.split(column, factor=tile[1])
    loops, lanes = [panel], [ci]
    if row is not None:
        ro, ri = inner.split(row, factor=tile[0])
        loops, lanes = [panel, ro], [ri, ci]
    inner.reorder(*others, *around, *loops, *folded, *lanes)
    for lane in lanes:
        inner.vectorize(lane)
    return panel


def _contract_inner(
    s: Schedule,
    view: View,
    inner: Stage,
    stage: Stage,
    places: tuple[Axis, Axis],
    mapping: dict[Axis, Axis],
    tile: tuple[Axis, Axis],
    wide: int | None,
) -> None:
    """The K loop of one tile, `unroll` steps at a time, attached at the loop over tiles; an operand
    is packed at the loop over panels, or over several of them that are `wide` each."""
    op = view[inner.name]
    inner.compute_at(stage, places[0])
    column = next(a for a in op.axes if mapping.get(a) is tile[1])
    folded = _in_step(op, column)
    inner.reorder(*folded, *op.axes)
    for axis in op.axes:
        if among(mapping.get(axis), tile):
            inner.vectorize(axis)
    length = extent_of(folded[-1])
    steps = [n for n in (1, 2, 3, 4, 5, 7, 8) if length is not None and length % n == 0]
    steps = [n for n in steps if n in (1, 2, 4, 8) or n == length]
    unroll = pick(s, f"{stage.name}.unroll", steps, max([n for n in steps if n <= 4], default=1))
    if unroll > 1:
        _, ki = inner.split(folded[-1], factor=unroll)
        inner.reorder(ki, *op.axes)
        inner.unroll(ki)
    found = packable(view, inner, column)
    if volume(folded) is not None and found and flip(s, f"{stage.name}.pack", True):
        pack(s, inner, stage, found, column, places[1], wide)


def _in_step(op: ComputeOp, column: Axis) -> tuple[Axis, ...]:
    """The reduced axes in the memory order of the operand that is broadcast: its elements are read
    one by one, those of the vectorised operand a vector at a time."""
    single = [r for r in reads(*op.bodies) if column not in axes_of(*r.indices)]
    places: dict[Axis, int] = {}
    for read in single[:1]:
        for place, index in enumerate(read.indices):
            places.update({axis: place for axis in axes_of(index)})
    if any(axis not in places for axis in op.reduce_axes):
        return op.reduce_axes
    return tuple(sorted(op.reduce_axes, key=lambda axis: places[axis]))


def packable(view: View, inner: Stage, column: Axis) -> list[TensorRead]:
    """Reads of the vectorised operand, where the stage reads it itself."""
    op = inner.op
    if not isinstance(op, ComputeOp):
        return []
    direct = {r.tensor for r in reads(*op.bodies)}
    found = reads(*view[inner.name].bodies)
    return [r for r in found if among(column, plain(r) or ()) and r.tensor in direct]


def contiguous(read: TensorRead, axis: Axis) -> bool:
    """True where neighbours along `axis` lie next to each other in memory."""
    return read.indices[-1] is axis


def pack(
    s: Schedule,
    inner: Stage,
    stage: Stage,
    found: Sequence[TensorRead],
    column: Axis,
    panel: Axis,
    wide: int | None = None,
) -> None:
    """Pack the panel of the operand, or several that are `wide` each, so that its rows are
    contiguous; one that is stored transposed is read along its rows and transposed in registers."""
    for read in found:
        packed = s[s.cache_read(read.tensor, "local", [inner.op])]
        where = next(n for n, a in enumerate(plain(read) or ()) if a is column)
        if wide is not None:
            packed.transform_layout(_in_panels(where, wide))
            where = -1
        packed.compute_at(stage, panel)
        own = packed.op
        if isinstance(own, ComputeOp):
            if not contiguous(read, column):
                last = own.axes[-1 if wide is None else -2]
                length = extent_of(last)
                if length is None or length > TURNED:
                    _, last = packed.split(last, factor=TURNED)
                packed.vectorize(last)
            packed.vectorize(own.axes[where])


def _in_panels(where: int, wide: int) -> Callable[..., list[Any]]:
    """The packed layout, in which panels of `wide` along the index `where` follow each other."""

    def layout(*index: Any) -> list[Any]:
        others = [i for n, i in enumerate(index) if n != where]
        return [index[where] // wide, *others, index[where] % wide]

    return layout
