"""What holds of a plan after each pass over it, checked under test.

A broken rule is a bug in tedsl: `verify_plan` raises `InternalError` with the stage; `dump=`
of the lowering shows the nests before.  Imports the plan and the table of invariants.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from tedsl.errors import InternalError
from tedsl.expr.nodes import Axis
from tedsl.scheduling.invariants.table import first_broken
from tedsl.scheduling.kernels.tree import hosts
from tedsl.scheduling.plan import (
    Fuse,
    Online,
    Plan,
    Scatter,
    SharedLoops,
    Skew,
    Split,
    StagePlan,
    Unit,
)
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.links import tensors_read
from tedsl.scheduling.plan.thread_loops import per_thread
from tedsl.tensor.tensor import Operation


class PlanLevel(Enum):
    """What a plan is: what a schedule may say; that as loop nests, without inlined stages and each
    axis in one stage; these with what the target implies, which a schedule may not always say."""

    SAID = auto()
    NESTS = auto()
    COMPLETE = auto()


def verify_plan(plan: Plan, level: PlanLevel, after: str) -> None:
    """Check what holds of a plan at a level, which the pass `after` left.

    Raises:
        InternalError: something does not.
    """
    wrong = next(_malformed(plan), None)
    if wrong is None and level is not PlanLevel.SAID:
        wrong = next(_no_nests(plan), None)
    if wrong is None and level is not PlanLevel.COMPLETE:
        wrong = next(_at_threads(plan), None)
    if wrong is None and level is not PlanLevel.COMPLETE:
        found = first_broken(plan)
        wrong = None if found is None else f"{found[0].name}: {found[1]}"
    if wrong is not None:
        raise InternalError(f"the plan after {after}: {wrong}")


def _malformed(plan: Plan) -> Iterator[str]:
    """What is no plan at all."""
    before = set[Operation]()
    for stage in plan.stages:
        for tensor in tensors_read(stage.op):
            if tensor.op not in before:
                yield f"{stage.name} reads {tensor.name}, which comes after it"
        before.add(stage.op)
        loops = _made_of_roots(stage)
        if loops != set(stage.leaf_axes) or len(loops) != len(stage.leaf_axes):
            yield f"the loops of {stage.name} are not what its relations make of its axes"
        if not loops.issuperset(stage.marks):
            yield f"{stage.name} has a mark of no loop of it"
        yield from _misplaced(plan, stage)
    for tensor in plan.outputs:
        if tensor.op not in before:
            yield f"no stage computes the output {tensor.name}"


def _made_of_roots(stage: StagePlan) -> set[Axis]:
    """The loops that relations make of the axes of the definition."""
    found = set(stage.root_axes)
    for relation in stage.relations:
        match relation:
            case Split(parent=parent, outer=outer, inner=inner):
                found = (found - {parent}) | {outer, inner}
            case Fuse(outer=outer, inner=inner, fused=fused):
                found = (found - {outer, inner}) | {fused}
            case Unit(axis=axis):
                found |= {axis}
            case Scatter(axis=axis):
                found -= {axis}
            case Skew(parent=parent, skewed=skewed):
                found = (found - {parent}) | {skewed}
    return found


def _misplaced(plan: Plan, stage: StagePlan) -> Iterator[str]:
    """What the placement of a stage names that is not there."""
    place = stage.placement
    loops = [(place.host, axis) for axis in (place.axis, place.program) if axis is not None]
    if isinstance(place, SharedLoops):
        loops.append((place.leader, place.down_to))
    names = (*(host for host, _ in loops), place.leader, place.of, place.head, place.home)
    for name in filter(None, names):
        if not plan.has(name):
            yield f"{stage.name} names the stage {name}, and there is none"
            return
    for host, axis in loops:
        if axis not in set(plan.stage(host).leaf_axes):
            yield f"{stage.name} is placed at {axis.name}, which is no loop of {host}"


def _at_threads(plan: Plan) -> Iterator[str]:
    """What is computed or stored at what threads have of their own."""
    for stage in plan.stages:
        place = stage.placement
        kept = None if place.kept is None else place.kept.axis
        for host, axis in () if isinstance(place, Online) else hosts(plan, stage):
            lanes = per_thread(host)
            own = axis if host.name == place.host else None
            for at in (own, kept):
                if at is not None and at in lanes:
                    yield f"{stage.name} is at {at.name}, a loop of each thread of {host.name}"


def _no_nests(plan: Plan) -> Iterator[str]:
    """What the loop nests of a plan may not have."""
    owner: dict[Axis, str] = {}
    for stage in plan.stages:
        if stage.placement.inlined:
            yield f"{stage.name} is inlined"
        for axis in labels(stage):
            if owner.setdefault(axis, stage.name) != stage.name:
                yield f"{axis.name} is an axis of {owner[axis]} and of {stage.name}"
