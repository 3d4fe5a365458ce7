"""Legality of atomic reductions: what can be combined in one indivisible step, and where.

Asked of the plan as it would be after a call, so that no primitive takes from an atomic stage what
it needs.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Reduce
from tedsl.expr.visit import reads
from tedsl.ir.nodes import ATOMIC_OPERATORS
from tedsl.scheduling.kernels.tree import followers, guests
from tedsl.scheduling.plan import Online, Plan, StagePlan
from tedsl.scheduling.plan.links import special
from tedsl.scheduling.plan.scan_structure import role
from tedsl.scheduling.primitives.call import Call
from tedsl.tensor.tensor import ComputeOp

Problem = tuple[str, str]


def atomic_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first atomic stage that cannot be combined atomically, why, and what to do."""
    for stage in special(plan):
        problem = reduction_problem(stage) or _place_problem(plan, stage) if stage.atomic else None
        if problem is not None:
            return stage, problem
    return None


def refuse_atomic(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    """The error for a call after which a stage could not be combined atomically."""
    reason, hint = problem
    made = call.primitive == "atomic" and call.stage == stage.name
    if not made:
        reason = f"{stage.name} is atomic, and after this call {reason}"
    return call.refuse(
        before,
        reason,
        facts=[("atomic", "+, min, max, &, |, ^ of single values, of a stage at root")],
        hint=hint if made else f"undo s[{stage.name}].atomic(), or {hint}",
    )


def reduction_problem(stage: StagePlan) -> Problem | None:
    """Why the definition of a stage cannot be combined atomically, and what to do."""
    name, op = stage.name, stage.op
    body = op.bodies[0] if isinstance(op, ComputeOp) else None
    if not isinstance(body, Reduce):
        return f"{name} is no reduction", "name a stage whose body is te.sum, te.min, te.max, ..."
    other = f"make a reduce loop data-parallel with s.rfactor({name}, axis)"
    reducer = body.reducer
    if len(body.sources) > 1:
        return (
            f"its reducer {reducer.name} combines tuples of {len(body.sources)} values, and no "
            "machine updates several values in one indivisible step",
            other,
        )
    if reducer.operator not in ATOMIC_OPERATORS:
        return (
            f"there is no atomic update for its reducer {reducer.name}",
            other,
        )
    if body.finish is not None or body.repair is not None:
        return (
            f"{name} is finished by another expression when all is folded, which no iteration "
            "can tell",
            other,
        )
    read = reads(*(body.init or ()))
    if read:
        return (
            f"{name} starts from {read[0].tensor.name}, and the start is stored before the loops, "
            "apart from them",
            f"{other}, or add what it starts from in a stage that reads {name}",
        )
    return None


def inside_problem(stage: StagePlan) -> Problem | None:
    """Why an atomic stage is at root only, if it is not."""
    if not stage.atomic or stage.placement.at_root:
        return None
    name, inner = stage.name, stage.placement.axis is not None
    where = f"computed inside {stage.placement.host}" if inner else "inlined"
    return (
        f"{name} is atomic and {where}: parts are combined in memory that all see, by a nest "
        "that ends before its readers start",
        f"leave {name} at root (s[{name}].compute_root())",
    )


def _place_problem(plan: Plan, stage: StagePlan) -> Problem | None:
    """Why an atomic stage may not be where it is, and what to do."""
    name = stage.name
    inside = inside_problem(stage)
    if inside is not None:
        return inside
    if stage.placement.leader or stage.placement.of or followers(plan, stage):
        return (
            f"{name} runs together with another stage, and its start needs a nest before it",
            f"give {name} a nest of its own",
        )
    along = [each.name for each in guests(plan, stage) if isinstance(each.placement, Online)]
    if along:
        return (
            f"{along[0]} goes along with the reduction of {name}, step by step",
            f"fold {name} by itself",
        )
    if role(plan, stage.op) is not None:
        return f"{name} is stored in the rows of a scan", f"leave {name} as it is"
    return None
