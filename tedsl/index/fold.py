"""Arithmetic of integer and bool constants, and operations that a constant makes trivial.  Never
floats.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from tedsl.dtypes import DType, Kind
from tedsl.expr.nodes import BinaryOp, Const, Expr, UnaryOp

# Integers up to this are exact in each float type.
_EXACT = {
    DType.float8_e4m3fn: 1 << 4,
    DType.float8_e5m2: 1 << 3,
    DType.float16: 1 << 11,
    DType.bfloat16: 1 << 8,
    DType.float32: 1 << 24,
    DType.float64: 1 << 53,
}
# Float constants up to this become integers.
_MOST = 1 << 11
_MAX_POWER = 64
_ALWAYS: dict[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
    BinaryOp.AND: int.__and__,
    BinaryOp.OR: int.__or__,
    BinaryOp.XOR: int.__xor__,
}
"""What has a value for all integers."""


def fits(value: int, dtype: DType) -> bool:
    """Whether an integer type holds `value`."""
    return int(dtype.info.lowest) <= value <= int(dtype.info.highest)


def compute_binary(op: BinaryOp, a: int, b: int) -> int | None:
    """`a op b` over the mathematical integers; None where it has no meaning."""
    always = _ALWAYS.get(op)
    if always is not None:
        return always(a, b)
    match op:
        case BinaryOp.FLOORDIV:
            return a // b if b else None
        case BinaryOp.FLOORMOD:
            return a % b if b else None
        case BinaryOp.TRUNCDIV | BinaryOp.TRUNCMOD:
            if not b:
                return None
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return quotient if op is BinaryOp.TRUNCDIV else a - quotient * b
        case BinaryOp.SHL:
            return a << b if 0 <= b < _MAX_POWER else None
        case BinaryOp.SHR:
            return a >> b if 0 <= b < _MAX_POWER else None
        case BinaryOp.POW:
            return a**b if 0 <= b < _MAX_POWER else None
        case _:
            return None


def fold_binary(op: BinaryOp, a: Expr, b: Expr) -> Expr | None:
    """`a op b` on integers when it is a constant or one of the operands; None otherwise."""
    if not a.dtype.is_integer or b.dtype.is_float:
        return None
    right = b.value if isinstance(b, Const) else None
    if isinstance(a, Const) and isinstance(right, int):
        value = compute_binary(op, int(a.value), int(right))
        if value is not None and fits(value, a.dtype):
            return Const(value, a.dtype)
        return None
    left = a.value if isinstance(a, Const) else None
    match op:
        case BinaryOp.ADD | BinaryOp.OR | BinaryOp.XOR:
            return a if right == 0 else b if left == 0 else None
        case BinaryOp.SUB | BinaryOp.SHL | BinaryOp.SHR:
            return a if right == 0 else None
        case BinaryOp.MUL:
            return a if right == 1 or left == 0 else b if left == 1 or right == 0 else None
        case BinaryOp.AND:
            return a if left == 0 else b if right == 0 else None
        case BinaryOp.FLOORDIV | BinaryOp.TRUNCDIV:
            return a if right == 1 else None
        case _:
            return None


def fold_unary(op: UnaryOp, a: Expr) -> Expr | None:
    """`op(a)` of an integer constant."""
    if not isinstance(a, Const) or isinstance(a.value, float) or not a.dtype.is_integer:
        return None
    value = int(a.value)
    match op:
        case UnaryOp.NEG:
            value = -value
        case UnaryOp.ABS:
            value = abs(value)
        case UnaryOp.SIGN:
            value = (value > 0) - (value < 0)
        case UnaryOp.NOT:
            value = ~value if a.dtype.info.kind is Kind.INT else int(a.dtype.info.highest) - value
        case UnaryOp.POPCOUNT:
            value = (value & ((1 << a.dtype.bits) - 1)).bit_count()
        case _:
            return None
    return Const(value, a.dtype) if fits(value, a.dtype) else None


def fold_cast(a: Expr, dtype: DType) -> Expr | None:
    """A constant as `dtype`, when the value is exactly the same there."""
    if not isinstance(a, Const):
        return None
    value = a.value
    if isinstance(value, float):
        if not value.is_integer() or not 0.5 < abs(value) <= min(_EXACT[a.dtype], _MOST):
            return None
        value = int(value)
    if dtype is DType.bool:
        return Const(value != 0, dtype)
    if dtype.is_integer:
        return Const(int(value), dtype) if fits(int(value), dtype) else None
    limit = _EXACT.get(dtype, 0)
    return Const(float(value), dtype) if abs(int(value)) <= limit else None
