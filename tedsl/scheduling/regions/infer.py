"""Region inference: what each stage computes at the place where it is attached, and how its loops
run.

Consumers outside in: a reader's loops give the region of a producer that it reads, the region
gives the producer's loops, and so on.  Loops around the attach point are fixed, loops inside it
are ranges.  Used by the lowering, by the checks and by printing; imports `index` and `plan`.
(TVM: `InferBound`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from tedsl.errors import InternalError
from tedsl.expr.index_arith import (
    ONE,
    ZERO,
    add,
    at_most,
    constant,
    floormod,
    maximum,
    sub,
    widened,
)
from tedsl.expr.nodes import Axis, Const, Expr, Range, TensorRead
from tedsl.expr.visit import reads
from tedsl.index.facts import Facts
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.once import once
from tedsl.scheduling.kernels.tree import (
    hosts,
    loops_around,
    root_of,
    running,
    runs_beside,
    shared_loops,
)
from tedsl.scheduling.memo import NONE, Memory
from tedsl.scheduling.plan import Cooperative, Online, Plan, StagePlan, stored
from tedsl.scheduling.plan.links import reader_names, symbolic
from tedsl.scheduling.regions.boxes import Reading, box_read, index_range
from tedsl.scheduling.regions.computed_indices import always_read
from tedsl.scheduling.regions.loop_bounds import beyond, guards_of, pass_down, pass_up
from tedsl.scheduling.regions.sliding_window import Slide, slide_of
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class StageBounds:
    """The loops of one stage.

    `extents` has every axis of the stage (root, intermediate, leaf); `index` gives each root axis,
    as a coordinate of the whole tensor, over leaf axes and enclosing loops; `local` the same
    relative to the start of what is stored. `region` is what is computed of each data dimension,
    `stored` what is kept of it at a time (more than one region for an online stage in loops);
    `slices` the part of each reduce axis that is folded at a time, where that is not the whole;
    `folds` the size of the window that a dimension of it is folded to (element i lies at i modulo
    that); `guards` are the conditions that were not proved, and `facts` the ranges of the leaf axes
    and of the loops around.
    """

    extents: dict[Axis, Expr]
    index: dict[Axis, Expr]
    local: dict[Axis, Expr]
    region: tuple[Range, ...]
    guards: tuple[Expr, ...]
    facts: Facts
    stored: tuple[Range, ...] = ()
    slices: dict[Axis, Range] = field(default_factory=dict[Axis, Range])
    folds: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Bounds of every computed stage, by stage name."""

    stages: dict[str, StageBounds]

    def __getitem__(self, name: str) -> StageBounds:
        return self.stages[name]


_REMEMBERED = Memory(512)


def infer_again(plan: Plan, only: frozenset[str] | None = None) -> Bounds:
    """`infer` for checks, which are made of one plan after the other: what does not differ from
    plans before is taken from them.

    Facts keep what was concluded from them, so terms may stand in another order than in bounds that
    are inferred anew: ask what holds, and print nothing of it.
    """
    return infer(plan, only, _REMEMBERED)


def infer(plan: Plan, only: frozenset[str] | None = None, memory: Memory = NONE) -> Bounds:
    """Bounds of all stages of a plan without inlined stages; of the stages of some kernels, all of
    each, when `only` names them.

    Requires: every reader of an attached stage runs inside its attach point (checked by
    `compute_at`).
    """
    found: dict[str, StageBounds] = {}
    readers = _readers(plan, only)
    sizes = memory.get(("sizes", symbolic(plan), plan.assumptions), lambda: plan_facts(plan))
    for stage in _outside_in(plan, readers):
        if not isinstance(stage.op, ComputeOp) or (only is not None and stage.name not in only):
            continue
        facts = _loop_facts(plan, stage, found, sizes, memory)
        users = _users(plan, stage, readers[stage.name])
        if isinstance(stage.placement, Online):
            region, stored = _online_regions(plan, stage, users, found, facts, memory)
        else:
            region = stored = _region(plan, stage, users, found, facts, memory=memory)
        folds: tuple[int | None, ...] = ()
        if stage.placement.kept is not None:
            readings = readers[stage.name]
            region, stored, folds = _kept_regions(plan, stage, region, readings, found, facts)
        if isinstance(stage.placement, Cooperative):
            region, stored = _across_regions(stage.placement, stage.op, region)
        if not any(folds):
            folds = (None,) * len(region)
        kept = frozenset(a for a, n in zip(stage.op.axes, folds, strict=True) if n is None)
        bounds = _stage_bounds(plan, stage, stage.op, region, stored, kept, found, facts, memory)
        found[stage.name] = _folded(bounds, stage.op, folds) if any(folds) else bounds
    return Bounds(found)


