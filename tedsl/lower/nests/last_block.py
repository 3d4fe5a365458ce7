"""Last-block reduction (`compute_last`): what the last program to arrive computes, inside the grid,
behind an atomic count of arrivals.

Part of `build_nests`; imports `context` and `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.index_arith import ONE, ZERO, constant, mul
from tedsl.expr.nodes import Axis, Expr
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import Buffer, Finish, For, Guard, LoopKind, Seq, Stmt
from tedsl.ir.visit import substitute, walk_stmts
from tedsl.lower.nests.context import Context
from tedsl.scheduling.kernels.tree import Phase, grid_loops
from tedsl.scheduling.plan import StagePlan

Last = tuple[Phase, Stmt]
"""What last programs compute, and its own nest."""


def finished(context: Context, leader: StagePlan, body: Stmt, last: Sequence[Last]) -> Stmt:
    """The nest of a kernel with what its last programs do, each with its own nest.

    Before:  for i, p in programs: if c: P[p, i] = f(p, i)
             for i in programs: S[i] = g(P[:, i])
    After:   for i, p in programs: (if c: P[p, i] = f(p, i)),
                 last of np at S.count[i]: S[i] = g(P[:, i])
    Requires: the loops of the leader's grid are its outermost, and those of each stage too.
    """
    if not last:
        return body
    loops, inside = _peeled(body)
    ends: list[Stmt] = []
    for phase, nest in last:
        stage = phase.nests[0].stage
        pairs = list(zip(grid_loops(stage), grid_loops(leader), strict=False))
        over: dict[Expr, Expr] = {own: run for own, run in pairs}
        extents = context.bounds[leader.name].extents
        place = tuple(ZERO if constant(extents[run]) == 1 else run for _, run in pairs)
        count = _waited_for(context, leader, phase.over)
        _, work = _peeled(nest)
        ends.append(Finish(context.counters[stage.name], place, count, substitute(work, over)))
    found: Stmt = Seq((inside, *ends))
    for loop in reversed(loops):
        found = replace(loop, body=found)
    return found


def last_counters(context: Context) -> Mapping[str | Axis, Buffer]:
    """Memory for the counts of programs, by the stage that the last of them compute: an element for
    each of its tiles."""
    found: dict[str | Axis, Buffer] = {}
    for stage in context.plan.stages:
        if stage.placement.of:
            leader = context.plan.stage(stage.placement.of)
            extents = context.bounds[leader.name].extents
            tiles = grid_loops(leader)[: len(grid_loops(stage))]
            shape = tuple(extents[run] for run in tiles)
            found[stage.name] = Buffer(f"{stage.name}_count", DType.int32, shape)
    return found


def _waited_for(context: Context, leader: StagePlan, over: Sequence[Axis]) -> Expr:
    """How many programs of the leader feed one tile."""
    bounds = context.bounds[leader.name]
    return simplify(reduce(mul, [bounds.extents[axis] for axis in over], ONE), bounds.facts)


def _peeled(nest: Stmt) -> tuple[list[For], Stmt]:
    """The outermost loops of the grid, and what is inside them, under the guards between them.

    for i: if c: for j: body  =  for i: for j: if c: body
    """
    loops: list[For] = []
    guards: list[Guard] = []
    inside = nest
    while isinstance(inside, Guard) or (
        isinstance(inside, For) and inside.kind is LoopKind.PROGRAM
    ):
        if isinstance(inside, Guard):
            guards.append(inside)
        else:
            loops.append(inside)
        inside = inside.body
    if any(isinstance(s, For) and s.kind is LoopKind.PROGRAM for s in walk_stmts(inside)):
        raise InternalError("the loops of the grid are not the outermost ones")
    for guard in reversed(guards):
        inside = replace(guard, body=inside)
    return loops, inside
