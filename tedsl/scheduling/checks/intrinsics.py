"""Tensorized stages compute what their intrinsics declare.

Asked of the plan as it would be after a call, whatever the call was; imports `intrinsics`.
"""

from __future__ import annotations

from tedsl.scheduling.call import Call
from tedsl.scheduling.intrinsics import tensor_problem
from tedsl.scheduling.plan import Plan


def intrinsics_match(plan: Plan) -> bool:
    """True when every tensorized stage computes what its intrinsic declares."""
    return tensor_problem(plan) is None


def require_match(before: Plan, call: Call, after: Plan) -> None:
    """After the call every tensorized stage still computes what its intrinsic declares."""
    found = tensor_problem(after)
    if found is None:
        return
    name, intrin, difference = found
    own = call.primitive == "tensorize" and call.stage == name
    would = (
        f"the loops do not compute what {intrin.name} declares"
        if own
        else f"{name} is tensorized by {intrin.name}, and would not compute what that declares"
    )
    raise call.refuse(
        before,
        f"{would}: {difference.reason}",
        facts=[("declares", str(intrin.op).replace("\n", "\n          "))],
        hint=difference.hint
        if own
        else f"call {call.primitive} before tensorize; {difference.hint}",
    )
