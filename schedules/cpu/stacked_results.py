"""Results stacked along a short axis (`schedules/fusion/stacked.py`): a strip of what they share is
computed once, stays in the L1 cache, and all of them are stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import cost
from tedsl.schedules.analysis.views import View, extent_of, volume
from tedsl.schedules.cpu.tasks import SMALL
from tedsl.schedules.fusion.stacked import schedule_stacks
from tedsl.schedules.fusion.vertical import CHEAP
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import ComputeOp

# Results of a stack: the loop over them is written out.
MOST = 32
# Elements of a strip, and of all strips of a stack together.
STRIP, HELD = 256, 4096


def stack_results(s: Schedule, taken: Collection[str]) -> list[str]:
    """Schedule the stages that are stacked so, with what they share, where that is a chain or takes
    some arithmetic; returns the stages that are scheduled."""

    def dear(view: View, shared: Sequence[str]) -> bool:
        chain = len(shared) > 1
        return chain or any(cost(view[each]) * len(view.readers[each]) > CHEAP for each in shared)

    return schedule_stacks(s, taken, MOST, dear, partial(_schedule, s))


def _schedule(s: Schedule, name: str, op: ComputeOp, axis: Axis, members: Sequence[str]) -> None:
    """A strip of the last axis, and in it each place along `axis`."""
    stage, others = s[name], [a for a in op.axes if a is not axis]
    usual = min(STRIP, max(16, HELD // len(members)))
    width = pick(s, f"{name}.width", (64, 128, 256, 512), usual, extent_of(others[-1]))
    strip, lane = stage.split(others[-1], factor=width)
    around = (*others[:-1], strip)
    stage.reorder(*around, axis, lane)
    stage.unroll(axis)
    stage.vectorize(lane)
    task = fused(stage, around)
    for each in members:
        inner = s[each]
        inner.compute_at(stage, task)
        inner.vectorize(inner.op.axis[-1])
    total = volume(op.axes)
    if total is None or total > SMALL:
        stage.parallel(task)
