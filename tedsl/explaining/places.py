"""How each stage of a schedule got into the kernel that computes it.  Imports `scheduling`."""

from __future__ import annotations

from collections.abc import Mapping

from tedsl.explaining.data import StagePlace, Way
from tedsl.expr.tensor import ExternOp, PlaceholderOp
from tedsl.scheduling.graph import readers
from tedsl.scheduling.kernels.tree import kernels_with
from tedsl.scheduling.names import axis_text
from tedsl.scheduling.plan import Online, Plan, StagePlan
from tedsl.scheduling.recompute import ScheduleReport
from tedsl.scheduling.schedule import Schedule

SPLITTING = ("rfactor", "split_online")
CACHING = ("cache_read", "cache_write")


def stage_places(schedule: Schedule, report: ScheduleReport) -> dict[str, list[StagePlace]]:
    """The stages by the root stage of their kernel, whose name the kernel has.

    A stage that is inlined is in every kernel that evaluates it.

    Args:
        schedule: the schedule.
        report: `schedule.explain()`: how often each stage is computed.
    """
    plan = schedule.plan
    made = _made_by(schedule)
    factors = {row.stage: row.factor for row in report.stages}
    found: dict[str, list[StagePlace]] = {}
    for stage in plan.stages:
        if isinstance(stage.op, PlaceholderOp) or stage.pieces is not None:
            continue
        place = _place(plan, stage, made.get(stage.name, ""), factors.get(stage.name, 1.0))
        for kernel in kernels_with(plan, stage):
            found.setdefault(kernel.name, []).append(place)
    return found


def _place(plan: Plan, stage: StagePlan, maker: str, factor: float) -> StagePlace:
    axis = stage.placement.axis
    at = "" if axis is None else axis_text(plan, axis)
    if isinstance(stage.op, ExternOp):
        return StagePlace(stage.name, Way.EXTERN)
    if stage.placement.inlined:
        into = ", ".join(reader.name for reader in readers(plan, stage.op))
        return StagePlace(stage.name, Way.INLINED, into, factor)
    if isinstance(stage.placement, Online):
        return StagePlace(stage.name, Way.ONLINE, at, factor)
    if stage.join is not None:
        return StagePlace(stage.name, Way.WITH, stage.join.stage, factor)
    if stage.last_of:
        return StagePlace(stage.name, Way.LAST, stage.last_of, factor)
    if stage.placement.program is not None:
        over = axis_text(plan, stage.placement.program)
        return StagePlace(stage.name, Way.ACROSS, over, factor)
    if maker in SPLITTING:
        return StagePlace(stage.name, Way.SPLIT, at, factor)
    if maker in CACHING and axis is not None:
        return StagePlace(stage.name, Way.CACHED, at, factor)
    if axis is not None:
        return StagePlace(stage.name, Way.ATTACHED, at, factor)
    return StagePlace(stage.name, Way.ROOT, "", factor)


def _made_by(schedule: Schedule) -> Mapping[str, str]:
    """The primitive that made each stage that the definition does not have."""
    return {
        name: step.primitive
        for step in reversed(schedule.trace.steps)
        if step.primitive in (*SPLITTING, *CACHING)
        for name in step.results
    }