def _users(
    plan: Plan, stage: StagePlan, readers: Sequence[tuple[StagePlan, TensorRead]]
) -> list[tuple[StagePlan, TensorRead]]:
    """The readers that decide what is computed at a time: what programs compute together may also
    have readers in other kernels."""
    if stage.placement.program is None:
        return list(readers)
    here = root_of(plan, stage)
    return [(reader, read) for reader, read in readers if root_of(plan, reader) is here]


def loops_between(plan: Plan, stage: StagePlan) -> tuple[Axis, ...]:
    """The loops between where an attached stage is stored and where it is computed."""
    loops = loops_around(plan, stage)
    kept = stage.placement.kept
    if kept is None:
        return ()
    place = {axis: n + 1 for n, axis in enumerate(loops)}
    return loops[0 if kept.axis is None else place.get(kept.axis, len(loops)) :]


def moving(plan: Plan, stage: StagePlan) -> Slide | str:
    """How a stage that is stored outside moves on; or why each iteration computes all it reads.

    Requires: a plan without inlined stages.
    """
    inside = stored(stage.placement, None) or stage.placement
    bounds = infer(plan.with_stage(replace(stage, placement=inside)))
    facts = _loop_facts(plan, stage, bounds.stages, plan_facts(plan))
    return _slide(plan, stage, bounds[stage.name].region, bounds.stages, facts)


def _slide(
    plan: Plan,
    stage: StagePlan,
    region: tuple[Range, ...],
    found: dict[str, StageBounds],
    facts: Facts,
) -> Slide | str:
    guards: list[Expr] = []
    for host, _ in hosts(plan, stage):
        guards.extend(found[host.name].guards)
    return slide_of(stage, region, loops_between(plan, stage), guards, facts)


def _kept_regions(
    plan: Plan,
    stage: StagePlan,
    region: tuple[Range, ...],
    readers: Sequence[tuple[StagePlan, TensorRead]],
    found: dict[str, StageBounds],
    facts: Facts,
) -> tuple[tuple[Range, ...], tuple[Range, ...], tuple[int | None, ...]]:
    """What one iteration computes of a stage that is stored outside, what is kept of it, and how
    that is folded."""
    loops = loops_around(plan, stage)
    around = loops[: len(loops) - len(loops_between(plan, stage))]
    stored = _region(plan, stage, readers, found, facts, around)
    slid = _slide(plan, stage, region, found, facts)
    if isinstance(slid, str):
        return region, stored, ()
    kept = stage.placement.kept
    rolling = kept is not None and kept.rolling
    # What has no constant size fits no buffer, and the window that is read at a time does.
    if not rolling and all(constant(box.extent) is not None for box in stored):
        return slid.remaining(region), stored, ()
    folds = tuple(slid.window if n == slid.dimension else None for n in range(len(region)))
    window = Range(ZERO, Const(slid.window, region[slid.dimension].extent.dtype))
    stored = tuple(box if size is None else window for box, size in zip(stored, folds, strict=True))
    return slid.remaining(region), stored, folds


def _across_regions(
    across: Cooperative, op: ComputeOp, region: tuple[Range, ...]
) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """What one program computes of a stage that several compute together; all of it is stored."""
    own = Range(across.program, ONE)
    boxes = zip(op.axes, region, strict=True)
    mine = tuple(own if axis is across.part else box for axis, box in boxes)
    return mine, tuple(Range(ZERO, extent) for extent in op.shape)


