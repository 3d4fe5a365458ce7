"""What a target implies and a schedule need not say: programs, block axes, loops that the target
has no other way to run.

The lowering completes a plan before it makes loop nests of it, and a schedule that has a target is
printed completed, so that what is printed is what runs.  Imports the plan and the tree of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from tedsl.expr.index_arith import next_power_of_two
from tedsl.expr.nodes import Axis, AxisKind, Expr
from tedsl.expr.visit import axes_of, reads
from tedsl.index.prove import equal
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.handles.thread_axis import GRID, VIRTUAL
from tedsl.scheduling.kernels.thread_tiles import tiles_of_threads
from tedsl.scheduling.kernels.tile_room import loops_left
from tedsl.scheduling.kernels.tree import (
    computed_in,
    group_of,
    guests,
    has_own_launch,
    root_of,
    shared_loops,
    sharing,
)
from tedsl.scheduling.kernels.updates import in_turn
from tedsl.scheduling.plan import (
    AT_ROOT,
    PLAIN,
    At,
    Mark,
    Online,
    Plan,
    Relation,
    SharedLoops,
    Split,
    StagePlan,
    by_itself,
)
from tedsl.scheduling.plan.links import operations_read
from tedsl.scheduling.plan.relations import constant, extents, leaves_of
from tedsl.scheduling.plan.scan_structure import (
    aligned,
    is_step_axis,
    outside_steps,
    scan_stages,
    step_loop,
)
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.regions.infer import infer, loops_between
from tedsl.target import Target
from tedsl.tensor.intrin import TensorIntrin
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp


def as_it_runs(plan: Plan, target: Target | None) -> Plan:
    """The plan whose loop nests a schedule shows: without inlined stages, each axis in one stage
    only; where the target is known, completed for it."""
    plan = own_nests(plan)
    return plan if target is None else complete(hoist_threads(plan), target)


def complete(plan: Plan, target: Target) -> Plan:
    """The plan with what the target implies.

    Before:  for i.outer (parallel): T at C.i.outer: for i, j: T[i, j] = ...
    After:   for i.outer (blockIdx.x): T at C.i.outer: for i, j (block): T[i, j] = ...
    Requires: no inlined stage, each axis in one stage only.
    """
    plan = in_turn(_with_own_loops(plan, blocks=target.is_triton), target)
    return tiles_of_threads(plan, _for_blocks) if target.is_triton else _for_loops(plan)


def _for_loops(plan: Plan) -> Plan:
    """What threads of a pool do, which are not all running and must not wait for one another: a
    grid dimension is a parallel loop, what last programs compute a loop of its own after it, and
    of what programs would exchange at a barrier each computes all; virtual threads are a loop,
    inside those that stages share as the lanes were."""
    shares = [s for s in plan.stages if isinstance(s.placement, SharedLoops)]
    sharing = {name for s in shares for name in (s.name, s.placement.leader)}

    def run(mark: Mark) -> Mark:
        if mark.thread in VIRTUAL:
            return replace(mark, kind=LoopKind.SERIAL, thread="")
        return Mark(LoopKind.PARALLEL) if mark.kind is LoopKind.PROGRAM else mark

    def without_grid(stage: StagePlan) -> StagePlan:
        place = stage.placement
        if place.of or place.program is not None:
            stage = replace(stage, placement=by_itself(place))
        marks = {axis: run(mark) for axis, mark in stage.marks.items()}
        if marks == stage.marks:
            return stage
        order = stage.loop_order if stage.name in sharing else stage.leaf_axes
        return replace(stage, marks=marks, leaf_axes=order)

    return _with_shared_marks(plan, replace(plan, stages=tuple(map(without_grid, plan.stages))))


def _for_blocks(plan: Plan, threads: frozenset[str] = frozenset()) -> Plan:
    """Marks that a program of tiles implies, on loops that have none.

    Parallel loops become grid dimensions, in their order; those inside a serial one or one in which
    another stage is computed, those that the grid has no dimension left for, and those of attached
    stages are loops of one program: `parallel` allows, and orders nothing.  Block axes are: the
    data axes of an attached stage (its tile lives in registers whole), the axes at which its reader
    indexes that tile (registers are read whole), the loops inside a pipelined one (it moves tiles;
    the inner ones where there is no room for a tile of all), and those inside an online one, and of
    its online stages; but no loop in which another stage is computed.

    A stage in the steps of a scan that are launched one by one is a kernel of its own, not a tile.
    In the stages `threads`, an unrolled loop that indexes a tile is a block axis as well.
    """
    plan = _in_steps_order(plan)
    launches, places = launched_scans(plan), _places(plan)
    stages: list[StagePlan] = []
    for stage in plan.stages:
        if isinstance(stage.op, ComputeOp):
            own = has_own_launch(plan, stage) and stage.placement.host in ("", *launches)
            grid = _grid(plan, stage, places) if own else _by_itself(stage)
            stage = replace(stage, marks={**stage.marks, **grid}) if grid else stage
            found = _blocks(plan, stage, attached=not own, unrolled=stage.name in threads)
            blocks = [a for a in found if a not in places]
            if blocks:
                marks = {a: _as_block(stage, a) for a in blocks}
                stage = replace(stage, marks={**stage.marks, **marks})
        stages.append(_in_registers(stage))
    return _with_shared_marks(plan, replace(plan, stages=tuple(stages)))


def _in_steps_order(plan: Plan) -> Plan:
    """Loops over steps without software pipelining, which would load rows before they are
    stored."""
    for stage, _ in scan_stages(plan):
        loop = step_loop(stage)
        mark = replace(stage.mark(loop), num_stages=1)
        plan = plan.with_stage(replace(stage, marks={**stage.marks, loop: mark}))
    return plan


def _with_shared_marks(given: Plan, plan: Plan) -> Plan:
    """`plan`, completed from `given`: loops that a stage shares run as the leader's do.

    Loops that are dimensions of a tile are inside all others, each stage's by itself: then only
    those outside them are shared.
    """
    for each in plan.stages:
        stage = plan.stage(each.name)  # as it is by now
        place = stage.placement
        if not isinstance(place, SharedLoops):
            continue
        leader = plan.stage(place.leader)
        outer = list(shared_loops(given, given.stage(stage.name)).items())
        lanes = [n for n, (_, run) in enumerate(outer) if _is_lane(leader, run)]
        marks = {own: leader.mark(run) for own, run in outer}
        changed = replace(stage, marks={**stage.marks, **marks})
        plan = _sharing_fewer(plan.with_stage(changed), changed, place, outer, lanes)
    return _as_long(plan)


def _as_long(plan: Plan) -> Plan:
    """`plan` with as many shared loops of attached stages as run as long as the leader's: where
    loops around them became dimensions of a tile, each stage has more elements, and not all have as
    many."""
    for each in plan.stages:
        stage = plan.stage(each.name)  # as it is by now
        place = stage.placement
        if not isinstance(place, SharedLoops) or place.at is None:
            continue
        roots = [one.name for one in group_of(plan, root_of(plan, stage))]
        found = infer(plan, computed_in(plan, roots))
        own, leader = found[stage.name], found[place.leader]
        pairs = list(shared_loops(plan, stage).items())
        alike = [equal(own.extents[a], leader.extents[b], own.facts) for a, b in pairs]
        other = [n for n, same in enumerate(alike) if not same]
        plan = _sharing_fewer(plan, stage, place, pairs, other)
    return plan


def _sharing_fewer(
    plan: Plan,
    stage: StagePlan,
    place: SharedLoops,
    pairs: Sequence[tuple[Axis, Axis]],
    but: Sequence[int],
) -> Plan:
    """`plan` where a stage shares those of its loops, each with the leader's in `pairs`, that are
    outside the first of which the number is in `but`."""
    if not but:
        return plan
    kept, apart = pairs[: but[0]], pairs[but[0] :]
    left = replace(place, down_to=kept[-1][1]) if kept else place.at or AT_ROOT
    plan = plan.with_stage(replace(stage, placement=left))
    home = At(place.leader, kept[-1][1]) if kept else place.at
    return plan if home is None else _outside(plan, stage, {run for _, run in apart}, home)


def _outside(plan: Plan, reader: StagePlan, apart: Set[Axis], home: At) -> Plan:
    """`plan` where what is computed in the loops `apart` of another stage, in which `reader` no
    longer is, is computed at `home`, around both, if `reader` reads any of it."""
    read = map(plan.stage_of, operations_read(reader.op))
    if not any(stage.placement.axis in apart for stage in read):
        return plan
    for stage in plan.stages:
        place = stage.placement
        at = place.at if isinstance(place, SharedLoops) else place
        if isinstance(at, At) and at.axis in apart:
            store = None if at.kept is not None and at.kept.axis in apart else at.kept
            moved = replace(at, host=home.host, axis=home.axis, kept=store)
            left = replace(place, at=moved) if isinstance(place, SharedLoops) else moved
            plan = plan.with_stage(replace(stage, placement=left))
    return plan


def _is_lane(stage: StagePlan, axis: Axis) -> bool:
    return stage.mark(axis).kind is LoopKind.VECTORIZED


def _in_registers(stage: StagePlan) -> StagePlan:
    """A tile in registers has no rows in memory to align."""
    if stage.placement.axis is None or not stage.aligned:
        return stage
    return replace(stage, aligned=())


def _as_block(stage: StagePlan, axis: Axis) -> Mark:
    return replace(stage.mark(axis), kind=LoopKind.VECTORIZED, implied=True)


def _blocks(plan: Plan, stage: StagePlan, *, attached: bool, unrolled: bool) -> Iterator[Axis]:
    """The unmarked loops of `stage` that are block axes, and the `unrolled` ones."""
    run = shared_loops(plan, stage)
    free = [
        a
        for a in stage.leaf_axes
        if replace(stage.mark(a), products=None, implied=False) == PLAIN and a not in run
        if not (stage.scatters and stage.mark(a).implied)  # one point of it after the other
    ]
    indexing = _tile_indices(plan, stage)
    inside_it = guests(plan, stage)
    online = {g.placement.axis for g in inside_it if isinstance(g.placement, Online)}
    piped = False
    inside: set[Axis] = set()
    sizes = extents(stage)
    folded = set(online)
    pieces: set[Axis] = set()  # outside a loop that an online stage is folded in, piece by piece
    for axis in stage.loop_order:
        # The sides of a tile of a pipelined loop are constants; other loops stay loops, as do those
        # that an online stage is folded in: it would be folded for each of their lanes.
        if piped and not folded and (attached or constant(sizes[axis]) is not None):
            inside.add(axis)
        folded.discard(axis)
        if folded and axis.kind is AxisKind.REDUCE:
            pieces.add(axis)
        piped = piped or stage.mark(axis).num_stages > 1 or axis in online
    if inside and not online and not isinstance(stage.placement, Online):
        inside -= _too_many(plan, stage, inside, free, indexing, attached=attached)
    written = [a for a in stage.leaf_axes if stage.mark(a) == Mark(LoopKind.UNROLLED)]
    kept = online | pieces
    yield from (a for a in written if unrolled and a in indexing and a not in kept)
    for axis in free:
        data = axis.kind is AxisKind.DATA
        tiled = axis in indexing and axis not in online and axis not in pieces
        whole = isinstance(stage.placement, Online) or axis in inside or tiled
        if whole or (data and attached):
            yield axis


def _too_many(
    plan: Plan,
    stage: StagePlan,
    inside: set[Axis],
    free: Sequence[Axis],
    indexing: set[Axis],
    *,
    attached: bool,
) -> frozenset[Axis]:
    """The loops inside a pipelined one that stay loops, as a tile of all has no room."""
    fixed = {a for a in free if a in indexing or (attached and a.kind is AxisKind.DATA)}
    fixed.update(a for a in stage.leaf_axes if _is_lane(stage, a))
    own = inside.intersection(free) - fixed
    implied = [a for a in stage.loop_order if a in own]
    op = stage.op
    if not implied or not isinstance(op, ComputeOp):
        return frozenset()
    if attached:
        roots = [each.name for each in group_of(plan, root_of(plan, stage))]
        known = infer(plan, computed_in(plan, roots))[stage.name].extents
    else:
        known = extents(stage)
    sizes = {a: next_power_of_two(constant(known[a]) or 1) for a in (*implied, *fixed)}
    return loops_left(op, implied, sizes, lambda axes: leaves_of(stage, axes))


def _tile_indices(plan: Plan, stage: StagePlan) -> set[Axis]:
    """The leaf axes by which `stage` indexes the tiles computed inside it."""
    inner: dict[Operation, Axis | None] = {
        s.op: s.placement.axis for s in guests(plan, stage) if s.placement.axis is not None
    }
    own = {leader: axis for axis, leader in shared_loops(plan, stage).items()}
    for s in guests(plan, plan.stage(stage.placement.leader)) if own else ():
        place = s.placement.axis
        if place is not None and place in own:
            inner[s.op] = own[place]
    found: set[Axis] = set()
    order = {axis: i for i, axis in enumerate(stage.loop_order)}
    for read in reads(*(stage.op.bodies if isinstance(stage.op, ComputeOp) else ())):
        place = inner.get(read.tensor.op) if isinstance(read.tensor.op, ComputeOp) else None
        if place is not None:
            leaves = leaves_of(stage, set(axes_of(*read.indices)))
            found |= {a for a in leaves if order[a] > order[place]}
    return found


def _places(plan: Plan) -> frozenset[Axis]:
    """The loops at which stages are computed and stored, and those between: one iteration comes
    after the other."""
    found: set[Axis] = set()
    for stage in plan.stages:
        place = stage.placement
        if place.axis is not None and not isinstance(place, Online):
            found.add(place.axis)
            if place.kept is not None:
                found.update(loops_between(plan, stage))
                found.update(() if place.kept.axis is None else (place.kept.axis,))
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
            free = [d for d in range(len(GRID)) if d not in used]
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


def _with_own_loops(plan: Plan, *, blocks: bool) -> Plan:
    """The plan in which the loops of intrinsics that the target has no code for are serial, as they
    were before `tensorize`; Triton's tiles have extents that are powers of two."""

    def plain(mark: Mark) -> Mark:
        found = mark.tensorized
        if found is None or _has_code(found.intrin, blocks):
            return mark
        return replace(mark, kind=LoopKind.SERIAL, tensorized=None)

    def changed(stage: StagePlan) -> StagePlan:
        if all(mark.tensorized is None for mark in stage.marks.values()):
            return stage
        return replace(stage, marks={axis: plain(mark) for axis, mark in stage.marks.items()})

    stages = tuple(map(changed, plan.stages))
    same = all(a is b for a, b in zip(stages, plan.stages, strict=True))
    return plan if same else replace(plan, stages=stages)


