"""Which atomic updates a target has; elsewhere loops that would contend for a result run in turn.

Part of what completes a plan; imports the plan.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, AxisKind, BinaryOp, Const, Reduce
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.plan import Mark, Plan, StagePlan, at_loop
from tedsl.scheduling.plan.labels import labels
from tedsl.target import Target, TargetKind
from tedsl.tensor.tensor import ComputeOp

_WIDE = frozenset(
    (DType.int32, DType.int64, DType.uint32, DType.uint64, DType.float32, DType.float64)
)
_HALVES = frozenset((DType.float16, DType.bfloat16))
_EXTREMES = (BinaryOp.MIN, BinaryOp.MAX)
_AT_ONCE = (LoopKind.PARALLEL, LoopKind.PROGRAM)


def in_turn(plan: Plan, target: Target) -> Plan:
    """The plan in which contended loops are serial where the target has no atomic update for what
    they fold; of a scattered stage all loops of the reduction, and where it is not atomic."""
    for stage in plan.stages:
        body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
        free = stage.atomic or not stage.scatters
        if not isinstance(body, Reduce) or (free and has_update(body, target)):
            continue
        if stage.contended:
            plan = _in_turn(plan, plan.stage(stage.name))
        if stage.scatters:
            now = plan.stage(stage.name)
            folded = [axis for axis in now.leaf_axes if axis.kind is AxisKind.REDUCE]
            serial = [axis for axis in folded if now.mark(axis).kind is LoopKind.SERIAL]
            runs = {axis: _implied(now.mark(axis)) for axis in serial}
            plan = plan.with_stage(replace(now, marks={**now.marks, **runs}))
    return plan


def _in_turn(plan: Plan, stage: StagePlan) -> Plan:
    """The plan in which no two iterations that run at the same time update one element: the
    contended loops are serial, inside the other loops that run at once.

    Before:  parallel for k: parallel for i: C[i] max= A[i, k]
    After:   parallel for i: for k: C[i] max= A[i, k]

    Where stages are computed between these loops the order stays as it is.
    """
    outer = tuple(takewhile(lambda axis: stage.mark(axis).kind in _AT_ONCE, stage.leaf_axes))
    folded = tuple(axis for axis in outer if axis.kind is AxisKind.REDUCE)
    others = tuple(axis for axis in outer if axis.kind is not AxisKind.REDUCE)
    runs = {**stage.marks, **{axis: _implied(stage.mark(axis)) for axis in stage.contended}}
    order = stage.leaf_axes
    if folded and _alone(plan, stage, outer):
        order = (*others, *folded, *order[len(outer) :])
        plan = _moved(plan, stage, outer[-1], folded[-1])
    elif folded:
        for axis in others:  # a dimension of the grid is outside all serial loops
            runs[axis] = replace(_serial(stage.mark(axis)), kind=LoopKind.PARALLEL)
    return plan.with_stage(replace(stage, leaf_axes=order, marks=runs))


def not_combined(stage: StagePlan, target: Target) -> str:
    """That the mark `atomic` has no effect on a stage of a completed plan; empty where it has, or
    nothing asked for it."""
    body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    known = labels(stage)
    given = ((axis, stage.mark(axis)) for axis in stage.leaf_axes)
    loops = [known[a] for a, mark in given if mark.implied and mark.kind is LoopKind.SERIAL]
    if not isinstance(body, Reduce) or not loops or not stage.atomic:
        return ""
    operator = body.reducer.operator
    what = body.reducer.name if operator is None else operator.value
    return (
        f"{stage.name} is not combined atomically: {target} has no such update for {what} of "
        f"{body.dtype}, so {', '.join(loops)} run in turn"
    )


def _implied(mark: Mark) -> Mark:
    return replace(_serial(mark), implied=True)


def _serial(mark: Mark) -> Mark:
    return replace(mark, kind=LoopKind.SERIAL, program=0, descending=False)


def _alone(plan: Plan, stage: StagePlan, outer: tuple[Axis, ...]) -> bool:
    """True when no other stage is computed or stored between the loops `outer` of a stage."""
    around, between = frozenset(outer), frozenset(outer[:-1])
    for each in plan.stages:
        if each.placement.host == stage.name and each.placement.axis in between:
            return False
        if each.placement.kept is not None and each.placement.kept.axis in around:
            return False
    return True


def _moved(plan: Plan, host: StagePlan, last: Axis, now: Axis) -> Plan:
    """The plan with the stages that are computed at the loop `last` of a stage at `now`."""

    def moved(stage: StagePlan) -> StagePlan:
        place = stage.placement
        if place.host != host.name or place.axis is not last:
            return stage
        return replace(stage, placement=at_loop(place, host.name, now))

    return replace(plan, stages=tuple(moved(stage) for stage in plan.stages))


def has_update(body: Reduce, target: Target) -> bool:
    """Whether the target has an atomic update for the operator and the dtype, and for the start.

    The CPU has none of 16-bit floats.  Triton's minima and maxima of floats compare integers, and
    would not keep a NaN that a result is initialised with.
    """
    op, dtype = body.reducer.operator, body.dtype
    if not target.is_triton:
        return not dtype.is_float or dtype.bits >= 32
    if op in _EXTREMES and dtype.is_float and not _is_number(body):
        return False
    return dtype in _WIDE or (op is BinaryOp.ADD and dtype in _summed(target))


def _summed(target: Target) -> frozenset[DType]:
    """The narrow types of which Triton has atomic sums; its interpreter has them in NumPy."""
    interpreted = target.kind is TargetKind.TRITON_INTERPRET
    return frozenset((DType.float16,)) if interpreted else _HALVES


def _is_number(body: Reduce) -> bool:
    """True when the start is surely no NaN."""
    (start,) = body.init or body.reducer.identity
    return isinstance(start, Const) and start.value == start.value
