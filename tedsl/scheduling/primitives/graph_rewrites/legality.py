"""Legality of primitives that rewrite the graph: cache_read, cache_write, rfactor."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.index_arith import whole_number
from tedsl.expr.nodes import Axis, AxisKind, Reduce
from tedsl.scheduling.algebra.associativity import Verdict, combines_in_any_order
from tedsl.scheduling.kernels.tree import guests
from tedsl.scheduling.plan import Online, Plan, StagePlan
from tedsl.scheduling.plan.graph import is_output, readers, tensors_read
from tedsl.scheduling.plan.labels import axis_text, labels, loops_text
from tedsl.scheduling.primitives.call import Call, kind_of
from tedsl.scheduling.primitives.loops.legality import PLAIN, mark_text, not_any_order
from tedsl.scheduling.primitives.online.legality import require_own_place
from tedsl.tensor.tensor import ComputeOp, ExternOp, ScanOp, Tensor


def require_readers(plan: Plan, call: Call, tensor: Tensor, names: Sequence[str]) -> None:
    """Each of the stages `names` reads `tensor`, and none is named twice."""
    known = ", ".join(stage.name for stage in readers(plan, tensor.op))
    facts = [("readers", known or "none")]
    hint = f"name stages that read {call.stage}"
    if not names:
        raise call.refuse(plan, "no reader is given", facts=facts, hint=hint)
    for place, name in enumerate(names):
        if name in names[:place]:
            raise call.refuse(plan, f"the reader {name} is given twice", facts=facts, hint=hint)
        if isinstance(plan.stage(name).op, ExternOp):
            raise call.refuse(
                plan,
                f"{name} is an extern, and the function that it calls reads {call.stage} whole, "
                "from memory",
                facts=facts,
                hint="name stages of te.compute as readers",
            )
        if tensor not in tensors_read(plan.stage(name).op):
            raise call.refuse(plan, f"{name} does not read {call.stage}", facts=facts, hint=hint)
        if isinstance(plan.stage(name).op, ScanOp) and len(tensor.op.outputs) > 1:
            raise call.refuse(
                plan,
                f"the scan {name} has all results of {call.stage} in its rows, and a copy takes "
                "the place of one of them",
                facts=facts,
                hint=f"name other readers; or define {tensor.name} by a te.compute of its own",
            )


def require_computed(plan: Plan, call: Call, stage: StagePlan) -> ComputeOp:
    """The operation of a stage that expressions define."""
    if isinstance(stage.op, ComputeOp):
        return stage.op
    raise call.refuse(
        plan,
        f"{stage.name} is no stage of te.compute",
        hint="name a tensor that te.compute returned; for an input use s.cache_read",
    )


def require_another_reader(plan: Plan, call: Call, stage: StagePlan, names: Sequence[str]) -> None:
    """Somebody still wants the stage itself."""
    known = [reader.name for reader in readers(plan, stage.op)]
    if is_output(plan, stage.op) or not set(known) <= set(names):
        return
    raise call.refuse(
        plan,
        f"{', '.join(names)} are all that read {stage.name}, which would be computed for nothing",
        facts=[("readers", ", ".join(known))],
        hint="name some of its readers, not all",
    )


def require_no_guests(plan: Plan, call: Call, stage: StagePlan) -> None:
    """Nothing is attached at a loop that the rewrite moves or removes, and the stage does not go
    along with another's loop; nor are there loops that it has no more."""
    require_own_place(plan, call, stage)
    if stage.scatters:
        raise call.refuse(
            plan,
            f"{stage.name} is scattered: data say which of its elements a point is folded into",
            hint=f"call {call.primitive} before scatter",
        )
    for guest in guests(plan, stage):
        at = "" if guest.placement.axis is None else axis_text(plan, guest.placement.axis)
        raise call.refuse(
            plan,
            f"{guest.name} is attached at {at}, a loop that this call rebuilds",
            hint=f"call {call.primitive} before "
            + (
                f"online of {stage.name}"
                if isinstance(guest.placement, Online)
                else f"s[{guest.name}].compute_at"
            ),
        )


def require_loops_of_definition(plan: Plan, call: Call, stage: StagePlan) -> None:
    """The body moves to a new stage together with its axes, hence before they are split."""
    if not stage.relations:
        return
    raise call.refuse(
        plan,
        f"the loops of {stage.name} have been split or fused",
        facts=[("loops", loops_text(stage))],
        hint=f"call {call.primitive} before split, tile and fuse of {stage.name}; "
        "the new stage takes the loops over and is then scheduled itself",
    )