def _has_code(intrin: TensorIntrin, blocks: bool) -> bool:
    if not blocks:
        return intrin.cpu is not None
    whole = all(size & (size - 1) == 0 for size in intrin.extents)
    return intrin.gpu is not None and whole


def launched_scans(plan: Plan) -> frozenset[str]:
    """The scans of which every step is launched by itself: those without loops around the steps,
    and with loops in them.

    Between two launches all programs see what all others have stored.  A scan with loops around its
    steps needs nothing from other programs, and one without loops in them has one program.
    """
    return frozenset(
        stage.name
        for stage, _ in scan_stages(plan)
        if not outside_steps(stage) and any(_has_loops(plan, s) for s in _in_steps(plan, stage))
    )


def _in_steps(plan: Plan, scan: StagePlan) -> list[StagePlan]:
    """The stages directly inside the loop over the steps, or another loop of the scan."""
    return [
        stage
        for stage in plan.stages
        if stage.placement.axis is not None and stage.placement.host == scan.name
    ]


def _has_loops(plan: Plan, stage: StagePlan) -> bool:
    """True when a stage of the steps has elements that are computed in any order."""
    return any(
        axis.kind is AxisKind.DATA and not is_step_axis(plan, stage, axis)
        for axis in stage.leaf_axes
    )


