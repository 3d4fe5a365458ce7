"""Builders of index arithmetic: integer expressions of one width, with only 0 and 1 folded.

For the compiler's own use (regions, offsets, extents); users write operators, and `index.simplify`
does the rest. Two operands of different width meet in int64.  Imports `nodes`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

from tedsl.dtypes import DType
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Compare, CompareOp, Const, Expr

ZERO = Const(0, DType.int32)
ONE = Const(1, DType.int32)
LARGEST = 2**62
"""What sizes, bounds and all other integers that are given may be at most, either way: the sum of
two still is an int64."""

MAX_ELEMENTS = 2**59
"""What one array may have: more have no address."""


def elements(shape: Iterable[Expr]) -> int:
    """How many elements the constant dimensions of a shape make, empty ones left out."""
    return math.prod(max(constant(extent) or 1, 1) for extent in shape)


def whole_number(value: object) -> int | None:
    """An int (or a numpy integer) as an int; None for anything else, bool included."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:  # an array of several numbers has the method
        return None


def range_text(least: int, most: int = LARGEST) -> str:
    """The integers from `least` to `most`, for an error."""
    highest = {LARGEST: "2**62", 2**31 - 1: "2**31 - 1"}.get(most, str(most))
    return f"an int of at least {least} and at most {highest}"


def constant(expr: Expr) -> int | None:
    """The value of an integer literal, else None."""
    return int(expr.value) if isinstance(expr, Const) and not expr.dtype.is_float else None


def as_index(value: Expr | int) -> Expr:
    """An int as an int32 literal (int64 when it does not fit)."""
    if isinstance(value, Expr):
        return value
    return Const(value, DType.int32 if -(2**31) <= value < 2**31 else DType.int64)


def widened(expr: Expr, dtype: DType = DType.int64) -> Expr:
    """`expr` in the wider integer type `dtype`."""
    if expr.dtype is dtype:
        return expr
    return Const(expr.value, dtype) if isinstance(expr, Const) else Cast(expr, dtype)


def untyped(expr: Expr) -> Expr:
    """An expression of integers and sizes without the types that it was written in, as a trace says
    it: literals as `as_index` makes them, no casts, operands that meet in the wider type."""
    match expr:
        case Const(value=value):
            return as_index(int(value))
        case Cast(a=a):
            return untyped(a)
        case Binary(op=op, a=a, b=b):
            return Binary(op, *same_width(untyped(a), untyped(b)))
        case _:
            return expr


def at(axes: Iterable[Expr], indices: Iterable[Expr]) -> dict[Expr, Expr]:
    """What stands for `axes` where their definition is read at `indices`: each in the type of its
    axis, which the definition computes in."""
    return {axis: widened(index, axis.dtype) for axis, index in zip(axes, indices, strict=True)}


def same_width(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Both operands in one integer type: their own, or int64."""
    return (a, b) if a.dtype is b.dtype else (widened(a), widened(b))


def add(a: Expr, b: Expr | int) -> Expr:
    """a + b."""
    b = as_index(b)
    if constant(b) == 0:
        return a
    return b if constant(a) == 0 else Binary(BinaryOp.ADD, *same_width(a, b))


def sub(a: Expr, b: Expr | int) -> Expr:
    """a - b."""
    b = as_index(b)
    return a if constant(b) == 0 else Binary(BinaryOp.SUB, *same_width(a, b))


def mul(a: Expr, b: Expr | int) -> Expr:
    """a * b."""
    b = as_index(b)
    if constant(b) == 1:
        return a
    return b if constant(a) == 1 else Binary(BinaryOp.MUL, *same_width(a, b))


def floordiv(a: Expr, b: Expr | int) -> Expr:
    """a // b."""
    b = as_index(b)
    return a if constant(b) == 1 else Binary(BinaryOp.FLOORDIV, *same_width(a, b))


def floormod(a: Expr, b: Expr | int) -> Expr:
    """a % b."""
    return Binary(BinaryOp.FLOORMOD, *same_width(a, as_index(b)))


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size` and at least 1."""
    return 1 << max(0, size - 1).bit_length()


def ceil_div(a: Expr, b: Expr | int) -> Expr:
    """(a + b - 1) // b."""
    return floordiv(add(a, sub(as_index(b), 1)), b)


def minimum(a: Expr, b: Expr | int) -> Expr:
    """The smaller."""
    return Binary(BinaryOp.MIN, *same_width(a, as_index(b)))


def maximum(a: Expr, b: Expr | int) -> Expr:
    """The larger."""
    return Binary(BinaryOp.MAX, *same_width(a, as_index(b)))


def less(a: Expr, b: Expr | int) -> Expr:
    """a < b."""
    return Compare(CompareOp.LT, *same_width(a, as_index(b)))


def at_most(a: Expr, b: Expr | int) -> Expr:
    """a <= b."""
    return Compare(CompareOp.LE, *same_width(a, as_index(b)))


def both(*conditions: Expr) -> Expr:
    """The conjunction of at least one condition."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = Binary(BinaryOp.AND, result, condition)
    return result


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions a conjunction is made of."""
    match condition:
        case Binary(op=BinaryOp.AND, a=a, b=b) if condition.dtype.is_bool:
            return (*conjuncts(a), *conjuncts(b))
        case _:
            return (condition,)
