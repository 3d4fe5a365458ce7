"""Parts of the iterations of a loop, and blocks of loops: cut, partition, blockize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tedsl.expr.index_arith import at_most
from tedsl.expr.nodes import Axis, AxisKind, Const, Expr
from tedsl.expr.printer import print_expr
from tedsl.index.prove import prove
from tedsl.ir.nodes import LoopKind, PartPolicy
from tedsl.scheduling.kernels.tree import guests
from tedsl.scheduling.plan import Cuts, Online, Plan, StagePlan
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import constant, extents, ranks
from tedsl.scheduling.primitives.arguments import choice, leaf, looped_stage, size
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.marks.rewrite import marked, vectorize
from tedsl.scheduling.regions.infer import plan_facts


def _loop(plan: Plan, call: Call, axis: object) -> tuple[StagePlan, Axis]:
    """The stage and a loop of it that has iterations one by one."""
    stage = looped_stage(plan, call, call.stage)
    loop = leaf(plan, call, stage, axis)
    if stage.mark(loop).kind is LoopKind.VECTORIZED:
        name = labels(stage)[loop]
        raise call.refuse(
            plan,
            f"{name} is vectorized: its iterations are lanes of one tile",
            axis=loop,
            hint=f"split {name} before vectorize, and name the outer loop",
        )
    return stage, loop


def cut(plan: Plan, call: Call, axis: object, points: Sequence[object]) -> Plan:
    """The loop runs as `0..p`, `p..q`, `q..n`."""
    stage, loop = _loop(plan, call, axis)
    name = labels(stage)[loop]
    if not points:
        raise call.refuse(
            plan, "no point is given", axis=loop, hint="name at least one point, e.g. cut(i, 4)"
        )
    if loop.kind not in (AxisKind.DATA, AxisKind.REDUCE):
        raise call.refuse(
            plan,
            f"{name} counts the steps of a scan, which are of one kind",
            axis=loop,
            hint="cut a loop inside the steps",
        )
    if any(isinstance(guest.placement, Online) for guest in guests(plan, stage, loop)):
        raise call.refuse(
            plan,
            f"stages go along with {name}, and carry results from one iteration to the next",
            axis=loop,
            hint="leave it whole: what masks decide shortens it by itself",
        )
    known = tuple(_point(plan, call, point) for point in points)
    _require_ascending(plan, call, loop, known)
    _require_within(plan, call, stage, loop, known)
    return marked(plan, stage, loop, replace(stage.mark(loop), cuts=Cuts(known)))


def _point(plan: Plan, call: Call, point: object) -> Expr:
    if isinstance(point, Expr) and not isinstance(point, Const):
        return size(plan, call, "point", point, least=None)
    return size(plan, call, "point", point)


def _require_ascending(plan: Plan, call: Call, loop: Axis, points: Sequence[Expr]) -> None:
    facts = plan_facts(plan)
    for before, after in pairwise(points):
        if prove(at_most(after, before), facts):
            raise call.refuse(
                plan,
                f"{print_expr(after)} comes after {print_expr(before)}",
                axis=loop,
                hint="give the points in ascending order, each once",
            )


def _require_within(
    plan: Plan, call: Call, stage: StagePlan, loop: Axis, points: Sequence[Expr]
) -> None:
    """A constant point lies inside a loop of constant extent."""
    extent = constant(extents(stage)[loop])
    for point in points:
        at = constant(point)
        if at is not None and extent is not None and at >= extent:
            raise call.refuse(
                plan,
                f"{labels(stage)[loop]} has {extent} iterations, and {at} is not inside it",
                axis=loop,
                facts=[("allowed", f"1 .. {extent - 1}" if extent > 1 else "none")],
                hint="give points inside the loop",
            )


def partition(plan: Plan, call: Call, axis: object, policy: object) -> Plan:
    """Whether the part of a loop without guards runs by itself."""
    stage, loop = _loop(plan, call, axis)
    chosen = PartPolicy(choice(plan, call, "policy", policy, tuple(PartPolicy)))
    return marked(plan, stage, loop, replace(stage.mark(loop), partition=chosen))


def blockize(plan: Plan, call: Call, axis: object) -> Plan:
    """A loop and all loops inside it become dimensions of one tile."""
    stage = looped_stage(plan, call, call.stage)
    first = ranks(stage.leaf_axes)[leaf(plan, call, stage, axis)]
    for loop in stage.leaf_axes[first:]:
        if stage.mark(loop).kind is not LoopKind.VECTORIZED:
            plan = vectorize(plan, call, loop)
    return plan