def hoist_threads(plan: Plan) -> Plan:
    """Loops of the steps that are bound to the grid, around the steps of scans that ask for it.

    Before:  for t: for io (blockIdx.x): for ii: S[t, io*32 + ii] = f(S[t - 1, io*32 + ii])
    After:   for io (blockIdx.x): for t: for ii: ...
    Only where no element needs one of another program, and the stages of the steps are bound alike.
    """
    for stage, scan in scan_stages(plan):
        dims = [GRID.index(tag) for tag in stage.env if tag in GRID]
        if dims and not outside_steps(stage):
            plan = _hoisted(plan, stage, scan, dims) or plan
    return plan


def _hoisted(plan: Plan, stage: StagePlan, scan: ScanOp, dims: list[int]) -> Plan | None:
    """The plan with grid loops `dims` around the steps; None when they cannot be."""
    parts = _in_steps(plan, stage)
    moved: dict[int, tuple[int, Expr | None]] = {}
    for part in parts:
        bound = {m.program: a for a, m in part.marks.items() if m.kind is LoopKind.PROGRAM}
        if set(bound) != set(dims) or part.placement.axis is not step_loop(stage):
            return None
        for program, axis in bound.items():
            place, factor = _origin(scan, part, axis)
            if place is None:
                return None
            known = moved.setdefault(program, (place, factor))
            if known[0] != place or constant(known[1]) != constant(factor):
                return None
            if (known[1] is None) != (factor is None):
                return None
        rest = {a: m for a, m in part.marks.items() if m.kind is not LoopKind.PROGRAM}
        plan = plan.with_stage(replace(part, marks=rest))
    outer: dict[Axis, Mark] = {}
    relations: list[Relation] = list(stage.relations)
    leaves = list(stage.leaf_axes)
    for program in dims:
        place, factor = moved[program]
        root = scan.axes[place]
        at = next((n for n, axis in enumerate(leaves) if axis is root), None)
        if at is None:
            return None
        leaves.pop(at)
        loop = root
        if factor is not None:
            loop = Axis(f"{root.name}.outer", root.kind, None, root.dtype)
            inner = Axis(f"{root.name}.inner", root.kind, None, root.dtype)
            relations.append(Split(root, loop, inner, factor))
            leaves.append(inner)
        outer[loop] = Mark(LoopKind.PROGRAM, program)
    order = (*outer, *leaves)
    left = frozenset(leaves)
    marks = {axis: mark for axis, mark in stage.marks.items() if axis in left} | outer
    return plan.with_stage(replace(stage, leaf_axes=order, relations=tuple(relations), marks=marks))


def _origin(scan: ScanOp, part: StagePlan, axis: Axis) -> tuple[int | None, Expr | None]:
    """The dimension of the scan that a loop goes over, and by how many elements; None when it is
    none, or its elements are not computed by themselves."""
    root, factor = axis, None
    for relation in part.relations:
        if isinstance(relation, Split) and relation.outer is axis:
            if constant(relation.factor) is None:
                return None, None
            root, factor = relation.parent, relation.factor
    for place in range(1, len(scan.axes)):
        axes = aligned(scan, place)
        if axes is not None and axes.get(part.op) is root:
            return place, factor
    return None, None
