"""What a strategy sees when it proposes: what was tried, what it gave, and models of the rest.

Models are fitted when a strategy first asks for them.  They learn the logarithm of the time; a
candidate that failed counts as a slow one for the regressions and as a bad one for the classifier.
For the process slow times are cut: how slow the slow ones are tells little about the fast.  The
bar lies between the median of the start, which is the space's own, and that of all, which sinks as
the search goes on.  Models know the rows that the catalogue had when the first of them was asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tedsl.autotune.search import boosted_trees
from tedsl.autotune.search.candidate_table import Catalogue, Floats, Ints
from tedsl.autotune.search.gaussian_process import (
    Belief,
    Posterior,
    Scales,
    filled,
    fit_scales,
    keep_fastest,
)

FAILED = 0.7
"""How much slower than the slowest a failure counts, as a logarithm: a factor of two."""
GOOD = 0.1
"""The share of the tried that the classifier calls good."""
START = 16
"""How many trials fill the space before strategies propose."""
LEAST = 5
"""Fewer successes than that teach a model nothing."""
HOPELESS = 4.0
"""What the static model holds for so many times as slow as the fastest known is not proposed while
there is anything else.  Of three recorded spaces nothing within 5% of the best is above 2.9."""


class View:
    """The state of a search at one `ask`.

    Args:
        catalogue: all known candidates.
        tried: rows in the order tried.
        costs: their times in seconds; infinite for failures.
        waiting: rows proposed whose outcome is not known.
        rng: of all random choices.
        scales: of the process, from the last batch.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        tried: Sequence[int],
        costs: Sequence[float],
        waiting: Sequence[int],
        rng: random.Random,
        scales: Scales | None,
    ) -> None:
        self.catalogue = catalogue
        self.tried = np.array(tried, np.int64)
        self.costs = np.array(costs, np.float64)
        self.waiting = list(waiting)
        self.rng = rng
        self.scales = scales
        self.taken = set(tried) | set(waiting)
        self._times = dict(zip(tried, costs, strict=True))
        ranked = np.argsort(self.costs, kind="stable")
        ran = int(np.isfinite(self.costs).sum())
        self.ranked: Ints = self.tried[ranked[:ran]]
        self.can_learn = ran >= LEAST
        self._columns: Floats | None = None
        self._belief: Belief | None = None
        self._committed: set[int] = set()
        self._trees: Floats | None = None
        self._good: Floats | None = None
        self._offsets: Floats | None = None
        self._drawn: list[int] = []

    @property
    def columns(self) -> Floats:
        """The rows that models know."""
        if self._columns is None:
            self._columns = self.catalogue.columns()
        return self._columns

    @property
    def size(self) -> int:
        """How many rows models know."""
        return len(self.columns)

    def cost(self, row: int) -> float:
        """The time of a row; infinite when it is not known or failed."""
        return self._times.get(row, float("inf"))

    def take(self, row: int) -> None:
        """Note a proposal of this batch."""
        self.taken.add(row)
        self.waiting.append(row)

    def promising(self, rows: Sequence[int]) -> list[int]:
        """Those rows that are worth a trial, as far as the static model can say."""
        told = self.catalogue.predicted()
        if not np.isfinite(told).any():
            return list(rows)
        bar = np.nanmin(told) + np.log(HOPELESS)
        return [row for row in rows if not told[row] > bar]

    def draw(self, count: int, ahead: int = 0) -> list[int]:
        """Random rows that are worth a trial; fewer when most are not, or there is no time.

        Args:
            count: how many.
            ahead: how many to draw and look at together, since more are asked for later.
        """
        if len(self._drawn) < count:
            fresh = self.catalogue.several(self.rng, max(count, ahead))
            self._drawn += self.promising([row for row in fresh if row is not None])
        found, self._drawn = self._drawn[:count], self._drawn[count:]
        return found

    def free(self) -> npt.NDArray[np.bool_]:
        """True for the rows not proposed yet."""
        found = np.ones(len(self.catalogue), bool)
        found[list(self.taken)] = False
        return found

    def belief(self) -> Belief:
        """The process over all rows, with what is under way expected."""
        if self._belief is None:
            columns = filled(self.columns)
            values = self.targets(clip=True)
            kept = keep_fastest(values)
            seen, values = columns[self.tried[kept]], values[kept]
            start = self.scales or Scales.start(columns.shape[1])
            self.scales = fit_scales(seen, values, start)
            self._belief = Posterior(seen, values, self.scales).over(columns)
            self._belief.mean += self.offsets()
            self._committed = set()
        for row in self.waiting:
            if row not in self._committed and row < len(self._belief.mean):
                self._committed.add(row)
                self._belief.expect(row)
        return self._belief

    def trees(self) -> Floats:
        """Logarithm of the time of all rows, by boosted trees."""
        if self._trees is None:
            columns = self.columns
            values = self.targets(clip=False)
            self._trees = (
                boosted_trees.regress(columns[self.tried], values, columns) + self.offsets()
            )
        return self._trees

    def good(self) -> Floats:
        """Probability of all rows to be among the best, by boosted trees."""
        if self._good is None:
            columns = self.columns
            bar = np.sort(self.costs)[max(2, int(GOOD * len(self.costs))) - 1]
            good = (self.costs <= bar).astype(np.float64)
            self._good = boosted_trees.classify(columns[self.tried], good, columns)
        return self._good

    def committee(self, rows: Ints) -> Floats:
        """Logarithm of the time of some rows, as all models together see it."""
        mean = self.belief().mean[rows]
        return (mean + self.trees()[rows]) / 2 if boosted_trees.lightgbm() is not None else mean

    def best(self) -> float:
        """Logarithm of the fastest time."""
        return float(np.log(self.costs.min()))

    def targets(self, clip: bool) -> Floats:
        """What models learn: logarithms of times, less what the static model says."""
        values = np.log(self.costs)
        ran = np.isfinite(values)
        values = np.where(ran, values, values[ran].max() + FAILED)
        if clip:
            bar = (np.median(values[:START]) + np.median(values)) / 2
            values = np.minimum(values, bar)
        return values - self.offsets()[self.tried]

    def offsets(self) -> Floats:
        """The part of each row's logarithm that the static model explains.

        The model is trusted as far as a line through the tried points says, at most fully.
        """
        if self._offsets is None:
            told = self.catalogue.predicted()[: self.size]
            self._offsets = np.zeros(len(told))
            known = np.isfinite(told)
            use = known[self.tried] & np.isfinite(self.costs)
            if use.sum() >= LEAST and known.any():
                x, y = told[self.tried[use]], np.log(self.costs[use])
                x, y = x - x.mean(), y - y.mean()
                slope = float(x @ y) / (float(x @ x) + 0.1 * len(x))
                centred = np.where(known, told - told[known].mean(), 0.0)
                self._offsets = min(1.0, max(0.0, slope)) * centred
        return self._offsets
