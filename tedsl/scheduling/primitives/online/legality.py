"""Legality of online: the loop, the reductions that go along with it, and the stages between."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import add, at_most, both
from tedsl.expr.nodes import Axis, AxisKind, Expr, Reduce
from tedsl.expr.printer import print_expr
from tedsl.index.prove import prove
from tedsl.scheduling.algebra.rescaling import Refusal
from tedsl.scheduling.kernels.tree import exported, followers, guests, runs_beside
from tedsl.scheduling.plan import Online, Plan, Skew, StagePlan
from tedsl.scheduling.plan.graph import (
    is_output,
    is_reduction,
    loop_readers,
    readers,
    tensors_read,
)
from tedsl.scheduling.plan.labels import axis_text, labels, loops_text
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.online.chain import Chain, TagReads, reduce_of, same_domain
from tedsl.scheduling.primitives.online.slices import whole_bounds
from tedsl.scheduling.regions.infer import covered
from tedsl.tensor.tensor import ComputeOp, Operation


def require_host(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """A loop of the reduction is named, and no chain is in it yet."""
    known = labels(stage)
    loops = [known[a] for a in stage.leaf_axes if a.kind is AxisKind.REDUCE]
    if axis.kind is not AxisKind.REDUCE:
        raise call.refuse(
            plan,
            f"{known[axis]} is a data axis: results do not depend on each other along it",
            axis=axis,
            facts=[("reduce", ", ".join(loops))],
            hint=f"name a reduce loop of {stage.name}",
        )
    if any(isinstance(guest.placement, Online) for guest in guests(plan, stage)):
        raise call.refuse(
            plan,
            f"{stage.name} is online already",
            axis=axis,
            hint="call it once, for the last reduction of the chain",
        )


def require_one_axis(plan: Plan, call: Call, stage: StagePlan) -> None:
    """The reduction is over one axis, or its axes have been made one."""
    own = reduce_of(stage.op)
    if own is not None and len(own.axes) != 1:
        names = ", ".join(a.name for a in own.axes)
        raise call.refuse(
            plan,
            f"{stage.name} reduces over {len(own.axes)} axes, and a chain shares exactly one",
            facts=[("reduce", names)],
            hint=f"first fuse them, in order: s[{stage.name}].fuse({names})",
        )


def require_parts(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """The axis is cut: one loop counts the parts, others run over each of them."""
    known = labels(stage)
    if any(a.kind is AxisKind.REDUCE and a is not axis for a in stage.leaf_axes):
        return
    name = known[axis]
    raise call.refuse(
        plan,
        f"{name} is the whole reduction, and each part would be one element",
        axis=axis,
        facts=[("loops", loops_text(stage))],
        hint=f"first split it, e.g. outer, inner = s[{stage.name}].split({name}, nparts=8), and "
        "name outer",
    )


def require_one_skew(
    plan: Plan, call: Call, chain: Chain, derived: Mapping[str, tuple[TagReads, bool]]
) -> None:
    """Where the loop is skewed, its parts are others for each point: what a reduction reads of
    another is at its own point then, and none is made up from the share of a part (`derived`: what
    each reads, and whether it is)."""
    stage = chain.last
    if not any(isinstance(relation, Skew) for relation in stage.relations):
        return
    for member in chain.members:
        if len(member.op.outputs[0].shape) != len(stage.op.outputs[0].shape):
            raise call.refuse(
                plan,
                f"the loop of {stage.name} is skewed, and {member.name} has other dimensions",
                hint="leave skew out",
            )
    for name, (tags, scaled) in derived.items():
        op = plan.stage(name).op
        own = op.axes if isinstance(op, ComputeOp) else ()
        points = [read for read in tags.reads if ids(read.indices) != ids(own)]
        if points or scaled:
            what = f"reads {print_expr(points[0])}" if points else "scales parts by their share"
            raise call.refuse(
                plan,
                f"the loop of {stage.name} is skewed, and {name} {what}",
                hint="leave skew out",
            )


def ids(exprs: Sequence[Expr]) -> tuple[int, ...]:
    """Expressions to be compared as objects; `==` would make another one."""
    return tuple(map(id, exprs))


def require_chain(plan: Plan, call: Call, chain: Chain) -> None:
    """There is something to fuse."""
    if chain.members:
        return
    stage = chain.last
    own = reduce_of(stage.op)
    rows = [
        f"{other.name}: {_why_not(plan, other, stage)}"
        for other in plan.stages
        if other.op is not stage.op
        and is_reduction(other.op)
        and _reaches(stage, other)
        and own is not None
    ]
    raise call.refuse(
        plan,
        f"{stage.name} depends on no other reduction that could go along with its loop",
        facts=[("reads", "; ".join(rows) or "no other reduction")],
        hint="a reduction goes along when it is at root, reduces over the same range, and is read "
        f"at elements that do not change while {stage.name} reduces",
    )


def require_along(plan: Plan, call: Call, stage: StagePlan, other: StagePlan) -> None:
    """Another reduction may be cut like `stage`, which does not need it: over the same range, at
    root, and independent of `stage`."""
    first, second = reduce_of(other.op), reduce_of(stage.op)
    if other.op is stage.op or first is None:
        what = "the stage itself" if other.op is stage.op else "no reduction"
        raise call.refuse(
            plan,
            f"{other.name}, named in along=, is {what}",
            hint=f"name other reductions over the range of {stage.name}",
        )
    if not other.placement.at_root:
        raise call.refuse(
            plan,
            f"{other.name}, named in along=, is not at root",
            hint=f"call s[{other.name}].compute_root() before",
        )
    if second is not None and not same_domain(first, second):
        raise call.refuse(
            plan,
            f"{other.name}, named in along=, reduces over another range than {stage.name}",
            facts=[(s.name, loops_text(s)) for s in (other, stage)],
            hint="name reductions over the same range; split each of the others by itself",
        )
    if _reaches(other, stage):
        raise call.refuse(
            plan,
            f"{other.name}, named in along=, depends on {stage.name}",
            hint=f"call split_online on {other.name}, the last of the chain",
        )


def _reaches(stage: StagePlan, other: StagePlan) -> bool:
    waiting: list[Operation] = [stage.op]
    seen: set[Operation] = {stage.op}
    while waiting:
        for tensor in tensors_read(waiting.pop()):
            if tensor.op is other.op:
                return True
            if tensor.op not in seen:
                seen.add(tensor.op)
                waiting.append(tensor.op)
    return False


def _why_not(plan: Plan, other: StagePlan, last: StagePlan) -> str:
    first, second = reduce_of(other.op), reduce_of(last.op)
    if other.placement.axis is not None:
        return f"attached at {axis_text(plan, other.placement.axis)}"
    if first is not None and second is not None and not same_domain(first, second):
        return "reduces over another range"
    return "read at other elements in every iteration"


def require_between(plan: Plan, call: Call, chain: Chain) -> None:
    """Stages between the reductions hold unfinished values: nobody else may read them."""
    inside = {chain.last.op, *(s.op for s in (*chain.members, *chain.between))}
    for stage in chain.between:
        if stage.placement.inlined:
            continue
        others = [r.name for r in readers(plan, stage.op) if r.op not in inside]
        if is_output(plan, stage.op):
            others.append("the caller, as an output")
        if others:
            raise call.refuse(
                plan,
                f"{stage.name} depends on {_tag_names(chain)} and is read by {', '.join(others)}, "
                "outside the chain",
                hint=f"inline it first: s[{stage.name}].compute_inline()"
                if not is_output(plan, stage.op)
                else f"define the output as a copy of {stage.name}, and inline {stage.name}",
            )
        within = [s for s in (*guests(plan, stage), *followers(plan, stage)) if s.op not in inside]
        if within:
            raise call.refuse(
                plan,
                f"{stage.name} is computed where {call.stage} reads it, and {within[0].name} runs "
                "in its loops, which are then gone",
                hint=f"first move {within[0].name} (compute_root, or compute_at elsewhere)",
            )


def require_no_init(plan: Plan, call: Call, stage: StagePlan, reduce: Reduce) -> None:
    """What a dependent reduction starts from belongs to no value of the tags."""
    if reduce.init is None:
        return
    raise call.refuse(
        plan,
        f"{stage.name} starts from init=, which does not follow when the reductions it depends on "
        "change",
        hint="add the start value after the reduction, in a stage that reads it",
    )


def require_no_tags_in_where(plan: Plan, call: Call, stage: StagePlan, where: TagReads) -> None:
    """Which elements count is known when they are folded."""
    if not where.reads:
        return
    names = ", ".join(dict.fromkeys(read.tensor.name for read in where.reads))
    raise call.refuse(
        plan,
        f"which elements {stage.name} folds depends on {names}, and what has been folded is not "
        "taken back when that changes",
        facts=[("where", print_expr(where.restored(where.value)))],
        hint=f"compute {names} before, in a pass of its own",
    )


def require_threshold(plan: Plan, call: Call, given: object) -> float:
    """What repairs may lag by: a number that something can be less than."""
    if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 < given < math.inf:
        return float(given)
    raise call.refuse(
        plan,
        f"rescale_threshold={given!r} is no number above 0 that references could lag by",
        facts=[("allowed", "finite numbers above 0, in the unit of the tag")],
        hint="give e.g. rescale_threshold=8.0, or leave it out to repair in every iteration",
    )


def refuse_lag(plan: Plan, call: Call, name: str, found: Refusal) -> ScheduleError:
    """The error for a repair that may not lag behind."""
    return call.refuse(
        plan,
        f"{name} cannot follow lazily: {found.reason}",
        facts=found.facts(),
        hint=found.hint,
    )


def _tag_names(chain: Chain) -> str:
    return ", ".join(stage.name for stage in chain.members)


def refuse_repair(plan: Plan, call: Call, stage: StagePlan, found: Refusal) -> ScheduleError:
    """The error for a value that cannot be repaired."""
    return call.refuse(
        plan,
        f"{stage.name} cannot follow: {found.reason}",
        facts=found.facts(),
        hint=found.hint or f"leave {stage.name} out of the chain: compute what it reads before",
    )


def require_own_place(plan: Plan, call: Call, stage: StagePlan) -> None:
    """A stage that goes along with another's reduction has no place and no body of its own."""
    host = stage.placement.host
    if isinstance(stage.placement, Online):
        raise call.refuse(
            plan,
            f"{stage.name} goes along with the reduction of {host} (online)",
            hint=f"call {call.primitive} before s.online({host}), or undo that step",
        )


