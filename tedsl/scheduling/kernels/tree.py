"""Kernels of a plan: which stages share one, in whose loops each is computed, and in which order
and phases they run.

    Kernel > Phase > Nest    what one launch runs; what runs without waiting; a stage and its loops

Where a stage runs is said by its placement; the placements of all stages are put together here.
Questions about one stage are functions of the plan, which walk over what is around that stage; the
whole tree is made once for a plan, where it is lowered or printed.
Imports the plan and the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

from tedsl.errors import InternalError
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import LoopKind
from tedsl.once import once
from tedsl.scheduling.plan import Plan, SameGrid, SharedLoops, StagePlan
from tedsl.scheduling.plan.graph import is_output, loop_readers, readers
from tedsl.scheduling.plan.links import (
    follower_names,
    guest_names,
    in_plan_order,
    special,
    tensors_read,
)
from tedsl.scheduling.plan.relations import ranks
from tedsl.scheduling.plan.scan_structure import outside_steps, step_loop
from tedsl.scheduling.regions.computed_indices import NO_NEEDS, Needs, tensors_needed
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, ScanOp


class Sync(StrEnum):
    """What a program waits for before a phase: nothing; all programs of the loops `over`; or, for
    those of the loops `over`, nothing, but only the last of them to come computes it."""

    NONE = "none"
    GRID_BARRIER = "grid barrier"
    LAST_BLOCK = "last block"


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """A stage, the loops that it runs in, outermost first, and what runs in each iteration of
    them.  `sharing` run inside outer loops of it, which are theirs too."""

    stage: StagePlan
    loops: tuple[Axis, ...]
    inside: Mapping[Axis, tuple[Phase, ...]]
    sharing: tuple[Nest, ...] = ()

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """The stage, and those that share its loops."""
        return (self.stage, *(each.stage for each in self.sharing))


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """What runs without waiting, behind `sync` of the programs of the loops `over` of the stage
    `of`.  One without nests stands for the rest of the iteration."""

    nests: tuple[Nest, ...]
    sync: Sync = Sync.NONE
    of: str = ""
    over: tuple[Axis, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """What one launch runs: the nests of `programs` side by side in one grid, and what the last
    programs compute.

    `leader` gives it its name, its options and its versions; `grid` are the leader's loops whose
    iterations are programs.  `roots` are the stages at root that all programs are of, the leader
    first, the others in plan order, and `stages` the names of all that the kernel computes.
    """

    leader: StagePlan
    grid: tuple[Axis, ...]
    programs: Phase
    last: tuple[Phase, ...]
    roots: tuple[StagePlan, ...]
    stages: frozenset[str]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases, in order."""
        return (self.programs, *self.last)


@dataclass(frozen=True, slots=True, eq=False)
class KernelTree:
    """The kernels of a plan in launch order, calls of externs among them, and what runs in each
    iteration of a loop."""

    kernels: tuple[Kernel, ...]
    inside: Mapping[Axis, tuple[Phase, ...]]

    @property
    def led(self) -> Mapping[str, Kernel]:
        """The kernels by the names of their leaders."""
        return {kernel.leader.name: kernel for kernel in self.kernels}


def kernel_tree(plan: Plan, needs: Needs = NO_NEEDS) -> KernelTree:
    """The kernels of a plan.

    Args:
        plan: a legal plan without inlined stages.
        needs: what the bounds of stages read.
    """
    return _tree(plan, needs) if needs else _usual_tree(plan)


@once
def _usual_tree(plan: Plan) -> KernelTree:
    return _tree(plan, NO_NEEDS)


def _tree(plan: Plan, needs: Needs) -> KernelTree:
    inside: dict[Axis, tuple[Phase, ...]] = {}
    roots = [
        stage
        for stage in plan.stages
        if isinstance(stage.op, (ComputeOp, ExternOp)) and stage.placement.at_root
    ]
    kernels = [
        _kernel(plan, group, needs, inside)
        for group in _groups(plan, roots, needs)
        if not group[0].placement.head  # which others store
    ]
    return KernelTree(tuple(kernels), inside)


def _kernel(
    plan: Plan,
    group: tuple[StagePlan, ...],
    needs: Needs,
    inside: dict[Axis, tuple[Phase, ...]],
) -> Kernel:
    """The kernel of a group at root."""
    leader = group[0]
    roots = tuple(stage for stage in group if not stage.placement.of)
    others = beside(plan, leader)
    near = tuple(stage for stage in roots if stage not in others)
    nests = [_nest(plan, each, needs, inside) for each in (near, *((stage,) for stage in others))]
    last: list[Phase] = []
    for stage in group:
        if stage.placement.of:
            over = grid_loops(plan.stage(stage.placement.of))[len(grid_loops(stage)) :]
            own = (_nest(plan, (stage,), needs, inside),)
            last.append(Phase(own, Sync.LAST_BLOCK, stage.placement.of, over))
    stages = computed_in(plan, (stage.name for stage in group))
    programs = Phase(tuple(nests))
    return Kernel(leader, grid_loops(leader), programs, tuple(last), roots, stages)


