"""Expressions over blocks of their axes, as numpy arrays: the reading half of the reference.

A block gives every axis a range and a dimension of its own; an expression's value has the full
number of dimensions, with extent 1 where it does not depend on an axis, so numpy's broadcasting is
the broadcasting of the language.  Under a condition (`IfThenElse`, `where=`) indices are clipped
where it is false, and those elements are thrown away by whoever set the condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tedsl.errors import ExprError, InternalError
from tedsl.expr import numerics
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Select,
    TensorRead,
    Unary,
    Var,
)
from tedsl.expr.numerics import Array, Value, numpy_dtype, xp
from tedsl.tensor.tensor import Tensor


class Span(NamedTuple):
    """The values `low .. high` of one axis, along dimension `dim`."""

    low: int
    high: int
    dim: int


@dataclass(slots=True)
class Block:
    """Where expressions are evaluated.

    `spans` gives the axes, `rank` the number of dimensions, `values` the tensors computed so far
    and `scalars` the runtime scalars.  `active` is true at points that count; None means all do.
    `memo` holds finished values; `outer` is the block without the latest condition, whose finished
    values hold here too.
    """

    spans: Mapping[Axis, Span]
    rank: int
    values: Mapping[Tensor, Array]
    scalars: Mapping[Var, Value]
    active: Array | None = None
    outer: Block | None = None
    memo: dict[Expr, Value] = field(default_factory=dict[Expr, Value])

    def where(self, condition: Value) -> Block:
        """The same block, with only the points where `condition` holds counting."""
        active = condition if self.active is None else xp.logical_and(self.active, condition)
        return Block(self.spans, self.rank, self.values, self.scalars, active, self)

    def __call__(self, expr: Expr) -> Value:
        """The value of `expr`, broadcastable over the block."""
        block: Block | None = self
        while block is not None:
            if expr in block.memo:
                return block.memo[expr]
            block = block.outer
        value = self.memo[expr] = self._evaluate(expr)
        return value

    def _evaluate(self, expr: Expr) -> Value:
        match expr:
            case Const(value=value, dtype=dtype):
                return xp.asarray(value).astype(numpy_dtype(dtype))
            case Var():
                return self._scalar(expr)
            case Axis(dtype=dtype):
                span = self._span(expr)
                points = xp.arange(span.low, span.high, dtype=numpy_dtype(dtype))
                return points.reshape([-1 if d == span.dim else 1 for d in range(self.rank)])
            case Unary(op=op, a=a):
                return numerics.unary(op, self(a), a.dtype)
            case Binary(op=op, a=a, b=b, dtype=dtype):
                return numerics.binary(op, self(a), self(b), dtype)
            case Compare(op=op, a=a, b=b):
                return numerics.COMPARE[op](self(a), self(b))
            case Cast(a=a, dtype=dtype):
                return numerics.cast(self(a), a.dtype, dtype)
            case Select(condition=condition, a=a, b=b):
                return xp.where(self(condition), self(a), self(b))
            case IfThenElse():
                return self._choose(expr)
            case TensorRead():
                return self._read(expr)
            case _:
                raise InternalError(f"the reference met {type(expr).__name__}: {expr}")

    def _scalar(self, var: Var) -> Value:
        if var not in self.scalars:
            raise ExprError(
                f"the value of {var.name} is not known",
                subject="evaluate",
                hint=f"pass sizes={{{var.name}: ...}}, or an input with {var.name} as an extent",
            )
        return self.scalars[var]

    def _span(self, axis: Axis) -> Span:
        if axis not in self.spans:
            raise InternalError(f"the axis {axis.name} has no range here")
        return self.spans[axis]

    def _choose(self, expr: IfThenElse) -> Value:
        condition = self(expr.condition)
        if xp.all(condition):
            return self(expr.a)
        if not xp.any(condition):
            return self(expr.b)
        chosen = self.where(condition)(expr.a)
        return xp.where(condition, chosen, self.where(xp.logical_not(condition))(expr.b))

    def _read(self, expr: TensorRead) -> Value:
        array = self.values[expr.tensor]
        view = self._view(expr, array)
        if view is not None:
            return view
        indices = [
            self._inside(expr, d, self(index), array.shape[d])
            for d, index in enumerate(expr.indices)
        ]
        if 0 in array.shape:  # then nothing counts, or _inside would have refused
            return xp.zeros((1,) * self.rank, array.dtype)
        return array[tuple(indices)] if indices else array

    def _inside(self, expr: TensorRead, dimension: int, index: Value, size: int) -> Value:
        """`index`, clipped where it does not count.

        Raises:
            ExprError: an index outside the tensor at a point that counts.
        """
        outside = xp.logical_or(index < 0, index >= size)
        if not outside.any():
            return index
        counted = outside if self.active is None else xp.logical_and(outside, self.active)
        if counted.any():
            value = xp.broadcast_to(index, counted.shape)[counted].flat[0]
            raise ExprError(
                f"{expr} reads index {int(value)} of dimension {dimension}, which has {size} "
                "elements",
                subject="evaluate",
                hint="guard the read with te.if_then_else or where=, or clip the index",
            )
        return xp.clip(index, 0, max(size - 1, 0))

    def _view(self, expr: TensorRead, array: Array) -> Value | None:
        """The read as a strided view of the tensor, when every index is a sum of multiples of axes
        and all points are within the tensor; else None."""
        if not array.flags.c_contiguous:
            return None
        start = 0
        shape, strides = [1] * self.rank, [0] * self.rank
        for index, size, stride in zip(expr.indices, array.shape, array.strides, strict=True):
            terms = self._linear(index)
            if terms is None:
                return None
            low = high = terms.constant
            for axis, scale in terms.scales.items():
                span = self._span(axis)
                ends = (scale * span.low, scale * (span.high - 1))
                low, high = low + min(ends), high + max(ends)
                start += ends[0] * stride
                shape[span.dim] = span.high - span.low
                strides[span.dim] += scale * stride
            start += terms.constant * stride
            if low < 0 or high >= size:
                return None
        if 0 in shape:
            return xp.empty(shape, array.dtype)
        corner = array.reshape(-1)[start // array.itemsize :]
        # As integers: numpy makes the array anew from the dtype's code, and float8_e5m2 has none.
        bits = corner.view(f"u{array.itemsize}")
        strided = np.lib.stride_tricks.as_strided(bits, shape, strides, writeable=False)
        return strided.view(array.dtype)

    def _linear(self, index: Expr) -> _Linear | None:
        """`index` as a constant plus multiples of axes, when it is."""
        match index:
            case Axis():
                return _Linear({index: 1}, 0)
            case Const(value=value):
                return _Linear({}, int(value))
            case Var():
                return _Linear({}, int(self._scalar(index)))
            case Binary(op=BinaryOp.ADD | BinaryOp.SUB as op, a=a, b=b):
                left, right = self._linear(a), self._linear(b)
                if left is None or right is None:
                    return None
                return left.plus(right, 1 if op is BinaryOp.ADD else -1)
            case Binary(op=BinaryOp.MUL, a=a, b=b):
                left, right = self._linear(a), self._linear(b)
                if left is None or right is None or (left.scales and right.scales):
                    return None
                factor, other = (left, right) if right.scales else (right, left)
                return _Linear({}, 0).plus(other, factor.constant)
            case _:
                return None


class _Linear(NamedTuple):
    """`constant` plus the sum of `scale * axis`."""

    scales: dict[Axis, int]
    constant: int

    def plus(self, other: _Linear, factor: int) -> _Linear:
        """This plus `factor * other`."""
        scales = dict(self.scales)
        for axis, scale in other.scales.items():
            scales[axis] = scales.get(axis, 0) + factor * scale
        return _Linear(scales, self.constant + factor * other.constant)


def spread(array: Array, dims: Sequence[int], rank: int) -> Array:
    """`array` with its dimensions placed at `dims` of `rank`, and extent 1 elsewhere."""
    order = sorted(range(len(dims)), key=lambda d: dims[d])
    shape = [1] * rank
    for d in order:
        shape[dims[d]] = array.shape[d]
    return array.transpose(order).reshape(shape)


def axis_plus_constant(index: Expr) -> tuple[Axis | None, int] | None:
    """`(axis, c)` for `axis`, `axis + c`, `c + axis` and `axis - c`; `(None, c)` for a constant."""
    match index:
        case Axis():
            return index, 0
        case Const(value=value):
            return None, int(value)
        case Binary(op=BinaryOp.ADD, a=Axis() as axis, b=Const(value=value)):
            return axis, int(value)
        case Binary(op=BinaryOp.ADD, a=Const(value=value), b=Axis() as axis):
            return axis, int(value)
        case Binary(op=BinaryOp.SUB, a=Axis() as axis, b=Const(value=value)):
            return axis, -int(value)
        case _:
            return None


def evaluate_scalar(expr: Expr, scalars: Mapping[Var, Value]) -> int:
    """An integer expression over runtime scalars, as a number."""
    return int(Block({}, 0, {}, scalars)(expr))
