"""Decide what a plan left open, as the target needs it: block axes and grid dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tedsl.expr.nodes import Axis, AxisKind
from tedsl.expr.visit import axes_of, reads
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.kernels.tree import shared_loops, sharing
from tedsl.scheduling.plan import (
    AT_ROOT,
    Fuse,
    Mark,
    Online,
    Plan,
    SharedLoops,
    Skew,
    Split,
    StagePlan,
    Unit,
)
from tedsl.scheduling.plan.relations import constant, extents
from tedsl.scheduling.plan.scan_structure import is_step_axis
from tedsl.scheduling.primitives.scans.legality import has_own_launch
from tedsl.scheduling.regions.infer import loops_between
from tedsl.tensor.tensor import ComputeOp, Operation

GRID_DIMENSIONS = 3


def complete_for_loops(plan: Plan) -> Plan:
    """On the CPU a grid dimension is a parallel loop."""

    def parallel(stage: StagePlan) -> StagePlan:
        if all(m.kind is not LoopKind.PROGRAM for m in stage.marks.values()):
            return stage
        loop = Mark(LoopKind.PARALLEL)
        marks = {a: loop if m.kind is LoopKind.PROGRAM else m for a, m in stage.marks.items()}
        return replace(stage, marks=marks)

    return _with_shared_marks(plan, replace(plan, stages=tuple(parallel(s) for s in plan.stages)))


def complete_for_blocks(plan: Plan, launches: frozenset[str] = frozenset()) -> Plan:
    """Marks that a program of tiles implies, on loops that have none.

    Parallel loops become grid dimensions, in their order; those inside a serial one or one in which
    another stage is computed, those that the grid has no dimension left for, and those of attached
    stages are loops of one program: `parallel` allows, and orders nothing.  Block axes are: the
    data axes of an attached stage (its tile lives in registers whole), the axes at which its reader
    indexes that tile (registers are read whole), the loops inside a pipelined one (it moves tiles),
    and those inside an online one, and of its online stages; but no loop in which another stage is
    computed.

    A stage in the steps of a scan of `launches` is a kernel of its own, not a tile.
    """
    places = _places(plan)
    stages: list[StagePlan] = []
    for stage in plan.stages:
        if isinstance(stage.op, ComputeOp):
            own = has_own_launch(plan, stage) and stage.placement.host in ("", *launches)
            grid = _grid(plan, stage, places) if own else _by_itself(stage)
            stage = replace(stage, marks={**stage.marks, **grid}) if grid else stage
            blocks = [a for a in _blocks(plan, stage, attached=not own) if a not in places]
            if blocks:
                marks = {a: _as_block(stage, a) for a in blocks}
                stage = replace(stage, marks={**stage.marks, **marks})
        stages.append(_in_registers(stage))
    return _with_shared_marks(plan, replace(plan, stages=tuple(stages)))


def _with_shared_marks(given: Plan, plan: Plan) -> Plan:
    """`plan`, completed from `given`: loops that a stage shares run as the leader's do.

    Loops that are dimensions of a tile are inside all others, each stage's by itself: then only
    those outside them are shared.
    """
    for stage in plan.stages:
        place = stage.placement
        if not isinstance(place, SharedLoops):
            continue
        leader = plan.stage(place.leader)
        outer = list(shared_loops(given, given.stage(stage.name)).items())
        lanes = [n for n, (_, run) in enumerate(outer) if _is_lane(leader, run)]
        kept = outer[: lanes[0]] if lanes else outer
        marks = {own: leader.mark(run) for own, run in outer}
        left = replace(place, down_to=kept[-1][1]) if kept else place.at or AT_ROOT
        plan = plan.with_stage(replace(stage, marks={**stage.marks, **marks}, placement=left))
    return plan


def _is_lane(stage: StagePlan, axis: Axis) -> bool:
    return stage.mark(axis).kind is LoopKind.VECTORIZED


def _in_registers(stage: StagePlan) -> StagePlan:
    """A tile in registers has no rows in memory to align."""
    if stage.placement.axis is None or not stage.aligned:
        return stage
    return replace(stage, aligned=())


def _as_block(stage: StagePlan, axis: Axis) -> Mark:
    return replace(stage.mark(axis), kind=LoopKind.VECTORIZED)


def _blocks(plan: Plan, stage: StagePlan, *, attached: bool) -> Iterator[Axis]:
    """The unmarked loops of `stage` that are block axes."""
    run = shared_loops(plan, stage)
    plain = Mark()
    free = [
        a
        for a in stage.leaf_axes
        if replace(stage.mark(a), products=None) == plain and a not in run
    ]
    indexing = _tile_indices(plan, stage)
    online = {
        guest.placement.axis
        for guest in plan.stages
        if isinstance(guest.placement, Online) and guest.placement.host == stage.name
    }
    piped = False
    inside: set[Axis] = set()
    sizes = extents(stage)
    for axis in stage.loop_order:
        # The sides of a tile of a pipelined loop are constants; other loops stay loops.
        if piped and (attached or constant(sizes[axis]) is not None):
            inside.add(axis)
        piped = piped or stage.mark(axis).num_stages > 1 or axis in online
    for axis in free:
        data = axis.kind is AxisKind.DATA
        tiled = axis in indexing and axis not in online
        whole = isinstance(stage.placement, Online) or axis in inside or tiled
        if whole or (data and attached):
            yield axis


def _tile_indices(plan: Plan, stage: StagePlan) -> set[Axis]:
    """The leaf axes by which `stage` indexes the tiles computed inside it."""
    inner: dict[Operation, Axis | None] = {
        s.op: s.placement.axis
        for s in plan.stages
        if s.placement.axis is not None and s.placement.host == stage.name
    }
    own = {leader: axis for axis, leader in shared_loops(plan, stage).items()}
    for s in plan.stages:
        place = s.placement.axis
        if s.placement.axis is not None and place is not None and place in own:
            inner[s.op] = own[place]
    found: set[Axis] = set()
    order = {axis: i for i, axis in enumerate(stage.loop_order)}
    for read in reads(*(stage.op.bodies if isinstance(stage.op, ComputeOp) else ())):
        place = inner.get(read.tensor.op) if isinstance(read.tensor.op, ComputeOp) else None
        if place is not None:
            leaves = _leaves(stage, set(axes_of(*read.indices)))
            found |= {a for a in leaves if order[a] > order[place]}
    return found


def _leaves(stage: StagePlan, axes: set[Axis]) -> set[Axis]:
    """The leaf axes that some of the root `axes` became."""
    for relation in stage.relations:
        match relation:
            case Split(parent=parent, outer=outer, inner=inner):
                if parent in axes:
                    axes = (axes - {parent}) | {outer, inner}
            case Fuse(outer=outer, inner=inner, fused=fused):
                if outer in axes or inner in axes:
                    axes = (axes - {outer, inner}) | {fused}
            case Unit():
                pass
            case Skew(parent=parent, skewed=skewed):
                if parent in axes:
                    axes = (axes - {parent}) | {skewed}
    return axes


def _places(plan: Plan) -> frozenset[Axis]:
    """The loops at which stages are computed, and those between there and where they are stored:
    one iteration comes after the other."""
    found: set[Axis] = set()
    for stage in plan.stages:
        if stage.placement.axis is not None and not isinstance(stage.placement, Online):
            found |= set(loops_between(plan, stage)) if stage.placement.kept is not None else set()
            found.add(stage.placement.axis)
    return frozenset(found)


def _by_itself(stage: StagePlan) -> dict[Axis, Mark]:
    """Loops of one program for the parallel loops of a stage that has no grid."""
    return {
        axis: replace(mark, kind=LoopKind.SERIAL)
        for axis, mark in stage.marks.items()
        if mark.kind is LoopKind.PARALLEL
    }


def _grid(plan: Plan, stage: StagePlan, places: frozenset[Axis]) -> dict[Axis, Mark]:
    """Grid dimensions for the parallel loops outside all serial ones, as far as there are any.

    Nothing runs between the loops of the grid, so they end where others compute: at the loops of
    `places`, and at the innermost that stages share.
    """
    used = [m.program for m in stage.marks.values() if m.kind is LoopKind.PROGRAM]
    ends = places | _meetings(plan, stage)
    marks: dict[Axis, Mark] = {}
    inside = False
    for axis in stage.loop_order:
        mark = stage.mark(axis)
        if mark.kind is LoopKind.PARALLEL:
            free = [d for d in range(GRID_DIMENSIONS) if d not in used]
            if inside or not free:
                marks[axis] = replace(mark, kind=LoopKind.SERIAL)
            else:
                used.append(free[0])
                marks[axis] = Mark(LoopKind.PROGRAM, free[0])
        elif mark.kind not in (LoopKind.PROGRAM, LoopKind.VECTORIZED):
            fixed = axis.kind is AxisKind.DATA and is_step_axis(plan, stage, axis)
            inside = inside or not fixed
        inside = inside or axis in ends
    return marks


def _meetings(plan: Plan, stage: StagePlan) -> frozenset[Axis]:
    """The innermost loops that `stage` shares, with its leader or with who follows it."""
    places = (follower.placement for follower in sharing(plan, stage))
    found = [place.down_to for place in places if isinstance(place, SharedLoops)]
    return frozenset((*found, *list(shared_loops(plan, stage))[-1:]))