def require_plain_loops(plan: Plan, call: Call, stage: StagePlan) -> None:
    """The loops that give a new stage its dimensions are no longer those of the stage itself."""
    for axis in stage.leaf_axes:
        if axis.kind is AxisKind.DATA and stage.mark(axis) != PLAIN:
            name = labels(stage)[axis]
            raise call.refuse(
                plan,
                f"{name} is marked, and becomes a dimension of the new stage",
                axis=axis,
                facts=[("loops", loops_text(stage))],
                hint=f"call {call.primitive} before bind, vectorize and the like of {stage.name}",
            )


def require_not_inlined(plan: Plan, call: Call, stage: StagePlan) -> None:
    """An inlined stage computes nothing that could be kept."""
    if stage.placement.inlined:
        raise call.refuse(
            plan,
            f"{stage.name} is inlined into its readers",
            hint=f"call s[{stage.name}].compute_root() first",
        )


def all_outputs(plan: Plan, call: Call, tensors: Sequence[Tensor]) -> ComputeOp:
    """The one operation whose outputs `tensors` are, all of them."""
    op = tensors[0].op if tensors else None
    if isinstance(op, ExternOp):
        raise call.refuse(
            plan,
            f"{call.stage} is an extern: {op.function.label} writes it, and not the schedule",
            hint="stage a copy for its readers with s.cache_read",
        )
    if not isinstance(op, ComputeOp):
        raise call.refuse(
            plan,
            f"{call.stage} is an input of the computation, nothing writes it"
            if tensors
            else "no tensor is given",
            hint="name a tensor that te.compute returned; for an input use s.cache_read",
        )
    want = {tensor: None for tensor in op.outputs}
    if {tensor: None for tensor in tensors} == want and len(tensors) == len(want):
        return op
    raise call.refuse(
        plan,
        f"{op.name} has {len(op.outputs)} outputs, which are computed together"
        if all(tensor.op is op for tensor in tensors)
        else "the tensors are not outputs of one operation",
        facts=[("outputs", ", ".join(tensor.name for tensor in op.outputs))],
        hint="give all outputs of one operation, each once",
    )


def reduction(plan: Plan, call: Call, stage: StagePlan) -> tuple[ComputeOp, Reduce]:
    """The operation and its reduction."""
    if isinstance(stage.op, ComputeOp) and isinstance(stage.op.bodies[0], Reduce):
        return stage.op, stage.op.bodies[0]
    raise call.refuse(
        plan,
        f"{stage.name} is no reduction",
        hint=f"call {call.primitive} on a stage whose body is te.sum, te.max, ... or a "
        "te.comm_reducer",
    )


def require_reduce_axis(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """The factored axis is a loop of the reduction."""
    if axis.kind is AxisKind.REDUCE:
        return
    known = labels(stage)
    loops = ", ".join(known[a] for a in stage.leaf_axes if a.kind is AxisKind.REDUCE)
    raise call.refuse(
        plan,
        f"{known[axis]} is a data axis, its iterations are independent already",
        axis=axis,
        facts=[("reduce", loops)],
        hint=f"name a reduce loop of {stage.name}",
    )


def require_no_marks(plan: Plan, call: Call, stage: StagePlan) -> None:
    """The loops are rebuilt: what was said of them would be lost."""
    known = labels(stage)
    for axis in stage.leaf_axes:
        if stage.mark(axis) != PLAIN:
            raise call.refuse(
                plan,
                f"{known[axis]} is {mark_text(stage.mark(axis))}, and the loops of {stage.name} "
                "are rebuilt",
                axis=axis,
                facts=[("loops", loops_text(stage))],
                hint=f"call rfactor before marking loops of {stage.name}, "
                f"or undo it with s[{stage.name}].serial({known[axis]}) first",
            )


def factor_place(
    plan: Plan, call: Call, rank: int, given: object, what: str = "factor_axis"
) -> int:
    """Where a new axis goes among `rank` data axes; negative counts from the end."""
    number = whole_number(given)
    if number is not None and -(rank + 1) <= number <= rank:
        return number if number >= 0 else rank + 1 + number
    raise call.refuse(
        plan,
        f"{what} is {kind_of(given) if number is None else number}",
        facts=[("allowed", f"{-(rank + 1)} .. {rank}")],
        hint=f"give a dimension of the new tensor as {what}",
    )


def require_any_order(
    plan: Plan, call: Call, stage: StagePlan, axis: Axis, consent: object
) -> None:
    """Partial results are combined in another order than the definition has."""
    _, reduce = reduction(plan, call, stage)
    result = combines_in_any_order(reduce.reducer, reduce.sources)
    if result.verdict is Verdict.PROVED or (result.verdict is Verdict.UNKNOWN and consent is True):
        return
    otherwise = (
        "pass consent=True if you know that it is"
        if result.verdict is Verdict.UNKNOWN
        else f"leave {stage.name} as it is"
    )
    raise not_any_order(plan, call, stage, axis, result, otherwise)
