"""The inverse of an index map: which points of an iteration space read a given element.

The gradient of `A` at `p` sums over all points of the reader's space whose index is `p`.  `solve`
turns `index(points) == p` into values for as many axes as it can, so that what is left to sum over
is small, and into conditions for the rest:

- an axis with a constant factor is solved for: `i + k == p` gives `i = p - k`, `2*i + k == p` gives
  `i = (p - k) // 2` where 2 divides `p - k`; of several axes the one with the most values goes;
- mixed radix digits are taken apart: `4*i + j == p` with j in 0 .. 4 gives `i = p // 4`,
  `j = p % 4`;
- divisions of axes are undone: `i // 4 == p` gives `i = 4*p + t` for a new axis t in 0 .. 4;
- whatever else (`idx[i] == p`, clamped indices) stays as a condition on every point.

Every value that could leave its axis's domain brings the conditions that it does not.  Imports
`index`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd, inf
from typing import NamedTuple

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, AxisKind, Binary, BinaryOp, Const, Expr, Range, Var
from tedsl.expr.visit import axes_of, reads, rewrite, substitute
from tedsl.gradient.divisions import in_chains
from tedsl.index.bounds import lower_bound, upper_bound
from tedsl.index.facts import Facts
from tedsl.index.linear import ONE, Monomial, Poly, without
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify

ZERO = build.const(0)
_FLOOR = {BinaryOp.FLOORDIV, BinaryOp.FLOORMOD}
_TRUNC = {BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD}
_DIVISION = {BinaryOp.FLOORDIV, BinaryOp.TRUNCDIV}


@dataclass(slots=True)
class Solution:
    """`values` of the axes over targets and `rest`, the axes that remain (with their domains).

    `conditions` use no memory and come first; `lookups` read memory.
    """

    values: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])
    rest: tuple[Axis, ...] = ()
    conditions: list[Expr] = field(default_factory=list[Expr])
    lookups: list[Expr] = field(default_factory=list[Expr])


class _Term(NamedTuple):
    """`scale * product(factors) * axis`."""

    axis: Axis
    scale: int
    factors: Monomial


class _Form(NamedTuple):
    """An equation `sum(terms) + rest == 0`; `rest` holds axes only inside what is not affine."""

    terms: tuple[_Term, ...]
    rest: Poly
    blocked: frozenset[Axis]


def domain_of(axis: Axis) -> Range:
    """The domain of an axis of a definition."""
    if axis.domain is None:
        raise InternalError(f"the axis {axis.name} of a definition has no domain")
    return axis.domain


def solve(
    axes: Sequence[Axis],
    equations: Sequence[tuple[Expr, Expr]],
    facts: Facts,
    by_lookup: bool = False,
) -> Solution:
    """Solve `left == right` for `axes`.

    Args:
        axes: the unknowns, each with its domain.
        equations: `left` over the unknowns, `right` over other axes (the targets).
        facts: what holds at every target, also where there are no points.
        by_lookup: whether an axis may get a value that is read from memory (`j = p - offset[i]`).

    Returns:
        Values for some of the axes, fresh reduction axes for the others, and what must hold.
    """
    return _Solver(list(axes), facts, by_lookup).solve(equations)


def nonempty(facts: Facts, extents: Sequence[Expr]) -> Facts:
    """`facts`, and that each of `extents` is at least 1, and so are the sizes whose product it
    is."""
    for extent in extents:
        if isinstance(extent, Const):
            continue
        facts = facts.assume(build.ge(extent, 1))
        poly = facts.expander.poly(extent)
        if len(poly) == 1:
            for atom in next(iter(poly)):
                if isinstance(atom, Var):
                    facts = facts.assume(build.ge(atom, 1))
    return facts


class _Solver:
    """The state of one solution: what is unknown, and the equations left.

    `facts` hold at every target, `inside` at every point of the space: what rests on `inside` needs
    the conditions that there is a point.
    """

    def __init__(self, axes: list[Axis], facts: Facts, by_lookup: bool) -> None:
        self.facts = facts
        self.inside = nonempty(facts, [domain_of(axis).extent for axis in axes])
        self.unknown = axes
        self.by_lookup = by_lookup
        self.values: dict[Expr, Expr] = {}
        self.bounded: list[tuple[Axis, Expr]] = []
        self.equations: list[Expr] = []
        self.residue: list[Expr] = []
        self.parts: list[tuple[Expr, Expr, Axis, Axis]] = []
        self.own: set[Axis] = set()
        self.quotients: set[Axis] = set()

    def solve(self, equations: Sequence[tuple[Expr, Expr]]) -> Solution:
        lefts = in_chains([left for left, _ in equations], self.inside)
        for left, (_, right) in zip(lefts, equations, strict=True):
            self.equations.append(build.sub(rewrite(left, self._part), right))
        while self._step():
            pass
        return self._finish()

    # Divisions

    def _part(self, node: Expr) -> Expr | None:
        """A quotient or remainder of unknown axes as a new unknown."""
        if not isinstance(node, Binary) or node.op not in _FLOOR | _TRUNC or node.dtype.is_float:
            return None
        smaller = simplify(node, self.facts)  # (4*u + t) // 4 is u
        if not isinstance(smaller, Binary) or smaller.op is not node.op:
            return rewrite(smaller, self._part)
        dividend, divisor = smaller.a, smaller.b
        inside = [axis for axis in self.unknown if axis in axes_of(dividend)]
        if not inside or axes_of(divisor) or reads(dividend, divisor):
            return None
        if node.op in _TRUNC and not prove(build.ge(dividend, 0), self.facts):
            return None
        if not prove(build.ge(divisor, 1), self.inside):
            return None
        rep = self.facts.interner.rep
        for known_dividend, known_divisor, quotient, remainder in self.parts:
            if rep(known_dividend) is rep(dividend) and rep(known_divisor) is rep(divisor):
                return quotient if node.op in _DIVISION else remainder
        low = lower_bound(dividend, inside, self.facts)
        high = upper_bound(dividend, inside, self.facts)
        if low is None or high is None:
            return None
        by = self._positive(divisor)
        first, last = build.floordiv(low, by), build.floordiv(high, by)
        count = build.add(build.sub(last, first), 1)
        quotient = self._new(f"{inside[0].name}.out", Range(first, count))
        zero = build.const(0, divisor.dtype)
        remainder = self._new(f"{inside[0].name}.in", Range(zero, divisor))
        self.quotients.add(quotient)
        self.parts.append((dividend, divisor, quotient, remainder))
        whole = build.add(build.mul(quotient, divisor), remainder)
        self.equations.append(build.sub(dividend, whole))
        return quotient if node.op in _DIVISION else remainder

    def _new(self, name: str, domain: Range) -> Axis:
        """An unknown of our own, with a simple domain."""
        low, extent = simplify(domain.min, self.facts), simplify(domain.extent, self.facts)
        dtype = DType.int64 if DType.int64 in (low.dtype, extent.dtype) else DType.int32
        domain = Range(build.cast(low, dtype), build.cast(extent, dtype))
        axis = Axis(name, AxisKind.REDUCE, domain, dtype)
        self.unknown.append(axis)
        self.own.add(axis)
        return axis

    # Elimination

    def _step(self) -> bool:
        """Solve one equation for one axis; False when there is nothing left to solve."""
        forms = sorted(
            ((self._form(each), number) for number, each in enumerate(self.equations)),
            key=lambda item: (len(item[0].terms) + len(item[0].blocked), item[1]),
        )
        for form, number in forms:
            if not form.terms and not form.blocked:
                self.residue.append(self.equations.pop(number))
                return True
            if reads(self.equations[number]) and not self.by_lookup:
                continue
            if self._take_digit(form, number):
                return True
            candidates = [term for term in form.terms if term.axis not in form.blocked]
            candidates = [term for term in candidates if self._is_positive(term.factors)]
            if candidates:
                self._eliminate(max(candidates, key=self._gain), form, number)
                return True
        return False

    def _form(self, equation: Expr) -> _Form:
        """What the unknown axes do in an equation."""
        found: dict[Axis, list[tuple[Monomial, int]]] = {}
        rest: Poly = {}
        blocked: set[Axis] = set()
        unknown = set(self.unknown)
        for monomial, scale in self.facts.expander.poly(simplify(equation, self.facts)).items():
            here = [atom for atom in monomial if isinstance(atom, Axis) and atom in unknown]
            hidden = [a for atom in monomial if atom not in unknown for a in axes_of(atom)]
            hidden = [axis for axis in hidden if axis in unknown]
            if len(here) == 1 and not hidden:
                factors = without(monomial, (here[0],)) or ()
                found.setdefault(here[0], []).append((factors, scale))
                continue
            rest[monomial] = scale
            blocked |= {*here, *hidden}
        terms: list[_Term] = []
        for axis, cofactors in found.items():
            if len(cofactors) > 1:  # such as (n + 1) * i
                blocked.add(axis)
            for factors, scale in cofactors:
                if axis in blocked:
                    rest[(axis, *factors)] = scale
                else:
                    terms.append(_Term(axis, scale, factors))
        return _Form(tuple(terms), rest, frozenset(blocked))

    def _gain(self, term: _Term) -> tuple[float, bool, bool, bool]:
        """How good it is to solve for an axis: the most values first, then data axes, then no
        division."""
        extent = domain_of(term.axis).extent
        count = float(extent.value) if isinstance(extent, Const) else inf
        unit = abs(term.scale) == 1 and not term.factors
        return count, term.axis.kind is AxisKind.DATA, term.axis not in self.own, unit

    def _eliminate(self, term: _Term, form: _Form, number: int) -> None:
        """axis = -(the rest) / factor, where the factor divides it."""
        sign = -1 if term.scale > 0 else 1
        rest = {m: sign * c for m, c in form.rest.items()}
        for other in form.terms:
            if other is not term:
                rest[(other.axis, *other.factors)] = sign * other.scale
        dividend = self._expression(rest)
        divisor = self._positive(self._product(abs(term.scale), term.factors))
        self.equations.pop(number)
        if isinstance(divisor, Const) and divisor.value == 1:
            self._set(term.axis, dividend)
            return
        self.residue.append(build.floormod(dividend, divisor))
        self._set(term.axis, build.floordiv(dividend, divisor))

    def _take_digit(self, form: _Form, number: int) -> bool:
        """The lowest digit of a mixed radix sum, when one of the axes is that."""
        if len(form.terms) < 2 or form.blocked:
            return False
        for term in form.terms:
            others = [other for other in form.terms if other is not term]
            base = min((other.factors for other in others), key=len)
            scale = gcd(*(other.scale for other in others))
            if term.factors or any(without(o.factors, base) is None for o in others):
                continue
            radix, factor = self._product(scale, base), abs(term.scale)
            extent = domain_of(term.axis).extent
            if isinstance(radix, Const) and radix.value == 1:
                continue
            if not prove(build.le(build.mul(extent, factor), radix), self.facts):
                continue
            self.equations.pop(number)
            self._split_off(term, others, form.rest, (radix, scale, base))
            return True
        return False

    def _split_off(
        self, term: _Term, others: list[_Term], rest: Poly, radix: tuple[Expr, int, Monomial]
    ) -> None:
        """sum = radix * high + factor * digit  gives  digit and  high == sum // radix."""
        base, scale, shared = radix
        by = self._positive(base)
        amount = self._expression({m: -c for m, c in rest.items()})
        for each in (term, *others):
            low = domain_of(each.axis).min
            amount = build.sub(amount, build.mul(self._product(each.scale, each.factors), low))
        domain, factor = domain_of(term.axis), abs(term.scale)
        last = build.sub(domain.extent, 1)
        if term.scale < 0:
            amount = build.add(amount, build.mul(last, factor))
        low_part = build.floormod(amount, by)
        digit = build.floordiv(low_part, factor)
        if factor > 1:
            self.residue.append(build.floormod(low_part, factor))
        if term.scale < 0:
            digit = build.sub(last, digit)
        high: Expr = ZERO
        for other in others:
            step = self._product(other.scale // scale, without(other.factors, shared) or ())
            shifted = build.sub(other.axis, domain_of(other.axis).min)
            high = build.add(high, build.mul(step, shifted))
        self.equations.append(build.sub(high, build.floordiv(amount, by)))
        self._set(term.axis, build.add(digit, domain.min))

    def _set(self, axis: Axis, value: Expr) -> None:
        """Give `axis` its value, everywhere."""
        value = build.cast(simplify(value, self.facts), axis.dtype)
        here: dict[Expr, Expr] = {axis: value}
        self.values = {key: substitute(old, here) for key, old in self.values.items()}
        self.values[axis] = value
        self.unknown = [other for other in self.unknown if other is not axis]
        self.equations = [substitute(each, here) for each in self.equations]
        self.residue = [substitute(each, here) for each in self.residue]
        self.bounded = [(each, substitute(old, here)) for each, old in self.bounded]
        if axis not in self.quotients:  # the bounds of a quotient follow from its dividend's
            self.bounded.append((axis, value))

    # Pieces

    def _expression(self, poly: Poly) -> Expr:
        ordered = {tuple(sorted(m, key=id)): c for m, c in poly.items() if c}
        return self.facts.expander.expression(ordered)

    def _product(self, scale: int, factors: Monomial) -> Expr:
        return self._expression({factors or ONE: scale})

    def _is_positive(self, factors: Monomial) -> bool:
        """Whether a product is at least 1 wherever there is a point."""
        return all(prove(build.ge(factor, 1), self.inside) for factor in factors)

    def _positive(self, divisor: Expr) -> Expr:
        """A divisor that is never 0: where it would be, there are no points."""
        if prove(build.ge(divisor, 1), self.facts):
            return divisor
        return build.maximum(divisor, 1)

    def _equal(self, difference: Expr) -> Expr:
        """`difference == 0`, with what is subtracted on the right."""
        poly = self.facts.expander.poly(simplify(difference, self.facts))
        left = self._expression({m: c for m, c in poly.items() if c > 0})
        right = self._expression({m: -c for m, c in poly.items() if c < 0})
        return build.eq(right, left) if isinstance(left, Const) else build.eq(left, right)

    def _finish(self) -> Solution:
        rest: dict[Expr, Axis] = {}
        for axis in self.unknown:
            rest[axis] = Axis(axis.name, AxisKind.REDUCE, axis.domain, axis.dtype)
        values = {key: substitute(value, rest) for key, value in self.values.items()}
        solution = Solution({**values, **rest}, tuple(rest.values()))
        conditions = [self._equal(each) for each in (*self.residue, *self.equations)]
        for axis, value in self.bounded:
            domain = domain_of(axis)
            conditions.append(build.ge(value, domain.min))
            conditions.append(build.lt(value, build.add(domain.min, domain.extent)))
        for condition in conditions:
            final = simplify(substitute(condition, rest), self.facts)
            if isinstance(final, Const) and final.value:
                continue
            (solution.lookups if reads(final) else solution.conditions).append(final)
        return solution