def _nest(
    plan: Plan,
    group: tuple[StagePlan, ...],
    needs: Needs,
    inside: dict[Axis, tuple[Phase, ...]],
) -> Nest:
    """The nest of the first of a group, in whose loops the others run."""
    stage = group[0]
    levels: dict[Axis, list[StagePlan]] = {}
    for guest in guests(plan, stage):
        if guest.placement.axis is not None:
            levels.setdefault(guest.placement.axis, []).append(guest)
    own = {axis: _phases(plan, level, needs, inside) for axis, level in levels.items()}
    inside.update(own)
    sharing = tuple(_nest(plan, (each,), needs, inside) for each in group[1:])
    return Nest(stage, running(plan, stage), own, sharing)


def _phases(
    plan: Plan,
    level: Sequence[StagePlan],
    needs: Needs,
    inside: dict[Axis, tuple[Phase, ...]],
) -> tuple[Phase, ...]:
    """The stages attached at one loop.

    What needs no result that programs pass on to each other comes before what does, and what they
    pass on comes last of its phase: programs then wait once, and not behind each result.
    """
    groups = _groups(plan, level, needs)
    if all(_passed_on(group) is None for group in groups):
        return (Phase(tuple(_nest(plan, group, needs, inside) for group in groups)),)
    numbers = _numbers_of_phases(plan, groups, needs)
    groups.sort(key=lambda group: (numbers[group], _passed_on(group) is not None))
    found: list[Phase] = []
    nests: list[Nest] = []
    sync, over = Sync.NONE, tuple[Axis, ...]()
    host = level[0].placement.host
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        nests.append(_nest(plan, group, needs, inside))
        program = _passed_on(group)
        if program is None:
            continue
        then = None if following is None else _passed_on(following)
        if (
            following is None
            or then is None
            or then is not program
            or numbers[following] != numbers[group]
        ):
            found.append(Phase(tuple(nests), sync, host if over else "", over))
            nests, sync, over = [], Sync.GRID_BARRIER, (program,)
    return (*found, Phase(tuple(nests), sync, host if over else "", over))


def _groups(plan: Plan, level: Sequence[StagePlan], needs: Needs) -> list[tuple[StagePlan, ...]]:
    """The stages of one level that run together, in an order that fits what they read."""
    found = in_order(plan, level, needs)
    if found is None:
        raise InternalError("stages that run together read from each other")
    return found


def hosts(plan: Plan, stage: StagePlan) -> Iterator[tuple[StagePlan, Axis]]:
    """The stages around `stage`, innermost first, and the loop of each that it is in; without an
    end where stages are attached in each other, which is refused."""
    while stage.placement.axis is not None:
        axis = stage.placement.axis
        stage = plan.stage(stage.placement.host)
        yield stage, axis


def root_of(plan: Plan, stage: StagePlan) -> StagePlan:
    """The stage at root in whose loops `stage` is computed."""
    while stage.placement.axis is not None:
        stage = plan.stage(stage.placement.host)
    return stage


def leader_of(plan: Plan, stage: StagePlan) -> StagePlan:
    """The stage that a stage runs together with, or by the last programs of: itself, or another at
    the same level."""
    while stage.placement.of or stage.placement.leader:
        stage = plan.stage(stage.placement.of or stage.placement.leader)
    return stage


def has_own_launch(plan: Plan, stage: StagePlan) -> bool:
    """True when a kernel runs `stage`: at root, or once for each step of a scan."""
    if stage.placement.at_root:
        return True
    if stage.placement.axis is None:
        return False
    scan = plan.stage(stage.placement.host)
    if not isinstance(scan.op, ScanOp) or stage.placement.axis is not step_loop(scan):
        return False
    return not outside_steps(scan)


def kernel_leader(plan: Plan, stage: StagePlan) -> StagePlan:
    """The stage at root whose name the kernel of `stage` has."""
    return leader_of(plan, root_of(plan, stage))


