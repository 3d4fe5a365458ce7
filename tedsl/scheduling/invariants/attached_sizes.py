"""How large a stage is where it is attached: one of a constant size is on the stack or in
registers, any other in memory of its own.

Asked of the plan as it would be after a call of a rule, which attaches no others.
"""

from __future__ import annotations

from tedsl.expr.printer import print_expr
from tedsl.scheduling.invariants.lane_counts import has_runtime_sizes
from tedsl.scheduling.kernels.tree import has_own_launch
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.labels import axis_text
from tedsl.scheduling.plan.relations import constant
from tedsl.scheduling.plan.scan_structure import role
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.regions.infer import infer_again
from tedsl.tensor.tensor import ComputeOp


def require_constant_sizes(before: Plan, call: Call, after: Plan) -> None:
    """Refuse a call after which there is an attached stage of no constant number of elements.

    Requires: legal places.
    """
    if not has_runtime_sizes(after) or not any(_has_buffer(after, s) for s in after.stages):
        return
    shown = own_nests(after)
    bounds = infer_again(shown)
    for stage in shown.stages:
        if not _has_buffer(shown, stage) or stage.placement.axis is None:
            continue
        for number, box in enumerate(bounds[stage.name].stored):
            if constant(box.extent) is None:
                size = print_expr(stage.op.shape[number])
                raise call.refuse(
                    before,
                    f"dimension {number} of the region of {stage.name} that is read at "
                    f"{axis_text(shown, stage.placement.axis)} has no constant size (of {size} "
                    "elements)",
                    hint=f"attach {stage.name} further in, or leave it inline or at root",
                )


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
