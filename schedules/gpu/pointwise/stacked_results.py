"""Results stacked along a short axis (`schedules/fusion/stacked.py`): a program computes what they
share once, keeps it in registers, and stores all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import padded, pow2_at_least
from tedsl.schedules.analysis.views import View, extent_of
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.recomputation import recomputes
from tedsl.schedules.fusion.stacked import schedule_stacks
from tedsl.schedules.gpu.launch import bind_all, pick_warps
from tedsl.schedules.gpu.select import PROGRAM, little_idle
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import Tiles, tile_loops
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp

# Elements of each value that a thread holds.
EACH = 8


def stack_results(s: Schedule, taken: Collection[str]) -> list[str]:
    """Schedule the stages that are stacked so, with what they share, where some of that would be
    stored otherwise, and fits into registers; returns the stages that are scheduled."""

    def stored(view: View, shared: Sequence[str]) -> bool:
        return any(not recomputes(s, view, each) for each in shared)

    most = gpu_of(s).registers_thread // (2 * EACH)
    return schedule_stacks(s, taken, most, stored, partial(_schedule, s))


def _schedule(s: Schedule, name: str, op: ComputeOp, axis: Axis, members: Sequence[str]) -> None:
    """A tile of the other axes for each program, and in it each place along `axis`."""
    stage, others = s[name], [a for a in op.axes if a is not axis]
    last = extent_of(others[-1])
    wide = PROGRAM if last is None else little_idle(last, min(PROGRAM, pow2_at_least(last)))
    columns = pick(s, f"{name}.columns", (64, 128, 256, 512, 1024), wide, padded(last))
    if len(others) > 1:
        rows = pick(s, f"{name}.rows", (1, 2, 4, 8, 16), max(1, PROGRAM // columns))
        count = len(others)
        tiles = Tiles((1,) * count, {count - 2: rows, count - 1: columns})
        around, lanes = tile_loops(stage, others, tiles)
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
