"""How large a stage is where it is attached: its buffer there, on the stack or in registers, has a
constant size.

Asked of the plan as it would be after a call, whatever the call was.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.expr.printer import print_expr
from tedsl.scheduling.invariants.lane_counts import has_runtime_sizes
from tedsl.scheduling.kernels.tree import has_own_launch
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.labels import axis_text
from tedsl.scheduling.plan.relations import constant
from tedsl.scheduling.plan.scan_structure import role
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.stage_facts import Problem
from tedsl.scheduling.regions.infer import infer_again
from tedsl.tensor.tensor import ComputeOp


def size_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first attached stage of which no constant number of elements is kept, and why.

    Requires: legal places.
    """
    if not has_runtime_sizes(plan):
        return None
    if not any(_has_buffer(plan, s) for s in plan.stages):
        return None
    shown = own_nests(plan)
    bounds = infer_again(shown)
    for stage in shown.stages:
        if not _has_buffer(shown, stage) or stage.placement.axis is None:
            continue
        for number, box in enumerate(bounds[stage.name].stored):
            if constant(box.extent) is None:
                return plan.stage(stage.name), _unknown(shown, stage, number)
    return None


def _has_buffer(plan: Plan, stage: StagePlan) -> bool:
    """True for what is kept inside a kernel: not for what programs pass on in memory, nor for what
    is stored in the result of a scan or handed on between launches of its steps."""
    return (
        isinstance(stage.op, ComputeOp)
        and stage.placement.axis is not None
        and stage.placement.program is None
        and role(plan, stage.op) is None
        and not has_own_launch(plan, stage)
    )


def _unknown(plan: Plan, stage: StagePlan, number: int) -> Problem:
    place = "" if stage.placement.axis is None else axis_text(plan, stage.placement.axis)
    size = print_expr(stage.op.shape[number])
    kept = "" if stage.placement.kept is None else ", where it is stored,"
    return Problem(
        f"dimension {number} of the region of {stage.name} that is read there{kept} has no "
        f"constant size (of {size} elements), and what is computed inside a loop is kept in "
        "registers or on the stack",
        f"split the loops of {stage.placement.host} by constants and attach {stage.name} inside "
        f"{place}, or leave it inline or at root",
    )


def refuse_sizes(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    """The error for a call after which an attached stage would have no constant size."""
    own = call.stage == stage.name
    where = "" if stage.placement.axis is None else axis_text(after, stage.placement.axis)
    reason = problem.reason
    if not own:
        reason = f"{stage.name} is attached at {where}, and could no longer be: {reason}"
    return call.refuse(
        before,
        reason,
        axis=stage.placement.axis if own else None,
        hint=problem.hint if own else f"first move {stage.name} (compute_root or compute_at)",
    )
