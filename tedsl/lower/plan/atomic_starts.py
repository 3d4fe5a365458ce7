"""What a plan with atomic reductions needs before its loops are built: a nest that initialises each
result."""

from __future__ import annotations

import math
from dataclasses import replace

from tedsl.expr.index_arith import as_index
from tedsl.expr.nodes import Expr, Reduce
from tedsl.expr.visit import reads, substitute
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.plan import Mark, Own, Plan, SameGrid, StagePlan
from tedsl.scheduling.plan.graph import data_axis_like, fresh_stage, insert_before, is_output
from tedsl.scheduling.plan.labels import unique_name
from tedsl.scheduling.plan.relations import constant, extents, fuse_loops, split_loop
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp

# Lanes of the programs that initialise results; elements that threads initialise together, and that
# take memory until they are read.
START_LANES = 512
MANY = 1 << 18


def separate_starts(plan: Plan, target: Target) -> Plan:
    """The plan with a stage before each atomic or scattered reduction that initialises it and is
    stored in its result.

    Before:  parallel for k: C[i] += A[i, k]
    After:   C.start[i] = 0, stored in C;  parallel for k: C[i] += A[i, k]

    On a GPU one kernel, before the first of them, initialises all results that are constants and
    have memory then anyhow, or take little.
    """
    first = leader = ""
    for stage in plan.stages:
        op = stage.op
        body = op.bodies[0] if isinstance(op, ComputeOp) else None
        if isinstance(op, ComputeOp) and isinstance(body, Reduce) and stage.starts_apart:
            start = _start(stage, op, body, {s.name for s in plan.stages})
            if not op.axes or not target.is_triton:
                start = _over_threads(start) if op.axes else start
                plan = insert_before(plan, stage.name, start)
                continue
            start = _in_blocks(start)
            early = is_output(plan, op) or _elements(start) < MANY
            if not early or reads(*(body.init or ())):
                plan = insert_before(plan, stage.name, start)
                continue
            if leader:
                start = replace(start, placement=SameGrid(leader, home=stage.name))
            first, leader = first or stage.name, leader or start.name
            plan = insert_before(plan, first, start)
    return plan


def _start(stage: StagePlan, op: ComputeOp, body: Reduce, taken: set[str]) -> StagePlan:
    """The stage that initialises the results of `stage`."""
    axes = tuple(map(data_axis_like, op.axes))
    over: dict[Expr, Expr] = dict(zip(op.axes, axes, strict=True))
    (value,) = (substitute(each, over) for each in body.init or body.reducer.identity)
    name = unique_name(f"{stage.name}.start", taken)
    made = fresh_stage(name, ComputeOp(name, axes, (value,), op.shape))
    return replace(made, placement=Own(home=stage.name))


def _over_threads(start: StagePlan) -> StagePlan:
    """The rows of a start at the same time, where there are many elements."""
    rows, *others = start.leaf_axes
    many = others and _elements(start) >= MANY
    return replace(start, marks={rows: Mark(LoopKind.PARALLEL)}) if many else start


def _elements(start: StagePlan) -> int:
    """How many results a start initialises; sizes of the call count as very many."""
    size = extents(start)
    return math.prod(constant(size[axis]) or MANY for axis in start.root_axes)


def _in_blocks(start: StagePlan) -> StagePlan:
    """The loops of a start as programs of one block axis each."""
    whole, *others = start.leaf_axes
    for axis in others:
        start, whole = fuse_loops(start, whole, axis)
    start, (outer, inner) = split_loop(start, whole, as_index(START_LANES))
    marks = {outer: Mark(LoopKind.PROGRAM), inner: Mark(LoopKind.VECTORIZED)}
    return replace(start, marks=marks)
