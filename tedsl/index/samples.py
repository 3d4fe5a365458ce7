"""A few points inside `Facts`, kept with their values.

A claim that fails at one of them needs no search for a proof.
"""

from __future__ import annotations

from tedsl.expr.nodes import Axis, Var
from tedsl.index.evaluate import EvaluationError, Evaluator
from tedsl.index.facts import EVERYTHING, Facts, Interval
from tedsl.index.linear import Poly

# Of each sample: the size that variables without range get, and where in its range an axis is:
# 0 first, 1 last, 2 one or the other by its name.
_SAMPLES = ((37, 1), (37, 0), (5, 2), (1, 1), (64, 2), (1000, 1))


class _Sample(Evaluator):
    """A point that grows: a variable gets its value when it is first asked for."""

    def __init__(self, facts: Facts, size: int, place: int) -> None:
        super().__init__({})
        self.facts, self.size, self.place = facts, size, place

    def variable(self, axis: Axis | Var) -> int:
        """A value inside the facts."""
        limits = self._limits(axis)
        if limits.lo is None and limits.hi is None:
            return self.size
        if limits.hi is None:
            return max(limits.lo or 0, self.size)
        if limits.lo is None:
            return min(limits.hi, self.size)
        if limits.lo > limits.hi:
            raise EvaluationError(f"{axis.name} has no values at this point")
        last = sum(axis.name.encode()) % 2 if self.place == 2 else self.place
        return limits.hi if last else limits.lo

    def _limits(self, axis: Axis | Var) -> Interval:
        found = self.facts.bounds.get(axis, EVERYTHING)
        if isinstance(axis, Var):
            found = found.meet(Interval(axis.lower, None))
        known = self.facts.range_of(axis)
        if known is None:
            return found
        low = self.value(known.min)
        return found.meet(Interval(low, low + self.value(known.extent) - 1))

    def valid(self) -> bool:
        """Whether all conditions are known to hold here."""
        try:
            return all(bool(self.value(cond)) == truth for cond, truth in self.facts.truths.items())
        except EvaluationError:
            return False

    def evaluate(self, poly: Poly) -> int | None:
        """The value of a polynomial; None when it has none here."""
        try:
            total = 0
            for monomial, scale in poly.items():
                for atom in monomial:
                    scale *= self.value(atom)
                total += scale
        except EvaluationError:
            return None
        return total


def refuted(poly: Poly, facts: Facts) -> bool:
    """Whether `poly >= 0` fails at one of the samples."""
    if facts.samples is None:
        made = [_Sample(facts, size, place) for size, place in _SAMPLES]
        facts.samples = [sample for sample in made if sample.valid()]
    for sample in facts.samples:
        if isinstance(sample, _Sample):
            value = sample.evaluate(poly)
            if value is not None and value < 0:
                return True
    return False
