"""How large definitions may grow by substitution.

Asked of the plan as it would be after a call, whatever the call was.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.inline import LARGEST_DEPTH, LARGEST_TERMS, Size, too_large
from tedsl.scheduling.primitives.call import Call


def growth_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Size] | None:
    """The first definition that is larger than can be built once inlined stages are substituted:
    what is read twice is written twice."""
    return too_large(plan, before)


def refuse_growth(
    before: Plan, call: Call, after: Plan, stage: StagePlan, size: Size
) -> ScheduleError:
    """The error for a call after which a definition would be larger than can be built."""
    return call.refuse(
        before,
        f"the definition of {stage.name} would have {size.terms:,} terms, nested {size.depth:,} "
        "deep, with the stages that are inlined written out: each is computed again wherever it is "
        "read",
        facts=[("allowed", f"{LARGEST_TERMS:,} terms, nested {LARGEST_DEPTH:,} deep")],
        hint="store one of the stages between: leave it at root, or call compute_at",
    )
