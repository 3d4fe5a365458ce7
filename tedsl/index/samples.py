"""A few points inside `Facts`, kept with their values.

A claim that fails at one of them needs no search for a proof.
"""

from __future__ import annotations

from zlib import crc32

from tedsl.expr.nodes import Axis, Const, Var
from tedsl.index.evaluate import EvaluationError, Evaluator
from tedsl.index.facts import EVERYTHING, Facts, Interval
from tedsl.index.linear import Poly

SIZES = (1, 2, 5, 37, 64, 1000, 720720)
"""What a variable without range may be at a point, of what is known to divide it; the last has many
divisors, as conditions on remainders may ask for."""
PLACES = (0.0, 0.01, 0.3, 0.6, 0.95, 1.0)
"""Where in its range an axis may be: first to last."""
CORNERS = ((37, 1.0), (37, 0.0), (1, 1.0), (1000, 1.0))
"""Size and place of all variables at the first points; at others each has its own."""
TRIES = 32
"""Points that are looked at, of which those are kept where all conditions hold."""


class _Sample(Evaluator):
    """A point that grows: a variable gets its value when it is first asked for."""

    def __init__(self, facts: Facts, number: int, limits: dict[Axis | Var, Interval]) -> None:
        super().__init__({})
        self.facts, self.number = facts, number
        self.limits = limits  # of variables whose limits are the same at all points

    def variable(self, axis: Axis | Var) -> int:
        """A value inside the facts."""
        limits = self._limits(axis)
        size, place = self._drawn(axis)
        size *= self.facts.multiples.get(axis, 1)
        if limits.lo is None and limits.hi is None:
            return size
        if limits.hi is None:
            return max(limits.lo or 0, size)
        if limits.lo is None:
            return min(limits.hi, size)
        if limits.lo > limits.hi:
            raise EvaluationError(f"{axis.name} has no values at this point")
        return limits.lo + round(place * (limits.hi - limits.lo))

    def _drawn(self, axis: Axis | Var) -> tuple[int, float]:
        if self.number < len(CORNERS):
            return CORNERS[self.number]
        drawn = crc32(f"{self.number} {axis.name}".encode())
        return SIZES[drawn % len(SIZES)], PLACES[drawn // len(SIZES) % len(PLACES)]

    def _limits(self, axis: Axis | Var) -> Interval:
        found = self.limits.get(axis)
        if found is not None:
            return found
        found = self.facts.bounds.get(axis, EVERYTHING)
        if isinstance(axis, Var):
            found = found.meet(Interval(axis.lower, None))
        known = self.facts.range_of(axis)
        if known is not None:
            low = self.value(known.min)
            found = found.meet(Interval(low, low + self.value(known.extent) - 1))
        if known is None or (type(known.min) is Const and type(known.extent) is Const):
            self.limits[axis] = found
        return found

    def valid(self) -> bool:
        """Whether all conditions are known to hold here, the last first: it is the narrowest."""
        truths = reversed(self.facts.truths.items())
        try:
            return all(bool(self.value(condition)) == truth for condition, truth in truths)
        except EvaluationError:
            return False

    def below_zero(self, poly: Poly) -> bool:
        """Whether a polynomial has a value here, and it is negative."""
        try:
            total = 0
            for monomial, scale in poly.items():
                for atom in monomial:
                    scale *= self.value(atom)
                total += scale
        except EvaluationError:
            return False
        return total < 0


class Samples:
    """The points of some facts, looked for as long as no one before refutes what is asked."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.limits: dict[Axis | Var, Interval] = {}
        self.tried = 0
        self.found: list[_Sample] = []

    def refute(self, poly: Poly) -> bool:
        """Whether `poly >= 0` fails at one of them."""
        for place, sample in enumerate(self.found):
            if sample.below_zero(poly):
                # What refutes one claim refutes those like it.
                self.found.insert(0, self.found.pop(place))
                return True
        while self.tried < TRIES:
            sample = _Sample(self.facts, self.tried, self.limits)
            self.tried += 1
            if sample.valid():
                self.found.append(sample)
                if sample.below_zero(poly):
                    return True
        return False


def refuted(poly: Poly, facts: Facts) -> bool:
    """Whether `poly >= 0` fails at one of the samples."""
    if facts.samples is None:
        facts.samples = Samples(facts)
    return isinstance(facts.samples, Samples) and facts.samples.refute(poly)
