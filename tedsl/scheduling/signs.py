"""Proved signs of real values: of an expression, and of what a reduction of it can hold.

Imports `expr` and the types of `repair`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tedsl.dtypes import Kind
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
from tedsl.index.intern import Interner
from tedsl.scheduling.repair import Sign

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
            keeps = dtype.is_float or not a.dtype.is_float
            return of(a) if keeps else _weaker(of(a))
        case Select(a=a, b=b) | IfThenElse(a=a, b=b):
            return _least(of(a), of(b))
        case Unary(op=op, a=a):
            return _unary(op, of(a))
        case Binary():
            return _binary(expr, of, same)
        case _:
            return Sign.NONNEGATIVE if expr.dtype.kind in (Kind.UINT, Kind.BOOL) else Sign.ANY


def _weaker(sign: Sign) -> Sign:
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
    return _weaker(sign) if op in _ROUNDED else Sign.ANY


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


def fold_sign(operator: BinaryOp | None, sign: Sign) -> Sign:
    """The sign of a reduction of at least one element, from that of its elements.

    A sum that may skip all its elements (a condition on each) is not of at least one.
    """
    match operator:
        case BinaryOp.ADD | BinaryOp.MUL | BinaryOp.MAX | BinaryOp.MIN:
            return sign
        case _:
            return Sign.ANY
