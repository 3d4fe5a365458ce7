"""Legality of loop structure and marks: splitting, fusing, reordering, binding, vectorizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tedsl.errors import Fact, ScheduleError
from tedsl.expr.nodes import Axis, AxisKind, Reduce
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import axes_of
from tedsl.ir.nodes import LoopKind, PartPolicy, Products
from tedsl.scheduling.algebra.associativity import Result, Verdict, combines_in_any_order
from tedsl.scheduling.kernels.tree import guests, has_own_launch, leader_of, root_of
from tedsl.scheduling.plan import (
    At,
    Cooperative,
    Inlined,
    LastBlock,
    Mark,
    Online,
    Own,
    Partitioned,
    Plan,
    SameGrid,
    SharedLoops,
    Skew,
    StagePlan,
)
from tedsl.scheduling.plan.labels import axis_text, labels, loops_text
from tedsl.scheduling.plan.relations import ranks
from tedsl.scheduling.plan.scattered import inverted, may_scatter, scattered_axes
from tedsl.scheduling.primitives.call import Call, kind_of
from tedsl.scheduling.primitives.marks.atomic import reduction_problem
from tedsl.scheduling.primitives.stage_facts import place_text
from tedsl.tensor.tensor import ComputeOp

PLAIN = Mark()


def require_unmarked(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """A loop that has been bound, vectorized, ... is not taken apart."""
    mark = stage.mark(axis)
    if mark == PLAIN:
        return
    name = labels(stage)[axis]
    raise call.refuse(
        plan,
        f"{name} is already {mark_text(mark)}",
        axis=axis,
        facts=[("loops", loops_text(stage))],
        hint=f"call {call.primitive} before marking the loop, or undo the mark with "
        f"s[{stage.name}].serial({name}) first",
    )


def mark_text(mark: Mark) -> str:
    """What a mark made of a loop, in words."""
    words: list[str] = []
    match mark.kind:
        case LoopKind.PROGRAM:
            order = ", the last first" if mark.descending else ""
            words.append(f"bound to blockIdx.{'xyz'[mark.program]}{order}")
        case LoopKind.SERIAL:
            words += ["in turn"] if mark.implied else []
            words += ["backwards"] if mark.descending else []
        case LoopKind.VECTORIZED if mark.implied:
            words.append("block")
        case kind:
            words.append(kind.value if mark.tensorized is None else "tensorized")
            words += ["backwards"] if mark.descending else []
    if mark.tensorized is not None:
        words[-1] += f" by {mark.tensorized.intrin.name}"
    if mark.cuts.points:
        words.append(f"cut at {', '.join(map(print_expr, mark.cuts.points))}")
    if mark.partition is not PartPolicy.AUTO:
        words.append(f"partitioned {mark.partition.value}")
    if mark.num_stages:
        words.append(f"pipelined in {mark.num_stages} stages")
    if mark.products is not None:
        words.append(products_text(mark.products))
    return " and ".join(words) or "serial"


def require_skew(plan: Plan, call: Call, stage: StagePlan, axis: Axis, along: object) -> None:
    """A loop of the definition is skewed along a data axis of it."""
    roots = ranks(stage.root_axes)
    if axis not in roots:
        raise call.refuse(
            plan,
            f"{labels(stage)[axis]} is not an axis of the definition of {stage.name} any more",
            axis=axis,
            facts=[("loops", loops_text(stage))],
            hint="skew before split and fuse",
        )
    _require_stored_along(plan, call, stage, axis)
    gone = ranks((axis, *scattered_axes(stage)))
    data = [a for a in stage.root_axes if a.kind is AxisKind.DATA and a not in gone]
    if not isinstance(along, Axis) or along not in ranks(data):
        raise call.refuse(
            plan,
            f"{stage.name} cannot be skewed along "
            f"{axis_text(plan, along) if isinstance(along, Axis) else kind_of(along)}",
            axis=axis,
            facts=[("allowed", ", ".join(a.name for a in data) or "nothing: it has no other axis")],
            hint=f"name another one of s[{stage.name}].op.axis",
        )
    for each in stage.relations:
        if isinstance(each, Skew) and (each.parent is along or each.along is axis):
            raise call.refuse(
                plan,
                f"{each.parent.name} is skewed along {each.along.name}: where one starts would "
                "depend on where the other does",
                axis=axis,
                hint="skew loops along axes that are not skewed",
            )


def _require_stored_along(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """An output in another layout has an axis of one element wherever the caller's array has
    none."""
    array, place = stage.array, ranks(stage.op.axis).get(axis)
    if array is not None and place is not None:
        if array.axes[place] in axes_of(*array.indices):
            return
        raise call.refuse(
            plan,
            f"the caller's array of {stage.name} has no dimension of {labels(stage)[axis]}, along "
            "which an element would be stored more than once",
            axis=axis,
            hint="skew an axis of more than one element, or leave it out of the layout of "
            f"{stage.name}",
        )


def require_scatter(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """A data axis of a reduction is scattered where a condition says its value."""
    name, known = stage.name, labels(stage)
    roots = stage.op.axis
    body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    can = may_scatter(body, roots) if isinstance(body, Reduce) else ()
    facts = [("loops", loops_text(stage)), ("allowed", ", ".join(known[a] for a in can) or "none")]
    if axis not in ranks(roots):
        raise call.refuse(
            plan,
            f"{known[axis]} is no data axis of the definition of {name}",
            axis=axis,
            facts=facts,
            hint=f"name one of s[{name}].op.axis, before it is split or fused",
        )
    gone = scattered_axes(stage)
    if not isinstance(body, Reduce) or inverted(body, (*gone, axis)) is None:
        raise call.refuse(
            plan,
            f"no condition of {name} says which {known[axis]} a point is folded into",
            axis=axis,
            facts=facts,
            hint=f"write the reduction with where=X[...] == {known[axis]}, of an integer that "
            "depends on no axis which is scattered",
        )
    for each in stage.relations:
        if isinstance(each, Skew) and each.along is axis:
            raise call.refuse(
                plan,
                f"{known[each.parent]} is skewed along {known[axis]}, which would be no loop",
                axis=axis,
                hint="leave skew out, or skew along another axis",
            )
    for guest in guests(plan, stage, axis):
        raise call.refuse(
            plan,
            f"{guest.name} is {place_text(guest)}, which would be no loop any more",
            axis=axis,
            hint=f"call scatter before s[{guest.name}].compute_at, or name another loop there",
        )


def products_text(products: Products) -> str:
    """What was said of the products of a reduce axis, in words."""
    if not products.dot:
        return "no dot"
    sure = " of finite operands" if products.finite else ""
    return f"given the dot precision {products.precision.value}{sure}"


def require_adjacent(plan: Plan, call: Call, stage: StagePlan, axes: tuple[Axis, ...]) -> None:
    """Fused loops stand directly inside each other, in the order given."""
    known = labels(stage)
    rank = ranks(stage.leaf_axes)
    order = [rank[axis] for axis in axes]
    if order == list(range(order[0], order[0] + len(axes))):
        return
    names = ", ".join(known[axis] for axis in axes)
    named = {axis: None for axis in axes}
    between = stage.leaf_axes[min(order) : max(order) + 1]
    together = ", ".join(known[axis] for axis in (*axes, *(a for a in between if a not in named)))
    if sorted(order) == list(range(min(order), min(order) + len(axes))):
        right = ", ".join(known[axis] for axis in sorted(axes, key=lambda axis: rank[axis]))
        raise call.refuse(
            plan,
            f"{names} are not in the order of the loops",
            axis=axes[0],
            facts=[("loops", loops_text(stage))],
            hint=f"fuse({right}), or first reorder({names})",
        )
    raise call.refuse(
        plan,
        f"{names} are not directly inside each other",
        axis=axes[0],
        facts=[("loops", loops_text(stage))],
        hint=f"first s[{stage.name}].reorder({together})",
    )


def require_one_kind(plan: Plan, call: Call, stage: StagePlan, axes: tuple[Axis, ...]) -> None:
    """Data axes fuse with data axes and reduce axes with reduce axes."""
    if len({axis.kind for axis in axes}) == 1:
        return
    known = labels(stage)
    groups = {
        kind: ", ".join(known[a] for a in axes if a.kind is kind)
        for kind in (AxisKind.DATA, AxisKind.REDUCE)
    }
    raise call.refuse(
        plan,
        f"{groups[AxisKind.DATA]} is data-parallel and {groups[AxisKind.REDUCE]} is a reduction; "
        "a loop over both could be neither bound nor vectorized",
        axis=axes[0],
        facts=[("loops", loops_text(stage))],
        hint="fuse axes of one kind; to make a reduce axis data-parallel use s.rfactor",
    )


def require_plain_kind(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """A loop gets one way of running; a second one is not silently put over the first."""
    mark = stage.mark(axis)
    if mark.kind is LoopKind.SERIAL and mark.num_stages == 0:
        return
    name = labels(stage)[axis]
    raise call.refuse(
        plan,
        f"{name} is already {mark_text(mark)}",
        axis=axis,
        hint=f"undo it with s[{stage.name}].serial({name}) first",
    )


def require_forwards(plan: Plan, call: Call, stage: StagePlan, axis: Axis, how: str) -> None:
    """Iterations that run at once have no order to be turned around."""
    if not stage.mark(axis).descending:
        return
    name = labels(stage)[axis]
    raise call.refuse(
        plan,
        f"{name} is {mark_text(stage.mark(axis))}, and its iterations would {how}",
        axis=axis,
        hint=f"undo it with s[{stage.name}].serial({name}) first",
    )


def require_any_order(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """Iterations that run in the opposite order fold nothing and pass nothing on."""
    if axis.kind is AxisKind.DATA:
        return
    name = labels(stage)[axis]
    data = ", ".join(labels(stage)[a] for a in stage.leaf_axes if a.kind is AxisKind.DATA)
    raise call.refuse(
        plan,
        f"{name} is a reduce axis: its iterations fold into one result, in their order",
        axis=axis,
        facts=[("loops", loops_text(stage)), ("legal", data or "none")],
        hint="leave it as it is, and turn a loop that reads the same data again",
    )


def require_data_parallel(plan: Plan, call: Call, stage: StagePlan, axis: Axis, how: str) -> None:
    """Iterations that run on different threads or programs must not write one result, except
    atomically."""
    if axis.kind is AxisKind.DATA or stage.atomic:
        return
    name = labels(stage)[axis]
    body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    ordered = (
        isinstance(body, Reduce)
        and combines_in_any_order(body.reducer, body.sources).verdict is not Verdict.PROVED
    )
    atomic = (
        ""
        if reduction_problem(stage)
        else (f"call s[{stage.name}].atomic() first, so that parts are combined one at a time, ")
    )
    element = f"{stage.name}[{', '.join('0' for _ in stage.op.shape)}]"
    raise call.refuse(
        plan,
        f"{name} is a reduce axis: its iterations write the same elements of {stage.name}, "
        f"so running them {how} is a race: {name} = 0 and {name} = 1 both update {element}",
        axis=axis,
        facts=[("loops", loops_text(stage)), ("legal", _data_loops(stage) or "none")],
        hint="keep it serial, for its reducer depends on the order; name a data loop"
        if ordered
        else f"make it data-parallel with s.rfactor({stage.name}, {name}), {atomic}"
        "or use vectorize, whose lanes are combined afterwards",
    )


def _data_loops(stage: StagePlan) -> str:
    known = labels(stage)
    return ", ".join(known[axis] for axis in stage.leaf_axes if axis.kind is AxisKind.DATA)


def require_lanes(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """Lanes run all at once; those of a reduction are combined after the loop, in no particular
    order."""
    if stage.mark(axis).cuts.points or stage.mark(axis).partition is not PartPolicy.AUTO:
        name = labels(stage)[axis]
        raise call.refuse(
            plan,
            f"{name} is {mark_text(stage.mark(axis))}, and lanes of a tile have no parts",
            axis=axis,
            hint=f"undo it with s[{stage.name}].serial({name}) first",
        )
    if axis.kind is AxisKind.DATA or not isinstance(stage.op, ComputeOp):
        return
    body = stage.op.bodies[0]
    if not isinstance(body, Reduce):
        return
    result = combines_in_any_order(body.reducer, body.sources)
    if result.verdict is Verdict.PROVED:
        return
    raise not_any_order(plan, call, stage, axis, result, "keep the loop serial")


def not_any_order(
    plan: Plan, call: Call, stage: StagePlan, axis: Axis, result: Result, otherwise: str
) -> ScheduleError:
    """The refusal for a reducer whose partial results may not be combined in any order."""
    body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    name = body.reducer.name if isinstance(body, Reduce) else "its reducer"
    refuted = result.verdict is Verdict.REFUTED
    return call.refuse(
        plan,
        f"the reducer {name} of {stage.name} is not "
        f"{'' if refuted else 'known to be '}associative and commutative, "
        "and this combines partial results in another order",
        axis=axis,
        facts=[("because", result.text)],
        hint=f"{otherwise}, or write the combination "
        + (
            "so that equal values are told apart (e.g. by the smaller index)"
            if isinstance(body, Reduce) and len(body.sources) > 1
            else "as an associative one (a difference as the sum of negated terms)"
        ),
    )


def require_one_loop_of_the_grid(
    plan: Plan, call: Call, stage: StagePlan, axis: Axis, program: int
) -> None:
    """Each dimension of the grid is bound once."""
    known = labels(stage)
    for other in stage.leaf_axes:
        mark = stage.mark(other)
        if mark.kind is LoopKind.PROGRAM and mark.program == program:
            raise call.refuse(
                plan,
                f"{known[other]} and {known[axis]} are both bound to blockIdx.{'xyz'[program]}",
                axis=axis,
                hint=f"fuse {known[other]} and {known[axis]} before binding, "
                "or use another of blockIdx.x, blockIdx.y, blockIdx.z",
            )


def require_own_kernel(plan: Plan, call: Call, stage: StagePlan, what: str) -> None:
    """Only a stage at root has a kernel of its own."""
    if has_own_launch(plan, stage):
        return
    where = (
        "inlined"
        if stage.placement.inlined
        else f"computed inside the kernel of {root_of(plan, stage).name}"
    )
    raise call.refuse(
        plan,
        f"{stage.name} is {where}, so {what}",
        hint=f"call this on s[{root_of(plan, stage).name}]"
        if stage.placement.axis is not None
        else f"call s[{stage.name}].compute_root() first",
    )


def require_own_nest(plan: Plan, call: Call, stage: StagePlan, facts: Sequence[Fact] = ()) -> None:
    """A stage that runs with others, or that others store, goes nowhere else before it is by
    itself."""
    name, place = stage.name, stage.placement
    match place:
        case Own():
            return
        case SharedLoops() | SameGrid():
            reason = f"{name} runs together with {place.leader}"
        case LastBlock() if call.primitive == "compute_last":
            return
        case Inlined() | At() | Online() | Cooperative() | LastBlock() | Partitioned():
            reason = f"{name} is {place_text(stage)}, and has no programs of its own"
        case _:
            assert_never(place)
    raise call.refuse(plan, reason, facts=facts, hint=f"first call s[{name}].compute_root()")


def require_leader(plan: Plan, call: Call, stage: StagePlan) -> None:
    """A kernel has the name of the stage that leads it."""
    leader = leader_of(plan, stage)
    if leader is not stage:
        raise call.refuse(
            plan,
            f"{stage.name} runs together with {leader.name}, in one kernel",
            hint=f"call {call.primitive} on s[{leader.name}]",
        )


def require_no_options(
    plan: Plan, call: Call, stage: StagePlan, where: str, facts: Sequence[Fact] = ()
) -> None:
    """What was said of the kernel of a stage is said of another where it has none."""
    kernel = stage.placement.kernel
    if kernel.said:
        raise call.refuse(
            plan,
            f"{stage.name} has {kernel.said}, and only a kernel of its own has them",
            facts=facts,
            hint=f"call {kernel.primitive} on {where}",
        )
