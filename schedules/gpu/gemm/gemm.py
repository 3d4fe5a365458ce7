"""GEMM, batched GEMM and implicit-GEMM convolution: output tiles over a swizzled grid, a pipelined
mainloop with TMA and tensor cores, and the epilogue on each tile in the same kernel.

Types and sides that tensor cores do not take are multiplied on CUDA cores.  The parts of the rule
are in files of their own: `gpu/gemm/mainloop.py` the mainloop, `gpu/gemm/tile_scheduler.py` the
tile scheduler, `gpu/gemm/stream_k_tail.py` stream-K, `gpu/split_reduction.py` split-K,
`gpu/gemm/cost_model.py` the cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.devices import GpuDevice
from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    Contraction,
    among,
    computed,
    contraction,
    direct_reads,
    first,
    is_reduction,
    pow2_at_least,
)
from tedsl.schedules.analysis.views import (
    View,
    blocks,
    definitions,
    elements_of,
    extent_of,
    size_of,
    volume,
)
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.cost_model import (
    LINE,
    STEP,
    Product,
    best_tile,
    by_registers,
    depth,
    two_fit,
)
from tedsl.schedules.gpu.gemm.cost_model import ahead as fetched_ahead
from tedsl.schedules.gpu.gemm.flattened_axes import Sides, join, joined_axes, own_programs
from tedsl.schedules.gpu.gemm.k_steps import along_one
from tedsl.schedules.gpu.gemm.mainloop import (
    LEAST,
    Loops,
    Work,
    contract_inner,
    longest,
    one_by_one,
    thin,
)
from tedsl.schedules.gpu.gemm.operand_layouts import (
    across,
    lay_out_operands,
    loose,
    ragged,
    rows_aligned,
)
from tedsl.schedules.gpu.gemm.padded_results import pad_rows
from tedsl.schedules.gpu.gemm.shared_operand import loops_of, turn
from tedsl.schedules.gpu.gemm.split_floats import is_split
from tedsl.schedules.gpu.gemm.stream_k_tail import Chains, chains_of, divide_tail, fold_tail
from tedsl.schedules.gpu.gemm.tile_scheduler import (
    Programs,
    Tiling,
    many_tiles,
    programs_of,
    shallow_tile,
)
from tedsl.schedules.gpu.launch import pick_warps
from tedsl.schedules.knobs import flip, knobs_of, pick
from tedsl.schedules.loops import fused
from tedsl.schedules.trial import remembered
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp, Tensor

# The tile of float32 whose elements are copied one by one.
FEW_ROWS = (32, 64)
# Products of a K step that a program without tensor cores holds at once.
THIN_TILE = 8192


def contract(
    s: Schedule, group: Group, tile: tuple[int, int] | None = None, turned: bool = True
) -> None:
    """Output tiles over a swizzled grid, a pipelined mainloop, the epilogue on each tile, of the
    rows and columns `tile` where nothing is chosen, or of the usual ones; operands are `turned`
    first by default where their layout asks for it."""
    gpu = gpu_of(s)
    joined = _joined(s, group)
    view = definitions(s)
    points, held = volume(view[group.root].axes), sum(is_reduction(view[n]) for n in group.inner)
    staged = None if joined else _staged_result(s, group, stores_ahead(gpu, points, held))
    may_stay = stores_ahead(gpu, points) and staged is not None
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    inner = [name for name in group.inner if is_reduction(view[name])]
    shape = contraction(view[inner[0]], grouped=True)
    if shape is None:
        return
    lay_out_operands(s, group.root, inner, not joined and gpu.has_tma, turned)
    mapping = group.axes[inner[0]]
    rows, columns = joined or tuple((mapping[longest(e)],) for e in (shape.rows, shape.columns))
    others = [a for a in root.axes if not among(a, (*rows, *columns))]
    m, n, k = (volume(axes) for axes in (rows, columns, shape.folded))
    extents = volume(others) or 1, m, n, k
    kernel = [group.root, *group.inner, *([] if staged is None else [s[staged].name])]
    # The sums of a K step are beside the accumulator: two small programs overlap multiplying and
    # adding.
    tiled = _reads_tiles(view, kernel, root, (rows, columns))
    half = not gpu.multiplies_shared or len(inner) > 1 or by_steps(shape) or tiled
    known = gpu.multiplies_shared and not joined
    stored = contraction(definitions(s)[inner[0]], grouped=True) or shape
    product = _product(s, stage, extents, stored, len(inner)) if known else None
    if product is not None:
        product = replace(product, loose=loose(s, stored))
    vectors, keeps = _beside(view, kernel), may_stay and not tiled and not group.apart
    given = shallow_tile(product, vectors) if keeps else tile
    chains = {} if product is None else chains_of(s, group, inner, rows[0], columns[0])
    sizes = _tile_sizes(s, stage, extents, shape, half, product, bool(joined), given, chains)
    sides = rows, columns, joined
    work = Work(shape, *sides, product, sizes, staged, tiled, may_stay, vectors)
    tail = divide_tail(s, group, inner, work, chains)
    if tail is None:
        made = _make_loops(s, group, work)
        if not joined:
            pad_rows(s, group.root)
    else:
        made = _make_loops(s, group, tail.others)
        stage = fold_tail(s, tail, made)
        s[group.root].compute_with(stage)
    stage.launch(num_warps=made.warps, num_stages=made.stages)


def as_they_lie(s: Schedule, group: Group) -> None:
    """The same of operands that are not turned first, by default."""
    contract(s, group, turned=False)


def in_few_rows(s: Schedule, group: Group) -> None:
    """The same in tiles of fewer rows than groups of warps multiply (wgmma), so that each warp has
    the parts of float32 operands in its own registers, and puts none back into shared memory."""
    contract(s, group, FEW_ROWS)


def stores_ahead(gpu: GpuDevice, points: int | None, held: int = 1) -> bool:
    """True when TMA stores a tile while the next one of the program is multiplied: of operands in
    shared memory, which leave registers for it."""
    return gpu.has_tma and gpu.multiplies_shared and many_tiles(gpu, points, held)


def _make_loops(s: Schedule, group: Group, work: Work) -> Loops:
    """The loops of a kernel; returns what was chosen for them."""
    view = definitions(s)
    stage, root, mapping = s[group.root], view[group.root], group.axes[group.inner[0]]
    inner = [name for name in group.inner if is_reduction(view[name])]
    joined, product, (bm, bn, bk) = work.joined, work.product, work.tile
    others = [a for a in root.axes if not among(a, (*work.rows, *work.columns))]
    m, n, k = (volume(axes) for axes in (work.rows, work.columns, work.shape.folded))
    ro, ri = stage.split(fused(stage, work.rows), factor=bm)
    co, ci = stage.split(fused(stage, work.columns), factor=bn)
    turns = blocks(k, bk)
    whole = product is not None and turns == 1 and not work.tiled
    if joined:
        made = Programs(own_programs(stage, others, co, ro, (ri, ci)))
    else:
        stage.reorder(*others, ro, co, ri, ci)
        tiling = Tiling(product, others, (m, ro, bm), (n, co, bn), bk, whole)
        apart = root.axes[0] if group.apart else None
        made = programs_of(s, stage, tiling, apart, work.may_stay, work.vectors, len(inner))
    place, stays = made.place, made.stays
    stage.vectorize(ri)
    stage.vectorize(ci)
    how = bool(joined), stays > 0
    stages = _steps_ahead(s, stage, product, work.shape, work.tile, turns, how)
    if work.staged is not None:
        s[work.staged].compute_at(stage, place)
    join(s[inner[0]], mapping, joined)
    # Masks of gathered lanes, elements of unaligned rows, and operands of tensor cores that do not
    # read shared memory are in registers beside the accumulator.
    gpu = gpu_of(s)
    spread = (
        not gpu.multiplies_shared
        or _ragged(s, inner)
        or _by_itself(product, (bm, bn), whole, stays)
    )
    most = two_fit(gpu) // (4 if joined and not gpu.multiplies_shared else 1 + spread)
    most //= 2 if is_split(work.shape) else 1
    turned = not joined and gpu.multiplies_shared and _turned(s, stage, view, inner, (bm, bn))
    for name in inner if turned else ():
        turn(s[name], group.axes[name], work.rows[0], work.columns[0])
    loops = loops_of(s, view, knobs_of(s, stage), inner, group.axes, gpu.multiplies_shared)
    engine: list[bool] = []
    for names in loops:
        folds = [s[name] for name in names]
        by = contract_inner(s, folds, stage, place, bk, stages, made.kept)
        engine.append(by)
    warps = 8 if bm * bn * len(inner) > most else 4
    units = not one_by_one(work.shape, m, n, k)
    least = max(bm, LEAST) * max(bn, LEAST) // 8 if units else bm * bn
    if product is not None:
        least = max(least, by_registers(product, bm, bn) * bk // 8)
    chosen = pick_warps(s, stage, (1, 2, 4, 8), warps, least)
    numbers = [[inner.index(name) for name in names] for names in loops]
    return Loops(turned, numbers, engine, stages, chosen)


def _by_itself(product: Product | None, tile: tuple[int, int], whole: bool, stays: int) -> bool:
    """True when no other program overlaps the wait of this one for its tensor cores: it has two
    warp groups for a tile that one could hold."""
    if product is None:
        return False
    return stays == 1 if whole else product.by_steps and product.alone(*tile)


def _steps_ahead(
    s: Schedule,
    stage: Stage,
    product: Product | None,
    shape: Contraction,
    tile: tuple[int, int, int],
    turns: int | None,
    how: tuple[bool, bool],
) -> int:
    """`num_stages` of the mainloop for a `tile` of rows, columns and depth, where there are so many
    `turns` over K; `how` says whether axes are flattened (implicit GEMM), and whether programs are
    persistent."""
    (bm, bn, bk), (joined, stay) = tile, how
    shared = gpu_of(s).shared_block
    ahead = 1 + shared // (bk * (bm + bn) * widest(shape))
    ahead = ahead if turns is None else min(ahead, turns)
    deep = 3 if product is None else fetched_ahead(product, bm, bn, stay, bk)
    # Steps so small leave room for one more stage, and for two programs per SM.
    if joined and _narrow(shape) and bk * (bm + bn) * widest(shape) <= shared // 9:
        deep = 4
    return pick(s, f"{knobs_of(s, stage)}.stages", (1, 2, 3, 4, 5), deep, ahead)


def _reads_tiles(
    view: View, kernel: Sequence[str], root: ComputeOp, sides: tuple[tuple[Axis, ...], ...]
) -> bool:
    """True when the epilogue reads another matrix, such as a residual: a tile of it is beside the
    accumulator in registers, and goes through shared memory to get there."""
    places = [[n for n, a in enumerate(root.axes) if among(a, side)] for side in sides]
    for name in kernel:
        op = view[name]
        if is_reduction(op) or len(op.axes) != len(root.axes):
            continue
        for read in reads(*op.bodies):
            used = tuple(axes_of(read))
            if read.tensor.op.name not in kernel and all(
                any(among(op.axes[n], used) for n in side) for side in places
            ):
                return True
    return False


def _beside(view: View, kernel: Sequence[str]) -> set[Tensor]:
    """What the epilogue of a kernel reads from memory."""
    pointwise = [view[name] for name in kernel if not is_reduction(view[name])]
    found = {read.tensor for op in pointwise for read in reads(*op.bodies)}
    return {tensor for tensor in found if tensor.op.name not in kernel}


def _turned(
    s: Schedule, stage: Stage, view: View, inner: Sequence[str], tile: tuple[int, int]
) -> bool:
    """Whether the MMA operands are swapped, so that the columns of a tile are multiplied by its
    rows.

    Hopper's tensor cores (wgmma) multiply 64 rows by up to 256 columns, and read the columns from
    shared memory once for each 64 rows: the shorter side of a tile is the better one to take 64 of.
    Fewer than 64 rows would be multiplied by the older instructions (mma).  Only operands of 16
    bits may be read transposed.
    """
    bm, bn = tile
    shapes = [contraction(view[name], grouped=True) for name in inner]
    found = [r for shape in shapes if shape is not None for e in shape.operands for r in reads(e)]
    if any(r.dtype.nbytes != 2 for r in found) or bn < 64 or 64 <= bm <= bn:
        return False
    return flip(s, f"{knobs_of(s, stage)}.turned", bm > bn)


def _ragged(s: Schedule, inner: Sequence[str]) -> bool:
    """True when rows of an operand start off multiples of 16 bytes."""
    direct = [r for name in inner for r in direct_reads(s[name])]
    return any(len(r.indices) >= 2 and not rows_aligned(s, r) for r in direct)


def _joined(s: Schedule, group: Group) -> Sides:
    """The axes of the root that are flattened into M and into N (implicit GEMM); nothing when each
    is one axis."""
    view = definitions(s)
    inner = [name for name in group.inner if is_reduction(view[name])]
    shape = contraction(view[inner[0]], grouped=True)
    if len(inner) > 1 or shape is None:
        return ()
    tiled = longest(shape.rows), longest(shape.columns)
    return joined_axes(s, group.root, view[group.root], group.axes[inner[0]], shape, tiled)


def _staged_result(s: Schedule, group: Group, many: bool) -> Tensor | None:
    """With the knob `descriptor_store`, the epilogue writes the tile to shared memory and TMA
    stores it."""
    staged = stored_by_engine(s, group.root, many)
    if staged is None:
        return None
    new = computed(s[group.root]).axes
    axes = dict(zip(group.axes[group.root], new, strict=True))
    for name, own in group.axes.items():
        group.axes[name] = {k: axes.get(v, v) for k, v in own.items()}
    group.axes[s[staged].name] = dict(zip(computed(s[staged]).axes, new, strict=True))
    group.axes[group.root] = {a: a for a in new}
    return staged


def stored_by_engine(s: Schedule, root: str, many: bool) -> Tensor | None:
    """The tile in shared memory from which TMA stores what `root` computes, if it can and that is
    chosen: by default where SMs have `many` tiles."""
    out = s[root].op.outputs[0]
    size = size_of(out.shape[-1])
    aligned = size is not None and size * out.dtype.nbytes % 16 == 0 and len(out.shape) >= 2
    alone = len(s[root].op.outputs) == 1
    pays = many and out.dtype.nbytes <= 2  # wider tiles leave no memory for the operands
    if not aligned or not alone or not flip(s, f"{root}.descriptor_store", pays):
        return None
    return first(s.cache_write(out, "shared"))


def _tile_sizes(
    s: Schedule,
    stage: Stage,
    extents: tuple[int, int | None, int | None, int | None],
    shape: Contraction,
    half: bool,
    product: Product | None,
    joined: bool,
    given: tuple[int, int] | None,
    chains: Chains,
) -> tuple[int, int, int]:
    """BLOCK_M, BLOCK_N and BLOCK_K, none of them larger than the padded extent; `extents` are the
    batch and M, N, K; a tile may be `given`, and a last partial wave may be split as `chains` says
    (stream-K).

    Tensor cores that read operands from shared memory leave the registers to a large accumulator;
    it is `half` as wide where registers hold the operands too, or several accumulators.  Where axes
    are `joined` (implicit GEMM), threads gather the elements: a K loop of one step, which no load
    overlaps, has small tiles, of which several programs share an SM.
    """
    batch, m, n, k = extents
    stored = stage.op.outputs[0].dtype.nbytes
    # The epilogue stores a tile through shared memory: one of 32-bit results is half as wide,
    # unless operands as wide are multiplied meanwhile, which takes as much longer.
    single = one_by_one(shape, m, n, k)
    groups = [shape.groups.get(longest(side)) for side in (shape.rows, shape.columns)]
    short = thin(m, n, *groups)  # the other side makes up for it
    bm, bn = 128, 128 if half or (stored > 2 and not shape.tf32) else 256
    bk = min(STEP, LINE // widest(shape)) if product is None else product.step
    if not _narrow(shape) or single:
        bm, bn, bk = 64, 64, _exact_depth(s, shape, joined or single)
        if is_split(shape) and not single:
            bm, bk = 64 if joined and not short else 128, LINE // 4
            bm, bn = given or (bm, bn)
    most = [1 << 8 if e is None else pow2_at_least(e) for e in (m, n, k)]
    if product is not None:
        bm, bn = given or best_tile(replace(product, most=bm * bn), chains)
        bk = depth(product, bm, bn)
    else:
        if joined and k is not None and _narrow(shape) and not single:
            if k <= bk:
                bm, bn = 128 if short else 64, 128
            elif k < 4 * bk and (extent_of(shape.folded[-1]) or bk) % bk:
                bk = 2 * bk  # lanes that cross axes are gathered one by one, in few steps
        if joined and not single:
            bk = along_one(shape.folded, bk, short)
        if joined and n is not None:
            bn = _little_idle(n, bn)
        if m is not None and n is not None:
            bm, bn = busy(gpu_of(s), batch, m, n, min(bm, most[0]), min(bn, most[1]), joined)
    choices = (16, 32, 64) if single else (16, 32, 64, 128, 256)
    bm = _pick_side(s, f"{stage.name}.bm", choices, bm, most[0], groups[0])
    bn = _pick_side(s, f"{stage.name}.bn", choices, bn, most[1], groups[1])
    deepest = min(most[2], max(1, THIN_TILE // (bm * bn))) if single else most[2]
    return bm, bn, pick(s, f"{stage.name}.bk", depths(shape, deepest), bk, deepest)


def _pick_side(
    s: Schedule, name: str, choices: Sequence[int], usual: int, most: int, group: int | None
) -> int:
    """A side of a tile; one that lies within a group of so many, where there are groups."""
    if group is None:
        return pick(s, name, choices, usual, most)
    within = [size for size in (*choices, group) if group % size == 0]
    return pick(s, name, within, max((n for n in within if n <= usual), default=group))


def depths(shape: Contraction, deepest: int) -> tuple[int, ...]:
    """How deep a K step may be: tensor cores take 8-bit operands 32 at a time."""
    return (32, 64, 128) if widest(shape) == 1 and deepest >= 32 else (16, 32, 64, 128)


def product_of(
    s: Schedule, stage: Stage, name: str, op: ComputeOp, shape: Contraction
) -> Product | None:
    """The GEMM `op` that the stage `name` computes, with the epilogue in `stage`, for the cost
    model."""
    rows, columns = longest(shape.rows), longest(shape.columns)
    others = [a for a in op.axes if a is not rows and a is not columns]
    extents = volume(others) or 1, extent_of(rows), extent_of(columns), volume(shape.folded)
    product, parts = _product(s, stage, extents, shape, 1), loose(s, shape)
    if product is None or not any(parts):
        return product
    question = product_of, stage.name, name
    whole, copied = remembered(s, question, lambda trial: _laid_out(trial, name))
    return replace(product, loose=whole, loose_parts=parts, copied=copied)


def _laid_out(s: Schedule, name: str) -> tuple[tuple[bool, bool], int]:
    """The operands of a contraction that are loose in the layout that they are given, and the bytes
    that are copied for that."""
    known = [stage.name for stage in s.stages]
    lay_out_operands(s, name, [name], gpu_of(s).has_tma)
    shape = contraction(definitions(s)[name], grouped=True)
    made = [s[stage.name].op.outputs[0] for stage in s.stages if stage.name not in known]
    copied = sum((elements_of(t) or 0) * t.dtype.nbytes for t in made)
    return (False, False) if shape is None else loose(s, shape), copied


def _product(
    s: Schedule,
    stage: Stage,
    extents: tuple[int, int | None, int | None, int | None],
    shape: Contraction,
    held: int,
) -> Product | None:
    """The GEMM for the cost model; None for what that does not know: symbolic extents, sides too
    short for tensor cores, operands that are split, groups."""
    batch, m, n, k = extents
    if m is None or n is None or k is None or one_by_one(shape, m, n, k) or not _narrow(shape):
        return None
    if shape.groups:
        return None
    stored = stage.op.outputs[0].dtype.nbytes
    return Product(
        *(gpu_of(s), batch, m, n, k, widest(shape), stored, held),
        by_steps=by_steps(shape),
        across=across(shape),
        ragged=ragged(shape),
    )


def busy(
    gpu: GpuDevice, others: int, m: int, n: int, bm: int, bn: int, joined: bool = False
) -> tuple[int, int]:
    """Halve the longer side of a tile while there are fewer tiles than SMs; `others` points of the
    batch axes have tiles of their own.  Of two alike it is the columns, or where axes are `joined`
    the rows, which are gathered lane by lane."""
    while max(bm, bn) > 2 * LEAST and others * -(-m // bm) * -(-n // bn) < gpu.sms:
        rows = bm > bn or (bm == bn and joined)
        bm, bn = (bm // 2, bn) if rows else (bm, bn // 2)
    return bm, bn


def _little_idle(extent: int, size: int) -> int:
    """Halve `size` while that wastes less of the tiles along an extent, and more than a quarter
    would be wasted."""
    while size > 4 * LEAST and 4 * (blocks(extent, size) or 1) * size > 5 * extent:
        half = size // 2
        if (blocks(extent, half) or 1) * half >= (blocks(extent, size) or 1) * size:
            break
        size = half
    return size


def _narrow(shape: Contraction) -> bool:
    """True when both operands are read in no more bits than tensor cores take, and multiplied as
    they are read."""
    unit = shape.unit
    if unit is None or (unit.nbytes > 2 and not shape.tf32):
        return False
    return all(r.dtype.nbytes <= unit.nbytes for each in shape.operands for r in reads(each))


def by_steps(shape: Contraction) -> bool:
    """True when the products of each K step are summed by themselves, and then added to the
    accumulator: those of 8-bit floats, which tensor cores sum in few bits."""
    return all(r.dtype.is_float8 for operand in shape.operands for r in reads(operand))


def widest(shape: Contraction) -> int:
    """Bytes of an element of the wider operand."""
    return max((r.dtype.nbytes for each in shape.operands for r in reads(each)), default=4)


def _exact_depth(s: Schedule, shape: Contraction, by_lanes: bool) -> int:
    """BLOCK_K without tensor cores: a cache line where that is loaded as a whole, 16 where wide
    elements are gathered `by_lanes` into registers."""
    nbytes, found = widest(shape), [r for operand in shape.operands for r in reads(operand)]
    if nbytes <= 2:
        return LINE // 4
    return LEAST if by_lanes or not all(rows_aligned(s, r) for r in found) else LINE // nbytes
