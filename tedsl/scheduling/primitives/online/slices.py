"""Legality of the pieces that online stages fold: each element of the reduction once.

Asked of the plan as it would be after a call: those that make or move loops change pieces, and so
do marks, since loops of lanes are inside the others.  Imports `regions`.
"""

from __future__ import annotations

from functools import lru_cache

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import at_most, less, mul, sub
from tedsl.expr.nodes import Axis, AxisKind, Expr
from tedsl.expr.visit import axes_of, structural_equal
from tedsl.index.prove import prove
from tedsl.scheduling.kernels.tree import computed_in, guests, hosts, loops_around, root_of
from tedsl.scheduling.plan import Online, Plan, StagePlan
from tedsl.scheduling.plan.labels import axis_text, loops_text
from tedsl.scheduling.plan.links import online_names
from tedsl.scheduling.plan.relations import integer
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.regions.infer import Bounds, StageBounds, infer_again
from tedsl.tensor.tensor import ComputeOp


@lru_cache(maxsize=4)
def _online_bounds(plan: Plan) -> tuple[Plan, Bounds]:
    """The plan as it is lowered and the bounds of the stages in kernels with online ones."""
    own = own_nests(plan)
    roots = {root_of(own, own.stage(name)).name for name in online_names(own)}
    return own, infer_again(own, computed_in(own, roots))


@lru_cache(maxsize=4)
def whole_bounds(plan: Plan) -> tuple[Plan, Bounds]:
    """The plan as it is lowered and the bounds of all its stages, once for all that ask for
    them."""
    own = own_nests(plan)
    return own, infer_again(own)


def slices_problem(
    plan: Plan, before: Plan | None = None, called: str = ""
) -> tuple[StagePlan, StagePlan] | None:
    """A stage and an online one in it, where an iteration of the loop that they share does not
    cover a piece of the reduce axis without gaps, or another covers some of it."""
    hosts = _changed_hosts(before, plan)
    if not hosts:
        return None
    own, bounds = _online_bounds(plan)
    for name in hosts:
        host = own.stage(name)
        for guest in guests(own, host):
            if isinstance(guest.placement, Online) and not _is_piece(own, bounds, host, guest):
                return plan.stage(name), plan.stage(guest.name)
    return None


def refuse_slices(
    before: Plan, call: Call, after: Plan, host: StagePlan, guest: StagePlan
) -> ScheduleError:
    """The error for a call after which pieces would overlap, or leave out elements."""
    place = guest.placement.axis
    where = host.name if place is None else axis_text(after, place)
    return call.refuse(
        before,
        f"one iteration of {where} does not cover one piece of the reduction without gaps, "
        f"and {guest.name} goes along with it (online)",
        facts=[("loops", loops_text(host))],
        hint="name the outer loop of a split, with the loops it was split into inside it; "
        "split those by factors that divide them",
    )


def _changed_hosts(before: Plan | None, after: Plan) -> tuple[str, ...]:
    """The stages with online ones in their loops, less those of which nothing has changed: the
    stage, its online ones and the stages around it were found right before."""
    found: dict[str, None] = {}
    for name in online_names(after):
        stage = within = after.stage(name)
        if before is None:
            found[stage.placement.host] = None
            continue
        for host, _ in hosts(after, stage):
            if _is_changed(before, within):
                found[stage.placement.host] = None
            within = host
        if _is_changed(before, within) and not _same_loops(before, after, stage):
            found[stage.placement.host] = None
    return tuple(found)


def _is_changed(before: Plan, stage: StagePlan) -> bool:
    return not before.has(stage.name) or before.stage(stage.name) is not stage


def _same_loops(before: Plan, after: Plan, stage: StagePlan) -> bool:
    """True when the loops around an attached stage are the same, and so how often each runs."""
    host = after.stage(stage.placement.host)
    if host.placement.axis is None or _is_changed(before, stage):
        return False
    old, new = loops_around(before, stage), loops_around(after, stage)
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))


def _is_piece(plan: Plan, bounds: Bounds, host: StagePlan, guest: StagePlan) -> bool:
    """True when the range of the indices of one iteration has as many elements as its loops."""
    fixed = frozenset(loops_around(plan, guest))
    own = bounds[host.name]
    inside = [a for a in host.leaf_axes if a.kind is AxisKind.REDUCE and a not in fixed]
    if _cuts_short(host, own, frozenset(inside)):
        return False
    count: Expr = integer(1)
    for axis in inside:
        count = mul(count, own.extents[axis])
    facts = bounds[guest.name].facts
    parts = bounds[guest.name].slices.values()
    return all(prove(at_most(sub(part.extent, count), integer(0)), facts) for part in parts)


def _cuts_short(host: StagePlan, own: StageBounds, inside: frozenset[Axis]) -> bool:
    """True when a guard other than the end of the whole axis leaves out iterations of `inside`.

    The end is a guard of the online stages too; that of a loop which was split again is not.
    """
    ends: list[Expr] = []
    if isinstance(host.op, ComputeOp):
        ends = [less(own.local[axis], own.extents[axis]) for axis in host.op.reduce_axes]
    return any(
        not axes_of(guard).isdisjoint(inside)
        and not any(structural_equal(guard, end) for end in ends)
        for guard in own.guards
    )
