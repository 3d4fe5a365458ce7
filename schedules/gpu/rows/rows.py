"""Row reductions and what reads them (softmax, layer norm, RMS norm, cross entropy) in one kernel.

A program takes some neighbouring rows: whole rows in one tile where they fit into registers, else
it loops over pieces of them, in one online pass for all reductions where one can be rescaled when
another changes.  Long rows can be split over programs, whose parts a second kernel combines
(`gpu/rows/split_rows.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis.chains import chain_ends, folds_before, follow, inline_between
from tedsl.schedules.analysis.groups import Group, crossed_row, shared_inputs
from tedsl.schedules.analysis.nests import (
    among,
    any_order,
    innermost,
    is_reduction,
    long_axes,
    memory_steps,
    neighbours,
    padded,
    pow2_at_least,
    reduce_axes,
)
from tedsl.schedules.analysis.views import (
    View,
    blocks,
    definitions,
    elements_of,
    extent_of,
    reads_of,
    times,
    volume,
)
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.horizontal import Beside
from tedsl.schedules.gpu.launch import bind_all, pick_warps, registers, staying
from tedsl.schedules.gpu.rows.aligned_pieces import ACCESS, Skewed, skewed, split_row
from tedsl.schedules.gpu.rows.horizontal_rows import lead_rows, rows_joined, share_loops
from tedsl.schedules.gpu.rows.reverse_second_pass import read_back
from tedsl.schedules.gpu.rows.row_consumers import run_beside
from tedsl.schedules.gpu.rows.split_rows import split_chain
from tedsl.schedules.gpu.rows.thread_partials import (
    Piece,
    fold_lanes,
    in_one_access,
    may_have_lanes,
    run_of,
    split_in_lanes,
)
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fold_at_once, fused, fused_folds
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

# Elements that a program may hold at once: 64 a thread with 16 warps, or with 32 where it holds one
# row of one tensor, two elements to a register.
MAX_TILE = 32768
MAX_SINGLE = 65536
ROWS = (1, 2, 4, 8, 16)
MOST_ROWS = 128
# Bytes of short rows that fill a program.
FILLED = 4096
# `num_warps` by the elements of a tile, up to so many: of 32 bits, of up to 16 bits, and of short
# rows that are not aligned.
WIDE_WARPS = ((512, 1), (1024, 2), (2048, 4), (4096, 8), (16384, 16))
NARROW_WARPS = ((512, 1), (1024, 2), (8192, 4), (16384, 8), (32768, 16))
LOOSE_WARPS = ((1024, 1), (2048, 2))
# Elements of a row from which a loop over pieces of it is as fast as the whole at once.
LOOPED = 8192
# Elements of a row that is reduced in large pieces.
LONG = 65536
# Registers for each element of a skewed piece: what is read, computed and folded of it.  As many
# programs share an SM as its registers hold pieces of.
REGISTERS = 5
OCCUPANCY = (0, 2, 3, 4, 6)
# Elements of a piece of rows, and the share of the lanes of neighbouring rows, held at once, that a
# loop over such pieces has to use for it to be no faster.
PIECE, BUSY = 2048, 3 / 4
# Rows that are neighbours in memory fill its transactions together.
CROSSED_ROWS = (16, 32, 64)
HIGH = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A row as a tile: its padded length, None where that is symbolic; whether all rows start at
    vector boundaries; bytes of its widest element; whether it lies in memory in runs that start
    off vector boundaries."""

    length: int | None
    aligned: bool
    nbytes: int
    loose: bool = False

    @property
    def filled(self) -> int:
        """Elements of short rows that are worth a program."""
        return FILLED // self.nbytes if self.aligned else FILLED // 4

    @property
    def long(self) -> bool:
        """True for rows of many iterations."""
        return self.aligned and self.length is not None and self.length >= LONG

    def warps(self, elements: int) -> int:
        """Warps that hold so many elements: few of 16 bits, each with several loads in flight, and
        fewer where rows are not aligned."""
        limits = WIDE_WARPS if self.nbytes > 2 or self.loose else NARROW_WARPS
        limits = limits if self.aligned or elements > FILLED // 4 else LOOSE_WARPS
        return next((warps for most, warps in limits if elements <= most), 32)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A kernel of rows: its stage, the axes of the rows and of what lies in a row, the row axis
    along which memory is contiguous in column reductions (`crossed`), whether partial results
    combine in any order (`free`), a row as a tile, the kernel, and the axis of rows that has a grid
    axis of its own."""

    stage: Stage
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    crossed: Axis | None
    free: bool
    shape: _Shape
    group: Group
    apart: Axis | None


def reduce_rows(s: Schedule, group: Group, beside: Beside) -> None:
    """Row reductions and what reads them: whole rows in a tile, or a loop over pieces of them."""
    view = definitions(s)
    if crossed_row(view, group) is None and rows_joined(s, group, beside):
        return
    root = view[group.root]
    rows = tuple(group.rows or ())
    columns = tuple(a for a in root.axes if not among(a, rows))
    crossed = crossed_row(view, group)
    free = all(any_order(view[name]) for name in group.inner)
    shape = _shape(view, group, columns)
    apart = rows[0] if group.apart else None
    nest = _Rows(s[group.root], rows, columns, crossed, free, shape, group, apart)
    length = shape.length
    fewest = 1 if crossed is None else CROSSED_ROWS[0]
    most = MAX_SINGLE if _single(view, group) else MAX_TILE
    wide = any(len(long_axes(s[name].op.axis)) > len(long_axes(rows)) for name in group.beside)
    whole = free and length is not None and length * fewest <= most
    # What only reads a row once has no use for all of it in registers, nor do threads without room.
    limit = MAX_TILE if columns or wide else LOOPED - 1
    held = length is None or length <= limit or not chain_ends(s, group)
    # Of neighbours that one program takes, each has its idle lanes, which compute as others do.
    folds = [view[name].reduce_axes for name in group.inner if is_reduction(view[name])]
    points, turn = _longest([columns, *folds]), PIECE // CROSSED_ROWS[1]
    if crossed is not None and points is not None and length is not None:
        held = held and BUSY * length <= -(-points // turn) * turn
    elif points is not None and length is not None and length > PIECE:
        # Several axes, each of them padded; in pieces they are one.
        again = bool(columns or wide)
        held = held and (2 * points > length or (again and not chain_ends(s, group)))
    if whole and length is not None and flip(s, f"{group.root}.whole_row", held):
        each, place = _whole_rows(s, group, nest, length)
        if crossed is None:
            lead_rows(s, beside, group, each, place)
    else:
        _looped_rows(s, group, nest)


def _shape(view: View, group: Group, columns: Sequence[Axis]) -> _Shape:
    nbytes = max(_read_along(view, group), default=4)
    folds = [view[name].reduce_axes for name in group.inner if is_reduction(view[name])]
    sizes = [volume(axes) for axes in (columns, *folds) if axes]
    longest = max((size for size in sizes if size is not None), default=0)
    aligned = all(size is None or size < longest or size * nbytes % ACCESS == 0 for size in sizes)
    rows = [(view[group.root], tuple(columns))]
    rows += [(view[name], view[name].reduce_axes) for name in group.inner]
    loose = any(_in_loose_runs(op, axes, nbytes) for op, axes in rows if volume(axes) == longest)
    return _Shape(_row_length(view, group, columns), aligned, nbytes, loose)


def _in_loose_runs(op: ComputeOp, axes: Sequence[Axis], nbytes: int) -> bool:
    """True where what `op` reads along `axes` are several runs that start off vector boundaries."""
    runs = neighbours(axes, reads(*op.bodies)) if axes else []
    return len(runs) > 1 and (volume(runs[-1]) or 0) * nbytes % ACCESS != 0


def _tile_of_rows(s: Schedule, nest: _Rows, elements: int | None, loaded: int) -> tuple[int, Axis]:
    """Split the rows into tiles over the grid; returns the rows of a tile and the loop around it.

    `elements` of a row are in the tile, `loaded` bytes of each are read; None where it is a loop
    over pieces.
    """
    stage = nest.stage
    rows = [a for a in nest.rows if a is not nest.apart]
    inner_row = nest.crossed if nest.crossed is not None else innermost(rows)
    each = _rows_per_program(s, nest, inner_row, nest.shape if elements else None)
    more = _more_rows(s, nest, inner_row, each, elements)
    outer, inner = stage.split(inner_row, factor=each)
    others, lanes = [a for a in nest.rows if a is not inner_row], [inner]
    tiles = times(volume([a for a in others if a not in more]), blocks(extent_of(inner_row), each))
    for axis in reversed([a for a in others if a in more]):
        tiles, each = times(tiles, blocks(extent_of(axis), more[axis])), each * more[axis]
        around, within = stage.split(axis, factor=more[axis])
        others, lanes = [around if a is axis else a for a in others], [within, *lanes]
    stage.reorder(*others, outer, *lanes, *nest.columns)
    if nest.apart is not None and inner_row is not nest.apart:
        grid = bind_all(stage, (*others, outer), apart=nest.apart)
        stage.vectorize(inner)
        return each, grid
    held = 0 if elements is None else elements * each * loaded
    alone = elements is not None and elements * each >= MAX_TILE
    place = staying(s, stage, (*others, outer), tiles, held, alone=alone)
    for lane in lanes:
        stage.vectorize(lane)
    run_beside(s, nest.group, stage, each, place, None if elements is not None else PIECE)
    return each, place


def _more_rows(
    s: Schedule, nest: _Rows, row: Axis, each: int, elements: int | None
) -> dict[Axis, int]:
    """The other axes of rows that a tile has neighbours along, and how many of each (the knob
    `high` is of all): a short axis leaves it too few rows.  Where memory is contiguous along that,
    it is the axis around it, so that both fill transactions together; else those along which rows
    follow each other in memory come first."""
    extent = extent_of(row)
    plain = nest.apart is None and not nest.group.beside
    if not plain or not elements or extent is None or extent > each:
        return {}
    around = list(reversed(nest.rows[: next(n for n, a in enumerate(nest.rows) if a is row)]))
    if nest.crossed is not None:
        around, wanted = around[:1], CROSSED_ROWS[-1] // each
    else:
        around = _as_in_memory(s, nest, row, around)
        wanted = pow2_at_least(_filling(nest.shape, elements)) // pow2_at_least(extent)
    most = [extent_of(axis) for axis in around]
    if not most or None in most or MAX_TILE // (elements * each) < 2:
        return {}
    limit = min(MAX_TILE // (elements * each), prod(pow2_at_least(n or 1) for n in most))
    left, more = pick(s, f"{nest.stage.name}.high", HIGH, max(1, wanted), limit), dict[Axis, int]()
    for axis, n in zip(around, most, strict=True):
        taken = min(left, pow2_at_least(n or 1))
        left //= taken
        if taken > 1:
            more[axis] = taken
    return more


def _as_in_memory(s: Schedule, nest: _Rows, row: Axis, around: Sequence[Axis]) -> list[Axis]:
    """Axes of rows in the order in which the largest tensor that is reduced has them next to each
    other, the innermost first; those that are not in it so, as they are."""
    view, own = definitions(s), nest.group.axes
    folds = [name for name in nest.group.inner if is_reduction(view[name])]
    found = [(elements_of(r.tensor) or 0, name, r) for name in folds for r in reads_of(view[name])]
    known = dict[Axis | None, int]()
    if found:  # constants are folded without reading anything
        _, name, read = max(found, key=lambda each: each[0])
        known = {own[name].get(a): n for a, n in memory_steps(read, view[name].axes).items() if n}
    last = max(known.values(), default=0) + 1
    return sorted((a for a in around if extent_of(a) != 1), key=lambda a: known.get(a, last))


def _read_along(view: View, group: Group) -> list[int]:
    """Bytes of an element of each tensor in memory that is read along the rows."""
    inside = {view[name] for name in (group.root, *group.inner)}
    tensors = {
        read.tensor
        for name in (group.root, *group.inner)
        for read in reads(*view[name].bodies)
        if read.tensor.op not in inside
        and any(
            not among(group.axes[name].get(axis), group.rows or ())
            for axis in long_axes(tuple(axes_of(*read.indices)))
        )
    }
    return [tensor.dtype.nbytes for tensor in tensors]


def _single(view: View, group: Group) -> bool:
    """True when rows of one tensor only are read from memory, in 16 bits or less."""
    sizes = _read_along(view, group)
    return len(sizes) == 1 and sizes[0] <= 2


def _row_length(view: View, group: Group, columns: Sequence[Axis]) -> int | None:
    """The longest tile of one row, each dimension padded; None when a length is symbolic."""
    longest = _padded(columns)
    for name in group.inner:
        op = view[name]
        own = [a for a in op.axes if not among(group.axes[name].get(a), group.rows or ())]
        size = _padded([*own, *op.reduce_axes])
        longest = None if size is None or longest is None else max(longest, size)
    return longest


def _padded(axes: Sequence[Axis]) -> int | None:
    return times(*(padded(extent_of(axis)) for axis in axes))


def _rows_per_program(s: Schedule, nest: _Rows, row: Axis, shape: _Shape | None) -> int:
    """Enough short rows to fill a tile; where rows are neighbours in memory, a transaction."""
    extent, length = extent_of(row), None if shape is None else shape.length
    most = 1 << 16 if extent is None else pow2_at_least(extent)
    if length is not None:
        most = min(most, max(1, MAX_TILE // length))
    choices, default = ROWS, 1
    if shape is not None and length is not None:
        default = _filling(shape, length)
    if nest.crossed is not None or not nest.free:
        choices, default = CROSSED_ROWS, 32
    return pick(s, f"{nest.stage.name}.rows", choices, pow2_at_least(default), most)


def _filling(shape: _Shape, length: int) -> int:
    """Rows of so many elements that are worth a program."""
    return max(1, min(MOST_ROWS, shape.filled // length))


def _whole_rows(s: Schedule, group: Group, nest: _Rows, length: int) -> tuple[int, Axis]:
    """All lanes of a row at once; what several stages read is loaded into registers first.  Returns
    the rows of a tile and the loop around it."""
    stage = nest.stage
    loaded = sum(_read_along(definitions(s), group))
    each, place = _tile_of_rows(s, nest, length, loaded)
    for axis in nest.columns:
        stage.vectorize(axis)
    for name in reversed(group.inner):
        fold_at_once(s[name], stage, place)
    for source, number, users in shared_inputs(definitions(s), group, s):
        tensor = s[source].op.outputs[number]
        staged = s.cache_read(tensor, "local", [s[user].op for user in users])
        s[staged].compute_at(stage, place)
    elements = length * each
    chosen = pick_warps(s, stage, (1, 2, 4, 8, 16, 32), nest.shape.warps(elements), elements)
    stage.launch(num_warps=chosen)
    return each, place


def _looped_rows(s: Schedule, group: Group, nest: _Rows) -> None:
    """Each reduction loops over pieces of the row, or several share one online loop, and the result
    is stored in another loop."""
    stage = nest.stage
    ends = chain_ends(s, group) if nest.free else []
    known = nest.crossed is None and nest.shape.length is not None
    once = bool(ends) and flip(s, f"{stage.name}.online", known)
    if once:
        inline_between(s, group.inner)
        group.inner = [name for name in group.inner if reduce_axes(s[name])]
        if nest.crossed is None and split_chain(s, group, ends):
            return
    each, place = _tile_of_rows(s, nest, None, 0)
    view = definitions(s)
    folds = [view[n].reduce_axes for n in reversed(group.inner) if is_reduction(view[n])]
    longest = _longest([nest.columns, *folds])
    most = 1 << 16 if longest is None else pow2_at_least(longest)
    pieces = bool(nest.columns) or any(any_order(view[n]) for n in group.inner)
    skew = _skew(s, view, group, nest) if pieces and each == 1 else None
    block = _piece(s, nest, each, most, skew) if pieces else 1
    count = blocks(longest, block)
    usual = 3 if _loose_again(s, nest) and skew is None else 1
    ahead = pick(s, f"{stage.name}.stages", (1, 2, 3, 4, 5), usual, count if pieces else 1)
    run = run_of(view[ends[0]]) if once else longest
    own = Piece(block, in_one_access(run, nest.shape.nbytes), ahead, skew)
    merged = _lanes(s, nest, ends if once else (), own, place)
    outer = None
    if nest.columns:
        outer, piece = split_row(stage, fused(stage, nest.columns), block, skew)
        stage.vectorize(piece)
        if ahead > 1:
            stage.pipeline(outer, num_stages=ahead)
    turns: dict[str, Axis] = {}
    for name in reversed(group.inner):
        inner = s[name]
        axes = reduce_axes(inner)
        if not inner.plan.placement.at_root or name in merged:
            continue
        if not axes:
            inner.compute_inline()
            continue
        inner.compute_at(stage, place)
        if not any_order(view[name]):
            fused(inner, axes)
            continue
        # Reductions that share an online loop take whole pieces.
        follows = once and name in ends
        turn, piece = split_row(inner, fused_folds(s, inner), block, None if follows else skew)
        if follows:
            follow(inner, turn)
        else:
            turns[name] = turn
        inner.vectorize(piece)
        if ahead > 1:
            inner.pipeline(turn, num_stages=ahead)
    share_loops(s, turns)
    size = volume(nest.columns)
    if outer is not None and nest.crossed is None and size is not None and size > block:
        read_back(s, stage, outer, size * nest.shape.nbytes)
    _launch(s, nest, each * block, bool(merged), skew)


def _skew(s: Schedule, view: View, group: Group, nest: _Rows) -> Skewed | None:
    """How pieces of unaligned rows start at vector boundaries, where they can."""
    loose = not nest.shape.aligned and nest.crossed is None and nest.free
    if not loose or len(nest.rows) != 1 or len(nest.columns) > 1:
        return None
    return skewed(s, view, group, nest.rows[0], nest.columns)


def _launch(s: Schedule, nest: _Rows, elements: int, lanes: bool, skew: Skewed | None) -> None:
    """`num_warps` for the elements of a piece, and `maxnreg` for the occupancy."""
    stage, gpu = nest.stage, gpu_of(s)
    # Two vector loads for each thread in an iteration; one, where what is read before an iteration
    # is read again.
    twice = skew is None or not nest.columns
    few = max(1, elements * nest.shape.nbytes // ((64 if twice else 32) * ACCESS))
    lined_up = nest.shape.aligned or skew is not None
    default = min(few, 16) if lanes and lined_up else max(1, min(8, elements // 256))
    warps = pick_warps(s, stage, (1, 2, 4, 8, 16, 32), default, elements)
    programs = 0
    if skew is not None:
        most = gpu.registers_sm // (REGISTERS * elements)
        usual = max(each for each in OCCUPANCY if each <= most)
        programs = pick(s, f"{stage.name}.occupancy", OCCUPANCY, usual, gpu.warps_sm // warps)
    stage.launch(num_warps=warps, maxnreg=registers(gpu, warps, programs))


def _lanes(
    s: Schedule, nest: _Rows, ends: Sequence[str], piece: Piece, place: Axis
) -> frozenset[str]:
    """Give each lane running statistics of its own in the cascades that end in `ends`, by the knob
    `lanes`; returns the reductions that combine lanes then, which are placed."""
    stage = nest.stage
    fine = bool(ends) and nest.crossed is None
    fine = fine and all(_read_by_itself(s, name) for name in ends)
    fine = fine and all(may_have_lanes(s, name, piece.block, piece.skew) for name in ends)
    if not fine or not flip(s, f"{stage.name}.lanes", True):
        return frozenset()
    merged: set[str] = set()
    for name in ends:
        lanes = split_in_lanes(s, name, piece)
        fold_lanes(s, lanes, stage, place)
        merged.update(lanes.chain)
    return frozenset(merged)


def _read_by_itself(s: Schedule, end: str) -> bool:
    """True when no reduction but those of a cascade reads what they give, before the results do."""
    chain = {*folds_before(s, end), end}
    view = definitions(s)
    users = {user for name in chain for user, _ in view.readers[name]}
    return all(user in chain or not is_reduction(view[user]) for user in users)


def _piece(s: Schedule, nest: _Rows, rows: int, most: int, skew: Skewed | None) -> int:
    """Elements of a row that are reduced at once."""
    many = rows >= CROSSED_ROWS[0]
    default = max(16, PIECE // rows) if many else PIECE
    if nest.shape.long:
        default = 8192 if nest.columns else 4096
    elif skew is not None:
        default = 4096
    elif _loose_again(s, nest):
        default = 512
    sizes = (16, 32, 64, 128, 256) if many else (512, 1024, 2048, 4096, 8192)
    return pick(s, f"{nest.stage.name}.block", sizes, default, min(most, MAX_TILE // rows))


def _loose_again(s: Schedule, nest: _Rows) -> bool:
    """True for unaligned rows that are read again: in small pieces, some of them in flight.  Rows
    of several runs in memory (a channel of all images) are not: what each thread copies by itself
    takes longer than its loads (886 us on an H200, 359 in larger pieces, none in flight)."""
    known = nest.shape.length is not None and nest.crossed is None
    if not known or nest.shape.aligned or not nest.columns:
        return False
    found = reads(*definitions(s)[nest.stage.name].bodies)
    walked = [read for read in found if nest.columns[-1] in axes_of(*read.indices)]
    return len(neighbours(nest.columns, walked)) == 1


def _longest(groups: Sequence[Sequence[Axis]]) -> int | None:
    """The most points of one of the groups of axes; None when one is symbolic."""
    sizes = [volume(axes) for axes in groups]
    return None if None in sizes else max((size or 1 for size in sizes), default=1)
