"""Cooperative rows over a grid barrier: several programs share a row, each holds its part in
registers, stores its partial statistics, waits for the others, and finishes its part.

    for i: m[i] = max(k)(x[i, k]);  z[i] = sum(k)(exp(x[i, k] - m[i]));  y[i, k] = f(x[i, k], m, z)
    --> programs g, p: for rows i of g:
            part = x[i, p * L ..];  m' = max(part);  z' = sum(exp(part - m'))
            store m', z' and wait for all p
            m, z = combined;  y[i, p * L ..] = f(part, m, z)

A row is read once and written once, however long it is.  All programs must run at the same time, so
the grid is as many as the SMs take at once, and each loops over rows.  What they hold of the next
row is prefetched while they wait, and the parts of a row lie together.

On an H200 that gains 6% for rows of 65536 numbers of two bytes each, 8% for 131072, 10% for 262144
and 6% for 524288 in larger parts, and loses 10% for 1048576, which 64 programs share; parts that do
not fill their lanes lose 4 to 15% (128256, 100352), so that rows are shared by default where 8 to
32 programs have whole parts (`rows_variants.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.devices import GpuDevice
from tedsl.expr.nodes import Axis, Expr
from tedsl.schedules.analysis.chains import chain_ends, folds_before, inline_between
from tedsl.schedules.analysis.groups import Group, shared_inputs
from tedsl.schedules.analysis.nests import (
    any_order,
    direct_reads,
    is_reduction,
    pow2_at_least,
    reduce_axes,
)
from tedsl.schedules.analysis.views import definitions, extent_of, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.launch import registers
from tedsl.schedules.gpu.rows.merged_again import merged_again, store_merged
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.loops import fold_at_once, fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

SHARE = (2, 4, 8, 16, 32, 64, 128, 256)
RESIDENT = (1, 2, 3, 4, 6, 8)
# Elements of a row that are worth sharing, and of a part that are worth a program and fit into one.
LONG = 32768
FEWEST, MOST = 2048, 32768
# Elements that all programs of an SM hold: 32 a thread, and as many of the next row.
HELD = 32768
# Elements of parts that rows have by default, the first that fits, among how many programs, and the
# most bytes of an element for which that is timed.
USUAL = (8192, 16384)
LEAST, MANY = 8, 32
NARROW = 2
# Parts begin at multiples of so many elements: accesses of 16 bytes stay aligned.
STEP = 64
# Rows of a tile of what has an element for each.
RESULTS = 32
# The share of the groups of programs from which on fewer are taken so that rows divide evenly.
EVEN = 0.9


@dataclass(frozen=True, slots=True)
class _Row:
    """How rows are shared: the reduction whose parts carry all others along, programs of a row,
    elements of a part, and programs of an SM."""

    fold: str
    programs: int
    part: int
    resident: int


def share_rows(s: Schedule, group: Group, columns: Sequence[Axis], nbytes: int) -> bool:
    """Let several programs share each row (the knob `share`); False, and nothing done, where that
    is not chosen, or not for these rows.

    The kernel has one reduction, or one cascade of all its reductions, and elements in rows, all as
    long, of at most `nbytes` bytes each.
    """
    root, fold = s[group.root], _fold(s, group, columns)
    length = volume(columns)
    if fold is None or length is None:
        return False
    fitting = [n for n in SHARE if FEWEST <= _part(length, n) <= MOST]
    fitting = [n for n in fitting if -(-length // _part(length, n)) == n]
    if not fitting:
        return False
    gpu = gpu_of(s)
    usual = _usual(gpu, group, length, nbytes)
    programs = pick(s, f"{root.name}.share", fitting, usual, max(fitting))
    if programs == 1:
        return False
    resident = [n for n in RESIDENT if n * gpu.sms >= programs]
    held = max(1, HELD // pow2_at_least(_part(length, programs)))
    held = min(resident, key=lambda n: (abs(n - held), n))
    each = pick(s, f"{root.name}.share_resident", resident, held, max(resident))
    _share(s, group, columns, _Row(fold, programs, _part(length, programs), each))
    return True


def _usual(gpu: GpuDevice, group: Group, length: int, nbytes: int) -> int:
    """How many programs share a row by default: those that have a whole part each, as many as are
    worth a barrier, where there are rows for all SMs."""
    rows = volume(group.rows or ())
    for part in USUAL:
        programs, rest = divmod(length, part)
        enough = rows is None or rows * programs >= gpu.sms * (HELD // part)
        if rest == 0 and LEAST <= programs <= MANY and programs in SHARE and enough:
            return programs if nbytes <= NARROW else 1
    return 1


def _part(length: int, programs: int) -> int:
    """Elements of a part, the last of which may be shorter."""
    return -(-length // (programs * STEP)) * STEP


def _fold(s: Schedule, group: Group, columns: Sequence[Axis]) -> str | None:
    """The reduction whose parts carry all others along; None where there is none."""
    view = definitions(s)
    folds = [name for name in group.inner if is_reduction(view[name])]
    length = volume(columns)
    if length is None or length < LONG or len(columns) != 1 or not group.rows or not folds:
        return None
    for name in folds:
        op = view[name]
        if len(op.bodies) > 1 or len(op.reduce_axes) != 1 or not any_order(op):
            return None
        if extent_of(op.reduce_axes[0]) != length or len(op.axes) > len(group.rows):
            return None
    if group.apart or group.regions or group.contracts:
        return None
    if len(folds) == 1:
        return folds[0]
    ends = chain_ends(s, group)
    if len(ends) != 1:
        return None
    trial = s.copy()
    inline_between(trial, group.inner)
    return ends[0] if {*folds_before(trial, ends[0]), ends[0]} == set(folds) else None


def _share(s: Schedule, group: Group, columns: Sequence[Axis], row: _Row) -> None:
    stage = s[group.root]
    inside = group.inner
    inline_between(s, inside)
    group.inner = [name for name in group.inner if reduce_axes(s[name])]
    held = [(source, number) for source, number, _ in shared_inputs(definitions(s), group, s)]
    partial = _partials(s, row)
    passed = [name for each in partial for name in _passed_on(s, each, group.inner)]
    again = merged_again(s, group.beside, inside)
    turn, program = _grid(stage, group, columns, row, gpu_of(s).sms)
    for name in reversed(group.inner):
        fold_at_once(s[name], stage, turn)
    for name in passed:
        s[name].compute_across(stage, turn, _beside(s[name]), program)
    for name in reversed(partial):
        fold_at_once(s[name], stage, turn)
    for source, number in held:
        everyone = (*partial, stage.name)
        users = [name for name in everyone if number in _read_of(s, name, source)]
        if len(users) > 1:
            tensor = s[source].op.outputs[number]
            staged = s[s.cache_read(tensor, "local", [s[user].op for user in users])]
            staged.compute_at(stage, turn)
            if (extent_of(turn) or 2) > 1 and flip(s, f"{stage.name}.share_ahead", True):
                staged.double_buffer()
    _launch(s, stage, row)
    if group.beside:
        store_merged(s, group.beside, again)


def _beside(copy: Stage) -> Axis:
    """Lay the parts of a row beside each other, since programs after the barrier read all of them;
    returns their axis."""
    if len(copy.op.axis) == 1:
        return copy.op.axis[0]

    def rows_first(part: Expr, *rows: Expr) -> tuple[Expr, ...]:
        return (*rows, part)

    return copy.transform_layout(rows_first)[-1]


def _partials(s: Schedule, row: _Row) -> list[str]:
    """Make the reductions of parts stages of their own; returns them, producers first."""
    stage, before = s[row.fold], {each.name for each in s.plan.stages}
    (axis,) = reduce_axes(stage)
    part, _ = stage.split(axis, factor=row.part)
    if folds_before(s, row.fold):
        s.split_online(stage.op.outputs[0], part, casts=True)
    else:
        s.rfactor(stage.op.outputs[0], part)
    return [each.name for each in s.plan.stages if each.name not in before]


def _passed_on(s: Schedule, name: str, merging: Sequence[str]) -> list[str]:
    """Give what combines the parts copies of them that all programs see, in global memory."""
    copies: list[str] = []
    for place in range(len(s[name].op.outputs)):
        users = [s[each].op for each in merging if place in _read_of(s, each, name)]
        if users:
            copies.append(s[s.cache_read(s[name].op.outputs[place], "local", users)].name)
    return copies


def _read_of(s: Schedule, name: str, source: str) -> set[int]:
    """The outputs of a stage, by number, that the body of another itself reads."""
    read = s[source].op
    return {each.tensor.index for each in direct_reads(s[name]) if each.tensor.op is read}


def _grid(
    stage: Stage, group: Group, columns: Sequence[Axis], row: _Row, sms: int
) -> tuple[Axis, Axis]:
    """Groups of programs over the rows, iteration after iteration; returns the loop over rows and
    that of the programs of a row, which start one after the other."""
    rows, count = fused(stage, list(group.rows or ())), volume(group.rows or ())
    groups = max(1, row.resident * sms // row.programs)
    if count is not None:  # as many rows for each, where hardly fewer groups do
        groups = -(-count // -(-count // groups))
        even = [n for n in range(groups, 0, -1) if count % n == 0]
        groups = even[0] if even[0] >= EVEN * groups else groups
    turn, own = stage.split(rows, factor=groups)
    program, lanes = stage.split(columns[0], factor=row.part)
    stage.reorder(own, program, turn, lanes)
    stage.bind(own, "blockIdx.y")
    stage.bind(program, "blockIdx.x")
    stage.vectorize(lanes)
    return turn, program


def _launch(s: Schedule, stage: Stage, row: _Row) -> None:
    """Warps that hold a part, with registers for as many programs as an SM is to have."""
    tile, gpu = pow2_at_least(row.part), gpu_of(s)
    fitting = [n for n in (4, 8, 16, 32) if n * row.resident <= gpu.warps_sm and n * 32 <= tile]
    fitting = fitting or [4]
    default = max((n for n in fitting if n * 1024 <= tile), default=min(fitting))
    warps = pick(s, f"{stage.name}.share_warps", fitting, default, max(fitting))
    stage.launch(num_warps=warps, maxnreg=registers(gpu, warps, row.resident))
