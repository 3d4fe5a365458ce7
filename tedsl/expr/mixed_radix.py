"""Indices that are taken apart and put together again, as views of views make them:

(a * n + b) // n  -->  a        (a * n + b) % n  -->  b        for 0 <= b < n
x // n * n + x % n  -->  x
x // m // n  -->  x // (m * n)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tedsl.expr.index_arith import add, constant, floordiv, floormod, mul
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Expr
from tedsl.expr.visit import rewrite, structural_equal, walk

Term = tuple[int, Expr]
"""A factor and what is multiplied by it."""
_TAKEN_APART = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)


def divides(*exprs: Expr) -> bool:
    """True when something is taken apart in them."""
    return any(isinstance(node, Binary) and node.op in _TAKEN_APART for node in walk(*exprs))


def put_together(expr: Expr) -> Expr:
    """`expr` without quotients, remainders and sums of both that give back what they are made of.
    Of the ranges of axes only those that are constant and start at 0 are used."""
    return rewrite(expr, _together)


def _together(node: Expr) -> Expr | None:
    match node:
        case Binary(
            op=BinaryOp.FLOORDIV,
            a=Binary(op=BinaryOp.FLOORDIV, a=a, b=Const(value=int(m))),
            b=Const(value=int(n)) as by,
        ) if m > 0 and n > 0:
            return floordiv(a, Const(m * n, by.dtype))
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.FLOORMOD, a=a, b=Const(value=int(n))) if n > 0:
            return _divided(node, added(a), n)
        case Binary(op=BinaryOp.ADD) if divides(node.a) or divides(node.b):
            return _joined(node)
        case _:
            return None


def _divided(node: Binary, terms: Sequence[Term], n: int) -> Expr | None:
    """A sum divided by `n`, or the remainder.  Terms that `n` divides are in the quotient alone;
    what is less than some `g` together is in the remainder alone, where `g` divides `n` and all
    other terms:

    (a * 32 + b) // 8  -->  a * 4 + b // 8      (a * 32 + b) % 8  -->  b % 8
    (a * 8 + b) // 32  -->  a // 4              (a * 8 + b) % 32  -->  a % 4 * 8 + b
    """
    whole = [(k // n, e) for k, e in terms if k % n == 0]
    rest = [(k, e) for k, e in terms if k % n]
    steps = [n, *sorted({k for k, _ in rest if k > 1 and n % k == 0})]
    g = next((g for g in steps if _within([term for term in rest if term[0] % g], g)), 1)
    if g == 1 and not whole:
        return None
    low = [(k, e) for k, e in rest if k % g]
    high = [(k // g, e) for k, e in rest if k % g == 0]
    if node.op is BinaryOp.FLOORDIV:
        above = [(1, floordiv(_sum(high, node), Const(n // g, node.dtype)))] if high else []
        return _sum([*whole, *above], node)
    above = [(g, floormod(_sum(high, node), Const(n // g, node.dtype)))] if high else []
    return _sum([*above, *low], node)


def added(expr: Expr, factor: int = 1) -> list[Term]:
    """What an expression adds up, `factor` times."""
    match expr:
        case Const(value=int(value)):
            return [(factor * value, Const(1, expr.dtype))] if value else []
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            return [*added(a, factor), *added(b, factor)]
        case Binary(op=BinaryOp.MUL, a=a, b=Const(value=int(k))):
            return added(a, factor * k)
        case _:
            return [(factor, expr)]


def _within(terms: list[Term], n: int) -> bool:
    """True when a sum is at least 0 and less than `n`."""
    sizes = [_size(each) for _, each in terms]
    if any(size is None or k < 0 for (k, _), size in zip(terms, sizes, strict=True)):
        return False
    return sum(k * ((size or 1) - 1) for (k, _), size in zip(terms, sizes, strict=True)) < n


def _size(expr: Expr) -> int | None:
    """How many values from 0 on an expression has, where that is known."""
    match expr:
        case Axis(domain=domain) if domain is not None and constant(domain.min) == 0:
            return constant(domain.extent)
        case Binary(op=BinaryOp.FLOORMOD, b=Const(value=int(n))) if n > 0:
            return n
        case _:
            return None


def _sum(terms: list[Term], like: Expr) -> Expr:
    made = [mul(each, Const(k, each.dtype)) for k, each in terms]
    return reduce(add, made) if made else Const(0, like.dtype)


def _joined(node: Binary) -> Expr | None:
    """A sum in which a quotient and its remainder are one term."""
    terms = added(node)
    for i, (k, each) in enumerate(terms):
        match each:
            case Binary(op=BinaryOp.FLOORMOD, a=x, b=Const(value=int(n))):
                pass
            case _:
                continue
        for j, (factor, other) in enumerate(terms):
            if factor == k * n and _is_quotient(other, x, n):
                kept = [term for m, term in enumerate(terms) if m not in (i, j)]
                return _sum([*kept, *added(x, k)], node)
    return None


def _is_quotient(expr: Expr, x: Expr, n: int) -> bool:
    """True of `x // n`, which is `y // (m * n)` where `x` is `y // m`."""
    match expr, x:
        case (
            Binary(op=BinaryOp.FLOORDIV, a=a, b=Const(value=int(total))),
            Binary(op=BinaryOp.FLOORDIV, a=y, b=Const(value=int(m))),
        ) if total == m * n:
            return a is y or structural_equal(a, y)
        case Binary(op=BinaryOp.FLOORDIV, a=a, b=Const(value=int(total))), _:
            return total == n and (a is x or structural_equal(a, x))
        case _:
            return False
