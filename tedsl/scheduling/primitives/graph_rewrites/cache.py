"""Staged copies: cache_read, cache_write.  The graph is rebuilt; axes of existing stages stay the
same objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tedsl.dtypes import DType
from tedsl.expr.build import const
from tedsl.expr.index_arith import both, widened
from tedsl.expr.nodes import Axis, AxisKind, Const, Expr, IfThenElse, Range, Reduce, TensorRead
from tedsl.expr.visit import reads, substitute
from tedsl.scheduling.plan import (
    AT_ROOT,
    At,
    Fuse,
    Online,
    Placement,
    Plan,
    Relation,
    Scatter,
    Skew,
    Split,
    StagePlan,
    Unit,
)
from tedsl.scheduling.plan.copies import stage_name
from tedsl.scheduling.plan.graph import fresh_stage, insert_after, insert_before, reroute
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import extents, integer, overruns, positions, reached
from tedsl.scheduling.plan.scan_structure import is_state, scan_of, step_place
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.legality import (
    all_outputs,
    require_no_guests,
    require_not_inlined,
    require_plain_loops,
    require_readers,
)
from tedsl.scheduling.primitives.online.legality import require_complete
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.placement.rewrite import scope_of
from tedsl.scheduling.primitives.scans.legality import require_no_scan
from tedsl.tensor.tensor import ComputeOp, ScanOp, Tensor


def data_axis(name: str, extent: Expr) -> Axis:
    """A root data axis of the given extent."""
    return Axis(name, AxisKind.DATA, Range(integer(0, extent.dtype), extent), extent.dtype)


def beside(stage: StagePlan) -> Placement:
    """The place of a new stage that belongs to `stage`: with it when it is attached, else root.
    What goes along with a reduction is complete after that, for the kernels behind it."""
    place = stage.placement
    if place.axis is None or isinstance(place, Online):
        return AT_ROOT
    return At(place.host, place.axis)


def cache_read(
    plan: Plan, call: Call, tensor: Tensor, scope: object, readers: Sequence[str]
) -> tuple[Plan, str]:
    """C[i] = f(A[i]) --> A.local[i] = A[i]; C[i] = f(A.local[i])."""
    kind = scope_of(plan, call, scope)
    require_readers(plan, call, tensor, readers)
    source = plan.stage(call.stage)
    require_complete(plan, call, source, readers)
    names = _dimensions(source, tensor)
    axes = tuple(data_axis(name, size) for name, size in zip(names, tensor.shape, strict=True))
    name = stage_name(plan, tensor.name if len(source.op.outputs) > 1 else source.name, kind.value)
    op = ComputeOp(name, axes, (TensorRead(tensor, axes),), tensor.shape)
    scan = scan_of(plan, source.op)
    within = scan is not None and is_state(plan, source.op)
    place = step_place(scan) if scan is not None and within else beside(source)
    cached = replace(fresh_stage(name, op), scope=kind, placement=place)
    online = isinstance(source.placement, Online)
    after = insert_after(plan, source.placement.host if online else source.name, cached)
    after = reroute(after, {tensor: op.outputs[0]}, frozenset(readers))
    require_places(plan, call, after)
    return after, name


def _dimensions(source: StagePlan, tensor: Tensor) -> list[str]:
    """What the axes of a copy of `tensor` are called: as those of the stage that it is made by."""
    op, known = source.op, labels(source)
    match op:
        case ScanOp():
            own = op.rows()[tensor.index][1].indices
            return [known[axis] for axis in own if isinstance(axis, Axis)]
        case ComputeOp():
            return [known[axis] for axis in op.axes]
        case _:
            return [f"ax{place}" for place in range(tensor.ndim)]


def cache_write(
    plan: Plan, call: Call, tensors: Sequence[Tensor], scope: object
) -> tuple[Plan, str]:
    """C[i] = f(i) --> C.local[i] = f(i); C[i] = C.local[i].

    The dimensions of the cache are the data loops as they are now (of a stage that is split,
    C.local[a, b] = f(a * 4 + b); C[i] = C.local[i // 4, i % 4]), and so are its loops; the stage
    has its own again.
    """
    op = all_outputs(plan, call, tensors)
    stage = plan.stage_of(op)
    kind = scope_of(plan, call, scope)
    require_not_inlined(plan, call, stage)
    require_no_scan(plan, call, stage, "its rows are stored where its steps read them")
    require_no_guests(plan, call, stage)
    data = [relation for relation in stage.relations if not _of_reduction(relation)]
    if data:
        require_plain_loops(plan, call, stage)
    name = stage_name(plan, stage.name, kind.value)
    order = tuple(axis for axis in stage.leaf_axes if axis.kind is AxisKind.DATA)
    found = extents(stage)
    sizes = {axis: widened(found[axis], axis.dtype) for axis in order}
    fresh = {axis: data_axis(f"{axis.name}.c", sizes[axis]) for axis in order}
    inner = ComputeOp(
        name,
        tuple(fresh.values()),
        _relaid_bodies(stage, op, fresh),
        tuple(sizes[axis] for axis in order),
        op.reduce_axes,
        op.tag,
    )
    known = reached(stage, {axis: axis for axis in op.axes})
    places = tuple(known[axis] for axis in order)
    outer = ComputeOp(
        op.name,
        op.axes,
        tuple(TensorRead(tensor, places) for tensor in inner.outputs),
        op.shape,
        tag=op.tag,
    )
    cached = StagePlan(
        name,
        inner,
        leaf_axes=tuple(fresh.get(axis, axis) for axis in stage.leaf_axes),
        relations=_carried(plan, call, stage, fresh),
        marks={axis: mark for axis, mark in stage.marks.items() if axis not in fresh},
        placement=beside(stage),
        scope=kind,
    )
    copy = replace(
        stage,
        op=outer,
        leaf_axes=op.axes if data else order,
        relations=(),
        marks={axis: mark for axis, mark in stage.marks.items() if axis in fresh},
    )
    after = insert_before(plan.with_stage(copy), stage.name, cached)
    after = reroute(after, dict(zip(op.outputs, outer.outputs, strict=True)))
    require_places(plan, call, after)
    return after, name


def _carried(
    plan: Plan, call: Call, stage: StagePlan, fresh: Mapping[Axis, Axis]
) -> tuple[Relation, ...]:
    """The relations of reduce axes, over other data axes."""
    found: list[Relation] = []
    for relation in filter(_of_reduction, stage.relations):
        if isinstance(relation, Skew):
            along = relation.along
            if along not in fresh:
                raise call.refuse(
                    plan,
                    f"{relation.parent.name} is skewed along {along.name}, which is split or fused",
                    hint=f"call {call.primitive} before the loops of {along.name} change",
                )
            relation = replace(relation, along=fresh[along])
        found.append(relation)
    return tuple(found)


def _of_reduction(relation: Relation) -> bool:
    """True for a relation of reduce axes."""
    match relation:
        case Split(parent=axis) | Fuse(fused=axis) | Unit(axis=axis) | Skew(parent=axis):
            return axis.kind is AxisKind.REDUCE
        case Scatter():
            return False


def _relaid_bodies(stage: StagePlan, op: ComputeOp, fresh: Mapping[Axis, Axis]) -> tuple[Expr, ...]:
    """The bodies over other data axes, one for each data loop; where loops reach past the end of an
    axis, nothing is reduced and 0 is stored."""
    new: dict[Expr, Expr] = {**fresh}
    known = positions(stage)
    skews = [relation for relation in stage.relations if isinstance(relation, Skew)]
    along: dict[Expr, Expr] = {skew.along: known[skew.along] for skew in skews}
    known = {axis: substitute(position, along) for axis, position in known.items()}
    moved: dict[Expr, Expr] = {axis: substitute(known[axis], new) for axis in op.axes}
    bodies = _moved_bodies(op, moved)
    past = [c for a, c in overruns(stage, known).items() if a.kind is AxisKind.DATA]
    if not past:
        return bodies
    inside = tuple(substitute(each, new) for each in past)

    def guarded(body: Expr) -> Expr:
        return IfThenElse(both(*inside), body, const(0, body.dtype))

    def reduced(body: Reduce) -> Reduce:
        start = None if body.init is None else tuple(map(guarded, body.init))
        return replace(body, where=where_inside(body, inside, {}), init=start)

    return tuple(reduced(b) if isinstance(b, Reduce) else guarded(b) for b in bodies)


def _moved_bodies(op: ComputeOp, mapping: Mapping[Expr, Expr]) -> tuple[Expr, ...]:
    """The bodies over other data axes; outputs of one reduction keep sharing their sources."""
    first = op.bodies[0]
    if not isinstance(first, Reduce):
        return tuple(substitute(body, mapping) for body in op.bodies)
    moved = substitute(first, mapping)
    return tuple(
        replace(moved, index=body.index)
        if isinstance(moved, Reduce) and isinstance(body, Reduce)
        else body
        for body in op.bodies
    )


def where_inside(
    reduce: Reduce, conditions: tuple[Expr, ...], values: Mapping[Expr, Expr]
) -> Expr | None:
    """Where there is something to reduce: inside the old axes, and where the definition says so.

    A `where` that reads is evaluated inside the old axes only.
    """
    if reduce.where is None:
        return both(*conditions) if conditions else None
    where = substitute(reduce.where, values)
    if conditions and reads(where):
        where = IfThenElse(both(*conditions), where, Const(False, DType.bool))
    return both(*conditions, where)
