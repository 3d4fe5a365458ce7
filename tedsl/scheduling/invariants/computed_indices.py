"""Where results are read to know a region (`P[X[i]]`): they are computed before it, at a loop
around it.

Asked of the plan as it would be after a call, whatever the call was.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import TensorRead
from tedsl.expr.printer import print_expr
from tedsl.scheduling.kernels.tree import (
    computed_in,
    group_of,
    hosts,
    in_order,
    leader_of,
    levels,
    loops_around,
    root_of,
)
from tedsl.scheduling.plan import Online, Plan, StagePlan
from tedsl.scheduling.plan.labels import axis_text
from tedsl.scheduling.plan.links import indexes_by_data
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.stage_facts import Problem
from tedsl.scheduling.regions.computed_indices import Needs, may_need, needs_of
from tedsl.scheduling.regions.infer import infer_again
from tedsl.tensor.tensor import ComputeOp, ScanOp


def computed_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first stage whose region is read of a result that is not there before it, and why.

    Requires: legal places.
    """
    if not may_need(plan):
        return None
    shown = own_nests(plan)
    needs = needs_of(infer_again(shown, _indexed_by_data(shown)))
    for name, found in needs.items():
        stage = shown.stage(name)
        for read in found:
            problem = _read_problem(shown, stage, read)
            if problem is not None:
                return plan.stage(name), problem
    return _order_problem(plan, shown, needs)


def refuse_computed(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    """The error for a call after which a region would be read of a result that is not there."""
    made = call.primitive == "compute_at" and call.stage == stage.name
    reason = problem.reason if made else f"{stage.name} would no longer be legal: {problem.reason}"
    axis = stage.placement.axis if made else None
    return call.refuse(before, reason, axis=axis, hint=problem.hint)


def _indexed_by_data(plan: Plan) -> frozenset[str]:
    """The stages of the kernels in which an index reads a tensor: no other region depends on a
    result."""
    found = [stage for stage in plan.stages if indexes_by_data(stage.op)]
    roots = {each.name for stage in found for each in group_of(plan, root_of(plan, stage))}
    return computed_in(plan, roots)


def _read_problem(plan: Plan, stage: StagePlan, read: TensorRead) -> Problem | None:
    """Why a result that the region of `stage` is read of is not there, in a plan as it is
    lowered."""
    writer = plan.stage_of(read.tensor.op)
    if not isinstance(writer.op, ComputeOp) or isinstance(writer.op, ScanOp):
        return None
    if writer.placement.axis is None:
        return None
    shown = print_expr(read)
    place = axis_text(plan, writer.placement.axis)
    # What goes along with a reduction is kept outside its loop.
    host = plan.stage(writer.placement.host) if isinstance(writer.placement, Online) else writer
    around = loops_around(plan, host)
    own = loops_around(plan, stage)
    inside = len(around) <= len(own) and all(a is b for a, b in zip(around, own, strict=False))
    if not inside or writer.name == stage.name:
        return Problem(
            f"which elements of {stage.name} are read is known when {shown} is, and "
            f"{writer.name} is computed at {place}, which is not around {stage.name}",
            f"attach {stage.name} at {place} or at a loop inside it, or {writer.name} further out",
        )
    if host.placement.axis is None:
        return None
    together = _beside(plan, stage, host)
    if together is not None and leader_of(plan, together) is leader_of(plan, host):
        return Problem(
            f"which elements of {stage.name} are read is known when {shown} is, and "
            f"{together.name} and {host.name} run together (compute_with)",
            f"first call s[{together.name}].compute_at, which takes compute_with back",
        )
    return None


def _beside(plan: Plan, stage: StagePlan, other: StagePlan) -> StagePlan | None:
    """The stage attached where `other` is that `stage` is or is inside of."""
    current = stage
    for host, axis in hosts(plan, stage):
        if axis is other.placement.axis:
            return current
        current = host
    return None


def _order_problem(plan: Plan, shown: Plan, needs: Needs) -> tuple[StagePlan, Problem] | None:
    """A level whose stages wait for each other."""
    for level in levels(shown) if needs else ():
        if in_order(shown, level, needs) is not None:
            continue
        stage = next(s for s in level if s.name in needs)
        read = needs[stage.name][0]
        return plan.stage(stage.name), Problem(
            f"which elements of {stage.name} are read is known when {print_expr(read)} is, which "
            f"is computed of what runs together with {stage.name}",
            f"leave {stage.name} at root, or run it by itself",
        )
    return None
