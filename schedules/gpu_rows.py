"""The rule for chains of reductions over rows and what reads them, in one kernel.

A program takes some neighbouring rows: whole rows in one tile where they fit into registers, else
it loops over pieces of them.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from tedsl.schedules.choices import flip, pick
from tedsl.schedules.gpu_tiles import pick_warps
from tedsl.schedules.loops import fused
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage

# Elements that a program may hold at once: 64 a thread with 16 warps, or with 32 where it holds
# one row of one tensor, two elements to a register.
MAX_TILE = 32768
MAX_SINGLE = 65536
ROWS = (1, 2, 4, 8, 16)
# Rows that lie next to each other in memory fill a transaction of it together.
CROSSED_ROWS = (16, 32, 64)


def reduce_rows(s: Schedule, group: Group) -> None:
    """Rows of reductions and what reads them: whole rows in a tile, or a loop over pieces of
    them."""
    view = definitions(s)
    stage, root = s[group.root], view[group.root]
    rows = list(group.rows or ())
    columns = [a for a in root.axes if not among(a, rows)]
    length = _row_length(view, group, columns)
    crossed = crossed_row(view, group)
    inner_row = crossed if crossed is not None else _innermost(rows)
    fewest = 1 if crossed is None else CROSSED_ROWS[0]
    free = all(any_order(view[name]) for name in group.inner)
    most = MAX_SINGLE if _single(view, group, columns) else MAX_TILE
    whole = free and length is not None and length * fewest <= most
    whole = whole and flip(s, f"{stage.name}.whole_row", True)
    each = _rows_per_program(s, stage, inner_row, length if whole else None, crossed, free)
    outer, inner = stage.split(inner_row, factor=each)
    others = [a for a in rows if a is not inner_row]
    stage.reorder(*others, outer, inner, *columns)
    grid = fused(stage, (*others, outer))
    stage.bind(grid, "blockIdx.x")
    stage.vectorize(inner)
    if whole and length is not None:
        _whole_rows(s, group, stage, grid, columns)
        elements, warps = length * each, _warps(length * each)
    else:
        elements = _looped_rows(s, group, stage, grid, columns, each)
        warps = 8
    chosen = pick_warps(s, stage, (1, 2, 4, 8, 16, 32), warps, elements)
    stage.launch(num_warps=chosen)


def _single(view: View, group: Group, columns: Sequence[Axis]) -> bool:
    """True when rows of one tensor only are read from memory, in 16 bits or less."""
    inside = {view[name] for name in (group.root, *group.inner)}
    tensors = {
        read.tensor
        for name in (group.root, *group.inner)
        for read in reads(*view[name].bodies)
        if read.tensor.op not in inside
        and any(among(a, (*columns, *view[name].reduce_axes)) for a in axes_of(*read.indices))
    }
    return len(tensors) == 1 and all(tensor.dtype.nbytes <= 2 for tensor in tensors)


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


def _rows_per_program(
    s: Schedule, stage: Stage, row: Axis, length: int | None, crossed: Axis | None, free: bool
) -> int:
    """Enough short rows to fill a tile; where rows are neighbours in memory, a transaction."""
    extent = extent_of(row)
    most = 1 << 16 if extent is None else pow2_at_least(extent)
    if length is not None:
        most = min(most, max(1, MAX_TILE // length))
    choices, default = ROWS, 1 if length is None else max(1, min(16, 1024 // length))
    if crossed is not None or not free:
        choices, default = CROSSED_ROWS, 32
    return pick(s, f"{stage.name}.rows", choices, pow2_at_least(default), most)


def _warps(elements: int) -> int:
    """Warps that hold a tile at 16 to 64 elements a thread."""
    for limit, warps in ((512, 1), (1024, 2), (4096, 4), (16384, 8), (32768, 16)):
        if elements <= limit:
            return warps
    return 32


def _whole_rows(
    s: Schedule, group: Group, stage: Stage, grid: Axis, columns: Sequence[Axis]
) -> None:
    """All lanes of a row at once; what several stages read is loaded into registers first."""
    for axis in columns:
        stage.vectorize(axis)
    for name in reversed(group.inner):
        inner = s[name]
        for axis in reduce_axes(inner):
            inner.vectorize(axis)
        inner.compute_at(stage, grid)
    for source, users in shared_inputs(definitions(s), group, s):
        tensor = s[source].op.outputs[0]
        staged = s.cache_read(tensor, "local", [s[user].op for user in users])
        s[staged].compute_at(stage, grid)


def _looped_rows(
    s: Schedule, group: Group, stage: Stage, grid: Axis, columns: Sequence[Axis], rows: int
) -> int:
    """Each reduction loops over pieces of the row, and so does the result; returns the elements of
    a tile."""
    view = definitions(s)
    folds = [view[n].reduce_axes for n in reversed(group.inner) if is_reduction(view[n])]
    longest = _longest([tuple(columns), *folds])
    most = None if longest is None else pow2_at_least(longest)
    default = max(16, 2048 // rows) if rows >= CROSSED_ROWS[0] else 2048
    sizes = (512, 1024, 2048, 4096, 8192) if rows < CROSSED_ROWS[0] else (16, 32, 64, 128, 256)
    block = pick(s, f"{stage.name}.block", sizes, default, most)
    if columns:
        flat = fused(stage, columns)
        _, piece = stage.split(flat, factor=block)
        stage.vectorize(piece)
    for name in reversed(group.inner):
        inner = s[name]
        axes = reduce_axes(inner)
        if not axes:
            inner.compute_inline()
            continue
        flat = fused(inner, axes)
        if any_order(view[name]):
            _, piece = inner.split(flat, factor=block)
            inner.vectorize(piece)
        inner.compute_at(stage, grid)
    return rows * block


def _longest(groups: Sequence[Sequence[Axis]]) -> int | None:
    """The most points of one of the groups of axes; None when one is symbolic."""
    sizes = [volume(axes) for axes in groups]
    return None if None in sizes else max((size or 1 for size in sizes), default=1)
