"""Staged copies: cache_read, cache_write.  The graph is rebuilt; axes of existing stages stay the
same objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.nodes import Axis, AxisKind, Expr, Range, Reduce, TensorRead
from tedsl.expr.visit import substitute
from tedsl.scheduling.plan import AT_ROOT, At, Online, Placement, Plan, StagePlan
from tedsl.scheduling.plan.graph import fresh_stage, insert_after, insert_before, reroute
from tedsl.scheduling.plan.labels import labels, unique_name
from tedsl.scheduling.plan.relations import integer
from tedsl.scheduling.plan.scan_structure import is_state, scan_of, step_place
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.legality import (
    all_outputs,
    require_loops_of_definition,
    require_no_guests,
    require_not_inlined,
    require_readers,
)
from tedsl.scheduling.primitives.online.legality import require_complete
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.placement.rewrite import scope_of
from tedsl.scheduling.primitives.scans.legality import require_no_scan
from tedsl.tensor.tensor import ComputeOp, Tensor


def data_axis(name: str, extent: Expr) -> Axis:
    """A root data axis of the given extent."""
    return Axis(name, AxisKind.DATA, Range(integer(0, extent.dtype), extent), extent.dtype)


def stage_name(plan: Plan, base: str, suffix: str) -> str:
    """A name for a stage derived from the stage `base`."""
    return unique_name(f"{base}.{suffix}", {stage.name for stage in plan.stages})


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
    names = (
        [labels(source)[axis] for axis in source.op.axes]
        if isinstance(source.op, ComputeOp)
        else [f"ax{place}" for place in range(tensor.ndim)]
    )
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


def cache_write(
    plan: Plan, call: Call, tensors: Sequence[Tensor], scope: object
) -> tuple[Plan, str]:
    """C[i] = f(i) --> C.local[i] = f(i); C[i] = C.local[i].

    The dimensions of the cache follow the order of the data loops (reorder before this call gives
    another layout), and its loops are those of the stage as they are now.
    """
    op = all_outputs(plan, call, tensors)
    stage = plan.stage_of(op)
    kind = scope_of(plan, call, scope)
    require_not_inlined(plan, call, stage)
    require_no_scan(plan, call, stage, "its rows are stored where its steps read them")
    require_loops_of_definition(plan, call, stage)
    require_no_guests(plan, call, stage)
    name = stage_name(plan, stage.name, kind.value)
    fresh = {axis: _copied(axis) for axis in op.axes}
    order = tuple(axis for axis in stage.leaf_axes if axis in fresh)
    inner = ComputeOp(
        name,
        tuple(fresh[axis] for axis in order),
        _moved_bodies(op, fresh),
        tuple(_extent(axis) for axis in order),
        op.reduce_axes,
        op.tag,
    )
    outer = ComputeOp(
        op.name,
        op.axes,
        tuple(TensorRead(tensor, order) for tensor in inner.outputs),
        op.shape,
        tag=op.tag,
    )
    cached = StagePlan(
        name,
        inner,
        leaf_axes=tuple(fresh.get(axis, axis) for axis in stage.leaf_axes),
        marks={axis: mark for axis, mark in stage.marks.items() if axis not in fresh},
        placement=beside(stage),
        scope=kind,
    )
    copy = replace(
        stage,
        op=outer,
        leaf_axes=order,
        marks={axis: mark for axis, mark in stage.marks.items() if axis in fresh},
    )
    after = insert_before(plan.with_stage(copy), stage.name, cached)
    after = reroute(after, dict(zip(op.outputs, outer.outputs, strict=True)))
    require_places(plan, call, after)
    return after, name


def _copied(axis: Axis) -> Axis:
    return data_axis(f"{axis.name}.c", _extent(axis))


def _extent(axis: Axis) -> Expr:
    return axis.domain.extent if axis.domain is not None else integer(1)


def _moved_bodies(op: ComputeOp, fresh: dict[Axis, Axis]) -> tuple[Expr, ...]:
    """The bodies over other data axes; outputs of one reduction keep sharing their sources."""
    mapping: dict[Expr, Expr] = {**fresh}
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
