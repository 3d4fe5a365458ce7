"""Which kernels compute a stage.  Imports the plan and the graph."""

from __future__ import annotations

from tedsl.scheduling import together
from tedsl.scheduling.bounds import kernel_of
from tedsl.scheduling.graph import readers
from tedsl.scheduling.plan import AttachKind, Plan, StagePlan


def leader_of(plan: Plan, stage: StagePlan) -> StagePlan:
    """The root stage whose name the kernel of `stage` has."""
    return together.leader_of(plan, kernel_of(plan, stage))


def kernels_with(plan: Plan, stage: StagePlan) -> tuple[str, ...]:
    """The kernels that compute a stage: those of its readers where it is inlined."""
    if stage.attach.kind is not AttachKind.INLINE:
        return (leader_of(plan, stage).name,)
    found = (name for r in readers(plan, stage.op) for name in kernels_with(plan, r))
    return tuple(dict.fromkeys(found))
