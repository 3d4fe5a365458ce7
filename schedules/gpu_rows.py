"""The rule for chains of reductions over rows and what reads them, in one kernel.

A program takes some neighbouring rows: whole rows in one tile where they fit into registers, else
it loops over pieces of them, in one pass for all reductions where one can follow the other.  Parts
of long rows can be programs of their own, which a second kernel merges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, reads
from tedsl.schedules.analysis import (
    Group,
    View,
    among,
    any_order,
    crossed_row,
    definitions,
    extent_of,
    is_reduction,
    pow2_at_least,
    reduce_axes,
    shared_inputs,
    volume,
)
from tedsl.schedules.chains import chain_ends, follow, inline_between
from tedsl.schedules.choices import flip, pick
from tedsl.schedules.gpu_parts import few_rows, split_chain, spread
from tedsl.schedules.gpu_tiles import pick_warps, staying
from tedsl.schedules.loops import fused
from tedsl.scheduling.plan import AttachKind
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage

# Elements that a program may hold at once: 64 a thread with 16 warps, or with 32 where it holds
# one row of one tensor, two elements to a register.
MAX_TILE = 32768
MAX_SINGLE = 65536
ROWS = (1, 2, 4, 8, 16)
# Rows that lie next to each other in memory fill a transaction of it together.
CROSSED_ROWS = (16, 32, 64)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A kernel of rows: its stage, the axes of the rows and of what lies in a row."""

    stage: Stage
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    crossed: Axis | None
    free: bool


def reduce_rows(s: Schedule, group: Group) -> None:
    """Rows of reductions and what reads them: whole rows in a tile, or a loop over pieces of
    them."""
    view = definitions(s)
    root = view[group.root]
    rows = tuple(group.rows or ())
    columns = tuple(a for a in root.axes if not among(a, rows))
    crossed = crossed_row(view, group)
    free = all(any_order(view[name]) for name in group.inner)
    nest = _Rows(s[group.root], rows, columns, crossed, free)
    length = _row_length(view, group, columns)
    fewest = 1 if crossed is None else CROSSED_ROWS[0]
    most = MAX_SINGLE if _single(view, group, columns) else MAX_TILE
    whole = free and length is not None and length * fewest <= most
    if whole and length is not None and flip(s, f"{group.root}.whole_row", True):
        _whole_rows(s, group, nest, length)
    else:
        _looped_rows(s, group, nest)