def kernels_with(plan: Plan, stage: StagePlan) -> tuple[StagePlan, ...]:
    """The leaders of the kernels that compute a stage: those of its readers where it is inlined."""
    if not stage.placement.inlined:
        return (kernel_leader(plan, stage),)
    found = (kernel for r in readers(plan, stage.op) for kernel in kernels_with(plan, r))
    return tuple(dict.fromkeys(found))


def guests(plan: Plan, stage: StagePlan, axis: Axis | None = None) -> tuple[StagePlan, ...]:
    """The stages attached at a loop of `stage` (at `axis` when given)."""
    found = map(plan.stage, guest_names(plan).get(stage.name, ()))
    return tuple([guest for guest in found if axis is None or guest.placement.axis is axis])


def depth(plan: Plan, stage: StagePlan) -> int:
    """How many outer loops `stage` shares with its leader."""
    place = stage.placement
    if not isinstance(place, SharedLoops):
        return 0
    return ranks(plan.stage(place.leader).loop_order).get(place.down_to, -1) + 1


def shared_loops(plan: Plan, stage: StagePlan) -> dict[Axis, Axis]:
    """The outer loops of `stage` that its leader runs, each with the leader's."""
    count = depth(plan, stage)
    if count == 0:
        return {}
    leader = plan.stage(stage.placement.leader)
    return dict(zip(stage.loop_order[:count], leader.loop_order[:count], strict=False))


def running(plan: Plan, stage: StagePlan) -> tuple[Axis, ...]:
    """The loops of `stage` as they run, outermost first: the leader's where they are shared."""
    names = shared_loops(plan, stage)
    return tuple(names.get(axis, axis) for axis in stage.loop_order)


def loops_around(plan: Plan, stage: StagePlan) -> tuple[Axis, ...]:
    """The loops of other stages around `stage`, outermost first."""
    axis = stage.placement.axis
    if axis is None:
        return ()
    parent = plan.stage(stage.placement.host)
    position = {axis: i for i, axis in enumerate(parent.loop_order)}
    if axis not in position:
        raise InternalError(f"stage {stage.name} is attached at no loop of {parent.name}")
    return (*loops_around(plan, parent), *running(plan, parent)[: position[axis] + 1])


