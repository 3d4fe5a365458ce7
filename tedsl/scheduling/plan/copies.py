"""The same operation once more, and names for what is made of a stage.

Imports `expr` and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tedsl.expr.nodes import Axis, AxisKind, Expr, Reduce
from tedsl.expr.visit import substitute
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.labels import unique_name
from tedsl.scheduling.plan.links import places
from tedsl.tensor.tensor import ComputeOp


def stage_name(plan: Plan, base: str, suffix: str) -> str:
    """A name for a stage derived from the stage `base`."""
    return unique_name(f"{base}.{suffix}", places(plan).by_name)


def copied(op: ComputeOp, name: str) -> ComputeOp:
    """The same definition over axes of its own: of what it reads as it is in the end, so that
    nothing is repaired."""
    fresh: dict[Expr, Expr] = {axis: _axis(axis) for axis in (*op.axes, *op.reduce_axes)}
    return ComputeOp(
        name,
        _renamed(op.axes, fresh),
        tuple(_body(body, fresh) for body in op.bodies),
        op.shape,
        _renamed(op.reduce_axes, fresh),
        op.tag,
    )


def _axis(axis: Axis) -> Axis:
    kind = AxisKind.REDUCE if axis.kind is AxisKind.REDUCE else AxisKind.DATA
    return Axis(axis.name, kind, axis.domain, axis.dtype)


def _renamed(axes: Sequence[Axis], fresh: Mapping[Expr, Expr]) -> tuple[Axis, ...]:
    return tuple(new for axis in axes if isinstance(new := fresh[axis], Axis))


def _body(body: Expr, fresh: Mapping[Expr, Expr]) -> Expr:
    moved = substitute(body, fresh)
    if not isinstance(moved, Reduce):
        return moved
    return replace(moved, axes=_renamed(moved.axes, fresh), repair=None)