def _tile_of_rows(
    s: Schedule, nest: _Rows, length: int | None, elements: int | None, loaded: int
) -> tuple[int, Axis]:
    """Split the rows into tiles over the grid; returns the rows of a tile and the loop around it.

    `elements` of a row are in the tile, `loaded` bytes of each are read; None where it is a loop
    over pieces.
    """
    stage = nest.stage
    inner_row = nest.crossed if nest.crossed is not None else _innermost(nest.rows)
    each = _rows_per_program(s, stage, inner_row, length, nest)
    outer, inner = stage.split(inner_row, factor=each)
    others = [a for a in nest.rows if a is not inner_row]
    stage.reorder(*others, outer, inner, *nest.columns)
    extent, rest = extent_of(inner_row), volume(others)
    tiles = None if extent is None or rest is None else rest * -(-extent // each)
    held = 0 if elements is None else elements * each * loaded
    place = staying(s, stage, (*others, outer), tiles, held)
    stage.vectorize(inner)
    return each, place


def _read_along(view: View, group: Group, columns: Sequence[Axis]) -> list[int]:
    """Bytes of an element of each tensor in memory that is read along the rows."""
    inside = {view[name] for name in (group.root, *group.inner)}
    tensors = {
        read.tensor
        for name in (group.root, *group.inner)
        for read in reads(*view[name].bodies)
        if read.tensor.op not in inside
        and any(among(a, (*columns, *view[name].reduce_axes)) for a in axes_of(*read.indices))
    }
    return [tensor.dtype.nbytes for tensor in tensors]


def _single(view: View, group: Group, columns: Sequence[Axis]) -> bool:
    """True when rows of one tensor only are read from memory, in 16 bits or less."""
    sizes = _read_along(view, group, columns)
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
    total = 1
    for axis in axes:
        size = extent_of(axis)
        if size is None:
            return None
        total *= pow2_at_least(size)
    return total


def _innermost(rows: Sequence[Axis]) -> Axis:
    """The last row axis that has more than one row."""
    return next((a for a in reversed(rows) if extent_of(a) != 1), rows[-1])


def _rows_per_program(s: Schedule, stage: Stage, row: Axis, length: int | None, nest: _Rows) -> int:
    """Enough short rows to fill a tile; where rows are neighbours in memory, a transaction."""
    extent = extent_of(row)
    most = 1 << 16 if extent is None else pow2_at_least(extent)
    if length is not None:
        most = min(most, max(1, MAX_TILE // length))
    choices, default = ROWS, 1 if length is None else max(1, min(16, 1024 // length))
    if nest.crossed is not None or not nest.free:
        choices, default = CROSSED_ROWS, 32
    return pick(s, f"{stage.name}.rows", choices, pow2_at_least(default), most)


def _warps(elements: int) -> int:
    """Warps that hold a tile at 16 to 64 elements a thread."""
    for limit, warps in ((512, 1), (1024, 2), (4096, 4), (16384, 8), (32768, 16)):
        if elements <= limit:
            return warps
    return 32


def _whole_rows(s: Schedule, group: Group, nest: _Rows, length: int) -> None:
    """All lanes of a row at once; what several stages read is loaded into registers first."""
    stage = nest.stage
    loaded = sum(_read_along(definitions(s), group, nest.columns))
    each, place = _tile_of_rows(s, nest, length, length, loaded)
    for axis in nest.columns:
        stage.vectorize(axis)
    for name in reversed(group.inner):
        inner = s[name]
        for axis in reduce_axes(inner):
            inner.vectorize(axis)
        inner.compute_at(stage, place)
    for source, users in shared_inputs(definitions(s), group, s):
        tensor = s[source].op.outputs[0]
        staged = s.cache_read(tensor, "local", [s[user].op for user in users])
        s[staged].compute_at(stage, place)
    elements = length * each
    chosen = pick_warps(s, stage, (1, 2, 4, 8, 16, 32), _warps(elements), elements)
    stage.launch(num_warps=chosen)


def _looped_rows(s: Schedule, group: Group, nest: _Rows) -> None:
    """Each reduction loops over pieces of the row, or several in one loop, and so does the
    result."""
    stage = nest.stage
    ends = chain_ends(s, group) if nest.free else []
    # One pass repairs what it has at every turn, which pays where it lets parts of a row run apart.
    apart = nest.crossed is None and bool(nest.columns) and few_rows(volume(nest.rows))
    once = bool(ends) and flip(s, f"{stage.name}.online", apart)
    if once:
        inline_between(s, group.inner)
        group.inner = [name for name in group.inner if reduce_axes(s[name])]
        if nest.crossed is None and split_chain(s, group, ends):
            spread(s, group)
            return
    each, place = _tile_of_rows(s, nest, None, None, 0)
    view = definitions(s)
    folds = [view[n].reduce_axes for n in reversed(group.inner) if is_reduction(view[n])]
    longest = _longest([nest.columns, *folds])
    most = 1 << 16 if longest is None else pow2_at_least(longest)
    pieces = bool(nest.columns) or any(any_order(view[n]) for n in group.inner)
    block = _piece(s, stage, each, most) if pieces else 1
    turns = None if longest is None else -(-longest // block)
    ahead = pick(s, f"{stage.name}.stages", (1, 2, 3, 4, 5), 1, turns if pieces else 1)
    if nest.columns:
        outer, piece = stage.split(fused(stage, nest.columns), factor=block)
        stage.vectorize(piece)
        if ahead > 1:
            stage.pipeline(outer, num_stages=ahead)
    for name in reversed(group.inner):
        inner = s[name]
        axes = reduce_axes(inner)
        if inner.plan.attach.kind is not AttachKind.ROOT:
            continue
        if not axes:
            inner.compute_inline()
            continue
        inner.compute_at(stage, place)
        flat = fused(inner, axes)
        if not any_order(view[name]):
            continue
        outer, piece = inner.split(flat, factor=block)
        if once and name in ends:
            follow(inner, outer)
        inner.vectorize(piece)
        if ahead > 1:
            inner.pipeline(outer, num_stages=ahead)
    chosen = pick_warps(s, stage, (1, 2, 4, 8, 16, 32), 8, each * block)
    stage.launch(num_warps=chosen)


def _piece(s: Schedule, stage: Stage, rows: int, most: int) -> int:
    """Elements of a row that are folded at once."""
    many = rows >= CROSSED_ROWS[0]
    default = max(16, 2048 // rows) if many else 2048
    sizes = (16, 32, 64, 128, 256) if many else (512, 1024, 2048, 4096, 8192)
    return pick(s, f"{stage.name}.block", sizes, default, min(most, MAX_TILE // rows))


def _longest(groups: Sequence[Sequence[Axis]]) -> int | None:
    """The most points of one of the groups of axes; None when one is symbolic."""
    sizes = [volume(axes) for axes in groups]
    return None if None in sizes else max((size or 1 for size in sizes), default=1)
