"""A reader that moves to its producer, and the start of a reduction as a stage of its own:
reverse_compute_at, reverse_compute_inline, decompose_reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.expr.nodes import Axis, Expr, Reduce, TensorRead
from tedsl.expr.visit import reads, substitute
from tedsl.ir.nodes import DEFAULT_LAUNCH, Launch, LoopKind, Scope
from tedsl.scheduling.invariants.lane_counts import require_all_lanes
from tedsl.scheduling.kernels.tree import guests
from tedsl.scheduling.plan import (
    At,
    Fuse,
    Inlined,
    Mark,
    Own,
    Placement,
    Plan,
    Relation,
    Scatter,
    Skew,
    Split,
    StagePlan,
    Unit,
    at_loop,
)
from tedsl.scheduling.plan.copies import stage_name
from tedsl.scheduling.plan.graph import fresh_stage, insert_before, is_reduction, reroute
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.plan.relations import derived, extents, ranks
from tedsl.scheduling.plan.thread_loops import settled
from tedsl.scheduling.primitives.arguments import computed_stage, leaf, looped_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.graph_rewrites.cache import beside, data_axis
from tedsl.scheduling.primitives.graph_rewrites.legality import reduction
from tedsl.scheduling.primitives.loops.legality import PLAIN
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.reverse_placement.legality import (
    data_places,
    matching_axes,
    require_finished,
    require_no_chain,
    require_one_iteration,
    require_pair,
    require_pointwise,
    require_starts_outside,
    require_untouched,
)
from tedsl.tensor.tensor import ComputeOp


@dataclass(frozen=True, slots=True)
class _Taken:
    """The reader with the producer's outer loops: what stands for each axis of the producer."""

    stage: StagePlan
    axes: Mapping[Axis, Axis]


def reverse_compute_at(plan: Plan, call: Call, target: str, axis: object) -> Plan:
    """for i: for j: B[i, j] = f; for i: for j: C[i, j] = g(B[i, j]) --> for i: (for j: B; for j:
    C)."""
    reader = looped_stage(plan, call, call.stage)
    producer = looped_stage(plan, call, target)
    loop = leaf(plan, call, producer, axis)
    require_pair(plan, call, reader, producer)
    outer = producer.loop_order[: ranks(producer.loop_order)[loop] + 1]
    require_finished(plan, call, producer, outer)
    relations = _relations_of(producer, outer)
    roots = _roots_of(producer, outer, relations)
    dimension = ranks(producer.root_axes)
    places = matching_axes(plan, call, reader, producer, [dimension[root] for root in roots])
    what = f"its loops would be those of {producer.name}"
    require_untouched(plan, call, reader, [places[root] for root in roots], what)

    taken = _take_over(reader, producer, outer, relations, places)
    innermost, kernel = taken.axes[outer[-1]], producer.placement.kernel
    inside = replace(
        producer,
        relations=tuple(_with_factor(r, taken) for r in producer.relations),
        marks={a: mark for a, mark in producer.marks.items() if a not in ranks(outer)},
        placement=At(reader.name, innermost, kernel=replace(kernel, launch=DEFAULT_LAUNCH)),
        scope=Scope.LOCAL if producer.scope is Scope.GLOBAL else producer.scope,
    )
    after = settled(plan.with_stage(taken.stage).with_stage(inside), reader.name)
    require_places(plan, call, after)
    require_one_iteration(plan, call, after, producer.name, outer)
    require_all_lanes(plan, call, after)
    return after


def _relations_of(stage: StagePlan, loops: Sequence[Axis]) -> tuple[Relation, ...]:
    """The relations that make `loops` of root axes, in the order of the calls."""
    needed, found = {axis: None for axis in loops}, list[Relation]()
    for relation in reversed(stage.relations):
        match relation:
            case Split(parent=parent, outer=outer, inner=inner):
                if outer in needed or inner in needed:
                    needed[parent] = None
                    found.append(relation)
            case Fuse(outer=outer, inner=inner, fused=fused):
                if fused in needed:
                    needed[outer] = needed[inner] = None
                    found.append(relation)
            case Unit(axis=axis):
                if axis in needed:
                    found.append(relation)
            case Scatter():
                pass
            case Skew(parent=parent, skewed=skewed, along=along):
                if skewed in needed:
                    needed[parent] = needed[along] = None
                    found.append(relation)
    return tuple(reversed(found))


def _roots_of(
    stage: StagePlan, loops: Sequence[Axis], relations: Sequence[Relation]
) -> tuple[Axis, ...]:
    used = {axis: None for axis in loops}
    for relation in relations:
        match relation:
            case Split(parent=parent):
                used[parent] = None
            case Fuse(outer=outer, inner=inner):
                used[outer] = used[inner] = None
            case Unit() | Scatter():
                pass
            case Skew(parent=parent, along=along):
                used[parent] = used[along] = None
    return tuple(axis for axis in stage.root_axes if axis in used)


