"""Reductions over several axes as reductions over one, for chains, which share one.

    sum(k, l)(x[k, l]) --> sum(f)(x[f // n, f % n])

The loops of a reduction that is scheduled already have to be those of one loop in which its axes
are fused, in order; that loop is the axis then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from tedsl.expr.index_arith import ZERO, constant, widened
from tedsl.expr.nodes import Axis, Cast, Expr, Reduce
from tedsl.expr.visit import substitute
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
    moved: dict[Axis, Axis] = {}
    for each in (*(member.name for member in chain_of(plan, last, along).members), name):
        plan, replaced = _flat(plan, plan.stage(each))
        moved.update(replaced)
    return plan, moved.get(loop, loop)


def _flat(plan: Plan, stage: StagePlan) -> tuple[Plan, Mapping[Axis, Axis]]:
    """The plan in which one reduction has one axis, and what stands for the loop that this was."""
    op = stage.op
    if not isinstance(op, ComputeOp) or any(a.end is not None for a in op.reduce_axes):
        return plan, {}
    if len(op.reduce_axes) < 2:
        return plan, {}
    # An axis of one element is always at its start: no quotient or remainder by it.
    long = [axis for axis in op.reduce_axes if not _of_one(axis)] or op.reduce_axes[:1]
    bare, loop = _fused(fresh_stage(stage.name, op), long)
    whole = reduce_axis(labels(bare)[loop], widened(extents(bare)[loop], loop.dtype))
    stage = _fused(stage, op.reduce_axes)[0] if _untouched(stage, op.reduce_axes) else stage
    fusions = _fusions(stage, op.reduce_axes)
    body = op.bodies[0]
    if len(fusions) + 1 < len(op.reduce_axes) or not isinstance(body, Reduce):
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


def _untouched(stage: StagePlan, axes: Sequence[Axis]) -> bool:
    """True when the axes are loops of a stage, each directly in another, without marks."""
    places = ranks(stage.leaf_axes)
    there = [places.get(axis, -1) for axis in axes]
    plain = not any(axis in stage.marks for axis in axes)
    return plain and there[0] >= 0 and there == list(range(there[0], there[0] + len(there)))


def _fusions(stage: StagePlan, axes: Sequence[Axis]) -> list[Fuse]:
    """What makes one loop of the first of some axes, in order."""
    made = {r.outer: r for r in stage.relations if isinstance(r, Fuse)}
    loop, found = axes[0], list[Fuse]()
    for axis in axes[1:]:
        fusion = made.get(loop)
        if fusion is None or fusion.inner is not axis:
            break
        found.append(fusion)
        loop = fusion.fused
    return found


def _of(relation: Relation, old: Axis, new: Axis) -> Relation:
    """A relation of a new axis for an old one."""
    changes = {f.name: new for f in fields(relation) if getattr(relation, f.name) is old}
    return replace(relation, **changes) if changes else relation
