"""Sums that hold a quotient and its remainder: the value that was taken apart.

c * (x // c) + x % c = x          x - c * (x // c) = x % c
c * (x // c % b) + x % c = x % (c * b)
c * ((x // c + k) % b) + x % c = (x + c * k) % (c * b)
c * (z % b) + y % c = (c * z + y % c) % (c * b)     where c * z + y % c is a value taken apart

A remainder is written as simply as it can be, `(p + l % 49) % 7` as `(p + l) % 7`, so that it may
not show the dividend that it shares with its quotient: both are tried as the place to start from.
"""

from __future__ import annotations

from tedsl.expr.nodes import Binary, BinaryOp, Expr
from tedsl.index.division import (
    Divisor,
    Sum,
    collect,
    divide,
    divisor_of,
    factors_of,
    modulo,
    range_of,
    times,
)
from tedsl.index.facts import Facts
from tedsl.index.linear import without

FLOORDIV, FLOORMOD = BinaryOp.FLOORDIV, BinaryOp.FLOORMOD


def rejoin(form: Sum, facts: Facts) -> Sum:
    """The sum with every quotient and remainder of one division put together again."""
    changed = True
    while changed:
        changed = False
        for term in form.terms:
            smaller = _rejoin_term(form, term, facts)
            if smaller is not None:
                form, changed = smaller, True
                break
    return form


def _rejoin_term(form: Sum, term: Expr, facts: Facts) -> Sum | None:
    if type(term) is not Binary:
        return None
    if term.op is FLOORMOD:
        return _remainder(form, term, factors=(), mod=term, facts=facts)
    if term.op is FLOORDIV:
        return _quotient(form, term, (), term, facts)
    if term.op is BinaryOp.MUL:
        factors = factors_of(term)
        for factor in factors:
            if type(factor) is Binary and factor.op is FLOORMOD:
                rest = without(factors, (factor,)) or ()
                found = _remainder(form, term, rest, factor, facts)
            elif type(factor) is Binary and factor.op is FLOORDIV:
                rest = without(factors, (factor,)) or ()
                found = _quotient(form, term, rest, factor, facts)
            else:
                continue
            if found is not None:
                return found
    return None


def _remainder(
    form: Sum, term: Expr, factors: tuple[Expr, ...], mod: Binary, facts: Facts
) -> Sum | None:
    """k*F*(y % c) together with k*F*c*(y // c), or with k*F*c*(y // c % b)."""
    scale = form.terms[term]
    outer = Divisor(scale, factors)
    y = collect(mod.a, facts)
    divisor = divisor_of(collect(mod.b, facts), facts)
    quotient = divide(y, divisor, facts)
    if not quotient.terms:
        return None
    whole = times(times(quotient, divisor, facts), outer, facts)
    if all(form.terms.get(atom) == c for atom, c in whole.terms.items()):
        result = form.plus(whole, -1).plus(Sum({term: 1}, 0, form.dtype), -scale)
        return result.plus(times(y, outer, facts))
    for other, coefficient in form.terms.items():
        if other is term:
            continue
        for factor in factors_of(other):
            if type(factor) is not Binary or factor.op is not FLOORMOD:
                continue
            outside = without(factors_of(other), (factor,)) or ()
            rest = without(outside, (*factors, *divisor.factors))
            if rest != () or coefficient != scale * divisor.scale:
                continue
            bottom = divisor_of(collect(factor.b, facts), facts)
            both = Divisor(divisor.scale * bottom.scale, divisor.factors + bottom.factors)
            joined = modulo(y, both, facts)
            if facts.interner.rep(factor) is not _single(modulo(quotient, bottom, facts)):
                inner = _ahead(y, collect(factor.a, facts).plus(quotient, -1), divisor, facts)
                if inner is None:
                    inner = _taken_apart(form, collect(factor.a, facts), divisor, mod, facts)
                if inner is None or bottom.factors or bottom.scale <= 0:
                    continue
                joined = modulo(inner, both, facts)
            result = form.plus(Sum({term: scale, other: coefficient}, 0, form.dtype), -1)
            return result.plus(times(joined, outer, facts))
    return None


def _ahead(y: Sum, blocks: Sum, divisor: Divisor, facts: Facts) -> Sum | None:
    """y + c * k, of which y // c + k is the quotient and y % c the remainder, for a constant k; not
    where that may be below 0, since dividends below 0 are hidden from a GPU's compiler."""
    if blocks.terms:
        return None
    inner = y.plus(times(Sum({}, blocks.constant, y.dtype), divisor, facts))
    low = range_of(inner, facts).lo
    return None if low is None or low < 0 else inner


def _taken_apart(form: Sum, z: Sum, divisor: Divisor, mod: Binary, facts: Facts) -> Sum | None:
    """c * z + y % c, `mod` being the remainder, where that is a value that is there already: what z
    is a quotient of, or what some quotient in `form` is of."""
    if divisor.factors or divisor.scale <= 0:
        return None
    parts = times(z, divisor, facts).plus(Sum({mod: 1}, 0, form.dtype))
    inner = rejoin(parts, facts)
    if len(inner.terms) >= len(parts.terms):
        return None
    if len(z.terms) == 1 and not z.constant:
        return inner
    dividends = [
        collect(factor.a, facts)
        for term in form.terms
        for factor in factors_of(term)
        if type(factor) is Binary and factor.op is FLOORDIV
    ]
    return inner if any(_same(inner, each) for each in dividends) else None


def _same(a: Sum, b: Sum) -> bool:
    return a.constant == b.constant and a.terms == b.terms


def _single(form: Sum) -> Expr | None:
    if form.constant or len(form.terms) != 1:
        return None
    ((atom, scale),) = form.terms.items()
    return atom if scale == 1 else None


def _quotient(
    form: Sum, term: Expr, factors: tuple[Expr, ...], quotient: Binary, facts: Facts
) -> Sum | None:
    """k*F*x - k*F*c*(x // c) is k*F*(x % c), and k*F*c*(x // c) + k*F*(x % c) is k*F*x."""
    divisor = divisor_of(collect(quotient.b, facts), facts)
    outside = without(factors, divisor.factors)
    coefficient = form.terms[term]
    if outside is None or divisor.scale == 0 or coefficient % divisor.scale:
        return None
    scale = -(coefficient // divisor.scale)
    x = collect(quotient.a, facts)
    rest = times(modulo(x, divisor, facts), Divisor(-scale, outside), facts)
    if rest.terms and all(form.terms.get(atom) == c for atom, c in rest.terms.items()):
        result = form.plus(Sum({term: 1}, 0, form.dtype), -coefficient).plus(rest, -1)
        return result.plus(times(x, Divisor(-scale, outside), facts))
    outer = Divisor(scale, outside)
    whole = times(Sum(x.terms, 0, x.dtype), outer, facts)
    if not all(form.terms.get(atom) == c for atom, c in whole.terms.items()):
        if _is_multiple(x, divisor, facts):
            result = form.plus(Sum({term: 1}, 0, form.dtype), -coefficient)
            return result.plus(times(x, Divisor(-scale, outside), facts))
        return None
    result = form.plus(Sum({term: 1}, 0, form.dtype), -coefficient)
    result = result.plus(times(x, outer, facts), -1)
    return result.plus(times(modulo(x, divisor, facts), outer, facts))


def _is_multiple(x: Sum, divisor: Divisor, facts: Facts) -> bool:
    if divisor.factors or x.constant % divisor.scale:
        return False
    return all(facts.multiples.get(atom, 1) * c % divisor.scale == 0 for atom, c in x.terms.items())
