"""Floating-point arithmetic on one integer and constants, with which places in resized images are
computed: what it is, number by number.  Imports `expr` and numpy.
"""

from __future__ import annotations

import math

import numpy as np

from tedsl.dtypes import DType
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Const, Expr, Unary, UnaryOp
from tedsl.expr.numerics import Value, binary, cast, numpy_dtype, unary
from tedsl.index.intern import INDEX_DTYPES

_COMPUTES = (
    BinaryOp.ADD,
    BinaryOp.SUB,
    BinaryOp.MUL,
    BinaryOp.DIV,
    BinaryOp.MIN,
    BinaryOp.MAX,
)
# Numbers of a range that is looked at, and the largest that comes of them.
_MOST, _LARGEST = 1 << 14, 1 << 30
# What a processor that rounds fewer times may be off, of the largest number on the way.
_OFF = 2.0**-20


def source_of(value: Expr) -> Expr | None:
    """The one integer that floating-point arithmetic is on."""
    match value:
        case Cast(a=a) if value.dtype.is_float and a.dtype in INDEX_DTYPES:
            return a
        case Binary(op=op, a=a, b=Const()) if op in _COMPUTES:
            return source_of(a)
        case Unary(op=UnaryOp.FLOOR | UnaryOp.CEIL, a=a):
            return source_of(a)
        case _:
            return None


def computed(value: Expr, numbers: Value) -> Value:
    """The numbers that an expression is for those of its source."""
    if isinstance(value, Binary) and isinstance(value.b, Const):
        other = np.asarray(value.b.value, numpy_dtype(value.dtype))
        return binary(value.op, computed(value.a, numbers), other, value.dtype)
    if isinstance(value, Unary):
        return unary(value.op, computed(value.a, numbers), value.dtype)
    return cast(numbers, DType.int64, value.dtype)


def numbers_of(lo: int | None, hi: int | None) -> Value | None:
    """The numbers of a range, if they are few enough to be looked at."""
    if lo is None or hi is None or not 2 <= hi - lo + 1 <= _MOST:
        return None
    return np.arange(lo, hi + 1)


def bounded(found: Value) -> bool:
    """Whether all numbers are finite and no large ones."""
    return bool(np.all(np.isfinite(found)) and np.abs(found).max() <= _LARGEST)


def reach(value: Expr, numbers: Value) -> tuple[int, int] | None:
    """The least and the largest whole number that `value` is cast to, however it is rounded."""
    inner = value.a if isinstance(value, Unary) else value
    parts = [inner]
    while isinstance(parts[-1], Binary):
        parts.append(parts[-1].a)
    if value.dtype not in (DType.float32, DType.float64) or isinstance(parts[-1], Unary):
        return None
    with np.errstate(all="ignore"):
        steps = [np.asarray(computed(part, numbers), np.float64) for part in parts]
    if not all(map(bounded, steps)):
        return None
    off = _OFF * max(1.0, *(float(np.abs(step).max()) for step in steps))
    ends = np.asarray((steps[0].min() - off, steps[0].max() + off))
    lo, hi = unary(value.op, ends, DType.float64) if isinstance(value, Unary) else ends
    return math.trunc(lo), math.trunc(hi)
