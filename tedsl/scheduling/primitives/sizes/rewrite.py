"""What is known of runtime sizes, and versions of a kernel for some of them: assume, specialize."""

from __future__ import annotations

from dataclasses import replace

from tedsl.scheduling.plan import Plan
from tedsl.scheduling.primitives.arguments import looped_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.loops.legality import require_leader, require_own_kernel
from tedsl.scheduling.primitives.placement.rewrite import in_kernel
from tedsl.scheduling.primitives.sizes.legality import (
    require_consistent,
    require_deciding,
    size_condition,
)


def assume(plan: Plan, call: Call, condition: object) -> Plan:
    """One more condition that every call satisfies."""
    given = size_condition(plan, call, condition)
    if given is True:
        return plan
    if given is False:
        raise call.refuse(
            plan,
            "the condition is False for the sizes of this computation",
            hint="leave it away, or define the computation for other sizes",
        )
    require_consistent(plan, call, given)
    return replace(plan, assumptions=(*plan.assumptions, given))


def specialize(plan: Plan, call: Call, condition: object) -> Plan:
    """One more version of the kernel of a stage, for calls that no earlier version takes."""
    stage = looped_stage(plan, call, call.stage)
    given = size_condition(plan, call, condition)
    require_own_kernel(plan, call, stage, "it has no kernel of its own to be chosen at a call")
    require_leader(plan, call, stage)
    if isinstance(given, bool):
        return plan
    require_deciding(plan, call, stage, given)
    versions = (*stage.placement.kernel.versions, given)
    return plan.with_stage(in_kernel(stage, replace(stage.placement.kernel, versions=versions)))
