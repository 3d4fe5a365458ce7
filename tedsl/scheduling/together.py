"""Stages that run together: whose loops are shared (`compute_with`), what the last of a kernel's
programs do (`compute_last`), and in which order groups run.

Imports the plan and the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush

from tedsl.expr.nodes import Axis
from tedsl.expr.tensor import Operation
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.computed import NO_NEEDS, Needs, tensors_needed
from tedsl.scheduling.graph import loop_readers
from tedsl.scheduling.links import (
    follower_places,
    guest_places,
    special,
    special_places,
    tensors_read,
)
from tedsl.scheduling.plan import AttachKind, Plan, StagePlan
from tedsl.scheduling.relations import ranks


def depth(plan: Plan, stage: StagePlan) -> int:
    """How many outer loops `stage` shares with its leader."""
    if stage.join is None or stage.join.axis is None:
        return 0
    return ranks(plan.stage(stage.join.stage).loop_order).get(stage.join.axis, -1) + 1


def shared_loops(plan: Plan, stage: StagePlan) -> dict[Axis, Axis]:
    """The outer loops of `stage` that its leader runs, each with the leader's."""
    count = depth(plan, stage)
    if stage.join is None or count == 0:
        return {}
    leader = plan.stage(stage.join.stage)
    return dict(zip(stage.loop_order[:count], leader.loop_order[:count], strict=False))


def running(plan: Plan, stage: StagePlan) -> tuple[Axis, ...]:
    """The loops of `stage` as they run, outermost first: the leader's where they are shared."""
    names = shared_loops(plan, stage)
    return tuple(names.get(axis, axis) for axis in stage.loop_order)


def followers(plan: Plan, leader: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that run together with `leader`, in plan order."""
    return tuple(plan.stages[number] for number in follower_places(plan).get(leader.name, ()))


def finishers(plan: Plan, leader: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that the last of the programs of `leader` compute, in plan order."""
    return tuple(stage for stage in special(plan) if stage.last_of == leader.name)


def sharing(plan: Plan, leader: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that share loops of `leader`, in plan order."""
    return tuple(s for s in followers(plan, leader) if s.join and s.join.axis is not None)


def leader_of(plan: Plan, stage: StagePlan) -> StagePlan:
    """The stage whose kernel a stage at root runs in: itself, or another."""
    while stage.last_of or stage.join is not None:
        stage = plan.stage(stage.last_of if stage.join is None else stage.join.stage)
    return stage


def group_of(plan: Plan, stage: StagePlan) -> tuple[StagePlan, ...]:
    """The stages that run in one kernel with `stage`, and itself, the leader first, and what last
    programs compute last."""
    leader = leader_of(plan, stage)
    programs = (leader, *followers(plan, leader))
    return (*programs, *(last for each in programs for last in finishers(plan, each)))


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
    leaders = [s for s in level if s.join is None and not s.last_of]
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
    numbers = follower_places(plan).get(leader.name, ())
    lasts = tuple(
        number
        for number in special_places(plan)
        if plan.stages[number].last_of
        and plan.stages[number].join is None
        and leader_of(plan, plan.stages[number]).name == leader.name
    )
    return tuple(plan.stages[number] for number in (sorted(numbers + lasts) if lasts else numbers))


def in_phases(
    plan: Plan, level: Sequence[tuple[StagePlan, ...]], needs: Needs = NO_NEEDS
) -> list[tuple[int, tuple[StagePlan, ...]]]:
    """The groups of one level, each with its phase, in their order but for this: what needs no
    result that programs pass on to each other comes before what does, and what they pass on comes
    last of its phase.

    Programs then wait once between two phases, and not behind each result.
    """
    if not any(map(_is_across, level)):
        return [(0, group) for group in level]
    numbers = _phases(plan, level, needs)
    found = sorted(level, key=lambda group: (numbers[group], _is_across(group)))
    return [(numbers[group], group) for group in found]


def is_in_circle(plan: Plan, stage: StagePlan) -> bool:
    """True when a kernel that needs a result of the one that `stage` is in is needed there."""

    def kernel(each: StagePlan) -> str:
        while each.attach.kind is AttachKind.AT:
            each = plan.stage(each.attach.stage)
        return leader_of(plan, each).name

    start = kernel(stage)
    met = {start}
    waiting = [start]
    while waiting:
        current = waiting.pop()
        for each in _kernel_stages(plan, current):
            for name in dict.fromkeys(kernel(r) for r in loop_readers(plan, each.op)):
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
        found.extend(plan.stages[number] for number in guest_places(plan).get(each.name, ()))
    return found


def _is_across(group: Sequence[StagePlan]) -> bool:
    return any(stage.across is not None for stage in group)


def _phases(
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
        found = numbers[group] + _is_across(group)
        after.update((stage.op, found) for stage in inside)
    return numbers


def _inside(plan: Plan, group: Sequence[StagePlan]) -> list[StagePlan]:
    """The stages of a group, and all that are attached in them."""
    guests = guest_places(plan)
    found = {stage.name: stage for stage in group}
    waiting = list(group)
    while waiting:
        for stage in map(plan.stages.__getitem__, guests.get(waiting.pop().name, ())):
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


def path_between(plan: Plan, start: StagePlan, end: StagePlan) -> tuple[str, ...]:
    """Names of stages from `start` to `end`, each read by the next; empty when there is no way."""
    readers: Mapping[Operation, list[StagePlan]] = {stage.op: [] for stage in plan.stages}
    for stage in plan.stages:
        for op in dict.fromkeys(tensor.op for tensor in tensors_read(stage.op)):
            readers[op].append(stage)
    waiting: list[tuple[StagePlan, tuple[str, ...]]] = [(start, (start.name,))]
    seen = {start.name}
    while waiting:
        stage, path = waiting.pop(0)
        for reader in readers[stage.op]:
            if reader.name == end.name:
                return (*path, reader.name)
            if reader.name not in seen:
                seen.add(reader.name)
                waiting.append((reader, (*path, reader.name)))
    return ()