def _take_over(
    reader: StagePlan,
    producer: StagePlan,
    outer: Sequence[Axis],
    relations: Sequence[Relation],
    places: Mapping[Axis, Axis],
) -> _Taken:
    """The reader split and fused as the producer's `outer` loops are, with those outermost."""
    stage, axes = reader, dict(places)
    for relation in relations:
        known = labels(stage)
        match relation:
            case Split(parent=parent, outer=first, inner=second):
                old = axes[parent]
                axes[first] = derived(stage, f"{known[old]}.outer", old)
                axes[second] = derived(stage, f"{known[old]}.inner", old)
                made = replace(relation, parent=old, outer=axes[first], inner=axes[second])
                gone, new = {old: None}, (axes[first], axes[second])
            case Fuse(outer=first, inner=second, fused=fused):
                a, b = axes[first], axes[second]
                name = f"{known[a].removesuffix('.fused')}.{known[b]}.fused"
                axes[fused] = derived(stage, name, a, fused.dtype)
                made = Fuse(a, b, axes[fused])
                gone, new = {a: None, b: None}, (axes[fused],)
            case Scatter():
                continue
            case Unit(axis=unit):
                axes[unit] = derived(stage, unit.name, unit)
                made, gone, new = Unit(axes[unit]), dict[Axis, None](), (axes[unit],)
            case Skew(parent=parent, skewed=skewed, along=along):
                old = axes[parent]
                axes[skewed] = derived(stage, f"{known[old]}.skewed", old)
                ends = {"parent": old, "skewed": axes[skewed], "along": axes[along]}
                made, gone, new = replace(relation, **ends), {old: None}, (axes[skewed],)
        at = min((ranks(stage.leaf_axes)[axis] for axis in gone), default=0)
        left = [axis for axis in stage.leaf_axes[at:] if axis not in gone]
        stage = replace(
            stage,
            leaf_axes=(*stage.leaf_axes[:at], *new, *left),
            relations=(*stage.relations, made),
        )
    first = [axes[axis] for axis in outer]
    moved = {axis: None for axis in first}
    rest = [axis for axis in stage.leaf_axes if axis not in moved]
    marks = {axes[axis]: producer.mark(axis) for axis in outer if producer.mark(axis) != PLAIN}
    return _Taken(
        replace(
            stage,
            leaf_axes=(*first, *rest),
            marks=_ordered({**stage.marks, **marks}, (*first, *rest)),
            placement=_launched(stage, producer),
        ),
        axes,
    )


def _ordered(marks: Mapping[Axis, Mark], leaves: Sequence[Axis]) -> dict[Axis, Mark]:
    return {axis: marks[axis] for axis in leaves if axis in marks}


def _launched(stage: StagePlan, other: StagePlan) -> Placement:
    """Where a stage is that takes over the loops of another, launched as both are."""
    place = stage.placement
    if not isinstance(place, Own):
        return place
    launch = _merged(place.kernel.launch, other.placement.kernel.launch)
    return replace(place, kernel=replace(place.kernel, launch=launch))


def _merged(own: Launch, other: Launch) -> Launch:
    """Launch options: one's own, else the other's."""
    return Launch(
        num_warps=other.num_warps if own.num_warps is None else own.num_warps,
        num_stages=other.num_stages if own.num_stages is None else own.num_stages,
        num_ctas=other.num_ctas if own.num_ctas is None else own.num_ctas,
        maxnreg=other.maxnreg if own.maxnreg is None else own.maxnreg,
    )


def _with_factor(relation: Relation, taken: _Taken) -> Relation:
    """A split into a number of parts, of which one part is left: by the extent of a part."""
    if not isinstance(relation, Split) or relation.nparts is None:
        return relation
    inner = taken.axes.get(relation.inner)
    if inner is None:
        return relation
    return replace(relation, factor=extents(taken.stage)[inner], nparts=None)


def reverse_compute_inline(plan: Plan, call: Call) -> Plan:
    """for i: B[i] = f(i); for i: C[i] = g(B[i]) --> for i: C[i] = g(f(i)), with the loops of B."""
    looped_stage(plan, call, call.stage)
    reader, op = computed_stage(plan, call, call.stage)
    producer, source = _single_producer(plan, call, reader)
    require_pair(plan, call, reader, producer)
    require_no_chain(plan, call, producer)
    require_no_chain(plan, call, reader)
    places = matching_axes(plan, call, reader, producer, range(len(source.axes)))
    require_pointwise(plan, call, reader, producer, places)
    what = f"its loops would be replaced by those of {producer.name}"
    require_untouched(plan, call, reader, op.axes, what)

    copies: dict[Expr, Expr] = {
        axis: data_axis(axis.name, size)
        for axis, size in zip(source.axes, source.shape, strict=True)
    }
    inlined = replace(
        source,
        axes=tuple(axis for axis in copies.values() if isinstance(axis, Axis)),
        bodies=tuple(substitute(body, copies) for body in source.bodies),
    )
    kept = replace(fresh_stage(producer.name, inlined), placement=Inlined())
    after = reroute(plan.with_stage(kept), dict(zip(source.outputs, inlined.outputs, strict=True)))
    reader, op = computed_stage(after, call, call.stage)
    back: dict[Expr, Expr] = {mine: own for own, mine in places.items()}
    axes = tuple(axis for axis in map(back.get, op.axes) if isinstance(axis, Axis))
    bodies = tuple(substitute(body, back) for body in op.bodies)
    whole = replace(op, axes=axes, bodies=bodies)
    now = dict(zip(op.axes, axes, strict=True))
    after = after.with_stage(
        replace(
            reader,
            op=whole,
            aligned=tuple(replace(each, axis=now[each.axis]) for each in reader.aligned),
            leaf_axes=producer.leaf_axes,
            relations=producer.relations,
            marks=producer.marks,
            placement=_launched(reader, producer),
        )
    )
    for guest in guests(plan, producer):
        axis = guest.placement.axis
        if axis is not None:
            there = at_loop(guest.placement, reader.name, axis)
            after = after.with_stage(replace(after.stage(guest.name), placement=there))
    after = reroute(after, dict(zip(op.outputs, whole.outputs, strict=True)))
    require_places(plan, call, after)
    return after


