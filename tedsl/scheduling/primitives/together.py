"""Stages that run together: compute_with, compute_last, compute_across."""

from __future__ import annotations

from dataclasses import replace

from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.call import Call
from tedsl.scheduling.checks.across import across_problem, refuse_across
from tedsl.scheduling.checks.arguments import leaf, looped_stage
from tedsl.scheduling.checks.last import last_problem, refuse_last
from tedsl.scheduling.checks.places import require_places
from tedsl.scheduling.checks.together import (
    join_problem,
    refuse_join,
    require_joins,
    require_no_followers,
)
from tedsl.scheduling.kernels.tree import guests, shared_loops
from tedsl.scheduling.plan import Cooperative, Join, Plan, at_loop
from tedsl.scheduling.primitives.places import placed


def compute_with(plan: Plan, call: Call, target: str, axis: object) -> Plan:
    """for i: A[i] = f(i);  for i: B[i] = g(i)  -->  for i: { A[i] = f(i); B[i] = g(i) }"""
    stage = looped_stage(plan, call, call.stage)
    leader = looped_stage(plan, call, target)
    at = None if axis is None else leaf(plan, call, leader, axis)
    require_no_followers(plan, call, stage, leader, at)
    if target == stage.name:
        raise call.refuse(plan, f"{target} is the stage itself", hint="name another stage")
    joined = replace(stage, join=Join(target, at))
    after = plan.with_stage(joined)
    run = {} if leader.join is not None else shared_loops(after, joined)
    plain = {own: mark for own, mark in stage.marks.items() if own not in run}
    lanes = {a: m for a, m in stage.marks.items() if m.kind is LoopKind.VECTORIZED}
    after = after.with_stage(replace(joined, marks={**plain, **lanes}))
    for guest in guests(after, stage):
        place = guest.placement.axis
        if place is not None and place in run:
            there = at_loop(guest.placement, target, run[place])
            after = after.with_stage(replace(guest, placement=there))
    found = join_problem(after, plan)
    if found is not None:
        raise refuse_join(plan, call, after, *found)
    require_places(plan, call, after)
    require_joins(plan, call, after)
    return after


def compute_last(plan: Plan, call: Call, target: str) -> Plan:
    """programs i, p: P[p, i] = f(p, i);  programs i: S[i] = g(P[:, i])
    -->  programs i, p: { P[p, i] = f(p, i); the last p of i: S[i] = g(P[:, i]) }"""
    stage = looped_stage(plan, call, call.stage)
    looped_stage(plan, call, target)
    after = plan.with_stage(replace(stage, last_of=target))
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
    host = looped_stage(plan, call, target)
    loop = leaf(plan, call, host, axis)
    own = leaf(plan, call, stage, part)
    place = Cooperative(target, loop, leaf(plan, call, host, program), own)
    after = plan.with_stage(replace(stage, placement=place))
    require_places(plan, call, after)
    found = across_problem(after)
    if found is not None:
        raise refuse_across(plan, call, *found)
    return after
