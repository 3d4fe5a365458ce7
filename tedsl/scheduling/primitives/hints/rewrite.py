"""Hints about memory and threads: storage_align, evict, double_buffer, prefetch and
set_store_predicate.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tedsl.expr.nodes import Axis, AxisKind, Binary, BinaryOp, Compare, CompareOp, Expr, Var
from tedsl.expr.printer import print_expr
from tedsl.ir.nodes import Evict, LoopKind
from tedsl.scheduling.handles.thread_axis import GRID, LANES
from tedsl.scheduling.plan import Align, Plan, StagePlan
from tedsl.scheduling.plan.graph import is_output, tensors_read
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import constant, ranks
from tedsl.scheduling.primitives.arguments import (
    MOST_STAGES,
    computed_stage,
    leaf,
    looped_stage,
    positive,
)
from tedsl.scheduling.primitives.call import Call, kind_of
from tedsl.scheduling.primitives.loops.legality import require_plain_kind
from tedsl.scheduling.primitives.marks.rewrite import marked

_TERM = re.compile(r"\s*\(?\s*([\w.]+)\s*==\s*0\s*\)?\s*")


def storage_align(plan: Plan, call: Call, axis: object, factor: object, offset: object) -> Plan:
    """Elements along a dimension stand a multiple of `factor` plus `offset` apart."""
    stage, op = computed_stage(plan, call, call.stage)
    step = positive(plan, call, "factor", factor)
    extra = positive(plan, call, "offset", offset, least=0)
    places = ranks(op.axes)
    if not isinstance(axis, Axis) or axis not in places:
        known = labels(stage)
        raise call.refuse(
            plan,
            f"expected a dimension of {stage.name}, got "
            f"{known.get(axis, axis.name) if isinstance(axis, Axis) else kind_of(axis)}",
            facts=[("allowed", ", ".join(known[a] for a in op.axes[:-1]) or "none")],
            hint=f"name an axis of s[{stage.name}].op.axis",
        )
    if is_output(plan, op):
        raise call.refuse(
            plan,
            f"{stage.name} is an output of the schedule, and its layout is the caller's",
            axis=axis,
            hint=f"use s.cache_write({stage.name}, scope) and align the cache stage",
        )
    if any(len(shape) != len(op.axes) for shape in op.output_shapes):
        raise call.refuse(
            plan,
            f"the states of {stage.name} have other shapes, each with dimensions of its own",
            axis=axis,
            hint="give all states one shape, or align what is cached of one by s.cache_read",
        )
    if places[axis] == len(op.axes) - 1:
        raise call.refuse(
            plan,
            f"{labels(stage)[axis]} is the last dimension, whose elements are next to each other",
            axis=axis,
            facts=[("allowed", ", ".join(labels(stage)[a] for a in op.axes[:-1]) or "none")],
            hint="name the dimension before it to set the length of a row",
        )
    below = 1
    for extent in op.shape[places[axis] + 2 :]:
        size = constant(extent)
        below = 0 if size is None else below * size
    if below != 1:
        raise call.refuse(
            plan,
            f"a step along {labels(stage)[axis]} is a step over several rows",
            axis=axis,
            facts=[("allowed", labels(stage)[op.axes[-2]])],
            hint="align rows: name the dimension before the last",
        )
    kept = tuple(each for each in stage.aligned if each.axis is not axis)
    return plan.with_stage(replace(stage, aligned=(*kept, Align(axis, step, extra % step))))


def evict(plan: Plan, call: Call, priority: object, then: object = None) -> Plan:
    """What is read and stored of a stage leaves the caches sooner or later than other data."""
    if priority not in set(Evict):
        raise call.refuse(
            plan,
            f"expected when the caches give up {call.stage}, got {priority!r}",
            facts=[("allowed", ", ".join(repr(each.value) for each in Evict))],
            hint="'last' keeps it longest, 'first' gives it up first",
        )
    stage, first = plan.stage(call.stage), Evict(str(priority))
    after = None if then is None else _evict_then(plan, call, first, then)
    return plan.with_stage(replace(stage, evict=first, evict_then=after))


def _evict_then(plan: Plan, call: Call, priority: Evict, then: object) -> Evict:
    """When the caches give up what is read for the last time: sooner than before."""
    order = tuple(Evict)
    sooner = order[: order.index(priority)]
    if then not in sooner:
        allowed = ", ".join(repr(each.value) for each in sooner)
        raise call.refuse(
            plan,
            f"then is {then!r}, which is not sooner than {priority.value!r}",
            facts=[("allowed", allowed or "None")],
            hint="leave then= out, or give evict('last', then='first')"
            if not sooner
            else f"give {sooner[0].value!r} for what is read for the last time, or leave then= out",
        )
    outputs = plan.stage(call.stage).op.outputs
    read = [each for stage in plan.stages for each in tensors_read(stage.op)]
    if not any(tensor in read for tensor in outputs):
        raise call.refuse(
            plan,
            f"nothing reads {call.stage}, so it is not read for the last time",
            hint=f"leave then= out: evict({priority.value!r}) is what its stores say",
        )
    return Evict(str(then))


def double_buffer(plan: Plan, call: Call) -> Plan:
    """The loop that the stage is attached at runs in two stages."""
    stage, _ = computed_stage(plan, call, call.stage)
    place = stage.placement
    if place.axis is None:
        raise call.refuse(
            plan,
            f"{stage.name} is not attached at a loop, so there is no next iteration",
            hint=f"call s[{stage.name}].compute_at first",
        )
    return _in_stages(plan, plan.stage(place.host), place.axis, 2)


def prefetch(plan: Plan, call: Call, source: str, axis: object, offset: object) -> Plan:
    """The loop runs in `offset` + 1 stages."""
    stage = looped_stage(plan, call, call.stage)
    loop = leaf(plan, call, stage, axis)
    ahead = positive(plan, call, "offset", offset, most=MOST_STAGES - 1)
    read = dict.fromkeys(plan.stage_of(each.op).name for each in tensors_read(stage.op))
    if source not in read:
        raise call.refuse(
            plan,
            f"{stage.name} does not read {source}",
            facts=[("reads", ", ".join(read) or "nothing")],
            hint=f"name a tensor that {stage.name} reads",
        )
    require_plain_kind(plan, call, stage, loop)
    return _in_stages(plan, stage, loop, ahead + 1)


def _in_stages(plan: Plan, stage: StagePlan, loop: Axis, count: int) -> Plan:
    """A serial loop pipelined at least so deep; another one runs as it does."""
    mark = stage.mark(loop)
    if mark.kind is not LoopKind.SERIAL or mark.num_stages >= count:
        return plan
    return marked(plan, stage, loop, replace(mark, num_stages=count))


def predicate_text(condition: object) -> str:
    """A store predicate as text."""
    return print_expr(condition) if isinstance(condition, Expr) else str(condition)


def set_store_predicate(plan: Plan, call: Call, condition: object, text: str) -> Plan:
    """Accepted where every element is stored once with it as without it."""
    stage = looped_stage(plan, call, call.stage)
    tags = _first_threads(condition) if isinstance(condition, Expr) else _tags_of(text)
    if tags is None or not set(tags) <= {*GRID, *LANES}:
        raise call.refuse(
            plan,
            f"{text} is not that thread axes are 0, and could lose results",
            facts=[("allowed", "tx.var.equal(0), joined by &")],
            hint="write a condition on results into the definition with te.if_then_else",
        )
    for axis in stage.leaf_axes:
        mark = stage.mark(axis)
        bound = GRID[mark.program] if mark.kind is LoopKind.PROGRAM else mark.thread
        if axis.kind is not AxisKind.REDUCE and bound in tags:
            name = labels(stage)[axis]
            raise call.refuse(
                plan,
                f"{name} is bound to {bound}: of its elements only the first would be stored",
                axis=axis,
                hint=f"leave the condition away, each element of {stage.name} is stored once",
            )
    return plan


def _first_threads(condition: Expr) -> tuple[str, ...] | None:
    """The tags t of a condition `t1 == 0 & t2 == 0`; None for any other."""
    match condition:
        case Binary(op=BinaryOp.AND, a=a, b=b):
            first, second = _first_threads(a), _first_threads(b)
            return None if first is None or second is None else (*first, *second)
        case Compare(op=CompareOp.EQ, a=Var(name=name), b=b) if constant(b) == 0:
            return (name,)
        case _:
            return None


def _tags_of(text: str) -> tuple[str, ...] | None:
    found = [_TERM.fullmatch(term) for term in text.split("&")]
    return tuple(match[1] for match in found if match) if all(found) else None
