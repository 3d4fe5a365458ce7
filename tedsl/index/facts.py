"""What is known about variables: ranges of axes, lower bounds of sizes, conditions that hold.

`Facts` is an immutable context; `with_axis` and `assume` return a larger one.  Facts derived from
one another share the structural identities of expressions, and each keeps what was already
concluded from it, so deriving from a common ancestor is cheaper than starting from `Facts.of`
again.  Imports `expr` and `index.intern`, `index.linear`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, lcm
from typing import ClassVar, NamedTuple

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.index.intern import INDEX_DTYPES, Interner
from tedsl.index.linear import ONE, Expander, Monomial, Poly, combine

Size = int | Expr

INVERSE = {
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
    CompareOp.LT: CompareOp.GE,
    CompareOp.GE: CompareOp.LT,
    CompareOp.LE: CompareOp.GT,
    CompareOp.GT: CompareOp.LE,
}


class Interval(NamedTuple):
    """The integers `lo .. hi`, both included; None is no bound on that side."""

    lo: int | None
    hi: int | None

    def contains(self, value: int) -> bool:
        """Whether `value` is inside."""
        return (self.lo is None or self.lo <= value) and (self.hi is None or value <= self.hi)

    def meet(self, other: Interval) -> Interval:
        """The values in both."""
        lo, hi = self
        if other.lo is not None and (lo is None or other.lo > lo):
            lo = other.lo
        if other.hi is not None and (hi is None or other.hi < hi):
            hi = other.hi
        return Interval(lo, hi)

    def join(self, other: Interval) -> Interval:
        """The smallest interval around both."""
        lo = None if self.lo is None or other.lo is None else min(self.lo, other.lo)
        hi = None if self.hi is None or other.hi is None else max(self.hi, other.hi)
        return Interval(lo, hi)


EVERYTHING = Interval(None, None)


class AxisRange(NamedTuple):
    """`min .. min + extent`, half open; and the inequalities `axis - min >= 0`, `min + extent - 1
    - axis >= 0`.
    """

    min: Expr
    extent: Expr
    lower: Poly
    upper: Poly


class Facts:
    """Ranges and conditions that hold.  Immutable: the dictionaries are never changed after
    construction.

    `bounds` are constant bounds of atoms that follow from conditions, `inequalities` the
    conditions themselves as `poly >= 0` by the monomials in them, `truths` conditions known to be
    true or false, `multiples` known divisors. The remaining fields are memory of conclusions,
    filled by the modules that draw them.
    """

    __slots__ = (
        "_assumed",
        "bounds",
        "decided",
        "expander",
        "inequalities",
        "interner",
        "intervals",
        "linears",
        "multiples",
        "ranges",
        "samples",
        "simplified",
        "truths",
    )
    EMPTY: ClassVar[Facts]

    def __init__(self, parent: Facts | None = None) -> None:
        self.interner = parent.interner if parent else Interner()
        self.expander = parent.expander if parent else Expander(self.interner)
        self.ranges: dict[Expr, AxisRange] = dict(parent.ranges) if parent else {}
        self.bounds: dict[Expr, Interval] = dict(parent.bounds) if parent else {}
        self.inequalities: dict[Monomial, tuple[Poly, ...]] = (
            dict(parent.inequalities) if parent else {}
        )
        self.truths: dict[Expr, bool] = dict(parent.truths) if parent else {}
        self.multiples: dict[Expr, int] = dict(parent.multiples) if parent else {}
        self._assumed: dict[Expr, Facts] = {}
        self.intervals: dict[Expr, Interval] = {}
        self.simplified: dict[Expr, Expr] = {}
        self.linears: dict[Expr, object] = {}
        self.samples: object = None
        self.decided: dict[frozenset[tuple[Monomial, int]], bool] = {}

    @staticmethod
    def of(ranges: Mapping[Axis, tuple[Size, Size]] | Mapping[Expr, tuple[Size, Size]]) -> Facts:
        """The facts `min <= axis < min + extent` for every entry (min, extent)."""
        facts = Facts()
        for axis, (low, extent) in ranges.items():
            facts._add_range(axis, low, extent)
        return facts

    def own(self) -> Facts:
        """These facts; for the shared `EMPTY`, new ones, so that nothing is remembered for ever."""
        return Facts() if self is Facts.EMPTY else self

    def with_axis(self, axis: Axis | Var, min: Size, extent: Size) -> Facts:
        """These facts and `min <= axis < min + extent`, which replaces an earlier range of the
        axis.
        """
        facts = Facts(None if self is Facts.EMPTY else self)
        facts._add_range(axis, min, extent)
        return facts

    def assume(self, cond: Expr) -> Facts:
        """These facts and that `cond` (a bool) holds.  A conjunction is taken apart."""
        if self is Facts.EMPTY:
            return Facts().assume(cond)
        key = self.interner.rep(cond)
        known = self._assumed.get(key)
        if known is None:
            known = Facts(self)
            known._add_condition(cond, True)
            self._assumed[key] = known
        return known

    def range_of(self, axis: Expr) -> AxisRange | None:
        """The range of an axis: its entry, else its own domain."""
        known = self.ranges.get(axis)
        if known is None and type(axis) is Axis and axis.domain is not None:
            known = self._make_range(axis, axis.domain.min, axis.domain.extent)
            self.ranges[axis] = known  # a memo of what `domain` says, not a new fact
        return known

    def _make_range(self, axis: Expr, low: Size, extent: Size) -> AxisRange:
        low = self.interner.const(low, axis.dtype) if isinstance(low, int) else low
        extent = self.interner.const(extent, axis.dtype) if isinstance(extent, int) else extent
        here: Poly = {(self.interner.rep(axis),): 1}
        base = self.expander.poly(low)
        top = combine(combine(base, self.expander.poly(extent)), {ONE: -1})
        return AxisRange(low, extent, combine(here, base, -1), combine(top, here, -1))

    def _add_range(self, axis: Expr, low: Size, extent: Size) -> None:
        self.ranges[axis] = self._make_range(axis, low, extent)

    # Conditions

    def _add_condition(self, cond: Expr, holds: bool) -> None:
        """Record `cond` being true (`holds`) or false."""
        match cond:
            case Binary(op=BinaryOp.AND, dtype=DType.bool) if holds:
                self._add_condition(cond.a, True)
                self._add_condition(cond.b, True)
            case Binary(op=BinaryOp.OR, dtype=DType.bool) if not holds:
                self._add_condition(cond.a, False)
                self._add_condition(cond.b, False)
            case Unary(op=UnaryOp.NOT, dtype=DType.bool):
                self._add_condition(cond.a, not holds)
            case Compare():
                self._add_comparison(cond, holds)
            case _:
                self._add_truth(cond, holds)

    def _add_truth(self, cond: Expr, holds: bool) -> None:
        self.truths[self.interner.rep(cond)] = holds

    def _add_comparison(self, cond: Compare, holds: bool) -> None:
        self._add_truth(cond, holds)
        if not cond.a.dtype.is_float:
            self._add_truth(self.interner.compare(INVERSE[cond.op], cond.a, cond.b), not holds)
        if cond.a.dtype not in INDEX_DTYPES:
            return
        op = cond.op if holds else INVERSE[cond.op]
        difference = combine(self.expander.poly(cond.b), self.expander.poly(cond.a), -1)
        for poly in inequalities_of(op, difference):
            self._add_inequality(poly)
        if op is CompareOp.EQ:
            self._add_multiple(difference)

    def _add_inequality(self, poly: Poly) -> None:
        poly = tighten(poly)
        monomials = [m for m in poly if m]
        for monomial in monomials:
            if len(monomial) == 1 and self._tighten_atom(monomial[0], poly):
                for other in self.inequalities.get(monomial, ()):  # one step further
                    for atom, *rest in filter(None, other):
                        if not rest and atom is not monomial[0]:
                            self._tighten_atom(atom, other)
        if len(monomials) > 1 or any(len(m) > 1 for m in monomials):
            for monomial in monomials:
                self.inequalities[monomial] = (*self.inequalities.get(monomial, ()), poly)

    def _tighten_atom(self, atom: Expr, poly: Poly) -> bool:
        """A constant bound of `atom` from `poly >= 0`, when all else in it has constant bounds."""
        scale = poly[(atom,)]
        top = poly.get(ONE, 0)  # scale * atom + top >= 0 with top the greatest value of the rest
        for monomial, coefficient in poly.items():
            if not monomial or (len(monomial) == 1 and monomial[0] is atom):
                continue
            bound = self._simple_bound(monomial, coefficient > 0)
            if bound is None:
                return False
            top += coefficient * bound
        found = Interval(-(top // scale), None) if scale > 0 else Interval(None, top // -scale)
        old = self.bounds.get(atom, EVERYTHING)
        self.bounds[atom] = found.meet(old)
        return self.bounds[atom] != old

    def _simple_bound(self, monomial: Monomial, highest: bool) -> int | None:
        """A constant bound of a single variable, known without any reasoning."""
        (atom, *others) = monomial
        if others:
            return None
        result = self.bounds.get(atom, EVERYTHING)
        if isinstance(atom, Var):
            result = result.meet(Interval(atom.lower, None))
        known = self.range_of(atom)
        if known is not None and type(known.min) is Const:
            low = int(known.min.value)
            high = None
            if type(known.extent) is Const:
                high = low + int(known.extent.value) - 1
            result = result.meet(Interval(low, high))
        return result.hi if highest else result.lo

    def _add_multiple(self, difference: Poly) -> None:
        """`x % c == 0` makes `x` a multiple of c."""
        if len(difference) != 1:
            return
        ((monomial, _),) = difference.items()
        match monomial:
            case (Binary(op=BinaryOp.FLOORMOD, a=a, b=Const(value=int(c))),) if c > 0:
                atoms = self.expander.poly(a)
                if len(atoms) == 1:
                    ((inner, scale),) = atoms.items()
                    if len(inner) == 1 and scale:
                        factor = c // gcd(c, scale)
                        old = self.multiples.get(inner[0], 1)
                        self.multiples[inner[0]] = lcm(old, factor)
            case _:
                return


def inequalities_of(op: CompareOp, difference: Poly) -> tuple[Poly, ...]:
    """`a op b` as polynomials that are all >= 0, for `difference` = b - a.  None for NE."""
    match op:
        case CompareOp.LT:
            return (combine(difference, {ONE: -1}),)
        case CompareOp.LE:
            return (difference,)
        case CompareOp.GT:
            return (combine({ONE: -1}, difference, -1),)
        case CompareOp.GE:
            return (combine({}, difference, -1),)
        case CompareOp.EQ:
            return difference, combine({}, difference, -1)
        case CompareOp.NE:
            return ()


def tighten(poly: Poly) -> Poly:
    """An equivalent of `poly >= 0` over the integers, divided by the common factor of its
    coefficients.
    """
    divisor = 0
    for monomial, coefficient in poly.items():
        if monomial:
            divisor = gcd(divisor, coefficient)
            if divisor == 1:
                return poly
    if divisor < 2:
        return poly
    result = {m: c // divisor for m, c in poly.items() if m}
    constant = poly.get(ONE, 0) // divisor
    if constant:
        result[ONE] = constant
    return result


Facts.EMPTY = Facts()
