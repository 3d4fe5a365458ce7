"""What every loop nest needs: where tensors live, what expressions read there, and loops.

Part of `build_nests`; imports `scheduling.regions.infer` and `ir`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.index_arith import both, conjuncts, constant, floormod, sub
from tedsl.expr.nodes import (
    Axis,
    Before,
    Const,
    Expr,
    Folded,
    IfThenElse,
    Reduce,
    TensorRead,
)
from tedsl.expr.visit import axes_of, rewrite, walk
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    Buffer,
    For,
    Guard,
    Load,
    Stmt,
    TensorCall,
)
from tedsl.scheduling.kernels.tree import KernelTree, guests
from tedsl.scheduling.plan import Online, OnlineMode, Plan, Split, StagePlan
from tedsl.scheduling.regions.infer import Bounds, StageBounds
from tedsl.scheduling.regions.match_intrinsic import (
    Difference,
    match_intrinsic,
    tensorized_loops,
)
from tedsl.tensor.tensor import ComputeOp, Tensor


@dataclass(slots=True)
class Context:
    """What every nest needs: the plan, its bounds, and where each tensor lives.

    `attached` puts the stages attached at a loop before its body.  Parts of a scan live in its
    result, and starts in what they start, as `aliases` says; the steps of those in `launches` are
    kernels.  Of online stages, `before` has their results of the iteration before, which rescaling
    reads, and `folded` (by stage) their accumulators, in the reducer's order: `buffers`, except
    for sums of which these hold estimates, for results that have a `finish`, and for values that no
    output shows; `moved` (by the buffer of a lazy one) is not 0 where any of it changed in this
    iteration.  `inside` (by kernel) has the buffers that stand for tensors there; others read them
    in device memory.  `counters` count programs: by the stage that the last of them compute, and by
    the loop whose programs wait for each other.  `tree` says in which order stages run.  `remarks`
    are on stages that lead kernels, and `places` the order of buffers as parameters.
    """

    plan: Plan
    bounds: Bounds
    tree: KernelTree
    launches: frozenset[str] = frozenset()
    aliases: Mapping[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    buffers: dict[Tensor, Buffer] = field(default_factory=dict[Tensor, Buffer])
    before: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])
    folded: dict[str, tuple[Buffer, ...]] = field(default_factory=dict[str, tuple[Buffer, ...]])
    moved: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])
    inside: dict[str, dict[Tensor, Buffer]] = field(default_factory=dict[str, dict[Tensor, Buffer]])
    exports: dict[Tensor, Buffer] = field(default_factory=dict[Tensor, Buffer])
    attached: Callable[[Axis, Stmt], Stmt] = lambda axis, body: body
    kept: dict[Axis | str, list[Buffer]] = field(default_factory=dict[Axis | str, list[Buffer]])
    counters: dict[str | Axis, Buffer] = field(default_factory=dict["str | Axis", Buffer])
    remarks: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[Buffer, int] = field(default_factory=dict[Buffer, int])


def tensor_call(
    context: Context, stage: StagePlan, op: ComputeOp, bounds: StageBounds
) -> TensorCall | None:
    """The intrinsic that carries out the body of a stage, if its loops are tensorized."""
    found = tensorized_loops(stage)
    if found is None:
        return None
    intrin, own = found
    match = match_intrinsic(stage, op, bounds, intrin, own)
    if isinstance(match, Difference):
        raise InternalError(f"{stage.name} does not compute {intrin.name}: {match.reason}")
    operands = tuple(lowered(context, read, bounds) for read in match.operands)
    return TensorCall(intrin, own, operands)


def output_indices(stage: StagePlan, op: ComputeOp, bounds: StageBounds) -> tuple[Expr, ...]:
    where = bounds.local if stage.placement.axis is not None else bounds.index
    return tuple(where[axis] for axis in op.axes)


def lowered(context: Context, body: Expr, bounds: StageBounds, folded: Sequence[Expr] = ()) -> Expr:
    """A body over leaf axes and buffers: tensor reads become loads relative to the stored
    region, and `Folded` values those given."""
    index: Mapping[Expr, Expr] = {**bounds.index}

    def replaced(node: Expr) -> Expr | None:
        if isinstance(node, Folded):
            return folded[node.index]
        if isinstance(node, Before):
            if not isinstance(node.a, Load):
                raise InternalError("the value before is asked of something that is not stored")
            return replace(node.a, buffer=context.before[node.a.buffer])
        if isinstance(node, TensorRead):
            starts = region_start(context, node.tensor)
            indices = [sub(i, s) for i, s in zip(node.indices, starts, strict=True)]
            indices = folded_indices(context, node.tensor, indices)
            return Load(
                context.buffers[node.tensor], tuple(simplify(i, bounds.facts) for i in indices)
            )
        return index.get(node)

    return simplify(rewrite(body, replaced), bounds.facts)


def folded_indices(context: Context, tensor: Tensor, indices: Sequence[Expr]) -> list[Expr]:
    """Places in a tensor of which only a window has memory: modulo its size."""
    stage = context.plan.stage_of(tensor.op)
    folds = () if stage.placement.kept is None else context.bounds[stage.name].folds
    if not folds:
        return list(indices)
    return [
        index if size is None else floormod(index, size)
        for index, size in zip(indices, folds, strict=True)
    ]


def region_start(context: Context, tensor: Tensor) -> tuple[Expr, ...]:
    stage = context.plan.stage_of(tensor.op)
    outside = tensor in context.exports and context.buffers[tensor] is context.exports[tensor]
    if stage.placement.axis is None or outside:
        return tuple(Const(0, DType.int32) for _ in tensor.shape)
    return tuple(r.min for r in context.bounds[stage.name].stored)


def guarded(conditions: Sequence[Expr], body: Stmt) -> Stmt:
    return Guard(both(*conditions), body) if conditions else body


def all_of(guards: Sequence[Expr], condition: Expr) -> tuple[Expr, ...]:
    """All conditions of an update; one that reads memory is asked for where `guards` hold, since
    its indices may lie outside elsewhere."""
    if guards and any(isinstance(node, Load) for node in walk(condition)):
        inside = both(*guards)
        condition = both(
            *(IfThenElse(inside, each, Const(False, DType.bool)) for each in conjuncts(condition))
        )
    return (*guards, condition)


def loops(
    context: Context, stage: StagePlan, axes: Sequence[Axis], body: Stmt, guards: Sequence[Expr]
) -> Stmt:
    """Loops of `stage` over `axes`, outermost first, with the stages attached at each of them.

    Each guard stands as far out as its axes allow, so that an idle iteration computes nothing.
    """
    extents = context.bounds[stage.name].extents
    waiting: list[Expr] = list(guards)
    for axis in reversed(axes):
        body = context.attached(axis, body)
        here = {g for g in waiting if axis in axes_of(g)}
        body = guarded([g for g in waiting if g in here], body)
        waiting = [g for g in waiting if g not in here]
        if constant(extents[axis]) != 1:
            mark = stage.mark(axis)
            body = For(
                axis,
                extents[axis],
                mark.kind,
                body,
                mark.program,
                mark.num_stages,
                mark.flatten,
                _masks_decide(context, stage, axis),
                cuts=() if along(context, stage, axis) else mark.cuts.points,
                partition=mark.partition,
                descending=mark.descending,
            )
    return guarded(waiting, body)


def _masks_decide(context: Context, host: StagePlan, axis: Axis) -> bool:
    """True when an iteration in which every fold is masked changes nothing: online stages go along,
    each fold has a condition, and references and repairs leave alone what belongs to unchanged
    results."""
    found = along(context, host, axis)
    if not found:
        return False
    stages = (host, *(stage for stage in found if stage.placement.mode is not OnlineMode.LAZY))
    folds = [stage.op.bodies[0] for stage in stages if isinstance(stage.op, ComputeOp)]
    return all(isinstance(fold, Reduce) and fold.where is not None for fold in folds)


def along(context: Context, host: StagePlan, axis: Axis) -> list[StagePlan]:
    """The online stages that go along with the loop `axis` of `host`, producers first."""
    if axis not in context.tree.inside:
        return []
    return [
        stage for stage in guests(context.plan, host, axis) if isinstance(stage.placement, Online)
    ]


def is_estimate(context: Context, stage: StagePlan) -> bool:
    """True of an online stage whose partial sums are scaled up to the whole axis: what is folded so
    far is the beginning of it, since the loops over it run one inside the other from its start."""
    place = stage.placement
    if not isinstance(place, Online) or place.mode is not OnlineMode.ESTIMATE:
        return False
    host = context.plan.stage(place.host)
    whole, parts = place.axis, dict[Axis, Split]()
    for relation in host.relations:
        if isinstance(relation, Split):
            parts |= dict.fromkeys((relation.outer, relation.inner), relation)
    while whole in parts:
        whole = parts[whole].parent
    loops = _taken_apart(whole, {each.parent: each for each in parts.values()})
    order = {loop: n for n, loop in enumerate(host.loop_order)}
    if any(loop not in order for loop in loops):
        return False
    until = next(n for n, loop in enumerate(loops) if loop is place.axis) + 1
    places = [order[loop] for loop in loops]
    rising = places[:until] == sorted(places[:until])
    inside = all(each > places[until - 1] for each in places[until:])
    return rising and inside and not any(host.mark(loop).descending for loop in loops[:until])


def _taken_apart(axis: Axis, splits: Mapping[Axis, Split]) -> list[Axis]:
    """The loops that an axis was split into, the outermost first."""
    split = splits.get(axis)
    if split is None:
        return [axis]
    return [*_taken_apart(split.outer, splits), *_taken_apart(split.inner, splits)]


def companions(context: Context, host: StagePlan) -> list[StagePlan]:
    """The online stages in the loops of the reduction of `host`, producers first."""
    return [stage for axis in host.leaf_axes for stage in along(context, host, axis)]


def carried(context: Context, host: StagePlan) -> list[Buffer]:
    """What the online stages of `host` carry from one iteration to the next."""
    found: dict[Buffer, None] = {}
    for stage in companions(context, host):
        found.update(dict.fromkeys(context.buffers[tensor] for tensor in stage.op.outputs))
        found.update(dict.fromkeys(context.folded[stage.name]))
    return list(found)
