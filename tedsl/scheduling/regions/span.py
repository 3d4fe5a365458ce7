"""How far two integer expressions are apart at most, as a constant.

max(a, b) - min(c, d) is at most the greatest of a - c, a - d, b - c, b - d, and each of those may
have a bound where their sum of bounds has none:  min(i + 1, n - 1) - i <= 1.
"""

from __future__ import annotations

from tedsl.expr.index_arith import at_most, sub
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Const, Expr
from tedsl.index.division import Sum, collect, expression
from tedsl.index.facts import Facts
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.interval import interval
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify

# Sides are taken apart this often: 2 ** 6 differences at most.
MAX_CHOICES = 6


def greatest_difference(high: Expr, low: Expr, facts: Facts = Facts.EMPTY) -> int | None:
    """A constant that `high - low` never exceeds; None when none is found."""
    return _greatest(high, low, 0, facts, MAX_CHOICES)


def _greatest(high: Expr, low: Expr, offset: int, facts: Facts, choices: int) -> int | None:
    """The same of `high - low + offset`."""
    high, up = _peeled(high, facts)
    low, down = _peeled(low, facts)
    offset += up - down
    if choices:
        for side, other in ((high, low), (low, high)):
            if not isinstance(side, Binary) or side.op not in (BinaryOp.MIN, BinaryOp.MAX):
                continue
            found = [
                _greatest(part, other, offset, facts, choices - 1)
                if side is high
                else _greatest(other, part, offset, facts, choices - 1)
                for part in (side.a, side.b)
            ]
            known = [each for each in found if each is not None]
            # The greater of two, or less the smaller of two: both have to be bounded.
            both = (side.op is BinaryOp.MAX) == (side is high)
            if both and len(known) == 2:
                return max(known)
            if not both and known:
                return min(known)
            break
    return _bound(simplify(sub(high, low), facts), offset, facts)


def _peeled(expr: Expr, facts: Facts) -> tuple[Expr, int]:
    """An expression without a cast around it and without what is added to it, and that."""
    total = 0
    while True:
        match expr:
            case Cast(a=a) if expr.dtype in INDEX_DTYPES and a.dtype in INDEX_DTYPES:
                expr = a
            case Binary(op=BinaryOp.ADD, a=a, b=Const(value=value)):
                expr, total = a, total + int(value)
            case Binary(op=BinaryOp.ADD, a=Const(value=value), b=b):
                expr, total = b, total + int(value)
            case Binary(op=BinaryOp.SUB, a=a, b=Const(value=value)):
                expr, total = a, total - int(value)
            case _:
                return expr, total


def _bound(difference: Expr, offset: int, facts: Facts) -> int | None:
    """A bound of one difference: of its interval, or of its terms where they are never above 0."""
    limit = interval(difference, facts).hi
    info = difference.dtype.info
    if limit is not None and limit < int(info.highest) // 2:
        return limit + offset
    form = collect(difference, facts)
    rest = expression(Sum(form.terms, 0, form.dtype), facts)
    for most in (-1, 0):
        if prove(at_most(rest, most), facts):
            return form.constant + most + offset
    return None
