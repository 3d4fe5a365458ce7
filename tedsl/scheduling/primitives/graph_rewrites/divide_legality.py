"""Legality of divide: what may be divided and where, and that the two stages keep storing what they
were made for.
"""

from __future__ import annotations

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import ZERO, constant, less, sub
from tedsl.expr.nodes import Axis, Expr, IfThenElse, TensorRead
from tedsl.expr.printer import print_expr
from tedsl.index.prove import equal, prove
from tedsl.scheduling.kernels.tree import followers, leader_of
from tedsl.scheduling.plan import Partitioned, Plan, StagePlan
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.links import special
from tedsl.scheduling.primitives.arguments import leaf
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.legality import (
    require_loops_of_definition,
    require_no_guests,
    require_no_marks,
)
from tedsl.scheduling.primitives.scans.legality import require_no_scan
from tedsl.scheduling.primitives.stage_facts import Problem, place_text
from tedsl.scheduling.regions.infer import plan_facts
from tedsl.tensor.tensor import ComputeOp


def require_undecided(plan: Plan, call: Call, stage: StagePlan) -> None:
    """Nothing has been said of the stage but that it is inlined: it would be lost."""
    require_no_scan(plan, call, stage, "its rows are stored where its steps read them")
    if stage.placement.axis is not None:
        raise call.refuse(
            plan,
            f"{stage.name} is {place_text(stage)}",
            hint=f"call divide before compute_at, or first s[{stage.name}].compute_root()",
        )
    require_loops_of_definition(plan, call, stage)
    require_no_guests(plan, call, stage)
    require_no_marks(plan, call, stage)
    others = followers(plan, stage)
    if stage.placement.leader or stage.placement.of or others:
        other = others[0] if others else leader_of(plan, stage)
        raise call.refuse(
            plan,
            f"{stage.name} runs together with {other.name}",
            hint="call divide before compute_with and compute_last",
        )
    said = {
        "is aligned in memory (storage_align)": bool(stage.aligned),
        "has versions (specialize)": bool(stage.placement.kernel.versions),
        f"has {stage.placement.kernel.said}": bool(stage.placement.kernel.said),
        "is atomic": stage.atomic,
    }
    for what, given in said.items():
        if given:
            raise call.refuse(
                plan,
                f"{stage.name} {what}, and none of its loops are left",
                hint=f"call divide first, and then say that of s[{stage.name}.head] and "
                f"s[{stage.name}.tail]",
            )


def require_data_axis(plan: Plan, call: Call, stage: StagePlan, axis: object) -> int:
    """The number of the data axis that is divided."""
    found = leaf(plan, call, stage, axis)
    known = labels(stage)
    for number, own in enumerate(stage.op.axis):
        if own is found:
            return number
    raise call.refuse(
        plan,
        f"{known[found]} is folded: every element of {stage.name} needs all of it",
        axis=found,
        facts=[("data axes", ", ".join(known[own] for own in stage.op.axis) or "none")],
        hint=f"name a data axis, or make parts of the fold with s.rfactor({stage.name}, ...)",
    )


def require_inside(plan: Plan, call: Call, axis: Axis, at: Expr) -> None:
    """Neither piece is empty, whatever the sizes."""
    extent = axis.domain.extent if axis.domain is not None else at
    if prove(less(at, extent), plan_facts(plan)):
        return
    most = constant(extent)
    allowed = f"less than {print_expr(extent)}" if most is None else f"1 .. {most - 1}"
    sizes = constant(at) is not None and most is not None
    raise call.refuse(
        plan,
        f"at is {print_expr(at)}, and {axis.name} has {print_expr(extent)} positions"
        + ("" if sizes else ": the tail could be empty"),
        axis=axis,
        facts=[("allowed", allowed if most is None or most > 1 else "none")],
        hint="divide inside the axis" + ("" if sizes else ", or say s.assume(...) of the sizes"),
    )


def pieces_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, Problem] | None:
    """The first stage that is to be stored by two others, one of which could not do so."""
    for whole in special(plan):
        parts = whole.placement
        if not isinstance(parts, Partitioned):
            continue
        for name, start in ((parts.head, ZERO), (parts.tail, parts.position)):
            piece = plan.stage(name)
            problem = _piece_problem(whole, piece, start)
            if problem is not None:
                return piece, problem
    return None


def refuse_piece(
    before: Plan, call: Call, after: Plan, piece: StagePlan, problem: Problem
) -> ScheduleError:
    """The error for a call after which a piece of a result would not store it."""
    return call.refuse(before, problem.reason, hint=problem.hint)


def _piece_problem(whole: StagePlan, piece: StagePlan, start: Expr) -> Problem | None:
    name = piece.name
    if not _is_joined(whole):
        return Problem(
            f"{whole.name} is stored by two stages (divide), and computes nothing itself",
            f"call this on {name}, or before divide",
        )
    if not piece.placement.at_root:
        return Problem(
            f"{name} stores a piece of {whole.name}, and would be {place_text(piece)}",
            f"leave {name} at root; divide {whole.name} before its readers are, and they read "
            "pieces of it that may be anywhere",
        )
    if piece.aligned:
        return Problem(
            f"{name} stores a piece of {whole.name}, whose rows are as long as its shape says",
            f"leave {name} as it lies",
        )
    if not _reads_as_it_lies(whole, piece, start):
        return Problem(
            f"{name} stores a piece of {whole.name}, and its dimensions are those of {whole.name}",
            f"leave the layout of {name}, or let it copy a stage of another layout (cache_write)",
        )
    return None


def _is_joined(whole: StagePlan) -> bool:
    """True when each element of the whole is one of a piece."""
    bodies = whole.op.bodies if isinstance(whole.op, ComputeOp) else ()
    return all(isinstance(body, IfThenElse) for body in bodies)


def _reads_as_it_lies(whole: StagePlan, piece: StagePlan, start: Expr) -> bool:
    """True when element [i, j] of the piece is [i, j + start] of the whole."""
    parts = whole.placement
    for body in whole.op.bodies if isinstance(whole.op, ComputeOp) else ():
        read = (body.a if start is ZERO else body.b) if isinstance(body, IfThenElse) else body
        if (
            not isinstance(parts, Partitioned)
            or not isinstance(read, TensorRead)
            or read.tensor.op is not piece.op
        ):
            return False
        places: list[Expr] = list(whole.op.axis)
        places[parts.dim] = sub(places[parts.dim], start)
        if len(places) != len(read.indices) or not all(map(equal, read.indices, places)):
            return False
    return True
