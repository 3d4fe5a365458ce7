"""Schedules written for threads, as programs of tiles: what threads compute together is a tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from tedsl.expr.index_arith import as_index, constant, next_power_of_two
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Select,
    TensorRead,
)
from tedsl.expr.visit import axes_of, reads, substitute
from tedsl.index.simplify import simplify
from tedsl.ir.matrix_units import MIN_DEPTH, MIN_EDGE
from tedsl.ir.nodes import LoopKind, Scope
from tedsl.scheduling.kernels.tree import computed_in, guests, kernel_leader, sharing
from tedsl.scheduling.plan import PLAIN, At, Fuse, Inlined, Mark, Plan, Split, StagePlan
from tedsl.scheduling.plan.graph import is_output, loop_readers
from tedsl.scheduling.plan.inline import inline_stages
from tedsl.scheduling.plan.relations import extents, leaves_of, ranks
from tedsl.scheduling.plan.scan_structure import role
from tedsl.scheduling.plan.thread_loops import per_thread, threads_of
from tedsl.scheduling.regions.infer import Bounds, infer
from tedsl.tensor.tensor import ComputeOp

MOST_LANES = 1 << 15
"""Elements of the largest tile that is made of loops that each thread runs by itself."""
MOST_PRODUCTS = 1 << 15
"""Products that a tile adds up over several dimensions at once."""


ForBlocks = Callable[[Plan, frozenset[str]], Plan]
"""Completes a plan for programs of tiles, in some stages unrolled loops as well."""


def tiles_of_threads(plan: Plan, for_blocks: ForBlocks) -> Plan:
    """The plan, completed `for_blocks`, in which no kernel depends on which thread computes what.

    In kernels with loops bound to threads:
    - data loops that each thread runs by itself are dimensions of the tile, like the threads;
    - a copy of what the program holds already is none;
    - a copy that no reader takes as one tile is none: memory is read where it was copied from;
    - a tile has the dimensions of what it computes, however they were split and fused for threads;
    - a sum of products has steps as deep as those of matrix units.

    Before:  CL at C.tx;  C: io (blockIdx.x), ty (threadIdx.y), tx (threadIdx.x), yi, xi
    After:   CL at C.io;  C: io (program), y (vectorized), x (vectorized)
    """
    names = frozenset(
        name
        for stage in plan.stages
        if threads_of(stage) and not stage.placement.inlined
        for name in computed_in(plan, (kernel_leader(plan, stage).name,))
    )
    if not names:
        return for_blocks(plan, names)
    given = plan
    plan = plan.with_stages(tuple(_per_thread(s) if s.name in names else s for s in plan.stages))
    plan = _without(plan, {s.name for s in plan.stages if s.name in names and _again(plan, s)})
    while True:
        after = for_blocks(plan, names)
        bounds = infer(after)
        found = (s.name for s in after.stages if s.name in names and _apart(after, s, bounds))
        apart = {name for name in found if _movable(plan, plan.stage(name))}
        if not apart:
            break
        plan = _without(plan, apart)
    for stage in after.stages:
        if stage.name in names:
            after = after.with_stage(_deep(_joined(stage, given.stage(stage.name))))
    return after


def _per_thread(stage: StagePlan) -> StagePlan:
    """The stage whose threads' own data loops are dimensions of the tile, the innermost first, as
    far as it does not become too large."""
    own, sizes = per_thread(stage), extents(stage)
    marks, lanes = dict(stage.marks), 1
    for axis in stage.leaf_axes:
        if stage.mark(axis).kind is LoopKind.VECTORIZED:
            lanes *= constant(sizes[axis]) or 1
    for axis in reversed(stage.leaf_axes):
        mark, size = stage.mark(axis), constant(sizes[axis])
        plain = replace(mark, kind=LoopKind.SERIAL) == PLAIN
        if axis in own and mark.kind is not LoopKind.VECTORIZED and plain and size is not None:
            lanes *= size
            if lanes > MOST_LANES:
                break
            marks[axis] = replace(mark, kind=LoopKind.VECTORIZED)
    return replace(stage, marks=marks)


def _without(plan: Plan, names: set[str]) -> Plan:
    """The plan in which what reads some stages reads what they are defined by."""
    for name in names:
        plan = plan.with_stage(replace(plan.stage(name), placement=Inlined()))
    return inline_stages(plan) if names else plan


def _movable(plan: Plan, stage: StagePlan) -> bool:
    """True for a stage inside a loop that is only stored there, and may be left out: nothing is
    inside of it or shares its loops, and it is no row of a scan."""
    place = stage.placement
    inside = isinstance(place, At) and place.kept is None and not guests(plan, stage)
    inside = inside and not sharing(plan, stage)
    if not inside or not isinstance(stage.op, ComputeOp) or is_output(plan, stage.op):
        return False
    return role(plan, stage.op) is None


def _again(plan: Plan, stage: StagePlan) -> bool:
    """True for a copy in registers of what is held in the same kernel: C.local[i] = C.shared[i]."""
    if not isinstance(stage.op, ComputeOp) or not _movable(plan, stage):
        return False
    return stage.scope is Scope.LOCAL and all(
        isinstance(body, TensorRead) and plan.stage_of(body.tensor.op).placement.axis is not None
        for body in stage.op.bodies
    )


def _apart(plan: Plan, stage: StagePlan, bounds: Bounds) -> bool:
    """True for a copy of memory, padded or not, that some reader does not read whole, or that would
    have it fold too many products at once."""
    if not isinstance(stage.op, ComputeOp) or not _movable(plan, stage):
        return False
    if not all(_is_copy(plan, body) for body in stage.op.bodies):
        return False
    return not all(
        _reads_whole(plan, reader, stage, bounds) and _products(reader, bounds) <= MOST_PRODUCTS
        for reader in loop_readers(plan, stage.op)
    )


def _products(reader: StagePlan, bounds: Bounds) -> int:
    """How many products a reduction over several dimensions of its tile has; over one of them it
    may be a matrix product, which has them one after the other."""
    sizes = bounds[reader.name].extents
    lanes = [a for a in reader.leaf_axes if reader.mark(a).kind is LoopKind.VECTORIZED]
    roots = [a for a in reader.root_axes if a.kind is AxisKind.REDUCE]
    folded = [a for a in roots if any(leaf in ranks(lanes) for leaf in leaves_of(reader, {a}))]
    counts = (next_power_of_two(constant(sizes[a]) or 1) for a in lanes)
    return prod(counts) if len(folded) > 1 else 1


def _is_copy(plan: Plan, body: Expr) -> bool:
    match body:
        case TensorRead(tensor=tensor):
            return plan.stage_of(tensor.op).placement.axis is None
        case IfThenElse(a=a, b=b) | Select(a=a, b=b):
            values = [each for each in (a, b) if not isinstance(each, Const)]
            return all(_is_copy(plan, each) for each in values)
        case _:
            return False


def _reads_whole(plan: Plan, reader: StagePlan, stage: StagePlan, bounds: Bounds) -> bool:
    """True when each dimension of what a stage holds is a dimension of the tile of its reader."""
    bodies = reader.op.bodies if isinstance(reader.op, ComputeOp) else ()
    rank = ranks(reader.loop_order)
    place = rank.get(stage.placement.axis, -1) if stage.placement.axis is not None else -1
    sizes = bounds[reader.name].extents
    for read in reads(*bodies):
        if read.tensor.op is not stage.op:
            continue
        seen = set[Axis]()
        for index, dim in zip(read.indices, bounds[stage.name].region, strict=True):
            moving = [
                (root, leaf)
                for root in axes_of(index)
                for leaf in leaves_of(reader, {root})
                if rank[leaf] > place and constant(sizes[leaf]) != 1
            ]
            roots = {root for root, _ in moving}
            if constant(dim.extent) == 1 and not roots:
                continue
            held = all(reader.mark(leaf).kind is LoopKind.VECTORIZED for _, leaf in moving)
            if len(roots) != 1 or not held or not _is_offset(index, *roots) or roots & seen:
                return False
            seen |= roots
    return True


def _is_offset(index: Expr, axis: Axis) -> bool:
    """True when an index is an axis and something that does not depend on it."""
    others = (other for other in axes_of(index) if other is not axis)
    zero: Mapping[Expr, Expr] = dict.fromkeys(others, as_index(0))
    return simplify(substitute(index, zero)) is axis


def _joined(stage: StagePlan, given: StagePlan) -> StagePlan:
    """The stage without the splits and fuses among the dimensions of its tile, but for those of
    loops that the user vectorized."""
    stage = _undone(stage, given)
    while (fewer := _reassociated(stage, given)) is not None:
        stage = fewer
    return stage


def _reassociated(stage: StagePlan, given: StagePlan) -> StagePlan | None:
    """The stage with two dimensions of its tile as one, where a loop was split from outside of
    another one's: i = (io * 8 + a) * 4 + b; None where there are none."""
    inside = {r.outer: r for r in stage.relations if isinstance(r, Split)}
    for relation in stage.relations:
        if not isinstance(relation, Split) or relation.parent not in inside:
            continue
        around = inside[relation.parent]
        factors = [None if r.factor is None else constant(r.factor) for r in (relation, around)]
        old = relation.inner, around.inner
        if None in factors or not all(_is_dimension(stage, axis) for axis in old):
            continue
        if all(_is_chosen(given, axis) for axis in old):
            continue
        lane = Axis(around.inner.name, around.inner.kind, None, around.inner.dtype)
        both = as_index(prod(factor or 1 for factor in factors))
        split = replace(around, outer=relation.outer, inner=lane, factor=both)
        stage = _replaced(stage, old, (lane,))
        rest = (split if r is around else r for r in stage.relations if r is not relation)
        return replace(stage, relations=tuple(rest))
    return None