def followers(plan: Plan, leader: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that run together with `leader`, in plan order."""
    return tuple(map(plan.stage, follower_names(plan).get(leader.name, ())))


def sharing(plan: Plan, leader: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that share loops of `leader`, in plan order."""
    return tuple(s for s in followers(plan, leader) if isinstance(s.placement, SharedLoops))


def beside(plan: Plan, leader: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that run in the grid of `leader` in programs of their own, in plan order."""
    return tuple(s for s in followers(plan, leader) if isinstance(s.placement, SameGrid))


def finishers(plan: Plan, leader: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that the last of the programs of `leader` compute, in plan order."""
    return tuple(stage for stage in special(plan) if stage.placement.of == leader.name)


def group_of(plan: Plan, stage: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that run in one kernel with `stage`, and itself, the leader first, and what last
    programs compute last."""
    leader = leader_of(plan, stage)
    programs = (leader, *followers(plan, leader))
    return (*programs, *(last for each in programs for last in finishers(plan, each)))


def computed_in(plan: Plan, roots: Iterable[str]) -> frozenset[str]:
    """The stages computed in the loops of some stages at root, and these."""
    found = set[str]()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(guest_names(plan).get(name, ()))
    return frozenset(found)


def runs_beside(plan: Plan, reader: StagePlan, host: StagePlan) -> bool:
    """True when `reader` is in the kernel of `host`, or runs in the loop that `host` is attached
    at: what is folded along with `host` is at hand there."""
    if root_of(plan, reader) is root_of(plan, host):
        return True
    around = loops_around(plan, host)
    own = frozenset((*loops_around(plan, reader), *running(plan, reader)))
    return bool(around) and own.issuperset(around)


def exported(plan: Plan, stage: StagePlan) -> bool:
    """True when what an online stage has folded is also stored for other kernels or the caller."""
    if is_output(plan, stage.op):
        return True
    host = plan.stage(stage.placement.host)
    return not all(runs_beside(plan, each, host) for each in loop_readers(plan, stage.op))


def levels(plan: Plan) -> list[list[StagePlan]]:
    """The stages at root, and those attached at one loop, each in plan order."""
    found: dict[tuple[str, Axis | None], list[StagePlan]] = {}
    for stage in plan.stages:
        if isinstance(stage.op, (ComputeOp, ExternOp)):
            found.setdefault((stage.placement.host, stage.placement.axis), []).append(stage)
    return list(found.values())


def grid_loops(stage: StagePlan) -> tuple[Axis, ...]:
    """The outermost loops whose iterations are programs."""
    found: list[Axis] = []
    for axis in stage.loop_order:
        if stage.mark(axis).kind not in (LoopKind.PARALLEL, LoopKind.PROGRAM):
            break
        found.append(axis)
    return tuple(found)


def in_order(
    plan: Plan, level: Sequence[StagePlan], needs: Needs = NO_NEEDS
) -> list[tuple[StagePlan, ...]] | None:
    """The stages of one level (all at root, or attached at one loop) as groups, each after those
    that it reads from, in its bodies or to know its region; None when two groups read from each
    other.

    Args:
        plan: a plan without inlined stages.
        level: the stages, in plan order.
        needs: what the bounds of stages read.
    """
    leaders = [s for s in level if not (s.placement.leader or s.placement.of)]
    groups = [(s, *_companions(plan, s)) for s in leaders]
    inside = {stage: n for n, group in enumerate(groups) for stage in _inside(plan, group)}
    place: dict[Operation, int] = {stage.op: n for stage, n in inside.items()}
    after: list[set[int]] = [set() for _ in groups]
    for stage, number in inside.items():
        for tensor in (*tensors_read(stage.op), *tensors_needed(needs, stage.name)):
            if place.get(tensor.op, number) != number:
                after[number].add(place[tensor.op])
    order = _sorted(after)
    return None if order is None else [groups[n] for n in order]


def _companions(plan: Plan, leader: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that run together with a leader or are computed by its last programs, in plan
    order."""
    found = followers(plan, leader)
    lasts = [
        stage
        for stage in special(plan)
        if stage.placement.of and leader_of(plan, stage).name == leader.name
    ]
    return tuple(in_plan_order(plan, (s.name for s in (*found, *lasts)))) if lasts else found


def is_in_circle(plan: Plan, stage: StagePlan) -> bool:
    """True when a kernel that needs a result of the one that `stage` is in is needed there."""

    start = kernel_leader(plan, stage).name
    met = {start}
    waiting = [start]
    while waiting:
        current = waiting.pop()
        for each in _kernel_stages(plan, current):
            behind = loop_readers(plan, each.op)
            for name in dict.fromkeys(kernel_leader(plan, r).name for r in behind):
                if name == start and current != start:
                    return True
                if name not in met:
                    met.add(name)
                    waiting.append(name)
    return False


def _kernel_stages(plan: Plan, leader: str) -> list[StagePlan]:
    """The stages in the kernel of a leader."""
    found = list(group_of(plan, plan.stage(leader)))
    for each in found:
        found.extend(guests(plan, each))
    return found


def _passed_on(group: Sequence[StagePlan]) -> Axis | None:
    """The loop over the programs that pass on a result of a group."""
    programs = (stage.placement.program for stage in group)
    return next((axis for axis in programs if axis is not None), None)


def _numbers_of_phases(
    plan: Plan, level: Sequence[tuple[StagePlan, ...]], needs: Needs
) -> dict[tuple[StagePlan, ...], int]:
    """How often programs have waited before each group of one level, which are in order."""
    after: dict[Operation, int] = {}
    numbers: dict[tuple[StagePlan, ...], int] = {}
    for group in level:
        inside = _inside(plan, group)
        needed = (
            tensor.op
            for stage in inside
            for tensor in (*tensors_read(stage.op), *tensors_needed(needs, stage.name))
        )
        numbers[group] = max((after[op] for op in needed if op in after), default=0)
        found = numbers[group] + (_passed_on(group) is not None)
        after.update((stage.op, found) for stage in inside)
    return numbers


def _inside(plan: Plan, group: Sequence[StagePlan]) -> list[StagePlan]:
    """The stages of a group, and all that are attached in them."""
    found = {stage.name: stage for stage in group}
    waiting = list(group)
    while waiting:
        for stage in guests(plan, waiting.pop()):
            if stage.name not in found:
                found[stage.name] = stage
                waiting.append(stage)
    return list(found.values())


def _sorted(needs: Sequence[Collection[int]]) -> list[int] | None:
    """Numbers in an order in which each comes after those that it needs, the least that can come
    next first; None when there is none."""
    missing = [len(each) for each in needs]
    needed_by: list[list[int]] = [[] for _ in needs]
    for number, each in enumerate(needs):
        for other in each:
            needed_by[other].append(number)
    ready = [number for number, count in enumerate(missing) if count == 0]
    done: list[int] = []
    while ready:
        done.append(heappop(ready))
        for number in needed_by[done[-1]]:
            missing[number] -= 1
            if missing[number] == 0:
                heappush(ready, number)
    return done if len(done) == len(needs) else None
