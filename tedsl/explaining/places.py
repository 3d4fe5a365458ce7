"""How each stage of a schedule got into the kernel that computes it.  Imports `scheduling`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from tedsl.explaining.data import StagePlace, Way
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.kernels.tree import kernels_with
from tedsl.scheduling.plan import (
    At,
    Cooperative,
    Inlined,
    LastBlock,
    Online,
    Own,
    Partitioned,
    Plan,
    SameGrid,
    SharedLoops,
    StagePlan,
)
from tedsl.scheduling.plan.graph import readers
from tedsl.scheduling.plan.labels import axis_text
from tedsl.scheduling.regions.recompute_report import ScheduleReport
from tedsl.tensor.tensor import ExternOp, PlaceholderOp

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
        if isinstance(stage.op, PlaceholderOp) or stage.placement.head:
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
    place = stage.placement
    match place:
        case Inlined():
            into = ", ".join(reader.name for reader in readers(plan, stage.op))
            return StagePlace(stage.name, Way.INLINED, into, factor)
        case Online():
            return StagePlace(stage.name, Way.ONLINE, at, factor)
        case SharedLoops() | SameGrid():
            return StagePlace(stage.name, Way.WITH, place.leader, factor)
        case LastBlock():
            return StagePlace(stage.name, Way.LAST, place.of, factor)
        case Cooperative():
            return StagePlace(stage.name, Way.ACROSS, axis_text(plan, place.program), factor)
        case Own() | At() | Partitioned():
            if maker in SPLITTING:
                return StagePlace(stage.name, Way.SPLIT, at, factor)
            usual = Way.CACHED if maker in CACHING else Way.ATTACHED
            return StagePlace(stage.name, usual if at else Way.ROOT, at, factor)
        case _:
            assert_never(place)


def _made_by(schedule: Schedule) -> Mapping[str, str]:
    """The primitive that made each stage that the definition does not have."""
    return {
        name: step.primitive
        for step in reversed(schedule.trace.steps)
        if step.primitive in (*SPLITTING, *CACHING)
        for name in step.results
    }
