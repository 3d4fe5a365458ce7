"""Results that share what they are computed from, stacked along a short axis: a program computes
what they share once, keeps it in registers, and stores all of them (a recurrence of a few steps,
of which each state is a result).

    h1[i] = f(x[1, i], x[0, i]);  h2[i] = f(x[2, i], h1[i]);  y[n, i] = (x[0, i], h1[i], h2[i])[n]
    --> for tiles of i: h1[i], h2[i]; for n (unrolled): y[n, i] = ...

Stored, each of them is a kernel that reads the one before; computed again for each result, a chain
of them grows by a stage with every step.
"""

from __future__ import annotations

from collections.abc import Collection

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import is_reduction, padded, plain, pow2_at_least, same_axes
from tedsl.schedules.analysis.views import View, definitions, extent_of
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.horizontal import Sides, tile_of_two
from tedsl.schedules.fusion.recomputation import recomputes
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.gpu.select import PROGRAM, little_idle
from tedsl.schedules.knobs import flip, pick
from tedsl.schedules.scans import stored_for_scans
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp

# Elements of each value that a thread holds.
EACH = 8


def schedule_stacks(s: Schedule, taken: Collection[str]) -> list[str]:
    """Schedule the stages that are stacked so, with what they share: where that would be stored
    otherwise, and fits into registers (the knob `stacked`); returns the stages that are scheduled.
    """
    kept = {*taken, *(s[tensor].name for tensor in s.outputs), *stored_for_scans(s)}
    view, found = definitions(s), list[str]()
    most = gpu_of(s).registers_thread // (2 * EACH)
    for name, op in view.items():
        if name in taken or is_reduction(op) or len(op.bodies) > 1:
            continue
        for axis in op.axes[:-1]:
            if not 1 < (extent_of(axis) or 0) <= most:
                continue
            members = _shared(view, name, axis, kept)
            twice = (each for each in members if len(view.readers[each]) > 1)
            costly = len(members) <= most and any(not recomputes(s, view, m) for m in twice)
            if costly and flip(s, f"{name}.stacked", True):
                _schedule(s, name, op, axis, members)
                found += [name, *members]
                break
    return found


def _shared(view: View, root: str, axis: Axis, kept: Collection[str]) -> list[str]:
    """The pointwise stages that only `root` and each other read, at the places of the result but
    for `axis`, consumers first; none where more than these would have to be stored for it."""
    inside, found = {root}, list[str]()
    for name in reversed(list(view)):
        op, users = view[name], view.readers[name]
        if not users or not {user for user, _ in users} & inside:
            continue
        alone = name not in kept and not is_reduction(op) and len(op.bodies) == 1
        for user, read in users if alone else ():
            axes = [a for a in view[user].axes if a is not axis]
            alone = alone and user in inside and same_axes(plain(read), axes)
        if alone:
            inside.add(name)
            found.append(name)
        elif name not in kept and not is_reduction(op):
            return []
    return found


def _schedule(s: Schedule, name: str, op: ComputeOp, axis: Axis, members: list[str]) -> None:
    """A tile of the other axes for each program, and in it each place along `axis`."""
    stage, others = s[name], [a for a in op.axes if a is not axis]
    last = extent_of(others[-1])
    wide = PROGRAM if last is None else little_idle(last, min(PROGRAM, pow2_at_least(last)))
    columns = pick(s, f"{name}.columns", (64, 128, 256, 512, 1024), wide, padded(last))
    if len(others) > 1:
        rows = pick(s, f"{name}.rows", (1, 2, 4, 8, 16), max(1, PROGRAM // columns))
        around, lanes = tile_of_two(stage, others, Sides(len(others) - 2, rows, columns))
    else:
        rows = 1
        outer, inner = stage.split(others[0], factor=columns)
        around, lanes = (outer,), (inner,)
    stage.reorder(*around, axis, *lanes)
    grid = bind_all(stage, around)
    stage.unroll(axis)
    for lane in lanes:
        stage.vectorize(lane)
    for each in members:
        s[each].compute_at(stage, grid)
    stage.launch(num_warps=pick_warps(s, stage, (2, 4, 8), 4, rows * columns))
