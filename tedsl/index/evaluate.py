"""Exact evaluation of integer and bool expressions at a point: what every other module here is
measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tedsl.dtypes import DType, Kind
from tedsl.errors import ExprError
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
from tedsl.index.fold import compute_binary
from tedsl.index.intern import INDEX_DTYPES


class EvaluationError(ExprError):
    """An expression that has no integer value at this point: a read, a float, a missing variable,
    x // 0.
    """


_COMPARE: dict[CompareOp, Callable[[int, int], bool]] = {
    CompareOp.EQ: lambda a, b: a == b,
    CompareOp.NE: lambda a, b: a != b,
    CompareOp.LT: lambda a, b: a < b,
    CompareOp.LE: lambda a, b: a <= b,
    CompareOp.GT: lambda a, b: a > b,
    CompareOp.GE: lambda a, b: a >= b,
}


def evaluate_int(expr: Expr, env: Mapping[Axis | Var, int] | Mapping[Expr, int]) -> int:
    """The value of `expr` where variables have the values in `env`; bools are 0 and 1.

    Index types are mathematical integers; narrow and unsigned types wrap.  Only the chosen side of
    a select is evaluated.  A value for any other node (a read) may be given in `env` too.

    Raises:
        EvaluationError: the value depends on something that is not in `env`, or has none.
    """
    values: dict[Expr, int] = {}
    for variable, value in env.items():
        values[variable] = value
    return Evaluator(values).value(expr)


class Evaluator:
    """Values of expressions at one point, remembered."""

    def __init__(self, env: dict[Expr, int]) -> None:
        self.memo = env

    def variable(self, axis: Axis | Var) -> int:
        """The value of a variable that the point does not give."""
        raise EvaluationError(f"{axis.name} has no value here", hint="give every variable one")

    def value(self, expr: Expr) -> int:
        """The value of `expr`."""
        known = self.memo.get(expr)
        if known is None:
            known = self.memo[expr] = self._wrap(self._compute(expr), expr.dtype)
        return known

    def _wrap(self, value: int, dtype: DType) -> int:
        if dtype in INDEX_DTYPES or not dtype.is_integer:
            return value
        value &= (1 << dtype.bits) - 1
        signed = dtype.info.kind is Kind.INT and value >> (dtype.bits - 1)
        return value - (1 << dtype.bits) if signed else value

    def _compute(self, expr: Expr) -> int:
        match expr:
            case Const(value=int(value)):
                return int(value)
            case Axis() | Var():
                return self.variable(expr)
            case Binary(op=op):
                return self._binary(op, expr)
            case Compare(op=op, a=a, b=b) if not a.dtype.is_float:
                return int(_COMPARE[op](self.value(a), self.value(b)))
            case Select(condition=c, a=a, b=b) | IfThenElse(condition=c, a=a, b=b):
                return self.value(a) if self.value(c) else self.value(b)
            case Cast(a=a) if not a.dtype.is_float:
                value = self.value(a)
                return int(value != 0) if expr.dtype is DType.bool else value
            case Unary(op=op, a=a) if not a.dtype.is_float:
                return self._unary(op, self.value(a), a.dtype)
            case _:
                raise EvaluationError(
                    f"a {type(expr).__name__} of type {expr.dtype} has no integer value at a point",
                    hint="evaluate index expressions only",
                )

    def _binary(self, op: BinaryOp, expr: Binary) -> int:
        value = None
        if not expr.dtype.is_float:
            value = compute_binary(op, self.value(expr.a), self.value(expr.b))
        if value is None:
            raise EvaluationError(
                f"the operator {op.value} has no integer value here",
                hint="keep divisors from being zero and shifts between 0 and 63",
            )
        return value

    def _unary(self, op: UnaryOp, value: int, dtype: DType) -> int:
        match op:
            case UnaryOp.NEG:
                return -value
            case UnaryOp.NOT:
                return 1 - value if dtype is DType.bool else ~value
            case UnaryOp.ABS:
                return abs(value)
            case UnaryOp.SIGN:
                return (value > 0) - (value < 0)
            case UnaryOp.POPCOUNT:
                return (value & ((1 << dtype.bits) - 1)).bit_count()
            case _:
                raise EvaluationError(
                    f"{op.value} of an integer is no integer",
                    hint="evaluate index expressions only",
                )