def _folded(bounds: StageBounds, op: ComputeOp, folds: tuple[int | None, ...]) -> StageBounds:
    local = dict(bounds.local)
    for axis, size in zip(op.axes, folds, strict=True):
        if size is not None:
            local[axis] = simplify(floormod(bounds.index[axis], size), bounds.facts)
    return replace(bounds, local=local, folds=folds)


def _outside_in(
    plan: Plan, readers: Mapping[str, Sequence[tuple[StagePlan, TensorRead]]]
) -> tuple[StagePlan, ...]:
    """All stages, each after its readers and after the stage that it is attached in (which need not
    read it when that runs together with one that does)."""
    done: dict[StagePlan, None] = {}

    def visit(stage: StagePlan) -> None:
        if stage in done:
            return
        for reader, _ in readers[stage.name]:
            visit(reader)
        if stage.placement.axis is not None:
            visit(plan.stage(stage.placement.host))
        done[stage] = None

    for stage in reversed(plan.stages):
        visit(stage)
    return tuple(done)


def has_circle(plan: Plan) -> bool:
    """Whether a stage would be attached in one that needs it, which has no regions."""
    behind = {
        name: {reader.name for reader, _ in rows} for name, rows in _readers(plan, None).items()
    }
    for stage in plan.stages:
        if stage.placement.axis is not None:
            behind[stage.name].add(stage.placement.host)
    try:
        TopologicalSorter(behind).prepare()
    except CycleError:
        return True
    return False


def _readers(
    plan: Plan, only: frozenset[str] | None
) -> dict[str, list[tuple[StagePlan, TensorRead]]]:
    """Who reads each stage, of some stages or of all, and how."""
    names: dict[Operation, str] = {stage.op: stage.name for stage in plan.stages}
    out: dict[str, list[tuple[StagePlan, TensorRead]]] = {stage.name: [] for stage in plan.stages}
    for stage in plan.stages:
        if isinstance(stage.op, ComputeOp) and (only is None or stage.name in only):
            for read in _read_by(stage.op):
                out[names[read.tensor.op]].append((stage, read))
    return out


def _readers_of(plan: Plan, stage: StagePlan) -> list[tuple[StagePlan, TensorRead]]:
    """The same of one stage."""
    return _readers(plan, frozenset(reader_names(plan).get(stage.name, ())))[stage.name]


@once
def _read_by(op: ComputeOp) -> tuple[TensorRead, ...]:
    return reads(*op.bodies)


def _region(
    plan: Plan,
    stage: StagePlan,
    readers: Sequence[tuple[StagePlan, TensorRead]],
    found: dict[str, StageBounds],
    facts: Facts,
    around: Sequence[Axis] | None = None,
    memory: Memory = NONE,
) -> tuple[Range, ...]:
    """The box of `stage`'s output that `readers` need inside the loops `around`, by default those
    of its attach point."""
    if isinstance(stage.op, ScanOp):
        return memory.get(("whole", stage.op), lambda: _whole(stage.op))
    if stage.placement.axis is None or not readers:
        return memory.get(("whole", stage.op.shape), lambda: _whole(stage.op))
    fixed = loops_around(plan, stage) if around is None else tuple(around)
    readings = tuple(
        Reading(
            found[reader.name],
            (*loops_around(plan, reader), *running(plan, reader)),
            read.indices,
            always_read(reader.op).issuperset(reads(*read.indices)),
        )
        for reader, read in _at_other_places(readers)
    )
    shape = stage.op.shape
    key = ("region", shape, fixed, readings, facts)
    return memory.get(key, lambda: box_read(shape, frozenset(fixed), readings, facts))


def _whole(op: Operation) -> tuple[Range, ...]:
    """All of a definition that is computed."""
    whole = tuple(Range(ZERO, extent) for extent in op.shape)
    if isinstance(op, ScanOp):
        # Its first rows are stored by the init; the loops are those of the steps.
        steps = simplify(sub(whole[0].extent, op.first), Facts.EMPTY)
        return (Range(op.first, steps), *whole[1:])
    return whole


