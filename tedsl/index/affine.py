"""How an index depends on an axis: coefficients, strides, divisibility.  Asked by vectorisation
and code generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr, IfThenElse, Select, Var
from tedsl.expr.visit import occurs, substitute
from tedsl.index.facts import Facts
from tedsl.index.intern import INDEX_DTYPES
from tedsl.index.linear import ONE, Poly, accumulate, combine
from tedsl.index.simplify import simplify


def coefficients(
    expr: Expr, axes: Iterable[Axis | Var], facts: Facts = Facts.EMPTY
) -> tuple[dict[Expr, int], Expr] | None:
    """(c, rest) with `expr = sum(c[axis] * axis) + rest`, where `rest` has none of `axes`; None if
    not affine.

    Axes that `expr` does not depend on have no entry.
    """
    facts = facts.own()
    wanted = tuple(axes)
    return _affine(expr, wanted, facts) or _affine(simplify(expr, facts), wanted, facts)


def _affine(
    expr: Expr, wanted: tuple[Axis | Var, ...], facts: Facts
) -> tuple[dict[Expr, int], Expr] | None:
    found: dict[Expr, int] = {}
    rest: Poly = {}
    for monomial, scale in facts.expander.poly(expr).items():
        if len(monomial) == 1 and any(monomial[0] is axis for axis in wanted):
            found[monomial[0]] = scale
        elif any(occurs(axis, atom) for atom in monomial for axis in wanted):
            return None
        else:
            rest[monomial] = scale
    return found, facts.expander.expression(rest, expr.dtype)


def stride_of(expr: Expr, axis: Axis | Var, facts: Facts = Facts.EMPTY) -> int | Expr | None:
    """By how much `expr` changes when `axis` increases by 1, when that is the same over the whole
    axis, else None.

    An int when it is a constant (0: does not depend), else an expression without `axis`.
    """
    facts = facts.own()
    step = _linear_step(facts.expander.poly(expr), axis)
    if step is None:
        small = simplify(expr, facts)
        step = _linear_step(facts.expander.poly(small), axis)
        if step is None:
            step = _difference(small, axis, facts)
    if step is None or any(monomial for monomial in step):
        return None if step is None else facts.expander.expression(step, expr.dtype)
    return step.get(ONE, 0)


def _linear_step(poly: Poly, axis: Expr) -> Poly | None:
    """The cofactor of `axis` in a polynomial that is linear in it."""
    step: Poly = {}
    for monomial, scale in poly.items():
        rest = tuple(atom for atom in monomial if atom is not axis)
        if any(occurs(axis, atom) for atom in rest) or len(monomial) - len(rest) > 1:
            return None
        if len(rest) < len(monomial):
            step[rest] = scale
    return step


def _difference(expr: Expr, axis: Axis | Var, facts: Facts) -> Poly | None:
    """expr(axis + 1) - expr(axis), for all but the last value of the axis, when it has no `axis`
    left.
    """
    known = facts.range_of(axis)
    if known is not None:
        one = facts.interner.const(1, known.extent.dtype)
        fewer = facts.interner.binary(BinaryOp.SUB, known.extent, one)
        facts = facts.with_axis(axis, known.min, fewer)
    one = facts.interner.const(1, axis.dtype)
    following = substitute(expr, {axis: facts.interner.binary(BinaryOp.ADD, axis, one)})
    first, second = simplify(expr, facts), simplify(following, facts)
    step = combine(facts.expander.poly(second), facts.expander.poly(first), -1)
    if any(occurs(axis, atom) for monomial in step for atom in monomial):
        return None
    return step


def divisible(expr: Expr, k: int, facts: Facts = Facts.EMPTY) -> bool:
    """True when `expr` is proved to be a multiple of the constant `k` at every point of `facts`."""
    return known_multiple(expr, facts, k) % k == 0


def known_multiple(expr: Expr, facts: Facts = Facts.EMPTY, limit: int = 1 << 62) -> int:
    """The greatest divisor of `limit` that is proved to divide `expr` everywhere."""
    facts = facts.own()
    return _multiple(simplify(expr, facts), limit, facts)


def without_remainders(expr: Expr, facts: Facts = Facts.EMPTY) -> Expr:
    """The same value with `x - x % c` as `x // c * c` for constants c, where more is then known to
    divide it; else `expr` as it is."""
    facts = facts.own()
    found: Poly = dict(facts.expander.poly(expr))
    for monomial, scale in tuple(found.items()):
        match monomial:
            case (Binary(op=BinaryOp.FLOORMOD, a=a, b=Const(value=int(c)) as b),) if c > 0:
                rest = Binary(BinaryOp.FLOORDIV, a, b)
                del found[monomial]
                accumulate(found, facts.expander.poly(a), scale)
                accumulate(found, facts.expander.poly(rest), -scale * c)
            case _:
                pass
    changed = facts.expander.expression(found, expr.dtype)
    return changed if _multiple(changed, 1 << 62, facts) > _multiple(expr, 1 << 62, facts) else expr


def _multiple(expr: Expr, limit: int, facts: Facts) -> int:
    result = limit
    for monomial, scale in facts.expander.poly(expr).items():
        factor = scale
        for atom in monomial:
            factor *= _atom_multiple(atom, limit, facts)
        result = gcd(result, factor)
        if result == 1:
            break
    return result


def _atom_multiple(atom: Expr, limit: int, facts: Facts) -> int:
    known = facts.multiples.get(atom, 1)
    match atom:
        case Binary(
            op=BinaryOp.MIN | BinaryOp.MAX | BinaryOp.FLOORMOD | BinaryOp.TRUNCMOD, a=a, b=b
        ):
            found = gcd(_multiple(a, limit, facts), _multiple(b, limit, facts))
        case Select(a=a, b=b) | IfThenElse(a=a, b=b):
            found = gcd(_multiple(a, limit, facts), _multiple(b, limit, facts))
        case Binary(op=BinaryOp.FLOORDIV, a=a, b=Const(value=int(c))) if c > 0:
            inner = _multiple(a, limit * c, facts)
            found = inner // c if inner % c == 0 else 1
        case Binary(op=BinaryOp.SHL, a=a):
            found = _multiple(a, limit, facts)
        case Cast(a=a) if a.dtype in INDEX_DTYPES:
            found = _multiple(a, limit, facts)
        case _:
            found = 1
    return known * found // gcd(known, found)
