"""Folding of constants and neutral operands, exact for every dtype.  None means: nothing to fold.

Integers follow two's complement, but a signed result that overflows is left as written, so that
the overflow is seen where indices are proved.  Arithmetic of 16-bit floats and everything
transcendental is left to the target.  Imports `nodes` only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tedsl.dtypes import TABLE, DType, Kind
from tedsl.expr.nodes import BinaryOp, Compare, CompareOp, Const, Expr, Unary, UnaryOp


def _trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


_INTEGER: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.FLOORDIV: lambda a, b: a // b,
    BinaryOp.FLOORMOD: operator.mod,
    BinaryOp.TRUNCDIV: _trunc_div,
    BinaryOp.TRUNCMOD: lambda a, b: a - b * _trunc_div(a, b),
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
    BinaryOp.AND: lambda a, b: a & b,
    BinaryOp.OR: lambda a, b: a | b,
    BinaryOp.XOR: lambda a, b: a ^ b,
    BinaryOp.SHL: lambda a, b: a << b,
    BinaryOp.SHR: lambda a, b: a >> b,
}

_FLOAT: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.DIV: np.divide,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
}

COMPARE: dict[CompareOp, Callable[[Any, Any], bool]] = {
    CompareOp.EQ: operator.eq,
    CompareOp.NE: operator.ne,
    CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le,
    CompareOp.GT: operator.gt,
    CompareOp.GE: operator.ge,
}
"""Python's operator for each comparison of numbers."""

_NEGATED = {
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
    CompareOp.LT: CompareOp.GE,
    CompareOp.LE: CompareOp.GT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.GE: CompareOp.LT,
}

_NUMPY_FLOATS: dict[DType, type[Any]] = {DType.float32: np.float32, DType.float64: np.float64}


def wrap(value: int, dtype: DType) -> int:
    """`value` reduced to the range of the integer `dtype` by two's complement."""
    value &= (1 << dtype.bits) - 1
    if dtype.kind is Kind.INT and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value


def _integer(value: int, dtype: DType) -> Const | None:
    wrapped = wrap(value, dtype)
    if wrapped != value and dtype.kind is Kind.INT:
        return None
    return Const(wrapped, dtype)


def binary(op: BinaryOp, a: Expr, b: Expr) -> Expr | None:
    """`a op b` when both are constants or one is neutral or absorbing."""
    if isinstance(a, Const) and isinstance(b, Const):
        return _constants(op, a, b)
    if isinstance(b, Const):
        return _right_constant(op, a, b)
    if isinstance(a, Const):
        return _left_constant(op, a, b)
    if a is b and op in (BinaryOp.MIN, BinaryOp.MAX, BinaryOp.AND, BinaryOp.OR):
        return a
    return None


def _constants(op: BinaryOp, a: Const, b: Const) -> Const | None:
    dtype = a.dtype
    if dtype.is_bool:
        return Const(bool(_INTEGER[op](a.value, b.value)), dtype)
    if dtype.is_integer:
        return _integer(_INTEGER[op](a.value, b.value), dtype)
    number, fn = _NUMPY_FLOATS.get(dtype), _FLOAT.get(op)
    if number is None or fn is None:
        return None
    with np.errstate(all="ignore"):
        return Const(float(fn(number(a.value), number(b.value))), dtype)


def _right_constant(op: BinaryOp, a: Expr, b: Const) -> Expr | None:
    whole, value = not b.dtype.is_float, b.value
    if b.dtype.is_bool:
        return _logic(op, a, b)
    match op:
        case BinaryOp.ADD | BinaryOp.OR | BinaryOp.XOR | BinaryOp.SHL | BinaryOp.SHR:
            return a if whole and value == 0 else None
        case BinaryOp.SUB:
            zero = value == 0 and (whole or math.copysign(1.0, value) > 0)
            return a if zero else None
        case BinaryOp.MUL:
            return a if value == 1 else b if whole and value == 0 else None
        case BinaryOp.DIV | BinaryOp.FLOORDIV | BinaryOp.TRUNCDIV:
            return a if value == 1 else None
        case BinaryOp.FLOORMOD | BinaryOp.TRUNCMOD:
            return Const(0, b.dtype) if value == 1 else None
        case BinaryOp.AND:
            return b if value == 0 else None
        case _:
            return None