def _at_other_places(
    readers: Sequence[tuple[StagePlan, TensorRead]],
) -> Iterable[tuple[StagePlan, TensorRead]]:
    """The reads less those of a stage at a place where an earlier one of it is."""
    found: dict[tuple[object, ...], tuple[StagePlan, TensorRead]] = {}
    for reader, read in readers:
        found.setdefault((reader, *map(id, read.indices)), (reader, read))
    return found.values()


def _online_regions(
    plan: Plan,
    stage: StagePlan,
    readers: Sequence[tuple[StagePlan, TensorRead]],
    found: dict[str, StageBounds],
    facts: Facts,
    memory: Memory,
) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """What an online stage computes in one iteration, and what is kept for all its readers in the
    kernel: some run after the loop, inside the loops around its host."""
    host = plan.stage(stage.placement.host)
    own = frozenset(loops_around(plan, stage))
    readers = [(reader, read) for reader, read in readers if runs_beside(plan, reader, host)]
    inside = [
        (reader, read)
        for reader, read in readers
        if reader is host or own <= frozenset(loops_around(plan, reader))
    ]
    region = _region(plan, stage, inside, found, facts, memory=memory)
    if len(inside) == len(readers):
        return region, region
    around = loops_around(plan, host)
    return region, _region(plan, stage, readers, found, facts, around, memory)


def covered(plan: Plan, stage: StagePlan, bounds: Bounds) -> tuple[Range, ...]:
    """The box of a stage that the readers in its kernel read in all iterations together."""
    host = plan.stage(stage.placement.host)
    inside = [
        (reader, read)
        for reader, read in _readers_of(plan, stage)
        if runs_beside(plan, reader, host)
    ]
    return _region(plan, stage, inside, bounds.stages, plan_facts(plan), ())


def region_inside(
    plan: Plan, stage: StagePlan, bounds: Bounds, around: Sequence[Axis]
) -> tuple[Expr, ...]:
    """How much of an attached stage all its readers read while only the loops `around` stand
    still."""
    readers = _users(plan, stage, _readers_of(plan, stage))
    facts = _loop_facts(plan, stage, bounds.stages, plan_facts(plan))
    return tuple(box.extent for box in _region(plan, stage, readers, bounds.stages, facts, around))


def _stage_bounds(
    plan: Plan,
    stage: StagePlan,
    op: ComputeOp,
    region: tuple[Range, ...],
    stored: tuple[Range, ...],
    kept: frozenset[Axis],
    found: dict[str, StageBounds],
    facts: Facts,
    memory: Memory,
) -> StageBounds:
    """The loops of a stage that computes `region`; `facts` are those of the loops around it, and
    dimensions of `kept` axes are stored as they are, not folded."""
    names = shared_loops(plan, stage)
    host: tuple[object, ...] = ()
    if isinstance(stage.placement, Online):
        leader = plan.stage(stage.placement.host)
        loops = loops_around(plan, stage)
        host = (found[leader.name], tuple(leader.op.reduce_axis), leader.leaf_axes, loops)
    # Reading a copy makes another operation with the same axes.
    made = (op,) if stage.scatters else (op.axes, op.reduce_axes, op.shape)
    shape = (*made, stage.relations, stage.leaf_axes, tuple(names.items()))
    return memory.get(
        ("stage", shape, region, stored, kept, facts, host),
        lambda: _computed(
            stage, op, region, stored, kept, _slices(plan, stage, op, facts, found), names, facts
        ),
    )