def _single_producer(plan: Plan, call: Call, reader: StagePlan) -> tuple[StagePlan, ComputeOp]:
    """The computed stage that `reader` reads; it can be substituted."""
    shown = inline_stages(plan)
    body = shown.stage(reader.name).op
    found = reads(*body.bodies) if isinstance(body, ComputeOp) else ()
    names = dict.fromkeys(shown.stage_of(read.tensor.op).name for read in found)
    computed = [name for name in names if isinstance(plan.stage(name).op, ComputeOp)]
    if len(computed) != 1:
        raise call.refuse(
            plan,
            f"{reader.name} reads {len(computed)} computed stages"
            + (f" ({', '.join(computed)})" if computed else "")
            + ", and takes over the loops of exactly one",
            facts=[("reads", ", ".join(names) or "nothing")],
            hint="inline the others first with compute_inline"
            if computed
            else f"there is no producer to join: leave {reader.name} as it is",
        )
    producer = plan.stage(computed[0])
    source = producer.op
    if is_reduction(source):
        legal = data_places(plan, producer)
        raise call.refuse(
            plan,
            f"{producer.name} is a reduction, whose result is finished after its reduce loops "
            f"only: {reader.name} cannot be substituted into it",
            facts=[("legal", legal)],
            hint=f"use s[{reader.name}].reverse_compute_at(s[{producer.name}], axis) with "
            f"{'one of: ' + legal if legal != 'none' else 'a data loop outside the reduction'}",
        )
    if not isinstance(source, ComputeOp) or source.num_outputs > 1:
        raise call.refuse(
            plan,
            f"{producer.name} has {source.num_outputs} outputs, which are computed together",
            hint=f"use s[{reader.name}].reverse_compute_at(s[{producer.name}], axis)",
        )
    return producer, source


def decompose_reduction(plan: Plan, call: Call, axis: object) -> tuple[Plan, str]:
    """B[i] = sum_k A[i, k] --> B.init[i] = 0; B[i] = B.init[i] + sum_k A[i, k]."""
    stage = looped_stage(plan, call, call.stage)
    op, reduce = reduction(plan, call, stage)
    loop = leaf(plan, call, stage, axis)
    require_no_chain(plan, call, stage)
    require_starts_outside(plan, call, stage, loop)
    fresh: dict[Expr, Expr] = {
        own: data_axis(own.name, size) for own, size in zip(op.axes, op.shape, strict=True)
    }
    values = reduce.init or reduce.reducer.identity
    name = stage_name(plan, stage.name, "init")
    start = ComputeOp(
        name,
        tuple(axis for axis in fresh.values() if isinstance(axis, Axis)),
        tuple(substitute(value, fresh) for value in values),
        op.shape,
        tag=op.tag,
    )
    whole = replace(reduce, init=tuple(TensorRead(each, op.axes) for each in start.outputs))
    update = replace(
        op,
        bodies=tuple(
            replace(whole, index=body.index) for body in op.bodies if isinstance(body, Reduce)
        ),
    )
    below = replace(fresh_stage(name, start), **_place_before(stage, loop))
    after = insert_before(plan.with_stage(replace(stage, op=update)), stage.name, below)
    after = settled(after, stage.name)
    after = reroute(after, dict(zip(op.outputs, update.outputs, strict=True)))
    require_places(plan, call, after)
    require_all_lanes(plan, call, after)
    return after, name


def _place_before(stage: StagePlan, loop: Axis) -> dict[str, Placement | Scope]:
    """Where what runs just before `loop` of `stage` is computed, and where it lives."""
    place: Axis | None = None
    for axis in stage.loop_order:
        if axis is loop or stage.mark(axis).kind is LoopKind.VECTORIZED:
            break
        place = axis
    placement = beside(stage) if place is None else At(stage.name, place)
    scope = Scope.GLOBAL if placement.at_root else Scope.LOCAL
    return {"placement": placement, "scope": scope}
