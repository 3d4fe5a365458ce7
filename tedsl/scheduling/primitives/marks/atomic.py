"""Legality of atomic and of scattered reductions: what can be combined in one indivisible step, or
where data say, and where.

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
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.links import special
from tedsl.scheduling.plan.scan_structure import role
from tedsl.scheduling.plan.scattered import scattered, scattered_axes
from tedsl.scheduling.primitives.call import Call
from tedsl.tensor.tensor import ComputeOp

Problem = tuple[str, str]


def atomic_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first atomic or scattered stage that cannot be combined so, why, and what to do."""
    for stage in special(plan):
        if not (stage.atomic or stage.scatters):
            continue
        problem = reduction_problem(stage) if stage.atomic else None
        problem = problem or (_scatter_problem(stage) if stage.scatters else None)
        problem = problem or _place_problem(plan, stage) or _start_problem(plan, stage)
        if problem is not None:
            return stage, problem
    return None


def refuse_atomic(
    before: Plan, call: Call, after: Plan, stage: StagePlan, problem: Problem
) -> ScheduleError:
    """The error for a call after which a stage could not be combined atomically, or where data
    say."""
    reason, hint = problem
    made = call.primitive in ("atomic", "scatter") and call.stage == stage.name
    what = _what(stage)
    if not made:
        reason = f"{stage.name} is {what}, and after this call {reason}"
    undone = "undo s[{}].atomic(), or {}" if stage.atomic else "do that before s[{}].scatter, or {}"
    facts = [("atomic", "+, min, max, &, |, ^ of single values, of a stage at root")]
    return call.refuse(
        before,
        reason,
        facts=facts if stage.atomic else (),
        hint=hint if made else undone.format(stage.name, hint),
    )


def _what(stage: StagePlan) -> str:
    return "atomic" if stage.atomic else "scattered"


def reduction_problem(stage: StagePlan) -> Problem | None:
    """Why the definition of a stage cannot be combined atomically, and what to do."""
    name, op = stage.name, stage.op
    body = op.bodies[0] if isinstance(op, ComputeOp) else None
    if not isinstance(body, Reduce):
        return f"{name} is no reduction", "name a stage whose body is te.sum, te.min, te.max, ..."
    other = f"make a reduce loop data-parallel with s.rfactor({name}, axis)"
    reducer = body.reducer
    if len(body.sources) == 1 and reducer.operator not in ATOMIC_OPERATORS:
        return f"there is no atomic update for its reducer {reducer.name}", other
    return _value_problem(name, body, other)


def _scatter_problem(stage: StagePlan) -> Problem | None:
    """Why a scattered stage does not run as it should, and what to do."""
    name, op = stage.name, stage.op
    body = op.bodies[0] if isinstance(op, ComputeOp) else None
    if not isinstance(body, Reduce) or scattered(stage) is None:
        gone = ", ".join(axis.name for axis in scattered_axes(stage))
        return f"no condition says the values of {gone}", f"leave the conditions of {name}"
    if stage.contended and not stage.atomic:
        known = labels(stage)
        return (
            f"iterations of {', '.join(known[axis] for axis in stage.contended)} that run at once "
            "may be folded into one element",
            f"call s[{name}].atomic() first, so that they are combined one at a time",
        )
    return _value_problem(name, body, f"leave {name} as it is defined")


def _value_problem(name: str, body: Reduce, other: str) -> Problem | None:
    """Why what a reduction folds is not combined where it is stored, and what to do."""
    if len(body.sources) > 1:
        return (
            f"its reducer {body.reducer.name} combines tuples of {len(body.sources)} values, and "
            "no machine updates several values in one indivisible step",
            other,
        )
    if body.finish is not None or body.repair is not None:
        return (
            f"{name} is finished by another expression when all is folded, which no iteration "
            "can tell",
            other,
        )
    return None


def _start_problem(plan: Plan, stage: StagePlan) -> Problem | None:
    """Why what a reduction starts from is not there before its loops, and what to do."""
    name, body = stage.name, stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    read = reads(*(body.init or ())) if isinstance(body, Reduce) else ()
    for source in (plan.stage_of(each.tensor.op) for each in read):
        if source.placement.axis is not None:
            return (
                f"{name} starts from {source.name}, and the start is stored before the loops, "
                f"apart from them, where {source.name} is computed",
                f"leave {source.name} at root (s[{source.name}].compute_root()), or add it in a "
                f"stage that reads {name}",
            )
    return None


def inside_problem(stage: StagePlan) -> Problem | None:
    """Why an atomic or scattered stage is at root only, if it is not."""
    if not (stage.atomic or stage.scatters) or stage.placement.at_root:
        return None
    name, inner = stage.name, stage.placement.axis is not None
    where = f"computed inside {stage.placement.host}" if inner else "inlined"
    return (
        f"{name} is {_what(stage)} and {where}: parts are combined in memory that all see, by a "
        "nest that ends before its readers start",
        f"leave {name} at root (s[{name}].compute_root())",
    )


def _place_problem(plan: Plan, stage: StagePlan) -> Problem | None:
    """Why an atomic or scattered stage may not be where it is, and what to do."""
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
