"""Legality of moves that go from a producer to its reader: reverse_compute_at,
reverse_compute_inline, decompose_reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis, AxisKind, Expr, TensorRead
from tedsl.expr.visit import reads
from tedsl.index.prove import equal
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.kernels.tree import guests
from tedsl.scheduling.plan import Online, Plan, StagePlan
from tedsl.scheduling.plan.graph import is_output, is_reduction, loop_readers
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.plan.labels import axis_text, labels, loops_text
from tedsl.scheduling.plan.relations import constant, extents
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.loops.legality import PLAIN, mark_text, require_own_nest
from tedsl.scheduling.primitives.placement.legality import nest, readers_text
from tedsl.scheduling.primitives.scans.legality import require_no_scan
from tedsl.scheduling.regions.infer import infer
from tedsl.tensor.tensor import ComputeOp


def require_pair(plan: Plan, call: Call, reader: StagePlan, producer: StagePlan) -> None:
    """`reader` is the only stage with loops that reads `producer`, and both stand at root."""
    for each in (reader, producer):
        require_no_scan(plan, call, each, "its loops are those of its steps")
    if producer.name == reader.name:
        raise call.refuse(
            plan,
            f"{producer.name} does not read itself",
            hint=f"name the stage that {reader.name} reads",
        )
    found = loop_readers(plan, producer.op)
    if reader not in found:
        raise call.refuse(
            plan,
            f"{reader.name} does not read {producer.name}",
            facts=[("readers", ", ".join(each.name for each in found) or "none")],
            hint=f"name a stage that {reader.name} reads",
        )
    if is_output(plan, producer.op):
        raise call.refuse(
            plan,
            f"{producer.name} is an output of the schedule and stays at root",
            hint=f"use s.cache_write({producer.name}, scope) and move the cache stage",
        )
    for stage in (reader, producer):
        if not stage.placement.at_root:
            where = (
                "inlined"
                if stage.placement.inlined
                else f"computed at {axis_text(plan, stage.placement.axis)}"
                if stage.placement.axis is not None
                else ""
            )
            raise call.refuse(
                plan,
                f"{stage.name} is {where} and has no kernel of its own",
                hint=f"call s[{stage.name}].compute_root() first",
            )
    require_own_nest(plan, call, producer)
    others = [each.name for each in found if each is not reader]
    nested = {guest.name for guest in guests(plan, reader)}
    outside = [name for name in others if name not in nested]
    if outside:
        raise call.refuse(
            plan,
            f"{producer.name} is also read by {', '.join(outside)}, which would no longer find it",
            facts=[("readers", lambda: readers_text(plan, producer))],
            hint=f"first attach {outside[0]} inside {reader.name}, or leave {producer.name} "
            f"at root and use s[{producer.name}].compute_at",
        )


def require_no_chain(plan: Plan, call: Call, stage: StagePlan) -> None:
    """The stage takes no part in a chain of dependent reductions: what was proved of it stays."""
    hosts = {each.placement.host for each in plan.stages if isinstance(each.placement, Online)}
    if not hosts:
        return
    inside = {stage.name: None}
    if stage.placement.inlined:
        inside = {reader.name: None for reader in loop_readers(plan, stage.op)}
    for name in inside:
        around = (name, *(nest(plan, plan.stage(name)) or {}))
        for host in around:
            if host in hosts:
                raise call.refuse(
                    plan,
                    f"{stage.name} takes part in the reductions that share the loop of {host} "
                    "(online), which were proved as they are",
                    hint=f"call {call.primitive} before s.online({host}), or undo that step",
                )


def require_finished(plan: Plan, call: Call, producer: StagePlan, outer: Sequence[Axis]) -> None:
    """The reader runs where the reduction of `producer` is finished: in data loops only."""
    known = labels(producer)
    for axis in outer:
        if producer.mark(axis).kind is LoopKind.VECTORIZED:
            raise call.refuse(
                plan,
                f"{producer.name}.{known[axis]} is vectorized: its lanes run at once, "
                "nothing can be computed inside it",
                axis=axis,
                facts=[("legal", data_places(plan, producer))],
                hint=f"name a loop of {producer.name} that is not vectorized",
            )
        if axis.kind is AxisKind.REDUCE:
            raise _unfinished(plan, call, producer, axis)


def _unfinished(plan: Plan, call: Call, producer: StagePlan, axis: Axis) -> ScheduleError:
    known = labels(producer)
    extent = constant(extents(producer)[axis])
    element = f"{producer.name}[{', '.join('0' for _ in producer.op.shape)}]"
    first = [known[a] for a in producer.leaf_axes if a.kind is AxisKind.DATA]
    last = [known[a] for a in producer.leaf_axes if a.kind is AxisKind.REDUCE]
    order = ", ".join((*first, *last))
    terms = f"of its {extent} iterations" if extent is not None else "of its iterations"
    return call.refuse(
        plan,
        f"{call.stage} would run inside {producer.name}.{known[axis]}, a reduce loop: at "
        f"{known[axis]} = 0 {element} holds the terms of 1 {terms}, not the result",
        axis=axis,
        facts=[("loops", loops_text(producer)), ("legal", data_places(plan, producer))],
        hint=f"name a data loop outside {known[axis]}; where none is, first "
        f"s[{producer.name}].reorder({order})",
    )


def data_places(plan: Plan, producer: StagePlan) -> str:
    """The loops of `producer` that are outside its reduction and no lanes."""
    known = labels(producer)
    found: list[str] = []
    for axis in producer.loop_order:
        if axis.kind is AxisKind.REDUCE or producer.mark(axis).kind is LoopKind.VECTORIZED:
            break
        found.append(f"{producer.name}.{known[axis]}")
    return ", ".join(found) or "none"


def matching_axes(
    plan: Plan, call: Call, reader: StagePlan, producer: StagePlan, dimensions: Sequence[int]
) -> dict[Axis, Axis]:
    """The data axis of `reader` at which each of the `dimensions` of `producer` is read.

    Every read must have the same axis there, and each dimension another: then one iteration of
    the producer's loops over these dimensions is all that one iteration of the reader's needs.
    """
    shown = inline_stages(plan)
    op = shown.stage(reader.name).op
    source = shown.stage(producer.name).op
    if not isinstance(op, ComputeOp) or not isinstance(source, ComputeOp):
        return {}
    found: dict[Axis, Axis] = {}
    data, used = frozenset(op.axes), set[Expr]()
    accesses = [read for read in reads(*op.bodies) if read.tensor.op is source]
    for dimension in dimensions:
        first: Axis | None = None
        for read in accesses:
            index = read.indices[dimension]
            fits = isinstance(index, Axis) and index in data
            if not fits or (first is not None and index is not first) or index in used:
                raise _mismatch(plan, call, reader, producer, accesses, read, dimension)
            first = index if isinstance(index, Axis) else None
        if first is not None:
            found[source.axes[dimension]] = first
            used.add(first)
    return found


def _mismatch(
    plan: Plan,
    call: Call,
    reader: StagePlan,
    producer: StagePlan,
    accesses: Sequence[TensorRead],
    read: TensorRead,
    dimension: int,
) -> ScheduleError:
    index = read.indices[dimension]
    known = labels(producer)
    axis = producer.root_axes[dimension]
    if isinstance(index, Axis) and index.kind is AxisKind.REDUCE:
        why = (
            f"reads {producer.name} along its reduce axis {index.name}, so that each of its "
            f"elements needs all iterations of {producer.name}.{known[axis]}"
        )
    elif isinstance(index, Axis) and read is accesses[0]:
        why = f"reads two dimensions of {producer.name} at its axis {index.name}"
    else:
        why = (
            f"reads {read}, so that an iteration of its loops needs other iterations of "
            f"{producer.name}.{known[axis]} than the one it would run in"
        )
    return call.refuse(
        plan,
        f"{reader.name} {why}",
        axis=axis,
        facts=[("reads", "; ".join(str(each) for each in accesses))],
        hint=f"every read of {producer.name} must have one data axis of {reader.name}, the same, "
        f"in dimension {dimension}; otherwise use s[{producer.name}].compute_at, "
        "which computes what is read again",
    )


def require_untouched(
    plan: Plan, call: Call, stage: StagePlan, axes: Sequence[Axis], what: str
) -> None:
    """The loops that are replaced are those of the definition, without marks or guests."""
    known = labels(stage)
    leaves = {axis: None for axis in stage.leaf_axes}
    for axis in axes:
        if axis not in leaves:
            raise call.refuse(
                plan,
                f"{stage.name}.{known[axis]} has been split or fused, and {what}",
                axis=axis,
                facts=[("loops", loops_text(stage))],
                hint=f"call {call.primitive} before scheduling {stage.name}",
            )
        if stage.mark(axis) != PLAIN:
            raise call.refuse(
                plan,
                f"{stage.name}.{known[axis]} is {mark_text(stage.mark(axis))}, and {what}",
                axis=axis,
                hint=f"undo it with s[{stage.name}].serial({known[axis]}) first",
            )
        for guest in guests(plan, stage, axis):
            raise call.refuse(
                plan,
                f"{guest.name} is attached at {stage.name}.{known[axis]}, and {what}",
                axis=axis,
                hint=f"call {call.primitive} before s[{guest.name}].compute_at",
            )


def require_one_iteration(
    plan: Plan, call: Call, after: Plan, producer: str, outer: Sequence[Axis]
) -> None:
    """Inside the reader's loops the producer has one iteration left of each loop taken over."""
    shown = own_nests(after)
    bounds = infer(shown)
    now, own = after.stage(producer), shown.stage(producer)
    places = {axis: own.leaf_axes[n] for n, axis in enumerate(now.leaf_axes)}
    for axis in outer:
        extent = bounds[producer].extents[places[axis]]
        count = constant(extent)
        if count is None or count > 1:
            label = labels(now)[axis]
            raise call.refuse(
                plan,
                f"one iteration of the loops of {call.stage} needs {extent} iterations of "
                f"{producer}.{label}, so they cannot be the same loops",
                axis=axis,
                facts=[("loops", loops_text(plan.stage(producer)))],
                hint=f"split the axes of {producer} before fusing them, "
                f"or use s[{producer}].compute_at",
            )


