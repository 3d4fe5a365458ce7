"""Are the arguments of a primitive what they should be: a current loop of the stage, a factor, a
choice?
"""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import (
    LARGEST,
    ONE,
    as_index,
    at_most,
    range_text,
    untyped,
    whole_number,
)
from tedsl.expr.nodes import Axis, Binary, Cast, Const, Expr, Var
from tedsl.expr.visit import walk
from tedsl.index.prove import prove
from tedsl.scheduling.plan import Partitioned, Plan, StagePlan
from tedsl.scheduling.plan.graph import runtime_sizes
from tedsl.scheduling.plan.labels import labels, loops_text, owner
from tedsl.scheduling.plan.relations import came_of, ranks
from tedsl.scheduling.plan.scan_structure import is_state
from tedsl.scheduling.primitives.call import Call, kind_of
from tedsl.scheduling.regions.infer import plan_facts
from tedsl.tensor.tensor import ComputeOp, ExternOp


def computed_stage(plan: Plan, call: Call, name: str) -> tuple[StagePlan, ComputeOp]:
    """The stage and its operation; an input or an inlined stage is refused, for it has no loops."""
    if not plan.has(name):
        raise call.refuse(
            plan,
            f"{name} is no stage of the schedule any more: the step that made it was taken back, "
            "or a later one removed it",
            facts=[("stages", ", ".join(stage.name for stage in plan.stages))],
            hint="fetch the stage again from the schedule, by its tensor or name",
        )
    stage = plan.stage(name)
    if is_state(plan, stage.op):
        raise call.refuse(
            plan,
            f"{name} is the state of a scan: it stands for the result, and has no loops",
            hint="schedule the scan, or what its steps compute",
        )
    if isinstance(stage.op, ExternOp):
        raise call.refuse(
            plan,
            f"{name} is an extern: {stage.op.function.label} computes it, outside of the schedule, "
            "and it has no loops",
            facts=[("legal", "root")],
            hint="schedule the stages before and after it, or define it with te.compute",
        )
    if not isinstance(stage.op, ComputeOp):
        raise call.refuse(
            plan,
            f"{name} is an input of the computation and has no loops",
            hint=f"stage a copy of it with s.cache_read({name}, scope, readers) and schedule that",
        )
    if isinstance(stage.placement, Partitioned):
        head, tail = stage.placement.head, stage.placement.tail
        raise call.refuse(
            plan,
            f"{name} is stored by {head} and {tail} (divide) and has no loops of its own",
            hint=f"schedule s[{head}] and s[{tail}]",
        )
    return stage, stage.op


def looped_stage(plan: Plan, call: Call, name: str) -> StagePlan:
    """A computed stage that is not inlined."""
    stage, _ = computed_stage(plan, call, name)
    if stage.placement.inlined:
        raise call.refuse(
            plan,
            f"{name} is inlined into its readers and has no loops of its own",
            hint=f"call s[{name}].compute_root() first, or schedule its readers",
        )
    return stage


def leaf(plan: Plan, call: Call, stage: StagePlan, axis: object) -> Axis:
    """`axis` when it is a loop of `stage` now."""
    if not isinstance(axis, Axis):
        raise call.refuse(
            plan,
            f"expected a loop of {stage.name}, got {kind_of(axis)}",
            facts=[("loops", loops_text(stage))],
            hint=f"pass an axis of s[{stage.name}].op.axis, s[{stage.name}].op.reduce_axis, "
            "or one that split, tile or fuse returned",
        )
    if axis in ranks(stage.leaf_axes):
        return axis
    raise _not_a_leaf(plan, call, stage, axis)


