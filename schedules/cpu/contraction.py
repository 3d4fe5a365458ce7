"""GEMM, batched GEMM and convolution on the CPU: register tiles of the accumulator (a microkernel),
cache blocking, and the vectorised operand packed panel by panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, TensorRead
from tedsl.expr.visit import axes_of, reads
from tedsl.index.affine import stride_of
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    Contraction,
    among,
    computed,
    contraction,
    direct_reads,
    is_reduction,
    nbytes_of,
    pow2_at_least,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, volume
from tedsl.schedules.cpu.tasks import SMALL, tasks_wanted
from tedsl.schedules.devices import cpu_of
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp, Tensor

# Rows of a block from which the cost of packing its panel again does not matter.
ROWS = 1024
# The least length of a part of a reduced axis.
LEAST = 512
# Elements along a row of an operand that are transposed at a time.
TURNED = 64
# Tiles of rows from which it pays to pack a panel that lies in rows already.
REUSED = 4
# How much better another axis fills vectors, to be worth results that are stored across.
FULLER = 1.5
# The fixed cost of a tile, in rows that take as long.
BESIDE = 2
# Cycles ahead of its use that a cache is asked for what lies far apart, about as long as the L2
# takes under load, and bytes from one step to the next from which the caches do not foresee it.
AHEAD = 96
FAR = 128
# Products of vectors in a cycle.
VECTORS = 2


def contract(s: Schedule, group: Group) -> None:
    """Register tiles of the accumulator; the vectorised operand is packed panel by panel."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    inner = [name for name in group.inner if is_reduction(view[name])]
    shape = contraction(view[inner[0]], masked=True)
    if shape is None:
        return
    mapping = group.axes[inner[0]]
    lane = _lane(s, shape, view[inner[0]], mapping, root)
    side = shape.rows if among(lane, shape.columns) else shape.columns
    row, column = mapping[side[-1]], mapping[lane]
    groups = shape.groups.get(side[-1], 0), shape.groups.get(lane, 0)
    sizes = extent_of(row), extent_of(column)
    tall, wide = pick_tile(s, stage.name, view[inner[0]], *sizes, groups=groups)
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
    last = root.axes[-1]
    block = _crossed_block(s, view[inner[0]], last, wide) if among(last, around) else 1
    if block > 1:
        outer, across = stage.split(last, factor=block)
        around = [outer if a is last else a for a in around]
        stage.reorder(*around, rb, co, *tiles, ri, ci, across)
        stage.vectorize(across)
    else:
        stage.reorder(*around, rb, co, *tiles, ri, ci)
        stage.vectorize(ri)
        stage.vectorize(ci)
    uses = None if rows is None else -(-rows // tall)
    tile = _Tile(
        stage, (row, column), tall * wide, tiles[-1], co, wide if beside > 1 else None, uses
    )
    for name in inner:
        _contract_inner(s, view, s[name], tile, group.axes[name])
    work = volume((*root.axes, *shape.folded))
    if work is None or work > SMALL:
        stage.parallel(fused(stage, (*around, rb, co)))


def parts_of_fold(s: Schedule, name: str, op: ComputeOp) -> tuple[Axis, int]:
    """The longest reduced axis, and into how many parts it is split, each with results of its own:
    so many that what a part reads again stays in the L2 cache, as long as all their results are few
    beside what is read, and that no thread is idle where there are fewer tiles than threads; the
    knob `parts`."""
    here, shape = cpu_of(s), contraction(op, masked=True)
    axis = max(op.reduce_axes, key=lambda each: extent_of(each) or 0)
    sizes = extent_of(axis), volume(op.reduce_axes), volume(op.axes)
    if shape is None or None in sizes:
        return axis, 1
    length, folded, results = (size or 0 for size in sizes)
    nbytes = max(t.dtype.nbytes for t in op.outputs)
    tall, wide = 3 * here.vector_registers // 8, 2 * here.lanes(nbytes)
    rows, columns = volume(shape.rows) or 1, volume(shape.columns) or 1
    read = {r.tensor: shape.columns[-1] in axes_of(*r.indices) for r in reads(*op.bodies)}
    fetched = sum(nbytes_of(tensor) for tensor in read)
    single = sum(nbytes_of(tensor) for tensor, moves in read.items() if not moves)
    again = single * rows * columns // max(1, results) if columns > wide else 0
    again += wide * folded * nbytes if rows > tall else 0
    held = min(-(-2 * again // here.l2), fetched // max(1, 4 * results * nbytes))
    tiles = max(1, -(-results // (tall * wide)))
    busy = 1 if tiles >= here.cores else -(-tasks_wanted(s) // tiles)
    parts = max(1, min(max(held, busy), length // LEAST))
    parts = next((n for n in range(parts, 2 * parts) if length % n == 0), parts)
    return axis, pick(s, f"{name}.parts", (1, 2, 4, 8, 16, 32), parts, length // LEAST)


def _crossed_block(s: Schedule, op: ComputeOp, last: Axis, wide: int) -> int:
    """How many products of a batch a tile is computed of before it is stored, where the results of
    the batch are neighbours in memory: a vector of them, if the L2 cache holds the panels of as
    many products."""
    here, nbytes = cpu_of(s), max(t.dtype.nbytes for t in op.outputs)
    lanes, folded, size = here.lanes(nbytes), volume(op.reduce_axes), extent_of(last)
    if folded is None or size is None or size < 2:
        return 1
    held = here.l2 // (2 * max(1, folded) * wide * nbytes)
    return min(lanes, size, pow2_at_least(held + 1) // 2)


def _row_blocks(s: Schedule, tasks: int | None) -> int:
    """Into how many blocks the rows are split where there are `tasks` without that: as few as keep
    the threads busy, since each packs the panel again."""
    return 1 if tasks is None else min(16, pow2_at_least(-(-tasks_wanted(s) // tasks)))


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
    most = min(8, panels, half // (wide * folded * size), tasks // tasks_wanted(s))
    return pow2_at_least(most + 1) // 2 if most > 1 else 1


def _lane(
    s: Schedule, shape: Contraction, op: ComputeOp, mapping: dict[Axis, Axis], root: ComputeOp
) -> Axis:
    """The axis to vectorise: the one along which the result is contiguous, or one of the other side
    that fills vectors clearly better and along which its operand is contiguous."""
    last = root.axes[-1]
    sides = [side for side in (shape.rows, shape.columns) if side]
    lane = next((a for a in (*shape.rows, *shape.columns) if mapping[a] is last), sides[-1][-1])
    lanes = cpu_of(s).lanes(max(t.dtype.nbytes for t in op.outputs))

    def filled(axis: Axis) -> float:
        size = shape.groups.get(axis, extent_of(axis))
        return size / (-(-size // lanes) * lanes) if size else 1.0

    others = [side[-1] for side in sides if not among(lane, side)]
    direct = [a for a in others if any(contiguous(r, a) for r in reads(*op.bodies))]
    best = max((lane, *direct), key=filled)
    return best if filled(best) > FULLER * filled(lane) else lane


def pick_tile(
    s: Schedule,
    name: str,
    op: ComputeOp,
    m: int | None,
    n: int | None,
    half: bool = False,
    groups: tuple[int, int] = (0, 0),
) -> tuple[int, int]:
    """A register tile: two vectors wide and as tall as the remaining vector registers, or `half` of
    them, allow; wider where there are fewer rows.  No group of rows or columns ends inside."""
    here = cpu_of(s)
    lanes = here.lanes(max(t.dtype.nbytes for t in op.outputs))
    free = here.vector_registers - 4
    vectors = (
        2 if half or groups[1] or n is None else _vectors(here.vector_registers, -(-n // lanes))
    )
    rows = max(4, 3 * here.vector_registers // (4 * vectors * (2 if half else 1)))
    heights = range(1 if groups[0] else min(4, rows), free // vectors + 1)
    whole = [height for height in heights if groups[0] % height == 0]
    m = groups[0] or m
    default = rows if half or m is None else _height(rows, whole, m)
    tall = pick(s, f"{name}.rows", [h for h in (4, 6, 8, 12, 14) if h in whole], default, m)
    spare = 1 if m is None else max(1, min(4, rows // max(tall if groups[0] else m, 1)))
    widths = [n * lanes for n in (1, 2, 3, 4, 8) if n <= max(3, 2 * spare)]
    wide = vectors * spare * lanes
    wide = _whole_in(groups[1], wide, lanes) if groups[1] else wide
    return tall, pick(s, f"{name}.columns", [w for w in widths if groups[1] % w == 0], wide, n)


def _whole_in(group: int, most: int, lanes: int) -> int:
    """A divisor of a group up to `most`: one that fills vectors best, of such the largest."""
    divisors = [n for n in range(1, min(group, most) + 1) if group % n == 0]
    return max(divisors, key=lambda n: (n / (-(-n // lanes) * lanes), n))


def _vectors(registers: int, row: int) -> int:
    """How many vectors wide a tile is, of results that are `row` vectors wide: two, or more where
    clearly fewer then end past the row."""

    def cost(vectors: int) -> float:
        height = 3 * registers // (4 * vectors)
        return -(-row // vectors) * (vectors + 0.25) * (height + BESIDE) / height

    best = min((2, 3, 4), key=cost)
    return best if cost(best) < 0.9 * cost(2) else 2


def _height(rows: int, heights: Sequence[int], extent: int) -> int:
    """`rows` for a tile, or one of some heights that wastes clearly less: rows past the end, and
    the fixed cost of tiles."""

    def cost(height: int) -> int:
        return -(-extent // height) * (height + BESIDE)

    best = min(heights, key=cost, default=rows)
    return best if rows not in heights or 20 * cost(best) < 19 * cost(rows) else rows


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
    others = [a for a in computed(inner).axes if a is not row and a is not column]
    panel, ci = inner.split(column, factor=tile[1])
    loops, lanes = [panel], [ci]
    if row is not None:
        ro, ri = inner.split(row, factor=tile[0])
        loops, lanes = [panel, ro], [ri, ci]
    inner.reorder(*others, *around, *loops, *folded, *lanes)
    for lane in lanes:
        inner.vectorize(lane)
    return panel


@dataclass(frozen=True, slots=True)
class _Tile:
    """A register tile of `size` results of a stage, which lie along its `axes`; inside of which
    loop it is, and of which loop over panels; how wide each panel is where several are packed at
    once; and how many tiles use an operand, None for any number."""

    stage: Stage
    axes: tuple[Axis, Axis]
    size: int
    loop: Axis
    panel: Axis
    several: int | None
    uses: int | None


def _contract_inner(
    s: Schedule, view: View, inner: Stage, tile: _Tile, mapping: dict[Axis, Axis]
) -> None:
    """The K loop of one tile, `unroll` steps at a time, attached at the loop over tiles; an operand
    that many tiles use is packed at the loop over panels; what lies far apart along K is asked for
    some steps ahead."""
    op, name = view[inner.name], tile.stage.name
    inner.compute_at(tile.stage, tile.loop)
    column = next(a for a in op.axes if mapping.get(a) is tile.axes[1])
    folded = _in_step(op, column)
    lanes = [a for a in op.axes if among(mapping.get(a), tile.axes)]
    inner.reorder(*(a for a in op.axes if not among(a, lanes)), *folded, *lanes)
    for axis in lanes:
        inner.vectorize(axis)
    length = extent_of(folded[-1])
    steps = [n for n in (1, 2, 3, 4, 5, 7, 8) if length is not None and length % n == 0]
    steps = [n for n in steps if n in (1, 2, 4, 8) or n == length]
    unroll = pick(s, f"{name}.unroll", steps, max([n for n in steps if n <= 4], default=1))
    loop, ahead = folded[-1], _steps_ahead(s, op, tile.size)
    if unroll > 1:
        loop, ki = inner.split(loop, factor=unroll)
        inner.reorder(ki, *lanes)
        inner.unroll(ki)
    found = packable(s, view, inner, column)
    single = [r for r in reads(*op.bodies) if column not in axes_of(*r.indices)]
    if any(_leaps(s, read, folded[-1]) for read in single) and 4 * ahead <= (length or 0):
        inner.pipeline(loop, num_stages=1 + -(-ahead // unroll))
    if volume(folded) is not None and found:
        crossed = any(crosses(s, read, column) for read in found)
        wide = None if any(strided(read, column) for read in found) else tile.several
        if flip(s, f"{name}.pack", crossed or tile.uses is None or tile.uses >= REUSED):
            pack(s, inner, tile.stage, found, column, tile.panel, wide)


def _leaps(s: Schedule, read: TensorRead, axis: Axis) -> bool:
    """Whether the caches do not foresee what is read along `axis` of a tensor that they do not
    hold: it lies far from what is read before."""
    step, nbytes = distance(read, axis), read.tensor.dtype.nbytes
    held = nbytes_of(read.tensor) <= cpu_of(s).l1
    return step is not None and abs(step) * nbytes >= FAR and not held


def _steps_ahead(s: Schedule, op: ComputeOp, products: int) -> int:
    """Steps along K, of so many `products` each, that take `AHEAD` cycles."""
    lanes = cpu_of(s).lanes(max(t.dtype.nbytes for t in op.outputs))
    return max(1, AHEAD * VECTORS * lanes // products)


def distance(read: TensorRead, axis: Axis) -> int | None:
    """Elements in memory between neighbours along `axis`; None where that is not one number."""
    steps = [stride_of(index, axis) for index in read.indices]
    sizes = [constant(size) for size in read.tensor.shape]
    found = 0
    inside: int | None = 1
    for step, size in zip(reversed(steps), reversed(sizes), strict=True):
        if not isinstance(step, int) or (step and inside is None):
            return None
        found += step * (inside or 0)
        inside = None if inside is None or size is None else inside * size
    return found


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


def packable(s: Schedule, view: View, inner: Stage, column: Axis) -> list[TensorRead]:
    """Reads of the vectorised operand, where the stage reads it itself, or something substituted
    into it that lies across: one of each tensor, and of none that is read along `column` in two
    ways."""
    direct, memory = direct_reads(inner), reads(*view[inner.name].bodies)
    named = {r.tensor for r in direct}
    found = [r for r in memory if r.tensor in named]
    if any(_apart(r, column) for r in memory if r.tensor not in named):
        found += [r for r in direct if _substituted(s, r)]
    ways: dict[Tensor, dict[tuple[object, object], TensorRead]] = {}
    for read in found:
        way = _place(read, column), strided(read, column)
        if way != (None, None):
            ways.setdefault(read.tensor, {})[way] = read
    return [read for each in ways.values() if len(each) == 1 for read in each.values()]


def _substituted(s: Schedule, read: TensorRead) -> bool:
    """Whether what is read is computed where it is read."""
    op = read.tensor.op
    return isinstance(op, ComputeOp) and s[read.tensor].plan.placement.inlined


def crosses(s: Schedule, read: TensorRead, axis: Axis) -> bool:
    """Whether neighbours along `axis` of a `packable` read lie apart in memory."""
    return _substituted(s, read) or _apart(read, axis)


def _apart(read: TensorRead, axis: Axis) -> bool:
    return distance(read, axis) not in (0, 1)


def _place(read: TensorRead, column: Axis) -> int | None:
    """The index that is `column`, where no other depends on it."""
    moved = [n for n, index in enumerate(read.indices) if column in axes_of(index)]
    return moved[0] if len(moved) == 1 and read.indices[moved[0]] is column else None


def strided(read: TensorRead, axis: Axis) -> tuple[int, int] | None:
    """The index, and by how much it moves with `axis`, where neighbours along that are further
    apart in the last dimension than they need to be (the stride of a convolution)."""
    moved = [n for n, index in enumerate(read.indices) if axis in axes_of(index)]
    if moved != [len(read.indices) - 1]:
        return None
    step = stride_of(read.indices[-1], axis)
    return (moved[0], step) if isinstance(step, int) and step > 1 else None


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
    contiguous; one that is stored transposed is read along its rows and transposed in registers,
    and of one that is read with a stride the elements a stride apart are stored together."""
    for read in found:
        packed = s[s.cache_read(read.tensor, "local", [inner.op])]
        apart, where = strided(read, column), _place(read, column)
        if apart is not None or where is None:
            packed.transform_layout(_by_remainder(*(apart or (0, 1))))
            packed.compute_at(stage, panel)
            packed.vectorize(packed.op.axis[-1])
            continue
        if wide is not None:
            packed.transform_layout(_in_panels(where, wide))
            where = -1
        packed.compute_at(stage, panel)
        own = computed(packed).axes[where]
        last = _turned(s, packed, own)
        if last is not None:
            length = extent_of(last)
            if length is None or length > TURNED:
                _, last = packed.split(last, factor=TURNED)
            packed.vectorize(last)
        packed.vectorize(own)


def _turned(s: Schedule, packed: Stage, lane: Axis) -> Axis | None:
    """The axis along which memory is read where that is not `lane`, so that both are vectors."""
    op = definitions(s)[packed.name]
    for read in reads(*op.bodies):
        if _apart(read, lane):
            return next((a for a in op.axes if a is not lane and distance(read, a) == 1), None)
    return None


def _by_remainder(where: int, step: int) -> Callable[..., list[Any]]:
    """The packed layout, in which what is `step` apart along the last index lies together."""

    def layout(*index: Any) -> list[Any]:
        return [*index[:where], index[where] % step, index[where] // step]

    return layout


def _in_panels(where: int, wide: int) -> Callable[..., list[Any]]:
    """The packed layout, in which panels of `wide` along the index `where` follow each other."""

    def layout(*index: Any) -> list[Any]:
        others = [i for n, i in enumerate(index) if n != where]
        return [index[where] // wide, *others, index[where] % wide]

    return layout