def require_pointwise(
    plan: Plan, call: Call, reader: StagePlan, producer: StagePlan, places: Mapping[Axis, Axis]
) -> None:
    """Every element of `reader` needs one of `producer`, and each is needed once."""
    if is_reduction(reader.op):
        raise call.refuse(
            plan,
            f"{reader.name} is a reduction: its elements need many of {producer.name} each",
            hint=f"use s[{producer.name}].compute_inline(), or compute_at",
        )
    if len(reader.op.shape) != len(producer.op.shape):
        raise call.refuse(
            plan,
            f"{reader.name} has {len(reader.op.shape)} dimensions and {producer.name} has "
            f"{len(producer.op.shape)}: the loops of one are not those of the other",
            hint=f"use s[{producer.name}].compute_inline(), which keeps the loops of {reader.name}",
        )
    for mine, other in places.items():
        if mine.domain is None or other.domain is None:
            continue
        if not equal(mine.domain.extent, other.domain.extent):
            raise call.refuse(
                plan,
                f"{producer.name}.{mine.name} has the extent {mine.domain.extent} and "
                f"{reader.name}.{other.name} has {other.domain.extent}",
                axis=other,
                hint=f"use s[{producer.name}].compute_inline(), which keeps the loops of "
                f"{reader.name}",
            )


def require_starts_outside(plan: Plan, call: Call, stage: StagePlan, axis: Axis) -> None:
    """The accumulators start before every reduce loop."""
    known = labels(stage)
    for outer in stage.loop_order:
        if outer is axis:
            return
        if outer.kind is AxisKind.REDUCE:
            element = f"{stage.name}[{', '.join('0' for _ in stage.op.shape)}]"
            raise call.refuse(
                plan,
                f"the reduce loop {known[outer]} is outside {known[axis]}: starting there, at "
                f"{known[outer]} = 1 {element} would lose what {known[outer]} = 0 added",
                axis=axis,
                facts=[
                    ("loops", loops_text(stage)),
                    ("legal", ", ".join(_starts(stage, known))),
                ],
                hint=f"name {known[outer]} or a loop outside it",
            )


def _starts(stage: StagePlan, known: Mapping[Axis, str]) -> list[str]:
    found: list[str] = []
    for axis in stage.loop_order:
        found.append(f"{stage.name}.{known[axis]}")
        if axis.kind is AxisKind.REDUCE:
            break
    return found
