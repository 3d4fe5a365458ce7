"""Row and column reductions of one matrix in one kernel (the backward pass of layer norm and RMS
norm: dx by rows, the gradients of the weights by columns): persistent programs, partial column
sums.

    for i: dx[i, :] = f(sum(j)(g(i, j)), i, :)          for j: dw[j] = sum(i)(h(i, j))
    --> for each program: for some rows i: (dx[i, :] = ...; part[program, :] += h(i, :))
        for j: dw[j] = sum(program)(part[program, j])

A program keeps its partial sum of every column in registers while it goes through its rows; a
second kernel adds up the partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.groups import Group, crossed_row
from tedsl.schedules.analysis.kernel_order import kernels_of, stages_of
from tedsl.schedules.analysis.nests import (
    any_order,
    direct_reads,
    first,
    is_reduction,
    long_axes,
    needs_one_of,
    plain,
    pow2_at_least,
    reduce_axes,
    same_axes,
)
from tedsl.schedules.analysis.views import (
    View,
    definitions,
    extent_of,
    in_memory,
    reads_of,
    size_of,
    volume,
)
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.launch import pick_warps
from tedsl.schedules.gpu.rows.row_consumers import run_beside
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fold_at_once, fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import Operation, Tensor

# Elements of rows and of partial column sums that a program may hold at once, which threads have
# registers for: of 65536, a thread had 528 bytes in memory, and a kernel of 29368 columns took
# 200 us on an H200, where three take 89.
MAX_HELD = 49152
ROWS = (1, 2, 4, 8, 16)
# Persistent programs per SM.
RESIDENT = (1, 2, 4, 8)
# Elements of a tile from which one program fills an SM.
ALONE = 4096
# Tiles of rows for each program from which its partial sums are small beside what it reads, and
# rows for each SM from which there are enough such programs.
TURNS = 8
FEWEST = 2


@dataclass(frozen=True, slots=True)
class Both:
    """A kernel of row reductions, and kernels that reduce the columns of what it reads."""

    rows: Group
    columns: tuple[Group, ...]


def share_reads(s: Schedule, groups: Sequence[Group]) -> list[Both]:
    """The kernels of row reductions into which column reductions are fused, by the knob
    `columns_along`."""
    view = definitions(s)
    found: list[Both] = []
    for group in groups:
        if not of_matrix(view, group):
            continue
        columns = list[Group]()
        for each in groups:
            if goes_along(view, group, each) and _in_order(s, groups, group, [*columns, each]):
                columns.append(each)
        held = _held(view, group, len(columns))
        many = (volume(view[group.root].axes[:-1]) or 0) >= FEWEST * gpu_of(s).sms
        if columns and held <= MAX_HELD and flip(s, f"{group.root}.columns_along", many):
            found.append(Both(group, tuple(columns)))
    return found


def of_matrix(view: View, group: Group) -> bool:
    """True for a kernel over a matrix, each of whose rows is reduced and written again; several
    axes may number the rows."""
    root = view[group.root]
    if group.contracts or is_reduction(root) or len(root.axes) < 2 or group.in_parts:
        return False
    folds = [view[name] for name in group.inner if is_reduction(view[name])]
    *rows, column = root.axes
    one = folds and group.rows and same_axes(long_axes(group.rows), long_axes(rows))
    one = one and crossed_row(view, group) is None
    sizes = volume(rows), extent_of(column)
    some = all(size is not None and size > 0 for size in sizes)
    whole = some and all(volume(op.reduce_axes) == sizes[1] for op in folds)
    return bool(one) and whole and all(any_order(view[name]) for name in group.inner)


def goes_along(view: View, group: Group, other: Group) -> bool:
    """True for a kernel of one column reduction, of a matrix that the kernel of rows reads, which
    does not depend on it."""
    root, rows = view[other.root], view[group.root]
    name = other.inner[0] if len(other.inner) == 1 else other.root
    op = view[name]
    if other.contracts or not is_reduction(op) or (other.inner and is_reduction(root)):
        return False
    own = (*op.reduce_axes, *op.axes)
    if list(map(extent_of, own)) != list(map(extent_of, rows.axes)):
        return False
    if len(op.axes) != 1 or not any_order(op):
        return False
    mine = {r.tensor for r in reads_of(op) if same_axes(plain(r), own)}
    inside = (group.root, *group.inner)
    if all(r.tensor not in mine for n in inside for r in reads_of(view[n])):
        return False
    return not (needs_one_of(view, name, inside) or needs_one_of(view, group.root, [name]))


def _in_order(s: Schedule, groups: Sequence[Group], rows: Group, columns: Sequence[Group]) -> bool:
    """True when the partial sums of columns may be in the kernel of the rows, and what adds them up
    in one launch: in programs of their own, none of which needs another."""
    kernels = kernels_of(groups)
    folds = [each.inner[0] if len(each.inner) == 1 else each.root for each in columns]
    ends = [each.root for each in columns]
    alone = all(
        kernels.needed(s, [name]).isdisjoint(other for other in ends if other != name)
        for name in ends
    )
    return alone and kernels.may_be_one(s, [*stages_of(rows), *folds])


def _held(view: View, group: Group, columns: int) -> int:
    return pow2_at_least(extent_of(view[group.root].axes[-1]) or 1) * (1 + columns)


def reduce_both(s: Schedule, both: Both) -> None:
    """One kernel for the rows and the partial column sums; what is left of `both.columns` adds up
    the partial sums."""
    group, gpu = both.rows, gpu_of(s)
    stage = s[group.root]
    *rows, column = definitions(s)[group.root].axes
    length, extent = pow2_at_least(extent_of(column) or 1), extent_of(rows[-1]) or 1
    held = length * (1 + len(both.columns))
    most = max(1, min(MAX_HELD // held, pow2_at_least(extent)))
    each = pick(s, f"{stage.name}.rows", ROWS, max(1, min(8, 2048 // length)), most)
    turns = (volume(rows[:-1]) or 1) * -(-extent // each)
    fitting = [n for n in RESIDENT if n * gpu.sms * TURNS <= turns]
    default = 1 if length * each >= ALONE else 4
    resident = pick(s, f"{stage.name}.resident", fitting, default, max(fitting, default=1))
    programs = min(resident * gpu.sms, -(-turns // 2))
    parts = [_part(s, other, each, programs) for other in both.columns]
    program, turn = _programs(stage, rows, each, programs, column)
    for other in both.columns[1:]:
        other.follows = True
    run_beside(s, group, stage, each, turn, None)
    for name in reversed(group.inner):
        fold_at_once(s[name], stage, turn)
    for name, own in parts:
        s[name].compute_with(stage, turn)
        for axis in own:
            s[name].vectorize(axis)
    names = [*stages_of(group), *(name for name, _ in parts)]
    loaded = each * length * _load_once(s, names, turn, program)
    most = min(-(-turns // programs), 1 + gpu.shared_block // max(1, resident * loaded))
    ahead = pick(s, f"{stage.name}.ahead", (1, 2, 3, 4), 3, most)
    if ahead > 1:
        stage.pipeline(turn, num_stages=ahead)
    tile = pow2_at_least(held * each)
    stage.launch(num_warps=pick_warps(s, stage, (4, 8, 16, 32), _warps(tile), tile))


def finish_together(s: Schedule, both: Both) -> None:
    """Fuse the kernels that add up the partial column sums, each of which is scheduled, into one
    launch."""
    leader, *others = both.columns
    for other in others:
        s[other.root].compute_with(s[leader.root])


def _warps(held: int) -> int:
    """Warps whose threads hold up to 64 elements."""
    return max(4, min(32, pow2_at_least(held // (32 * 64))))


def _programs(
    stage: Stage, rows: Sequence[Axis], each: int, programs: int, column: Axis
) -> tuple[Axis, Axis]:
    """Persistent programs that take every n-th tile of `each` rows: the loop over programs, and the
    loop over the tiles of one."""
    tiles, inner = stage.split(rows[-1], factor=each)
    turn, program = stage.split(fused(stage, (*rows[:-1], tiles)), factor=programs)
    stage.reorder(program, turn, inner, column)
    stage.bind(program, "blockIdx.x")
    stage.vectorize(inner)
    stage.vectorize(column)
    return program, turn


def _part(s: Schedule, group: Group, each: int, programs: int) -> tuple[str, tuple[Axis, ...]]:
    """Make the partial sums of a column reduction a stage (`rfactor`) with the loops of the kernel
    of rows; returns it and the axes of its tile."""
    stage = s[group.inner[0] if group.inner else group.root]
    *others, row = reduce_axes(stage)
    tiles, _ = stage.split(row, factor=each)
    _, program = stage.split(fused(stage, (*others, tiles)), factor=programs)
    made = s[first(s.rfactor(stage.op.outputs[0], program))]
    own, lane = made.op.axis
    turn, *inner = reduce_axes(made)
    made.reorder(own, turn, *inner, lane)
    group.in_parts = True
    return made.name, (*inner, lane)


def _load_once(s: Schedule, names: Sequence[str], turn: Axis, program: Axis) -> int:
    """Load once for each tile what several of the stages read of a matrix, and once for each
    program what does not change with the row.  Returns the bytes of matrices that a tile loads, for
    each element of a row."""
    stage = s[names[0]]
    columns, rank = extent_of(stage.op.axis[-1]), len(stage.op.axis)
    view = definitions(s)
    read = {read.tensor for name in names for read in reads_of(view[name])}
    matrices = [tensor for tensor in read if len(tensor.shape) == rank and in_memory(s, tensor)]
    readers: dict[Tensor, list[Operation]] = {}
    for name in names:
        for tensor in dict.fromkeys(read.tensor for read in direct_reads(s[name])):
            if in_memory(s, tensor):
                readers.setdefault(tensor, []).append(s[name].op)
    for tensor, ops in readers.items():
        shape = [size_of(extent) for extent in tensor.shape]
        if len(shape) == rank and len(ops) > 1:
            place = turn
        elif shape == [columns] and flip(s, f"{stage.name}.keep", True):
            place = program
        else:
            continue
        s[s.cache_read(tensor, "local", ops)].compute_at(stage, place)
    return sum(tensor.dtype.nbytes for tensor in matrices)
