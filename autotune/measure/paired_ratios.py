"""Is one of two kernels faster?  Intervals of a ratio from paired samples, and when to stop.

    d[i] = log a[i] - log b[i]          samples of one round, taken next to one another

The interval is that of the Hodges-Lehmann estimate: order statistics of the Walsh averages
(d[i] + d[j]) / 2, which is what inverting Wilcoxon's signed-rank test gives.  It asks of the noise
only that it hits both of a pair alike: heavy tails cost width, not truth, and drift cancels.  Where
neighbouring rounds resemble one another it is widened accordingly.

Looking at the data several times would find differences where there are none, so the chance of an
error is spent over `LOOKS`: the intervals of all looks together are wrong with a chance of `ALPHA`
at most.  Imports numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

LOOKS = (16, 32, 64, 128, 256)
"""Numbers of rounds after which a comparison may be decided."""
ALPHA = 0.05
MARGIN = 0.005
"""Kernels closer than this are equal: which address an array got makes as much of a difference."""
FEW = 6
"""Below so many rounds there is no interval of the usual kind."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The time of one kernel over that of another: an estimate, and an interval around it."""

    low: float
    middle: float
    high: float

    @property
    def is_below(self) -> bool:
        """True when the first is faster beyond doubt."""
        return self.high < 1.0 - MARGIN

    @property
    def is_above(self) -> bool:
        """True when the first is slower beyond doubt."""
        return self.low > 1.0 + MARGIN

    @property
    def is_decided(self) -> bool:
        """True when more rounds would not change what is concluded."""
        return self.is_below or self.is_above or self.is_equal

    @property
    def is_equal(self) -> bool:
        """True when the difference is too small to matter, beyond doubt."""
        return self.low >= 1.0 - MARGIN and self.high <= 1.0 + MARGIN

    def __str__(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of(a: Sequence[float], b: Sequence[float], alpha: float = ALPHA / len(LOOKS)) -> Ratio:
    """The ratio of `a` to `b`, which were sampled in turn; surplus samples of one are left out.

    Args:
        a: samples of the first.
        b: samples of the second.
        alpha: the chance of the interval to miss the true ratio.
    """
    count = min(len(a), len(b))
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.log(np.asarray(a[:count])) - np.log(np.asarray(b[:count]))
    apart = apart[np.isfinite(apart)]
    if not len(apart):
        return Ratio(0.0, 1.0, math.inf)
    if len(apart) < FEW:
        return _few(apart)
    averages = _walsh(apart)
    total = len(averages)
    half = NormalDist().inv_cdf(1 - alpha / 2) * _deviation(apart)
    rank = max(0, math.floor(total / 2 - half))
    low, high = averages[rank], averages[total - 1 - rank]
    if total / 2 - half < 0:  # so few rounds do not reach the asked for certainty
        width = averages[-1] - averages[0]
        low, high = low - width, high + width
    middle = float(np.median(averages))
    return Ratio(math.exp(low), math.exp(middle), math.exp(high))


def _few(apart: NDArray[np.float64]) -> Ratio:
    """All that a handful of rounds show, and as much again on either side."""
    low, high = float(apart.min()), float(apart.max())
    width = high - low if len(apart) > 2 else math.inf
    middle = float(np.median(apart))
    return Ratio(math.exp(low - width), math.exp(middle), _exp(high + width))


def _walsh(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The averages of all pairs, each value with itself included, in order."""
    rows, columns = np.triu_indices(len(values))
    return np.sort((values[rows] + values[columns]) / 2)


def _deviation(apart: NDArray[np.float64]) -> float:
    """Standard deviation of the signed-rank statistic, more where rounds resemble their
    neighbours."""
    count = len(apart)
    plain = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return plain * math.sqrt(_inflation(apart))


def _inflation(apart: NDArray[np.float64]) -> float:
    """By how much the variance of a mean grows because neighbours resemble one another; by ranks,
    so that an outlier is no trend."""
    count = len(apart)
    ranks = np.argsort(np.argsort(apart)).astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if not power or count < 16:
        return 1.0
    alike = float(ranks[1:] @ ranks[:-1]) / power + 1 / count
    likely = alike - 1 / math.sqrt(count)  # what chance alone shows is no resemblance
    if likely <= 0:
        return 1.0
    alike = min(alike, 0.9)
    return (1 + alike) / (1 - alike)


def _exp(value: float) -> float:
    return math.inf if value == math.inf else math.exp(value)