def require_complete(plan: Plan, call: Call, stage: StagePlan, names: Sequence[str]) -> None:
    """Readers of a copy of a stage that goes along with a reduction run in other kernels, when that
    is complete."""
    if not isinstance(stage.placement, Online):
        return
    host = plan.stage(stage.placement.host)
    for name in names:
        reader = plan.stage(name)
        inlined = reader.placement.inlined
        loops = loop_readers(plan, reader.op) if inlined else (reader,)
        near = [each.name for each in loops if runs_beside(plan, each, host)]
        if near:
            raise call.refuse(
                plan,
                f"{stage.name} goes along with the reduction of {host.name} (online), and "
                f"{near[0]} reads it in that kernel, before it is complete",
                hint=f"name readers in other kernels only, or call {call.primitive} before "
                f"s.online({host.name})",
            )


def require_whole(plan: Plan, call: Call, after: Plan, name: str) -> None:
    """What is stored for other kernels or the caller is computed for every element."""
    own, bounds = whole_bounds(after)
    host = own.stage(name)
    for guest in guests(own, host):
        if not isinstance(guest.placement, Online) or not exported(own, guest):
            continue
        for needed, extent in zip(covered(own, guest, bounds), guest.op.shape, strict=True):
            whole = both(at_most(needed.min, 0), at_most(extent, add(needed.min, needed.extent)))
            if not prove(whole, bounds[guest.name].facts):
                raise call.refuse(
                    plan,
                    f"{guest.name} is also stored for the caller or for other kernels, and "
                    f"{host.name} does not read all of it",
                    facts=[("reads", f"{needed.min} .. {add(needed.min, needed.extent)}")],
                    hint=f"let the others read a copy of {guest.name} computed by itself",
                )
