"""Stages that run together: compute_with, compute_last, compute_across."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from tedsl.errors import Fact
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.kernels.tree import guests, leader_of, shared_loops
from tedsl.scheduling.plan import (
    At,
    Cooperative,
    Inlined,
    LastBlock,
    Online,
    Own,
    Partitioned,
    Plan,
    SameGrid,
    SharedLoops,
    StagePlan,
    at_loop,
)
from tedsl.scheduling.plan.labels import loops_text
from tedsl.scheduling.plan.thread_loops import outside_threads
from tedsl.scheduling.primitives.arguments import leaf, looped_stage
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.primitives.kernel_fusion.grid_barrier import across_problem, refuse_across
from tedsl.scheduling.primitives.kernel_fusion.horizontal import (
    join_problem,
    leader_problem,
    refuse_join,
    require_no_followers,
)
from tedsl.scheduling.primitives.kernel_fusion.last_block import last_problem, refuse_last
from tedsl.scheduling.primitives.loops.legality import require_no_options, require_own_nest
from tedsl.scheduling.primitives.placement.legality import require_places
from tedsl.scheduling.primitives.placement.rewrite import placed
from tedsl.scheduling.primitives.stage_facts import Problem, place_text


def compute_with(plan: Plan, call: Call, target: str, axis: object) -> Plan:
    """for i: A[i] = f(i);  for i: B[i] = g(i)  -->  for i: { A[i] = f(i); B[i] = g(i) }"""
    stage = looped_stage(plan, call, call.stage)
    leader = looped_stage(plan, call, target)
    at = None if axis is None else leaf(plan, call, leader, axis)
    require_no_followers(plan, call, stage, leader, at)
    if target == stage.name:
        raise call.refuse(plan, f"{target} is the stage itself", hint="name another stage")
    joined = replace(stage, placement=_beside(plan, call, stage, leader, at))
    after = plan.with_stage(joined)
    run = {} if leader.placement.leader else shared_loops(after, joined)
    plain = {own: mark for own, mark in stage.marks.items() if own not in run}
    lanes = {a: m for a, m in stage.marks.items() if m.kind is LoopKind.VECTORIZED}
    after = after.with_stage(replace(joined, marks={**plain, **lanes}))
    for guest in guests(after, stage):
        place = guest.placement.axis
        if place is not None and place in run:
            there = at_loop(guest.placement, target, run[place])
            after = after.with_stage(replace(guest, placement=there))
    after = outside_threads(after, target)
    found = join_problem(after, plan)
    if found is not None:
        raise refuse_join(plan, call, after, *found)
    require_no_options(plan, call, stage, "the leader", _loops(leader, stage))
    require_places(plan, call, after)
    return after


def _beside(
    plan: Plan, call: Call, stage: StagePlan, leader: StagePlan, down_to: Axis | None
) -> SharedLoops | SameGrid:
    """Where a stage is that runs together with another, at root or at one loop."""
    place, name = stage.placement, stage.name
    match place:
        case At() if down_to is not None:
            return SharedLoops(leader.name, down_to, At(place.host, place.axis, place.kept))
        case SharedLoops(at=at) if down_to is not None:
            return SharedLoops(leader.name, down_to, at)
        case Own() | SameGrid() | SharedLoops(at=None):
            same = down_to is None
            return SameGrid(leader.name) if same else SharedLoops(leader.name, down_to)
        case At() | SharedLoops():
            reason = f"{name} is {place_text(stage)}: only kernels have a grid to share"
            hint = "give the loop down to which loops are shared"
        case Inlined() | Online() | Cooperative() | LastBlock() | Partitioned():
            reason = f"{name} is {place_text(stage)}"
            hint = f"first call s[{name}].compute_root() or compute_at"
        case _:
            assert_never(place)
    found = leader_problem(plan, stage, leader) or Problem(reason, hint)
    raise call.refuse(plan, found.reason, facts=_loops(leader, stage), hint=found.hint)


def _loops(leader: StagePlan, stage: StagePlan) -> list[Fact]:
    return [("loops", f"{leader.name} {loops_text(leader)}; {stage.name} {loops_text(stage)}")]


def compute_last(plan: Plan, call: Call, target: str) -> Plan:
    """programs i, p: P[p, i] = f(p, i);  programs i: S[i] = g(P[:, i])
    -->  programs i, p: { P[p, i] = f(p, i); the last p of i: S[i] = g(P[:, i]) }"""
    stage = looped_stage(plan, call, call.stage)
    leader = looped_stage(plan, call, target)
    require_own_nest(plan, call, stage, _loops(leader, stage))
    require_no_options(plan, call, stage, "the leader", _loops(leader, stage))
    if leader.name != stage.name and leader_of(plan, leader).name == stage.name:
        raise call.refuse(
            plan,
            f"{leader.name} runs together with {stage.name}, in the same programs",
            facts=_loops(leader, stage),
            hint=f"first call s[{leader.name}].compute_root(), or name another stage",
        )
    after = plan.with_stage(replace(stage, placement=LastBlock(target)))
    found = last_problem(after)
    if found is not None:
        raise refuse_last(plan, call, after, *found)
    return after


def compute_across(
    plan: Plan, call: Call, target: str, axis: object, part: object, program: object
) -> Plan:
    """programs p: { for q: P[q] = f(q); S = g(P) }
    -->  programs p: { P[p] = f(p); wait for all p; S = g(P) }"""
    stage = placed(plan, call, target, axis)
    require_no_options(plan, call, stage, f"the stage that {stage.name} is computed in")
    host = looped_stage(plan, call, target)
    loop = leaf(plan, call, host, axis)
    own = leaf(plan, call, stage, part)
    place = Cooperative(target, loop, leaf(plan, call, host, program), own)
    after = outside_threads(plan.with_stage(replace(stage, placement=place)), target)
    require_places(plan, call, after)
    found = across_problem(after)
    if found is not None:
        raise refuse_across(plan, call, after, *found)
    return after
