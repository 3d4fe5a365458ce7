"""Give every stage loops of its own, where two definitions share a reduction axis.

`k = te.reduce_axis(...)` may be used in several definitions, and users name loops by it.  In the
loop nests an axis is bound once.  Used before `regions` and the lowering; imports `expr` and
`plan`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import assert_never

from tedsl.expr.nodes import Axis, Expr, Reduce
from tedsl.expr.visit import rewrite
from tedsl.scheduling.kernels.tree import hosts
from tedsl.scheduling.plan import (
    At,
    Cooperative,
    Fuse,
    Inlined,
    Kept,
    LastBlock,
    Online,
    Own,
    Partitioned,
    Placement,
    Plan,
    Relation,
    SameGrid,
    Scatter,
    SharedLoops,
    Skew,
    Split,
    StagePlan,
    Unit,
)
from tedsl.scheduling.plan.bounded_reads import bound_reads
from tedsl.scheduling.plan.inline import inline_stages, reading, reading_whole
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation


def own_nests(plan: Plan) -> Plan:
    """The plan without inlined stages, with each axis in one stage only, and with no read outside
    its tensor."""
    return separate_axes(inline_stages(bound_reads(plan)))


def separate_axes(plan: Plan) -> Plan:
    """The plan with each axis in one stage only; the same object when that holds already.

    Before:  M[i] = max(k)(X[i, k]);  S[i] = sum(k)(exp(X[i, k] - M[i]))
    After:   M[i] = max(k)(X[i, k]);  S[i] = sum(k')(exp(X[i, k'] - M[i]))
    """
    owner: dict[Axis, str] = {}
    clones: dict[str, dict[Axis, Axis]] = {}
    for stage in plan.stages:
        shared = [a for a in stage.root_axes if owner.setdefault(a, stage.name) != stage.name]
        if shared:
            clones[stage.name] = {a: _clone(stage.name, a) for a in shared}
    if not clones:
        return plan
    renamed: dict[Operation, Operation] = {}
    stages: list[StagePlan] = []
    for stage in plan.stages:
        moved = _renamed(stage, clones.get(stage.name, {}))
        if isinstance(moved.op, ComputeOp):
            moved = replace(moved, op=reading(moved.op, {}, renamed))
        elif isinstance(moved.op, ExternOp):
            moved = replace(moved, op=reading_whole(moved.op, renamed))
        if moved.op is not stage.op:
            renamed[stage.op] = moved.op
        placement = _placement(plan, stage, clones)
        if placement is not stage.placement:
            moved = replace(moved, placement=placement)
        stages.append(moved)
    outputs = tuple(renamed.get(t.op, t.op).outputs[t.index] for t in plan.outputs)
    return replace(plan, stages=tuple(stages), outputs=outputs)


@lru_cache(maxsize=512)
def _clone(stage: str, axis: Axis) -> Axis:
    """The axis of its own that a stage has for a shared one, the same in all plans."""
    return Axis(axis.name, axis.kind, axis.domain, axis.dtype)


def _placement(plan: Plan, stage: StagePlan, clones: dict[str, dict[Axis, Axis]]) -> Placement:
    """Where a stage is, by the clones of the loops around it."""
    place, own = stage.placement, clones.get(stage.name, {})
    around = clones.get(place.host, {})
    match place:
        case Inlined() | Own() | SameGrid() | LastBlock() | Partitioned():
            return place
        case At(axis=axis):
            kept = _kept(plan, stage, clones)
            return replace(place, axis=around.get(axis, axis), kept=kept)
        case SharedLoops(leader=leader, down_to=last, at=at):
            if at is not None:
                kept = _kept(plan, stage, clones)
                at = replace(at, axis=around.get(at.axis, at.axis), kept=kept)
            return SharedLoops(leader, clones.get(leader, {}).get(last, last), at)
        case Online(axis=axis):
            return replace(place, axis=around.get(axis, axis))
        case Cooperative(host=host, axis=axis, part=part, program=program):
            programs = around.get(program, program)
            return Cooperative(host, around.get(axis, axis), programs, own.get(part, part))
        case _:
            assert_never(place)


def _kept(plan: Plan, stage: StagePlan, clones: dict[str, dict[Axis, Axis]]) -> Kept | None:
    """Where a stage is stored, by the clone of the loop around it."""
    kept = stage.placement.kept
    if kept is None or kept.axis is None:
        return kept
    for host, _ in hosts(plan, stage):
        if kept.axis in frozenset(host.leaf_axes):
            return replace(kept, axis=clones.get(host.name, {}).get(kept.axis, kept.axis))
    return kept


def _renamed(stage: StagePlan, clones: dict[Axis, Axis]) -> StagePlan:
    """`stage` over the clones of some of its axes."""
    op = stage.op
    if not clones or not isinstance(op, ComputeOp):
        return stage

    moves = tuple(clones.items())

    def own(axis: Axis) -> Axis:
        return clones.get(axis, axis)

    return replace(
        stage,
        op=_renamed_op(op, moves),
        leaf_axes=tuple(own(a) for a in stage.leaf_axes),
        marks={own(a): mark for a, mark in stage.marks.items()},
        relations=tuple(_relation(r, moves) for r in stage.relations),
        aligned=tuple(replace(each, axis=own(each.axis)) for each in stage.aligned),
    )


@lru_cache(maxsize=512)
def _renamed_op(op: ComputeOp, moves: tuple[tuple[Axis, Axis], ...]) -> ComputeOp:
    """`op` over the clones of some of its axes."""
    clones = dict(moves)

    def replaced(node: Expr) -> Expr | None:
        if isinstance(node, Axis):
            return clones.get(node)
        if isinstance(node, Reduce):
            return replace(node, axes=tuple(clones.get(a, a) for a in node.axes))
        return None

    memo: dict[Expr, Expr] = {}
    return replace(
        op,
        bodies=tuple(rewrite(body, replaced, memo) for body in op.bodies),
        reduce_axes=tuple(clones.get(a, a) for a in op.reduce_axes),
    )


@lru_cache(maxsize=2048)
def _relation(relation: Relation, moves: tuple[tuple[Axis, Axis], ...]) -> Relation:
    clones = dict(moves)
    match relation:
        case Split(parent=parent):
            return replace(relation, parent=clones.get(parent, parent))
        case Fuse(outer=outer, inner=inner):
            outer, inner = clones.get(outer, outer), clones.get(inner, inner)
            return replace(relation, outer=outer, inner=inner)
        case Unit():
            return relation
        case Scatter(axis=axis):
            return replace(relation, axis=clones.get(axis, axis))
        case Skew(parent=parent, along=along):
            parent, along = clones.get(parent, parent), clones.get(along, along)
            return replace(relation, parent=parent, along=along)
