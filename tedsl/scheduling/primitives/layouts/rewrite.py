"""Another layout, or another element type, of a stage and of all reads of it: transform_layout,
set_precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tedsl.dtypes import DType
from tedsl.expr.build import cast, const
from tedsl.expr.index_arith import at, both
from tedsl.expr.mixed_radix import put_together
from tedsl.expr.nodes import (
    Axis,
    BinaryOp,
    Expr,
    Folded,
    IfThenElse,
    Reduce,
    Reducer,
    TensorRead,
)
from tedsl.expr.visit import map_children, substitute, walk
from tedsl.expr.wider import computed_in, with_wider
from tedsl.index.digits import Inverse, invert
from tedsl.index.simplify import simplify
from tedsl.scheduling.handles.index_map import IndexMap
from tedsl.scheduling.invariants.lane_counts import require_all_lanes
from tedsl.scheduling.plan import CallersArray, Plan, StagePlan
from tedsl.scheduling.plan.graph import is_output, readers, reroute, rewrite_reads
from tedsl.scheduling.plan.labels import unique_name
from tedsl.scheduling.primitives.arguments import computed_stage, looped_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.cache import data_axis, where_inside
from tedsl.scheduling.primitives.layouts.legality import (
    index_map,
    not_invertible,
    precision,
    require_elements,
    require_fresh_loops,
    require_not_stored_for_others,
    require_own_buffer,
    require_wider,
)
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.reverse_placement.legality import require_no_chain
from tedsl.scheduling.regions.infer import shape_facts
from tedsl.tensor.reduce import simple_reducer
from tedsl.tensor.tensor import ComputeOp


def transform_layout(plan: Plan, call: Call, fn: object) -> tuple[Plan, Call, tuple[Axis, ...]]:
    """B[i] = f(i); C[i] = B[i] --> B[a, b] = f(a * 4 + b); C[i] = B[i // 4, i % 4]."""
    stage = looped_stage(plan, call, call.stage)
    _, op = computed_stage(plan, call, call.stage)
    require_not_stored_for_others(plan, call, stage, "its shape")
    require_no_chain(plan, call, stage)
    require_fresh_loops(plan, call, stage)
    chosen = index_map(plan, call, op, fn)
    call = replace(call, args=(chosen,))
    facts = shape_facts(s.op.extents for s in plan.stages)
    way_back = invert(chosen.axes, chosen.indices, _names(stage, chosen), facts)
    if way_back is None:
        raise not_invertible(plan, call, chosen)
    array = _callers_array(stage, op, way_back) if is_output(plan, op) else None
    if array is not None and array.conditions:
        require_elements(plan, call, way_back)
    axes = tuple(
        data_axis(axis.name, extent)
        for axis, extent in zip(way_back.axes, way_back.extents, strict=True)
    )
    moved = _moved(op, axes, way_back)
    leaves = (*axes, *op.reduce_axes)
    after = plan.with_stage(replace(stage, op=moved, leaf_axes=leaves, array=array))

    def read(index: int, indices: tuple[Expr, ...]) -> Expr:
        here = at(op.axes, indices)
        there = tuple(simplify(substitute(each, here), facts) for each in chosen.indices)
        return TensorRead(moved.outputs[index], there)

    after = rewrite_reads(after, {tensor: read for tensor in op.outputs})
    now = dict(zip(op.outputs, moved.outputs, strict=True))
    after = replace(after, outputs=tuple(now.get(each, each) for each in after.outputs))
    require_places(plan, call, after)
    require_all_lanes(plan, call, after)
    return after, call, axes


def _callers_array(stage: StagePlan, op: ComputeOp, way_back: Inverse) -> CallersArray:
    """Where the caller's array has the elements of an output over its new axes."""
    old = stage.array or CallersArray(op.axes, op.axes, op.shape)
    here = [way_back.values[axis] for axis in op.axes]
    conditions = (*way_back.conditions, *old.has(here))
    return CallersArray(way_back.axes, old.place(here), old.shape, conditions)


def _names(stage: StagePlan, chosen: IndexMap) -> tuple[str, ...]:
    """An index that is an axis keeps its name, others are numbered."""
    taken = {axis.name for axis in stage.op.reduce_axis}
    found: list[str] = []
    for place, index in enumerate(chosen.indices):
        name = index.name if isinstance(index, Axis) else f"l{place}"
        found.append(unique_name(name, taken))
        taken.add(found[-1])
    return tuple(found)


def _moved(op: ComputeOp, axes: tuple[Axis, ...], way_back: Inverse) -> ComputeOp:
    """The operation over the new axes; a point that is no image of an old one reads nothing."""
    new: dict[Expr, Expr] = dict(zip(way_back.axes, axes, strict=True))
    values: dict[Expr, Expr] = {
        axis: substitute(value, new) for axis, value in way_back.values.items()
    }
    conditions = tuple(substitute(each, new) for each in way_back.conditions)
    first = op.bodies[0]
    bodies: tuple[Expr, ...]
    if isinstance(first, Reduce):
        whole = _moved_reduction(first, values, conditions)
        bodies = tuple(replace(whole, index=b.index) for b in op.bodies if isinstance(b, Reduce))
    else:
        moved = (put_together(substitute(body, values)) for body in op.bodies)
        bodies = tuple(_inside(body, conditions) for body in moved)
    return ComputeOp(op.name, axes, bodies, way_back.extents, op.reduce_axes, op.tag)


def _moved_reduction(
    reduce: Reduce, values: dict[Expr, Expr], conditions: tuple[Expr, ...]
) -> Reduce:
    init = reduce.init
    if init is not None:
        init = tuple(_inside(substitute(each, values), conditions) for each in init)
    finish = reduce.finish
    return Reduce(
        reduce.reducer,
        tuple(put_together(substitute(source, values)) for source in reduce.sources),
        reduce.axes,
        where_inside(reduce, conditions, values),
        init,
        finish=None if finish is None else _inside(substitute(finish, values), conditions),
        finite=reduce.finite,
        tf32=reduce.tf32,
    )


def _inside(body: Expr, conditions: Sequence[Expr]) -> Expr:
    return IfThenElse(both(*conditions), body, const(0, body.dtype)) if conditions else body


_EXTREMES = (BinaryOp.MIN, BinaryOp.MAX)


def set_precision(plan: Plan, call: Call, dtype: object, compute: object) -> tuple[Plan, Call]:
    """B[i] = f(i); C[i] = B[i] --> B[i] = bf16(f(i)); C[i] = f32(B[i])."""
    stage, op = computed_stage(plan, call, call.stage)
    require_own_buffer(plan, call, stage, "its element type")
    require_no_chain(plan, call, stage)
    chosen = precision(plan, call, op, dtype)
    call = replace(call, args=(*call.args[:1], chosen))
    wide = require_wider(plan, call, op, chosen, compute)
    rounded = replace(op, bodies=_rounded(plan, call, op, chosen, wide))
    after = plan.with_stage(replace(stage, op=rounded))
    if wide:
        after = _read_wide(after, op, rounded)
        require_places(plan, call, after)
        return after, call

    def read(index: int, indices: tuple[Expr, ...]) -> Expr:
        return cast(TensorRead(rounded.outputs[index], indices), op.output_dtypes[index])

    after = rewrite_reads(after, {tensor: read for tensor in op.outputs})
    require_places(plan, call, after)
    return after, call


def _read_wide(plan: Plan, old: ComputeOp, new: ComputeOp) -> Plan:
    """The plan whose stages read `new` for `old`, compute with what they read, and round their
    results."""
    tensors = dict(zip(old.outputs, new.outputs, strict=True))

    def read(node: Expr) -> Expr | None:
        tensor = tensors.get(node.tensor) if isinstance(node, TensorRead) else None
        return TensorRead(tensor, node.indices) if isinstance(node, TensorRead) and tensor else None

    def rounded(expr: Expr) -> Expr:
        return cast(with_wider(expr, read), expr.dtype)

    for reader in readers(plan, old):
        stage = plan.stage(reader.name)
        if isinstance(stage.op, ComputeOp):
            op = replace(stage.op, bodies=_each(stage.op.bodies, rounded))
            plan = plan.with_stage(replace(stage, op=op))
            plan = reroute(plan, dict(zip(stage.op.outputs, op.outputs, strict=True)))
    outputs = tuple(tensors.get(tensor, tensor) for tensor in plan.outputs)
    return replace(plan, outputs=outputs)


def _each(bodies: Sequence[Expr], change: Callable[[Expr], Expr]) -> tuple[Expr, ...]:
    """The bodies with what they compute changed; outputs of one reduction keep sharing it."""
    first = bodies[0]
    if not isinstance(first, Reduce):
        return tuple(change(body) for body in bodies)
    whole = map_children(first, change)
    return tuple(
        replace(whole, index=body.index)
        for body in bodies
        if isinstance(body, Reduce) and isinstance(whole, Reduce)
    )


def _rounded(plan: Plan, call: Call, op: ComputeOp, dtype: DType, wide: bool) -> tuple[Expr, ...]:
    own = computed_in if wide else cast
    first = op.bodies[0]
    if not isinstance(first, Reduce):
        return tuple(own(body, dtype) for body in op.bodies)
    reducer = _reducer(plan, call, first, dtype)
    init = first.init
    if init is None and dtype.is_integer and first.reducer.operator in _EXTREMES:
        init = first.reducer.identity  # the least value of the old type, not of the wider one
    sources = tuple(own(source, dtype) for source in first.sources)
    init = None if init is None else tuple(own(each, dtype) for each in init)
    end = computed_in if wide else _finish
    finish = None if first.finish is None else end(first.finish, dtype)
    whole = Reduce(reducer, sources, first.axes, first.where, init)
    return (replace(whole, finish=finish, finite=first.finite, tf32=first.tf32),)


def _finish(finish: Expr, dtype: DType) -> Expr:
    """What is applied to values folded in `dtype`, as it is computed of those folded before."""
    folded: dict[Expr, Expr] = {
        node: cast(Folded(node.index, dtype), node.dtype)
        for node in walk(finish)
        if isinstance(node, Folded)
    }
    return cast(substitute(finish, folded), dtype)


def _reducer(plan: Plan, call: Call, reduce: Reduce, dtype: DType) -> Reducer:
    """The same combination of values of another type."""
    operator = reduce.reducer.operator
    if operator is None:
        raise call.refuse(
            plan,
            f"{call.stage} is reduced by {reduce.reducer.name}, whose combination is written for "
            "its element types",
            hint=f'use cache = s.cache_write({call.stage}, "local") for what is accumulated, and '
            f"set_precision of {call.stage}, which then only stores it; "
            "or define the reducer for other types",
        )
    return simple_reducer(operator, dtype)
