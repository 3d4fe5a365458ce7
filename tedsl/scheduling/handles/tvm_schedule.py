"""TVM's module `te.schedule`: `InferBound` and the passes that inline by access pattern.

What a stage is follows from its reads alone, never from names or tags.  Public as `te.schedule`;
imports the handles.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Const, Expr, Range
from tedsl.expr.visit import reads
from tedsl.scheduling.handles.schedule import Schedule, create_schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan import Fuse, Split, Unit
from tedsl.scheduling.plan.graph import is_reduction, producers_first
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.placement.legality import can_inline
from tedsl.scheduling.regions.infer import infer
from tedsl.slips import in_module
from tedsl.tensor.scan_body import body_of
from tedsl.tensor.signatures import explained
from tedsl.tensor.tensor import ComputeOp, Operation, ScanOp, Tensor

if TYPE_CHECKING:
    from tedsl.ir.nodes import Module

__all__ = [
    "AutoInlineBroadcast",
    "AutoInlineElemWise",
    "AutoInlineInjective",
    "Buffer",
    "CreateReadGraph",
    "Fuse",
    "InferBound",
    "IterVar",
    "PostDFSOrder",
    "Rebase",
    "ScanGetBody",
    "Schedule",
    "ScheduleOps",
    "Singleton",
    "Split",
    "Stage",
    "create_schedule",
]

Rebase, Singleton = Unit, Unit
Buffer = np.ndarray
"""What functions of `te.extern` are passed."""


class IterVar:
    """How loops run: what `s[T].iter_var_attrs[loop].iter_type` is compared with."""

    DataPar, ThreadIndex, Tensorized = "serial", "thread", "tensorized"
    Parallelized, Unrolled, Vectorized = "parallel", "unrolled", "vectorized"


@explained
def ScheduleOps(
    sch: Schedule, bounds: object = None, debug_keep_trivial_loop: bool = False
) -> Module:
    """The loops of a schedule: `te.lower(sch)`, which finds the bounds itself.

    Args:
        sch: the schedule; it stays as it is.
        bounds: what `InferBound` gave; not needed.
        debug_keep_trivial_loop: loops that run once are as the printed nest has them.
    """
    lowered: Module = importlib.import_module("tedsl.build").lower(sch)
    return lowered


@explained
def InferBound(sch: Schedule) -> dict[Axis, Range]:
    """The range of every axis: of root data axes the region computed where the stage is attached,
    of all others positions from 0.

    Args:
        sch: the schedule; it stays as it is.

    Returns:
        From each axis of the stages that have loops to its range, over enclosing loops and sizes.
    """
    sch = sch.copy()  # in which no call waits
    shown = own_nests(sch.plan)
    bounds = infer(shown)
    found: dict[Axis, Range] = {}
    for stage in shown.stages:
        if not isinstance(stage.op, ComputeOp):
            continue
        own = sch.plan.stage(stage.name)
        known = bounds[stage.name]
        names: dict[Axis, Axis] = dict(zip(stage.root_axes, own.root_axes, strict=True))
        starts: dict[Axis, Expr] = {
            axis: box.min for axis, box in zip(stage.op.axes, known.region, strict=True)
        }
        starts.update({a: a.domain.min for a in stage.op.reduce_axes if a.domain is not None})
        for axis, extent in known.extents.items():
            low = starts.get(axis, Const(0, axis.dtype))
            found.setdefault(names.get(axis, axis), Range(low, extent))
    return found


@explained
def CreateReadGraph(ops: Sequence[Operation]) -> dict[Operation, tuple[Tensor, ...]]:
    """What operations, and those below them, read."""
    outputs = tuple(tensor for op in ops for tensor in op.outputs)
    return {op: op.input_tensors for op in producers_first(outputs)}


@explained
def PostDFSOrder(ops: Sequence[Operation], graph: object = None) -> tuple[Operation, ...]:
    """Operations and those below them, each after what it reads."""
    return producers_first(tuple(tensor for op in ops for tensor in op.outputs))


@explained
def ScanGetBody(scan: ScanOp) -> tuple[Operation, ...]:
    """What the steps of a scan compute, and the scan."""
    return (*body_of(scan), scan)


@explained
def AutoInlineElemWise(sch: Schedule) -> None:
    """Inline every stage whose reads all have its own axes, each in its place."""
    _inline(sch, _is_elementwise)


@explained
def AutoInlineBroadcast(sch: Schedule) -> None:
    """Inline every stage whose reads have some of its axes in their order, or 0 in a dimension of
    extent 1."""
    _inline(sch, _is_broadcast)


@explained
def AutoInlineInjective(sch: Schedule) -> None:
    """Inline every stage that is no reduction."""
    _inline(sch, lambda op: not is_reduction(op))


if not TYPE_CHECKING:  # a type checker knows the names there are
    __getattr__ = in_module("te.schedule", __all__)


def _inline(sch: Schedule, wanted: Callable[[ComputeOp], bool]) -> None:
    """Inline the stages at root that are `wanted` and may be inlined; outputs stay."""
    for stage in sch.stages:
        op = stage.op
        if (
            isinstance(op, ComputeOp)
            and stage.plan.placement.at_root
            and can_inline(sch.plan, stage.plan)
            and not is_reduction(op)
            and wanted(op)
        ):
            stage.compute_inline()


def _is_elementwise(op: ComputeOp) -> bool:
    return all(
        len(read.indices) == len(op.axes)
        and all(a is b for a, b in zip(read.indices, op.axes, strict=True))
        for read in reads(*op.bodies)
    )


def _is_broadcast(op: ComputeOp) -> bool:
    rank = {axis: place for place, axis in enumerate(op.axes)}
    for read in reads(*op.bodies):
        last = -1
        for index, size in zip(read.indices, read.tensor.shape, strict=True):
            if constant(index) == 0 and constant(size) == 1:
                continue
            place = rank.get(index, -1) if isinstance(index, Axis) else -1
            if place <= last:
                return False
            last = place
    return True
