"""Column reductions and short window reductions (pooling, depthwise convolution); with few results
the reduced axis is split over programs, and partial results are combined by the last program
(last-block reduction) or a second kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from tedsl.expr.nodes import Axis, Binary, Expr, Unary
from tedsl.expr.visit import axes_of, reads, walk
from tedsl.index.affine import stride_of
from tedsl.schedules.analysis.groups import Group, crossed_row
from tedsl.schedules.analysis.nests import (
    among,
    any_order,
    first,
    in_windows,
    is_reduction,
    long_axes,
    padded,
    pow2_at_least,
    reduce_axes,
    same_axes,
)
from tedsl.schedules.analysis.views import View, definitions, extent_of, reads_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.horizontal import Beside
from tedsl.schedules.gpu.columns.lane_operands import loaded, put_lanes_last
from tedsl.schedules.gpu.columns.short_lanes import flatten_lanes, short_lanes
from tedsl.schedules.gpu.columns.sibling_sums import (
    folded_beside,
)
from tedsl.schedules.gpu.last_block import finish_last, one_launch
from tedsl.schedules.gpu.launch import bind_all, pick_warps, tile_grid
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused, fused_folds, lay_in_order
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Programs for each SM that keep it busy; a reduction with fewer results is split.
MANY_PROGRAMS = 2
# Elements of a tile: 64 for each thread of four warps.
TILE = 8192
# Windows: terms of a reduction that are fully unrolled; results of such a program where there are
# many, and at least; the sides of its tile, of which so large a share may be idle.
WRITTEN_OUT = 64
# Terms with arithmetic, and their arithmetic, that are unrolled in one piece: compilers are slow to
# schedule long chains of it, once for each result of a thread.
COMPUTED, ARITHMETIC = 49, 192
# Registers that a thread loads in one piece: ptxas gives 32 to a kernel that fills 800, and leaves
# the rest on the stack (sm_90); one that fills 400 has what it needs.
LOADED = 512
WINDOWS, LEAST_WINDOWS = 2048, 128
WIDTHS = (16, 32, 64, 128)
HEIGHTS = (1, 2, 4, 8, 16, 32)
IDLE = 1 / 8
# The share where a tile would otherwise have no vector of results for each thread of four warps.
MORE_IDLE, VECTORS = 1 / 6, 1024
# From so many results on a flat index is no 32-bit number.
LARGEST = 1 << 31
# Bytes of one vector access to memory, and those that a program loads in an iteration of a part: of
# aligned rows, and of others, whose elements are loaded one by one.
ACCESS = 16
TURN, UNALIGNED_TURN = 8192, 4096
# Rows of a tile.
DEPTHS = (4, 8, 16, 32, 64, 128, 256)
# Columns of a program's tile: in bytes (a cache line) where there are few of them in aligned rows,
# else in elements; and where there are many partial results to combine.
LINE = 128
WIDE = 128
PARTS_WIDE = 32
# Columns of a tile that a program folds from the first row to the last; its rows where a thread has
# a vector of aligned elements or several values that it folds, and where it loads elements one by
# one or computes functions of them (of so much arithmetic), as measured on an H100 and an H200; and
# the elements of such a tile for each warp.
WHOLE, WHOLE_ROWS, MORE_ROWS = 64, 8, 16
FUNCTION = 10
OF_A_WARP = 1024
# Seconds for which an SM should have asked memory for data, twice what the first takes, and up to
# how many tiles of rows a program loads at once for that: ptxas unrolls only what is short.
LATENCY = 1.6e-6
UNROLLED = (1, 2, 4, 8)
# Rows that are enough for each of them.
ROWS_AT_ONCE = 16
# Up to how many partial results the last program combines, where accesses are aligned.
FEW_PARTS = 32
PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# Elements of a column from which on a tile holds them for a second reduction.
LEAST_HELD = 32


def reduce_columns(s: Schedule, group: Group, beside: Beside) -> None:
    """A column reduction: a tile of neighbouring results and some rows, the reduced axis split when
    results are few; in the loops of an earlier one that is alike and reads the same."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    lane = crossed_row(view, group)
    if lane is None:
        return
    nbytes, folded = _nbytes(view, group, lane), _fold_length(view, group)
    run = short_lanes(s, group, lane, nbytes)
    others = [a for a in root.axes if not among(a, run)]
    if len(run) > 1:
        lane = flatten_lanes(s, group, run)
        view = definitions(s)
    extent, results = volume(run), volume(root.axes)
    aligned = extent is None or extent * nbytes % ACCESS == 0
    many, turn = MANY_PROGRAMS * gpu_of(s).sms, TURN if aligned else UNALIGNED_TURN
    wide, rows = WIDE, None
    if group.in_parts:
        wide = _wide(results, folded, many)
    elif extent is not None and _tiles(others, extent, WIDE) >= many:
        wide, rows = WHOLE, _whole_rows(view, group, aligned)
    elif aligned and results is not None and results * nbytes < LINE * many:
        wide = max(32, LINE // nbytes)
    if _turned(view, group, lane):
        wide, rows = WHOLE, WHOLE
    width = pick(s, f"{stage.name}.columns", (32, 64, 128, 256, 512), wide, padded(extent))
    deepest = TILE // width if folded is None else min(TILE // width, pow2_at_least(folded))
    depth = deepest if group.in_parts else rows or turn // (width * nbytes)
    depth = pick(s, f"{stage.name}.rows", DEPTHS, max(4, depth), deepest)
    enough = (4 if aligned else 8) * many
    programs = None if extent is None else _tiles(others, extent, width)
    parts = _parts(s, view, group, programs, depth, enough)
    if parts > 1:
        name, known = group.inner[0], group.axes[group.inner[0]]
        apart = one_launch(s, group.root, default=aligned and parts <= FEW_PARTS)
        made, fold = _split_columns(s, name, known, lane, parts, (width, depth), apart)
        same = (results, folded, width, depth, parts, apart)
        leader = folded_beside(s, (name, group.root), made, fold, same, beside)
        if leader is None:
            made.launch(num_warps=4)
        if apart and finish_last(s, stage, [name], leader or made, known):
            return
        width = min(width, _wide(results, parts, many))
        depth = min(parts, TILE // width)
    grid = tile_grid(stage, others, [(lane, width)])
    folds = [reduce_axes(s[name]) for name in group.inner if reduce_axes(s[name])]
    under_way = depth * width * nbytes / (2 if _several(view, group) else 1)
    at_once = _at_once(s, stage, folds, under_way, programs) if parts <= 1 else 1
    for name in reversed(group.inner):
        _fold_inside(s, s[name], depth, stage, grid, at_once)
    if parts <= 1 and len(folds) == len(group.inner) == 1 and not group.follows:
        name, same = group.inner[0], (results, folded, width, depth, at_once)
        if folded_beside(s, (name, group.root), stage, s[name], same, beside) is not None:
            return
    if not group.follows:
        warps = max(4, width * depth // OF_A_WARP)
        stage.launch(num_warps=pick_warps(s, stage, (2, 4, 8), warps, width * depth))


def _tiles(others: Sequence[Axis], extent: int, width: int) -> int:
    """How many programs there are with so many of the columns each, whose number is `extent`."""
    return (volume(others) or 0) * -(-extent // width)


def _several(view: View, group: Group) -> bool:
    """Whether several values are folded together: ptxas loads an element when it comes to it, and
    waits."""
    return any(len(view[name].bodies) > 1 for name in group.inner)


def _whole_rows(view: View, group: Group, aligned: bool) -> int:
    """Rows of a tile that is folded whole."""
    plain = sum(_arithmetic(view[name]) for name in group.inner) < FUNCTION
    return WHOLE_ROWS if _several(view, group) or (aligned and plain) else MORE_ROWS


def fold_few(s: Schedule, group: Group) -> None:
    """Short reductions whose lanes are results (pooling, depthwise convolution): a tile of
    neighbouring results along up to three axes, with the window fully unrolled and summed in
    registers.

    Windows of neighbours overlap: the taller the tile, the less of its halo other programs read
    again.
    """
    view = definitions(s)
    lane = crossed_row(view, group)
    if lane is not None and _strided(view, group, lane):
        _one_each(s, group, _ones_last(view[group.root].axes)[-1])
    elif lane is not None:
        _in_tiles(s, group, lane)


def window_rules(view: View, group: Group) -> tuple[Callable[[Schedule, Group], None], ...]:
    """`fold_few`, and what may be quicker where the operand lies along another axis than the
    results."""
    lane, axes = crossed_row(view, group), long_axes(view[group.root].axes)
    if lane is None or lane is axes[-1]:
        return (fold_few,)
    return (fold_few, in_both_orders, *([as_operand] if _strided(view, group, lane) else []))


def as_operand(s: Schedule, group: Group) -> None:
    """The same of windows at a stride, one by one along the axis along which their operand lies."""
    lane = crossed_row(definitions(s), group)
    if lane is not None:
        _one_each(s, group, lane)


def in_both_orders(s: Schedule, group: Group) -> None:
    """The same in tiles, whose lanes lie as the operand does while they are summed."""
    view = definitions(s)
    lane = crossed_row(view, group)
    if lane is None:
        return
    for name in group.inner:
        own, known = view[name].axes, group.axes[name]
        if is_reduction(view[name]):
            order = sorted(range(len(own)), key=lambda n: known.get(own[n]) is lane)
            made = lay_in_order(s[name], order)
            group.axes[name] = {
                new: known[own[n]] for new, n in zip(made, order, strict=True) if own[n] in known
            }
    _in_tiles(s, group, lane)


def _in_tiles(s: Schedule, group: Group, lane: Axis) -> None:
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    run = short_lanes(s, group, lane, _nbytes(view, group, lane))
    others = [a for a in root.axes if not among(a, run)]
    if len(run) == 1:
        put_lanes_last(s, group, lane)
    else:
        lane = flatten_lanes(s, group, run)
    view = definitions(s)
    results = volume(root.axes)
    largest = WINDOWS if results is None else min(WINDOWS, results // gpu_of(s).sms)
    idle = _share_idle((lane, *reversed(others[-2:])), largest)
    fitting = _fitting(lane, WIDTHS, idle) if len(run) == 1 else (VECTORS, volume(run))
    width = pick(s, f"{stage.name}.columns", WIDTHS, *fitting)
    outer, inner = stage.split(lane, factor=width)
    outers, lanes, tile = [outer], [inner], width
    for axis, name in zip(reversed(others[-2:]), ("rows", "high"), strict=False):
        within = [n for n in HEIGHTS if n * tile <= largest] or [1]
        size = pick(s, f"{stage.name}.{name}", HEIGHTS, *_fitting(axis, within, idle))
        if size == 1:
            outers.insert(0, axis)
            continue
        outer, inner = stage.split(axis, factor=size)
        outers, lanes, tile = [outer, *outers], [inner, *lanes], tile * size
    outers = [*others[:-2], *outers]
    stage.reorder(*outers, *lanes)
    grid = bind_all(stage, outers)
    for axis in lanes:
        stage.vectorize(axis)
    warps = pick_warps(s, stage, (1, 2, 4, 8), 4, tile)
    for name in reversed(group.inner):
        inner_stage = s[name]
        if reduce_axes(inner_stage):
            own = next((a for a in view[name].axes if group.axes[name].get(a) is lane), lane)
            each = loaded(view[name], own, max(1, tile // (32 * warps)))
            _write_out(inner_stage, _arithmetic(view[name]), each)
            inner_stage.compute_at(stage, grid)
        else:
            inner_stage.compute_inline()
    stage.launch(num_warps=warps)


def _strided(view: View, group: Group, lane: Axis) -> bool:
    """True when neighbours along `lane`, of results with the axes of the kernel, read no neighbours
    in memory."""
    if (volume(view[group.root].axes) or LARGEST) >= LARGEST:
        return False
    for name in group.inner:
        op, known = view[name], group.axes[name]
        if not is_reduction(op):
            continue
        mine, all_of = (long_axes(each.axes) for each in (op, view[group.root]))
        if not same_axes([known.get(a, a) for a in mine], all_of):
            return False
        own = next(a for a in op.axes if known.get(a) is lane)
        steps = [stride_of(r.indices[-1], own) for r in reads_of(op) if own in axes_of(*r.indices)]
        if not all(isinstance(step, int) and step > 1 for step in steps):
            return False
    return True


def _one_each(s: Schedule, group: Group, lane: Axis) -> None:
    """Windows whose elements are loaded one by one: neighbours along `lane` to the threads of a
    warp, a result for each, share the sectors of memory, which several results of a thread would
    not; and a flat tile has no idle lanes."""
    stage = s[group.root]
    place = next(n for n, a in enumerate(definitions(s)[group.root].axes) if a is lane)

    def ordered(i: Sequence[Axis]) -> list[Axis]:
        return _ones_last([*i[:place], *i[place + 1 :], i[place]])

    def flat(*i: Axis) -> tuple[Expr, ...]:
        first, *others = ordered(i)
        place: Expr = first
        for axis in others:
            place = place * (extent_of(axis) or 1) + axis
        return (place,)

    folds = [name for name in group.inner if reduce_axes(s[name])]
    arithmetic = {name: _arithmetic(definitions(s)[name]) for name in folds}
    for name in folds:
        s[name].transform_layout(flat)
    tile = pick(s, f"{stage.name}.threads", (128, 256, 512), 256)
    axes = ordered(definitions(s)[group.root].axes)
    stage.reorder(*axes)
    grid, inner = stage.split(fused(stage, axes), factor=tile)
    stage.bind(grid, "blockIdx.x")
    stage.vectorize(inner)
    for name in reversed(group.inner):
        if name in arithmetic:
            _write_out(s[name], arithmetic[name])
            s[name].compute_at(stage, grid)
        else:
            s[name].compute_inline()
    stage.launch(num_warps=tile // 32)


def _ones_last(axes: Sequence[Axis]) -> list[Axis]:
    """Axes with those of one element last: the quotient of a flat index by all others is no loop's
    place then, which would wrap around past the last result."""
    return [*long_axes(axes), *(axis for axis in axes if extent_of(axis) == 1)]


def _write_out(inner: Stage, each: int, filled: int = 1) -> None:
    """Unroll a reduction, of which a term takes so much arithmetic and fills so many registers;
    where that is too much together, the last of its loops, as far as it goes."""
    axes = reduce_axes(inner)
    left = WRITTEN_OUT
    if each:
        left = min(COMPUTED, ARITHMETIC // (1 + each), max(1, LOADED // max(1, filled)))
    for axis in reversed(axes):
        extent = extent_of(axis) or 1
        part = max(n for n in range(1, max(1, min(left, extent)) + 1) if extent % n == 0)
        if part == extent:
            inner.unroll(axis)
        elif part > 1:
            inner.unroll(inner.split(axis, factor=part)[1])
        if part < extent:
            return
        left //= extent


def _arithmetic(op: ComputeOp) -> int:
    """Rough arithmetic on floats of a term, as `analysis.cost` has it, without indices."""
    made = (n for n in walk(*op.bodies) if isinstance(n, (Unary, Binary)) and n.dtype.is_float)
    return sum(10 if isinstance(node, Unary) else 1 for node in made)


def few(s: Schedule, view: View, group: Group) -> bool:
    """True when the kernel's reductions are short enough to unroll, or windows that overlap, of
    which the last axes are, and its results so many that every SM has a tile of them."""
    length, results = _fold_length(view, group), volume(view[group.root].axes)
    windows = any(in_windows(view[n], r) for n in group.inner for r in reads_of(view[n]))
    if length is None or (length > WRITTEN_OUT and not windows):
        return False
    return results is None or results >= gpu_of(s).sms * LEAST_WINDOWS


def read_twice(view: View, group: Group) -> bool:
    """True when several reductions read the same elements, none of windows, and a tile has room for
    all of them in registers, where they are loaded and computed once."""
    folds = [name for name in group.inner if is_reduction(view[name])]
    length, ops = _fold_length(view, group), [view[name] for name in folds]
    windows = any(in_windows(op, r) for op in ops for r in reads_of(op))
    if len(folds) < 2 or windows or not LEAST_HELD <= (length or 0) <= TILE // PARTS_WIDE:
        return False
    first, *others = ({r.tensor for r in reads_of(op)} for op in ops)
    return bool(first.intersection(*others))


def _share_idle(axes: Sequence[Axis], largest: int) -> float:
    """How large a share of the last tile along each of these axes may be idle, the lanes first."""
    tile = 1
    for axis in axes:
        choices = WIDTHS if tile == 1 else [n for n in HEIGHTS if n * tile <= largest] or [1]
        tile *= _fitting(axis, choices, IDLE)[0]
    return IDLE if tile >= min(VECTORS, largest) else MORE_IDLE


def _fitting(axis: Axis, choices: Sequence[int], share: float) -> tuple[int, int | None]:
    """The largest part of an axis that wastes no more than a `share` of its last tile, or else the
    one that wastes least; and the largest that is of use."""
    extent = extent_of(axis)
    if extent is None:
        return max(choices), None
    most = pow2_at_least(extent)

    def idle(size: int) -> float:
        return -(-extent // size) * size / max(extent, 1) - 1.0

    known = [size for size in choices if size <= most] or [most]
    fine = [size for size in known if idle(size) <= share]
    return max(fine) if fine else min(known, key=idle), most


def _wide(results: int | None, parts: int | None, many: int) -> int:
    """Columns of a program that combines partial results: few, so that there are enough
    programs."""
    few = results is not None and results < WIDE * many
    return PARTS_WIDE if few and parts is not None and parts >= PARTS_WIDE else WIDE


def _nbytes(view: View, group: Group, lane: Axis) -> int:
    """Bytes of the widest element that is reduced along the lanes."""
    found = [
        read.dtype.nbytes
        for name in group.inner
        for read in reads(*view[name].bodies)
        if any(group.axes[name].get(axis) is lane for axis in axes_of(*read.indices))
    ]
    return max(found, default=4)


def turned_at_once(s: Schedule, view: View, group: Group, lane: Axis) -> bool:
    """True for tiles that transpose of reductions so short that a program holds several of them,
    where every SM has a program."""
    length, results = _fold_length(view, group), volume(view[group.root].axes)
    fits = length is not None and length <= TILE // PARTS_WIDE
    busy = results is None or results >= gpu_of(s).sms * PARTS_WIDE
    return fits and busy and _turned(view, group, lane)


def _turned(view: View, group: Group, lane: Axis) -> bool:
    """True where something as large as the loops is contiguous along what is reduced alone: no
    window, no filter."""
    for name in group.inner:
        op, known = view[name], group.axes[name]
        for read in reads_of(op) if is_reduction(op) else ():
            last = read.indices[-1] if read.indices else None
            folded = isinstance(last, Axis) and among(last, op.reduce_axes)
            used = axes_of(*read.indices)
            whole = all(axis in used for axis in long_axes((*op.axes, *op.reduce_axes)))
            if folded and whole and any(known.get(axis) is lane for axis in used):
                return True
    return False


def _fold_length(view: View, group: Group) -> int | None:
    """The longest reduction; None when one is symbolic."""
    lengths = [volume(view[name].reduce_axes) for name in group.inner]
    return None if None in lengths else max((n or 1 for n in lengths), default=1)


def _parts(
    s: Schedule, view: View, group: Group, programs: int | None, depth: int, enough: int
) -> int:
    """The knob `parts`: how many programs share the reduction of a tile of columns, so that there
    are enough programs."""
    folded = _fold_length(view, group)
    if group.in_parts or len(group.inner) > 1 or folded is None or not programs:
        return 1
    if programs >= MANY_PROGRAMS * gpu_of(s).sms or not any_order(view[group.inner[0]]):
        return 1
    name = f"{s[group.root].name}.parts"
    most = folded // (2 * depth)
    fitting = max(1, min(1024, enough // programs, folded // depth))
    return pick(s, name, PARTS, pow2_at_least(fitting), max(1, most))


def _at_once(
    s: Schedule, stage: Stage, folds: Sequence[Sequence[Axis]], nbytes: float, programs: int | None
) -> int:
    """How many tiles of rows a program asks for before it folds the first; of each, `nbytes` are
    under way at once."""
    gpu, lengths = gpu_of(s), [volume(each) or 0 for each in folds]  # 0 where not known
    if programs is None or 0 in lengths or not lengths:
        return 1
    beside = max(1.0, min(programs / gpu.sms, gpu.warps_sm / 4))
    wanted = ceil(gpu.bandwidth * LATENCY / gpu.sms / (nbytes * beside))
    usual = min(pow2_at_least(wanted), UNROLLED[-1])
    return pick(s, f"{stage.name}.unrolled", UNROLLED, usual, min(lengths) // ROWS_AT_ONCE)


def _fold_inside(
    s: Schedule, inner: Stage, depth: int, stage: Stage, place: Axis, at_once: int = 1
) -> None:
    """Lanes of `depth` rows, reduced element by element, inside the loop `place` of `stage`, so
    many tiles of them `at_once`; one row at a time where order counts."""
    axes = reduce_axes(inner)
    if not axes:
        inner.compute_inline()
        return
    flat, op = fused_folds(s, inner), definitions(s)[inner.name]
    inner.compute_at(stage, place)
    if not any_order(op):
        return
    turn, piece = inner.split(flat, factor=depth)
    if len(op.bodies) == 1 or (volume(op.reduce_axes) or 0) <= depth:
        _ask_at_once(inner, turn, [piece], at_once)
        inner.vectorize(piece)
        return
    # What is several values is combined across threads once, after the loop.
    lanes = s[first(s.rfactor(inner.op.outputs[0], piece))]
    for axis in reduce_axes(inner):
        inner.vectorize(axis)
    lanes.compute_at(stage, place)
    lanes.reorder(*reduce_axes(lanes), *lanes.op.axis)
    _ask_at_once(lanes, fused(lanes, reduce_axes(lanes)), lanes.op.axis, at_once)
    for axis in lanes.op.axis:
        lanes.vectorize(axis)


def _ask_at_once(stage: Stage, turn: Axis, lanes: Sequence[Axis], at_once: int) -> None:
    """Unroll a loop over tiles, so many of them together."""
    if at_once > 1:
        turn, again = stage.split(turn, factor=at_once)
        stage.reorder(turn, again, *lanes)
        stage.unroll(again)


def _split_columns(
    s: Schedule,
    name: str,
    known: dict[Axis, Axis],
    lane: Axis,
    parts: int,
    tile: tuple[int, int],
    apart: bool,
) -> tuple[Stage, Stage]:
    """Partial results of `parts` stretches of the reduced axis (`rfactor`), in a kernel of their
    own, with the number of the part on a grid axis of its own (`apart`) or not; and the fold in
    it."""
    width, depth = tile
    stage = s[name]
    place = next(n for n, a in enumerate(definitions(s)[name].axes) if known.get(a) is lane)
    axes = reduce_axes(stage)
    flat = fused_folds(s, stage)
    each = -(-(volume(axes) or 0) // parts)
    if each % depth == 0:
        part, _ = stage.split(flat, nparts=parts)
    else:  # whole tiles of rows, so that no part has a last one that is nearly empty
        part, _ = stage.split(flat, factor=depth * max(1, round(each / depth)))
    outer = s[first(s.rfactor(stage.op.outputs[0], part))]
    outputs = list(outer.op.outputs)
    inner = s[first(s.cache_write(outputs if len(outputs) > 1 else outputs[0], "local"))]
    op = definitions(s)[outer.name]
    own = op.axes[1 + place]
    others = [a for a in op.axes if a is not own]
    grid = tile_grid(outer, others, [(own, width)], op.axes[0] if apart else None)
    _fold_inside(s, inner, depth, outer, grid)
    return outer, inner
