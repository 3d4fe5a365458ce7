"""The strategies of the portfolio: each looks at a view and names rows that are worth a trial.

Global and with a model: `process` (expected gain of a Gaussian process), `trees` (boosted
regression), `classes` (likely among the best tenth, and unlike the others of the batch).  Local:
`near` (changes of one or two knobs around the fastest few, ranked by the models), `climb` (greedy
iterated local search without a model).  `evolve` mutates and crosses the fastest; `far` fills
space and `uniform` draws blindly.
A strategy may return a row that is taken already, or None; the portfolio asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tedsl.autotune.search import boosted_trees
from tedsl.autotune.search.candidate_table import CENTRES, Floats
from tedsl.autotune.search.observations import View

Strategy: TypeAlias = Callable[[View], int | None]

ELITE = 8
"""How many of the fastest become parents."""
DRAWS = 6
"""How many random candidates `far` chooses from."""
RECENT = 256
KICK = 3
"""How many random changes leave a local optimum."""


def process(view: View) -> int | None:
    """The row that is expected to beat the best by most."""
    if not view.can_learn:
        return None
    return top(view.belief().gain(view.best()), view)


def trees(view: View) -> int | None:
    """The row that boosted regression holds for the fastest."""
    if not view.can_learn or boosted_trees.lightgbm() is None:
        return None
    return top(-view.trees(), view)


def classes(view: View) -> int | None:
    """A row likely to be among the best, and unlike what is under way."""
    if not view.can_learn or boosted_trees.lightgbm() is None:
        return None
    chance = view.good()
    columns = view.columns
    for row in [row for row in view.waiting[-ELITE:] if row < view.size]:
        alike = np.nanmean(np.abs(columns - columns[row]) < 1e-9, axis=1)
        chance = chance * (1.0 - 0.5 * alike**2)
    return top(chance, view)


def near(view: View) -> int | None:
    """Of all changes of one or two knobs of the fastest few, the one ranked first by the models."""
    if not view.can_learn:
        return None
    around = {row for centre in view.ranked[:CENTRES] for row in view.catalogue.wide(int(centre))}
    rows = np.array(sorted(r for r in around - view.taken if r < view.size), np.int64)
    if not len(rows):
        return None
    return int(rows[np.argmin(np.round(view.committee(rows), 9))])


def evolve(view: View) -> int | None:
    """A mutation of one of the fastest, or a mixture of two."""
    if not len(view.ranked):
        return None
    elite = [int(row) for row in view.ranked[:ELITE]]
    parent = elite[min(view.rng.randrange(len(elite)), view.rng.randrange(len(elite)))]
    if len(elite) > 1 and view.rng.random() < 0.3:
        other = view.rng.choice([row for row in elite if row != parent])
        return view.catalogue.cross(parent, other, view.rng)
    child = view.catalogue.vary(parent, view.rng)
    if child is not None and view.rng.random() < 0.35:
        return view.catalogue.vary(child, view.rng)
    return child


def far(view: View, picks: int = 1) -> int | None:
    """Of a few random rows, the one that differs most from all tried; with `picks` to come."""
    ahead = view.catalogue.pool(picks * DRAWS)
    rows = [row for row in view.draw(DRAWS, ahead) if row not in view.taken]
    if not rows:
        return None
    known = [*view.tried[-RECENT:].tolist(), *view.waiting]
    apart = [view.catalogue.unlike(row, known) for row in rows]
    return rows[int(np.argmax(apart))]


def uniform(view: View) -> int | None:
    """A random row."""
    return view.catalogue.draw(view.rng)


class Climb:
    """Greedy iterated local search: on to a faster neighbour, and a kick where there is none."""

    def __init__(self) -> None:
        self.centre: int | None = None
        self.line: list[int] = []

    def __call__(self, view: View) -> int | None:
        if not len(view.ranked):
            return None
        if self.centre is None:
            self.centre = int(view.ranked[0])
        faster = min(self.line, key=view.cost, default=self.centre)
        if view.cost(faster) < view.cost(self.centre):
            self.centre, self.line = faster, []
        fresh = [row for row in view.catalogue.near(self.centre) if row not in view.taken]
        if fresh:
            row = fresh[view.rng.randrange(min(len(fresh), ELITE))]
            self.line.append(row)
            return row
        kicked: int | None = int(view.ranked[0])
        for _ in range(KICK):
            kicked = view.catalogue.vary(kicked, view.rng) if kicked is not None else None
        if kicked is not None and kicked not in view.taken:
            self.centre, self.line = kicked, [kicked]
        return kicked


def top(score: Floats, view: View) -> int | None:
    """The free row of the highest score; of equal ones the first."""
    free = view.free()[: len(score)]
    if not free.any():
        return None
    # rounded, so that the last bits, which depend on the machine, decide nothing
    return int(np.argmax(np.where(free, np.round(score, 9), -np.inf)))


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "process": lambda: process,
    "trees": lambda: trees,
    "classes": lambda: classes,
    "near": lambda: near,
    "climb": Climb,
    "evolve": lambda: evolve,
    "far": lambda: far,
    "uniform": lambda: uniform,
}
"""What makes each strategy; some keep a state, so every search has its own."""
NEED_TREES = frozenset({"trees", "classes"})
