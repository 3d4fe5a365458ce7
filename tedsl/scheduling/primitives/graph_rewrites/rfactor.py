"""Split reductions: rfactor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import widened
from tedsl.expr.nodes import Axis, AxisKind, Expr, IfThenElse, Range, Reduce, TensorRead
from tedsl.expr.visit import substitute
from tedsl.scheduling.plan import Plan, StagePlan, by_itself
from tedsl.scheduling.plan.graph import defined_anew, fresh_stage, insert_before, reroute
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import add, extents, integer, overruns, positions
from tedsl.scheduling.primitives.arguments import leaf, looped_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.cache import (
    beside,
    data_axis,
    stage_name,
    where_inside,
)
from tedsl.scheduling.primitives.graph_rewrites.legality import (
    factor_place,
    reduction,
    require_any_order,
    require_no_guests,
    require_no_marks,
    require_reduce_axis,
)
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.tensor.tensor import ComputeOp


@dataclass(frozen=True, slots=True)
class Factored:
    """The axes of the partial results: the factored one, those still reduced, and what stands for
    each old axis.
    """

    axis: Axis
    rest: tuple[Axis, ...]
    values: Mapping[Expr, Expr]
    conditions: tuple[Expr, ...]


def rfactor(
    plan: Plan, call: Call, axis: object, factor_axis: object, consent: object
) -> tuple[Plan, str]:
    """B[i] = sum_k A[i, k] --> B.rf[ko, i] = sum_ki A[i, ko * f + ki]; B[i] = sum_ko B.rf[ko,
    i]."""
    stage = looped_stage(plan, call, call.stage)
    op, reduce = reduction(plan, call, stage)
    loop = leaf(plan, call, stage, axis)
    require_reduce_axis(plan, call, stage, loop)
    place = factor_place(plan, call, len(op.axes), factor_axis)
    require_no_guests(plan, call, stage)
    require_no_marks(plan, call, stage)
    require_any_order(plan, call, stage, loop, consent)

    factored = factor(stage, op, loop)
    name = stage_name(plan, stage.name, "rf")
    partial = _partial_op(name, op, reduce, factored, place)
    final = _final_op(stage, op, reduce, partial, loop, place)
    below = replace(fresh_stage(name, partial), placement=beside(stage), scope=stage.scope)
    above = replace(
        defined_anew(stage, final),
        placement=by_itself(stage.placement),
        atomic=stage.atomic,
    )
    after = insert_before(plan.with_stage(above), stage.name, below)
    after = reroute(after, dict(zip(op.outputs, final.outputs, strict=True)))
    require_places(plan, call, after)
    return after, name


def factor(stage: StagePlan, op: ComputeOp, loop: Axis) -> Factored:
    """New axes for the reduce loops, and the old reduce axes over them.

    A root axis with domain min .. min + extent has the value min + position (see `relations`).
    New axes are as wide as the loops they stand for, also where their extents would fit less.
    """
    known, size, position = labels(stage), extents(stage), positions(stage)
    factored = data_axis(known[loop], widened(size[loop], loop.dtype))
    over: dict[Expr, Expr] = {loop: factored}
    rest: list[Axis] = []
    for axis in stage.leaf_axes:
        if axis.kind is AxisKind.REDUCE and axis is not loop:
            kept = (
                axis
                if axis.domain is not None
                else reduce_axis(known[axis], widened(size[axis], axis.dtype))
            )
            over[axis] = kept
            rest.append(kept)
    values: dict[Expr, Expr] = {}
    for axis in op.reduce_axes:
        if over.get(axis) is axis or axis.domain is None:
            continue
        value = add(axis.domain.min, substitute(position[axis], over))
        values[axis] = value if value.dtype is axis.dtype else widened(value, axis.dtype)
    conditions = [
        substitute(condition, over)
        for parent, condition in overruns(stage, position).items()
        if parent.kind is AxisKind.REDUCE
    ]
    return Factored(factored, tuple(rest), values, tuple(conditions))


def reduce_axis(name: str, extent: Expr) -> Axis:
    return Axis(name, AxisKind.REDUCE, Range(integer(0, extent.dtype), extent), extent.dtype)


def _partial_op(
    name: str, op: ComputeOp, reduce: Reduce, factored: Factored, place: int
) -> ComputeOp:
    """The stage of partial results, one for each value of the factored axis."""
    fresh = tuple(data_axis(axis.name, size) for axis, size in zip(op.axes, op.shape, strict=True))
    places: dict[Expr, Expr] = dict(zip(op.axes, fresh, strict=True))
    values = {axis: substitute(value, places) for axis, value in factored.values.items()} | places
    inside = tuple(substitute(condition, places) for condition in factored.conditions)
    where = where_inside(reduce, inside, values)
    sources = tuple(substitute(source, values) for source in reduce.sources)
    bodies: tuple[Expr, ...]
    if factored.rest:
        partial = Reduce(reduce.reducer, sources, factored.rest, where)
        partial = replace(partial, finite=reduce.finite, tf32=reduce.tf32)
        bodies = tuple(replace(partial, index=n) for n in range(len(sources)))
    elif where is None:
        bodies = sources
    else:
        bodies = tuple(
            IfThenElse(where, source, identity)
            for source, identity in zip(sources, reduce.reducer.identity, strict=True)
        )
    axes = (*fresh[:place], factored.axis, *fresh[place:])
    shape = tuple(axis.domain.extent for axis in axes if axis.domain is not None)
    return ComputeOp(name, axes, bodies, shape, factored.rest, op.tag)


def _final_op(
    stage: StagePlan, op: ComputeOp, reduce: Reduce, partial: ComputeOp, loop: Axis, place: int
) -> ComputeOp:
    """The old operation, reducing the partial results."""
    axis = reduce_axis(f"{labels(stage)[loop]}.v", partial.shape[place])
    indices = (*op.axes[:place], axis, *op.axes[place:])
    sources = tuple(TensorRead(tensor, indices) for tensor in partial.outputs)
    whole = Reduce(reduce.reducer, sources, (axis,), init=reduce.init, finish=reduce.finish)
    bodies = tuple(
        replace(whole, index=body.index) for body in op.bodies if isinstance(body, Reduce)
    )
    return ComputeOp(op.name, op.axes, bodies, op.shape, (axis,), op.tag)
