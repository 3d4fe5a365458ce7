"""Flash attention: contractions that depend on other reductions of the axis they reduce, in one
online loop (an online softmax between two GEMMs), with the accumulator of the last GEMM in
registers.

    for pieces of j: S = sum(d)(q, k); m, l, O updated online     (a contraction between two)
    for pieces of j: q = sum(x); O += x * w, scaled at the end    (a row norm fused into a GEMM)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tedsl.devices import GpuDevice
from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import conjuncts
from tedsl.expr.nodes import Axis, Reduce
from tedsl.expr.visit import axes_of, reads
from tedsl.ir.nodes import LoopKind
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
from tedsl.schedules.analysis.nests import (
    Contraction,
    any_order,
    computed,
    contraction,
    cost,
    direct_reads,
    for_units,
    growing,
    is_reduction,
    pow2_at_least,
    reduce_axes,
)
from tedsl.schedules.analysis.views import (
    View,
    blocks,
    definitions,
    extent_of,
    in_memory,
    times,
    volume,
)
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.candidates import Names, seconds_alone
from tedsl.schedules.gpu.gemm.cost_model import best_tile
from tedsl.schedules.gpu.gemm.gemm import product_of, stored_by_engine, stores_ahead
from tedsl.schedules.gpu.gemm.k_steps import LEAST
from tedsl.schedules.gpu.gemm.mainloop import longest, movable
from tedsl.schedules.gpu.gemm.operand_layouts import is_box
from tedsl.schedules.gpu.gemm.split_floats import is_split
from tedsl.schedules.gpu.gemm.tile_order import ordered, together, walked
from tedsl.schedules.gpu.gemm.tile_scheduler import grid_of, programs_stay
from tedsl.schedules.gpu.launch import bind_all, pick_warps, registers
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.trial import remembered
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, Operation, Tensor

# The longest axis that a program holds as a whole (attention: the head dimension).
WIDEST = 256
# Elements of the reduced axis from which a loop over pieces of it is worth it.
FEWEST = 32
# Causal kernels with large tiles: rows and keys of a tile, the most arithmetic on each score for
# which they pay; how many such tiles there are at least for each SM, and how many iterations each.
TALL = 128
LIGHT = 16
BUSY = 8
TURNS = 16
# Columns of an accumulator that leave half of the registers to float32 operands.
BROAD = 128
# What inner contractions of float32 reduce at a time where their parts do not fit otherwise, and
# `num_stages` of iterations that take far longer than a load.
PART = 32
AHEAD = 2
# Keys of an iteration when several programs share an SM, and the registers of a thread for other
# things than tiles.
DEEP = 128
OTHERS = 32
# Tiles of half as many rows that there have to be for each SM, and the operands of both GEMMs
# without the scores: Q, K, V.
ENOUGH = 3
OPERANDS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows and columns of the tile of results, and the piece of the reduced axis: BLOCK_M, head
    dimension and BLOCK_N of a flash attention kernel."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, slots=True)
class Tile:
    """A way to multiply float32, whose parts are in registers beside the tiles: rows, the piece of
    the reduced axis (keys), how much of what an inner contraction reduces (the head dimension) is
    multiplied at a time, and `num_warps`."""

    rows: int
    depth: int
    part: int
    warps: int


TILES = tuple(
    Tile(rows, depth, part, warps)
    for rows, depth, warps in ((64, 64, 4), (64, 32, 4), (32, 64, 4), (32, 32, 4), (16, 64, 8))
    for part in (WIDEST, PART)
)


def schedule_chains(s: Schedule) -> list[str]:
    """Schedule the contractions that depend on reductions of the axis they reduce; returns the
    stages that are scheduled then."""
    return take_chains(s, _found, _reduce_chain)


def _found(s: Schedule, view: View, name: str) -> Chained | None:
    """The cascade that ends in the contraction `name`, if there is one that a program can hold."""
    op = s[name].op
    if not isinstance(op, ComputeOp) or not s[name].plan.placement.at_root:
        return None
    shape = contraction(op)
    if shape is None or shape.unit is None or len(shape.folded) != 1 or not any_order(op):
        return None
    names = depended_on(s, view, name)
    if not names:
        return None
    inner = inner_folds(s, view, (*names, name), for_units)
    column, row = longest(shape.columns), longest(shape.rows)
    held = [column] if inner else []
    held += [axis for each in inner for axis in view[each].reduce_axes]
    sizes = [extent_of(axis) for axis in held]
    long = extent_of(shape.folded[0])
    small = any(n is not None and n < LEAST for n in (extent_of(row), extent_of(column), *sizes))
    if None in sizes or small or any((n or 0) > WIDEST for n in sizes):
        return None
    # The last piece of an axis of symbolic extent would be masked product by product.
    if long is None or long < FEWEST or any(len(view[n].reduce_axes) > 1 for n in inner):
        return None
    return Chained(name, root_of(s, view, name), names, inner, shape)


def _reduce_chain(s: Schedule, found: Chained, tile: Tile | None = None) -> list[str]:
    """One kernel, in a `tile` if one is given; returns the stages in it, none where what goes along
    leaves no product for the matrix units: a sum that is repaired by another one."""
    gpu = gpu_of(s)
    if tile is None and found.inner:
        tile = _quickest(s, found)
    known = {stage.name for stage in s.stages}
    work = _work(definitions(s), found)
    between = inline_around(s, found)
    many = stores_ahead(gpu, volume(definitions(s)[found.root].axes))
    alone = not found.inner and found.last != found.root
    staged = stored_by_engine(s, found.root, many) if alone else None
    stage, fold = s[found.root], s[found.last]
    op, folded = computed(stage), computed(fold)
    shape = contraction(definitions(s)[found.last])
    if shape is None:
        return []
    found = replace(found, shape=shape)
    axes = in_terms_of(op, folded)
    row, column = axes[longest(shape.rows)], axes[longest(shape.columns)]
    longer = longer_last(folded, shape)
    deep = gpu.has_tma and _is_deep(s, found, op, folded)
    tall = longer is not None and work <= LIGHT and _is_tall(gpu, op, folded, found, row)
    high = TALL if tall and not deep else 64
    usual = (high, DEEP if deep else high) if tile is None else (tile.rows, tile.depth)
    sizes = _sizes(s, stage, found, (row, column), usual)
    stays = (many and staged is not None) if alone else None
    place = _grid(s, stage, (row, column), sizes, longer, stays, _walked(s, found, between))
    if staged is not None:
        s[staged].compute_at(stage, place)
    if fold.name != stage.name:
        fold.compute_at(stage, place)
    outer, piece = fold.split(reduce_axes(fold)[0], factor=sizes.depth)
    follow(fold, outer)
    followed = contraction(definitions(s)[fold.name])
    if followed is None or followed.unit is None:
        return []
    for name in (*between, *found.inner):
        if s[name].plan.placement.at_root:
            s[name].compute_at(fold, outer)
        for axis in reduce_axes(s[name]):
            _vectorize(s, stage, s[name], axis, None if tile is None else tile.part)
    fold.vectorize(piece)
    held = sizes.rows * max(sizes.columns, sizes.depth)
    broad = is_split(found.shape) and sizes.columns >= BROAD
    warps = 8 if broad or sizes.rows * sizes.columns >= 128 * 128 else 4
    warps = warps if tile is None else tile.warps
    warps = pick_warps(s, stage, (1, 2, 4, 8), warps, max(32, held // 8))
    programs, stages = _beside(s, found, sizes, warps, longer is None) if deep else (0, 3)
    stages = AHEAD if tile is not None else stages
    if found.inner:
        programs = pick(s, f"{stage.name}.occupancy", (0, 2, 3, 4), programs, gpu.warps_sm // warps)
    _operands(s, stage, fold, outer, place, found, sizes, stages)
    stage.launch(num_warps=warps, maxnreg=registers(gpu, warps, programs))
    made = [each.name for each in s.stages if each.name not in known]
    return [found.root, found.last, *found.members, *found.inner, *between, *made]


def _quickest(s: Schedule, found: Chained) -> Tile | None:
    """The tile of float32 products that takes the shortest time by the cost model; None for
    products of other types.  Cascades that are one but for names ask once."""
    target = Target.parse(s.target or "cuda")
    names = remembered(s, (_split_stages, found.last), partial(_split_stages, found=found))
    if not names:
        return None

    def times(trial: Schedule) -> list[float]:
        return [
            seconds_alone(trial, names, partial(_in_tile, found.last, t), target) for t in TILES
        ]

    each = remembered(s, (_quickest, names.index(found.last), str(target)), times, names)
    return TILES[each.index(min(each))]


def _split_stages(s: Schedule, found: Chained) -> list[str]:
    """The stages of the kernel of a cascade, producers first; none where its products are not of
    float32."""
    before = list(definitions(s))
    inside = {found.root, found.last, *found.members, *found.inner}
    inside.update(inline_around(s, found))
    # What is inlined may round operands, which tensor cores then take in fewer bits.
    shape = contraction(definitions(s)[found.last])
    if shape is None or not is_split(shape):
        return []
    return [name for name in before if name in inside]


def _in_tile(last: str, tile: Tile, s: Schedule, names: Names) -> None:
    """Schedule the cascade that ends in `last`, by the `names` of a trial, in a tile.

    Raises:
        ScheduleError: it cannot be done.
    """
    found = _found(s, definitions(s), names[last])
    if found is None or not _reduce_chain(s, found, tile):
        raise ScheduleError(f"{last} ends no cascade of contractions")


def _vectorize(s: Schedule, stage: Stage, inner: Stage, axis: Axis, part: int | None) -> None:
    """The lanes of an inner contraction: all that it reduces, or for float32 a `part` of it at a
    time, whose operands come by themselves (the knob `part`)."""
    extent = extent_of(axis)
    if part is not None and extent is not None:
        part = pick(s, f"{stage.name}.part", (16, PART, 64, 128), part, pow2_at_least(extent))
        if part < extent:
            parts, axis = inner.split(axis, factor=part)
            inner.reorder(parts, *(a for a in inner.leaf_iter_vars if a is not parts))
            inner.unroll(parts)
    inner.vectorize(axis)


def _work(view: View, found: Chained) -> int:
    """Arithmetic on each element of the score tile between the two GEMMs."""
    names = view.names
    waiting, met, total = [found.last], {found.last, *found.inner}, 0
    while waiting:
        for read in reads(*view[waiting.pop()].bodies):
            name = names.get(read.tensor.op)  # type: ignore[call-overload]
            if name is None or name in met:
                continue
            met.add(name)
            waiting.append(name)
            total += 0 if is_reduction(view[name]) else cost(view[name])
    return total


def _is_tall(gpu: GpuDevice, op: ComputeOp, fold: ComputeOp, found: Chained, row: Axis) -> bool:
    """Whether a causal mask leaves rows that are many and long enough for large tiles, in which
    less is masked and which start less often: measured 3 to 12% faster on an H200 for 2048 to 16384
    rows, and slower where the rows have two bounds (sliding windows)."""
    high, long = extent_of(row), extent_of(found.shape.folded[0])
    others = volume([a for a in op.axes if a is not row and a is not op.axes[-1]])
    if not found.inner or high is None or long is None or others is None:
        return False
    many = others * (high // TALL) >= gpu.sms * BUSY and long >= TALL * TURNS
    return many and _bounds(fold, found) == 1


def _bounds(fold: ComputeOp, found: Chained) -> int:
    """How many conditions bound what a row reduces by the number of the row: 1 for a causal mask, 2
    for a sliding window."""
    body = fold.bodies[0]
    where = body.where if isinstance(body, Reduce) else None
    sides = {found.shape.folded[0], longest(found.shape.rows)}
    parts = () if where is None else conjuncts(where)
    return sum(sides <= set(axes_of(part)) for part in parts)


def _is_deep(s: Schedule, found: Chained, op: ComputeOp, fold: ComputeOp) -> bool:
    """Whether a piece of the reduced axis (keys) is longer than a tile is high (queries).

    It is where there are tiles for several programs per SM, and TMA loads all operands.  Programs
    that overlap (one in its GEMMs while another does its softmax) are worth more than prefetching
    then, and the longer the piece, the less often accumulators are rescaled.  On an H200 two
    products over 128 columns take 16% less, over 64 columns 8%; with a causal mask 5% and 2%, and
    with a sliding window nothing (timed by `tests/benchmarks`).
    """
    loaded = [tensor for name in (found.last, *found.inner) for tensor in movable(s, s[name])]
    narrow = len(loaded) == OPERANDS and all(tensor.dtype.nbytes <= 2 for tensor in loaded)
    if len(found.inner) != 1 or not narrow or _bounds(fold, found) > 1:
        return False
    points = volume(op.axes)
    columns = pow2_at_least(extent_of(longest(found.shape.columns)) or WIDEST)
    if points is None or points // columns // (DEEP // 2) < ENOUGH * gpu_of(s).sms:
        return False
    return 2 * _loaded(s, found, Sizes(DEEP // 2, columns, DEEP)) <= gpu_of(s).shared_block


def _loaded(s: Schedule, found: Chained, sizes: Sizes) -> int:
    """Bytes of the operands of an iteration."""
    return sizes.depth * (sizes.columns * _nbytes(s, found) + _deepest(s, found, sizes))


def _deepest(s: Schedule, found: Chained, sizes: Sizes) -> int:
    """Bytes of what one element of the inner contraction reads of an operand: the head
    dimension."""
    depths = [extent_of(a) or 1 for name in found.inner for a in reduce_axes(s[name])]
    return max(depths, default=sizes.rows) * _nbytes(s, found)


def _nbytes(s: Schedule, found: Chained) -> int:
    loaded = [t for name in (found.last, *found.inner) for t in movable(s, s[name])]
    return max((tensor.dtype.nbytes for tensor in loaded), default=4)


def _beside(s: Schedule, found: Chained, sizes: Sizes, warps: int, alike: bool) -> tuple[int, int]:
    """Occupancy and `num_stages`: programs of an SM for which there are registers, and iterations
    for which there is shared memory.  Without a causal mask (`alike`), one program less if one more
    stage fits then."""
    gpu = gpu_of(s)
    held = sizes.rows * (sizes.columns + sizes.depth) // (32 * warps) + OTHERS
    programs = max((n for n in (2, 3, 4) if n * held * 32 * warps <= gpu.registers_sm), default=0)
    turn, fixed = _loaded(s, found, sizes), sizes.rows * _deepest(s, found, sizes)
    if alike and programs > 2 and (programs - 1) * (fixed + 2 * turn) <= gpu.shared_block:
        return programs - 1, 2
    return programs, 1 if programs else 3


def _sizes(
    s: Schedule,
    stage: Stage,
    found: Chained,
    sides: tuple[Axis, Axis],
    usual: tuple[int, int],
) -> Sizes:
    """The tile, of the `usual` rows and depth where nothing is against it; the columns are whole
    where the inner contraction would be recomputed for each piece of them."""
    extents = [extent_of(axis) for axis in (*sides, found.shape.folded[0])]
    most = [WIDEST if n is None else pow2_at_least(n) for n in extents]
    choices = (16, 32, 64, 128, 256)
    (tall, deep), wide = usual, most[1]
    if not found.inner:
        tall, wide = _alone(s, found) or (tall, 128)
    rows = pick(s, f"{stage.name}.bm", choices[:-1], tall, most[0])
    columns = most[1] if found.inner else pick(s, f"{stage.name}.bn", choices, wide, most[1])
    depth = pick(s, f"{stage.name}.bk", choices[:-1], deep, most[2])
    return Sizes(rows, columns, depth)


def _alone(s: Schedule, found: Chained) -> tuple[int, int] | None:
    """The tile of a GEMM whose prologue is a row reduction: its operand is reduced again for every
    tile of columns, so that these are wide; None where the cost model does not know the product."""
    fold = s[found.last]
    product = product_of(s, fold, fold.name, computed(fold), found.shape)
    if product is None:
        return None
    bm, bn = best_tile(product)
    return min(bm, WIDEST // 2), max(bn, min(WIDEST, pow2_at_least(product.n)))


def longer_last(op: ComputeOp, shape: Contraction) -> bool | None:
    """Whether later rows reduce more than earlier ones, as with a causal mask; None when all reduce
    as much."""
    body = op.bodies[0]
    where = body.where if isinstance(body, Reduce) else None
    row, folded = longest(shape.rows), shape.folded[0]
    if growing(where, row, folded):
        return True
    return False if growing(where, folded, row) else None


def _grid(
    s: Schedule,
    stage: Stage,
    sides: tuple[Axis, Axis],
    sizes: Sizes,
    longer: bool | None,
    many: bool | None,
    nbytes: int,
) -> Axis:
    """The order of tiles over the grid: all tiles of a batch together, or the same rows of several
    heads, whose loops read `nbytes` in all; the longest tiles first.  Where tiles are all alike,
    programs may be persistent: `many` is whether each has several tiles; None where that is not
    asked."""
    row, column = sides
    others = [a for a in computed(stage).axes if a is not row and a is not column]
    outer, inner = stage.split(row, factor=sizes.rows)
    tiles, lanes = [outer], [inner, column]
    width = extent_of(column)
    if width is None or width > sizes.columns:
        across, lanes[1] = stage.split(column, factor=sizes.columns)
        tiles.append(across)
    group = together(s, stage.name, others, nbytes, longer is not None)
    order = ordered(stage, others, tiles, group)
    stage.reorder(*order, *lanes)
    for lane in lanes:
        stage.vectorize(lane)
    if many is not None and longer is None:
        down, wide = blocks(extent_of(row), sizes.rows), blocks(width, sizes.columns)
        stays = programs_stay(s, stage, times(volume(others), down, wide), many)
        return grid_of(s, stage, order, stays, None, alike=False)
    last_first = longer is not None and flip(s, f"{stage.name}.descending", longer)
    return bind_all(stage, order, last_first)


def _walked(s: Schedule, found: Chained, between: Sequence[str]) -> int:
    """Bytes of the operands that the loop reads (K and V), of all batches."""
    view = definitions(s)
    inside = {found.root, found.last, *found.members, *found.inner, *between}
    row, along = longest(found.shape.rows), found.shape.folded[0]
    inner = [(view[name], view[name].axes[-1], None) for name in found.inner]
    return walked(view, inside, [(view[found.last], along, row), *inner])


def _operands(
    s: Schedule,
    stage: Stage,
    fold: Stage,
    loop: Axis,
    place: Axis,
    found: Chained,
    sizes: Sizes,
    stages: int,
) -> None:
    """`num_stages` of the loop; operands are loaded by TMA where it can, and what does not change
    with the loop (Q) may be loaded before it."""
    inner = [s[name] for name in found.inner]
    turns, shared = extent_of(found.shape.folded[0]), gpu_of(s).shared_block
    most = 1 + shared // _loaded(s, found, sizes)
    most = most if turns is None else min(most, -(-turns // sizes.depth))
    fold.pipeline(loop, num_stages=pick(s, f"{stage.name}.stages", (1, 2, 3, 4, 5), stages, most))
    parts = {r.name: (r, over) for r in inner if (over := _parts_of(r)) is not None}
    for reader, over in [*parts.values()]:
        parts |= {name: (reader, over) for name in _inlined(s, reader)}
    readers = dict.fromkeys((fold.name, *found.inner, *parts))
    staged = [(t, s[n]) for n in readers for t in movable(s, s[n])]
    descriptors = bool(staged) and flip(s, f"{stage.name}.descriptors", True)
    fixed = [(t, r) for r in inner if r.name not in parts for t in _fixed(s, r)]
    before = not descriptors and bool(fixed) and flip(s, f"{stage.name}.before", True)
    kept = {tensor for tensor, _ in fixed}
    for tensor, reader in staged if descriptors else fixed if before else []:
        along = _along(s, found, fold, reader, tensor)
        copy = s.cache_read(tensor, "shared" if descriptors else "local", [reader.op, *along])
        if reader.name in parts:
            s[copy].compute_at(*parts[reader.name])
        elif tensor in kept:
            s[copy].compute_at(stage, place)
        else:
            s[copy].compute_at(fold, loop)


def _inlined(s: Schedule, reader: Stage) -> list[str]:
    """The stages that are computed on the operands of a contraction as it reads them."""
    found = [s[r.tensor] for r in direct_reads(reader)]
    return [each.name for each in found if each.plan.placement.inlined]


def _parts_of(inner: Stage) -> Axis | None:
    """The loop over parts of what an inner contraction reduces, if there is one."""
    first = inner.leaf_iter_vars[0]
    return first if inner.plan.mark(first).kind is LoopKind.UNROLLED else None


def _along(
    s: Schedule, found: Chained, fold: Stage, reader: Stage, tensor: Tensor
) -> list[Operation]:
    """The reductions of the loop that read the tile of an operand that `fold` multiplies: they read
    it in shared memory, where TMA has put it."""
    if reader.name != fold.name:
        return []
    members = [s[name] for name in found.members]
    return [each.op for each in members if any(r.tensor is tensor for r in direct_reads(each))]


def _fixed(s: Schedule, inner: Stage) -> list[Tensor]:
    """The loop-invariant operands of an inner contraction (Q): they do not move along the last of
    its axes, which the loop takes in pieces."""
    axes = computed(inner).axes
    found = [r for r in direct_reads(inner) if axes[-1] not in axes_of(*r.indices)]
    return [r.tensor for r in found if is_box(r, axes) and in_memory(s, r.tensor)]
