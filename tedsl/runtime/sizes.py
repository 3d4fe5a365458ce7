"""Sizes of one call: integer expressions over runtime scalars, solved from shapes and evaluated
with Python ints.

Imports `expr` and `errors`.  Evaluation is exact (Python integers), so a size that overflows its
dtype is seen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
    Var,
)

Number = bool | int | float
Values = Mapping[Var, Number]


def _truncdiv(a: int, b: int) -> int:
    return -(-a // b) if (a < 0) != (b < 0) else a // b


_BINARY: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.FLOORDIV: lambda a, b: a // b,
    BinaryOp.FLOORMOD: operator.mod,
    BinaryOp.TRUNCDIV: _truncdiv,
    BinaryOp.TRUNCMOD: lambda a, b: a - b * _truncdiv(a, b),
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
    BinaryOp.AND: lambda a, b: a & b,
    BinaryOp.OR: lambda a, b: a | b,
    BinaryOp.XOR: lambda a, b: a ^ b,
    BinaryOp.SHL: lambda a, b: a << b,
    BinaryOp.SHR: lambda a, b: a >> b,
}
_COMPARE: dict[CompareOp, Callable[..., bool]] = {
    CompareOp.EQ: operator.eq,
    CompareOp.NE: operator.ne,
    CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le,
    CompareOp.GT: operator.gt,
    CompareOp.GE: operator.ge,
}


def evaluate(expr: Expr, values: Mapping[Any, Number]) -> Number:
    """The value of a size expression.

    Raises:
        BackendError: a division by zero, or a node that cannot stand in a size.
    """
    match expr:
        case Const(value=value):
            return value
        case Var() | Axis():
            return values[expr]
        case Cast(a=a):
            return evaluate(a, values)
        case Binary(op=op, a=a, b=b) if op in _BINARY:
            left, right = evaluate(a, values), evaluate(b, values)
            try:
                return _BINARY[op](left, right)
            except (ZeroDivisionError, ValueError) as error:
                raise BackendError(f"a size is undefined: {left} {op.value} {right}") from error
        case Compare(op=op, a=a, b=b):
            return _COMPARE[op](evaluate(a, values), evaluate(b, values))
        case Select(condition=condition, a=a, b=b) | IfThenElse(condition=condition, a=a, b=b):
            return evaluate(a if evaluate(condition, values) else b, values)
        case Unary(op=UnaryOp.NEG, a=a):
            return -evaluate(a, values)
        case Unary(op=UnaryOp.ABS, a=a):
            return abs(evaluate(a, values))
        case _:
            raise BackendError(
                f"a size cannot contain {type(expr).__name__}",
                hint="use + - * // % min max of constants and te.var in shapes",
            )


def evaluate_shape(shape: tuple[Expr, ...], values: Mapping[Any, Number]) -> tuple[int, ...]:
    """The extents of a shape."""
    return tuple(int(evaluate(extent, values)) for extent in shape)


def bare_var(extent: Expr) -> Var | None:
    """The variable, when an extent is just a variable (or one cast to another integer type)."""
    while isinstance(extent, Cast):
        extent = extent.a
    return extent if isinstance(extent, Var) else None


def fits(value: Number, dtype: DType) -> bool:
    """True when `value` is in the range of `dtype`; NaN and infinities are in that of every float
    type.
    """
    if dtype.is_float:
        return True
    return dtype.info.lowest <= value <= dtype.info.highest