def _left_constant(op: BinaryOp, a: Const, b: Expr) -> Expr | None:
    whole = not a.dtype.is_float
    if a.dtype.is_bool:
        return _logic(op, b, a)
    match op:
        case BinaryOp.ADD | BinaryOp.OR | BinaryOp.XOR:
            return b if whole and a.value == 0 else None
        case BinaryOp.MUL:
            return b if a.value == 1 else a if whole and a.value == 0 else None
        case BinaryOp.AND:
            return a if a.value == 0 else None
        case _:
            return None


def _logic(op: BinaryOp, a: Expr, b: Const) -> Expr | None:
    match op:
        case BinaryOp.AND:
            return a if b.value else b
        case BinaryOp.OR:
            return b if b.value else a
        case BinaryOp.XOR:
            if not b.value:
                return a
            folded = unary(UnaryOp.NOT, a)
            return Unary(UnaryOp.NOT, a) if folded is None else folded
        case _:
            return None


def unary(op: UnaryOp, a: Expr) -> Expr | None:
    """`op(a)` of a constant for the exact operators; the negation of a negation or comparison."""
    if op in (UnaryOp.NOT, UnaryOp.NEG, UnaryOp.BITS) and isinstance(a, Unary) and a.op is op:
        return a.a
    if op is UnaryOp.NOT and isinstance(a, Compare) and not a.a.dtype.is_float:
        return Compare(_NEGATED[a.op], a.a, a.b)
    if not isinstance(a, Const):
        return None
    dtype, value = a.dtype, a.value
    if dtype.is_bool:
        return Const(not value, dtype) if op is UnaryOp.NOT else None
    if op is UnaryOp.NEG:
        return Const(-value, dtype) if dtype.is_float else _integer(-int(value), dtype)
    if op is UnaryOp.ABS:
        return Const(abs(value), dtype) if dtype.is_float else _integer(abs(int(value)), dtype)
    if op is UnaryOp.NOT:
        return Const(wrap(~int(value), dtype), dtype)
    return None


def compare(op: CompareOp, a: Expr, b: Expr) -> Const | None:
    """`a op b` of two constants that their dtype holds exactly, or of one integer with itself."""
    if isinstance(a, Const) and isinstance(b, Const):
        if a.dtype.is_float and not (_exact(a) and _exact(b)):
            return None
        return Const(bool(COMPARE[op](a.value, b.value)), DType.bool)
    if a is b and not a.dtype.is_float:
        return Const(op in (CompareOp.EQ, CompareOp.LE, CompareOp.GE), DType.bool)
    return None


def _exact(a: Const) -> bool:
    """True when the constant is a float that rounding to its dtype cannot change."""
    number = _NUMPY_FLOATS.get(a.dtype)
    if number is None:
        return False
    return float(number(a.value)) == a.value or a.value != a.value


def cast(a: Expr, dtype: DType) -> Const | None:
    """A constant as `dtype`, when the result is the same on every target."""
    if not isinstance(a, Const):
        return None
    value = a.value
    if dtype.is_bool:
        return Const(value != 0, dtype)
    info = TABLE[dtype]
    if dtype.is_float:
        if a.dtype.is_float and not _exact(a):
            return None  # rounding to the first dtype has to happen before
        if not math.isfinite(value):
            return Const(float(value) if info.has_infinity else math.nan, dtype)
        return Const(float(value), dtype) if info.lowest <= value <= info.highest else None
    if a.dtype.is_float:
        inside = math.isfinite(value) and info.lowest <= int(value) <= info.highest
        return Const(int(value), dtype) if inside and _exact(a) else None
    return Const(wrap(int(value), dtype), dtype)
