"""What is expected of candidates at each of several sizes, and which of them to try next.

    expected   what the static model says, times by how much it is wrong at that size, times by how
               much it is wrong about that candidate where it has been measured elsewhere
    promise    by how much the expected times go below the best at each size, over all sizes

Pure logic on tables of times; imports `space`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tedsl.autotune.search_space.space import Candidate

MARGIN = 0.12
"""By how much, in logarithms, the model may be wrong between two good candidates: one that is
expected to be slower by less than that still promises something."""
MOST = math.log(2.0)
"""The most that counts at one size."""


class Forecast:
    """Predicted and measured times of candidates, by key and by place of the size.

    Args:
        weights: of the sizes.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = tuple(weights)
        self.predicted: dict[str, tuple[float, ...]] = {}
        self.measured: list[dict[str, float]] = [{} for _ in weights]
        self.promised: dict[str, None] = {}
        """Those that were chosen; what they promise need not be promised again."""

    def add(self, key: str, seconds: Sequence[float]) -> None:
        """What the model says of a candidate, infinite where it says nothing."""
        if all(math.isfinite(each) and each > 0 for each in seconds):
            self.predicted[key] = tuple(seconds)

    def learn(self, key: str, place: int, seconds: float) -> None:
        """A candidate took so long at a size."""
        self.measured[place][key] = seconds

    def forget(self, key: str) -> None:
        """A candidate turned out to be wrong: what it took is worth nothing."""
        self.promised.pop(key, None)
        for times in self.measured:
            times.pop(key, None)

    def knows(self, key: str) -> bool:
        """Whether the model has said anything of a candidate."""
        return key in self.predicted

    def score(self, key: str, power: float) -> float:
        """A predicted time that stands for all sizes: the power mean of slowdowns against the best
        predicted, in seconds; infinite where nothing is predicted."""
        if key not in self.predicted:
            return math.inf
        least = self._least()
        total = sum(
            weight * (own / best) ** -power
            for weight, own, best in zip(self.weights, self.predicted[key], least, strict=True)
        )
        return statistics.geometric_mean(least) * total ** (-1 / power)

    def most_promising(self, key: str, count: int) -> list[int]:
        """The sizes at which a candidate is expected to be nearest to the best; none where nothing
        is predicted."""
        if key not in self.predicted:
            return []
        factors, aims = self._factors(), self._aims()
        ratios = [
            factor * own / aim
            for factor, own, aim in zip(factors, self.predicted[key], aims, strict=True)
        ]
        return sorted(range(len(ratios)), key=lambda place: (round(ratios[place], 9), place))[
            :count
        ]

    def is_near(self, key: str, place: int, factor: float) -> bool:
        """Whether a candidate is expected to take at most so many times the best at a size."""
        return self.expected(key)[place] <= factor * self._aims()[place]

    def expected(self, key: str) -> list[float]:
        """The time of a candidate at each size, as measured or else as is expected; infinite where
        nothing is."""
        known = [times.get(key, math.inf) for times in self.measured]
        if key not in self.predicted:
            return known
        factors = self._factors()
        own = self._own(key, factors)
        rows = zip(known, self.predicted[key], factors, strict=True)
        return [
            seconds if math.isfinite(seconds) else told * factor * own
            for seconds, told, factor in rows
        ]

    def centres(self, candidates: Sequence[Candidate]) -> list[int]:
        """Positions of the candidates that are expected to be the fastest at some size."""
        expected = {
            place: self.expected(candidate.key)
            for place, candidate in enumerate(candidates)
            if candidate.key in self.predicted
        }
        best = (min(expected, key=lambda p: (expected[p][n], p)) for n in range(len(self.weights)))
        return list(dict.fromkeys(best)) if expected else []

    def choose(self, candidates: Sequence[Candidate], count: int) -> list[int]:
        """Positions of the candidates that promise most together, at most so many."""
        keys = [candidate.key for candidate in candidates]
        if not self.predicted:
            return []
        factors, aims = self._factors(), self._aims()
        for place, times in enumerate(self.measured):
            aims[place] *= 1.0 if times else math.exp(MOST)  # there anything is welcome
        for key in self.promised:
            if not any(key in times for times in self.measured):
                self._take(key, factors, aims)
        found: list[int] = []
        left = [place for place, key in enumerate(keys) if key in self.predicted]
        while left and len(found) < count:
            place = max(left, key=lambda p: (self._promise(keys[p], factors, aims), -p))
            if self._promise(keys[place], factors, aims) <= 0:
                break
            left.remove(place)
            found.append(place)
            self.promised[keys[place]] = None
            self._take(keys[place], factors, aims)
        return found

    def _promise(self, key: str, factors: Sequence[float], aims: Sequence[float]) -> float:
        """By how much, over all sizes, a candidate is expected to go below what is aimed at."""
        total = 0.0
        rows = zip(self.weights, self.predicted[key], factors, aims, strict=True)
        for weight, own, factor, aim in rows:
            gain = math.log(aim / (own * factor)) + MARGIN
            total += weight * min(MOST, max(0.0, gain))
        return total

    def _take(self, key: str, factors: Sequence[float], aims: list[float]) -> None:
        """Aim at what a candidate promises: others that are no better promise less then."""
        for place, (own, factor) in enumerate(zip(self.predicted[key], factors, strict=True)):
            aims[place] = min(aims[place], own * factor)

    def _least(self) -> list[float]:
        """The least predicted at each size."""
        return [min(column) for column in zip(*self.predicted.values(), strict=True)]

    def _factors(self) -> list[float]:
        """By how much the model is wrong at each size, as far as is known."""
        known = self.predicted
        found = [
            [seconds / known[key][place] for key, seconds in times.items() if key in known]
            for place, times in enumerate(self.measured)
        ]
        everywhere = [each for ratios in found for each in ratios]
        usual = statistics.median(everywhere) if everywhere else 1.0
        return [statistics.median(ratios) if ratios else usual for ratios in found]

    def _own(self, key: str, factors: Sequence[float]) -> float:
        """By how much it is wrong about a candidate besides."""
        ratios = [
            times[key] / (self.predicted[key][place] * factors[place])
            for place, times in enumerate(self.measured)
            if key in times
        ]
        return statistics.median(ratios) if ratios else 1.0

    def _aims(self) -> list[float]:
        """The best measured at each size; where nothing is measured, what is best predicted there,
        with room for everything that is near."""
        factors, least = self._factors(), self._least()
        return [
            min(times.values(), default=least[place] * factors[place])
            for place, times in enumerate(self.measured)
        ]
