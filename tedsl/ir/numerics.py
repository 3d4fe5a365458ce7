"""The interpreter's use of `expr.numerics`: operators as functions, scalars, memory nobody wrote.

Part of the third room; imports `expr` and numpy.  A function made here takes numpy scalars or
arrays of the operand's dtype.
"""

from __future__ import annotations

import math

import numpy as np

from tedsl.dtypes import DType
from tedsl.expr import numerics
from tedsl.expr.nodes import BinaryOp, CompareOp, UnaryOp
from tedsl.expr.numerics import Array, Fn1, Fn2, Value, numpy_dtype, xp

__all__ = ["Array", "Fn1", "Fn2", "Value", "numpy_dtype", "xp"]


def scalar(value: float, dtype: DType) -> Value:
    """`value` as a numpy scalar of `dtype`."""
    return numpy_dtype(dtype).type(value)


def poison(dtype: DType) -> Value:
    """What memory nobody wrote holds: NaN, true, or a pattern of 0xA5 bytes for integers."""
    if dtype.is_float:
        return scalar(math.nan, dtype)
    if dtype.is_bool:
        return np.bool_(True)
    return xp.frombuffer(b"\xa5" * dtype.nbytes, numpy_dtype(dtype))[0]


def unary(op: UnaryOp, dtype: DType) -> Fn1:
    """`op` on operands of `dtype`."""
    return lambda a: numerics.unary(op, a, dtype)[()]


def binary(op: BinaryOp, dtype: DType) -> Fn2:
    """`op` on operands of `dtype`."""
    known = numerics.SAME_DTYPE.get(op)
    return known or (lambda a, b: numerics.binary(op, a, b, dtype)[()])


def compare(op: CompareOp) -> Fn2:
    """`op` on operands of any one dtype."""
    return numerics.COMPARE[op]


def converter(source: DType, target: DType) -> Fn1:
    """The cast from `source` to `target`."""
    return lambda a: numerics.cast(a, source, target)


def choose(condition: Value, a: Value, b: Value) -> Value:
    """`a` where `condition`, else `b`."""
    if xp.ndim(condition) == 0:
        return a if condition else b
    return xp.where(condition, a, b)
