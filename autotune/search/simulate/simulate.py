"""Searches over recorded spaces without hardware: one run, and figures over many.

Imports the rest of this folder and numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tedsl.autotune.search.portfolio import PRIORS, Search
from tedsl.autotune.search.simulate.recorded_space import RecordedSpace
from tedsl.autotune.search.strategies import NEED_TREES

WITHOUT_TREES = {name: share for name, share in PRIORS.items() if name not in NEED_TREES}
STRATEGIES: dict[str, tuple[Mapping[str, float], int]] = {
    "portfolio": (PRIORS, 1),
    "portfolio three deep": (PRIORS, 3),
    "portfolio without trees": (WITHOUT_TREES, 1),
    "process only": ({"process": 1.0}, 1),
    "trees only": ({"trees": 1.0}, 1),
    "greedy local search": ({"climb": 1.0}, 1),
    "random": ({"uniform": 1.0}, 1),
}
"""What is compared: shares of strategies, and how many batches are under way."""


@dataclass(frozen=True, slots=True)
class Run:
    """Best time over the best of the space after each evaluation, and why the search ended."""

    ratios: tuple[float, ...]
    stopped: str

    def reached(self, factor: float) -> int:
        """Evaluations until within `factor` of the best; one more than made when never."""
        return next((n + 1 for n, r in enumerate(self.ratios) if r <= factor), len(self.ratios) + 1)

    def after(self, count: int) -> float:
        """The ratio after `count` evaluations."""
        return self.ratios[min(count, len(self.ratios)) - 1]


def replay(
    space: RecordedSpace,
    seed: int,
    *,
    strategies: Mapping[str, float] = PRIORS,
    trials: int = 400,
    depth: int = 1,
    least: int = 0,
    target: float = 0.0,
    horizon: float | None = None,
) -> Run:
    """One search; it ends early, after `least` evaluations, once within `target` of the best.

    With a depth of three a batch is told only when two after it have been asked for, as on a GPU.
    """
    describe = space.describe if space.features else None
    search = Search(
        space,
        trials=trials,
        seed=seed,
        depth=depth,
        strategies=strategies,
        describe=describe,
        horizon=horizon,
    )
    ratios: list[float] = []
    best = float("inf")
    waiting = [search.ask() for _ in range(depth)]
    while waiting:
        batch = waiting.pop(0)
        if batch is None:
            continue
        outcomes = [space.outcome(candidate) for candidate in batch.candidates]
        search.tell(batch, outcomes)
        for outcome in outcomes:
            best = min(best, outcome.seconds or float("inf"))
            ratios.append(best / space.best)
        if len(ratios) >= least and ratios[-1] <= target:
            break
        waiting.append(search.ask())
    return Run(tuple(ratios), str(search.stopped))


def figures(runs: Sequence[Run], factor: float = 1.05, within: int = 400) -> dict[str, float]:
    """Median and p90 of the evaluations to `factor`, and the share of runs that got there."""
    counts = [run.reached(factor) for run in runs]
    return {
        "median": float(np.median(counts)),
        "p90": float(np.percentile(counts, 90)),
        "success": float(np.mean([count <= within for count in counts])),
    }
