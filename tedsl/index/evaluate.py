"""Exact evaluation of integer and bool expressions at a point: what every other module here is
measured against.  And of floating-point arithmetic on one integer and constants, with which places
in resized images are computed, at all numbers of a small range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tedsl.dtypes import DType, Kind
from tedsl.errors import ExprError
from tedsl.expr.fold import COMPARE
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
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.numerics import Value, binary, cast, numpy_dtype, unary
from tedsl.index.fold import compute_binary
from tedsl.index.intern import INDEX_DTYPES


class EvaluationError(ExprError):
    """An expression that has no integer value at this point: a read, a float, a missing variable,
    x // 0.
    """


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
            known = self._compute(expr)
            if expr.dtype not in INDEX_DTYPES:
                known = self._wrap(known, expr.dtype)
            self.memo[expr] = known
        return known

    def _wrap(self, value: int, dtype: DType) -> int:
        if not dtype.is_integer:
            return value
        value &= (1 << dtype.bits) - 1
        signed = dtype.info.kind is Kind.INT and value >> (dtype.bits - 1)
        return value - (1 << dtype.bits) if signed else value

    def _compute(self, expr: Expr) -> int:
        if isinstance(expr, Binary):
            return self._binary(expr.op, expr)
        match expr:
            case Const(value=int(value)):
                return int(value)
            case Axis() | Var():
                return self.variable(expr)
            case Compare(op=op, a=a, b=b) if not a.dtype.is_float:
                return int(COMPARE[op](self.value(a), self.value(b)))
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
