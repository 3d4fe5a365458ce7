"""Index arithmetic of several types as that of one.

    int64(i * 2) + j  -->  int64(i) * 2 + j

Casts between int32 and int64 change no index.  Between a division and its dividend, or between a
quotient and its remainder, they hide what the rules for divisions look for.  So does arithmetic in
floating point, with which places in resized images are computed:

    int64(float32(i) * 0.5)                            -->  int64(i // 2)      (0 <= i < 742)
    int64(max((float32(i) + 0.5) * 0.5 - 0.5, 0.0))  -->  int64(max((i + 1) // 2 - 1, 0))

Imports `expr`, `evaluate`, `interval` and numpy.
"""

from __future__ import annotations

import math

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
from tedsl.expr.numerics import Value
from tedsl.expr.visit import map_children, walk
from tedsl.index.evaluate import bounded, computed, numbers_of, source_of
from tedsl.index.facts import Facts
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.interval import interval

_ARITHMETIC = (Binary, Unary, Select, IfThenElse)
_LARGEST = 1 << 31


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


def fits_32_bits(expr: Expr, facts: Facts) -> bool:
    """Whether an integer is proved to be one of 32 bits."""
    lo, hi = interval(expr, facts)
    return lo is not None and hi is not None and -_LARGEST <= lo <= hi < _LARGEST


def in_32_bits(expr: Expr, facts: Facts) -> Expr:
    """A 64-bit integer that is one of 32 bits, as arithmetic of these where its parts are such too;
    else `expr`."""
    memo: dict[Expr, Expr | None] = {}

    def short(node: Expr) -> Expr | None:
        if node not in memo:
            memo[node] = made(node) if fits_32_bits(node, facts) else None
        return memo[node]

    def made(node: Expr) -> Expr:
        match node:
            case Const(value=value):
                return Const(int(value), DType.int32)
            case Cast(a=a) if a.dtype is DType.int32:
                return a
            case Binary(a=a, b=b) | Select(a=a, b=b):
                left, right = short(a), short(b)
                if left is None or right is None:
                    return Cast(node, DType.int32)
                if isinstance(node, Binary):
                    return Binary(node.op, left, right)
                return Select(node.condition, left, right)
            case _:
                return Cast(node, DType.int32)

    match expr:
        case Cast(dtype=DType.int32, a=a) if a.dtype is DType.int64:
            found = short(a)
        case Binary() | Cast() | Select() if expr.dtype is DType.int64:
            found = short(expr)
        case _:
            return expr
    return expr if found is None else found


def as_index(value: Expr, dtype: DType, facts: Facts) -> Expr | None:
    """An expression of integers for `cast(value, dtype)`, where `value` is floating-point
    arithmetic on one integer and constants; None where there is none that is known to be equal.

    It is `(i * step + ahead) // run + base` within the limits of `value`, compared at every i of a
    small range.
    """
    source = source_of(value)
    if source is None or facts.interner.is_data(source):
        return None
    lo, hi = interval(source, facts)
    numbers = numbers_of(lo, hi)
    if lo is None or numbers is None:
        return None
    inner, limits = _limits(value)
    with np.errstate(all="ignore"):
        found, free = computed(value, numbers), computed(inner, numbers)
    if not bounded(found) or not bounded(free):
        return None
    # Below zero a cast rounds up; what a limit of zero takes away is no step of the stairs then.
    whole = (np.floor(free) if limits else np.trunc(free)).astype(np.int64)
    fitted = _line(whole, lo) or _stairs(whole, lo)
    if fitted is None:
        return None
    for op, limit in limits:
        whole = np.maximum(whole, limit) if op is BinaryOp.MAX else np.minimum(whole, limit)
    if not np.array_equal(whole, np.trunc(found).astype(np.int64)):
        return None
    index = _fitted(source, *fitted)
    for op, limit in limits:
        index = Binary(op, index, Const(limit, source.dtype))
    return Cast(index, dtype) if source.dtype is not dtype else index


def _fitted(source: Expr, step: int, ahead: int, run: int, base: int) -> Expr:
    index = _plus(Binary(BinaryOp.MUL, source, Const(step, source.dtype)), ahead)
    if run > 1:
        index = Binary(BinaryOp.FLOORDIV, index, Const(run, source.dtype))
    return _plus(index, base)


def _limits(value: Expr) -> tuple[Expr, list[tuple[BinaryOp, int]]]:
    """What is held within limits, and these rounded down, the innermost first."""
    match value:
        case Binary(op=BinaryOp.MIN | BinaryOp.MAX as op, a=a, b=Const(value=limit)) if (
            math.isfinite(limit) and abs(limit) < 1 << 30
        ):
            inner, limits = _limits(a)
            return inner, [*limits, (op, math.floor(limit))]
        case _:
            return value, []


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
