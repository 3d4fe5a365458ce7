"""A copy of a computation with smaller constant extents, for runs that have to be quick.

    before  C[i, j] = sum(k in 0..1024)(A[i, k] * B[k, j])    over [1024, 1000]
    after   the same body, k in 0..32, over [32, 40]          (period 32)

Every constant extent E of at least two periods becomes period + E % period: equal extents stay
equal, and differences below a period stay mostly as they were (a halo, a padding).  What comes out
may read outside its tensors where indices are computed from the extents; whoever uses it finds out
by evaluating it.  Imports `expr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.nodes import Axis, Const, Expr, Range, Reduce, TensorRead
from tedsl.expr.visit import rewrite
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ComputeOp, Operation, PlaceholderOp, Tensor


def smaller(outputs: Sequence[Tensor], period: int) -> tuple[Tensor, ...] | None:
    """`outputs` over smaller extents; None where an operation is no plain definition, or nothing
    would change.
    """
    made: dict[Operation, Operation] = {}
    changed = False
    for op in operations(outputs):
        if type(op) not in (ComputeOp, PlaceholderOp):
            return None
        shape = tuple(_extent(extent, period) for extent in op.shape)
        changed = changed or any(a is not b for a, b in zip(shape, op.shape, strict=True))
        if isinstance(op, PlaceholderOp):
            made[op] = replace(op, shape=shape)
        elif isinstance(op, ComputeOp):
            axes = {axis: _axis(axis, period) for axis in (*op.axes, *op.reduce_axes)}
            changed = changed or any(a is not b for a, b in axes.items())
            made[op] = _compute(op, shape, axes, made)
    if not changed:
        return None
    return tuple(made[tensor.op].outputs[tensor.index] for tensor in outputs)


def _extent(extent: Expr, period: int) -> Expr:
    if isinstance(extent, Const) and extent.value >= 2 * period:
        return Const(period + int(extent.value) % period, extent.dtype)
    return extent


def _axis(axis: Axis, period: int) -> Axis:
    if axis.domain is None:
        return axis
    extent = _extent(axis.domain.extent, period)
    same = extent is axis.domain.extent
    return axis if same else Axis(axis.name, axis.kind, Range(axis.domain.min, extent), axis.dtype)


def _compute(
    op: ComputeOp,
    shape: tuple[Expr, ...],
    axes: dict[Axis, Axis],
    made: dict[Operation, Operation],
) -> ComputeOp:
    def renewed(node: Expr) -> Expr | None:
        match node:
            case Axis():
                return axes.get(node)
            case TensorRead(tensor=tensor, indices=indices):
                return TensorRead(made[tensor.op].outputs[tensor.index], indices)
            case Reduce(axes=bound):
                return replace(node, axes=tuple(axes.get(axis, axis) for axis in bound))
            case _:
                return None

    memo: dict[Expr, Expr] = {}
    bodies = tuple(rewrite(body, renewed, memo) for body in op.bodies)
    data = tuple(axes[axis] for axis in op.axes)
    folded = tuple(axes[axis] for axis in op.reduce_axes)
    return replace(op, axes=data, bodies=bodies, shape=shape, reduce_axes=folded)