def _undone(stage: StagePlan, given: StagePlan) -> StagePlan:
    """The stage without the splits and fuses of which all axes are dimensions of its tile."""
    for relation in reversed(stage.relations):
        match relation:
            case Split(parent=parent, outer=outer, inner=inner):
                old, new = (outer, inner), (parent,)
            case Fuse(outer=outer, inner=inner, fused=fused):
                old, new = (fused,), (outer, inner)
            case _:
                continue
        if not all(_is_dimension(stage, axis) for axis in old):
            continue
        if all(_is_chosen(given, axis) for axis in old):
            continue
        stage = _replaced(stage, old, new)
        rest = tuple(r for r in stage.relations if r is not relation)
        stage = replace(stage, relations=rest)
    return stage


def _deep(stage: StagePlan) -> StagePlan:
    """The stage with longer steps of its reduction, where a step is one dimension of a tile of sums
    of products and less deep than what matrix units take.

    Before:  for ko in 0..n / 8: C[i, j] += A[i, ko*8 + ki] * B[ko*8 + ki, j]   (tile i, j, ki:8)
    After:   for ko in 0..n / 16: ...                                          (tile i, j, ki:16)
    """
    body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    source = body.sources[0] if isinstance(body, Reduce) else None
    if not isinstance(source, Binary) or source.op is not BinaryOp.MUL:
        return stage
    narrow = any(read.dtype.nbytes == 1 for read in reads(source))
    least = MIN_DEPTH if narrow else MIN_EDGE
    sizes = extents(stage)
    lanes = [a for a in stage.leaf_axes if _is_dimension(stage, a)]
    folded = [a for a in lanes if a.kind is AxisKind.REDUCE]
    wide = [a for a in lanes if a.kind is AxisKind.DATA and (constant(sizes[a]) or 0) >= MIN_EDGE]
    for relation in stage.relations:
        if (
            not isinstance(relation, Split)
            or len(folded) != 1
            or relation.inner is not folded[0]
            or len(wide) < 2
        ):
            continue
        whole = constant(sizes[relation.parent])
        step = None if relation.factor is None else constant(relation.factor)
        if step is None or step >= least or least % step or (whole or least) < least:
            continue
        deep = replace(relation, factor=as_index(least))
        rest = tuple(deep if r is relation else r for r in stage.relations)
        return replace(stage, relations=rest)
    return stage


def _is_dimension(stage: StagePlan, axis: Axis) -> bool:
    mark = stage.mark(axis)
    lane = mark.kind is LoopKind.VECTORIZED and mark.tensorized is None
    return lane and axis in ranks(stage.leaf_axes)


def _is_chosen(given: StagePlan, axis: Axis) -> bool:
    mark = given.mark(axis)
    return mark.kind is LoopKind.VECTORIZED and not mark.thread


def _replaced(stage: StagePlan, old: tuple[Axis, ...], new: tuple[Axis, ...]) -> StagePlan:
    """The stage with the leaf axes `new` in the place of `old`."""
    products = next((m.products for a in old if (m := stage.mark(a)).products is not None), None)
    lane = Mark(LoopKind.VECTORIZED, products=products)
    leaves: list[Axis] = []
    for axis in stage.leaf_axes:
        if axis is old[0]:
            leaves.extend(new)
        elif axis not in ranks(old):
            leaves.append(axis)
    marks = {a: m for a, m in stage.marks.items() if a not in ranks(old)}
    return replace(stage, leaf_axes=tuple(leaves), marks={**marks, **dict.fromkeys(new, lane)})
