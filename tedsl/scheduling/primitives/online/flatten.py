"""Reductions over several axes as reductions over one, for chains, which share one.

    sum(k, l)(x[k, l]) --> sum(f)(x[f // n, f % n])

The loops of a reduction that is scheduled already have to be those of one loop in which its axes
are fused; that loop is the axis then.  The others of a chain have theirs in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from tedsl.expr.index_arith import ZERO, constant, widened
from tedsl.expr.nodes import Axis, Cast, Expr, Reduce
from tedsl.expr.visit import substitute
from tedsl.scheduling.algebra.associativity import Verdict, combines_in_any_order
from tedsl.scheduling.plan import Fuse, Plan, Relation, StagePlan
from tedsl.scheduling.plan.graph import fresh_stage, reroute
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import add, extents, fuse_loops, positions, ranks
from tedsl.scheduling.primitives.graph_rewrites.rfactor import reduce_axis
from tedsl.scheduling.primitives.loops.rewrite import moved_guests
from tedsl.scheduling.primitives.online.chain import chain_of
from tedsl.tensor.tensor import ComputeOp


def flattened(
    plan: Plan, name: str, loop: Axis, along: Sequence[str] = (), whole: bool = False
) -> tuple[Plan, Axis]:
    """The plan in which a reduction and those that it depends on have one axis each, where they
    can, and the loop `loop` of the reduction in it; with `whole` it need not be a loop of all."""
    last = plan.stage(name)
    if not isinstance(last.op, ComputeOp) or len(last.op.reduce_axes) < 2:
        return plan, loop
    if not whole and loop in ranks(last.op.reduce_axes):
        return plan, loop
    order = _order(last, last.op.reduce_axes)
    moved: dict[Axis, Axis] = {}
    for each in (*(member.name for member in chain_of(plan, last, along).members), name):
        plan, replaced = _flat(plan, plan.stage(each), order)
        moved.update(replaced)
    return plan, moved.get(loop, loop)


def _order(stage: StagePlan, axes: Sequence[Axis]) -> Sequence[int]:
    """The numbers of some axes in the order in which their loops are fused into one."""
    inner = {r.inner for r in stage.relations if isinstance(r, Fuse)}
    places = ranks(axes)
    for first in (axis for axis in axes if axis not in inner):
        rest = [r.inner for r in _fusions(stage, first)[: len(axes) - 1]]
        found = [places[axis] for axis in (first, *rest) if axis in places]
        if len(found) == len(axes):
            return found
    return range(len(axes))


def _flat(plan: Plan, stage: StagePlan, order: Sequence[int]) -> tuple[Plan, Mapping[Axis, Axis]]:
    """The plan in which one reduction has one axis, and what stands for the loop that this was."""
    op = stage.op
    if not isinstance(op, ComputeOp) or any(a.end is not None for a in op.reduce_axes):
        return plan, {}
    body = op.bodies[0]
    if len(op.reduce_axes) < 2 or not isinstance(body, Reduce):
        return plan, {}
    free = combines_in_any_order(body.reducer, body.sources).verdict is Verdict.PROVED
    axes = op.reduce_axes
    if free and len(order) == len(axes):
        axes = tuple(axes[n] for n in order)
    # An axis of one element is always at its start: no quotient or remainder by it.
    long = [axis for axis in axes if not _of_one(axis)] or axes[:1]
    bare = replace(fresh_stage(stage.name, op), leaf_axes=(*op.axes, *axes))
    bare, loop = _fused(bare, long)
    whole = reduce_axis(labels(bare)[loop], widened(extents(bare)[loop], loop.dtype))
    at = _untouched(stage, op.reduce_axes)
    if at is not None:
        leaves = (*stage.leaf_axes[:at], *axes, *stage.leaf_axes[at + len(axes) :])
        stage, _ = _fused(replace(stage, leaf_axes=leaves), axes)
    fusions = _fusions(stage, axes[0])[: len(axes) - 1]
    if len(fusions) + 1 < len(axes) or any(
        fusion.inner is not axis for fusion, axis in zip(fusions, axes[1:], strict=True)
    ):
        return plan, {}
    known, values = positions(bare), dict[Expr, Expr]()
    where = {axis: known[axis] for axis in long}
    for axis in op.reduce_axes:
        if axis.domain is not None:
            place = substitute(where[axis], {loop: whole}) if axis in where else ZERO
            value = add(axis.domain.min, place)
            values[axis] = value if value.dtype is axis.dtype else Cast(value, axis.dtype)
    sources = tuple(substitute(each, values) for each in body.sources)
    guard = None if body.where is None else substitute(body.where, values)
    body = replace(body, axes=(whole,), sources=sources, where=guard)
    bodies = tuple(replace(body, index=b.index) for b in op.bodies if isinstance(b, Reduce))
    new, old = replace(op, bodies=bodies, reduce_axes=(whole,)), fusions[-1].fused
    changed = replace(
        stage,
        op=new,
        leaf_axes=tuple(whole if a is old else a for a in stage.leaf_axes),
        relations=tuple(_of(r, old, whole) for r in stage.relations if r not in fusions),
        marks={whole if a is old else a: mark for a, mark in stage.marks.items()},
    )
    plan = moved_guests(plan.with_stage(changed), changed, {old: whole})
    plan = reroute(plan, dict(zip(op.outputs, new.outputs, strict=True)))
    return plan, {old: whole}


def _of_one(axis: Axis) -> bool:
    return axis.domain is not None and constant(axis.domain.extent) == 1


def _fused(stage: StagePlan, axes: Sequence[Axis]) -> tuple[StagePlan, Axis]:
    loop = axes[0]
    for axis in axes[1:]:
        stage, loop = fuse_loops(stage, loop, axis)
    return stage, loop


def _untouched(stage: StagePlan, axes: Sequence[Axis]) -> int | None:
    """The place of axes that are loops of a stage, each directly in another, without marks."""
    places = ranks(stage.leaf_axes)
    there = [places.get(axis, -1) for axis in axes]
    plain = not any(axis in stage.marks for axis in axes)
    together = there == list(range(there[0], there[0] + len(there)))
    return there[0] if plain and there[0] >= 0 and together else None


def _fusions(stage: StagePlan, first: Axis) -> list[Fuse]:
    """What makes one loop of an axis and those inside it."""
    made = {r.outer: r for r in stage.relations if isinstance(r, Fuse)}
    found = list[Fuse]()
    while first in made:
        found.append(made[first])
        first = found[-1].fused
    return found


def _of(relation: Relation, old: Axis, new: Axis) -> Relation:
    """A relation of a new axis for an old one."""
    changes = {f.name: new for f in fields(relation) if getattr(relation, f.name) is old}
    return replace(relation, **changes) if changes else relation
