"""What each decision of the winner is worth, from trials that differ in nothing else.

    worth(knob, other) = time with `other` / time with the winner's choice

over all pairs of measured candidates that agree in every other knob both have.  Imports `outcome`
and `paired_ratios`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, fmean, median, stdev

import numpy as np

from tedsl.autotune.measure.paired_ratios import Ratio, ratio_of
from tedsl.autotune.outcome import Status, Trial
from tedsl.autotune.search_space.space import Candidate, Choice

ALPHA = 0.05
ENOUGH = 3
"""Pairs from which on their spread gives the interval; below, the samples of each do."""
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776}
"""Quantiles for so few pairs that ranks exclude nothing."""
CLEAR = 4.0
"""An interval whose ends are further apart than this factor says nothing."""
MOST = 400
"""Candidates, the fastest, that are compared with one another."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What another choice of one knob costs: the ratio of times, above 1 when it is slower."""

    knob: str
    chosen: Choice
    other: Choice
    ratio: Ratio
    pairs: int

    def __str__(self) -> str:
        low, high = self.ratio.low, self.ratio.high
        interval = " (unclear)"
        if low > 0 and high < CLEAR * low:
            interval = f" ({_percent(low)} to {_percent(high)})"
        many = "1 pair" if self.pairs == 1 else f"{self.pairs} pairs"
        return f"{_percent(self.ratio.middle)} %{interval}, {many}"


def worth_of(trials: Sequence[Trial], winner: Candidate) -> dict[str, list[Worth]]:
    """For each knob of the winner its other choices that were measured, the nearest to it first;
    the knob that decides most comes first.  A knob that was never alone has an empty list."""
    ok = [t for t in trials if t.outcome.status is Status.OK and t.outcome.seconds]
    ok.sort(key=lambda trial: (trial.seconds, trial.number))
    chosen = winner.decisions
    found: dict[str, dict[str, list[tuple[Trial, Trial]]]] = {
        knob.name: {} for knob in winner.knobs if len(knob.choices) > 1
    }
    told = [(trial, _texts(trial.candidate)) for trial in ok[:MOST]]
    own = _texts(winner)
    for (one, a), (two, b) in combinations(told, 2):
        name = _only_difference(a, b)
        if name is None or name not in found:
            continue
        if a[name] == own[name]:
            found[name].setdefault(b[name], []).append((two, one))
        elif b[name] == own[name]:
            found[name].setdefault(a[name], []).append((one, two))
    worth: dict[str, list[Worth]] = {}
    for name, others in found.items():
        rows = [
            Worth(
                name,
                chosen[name],
                pairs[0][0].candidate.decisions[name],
                ratio_of_pairs(pairs),
                len(pairs),
            )
            for pairs in others.values()
        ]
        worth[name] = sorted(rows, key=lambda row: row.ratio.middle)
    return dict(sorted(worth.items(), key=lambda item: -_weight(item[1])))


def ratio_of_pairs(pairs: Sequence[tuple[Trial, Trial]]) -> Ratio:
    """The time of the firsts over that of the seconds, with an interval."""
    if len(pairs) in STUDENT:
        apart = [math.log(a.seconds / b.seconds) for a, b in pairs]
        half = STUDENT[len(apart)] * stdev(apart) / math.sqrt(len(apart))
        middle = median(apart)
        centre = fmean(apart)
        return Ratio(math.exp(centre - half), math.exp(middle), _exp(centre + half))
    if len(pairs) >= ENOUGH:
        return ratio_of([a.seconds for a, _ in pairs], [b.seconds for _, b in pairs], ALPHA)
    each = [unpaired(_samples(a), _samples(b)) for a, b in pairs]
    middle = math.exp(sum(math.log(ratio.middle) for ratio in each) / len(each))
    return Ratio(min(r.low for r in each), middle, max(r.high for r in each))


def unpaired(a: Sequence[float], b: Sequence[float], alpha: float = ALPHA) -> Ratio:
    """The ratio of times that were not taken in turn: the shift of their logarithms that inverting
    the rank sum test gives.  The interval knows the noise within each, not what changed between."""
    one, two = np.log(np.asarray(a)), np.log(np.asarray(b))
    apart = np.sort((one[:, None] - two[None, :]).ravel())
    total = len(apart)
    deviation = math.sqrt(total * (len(one) + len(two) + 1) / 12)
    rank = math.floor(total / 2 - NormalDist().inv_cdf(1 - alpha / 2) * deviation)
    middle = math.exp(float(np.median(apart)))
    if rank < 0:  # so few samples exclude nothing
        return Ratio(0.0, middle, math.inf)
    return Ratio(math.exp(float(apart[rank])), middle, math.exp(float(apart[total - 1 - rank])))


def _only_difference(a: Mapping[str, str], b: Mapping[str, str]) -> str | None:
    """The one knob that two candidates both have and answer differently."""
    found: str | None = None
    for name, value in a.items():
        if b.get(name, value) != value:
            if found is not None:
                return None
            found = name
    return found


def _texts(candidate: Candidate) -> dict[str, str]:
    """Decisions as text, in which true is not 1."""
    return {name: json.dumps(value) for name, value in candidate.decisions.items()}


def _samples(trial: Trial) -> tuple[float, ...]:
    return tuple(s for s in trial.outcome.samples if s > 0) or (trial.seconds,)


def _weight(rows: Sequence[Worth]) -> float:
    """How much a decision matters: what its other choices cost, or gain, in the middle."""
    return median(abs(math.log(row.ratio.middle)) for row in rows) if rows else -1.0


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f}" if abs(ratio - 1) >= 0.0995 else f"{100 * (ratio - 1):+.1f}"