def _computed(
    stage: StagePlan,
    op: ComputeOp,
    region: tuple[Range, ...],
    stored: tuple[Range, ...],
    kept: frozenset[Axis],
    slices: dict[Axis, Range],
    names: Mapping[Axis, Axis],
    facts: Facts,
) -> StageBounds:
    """The same, for loops that go by `names` and fold `slices`."""
    extents: dict[Axis, Expr] = {}
    starts: dict[Axis, Expr] = {}
    for axis, box in zip(op.axes, region, strict=True):
        extents[axis], starts[axis] = box.extent, box.min
    for axis in op.reduce_axes:
        part = slices.get(axis, axis.domain)
        if part is None:
            raise InternalError(f"reduce axis {axis.name} of {op.name} has no domain")
        extents[axis], starts[axis] = part.extent, part.min
    for relation in stage.relations:
        pass_down(relation, extents, facts)
    for axis in stage.leaf_axes:
        run = names.get(axis, axis)
        extents[run] = extents[axis]
        facts = facts.with_axis(run, 0, extents[axis])
    values = pass_up(stage, extents, starts, names)
    guards = guards_of(stage, op, extents, values, starts, facts)
    local = {axis: simplify(values[axis], facts) for axis in stage.root_axes}
    index = {  # as wide as the axis that it stands for, whatever loops it is made of
        axis: widened(simplify(add(starts[axis], local[axis]), facts), axis.dtype)
        for axis in stage.root_axes
    }
    for axis, box, held in zip(op.axes, region, stored, strict=True):
        if box.min is not held.min:
            local[axis] = simplify(sub(index[axis], held.min), facts)
        if box is not held and axis in kept:
            guards += beyond(local[axis], held.extent, facts)
    return StageBounds(extents, index, local, region, guards, facts, stored, slices)


def _slices(
    plan: Plan, stage: StagePlan, op: ComputeOp, facts: Facts, found: dict[str, StageBounds]
) -> dict[Axis, Range]:
    """What an online stage folds in one iteration of the loop it goes along with: the part of the
    axis that its host folds there."""
    if not isinstance(stage.placement, Online) or not op.reduce_axes:
        return {}
    host = plan.stage(stage.placement.host)
    fixed = frozenset(loops_around(plan, stage))
    moving = [axis for axis in host.leaf_axes if axis not in fixed]
    bounds = found[host.name]
    folded = host.op.reduce_axis
    parts: dict[Axis, Range] = {}
    for own, axis in zip(op.reduce_axes, folded, strict=True):
        if own.domain is not None:
            part = index_range(bounds.index[axis], moving, own.domain, bounds.facts)
            parts[own] = Range(part.min, simplify(part.extent, facts))
    return parts


def _loop_facts(
    plan: Plan,
    stage: StagePlan,
    found: dict[str, StageBounds],
    facts: Facts,
    memory: Memory = NONE,
) -> Facts:
    """`facts` and the ranges of the loops around `stage`."""
    if stage.placement.axis is None:
        return facts
    if stage.placement.host not in found:
        raise InternalError(f"stage {stage.name} is attached to {stage.placement.host}, no reader")
    hosts = list[StageBounds]()
    host = stage
    while host.placement.axis is not None:
        host = plan.stage(host.placement.host)
        hosts.append(found[host.name])
    extents = tuple(
        (axis, next(b for b in hosts if axis in b.extents).extents[axis])
        for axis in loops_around(plan, stage)
    )

    def ranges() -> Facts:
        inside = facts
        for axis, extent in extents:
            inside = inside.with_axis(axis, 0, extent)
        return inside

    return memory.get(("loops", facts, extents), ranges)


def plan_facts(plan: Plan) -> Facts:
    """What holds of the sizes at every call: no dimension is negative, and what is assumed."""
    facts = shape_facts([symbolic(plan)])
    for condition in plan.assumptions:
        facts = facts.assume(condition)
    return facts


def at_least_none(extent: Expr, facts: Facts) -> Expr:
    """An extent as one of memory: 0 where it is below, as that of loops that do not run may be."""
    if prove(at_most(ZERO, extent), facts):
        return extent
    return simplify(maximum(extent, ZERO), facts)


def shape_facts(shapes: Iterable[tuple[Expr, ...]]) -> Facts:
    """No dimension of a tensor is negative."""
    symbolic = dict.fromkeys(e for shape in shapes for e in shape if constant(e) is None)
    facts = Facts.EMPTY
    for extent in symbolic:
        facts = facts.assume(at_most(ZERO, extent))
    return facts