def _not_a_leaf(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> ScheduleError:
    facts = [("loops", loops_text(stage))]
    fate = came_of(stage, axis)
    if fate is not None:
        known = labels(stage)
        verb, became = fate
        names = ", ".join(known[a] for a in became)
        return call.refuse(
            plan,
            f"{known[axis]} is no loop of {stage.name} any more: it has been {verb} into {names}",
            axis=axis,
            facts=facts,
            hint=f"use {' or '.join(known[a] for a in became)}",
        )
    holder = owner(plan, axis)
    if holder is not None:
        return call.refuse(
            plan,
            f"{axis.name} is an axis of {holder.name}, not of {stage.name}",
            axis=axis,
            facts=facts,
            hint=f"use an axis of {stage.name}"
            + f", or call this on s[{holder.name}]" * (holder.name != call.stage),
        )
    again = f"s[{stage.name}].op.axis or s[{stage.name}].op.reduce_axis"
    retired = plan.retired.get(axis)
    if retired is not None:
        return call.refuse(
            plan,
            f"{axis.name} was an axis of {retired[0]} until {retired[1]} rebuilt it",
            axis=axis,
            facts=facts,
            hint=f"fetch the axes again from {again}",
        )
    return call.refuse(
        plan,
        f"{stage.name} has no axis {axis.name}: it is of another computation, or the step that "
        "made it was taken back (undo)",
        axis=axis,
        facts=facts,
        hint=f"fetch it from {again}",
    )


def distinct_leaves(
    plan: Plan, call: Call, stage: StagePlan, axes: Sequence[object]
) -> tuple[Axis, ...]:
    """All of `axes` as loops of `stage`, none given twice."""
    found: dict[Axis, None] = {}
    for item in axes:
        axis = leaf(plan, call, stage, item)
        if axis in found:
            raise call.refuse(
                plan,
                f"{labels(stage)[axis]} is given twice",
                axis=axis,
                hint="name each loop once",
            )
        found[axis] = None
    return tuple(found)


def size(plan: Plan, call: Call, what: str, value: object, least: Expr | None = ONE) -> Expr:
    """A positive integer, or an integer expression over runtime sizes that is at least `least`."""
    if isinstance(value, Expr):
        if not value.dtype.is_integer or not all(
            isinstance(node, (Const, Var, Binary, Cast)) for node in walk(value)
        ):
            raise call.refuse(
                plan,
                f"{what} must be made of integers and sizes only",
                hint=f"give an int, or an expression over te.var sizes, as {what}",
            )
        if not isinstance(value, Const):
            value = untyped(value)
            _require_known_sizes(plan, call, what, value, least)
            return value
        value = value.value
    number = whole_number(value)
    if number is None or not 1 <= number <= LARGEST:
        shown = number if number is not None else kind_of(value)
        raise call.refuse(
            plan,
            f"{what} is {shown}",
            facts=[("allowed", f"{range_text(1)}, or an expression over te.var sizes")],
            hint=f"give a positive int as {what}",
        )
    return as_index(number)


def whole_size(plan: Plan, call: Call, what: str, value: object) -> int:
    """A positive integer that is known now."""
    found = size(plan, call, what, value)
    if not isinstance(found, Const):
        raise call.refuse(
            plan,
            f"{what} is an expression over runtime sizes",
            facts=[("allowed", range_text(1, 2**31 - 1))],
            hint=f"give a positive int as {what}",
        )
    return positive(plan, call, what, found.value)


def _require_known_sizes(
    plan: Plan, call: Call, what: str, value: Expr, least: Expr | None
) -> None:
    """The kernel knows the sizes of the computation, and a loop never has an extent below 1."""
    known = runtime_sizes(plan)
    for node in walk(value):
        if isinstance(node, Var) and known.get(node.name) is not node:
            raise call.refuse(
                plan,
                f"{what} uses {node.name}, which is no size of the computation",
                facts=[("sizes", ", ".join(known) or "none")],
                hint="use sizes that occur in shapes, e.g. s.size(name), or an int",
            )
    if least is not None and not prove(at_most(least, value), plan_facts(plan)):
        raise call.refuse(
            plan,
            f"{what} could be less than 1",
            hint=f"give te.max({what}, 1), or say s.assume(... >= 1) of the sizes in it",
        )


MOST_STAGES = 64
"""Iterations in flight: each has memory of its own, and code of its own before and behind the
loop."""


def positive(
    plan: Plan, call: Call, what: str, value: object, least: int = 1, most: int = 2**31 - 1
) -> int:
    """An int from `least` to `most`."""
    number = whole_number(value)
    if number is None or not least <= number <= most:
        shown = number if number is not None else kind_of(value)
        raise call.refuse(
            plan,
            f"{what} is {shown}",
            facts=[("allowed", range_text(least, most))],
            hint=f"give {range_text(least, most)} as {what}",
        )
    return number


def choice(
    plan: Plan, call: Call, what: str, value: object, allowed: Sequence[str], others: str = ""
) -> str:
    """One of the allowed words; `others` says what stands for any other."""
    if isinstance(value, str) and value in allowed:
        return str(value)
    raise call.refuse(
        plan,
        f"unknown {what} {value!r}",
        facts=[("allowed", ", ".join(allowed))],
        hint=f"use one of the allowed names as {what}{others}",
    )
