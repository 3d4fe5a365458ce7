"""Decides `poly >= 0` from ranges, conditions and what divisions, remainders and extremes say of
themselves.

The search eliminates one monomial at a time: L >= 0 follows from b*L - k*B >= 0 for a known B >= 0
that holds the same monomial with the same sign (k in L, b in B).  Minima, maxima and choices are
split into their cases.  The search is bounded; it answers True only with a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tedsl.expr.nodes import Axis, Binary, BinaryOp, Expr, IfThenElse, Select, Unary, UnaryOp, Var
from tedsl.expr.nodes import Const as ConstNode
from tedsl.expr.visit import walk
from tedsl.index.facts import Facts, tighten
from tedsl.index.interval import interval, poly_interval
from tedsl.index.linear import ONE, Monomial, Poly, accumulate, combine, join, multiply, without
from tedsl.index.samples import refuted

MAX_STEPS = 60
MAX_DEPTH = 12


def nonnegative(poly: Poly, facts: Facts) -> bool:
    """True when `poly >= 0` is proved at every point of `facts`."""
    found = poly_interval(poly, facts)
    if found.lo is not None and found.lo >= 0:
        return True
    if (found.hi is not None and found.hi < 0) or not _has_relations(poly, facts):
        return False
    key = frozenset(poly.items())
    known = facts.decided.get(key)
    if known is None:
        facts.decided[key] = False  # a proof that needs itself is no proof
        if refuted(poly, facts):
            return False
        known = facts.decided[key] = _Search(facts, poly).prove(poly, MAX_DEPTH)
    return known


def at_most(a: Poly, b: Poly, facts: Facts, offset: int = 0) -> bool:
    """True when `a + offset <= b` is proved."""
    difference = combine(b, a, -1)
    if offset:
        accumulate(difference, {ONE: -offset})
    return nonnegative(difference, facts)


def _has_relations(poly: Poly, facts: Facts) -> bool:
    """Whether more is known about `poly` than the constant intervals of independent variables."""
    for monomial in poly:
        if len(monomial) > 1 or monomial in facts.inequalities:
            return True
        for atom in monomial:
            if not isinstance(atom, (Axis, Var)) or not _constant_range(atom, facts):
                return True
    return False


def _constant_range(atom: Expr, facts: Facts) -> bool:
    known = facts.range_of(atom)
    return known is None or (type(known.min) is ConstNode and type(known.extent) is ConstNode)


def _with_nonempty_ranges(poly: Poly, facts: Facts) -> dict[Monomial, tuple[Poly, ...]]:
    """The known conditions, and `extent >= 1` for each axis in `poly`: it has a value at every
    point."""
    result = facts.inequalities
    seen: set[Expr] = set()
    pending = [atom for monomial in poly for atom in facts.interner.ordered(monomial)]
    while pending:
        for node in walk(pending.pop()):
            if node in seen or not isinstance(node, (Axis, Var)):
                continue
            seen.add(node)
            known = facts.range_of(node)
            if known is None or type(known.extent) is ConstNode:
                continue
            filled = combine(known.lower, known.upper)  # extent - 1 >= 0
            pending += (known.min, known.extent)
            if result is facts.inequalities:
                result = dict(result)
            for found in (filled, *_dividends(filled, facts)):
                for monomial in found:
                    if monomial:
                        result[monomial] = (*result.get(monomial, ()), found)
    return result


def _dividends(poly: Poly, facts: Facts) -> Iterator[Poly]:
    """From `q + rest >= 0` with q = a // c also `a + c*rest >= 0`."""
    for monomial, scale in poly.items():
        match monomial:
            case (Binary(op=BinaryOp.FLOORDIV, a=a, b=ConstNode(value=int(c))),) if c > 0 < scale:
                cleared = {m: k * c for m, k in poly.items() if m is not monomial}
                yield combine(cleared, facts.expander.poly(a), scale)
            case _:
                pass


