"""Proved signs of real values: of an expression, and of what a reduction of it can hold.

Imports `expr` and the types of `rescaling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tedsl.dtypes import DType, Kind
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.visit import walk
from tedsl.index.intern import Interner
from tedsl.index.interval import interval
from tedsl.scheduling.algebra.rescaling import Sign

_POSITIVE = frozenset({UnaryOp.EXP, UnaryOp.EXP2, UnaryOp.SIGMOID, UnaryOp.RSQRT, UnaryOp.COSH})
_NONNEGATIVE = frozenset({UnaryOp.ABS, UnaryOp.SQRT, UnaryOp.ACOSH})
_ODD = frozenset(
    {
        UnaryOp.TANH,
        UnaryOp.SINH,
        UnaryOp.ASINH,
        UnaryOp.ERF,
        UnaryOp.EXPM1,
        UnaryOp.LOG1P,
        UnaryOp.ATAN,
        UnaryOp.SIGN,
    }
)
_ROUNDED = frozenset({UnaryOp.FLOOR, UnaryOp.ROUND, UnaryOp.TRUNC})


def sign_of(expr: Expr, known: Mapping[Expr, Sign] | None = None) -> Sign:
    """What is proved of the sign of `expr`, over the real numbers and where it is defined.

    Args:
        expr: a number.
        known: signs of nodes in it (by identity), e.g. of tags.
    """
    memo: dict[Expr, Sign] = dict(known or {})
    same = Interner()

    def of(node: Expr) -> Sign:
        if node not in memo:
            memo[node] = _sign(node, of, same)
        return memo[node]

    return of(expr)


def _sign(expr: Expr, of: Callable[[Expr], Sign], same: Interner) -> Sign:
    match expr:
        case Const(value=value):
            return Sign.POSITIVE if value > 0 else Sign.NONNEGATIVE if value == 0 else Sign.ANY
        case Var(lower=int() as lower) if lower >= 0:
            return Sign.POSITIVE if lower > 0 else Sign.NONNEGATIVE
        case Cast(a=a, dtype=dtype):
            if a.dtype.is_bool:
                return Sign.NONNEGATIVE
            if dtype.is_integer and a.dtype.is_integer:
                return of(a) if _holds(dtype, a.dtype) else _wrapping(expr)
            keeps = dtype.is_float or not a.dtype.is_float
            return of(a) if keeps else weaker(of(a))
        case Select(a=a, b=b) | IfThenElse(a=a, b=b):
            return _least(of(a), of(b))
        case Unary() | Binary() if expr.dtype.is_integer and _wraps(expr):
            return _wrapping(expr)
        case Unary(op=op, a=a):
            return _unary(op, of(a))
        case Binary():
            return _binary(expr, of, same)
        case _:
            return Sign.NONNEGATIVE if expr.dtype.kind in (Kind.UINT, Kind.BOOL) else Sign.ANY


def _wraps(expr: Unary | Binary) -> bool:
    """True for the operations of integers that may leave their type."""
    if isinstance(expr, Unary):
        return expr.op in (UnaryOp.NEG, UnaryOp.ABS)
    return expr.op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.POW)


def _holds(dtype: DType, source: DType) -> bool:
    """Every value of one integer type is one of another."""
    inner, outer = source.info, dtype.info
    return outer.lowest <= inner.lowest and inner.highest <= outer.highest


def _wrapping(expr: Expr) -> Sign:
    """The sign of an integer that is computed with wrapping, by its range.

    Variables without a bound stand for values of memory; sizes and axes are assumed to fit.
    """
    least = Sign.NONNEGATIVE if expr.dtype.kind is Kind.UINT else Sign.ANY
    if any(isinstance(node, Var) and node.lower is None for node in walk(expr)):
        return least
    low = interval(expr).lo
    if low is None or low < 0:
        return least
    return Sign.POSITIVE if low > 0 else Sign.NONNEGATIVE


def weaker(sign: Sign) -> Sign:
    """What of a sign holds of zero, too."""
    return Sign.NONNEGATIVE if sign is Sign.POSITIVE else sign


def _least(a: Sign, b: Sign) -> Sign:
    """What holds of either."""
    if Sign.ANY in (a, b):
        return Sign.ANY
    return Sign.POSITIVE if a is b is Sign.POSITIVE else Sign.NONNEGATIVE


def _unary(op: UnaryOp, sign: Sign) -> Sign:
    if op in _POSITIVE:
        return Sign.POSITIVE
    if op is UnaryOp.ABS and sign is Sign.POSITIVE:
        return sign
    if op is UnaryOp.SQRT and sign is Sign.POSITIVE:
        return sign
    if op in _NONNEGATIVE:
        return Sign.NONNEGATIVE
    if op in _ODD or op is UnaryOp.CEIL:
        return sign
    return weaker(sign) if op in _ROUNDED else Sign.ANY


def _binary(expr: Binary, of: Callable[[Expr], Sign], same: Interner) -> Sign:
    a, b = of(expr.a), of(expr.b)
    match expr.op:
        case BinaryOp.ADD:
            if Sign.ANY in (a, b):
                return Sign.ANY
            return Sign.POSITIVE if Sign.POSITIVE in (a, b) else Sign.NONNEGATIVE
        case BinaryOp.MUL:
            square = expr.dtype.is_float and same.rep(expr.a) is same.rep(expr.b)
            return Sign.NONNEGATIVE if square and a is Sign.ANY else _least(a, b)
        case BinaryOp.DIV | BinaryOp.MIN:
            return _least(a, b)
        case BinaryOp.MAX:
            if Sign.POSITIVE in (a, b):
                return Sign.POSITIVE
            return Sign.NONNEGATIVE if Sign.NONNEGATIVE in (a, b) else Sign.ANY
        case BinaryOp.POW:
            return a
        case _:
            unsigned = expr.dtype.kind in (Kind.UINT, Kind.BOOL)
            return Sign.NONNEGATIVE if unsigned else Sign.ANY


def fold_sign(operator: BinaryOp | None, sign: Sign, dtype: DType) -> Sign:
    """The sign of a reduction of at least one element, from that of its elements.

    A sum that may skip all its elements (a condition on each) is not of at least one.  Sums and
    products of integers wrap.
    """
    match operator:
        case BinaryOp.ADD | BinaryOp.MUL if dtype.is_integer:
            return Sign.NONNEGATIVE if dtype.kind is Kind.UINT else Sign.ANY
        case BinaryOp.ADD | BinaryOp.MUL | BinaryOp.MAX | BinaryOp.MIN:
            return sign
        case _:
            return Sign.ANY


def started_sign(operator: BinaryOp | None, sign: Sign, start: Sign) -> Sign:
    """The sign of a reduction of at least one element that starts from a value of its own."""
    match operator:
        case BinaryOp.MAX:
            return sign
        case BinaryOp.ADD if start is not Sign.ANY:
            return sign
        case BinaryOp.MUL | BinaryOp.MIN:
            return _least(sign, start)
        case _:
            return Sign.ANY
