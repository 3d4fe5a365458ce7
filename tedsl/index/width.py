"""Index arithmetic of several types as that of one.

    int64(i * 2) + j  -->  int64(i) * 2 + j

Casts between int32 and int64 change no index.  Between a division and its dividend, or between a
quotient and its remainder, they hide what the rules for divisions look for.  So does arithmetic in
floating point, with which places in resized images are computed:

    int64(float32(i) * 0.5)  -->  int64(i // 2)          (0 <= i < 742)

Imports `expr`, `interval` and numpy.
"""

from __future__ import annotations

import numpy as np

from tedsl.dtypes import DType
from tedsl.expr.index_arith import widened
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
)
from tedsl.expr.numerics import Value, binary, cast, numpy_dtype
from tedsl.expr.visit import map_children, walk
from tedsl.index.facts import Facts
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.interval import interval

_ARITHMETIC = (Binary, Unary, Select, IfThenElse)
# Numbers of a range that is looked at.
_MOST = 1 << 14


def changes_width(expr: Expr) -> bool:
    """Whether `expr` is a cast of index arithmetic to the other index type."""
    if type(expr) is not Cast or expr.dtype not in INDEX_DTYPES:
        return False
    return isinstance(expr.a, _ARITHMETIC) and expr.a.dtype in INDEX_DTYPES


def of_two_widths(*roots: Expr) -> bool:
    """Whether such a cast occurs."""
    return any(changes_width(node) for node in walk(*roots))


def one_width(expr: Expr) -> Expr:
    """`expr` with its index arithmetic in int64, and casts only of what is no arithmetic."""
    memo: dict[Expr, Expr] = {}

    def wide(node: Expr) -> Expr:
        done = memo.get(node)
        if done is None:
            if isinstance(node, Cast) and node.a.dtype in INDEX_DTYPES:
                done = wide(node.a)
            elif isinstance(node, _ARITHMETIC):
                done = node.rebuild([each(child) for child in node.children()])
            else:
                done = widened(node)
            memo[node] = done
        return done

    def each(node: Expr) -> Expr:
        if node.dtype in INDEX_DTYPES:
            return wide(node)
        logic = isinstance(node, (Binary, Unary, Compare)) and node.dtype.is_bool
        return map_children(node, each) if logic else node

    return each(expr)


def as_index(value: Expr, dtype: DType, facts: Facts) -> Expr | None:
    """An expression of integers for `cast(value, dtype)`, where `value` is floating-point
    arithmetic on one integer and constants; None where there is none that is known to be equal.

    It is `(i * step + ahead) // run + base`, compared at every i of a small range.
    """
    source = _source(value)
    if source is None or facts.interner.is_data(source):
        return None
    lo, hi = interval(source, facts)
    if lo is None or hi is None or not 2 <= hi - lo + 1 <= _MOST:
        return None
    with np.errstate(all="ignore"):
        found = _computed(value, np.arange(lo, hi + 1))
    if not np.all(np.isfinite(found)) or np.abs(found).max() > 1 << 30:
        return None
    whole = np.trunc(found).astype(np.int64)
    fitted = _line(whole, lo) or _stairs(whole, lo)
    if fitted is None:
        return None
    step, ahead, run, base = fitted
    index = _plus(Binary(BinaryOp.MUL, source, Const(step, source.dtype)), ahead)
    if run > 1:
        index = Binary(BinaryOp.FLOORDIV, index, Const(run, source.dtype))
    return Cast(_plus(index, base), dtype) if source.dtype is not dtype else _plus(index, base)


def _source(value: Expr) -> Expr | None:
    """The one integer that floating-point arithmetic is on."""
    match value:
        case Cast(a=a) if value.dtype.is_float and a.dtype in INDEX_DTYPES:
            return a
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL | BinaryOp.DIV, a=a, b=Const()):
            return _source(a)
        case _:
            return None


def _computed(value: Expr, numbers: Value) -> Value:
    """The numbers that an expression is for those of its source."""
    if isinstance(value, Binary) and isinstance(value.b, Const):
        other = np.asarray(value.b.value, numpy_dtype(value.dtype))
        return binary(value.op, _computed(value.a, numbers), other, value.dtype)
    return cast(numbers, DType.int64, value.dtype)


def _line(whole: Value, lo: int) -> tuple[int, int, int, int] | None:
    """(step, ahead, run, base) of (i * step + ahead) // run + base with a run of 1."""
    step = int(whole[1] - whole[0])
    same = np.array_equal(whole, whole[0] + step * np.arange(len(whole)))
    return (step, 0, 1, int(whole[0]) - step * lo) if same else None


def _stairs(whole: Value, lo: int) -> tuple[int, int, int, int] | None:
    """The same with a step of 1 and a longer run."""
    rises = np.flatnonzero(np.diff(whole))
    run = int(rises[1] - rises[0]) if len(rises) > 1 else len(whole)
    ahead = -(lo + int(rises[0]) + 1) % run
    stairs = (np.arange(lo, lo + len(whole)) + ahead) // run
    base = int(whole[0] - stairs[0])
    return (1, ahead, run, base) if np.array_equal(whole, stairs + base) else None


def _plus(index: Expr, constant: int) -> Expr:
    return Binary(BinaryOp.ADD, index, Const(constant, index.dtype)) if constant else index
