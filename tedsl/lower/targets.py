"""Decide what a plan left open, as the target needs it: block axes and grid dimensions."""

from __future__ import annotations

from dataclasses import replace

from tedsl.errors import LowerError
from tedsl.expr.nodes import Axis, AxisKind
from tedsl.expr.tensor import ComputeOp
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.plan import AttachKind, Mark, Plan, StagePlan

GRID_DIMENSIONS = 3


def complete_for_blocks(plan: Plan) -> Plan:
    """Marks that a program of tiles implies.

    Data axes of an attached stage become block axes: a tile lives in registers whole.  Parallel
    loops become grid dimensions, in their order. Raises:
        LowerError: more parallel loops than grid dimensions.
    """
    stages = tuple(_completed(s) if isinstance(s.op, ComputeOp) else s for s in plan.stages)
    same = all(a is b for a, b in zip(stages, plan.stages, strict=True))
    return plan if same else replace(plan, stages=stages)


def complete_for_loops(plan: Plan) -> Plan:
    """On the CPU a grid dimension is a parallel loop."""

    def parallel(stage: StagePlan) -> StagePlan:
        if all(m.kind is not LoopKind.PROGRAM for m in stage.marks.values()):
            return stage
        loop = Mark(LoopKind.PARALLEL)
        marks = {a: loop if m.kind is LoopKind.PROGRAM else m for a, m in stage.marks.items()}
        return replace(stage, marks=marks)

    return replace(plan, stages=tuple(parallel(s) for s in plan.stages))


def _completed(stage: StagePlan) -> StagePlan:
    marks = dict(stage.marks)
    if stage.attach.kind is AttachKind.AT:
        for axis in stage.leaf_axes:
            if axis.kind is AxisKind.DATA:
                marks[axis] = replace(stage.mark(axis), kind=LoopKind.VECTORIZED)
    else:
        _bind_parallel(stage, marks)
    return stage if marks == dict(stage.marks) else replace(stage, marks=marks)


def _bind_parallel(stage: StagePlan, marks: dict[Axis, Mark]) -> None:
    grid = [m.program for m in marks.values() if m.kind is LoopKind.PROGRAM]
    for axis in stage.leaf_axes:
        if stage.mark(axis).kind is not LoopKind.PARALLEL:
            continue
        free = [d for d in range(GRID_DIMENSIONS) if d not in grid]
        if not free:
            raise LowerError(
                f"{axis.name} of {stage.name} is parallel, but the grid has no dimension left",
                hint="fuse the parallel axes into one",
            )
        grid.append(free[0])
        marks[axis] = Mark(LoopKind.PROGRAM, free[0])
