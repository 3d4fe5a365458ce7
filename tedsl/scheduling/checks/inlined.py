"""How large definitions may grow by substitution.

Asked of the plan as it would be after a call, whatever the call was.
"""

from __future__ import annotations

from tedsl.scheduling.call import Call
from tedsl.scheduling.inline import LARGEST_DEPTH, LARGEST_TERMS, too_large
from tedsl.scheduling.plan import Plan


def inlining_possible(plan: Plan) -> bool:
    """True when no definition grows larger by substitution than can be built."""
    return too_large(plan) is None


def require_possible_inlining(before: Plan, call: Call, after: Plan) -> None:
    """After the call no definition is larger than can be built once inlined stages are substituted:
    what is read twice is written twice."""
    found = too_large(after, before)
    if found is None:
        return
    stage, size = found
    raise call.refuse(
        before,
        f"the definition of {stage.name} would have {size.terms:,} terms, nested {size.depth:,} "
        "deep, with the stages that are inlined written out: each is computed again wherever it is "
        "read",
        facts=[("allowed", f"{LARGEST_TERMS:,} terms, nested {LARGEST_DEPTH:,} deep")],
        hint="store one of the stages between: leave it at root, or call compute_at",
    )
