"""Dividends that are never negative: `//` and `%` of a kernel on their way to text.

Triton rounds quotients to zero, the loop IR to minus infinity; and Triton's analysis of addresses
takes a quotient to be the same over neighbours, and a remainder to count up over them, which below
zero does not hold (`axis_analysis`).  A dividend of known bounds is moved up by a multiple of the
divisor:

    x // d  =  (x + k * d) // d - k
    x % d   =  (x + k * d) % d,             k = ceil(-min(x) / d)

What is left over, with a divisor that is no constant or a dividend without bounds, is for
`values` to print.
"""

from __future__ import annotations

from dataclasses import replace

from tedsl.expr.index_arith import ZERO, as_index
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Compare, CompareOp, Const, Expr
from tedsl.expr.visit import rewrite
from tedsl.index.facts import Facts
from tedsl.index.interval import EVERYTHING, Interval, interval
from tedsl.ir.nodes import For, Func
from tedsl.ir.visit import map_exprs, tile_axes, walk_stmts


def ranges_of(func: Func, facts: Facts) -> Facts:
    """The facts of a kernel and the range of each axis of it: where several loops have one axis,
    what all of them are in."""
    here, found = facts, dict[Axis, list[tuple[Interval, Expr, Expr]]]()
    for stmt in walk_stmts(func.body):
        loops = [(t.axis, ZERO, as_index(t.extent)) for t in tile_axes(stmt)]
        loops += [(stmt.axis, stmt.start, stmt.extent)] if isinstance(stmt, For) else []
        for axis, start, extent in loops:
            here = here.with_axis(axis, start, extent)
            found.setdefault(axis, []).append((interval(axis, here), start, extent))
    for axis, places in found.items():
        (lo, hi), start, extent = places[0]
        for other, *_ in places[1:]:
            lo, hi = Interval(lo, hi).join(other)
        if lo is not None and hi is not None:
            facts = facts.with_axis(axis, lo, max(0, hi - lo + 1))
        elif len(places) == 1:
            facts = facts.with_axis(axis, start, extent)
        else:
            facts = facts.assume(Compare(CompareOp.GE, axis, Const(0, axis.dtype)))
    return facts


def shift_dividends(func: Func, facts: Facts) -> Func:
    """The kernel with dividends that may be negative moved up, where they have constant bounds.

    Before:  (i - 128) % 24, i in 0 .. 255
    After:   (i + 16) % 24
    Requires: `facts` know the ranges of the axes (`ranges_of`).
    """
    memo: dict[Expr, Expr] = {}
    moved: set[Expr] = set()

    def visit(node: Expr) -> Expr | None:
        match node:
            case Binary(op=BinaryOp.FLOORDIV | BinaryOp.FLOORMOD, a=a, b=Const(value=d)):
                if not node.dtype.is_integer or d <= 0:
                    return None
                times = _times(a, int(d), facts)
                if not times:
                    return None
                above = Binary(node.op, plus(a, times * int(d)), node.b)
                if node.op is BinaryOp.FLOORMOD:
                    return above
                moved.add(above)
                return plus(above, -times)
            case Binary(op=BinaryOp.ADD | BinaryOp.SUB, a=Binary(a=inner), b=Const(value=c)):
                sign = 1 if node.op is BinaryOp.ADD else -1
                return plus(node.a, sign * int(c)) if inner in moved else None
            case _:
                return None

    body = map_exprs(func.body, lambda expr: rewrite(expr, visit, memo))
    return func if body is func.body else replace(func, body=body)


def _times(x: Expr, d: int, facts: Facts) -> int:
    """How many divisors make `x` non-negative; 0 where it is, or where no number is known to, or
    where the sum may not fit."""
    lo, hi = interval(x, facts)
    if lo is None or hi is None or lo >= 0:
        return 0
    times, highest = -(lo // d), int(x.dtype.info.highest)
    return times if max(hi, 0) + times * d <= highest else 0


def plus(x: Expr, number: int) -> Expr:
    """`x + number`, with the constants of sums put together where the type holds them."""
    most = int(x.dtype.info.highest)
    match x:
        case Const(value=value, dtype=dtype) if abs(int(value) + number) <= most:
            return Const(int(value) + number, dtype)
        case Binary(op=BinaryOp.ADD, a=a, b=Const(value=value)) if abs(int(value) + number) <= most:
            return _sum(a, int(value) + number)
        case Binary(op=BinaryOp.SUB, a=a, b=Const(value=value)) if abs(number - int(value)) <= most:
            return _sum(a, number - int(value))
        case Binary(op=BinaryOp.SUB, a=Const(value=value, dtype=dtype), b=b) if (
            abs(int(value) + number) <= most
        ):
            return Binary(BinaryOp.SUB, Const(int(value) + number, dtype), b)
        case _:
            return _sum(x, number)


def _sum(x: Expr, number: int) -> Expr:
    if not number:
        return x
    op = BinaryOp.ADD if number > 0 else BinaryOp.SUB
    return Binary(op, x, Const(abs(number), x.dtype))


def never_negative(expr: Expr, facts: Facts) -> bool:
    """True when an integer expression is at least 0 wherever the facts hold, in its own type."""
    found = EVERYTHING if expr.dtype.is_float else interval(expr, facts)
    fits = found.hi is None or found.hi <= int(expr.dtype.info.highest)
    return found.lo is not None and found.lo >= 0 and fits
