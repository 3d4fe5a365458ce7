"""Dispatch on the GPU: which rule each kernel gets by the shape of its loops, and the rule for
pointwise kernels (flat vectorised tiles, two-dimensional tiles for stencils and transposes).

Each rule is a function for one shape of loop nest, and each of its choices a named knob.
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.devices import GpuDevice
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Expr, TensorRead, Unary
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import axes_of, reads, walk
from tedsl.schedules.analysis.groups import Group, crossed_row, expose_epilogue
from tedsl.schedules.analysis.nests import (
    contraction,
    cost,
    crossing,
    is_reduction,
    padded,
    plain,
    pow2_at_least,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, reads_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.horizontal import (
    Beside,
    joined,
    lead,
    may_lead,
    read_by_flat,
    tiled_together,
)
from tedsl.schedules.gpu.candidates import Rule, quickest
from tedsl.schedules.gpu.columns.column_cascades import online_columns
from tedsl.schedules.gpu.columns.columns import (
    few,
    fold_few,
    read_twice,
    reduce_columns,
    turned_at_once,
    window_rules,
)
from tedsl.schedules.gpu.columns.full_reductions import reduce_whole
from tedsl.schedules.gpu.gemm.gemm import as_they_lie, contract, in_few_rows, product_of
from tedsl.schedules.gpu.gemm.operand_layouts import loose, turns
from tedsl.schedules.gpu.gemm.split_floats import is_split
from tedsl.schedules.gpu.last_block import finish_last, one_launch
from tedsl.schedules.gpu.launch import pick_warps
from tedsl.schedules.gpu.pairwise.pairwise import fold_of_pairs, fold_pairs, pairs
from tedsl.schedules.gpu.pointwise.periodic_vectors import periods_of, tile_periods
from tedsl.schedules.gpu.pointwise.turned_tiles import tiled, turn
from tedsl.schedules.gpu.prefixes import running, scan_tiles
from tedsl.schedules.gpu.rows.rows import reduce_rows
from tedsl.schedules.gpu.split_reduction import few_parts, split_few
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import Tiles, fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, Tensor

# A last axis below this many elements would leave most lanes of a tile of two axes idle.
NARROW = 16
# Elements for each SM up to which a kernel costs no more than its launch.
SMALL = 4096
# Elements of the widest access to memory (16 bytes), of one byte each.
ACCESS = 16
# Elements of a tile, of one whose rows are gathered, and of one for each warp.
PROGRAM = 1024
GATHERED = 2048
TAKEN = 512
# Columns of a tile whose elements are each read in a row of its own: fewer, and more rows, read the
# lines again while they are in the cache (gathers of 11 million elements: 72 us for 88, 67 for 93,
# and 18 for 21, H200).
SCATTERED = 64
# Elements for each warp of a tile that transposes; half as many of functions, from how much
# arithmetic on.
TURNED = 1024
FUNCTION = 10
# Stencils: from how many offsets along one axis at which a tensor is read a tile has several rows;
# and the rows and columns of it, so that most of the halo lies in the tile itself, up to how many
# places.
NEIGHBOURS = 3
STENCIL = (8, 512)
PLACES = 8
# Bytes that two elements of float32 take, which are copied together where rows are aligned to them.
PAIR = 8
# How much longer products of operands that are gathered as they lie may take than is predicted: of
# 11 convolutions on an H200 the six that are predicted to take at most 0.8 of the time took 0.35 to
# 0.89, one of 0.88 took 1.15, and one of 0.98 took 1.7.
DOUBTFUL = 1.2
# Columns of which all threads of a program have a part.
COLUMNS = 128


def busy_rows(gpu: GpuDevice) -> int:
    """Programs with a row each that keep most of a device busy."""
    return gpu.sms // 4


def schedule_group(s: Schedule, group: Group, target: Target, beside: Beside) -> None:
    """Choose the rule for one kernel by the shape of its nests."""
    view = definitions(s)
    root = view[group.root]
    if (group.inner and group.rows is None) or (not root.shape and is_reduction(root)):
        reduce_whole(s, group, beside)
    elif is_reduction(root):
        schedule_group(s, expose_epilogue(s, group), target, beside)
    elif group.pairs:
        fold_of_pairs(s, group)
    elif running(view, group) is not None:
        scan_tiles(s, group, target)
    elif (parts := few_parts(s, view, group)) > 1:
        partial = split_few(s, group, parts)
        partial.apart = one_launch(s, group.root)
        schedule_group(s, partial, target, beside)
        stages = s[group.root], group.inner, s[partial.root]
        if not (partial.apart and finish_last(s, *stages, group.axes[group.inner[0]])):
            schedule_group(s, group, target, beside)
    elif group.contracts:
        _contraction(s, view, group, target)(s, group)
    elif group.rows is None:
        pointwise(s, s[group.root], root, beside)
    elif (sides := pairs(s, view, group)) is not None:
        fold_pairs(s, group, sides)
    elif same_axes(group.rows, root.axes) and (lane := crossed_row(view, group)) is not None:
        if read_twice(view, group) or turned_at_once(s, view, group, lane):
            reduce_rows(s, group, beside)
        elif few(s, view, group):
            quickest(s, group, window_rules(view, group), target)(s, group)
        elif not online_columns(s, group):
            reduce_columns(s, group, beside)
    else:
        reduce_rows(s, group, beside)


def _contraction(s: Schedule, view: View, group: Group, target: Target) -> Rule:
    """The rule for a contraction, the knob `written_out`: one of a few products for each result
    that the model of GEMMs does not know may be quicker as a short fold, without tensor cores; one
    of float32 operands whose rows are not aligned in tiles of few rows; and one whose operands
    would be turned first of these as they lie."""
    op = view[group.inner[0]]
    shape = contraction(op, grouped=True)
    windows = crossed_row(view, group) is not None and few(s, view, group)
    products = [name for name in group.inner if is_reduction(view[name])]
    known = volume((*op.axes, *op.reduce_axes)) is not None
    single = known and not group.follows and not group.regions and not group.beside
    if single and shape is not None and is_split(shape) and any(loose(s, shape, PAIR)):
        return quickest(s, group, (contract, in_few_rows), target)
    alone = known and not group.in_parts and not group.apart and not group.follows
    written = shape if windows and alone else None
    if written and product_of(s, s[group.root], group.inner[0], op, written) is None:
        usual = quickest(s, group, (contract, fold_few), target) is fold_few
        if flip(s, f"{group.root}.written_out", usual):
            return fold_few
    if single and alone and turns(s, products):
        return quickest(s, group, (contract, as_they_lie), target, DOUBTFUL)
    return contract


def pointwise(s: Schedule, stage: Stage, op: ComputeOp, beside: Beside) -> None:
    """A pointwise kernel: one flat tile when all reads have the index of the result, else a tile of
    two axes."""
    if not op.axes:
        return
    everything = reads(*op.bodies)
    across = crossing(op, everything)
    in_step = all(same_axes(plain(r), op.axes) for r in everything)
    last = extent_of(op.axes[-1])
    # Rows that do not start at vector boundaries make no tile: vectors of a flat one cross their
    # ends.  But what computes an index is computed once for a row or a column of a tile.
    vectors = any(same_axes(plain(r), op.axes) for r in everything)
    stencil = across is None and len(op.axes) > 1 and _is_stencil(everything, op.axes[-2])
    flat = not stencil and (vectors or not any(map(_computed, everything)))
    uneven = last is not None and last % ACCESS != 0 and flat
    ragged = across is None and (uneven or (last is not None and last < NARROW))
    # Elements that are loaded one by one: more threads have more loads in flight.
    single = last is not None and last % ACCESS != 0 and not in_step
    more = 1
    if in_step or ragged or len(op.axes) == 1:
        total = volume(op.axes)
        small = total is not None and total <= gpu_of(s).sms * SMALL
        if joined(s, stage.name, beside, small) or tiled_together(s, stage.name, beside):
            return
        flat = fused(stage, op.axes)
        most = None if total is None else max(32, pow2_at_least(total))
        led = not in_step and may_lead(s, stage.name)
        periods = None if in_step else periods_of(s, stage, op, everything, led)
        usual = max(256, 1024 // (1 if periods is None else periods.count))
        tile = pick(s, f"{stage.name}.block", (256, 512, 1024, 2048, 4096), usual, most)
        single = single and periods is None
        if periods is not None:
            tile = tile_periods(stage, flat, periods, tile)
        else:
            _flat(s, stage, flat, tile, total, whole=not small)
            lead(s, beside, stage.name, tile, small)
    elif across is not None:
        if tiled_together(s, stage.name, beside, across[0]):
            return
        tiles = turn(s, stage, op, everything, across)
        tile = tiles.elements
        lead(s, beside, stage.name, tile, small=False, tiles=tiles)
        more = min(16, tile // (TURNED if cost(op) < FUNCTION else TURNED // 2))
    else:
        if tiled_together(s, stage.name, beside):
            return
        # A flat loop that has loaded an input already: what is broadcast comes from cache.
        again = not stencil and read_by_flat(s, stage.name, beside)
        if again and joined(s, stage.name, beside, small=False):
            return
        tiles = _pointwise_2d(s, stage, op, everything)
        tile = tiles.elements
        lead(s, beside, stage.name, tile, small=False, tiles=tiles)
        more = min(8, tile // TAKEN)
    single = single and all(plain(r) is not None for r in everything)
    usual = 8 if single and (across is None or tile >= 4 * TURNED) else 4
    usual = max(usual, more)
    warps = (2, 4, 8) if across is None else (2, 4, 8, 16)
    stage.launch(num_warps=pick_warps(s, stage, warps, usual, tile))


def little_idle(extent: int, wide: int) -> int:
    """Columns of a tile: fewer, while more than an eighth of those in a row of tiles are idle and
    fewer would leave fewer so."""
    widths = [wide]
    while widths[-1] > COLUMNS:
        widths.append(widths[-1] // 2)
    taken = {n: n * -(-extent // n) for n in widths}
    return next(
        (n for n in widths if 8 * taken[n] <= 9 * extent), min(widths, key=taken.__getitem__)
    )


def _is_scattered(read: TensorRead, axis: Axis) -> bool:
    """True where neighbours along the last axis are read from rows of their own: the lines that
    hold them are those that others of the same columns read."""
    rows = [index for index in read.indices[:-1] if reads(index)]
    return bool(rows) and read.indices[-1] is axis and axis in axes_of(*rows)


def _computed(read: TensorRead) -> bool:
    """True when an index is more than axes added up: read from memory, or from a quotient on."""
    nodes = walk(*read.indices)
    return any(isinstance(n, (TensorRead, Cast, Unary)) or _is_quotient(n) for n in nodes)


def _is_quotient(node: Expr) -> bool:
    return isinstance(node, Binary) and node.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)


def _flat(s: Schedule, stage: Stage, flat: Axis, tile: int, total: int | None, whole: bool) -> None:
    """A tile of neighbours for each program."""
    outer, inner = stage.split(flat, factor=tile)
    stage.bind(outer, "blockIdx.x")
    stage.vectorize(inner)
    # A mask that ends within a vector access has each of its elements loaded alone.
    uneven = total is not None and total % ACCESS != 0 and total > tile
    if total is not None and uneven and flip(s, f"{stage.name}.whole", whole):
        stage.cut(outer, total // tile)  # no mask in all programs but the last


def _is_stencil(everything: Sequence[TensorRead], axis: Axis) -> bool:
    """True when a tensor is read at several offsets along an axis."""
    places: dict[Tensor, set[str]] = {}
    for read in everything:
        along = [print_expr(index) for index in read.indices if axis in axes_of(index)]
        if len(along) == 1:
            places.setdefault(read.tensor, set()).add(along[0])
    return max(map(len, places.values()), default=0) >= NEIGHBOURS


def _pointwise_2d(
    s: Schedule, stage: Stage, op: ComputeOp, everything: Sequence[TensorRead]
) -> Tiles:
    """A tile of the last two axes."""
    place = len(op.axes) - 2
    high, limit = extent_of(op.axes[place]), extent_of(op.axes[-1])
    widest, most = padded(limit), padded(high)
    stencil = _is_stencil(everything, op.axes[place])
    # Of a stencil of many places a thread holds the loads for fewer elements.
    least = STENCIL[1] if len(reads_of(op)) <= PLACES else STENCIL[1] // 4
    wide = least if stencil else PROGRAM
    wide = wide if widest is None else min(wide, widest)
    if limit is not None:
        wide = little_idle(limit, wide)
    # The index of a row is loaded, and then the row: more of them have more loads in flight.
    gathered = any(reads(*read.indices) for read in everything)
    filled = GATHERED if gathered else PROGRAM
    if any(_is_scattered(read, op.axes[-1]) for read in everything):
        wide = min(wide, SCATTERED)
    tall = STENCIL[0] if stencil else filled // wide
    columns = pick(s, f"{stage.name}.columns", (16, 32, 64, 128, 256, 512, 1024), wide, widest)
    rows = pick(s, f"{stage.name}.rows", (1, 2, 4, 8, 16, 32, 64), tall, most)
    return tiled(stage, [(axis,) for axis in op.axes], {place: rows, place + 1: columns})
