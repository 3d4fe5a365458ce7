"""Tensorized stages compute what their intrinsics declare.

Asked of the plan as it would be after a call, whatever the call was; imports `match`.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.regions.match_intrinsic import Difference, tensor_problem
from tedsl.tensor.intrin import TensorIntrin


def match_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[str, TensorIntrin, Difference] | None:
    """The first tensorized stage that does not compute what its intrinsic declares."""
    return tensor_problem(plan)


def refuse_match(
    before: Plan, call: Call, after: Plan, name: str, intrin: TensorIntrin, difference: Difference
) -> ScheduleError:
    """The error for a call after which a stage would not compute what its intrinsic declares."""
    own = call.primitive == "tensorize" and call.stage == name
    would = (
        f"the loops do not compute what {intrin.name} declares"
        if own
        else f"{name} is tensorized by {intrin.name}, and would not compute what that declares"
    )
    return call.refuse(
        before,
        f"{would}: {difference.reason}",
        facts=[("declares", str(intrin.op).replace("\n", "\n          "))],
        hint=difference.hint
        if own
        else f"call {call.primitive} before tensorize; {difference.hint}",
    )