class _Search:
    """One bounded proof search."""

    def __init__(self, facts: Facts, about: Poly, steps: int = MAX_STEPS) -> None:
        self.facts = facts
        self.steps = steps
        self.seen: set[frozenset[tuple[Monomial, int]]] = set()
        self.position = {axis: index for index, axis in enumerate(facts.ranges)}
        self.inequalities = _with_nonempty_ranges(about, facts)

    def prove(self, poly: Poly, depth: int) -> bool:
        """Whether `poly >= 0`."""
        poly = tighten(poly)
        found = poly_interval(poly, self.facts)
        if found.lo is not None and found.lo >= 0:
            return True
        if (found.hi is not None and found.hi < 0) or depth == 0 or self.steps <= 0:
            return False
        key = frozenset(poly.items())
        if key in self.seen or not self._has_relations(poly):
            return False
        self.seen.add(key)
        self.steps -= 1
        cases = self._cases(poly)
        if cases is None:
            return self._eliminate(poly, depth)
        for case, condition in cases:
            if condition is None:
                if not self.prove(case, depth - 1):
                    return False
            else:
                inside = self.facts.assume(condition)
                if not _Search(inside, case, self.steps // 2).prove(case, depth - 1):
                    return False
        return True

    def _has_relations(self, poly: Poly) -> bool:
        return any(m in self.inequalities for m in poly) or _has_relations(poly, self.facts)

    def _cases(self, poly: Poly) -> list[tuple[Poly, Expr | None]] | None:
        """The polynomial with one minimum, maximum or choice replaced by each value it may have.

        Where the choice has a condition, it comes with the case.
        """
        for monomial, scale in poly.items():
            for atom in self.facts.interner.ordered(monomial):
                if isinstance(atom, (Select, IfThenElse)):
                    opposite = self.facts.interner.unary(UnaryOp.NOT, atom.condition)
                    return [
                        (self._replace(poly, atom, (atom.a, 1)), atom.condition),
                        (self._replace(poly, atom, (atom.b, 1)), opposite),
                    ]
                values = _alternatives(atom, scale, len(monomial) == 1)
                if values is not None:
                    return [(self._replace(poly, atom, value), None) for value in values]
        return None

    def _replace(self, poly: Poly, atom: Expr, value: tuple[Expr, int]) -> Poly:
        other = self.facts.expander.poly(value[0])
        if value[1] != 1:
            other = {m: c * value[1] for m, c in other.items()}
        return replace_atom(poly, atom, other)

    def _eliminate(self, poly: Poly, depth: int) -> bool:
        simple = all(isinstance(atom, (Axis, Var)) for monomial in poly for atom in monomial)
        for monomial in sorted((m for m in poly if m), key=self._rank, reverse=True):
            scale = poly[monomial]
            commits = simple and self._independent(monomial, poly)
            for bound in self._bounds(monomial, scale > 0):
                held = bound.get(monomial, 0)
                if held * scale <= 0:
                    continue
                common = gcd(held, scale)
                left, right = abs(held) // common, abs(scale) // common
                rest = {m: c * left for m, c in poly.items()}
                accumulate(rest, bound, -right)
                if left > 1:  # L is an integer: left * L > -left is enough
                    accumulate(rest, {ONE: left - 1})
                if self.prove(rest, depth - 1):
                    return True
                if commits:
                    return False
            widened = self._clear_divisor(monomial, poly)
            if widened is not None and self.prove(widened, depth - 1):
                return True
        return False

    def _clear_divisor(self, monomial: Monomial, poly: Poly) -> Poly | None:
        """For q = a // d with a symbolic d > 0:  d*L + d - 1 >= 0 is enough."""
        for atom in self.facts.interner.ordered(monomial):
            if not isinstance(atom, Binary) or atom.op is not BinaryOp.FLOORDIV:
                continue
            divisor = self.facts.expander.poly(atom.b)
            if len(divisor) != 1 or ONE in divisor:
                continue
            ((factors, scale),) = divisor.items()
            if scale > 0 and without(monomial, factors) is None and self._natural(atom.b):
                return combine(combine(multiply(poly, divisor), divisor), {ONE: -1})
        return None

    def _rank(self, monomial: Monomial) -> tuple[int, int]:
        """Variables of inner loops first, then divisions and the like, then sizes."""
        best = (0, 0)
        for atom in monomial:
            position = self.position.get(atom)
            if position is not None:
                symbolic = not _constant_range(atom, self.facts)
                best = max(best, (3 if symbolic else 1, position))
            elif not isinstance(atom, (Axis, Var)):
                best = max(best, (2, 0))
        return best

    def _independent(self, monomial: Monomial, poly: Poly) -> bool:
        """Whether replacing a variable by its only bound loses nothing."""
        if len(monomial) > 1 or monomial in self.inequalities:
            return False
        atom = monomial[0] if monomial else None
        if atom is None or atom in self.facts.bounds or self.facts.range_of(atom) is None:
            return False
        return sum(_occurs(atom, other) for other in poly) == 1

    def _bounds(self, monomial: Monomial, lower: bool) -> Iterator[Poly]:
        """Known `B >= 0` that hold `monomial` with a positive (`lower`) or a negative factor."""
        for atom in dict.fromkeys(self.facts.interner.ordered(monomial)):
            rest = without(monomial, (atom,)) or ()
            if isinstance(atom, Binary) and atom.op is BinaryOp.FLOORDIV:
                yield from self._division(atom, rest, lower)
            if not all(self._natural(other) for other in rest):
                continue
            for bound in self._atom_bounds(atom, lower):
                yield multiply(bound, {rest: 1}) if rest else bound
        if len(monomial) == 2 and lower:
            first, second = (self._least(atom) for atom in monomial)
            if first is not None and second is not None:
                yield multiply(first, second)
        yield from self.inequalities.get(monomial, ())

    def _division(self, atom: Binary, rest: Monomial, lower: bool) -> Iterator[Poly]:
        """q = a // d, d > 0:  least <= a - d*q <= greatest, times the factors besides q."""
        poly = self.facts.expander.poly
        a, d = poly(atom.a), poly(atom.b)
        if len(d) != 1:
            return
        ((divisor, scale),) = d.items()
        others = without(rest, divisor)
        if others is None or scale <= 0 or not all(map(self._natural, (*divisor, *others))):
            return
        least, greatest = self._remainders(a, d, scale if not divisor else 0)
        bound: Poly = {join(divisor, (atom,)): scale if lower else -scale}
        accumulate(bound, a, -1 if lower else 1)
        accumulate(bound, greatest if lower else least, 1 if lower else -1)
        yield multiply(bound, {others: 1}) if others else bound

    def _remainders(self, a: Poly, d: Poly, constant: int) -> tuple[Poly, Poly]:
        """The least and greatest a % d.  For a constant d, what divides both leaves fewer
        remainders.
        """
        if not constant:
            return {}, combine(d, {ONE: -1})
        common = constant
        for monomial, scale in a.items():
            if monomial:
                for factor in monomial:
                    scale *= self.facts.multiples.get(factor, 1)
                common = gcd(common, scale)
        least = a.get(ONE, 0) % common
        return {ONE: least}, {ONE: constant - common + least}

    def _natural(self, expr: Expr) -> bool:
        low = interval(expr, self.facts).lo
        return low is not None and low >= 0

    def _atom_bounds(self, atom: Expr, lower: bool) -> Iterator[Poly]:
        known = self.facts.range_of(atom) if isinstance(atom, (Axis, Var)) else None
        if known is not None:
            yield known.lower if lower else known.upper
        here: Poly = {(atom,): 1}
        poly = self.facts.expander.poly
        match atom:
            case Binary(op=BinaryOp.FLOORDIV) if not lower:
                if self._natural(atom.a) and self._natural(atom.b):
                    yield combine(poly(atom.a), here, -1)
                    yield from self._whole_quotient(atom)
            case Binary(op=BinaryOp.FLOORMOD) if not lower and self._natural(atom.b):
                yield combine(combine(poly(atom.b), here, -1), {ONE: -1})
                if self._natural(atom.a):
                    yield combine(poly(atom.a), here, -1)
            case Binary(op=BinaryOp.MIN) if not lower:
                yield combine(poly(atom.a), here, -1)
                yield combine(poly(atom.b), here, -1)
            case Binary(op=BinaryOp.MAX) if lower:
                yield combine(here, poly(atom.a), -1)
                yield combine(here, poly(atom.b), -1)
            case _:
                pass
        limit = interval(atom, self.facts)
        if lower and limit.lo is not None:
            yield combine(here, {ONE: limit.lo}, -1)
        if not lower and limit.hi is not None:
            yield combine({ONE: limit.hi}, here, -1)
        yield from self.inequalities.get((atom,), ())

    def _whole_quotient(self, atom: Binary) -> Iterator[Poly]:
        """axis // d <= rest - 1 where axis < d * rest, as of a fused loop.

        The range of the axis is not empty, so d is not 0 there.
        """
        dividend, divisor = self.facts.expander.poly(atom.a), self.facts.expander.poly(atom.b)
        if len(dividend) != 1 or len(divisor) != 1:
            return
        ((inner, one),) = dividend.items()
        known = self.facts.range_of(inner[0]) if len(inner) == 1 and one == 1 else None
        if known is None or type(known.min) is not ConstNode or known.min.value != 0:
            return
        ((factors, scale),) = divisor.items()
        rest: Poly = {}
        for monomial, count in self.facts.expander.poly(known.extent).items():
            left = without(monomial, factors)
            if left is None or scale <= 0 or count % scale:
                return
            rest[left] = count // scale
        yield combine(combine(rest, {ONE: -1}), {(atom,): 1}, -1)

    def _least(self, atom: Expr) -> Poly | None:
        """atom - its constant lower bound."""
        low = interval(atom, self.facts).lo
        return None if low is None else combine({(atom,): 1}, {ONE: low}, -1)


def _occurs(atom: Expr, monomial: Monomial) -> bool:
    return any(factor is atom for factor in monomial)


def _alternatives(atom: Expr, scale: int, alone: bool) -> tuple[tuple[Expr, int], ...] | None:
    """The values of a minimum, maximum, choice or absolute value that has to be split into
    cases."""
    match atom:
        case Binary(op=BinaryOp.MIN, a=a, b=b) if scale > 0 or not alone:
            return (a, 1), (b, 1)
        case Binary(op=BinaryOp.MAX, a=a, b=b) if scale < 0 or not alone:
            return (a, 1), (b, 1)
        case Unary(op=UnaryOp.ABS, a=a):
            return (a, 1), (a, -1)
        case _:
            return None


def replace_atom(poly: Poly, atom: Expr, value: Poly) -> Poly:
    """`poly` with `atom` replaced in every monomial."""
    result: Poly = {}
    for monomial, scale in poly.items():
        count = sum(factor is atom for factor in monomial)
        if not count:
            accumulate(result, {monomial: scale})
            continue
        term: Poly = {tuple(x for x in monomial if x is not atom): scale}
        for _ in range(count):
            term = multiply(term, value)
        accumulate(result, term)
    return result
