"""The search: default, earlier winners, space-filling points, then a bandit over strategies.

`ask` proposes a batch, `tell` learns from it, and up to `depth` batches may be under way.  What is
proposed in batch k follows from the seed and from the outcomes of batches up to k - depth, whatever
else is known by then.  Imports the rest of this folder, `outcome` and `space`.
"""

from __future__ import annotations

import random
import time
from bisect import insort
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tedsl.autotune.outcome import Outcome, Status, Trial
from tedsl.autotune.search.bandit import Bandit
from tedsl.autotune.search.blas_threads import one_thread
from tedsl.autotune.search.boosted_trees import installed
from tedsl.autotune.search.budget import Stop, cost_of
from tedsl.autotune.search.candidate_table import (
    CENTRES,
    NEAR_MOST,
    Describe,
    SearchSpace,
    catalogue_of,
)
from tedsl.autotune.search.gaussian_process import Scales
from tedsl.autotune.search.observations import START, View
from tedsl.autotune.search.strategies import ELITE, NEED_TREES, STRATEGIES, far
from tedsl.autotune.search_space.space import Candidate, Decisions, Rejected
from tedsl.errors import InternalError

MAX_BATCH = 8
UNDER_WAY = 18
"""How many candidates may be under way at once, of which nothing has been learnt yet."""
CHOSEN_FROM = 200
"""Candidates of which the model chooses one where nothing is measured."""
CLEARLY = 1.1
"""Times as fast as the default that its choice has to be."""
WARM = 4
"""How many winners of similar problems are tried first."""
NEAR = 1.02
"""Within this factor of the floor a search is over."""
PATIENCE = 2
"""How many batches in a row must promise less than they cost."""
SEEDS = 3
"""The part of the trials that a search of many sizes begins with: what is predicted for each."""
CLIMBS = 2
"""How often it looks around what is predicted to be best before it begins with that."""
MISSES = 40
"""Fruitless proposals in a row before what is left is taken in order."""
KNOWN, FAR, LIKED = "known", "far", "liked"
"""Parts of the start: the default and earlier winners, points that fill the space, and what the
static model holds for fast."""

PRIORS: Mapping[str, float] = {
    "process": 0.5,
    "near": 0.15,
    "trees": 0.1,
    "classes": 0.08,
    "evolve": 0.05,
    "climb": 0.05,
    "far": 0.07,
}
"""The strategies of the portfolio and their shares while none is better than another."""


class Guide(Protocol):
    """What a search that wants several things is told of candidates, by their positions."""

    def choose(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Those that should be tried next, at most so many."""
        ...

    def centres(self, candidates: Sequence[Candidate]) -> Sequence[int]:
        """Those that are best in anything, around which others are to be looked at."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Candidates to be tried together.

    Attributes:
        number: of the batch, from 0 in the order of asking.
        first: number of the trial of its first candidate; the others follow.
        rows: where the search keeps the candidates.
        arms: the strategy that proposed each; empty for those of the start.
    """

    number: int
    first: int
    candidates: tuple[Candidate, ...]
    rows: tuple[int, ...] = ()
    arms: tuple[str, ...] = ()


class Search:
    """Proposes candidates of a space in batches.

    Args:
        space: where candidates come from.
        trials: how many candidates may be proposed in all (illegal ones are not counted).
        seed: of every random choice.
        warm: decisions of earlier winners, tried right after the default; the first four are used.
        depth: how many batches may be under way at once.
        floor: seconds that no candidate can go below; coming near it ends the search.
        horizon: how many seconds the kernel is going to run in all.  A batch that is expected to
            save less of that than its trials take ends the search; None leaves that rule out.
        describe: features of candidates for the models.
        guide: says what to try, where a search wants more than one thing; half of what is proposed
            is left to it.
        strategies: those of the portfolio and their shares.

    Attributes:
        done: all trials told of, in the order proposed.
        stopped: why the last `ask` gave nothing; None while the search goes on.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        trials: int,
        seed: int,
        warm: Sequence[Decisions] = (),
        depth: int = 1,
        floor: float | None = None,
        horizon: float | None = None,
        describe: Describe | None = None,
        guide: Guide | None = None,
        strategies: Mapping[str, float] = PRIORS,
    ) -> None:
        self.space = space
        self.trials = trials
        self.rng = random.Random(seed)
        self.batch = max(1, min(MAX_BATCH, UNDER_WAY // depth, trials // 8))
        self.depth = depth
        self.floor = floor
        self.horizon = horizon
        self.guide = guide
        self._climbed: set[int] = set()
        self.done: list[Trial] = []
        self.stopped: Stop | None = None
        self.catalogue = catalogue_of(space, describe)
        able = [a for a in strategies.items() if a[0] not in NEED_TREES or installed()]
        self.bandit = Bandit(able)
        self._strategies = {name: STRATEGIES[name]() for name, _ in able}
        self._warm = list(warm)[:WARM]
        self._under_way: list[Batch] = []
        self._told: list[tuple[Batch, list[Outcome | None]]] = []
        self._learnt: list[tuple[int, Outcome]] = []
        self._scales: Scales | None = None
        self._starts = deque(_starts(depth, describes=describe is not None))
        self._seen: set[int] = set()
        self._asked: int = 0
        self._proposed: int = 0
        self._batches_learnt = 0
        self._poor = 0

    @property
    def asked(self) -> int:
        """How many batches there have been."""
        return self._asked

    @property
    def exhausted(self) -> bool:
        """True when everything legal has been proposed."""
        return self.stopped is Stop.EXHAUSTED

    @property
    def rejected(self) -> list[Rejected]:
        """Decisions that were drawn and are not legal, each once."""
        return self.catalogue.rejected

    @property
    def best(self) -> Trial | None:
        """The fastest trial so far; of equal ones the earlier."""
        ranked = self.ranking()
        return ranked[0] if ranked else None

    def ranking(self) -> list[Trial]:
        """Trials that ran correctly, fastest first; of equal ones the earlier first."""
        ok = [trial for trial in self.done if trial.outcome.status is Status.OK]
        return sorted(ok, key=lambda trial: (trial.seconds, trial.number))

    def first_choice(self, count: int = CHOSEN_FROM) -> Candidate:
        """What to take when nothing may be measured: of so many, what the static model holds for
        fastest.

        The default, where no candidate has a predicted time, or none is held for clearly faster:
        the model is not exact.
        """
        default = self.catalogue.add(self.space.default())
        count = self.catalogue.pool(count)
        while len(self.catalogue) < count:
            before = len(self.catalogue)
            self.catalogue.grow([], self.rng, count - before)
            if len(self.catalogue) == before:
                break
        if default is None or len(self.catalogue) == 1:
            return self.space.default()
        told = self.catalogue.predicted()
        if not np.isfinite(told).any():
            return self.space.default()
        row = int(np.nanargmin(np.round(told, 6)))
        if told[row] > told[default] - np.log(CLEARLY):
            return self.space.default()
        return self.catalogue.candidate(row, "predicted")

    def ask(self, until: float | None = None) -> Batch | None:
        """The next batch; None, for good, when the search is over (`stopped` says why).

        Args:
            until: when to have thought enough, on the clock of `time.monotonic`; the batch is what
                has been found by then, and may be small.
        """
        if len(self._under_way) >= self.depth:
            raise InternalError(f"more than {self.depth} batches under way")
        if self.stopped is not None:
            return None
        self._learn()
        room = self.trials - self._proposed
        self.stopped = self._over(room)
        if self.stopped is not None:
            return None
        begin, self.catalogue.until = time.monotonic(), until
        with one_thread():
            picks: list[tuple[int, str, Candidate]] = []
            while self._starts and not picks:
                picks = self._first(self._starts.popleft(), room, begin)
            if not picks:
                picks = self._fill(min(self.batch, room), begin)
        late, self.catalogue.until = self.catalogue.is_late, None
        if self.stopped is None and not picks:
            self.stopped = Stop.TIME if late else Stop.EXHAUSTED
        if self.stopped is not None:
            return None
        batch = Batch(
            self._asked,
            self._proposed,
            tuple(candidate for _, _, candidate in picks),
            tuple(row for row, _, _ in picks),
            tuple(arm for _, arm, _ in picks),
        )
        self._under_way.append(batch)
        self._asked += 1
        self._proposed += len(picks)
        return batch

    def tell(self, batch: Batch, outcomes: Sequence[Outcome | None]) -> None:
        """The outcomes of the oldest batch under way, in its order; None for what was not tried."""
        if not self._under_way or self._under_way[0] is not batch:
            raise InternalError("batches are told in the order asked, once each")
        self._under_way.pop(0)
        full = [*outcomes, *([None] * (len(batch.candidates) - len(outcomes)))]
        rows = zip(batch.candidates, full, strict=True)
        for number, (candidate, outcome) in enumerate(rows, batch.first):
            if outcome is not None:
                self.done.append(Trial(number, candidate, outcome))
        self._told.append((batch, full))

    def tell_late(self, batch: Batch, position: int, outcome: Outcome) -> None:
        """The outcome of a candidate of a batch that was told of without it."""
        trial = Trial(batch.first + position, batch.candidates[position], outcome)
        insort(self.done, trial, key=lambda each: each.number)
        self._learnt.append((batch.rows[position], outcome))

    def _learn(self) -> None:
        """Take in the batches that the next one may depend on.

        Candidates are graded against what was known before their batch: 1 for a new best, part of
        it for a place among the elite.
        """
        while self._told and self._batches_learnt <= self._asked - self.depth:
            batch, outcomes = self._told.pop(0)
            self._batches_learnt += 1
            times = sorted(seconds_of(o) for _, o in self._learnt if o.status is Status.OK)
            for row, arm, outcome in zip(batch.rows, batch.arms, outcomes, strict=True):
                if outcome is not None:
                    self._learnt.append((row, outcome))
                if arm and outcome is None:
                    self.bandit.forget(arm)
                elif arm and outcome is not None:
                    self.bandit.grade(arm, grade(outcome, times))

    def _over(self, room: int) -> Stop | None:
        """Why the search should end here."""
        if room <= 0:
            return Stop.BUDGET
        times = [seconds_of(o) for _, o in self._learnt if o.status is Status.OK]
        if times and self.floor is not None and min(times) <= NEAR * self.floor:
            return Stop.BOUND
        return None

    def _view(self) -> View:
        under_way = {row for b in self._under_way for row in b.rows}
        told = {row for b, _ in self._told for row in b.rows}
        view = View(
            self.catalogue,
            [row for row, _ in self._learnt],
            [seconds_of(o) if o.status is Status.OK else np.inf for _, o in self._learnt],
            sorted(under_way | told),
            self.rng,
            self._scales,
        )
        view.taken |= self._seen
        return view

    @contextmanager
    def _half(self, begin: float) -> Generator[None]:
        """Within, the time to think is half of that since `begin`: the rest is for choosing."""
        until = self.catalogue.until
        self.catalogue.until = None if until is None else (begin + until) / 2
        try:
            yield
        finally:
            self.catalogue.until = until

    def _first(
        self, parts: frozenset[str], room: int, begin: float
    ) -> list[tuple[int, str, Candidate]]:
        """Of the start what `parts` names: what is known already (the default and earlier winners),
        what the static model likes, points far from one another."""
        view = self._view()
        picks: list[tuple[int, str, Candidate]] = []

        def offer(row: int | None, origin: str) -> None:
            if row is not None and row not in view.taken and len(picks) < room:
                view.take(row)
                self._seen.add(row)
                picks.append((row, "", self.catalogue.candidate(row, origin)))

        if KNOWN in parts:
            offer(self.catalogue.add(self.space.default()), "default")
            for decisions in self._warm:
                offer(self.catalogue.add(self.space.candidate(decisions, "record")), "record")
        count = min(START, max(2, self.trials // 5))
        liked = count // 2 if self.catalogue.describe is not None else 0
        fill = len(picks)
        if LIKED in parts:
            fill += liked if self.guide is None else max(liked, self.trials // SEEDS)
            with self._half(begin):
                self.catalogue.grow([], self.rng)
                for _ in range(CLIMBS if self.guide is not None else 0):
                    self._climb(self._centres())
            for row in self._promising(view, min(fill, room) - len(picks)):
                offer(row, "predicted")
        fill = min(room, fill + (count - liked if FAR in parts else 0))
        misses = 0
        while len(picks) < fill and misses < MISSES:
            before = len(picks)
            offer(far(view, fill - len(picks)), "random")
            misses = 0 if len(picks) > before else misses + 1
        return picks

    def _centres(self) -> list[int]:
        """Rows that the guide holds for best in anything, whose surroundings are not known yet."""
        if self.guide is None:
            return []
        self.catalogue.predicted()  # the guide hears of new rows by this
        rows = range(len(self.catalogue))
        found = self.guide.centres([self.catalogue.candidate(row, "predicted") for row in rows])
        return [row for row in found if row not in self._climbed]

    def _climb(self, centres: Sequence[int]) -> None:
        """Look at what is near some rows."""
        if not centres or self.catalogue.is_late:
            return
        self._climbed.update(centres)
        around = [self.catalogue.candidate(row, "predicted") for row in centres]
        self.catalogue.space.look_around(around, self.catalogue.pool(NEAR_MOST))
        for row in centres:
            self.catalogue.wide(row)

    def _promising(self, view: View, count: int) -> list[int]:
        """Rows with the least predicted time, each unlike those before it, or those chosen."""
        told = self.catalogue.predicted()
        if self.guide is not None:
            free = [row for row in range(len(self.catalogue)) if row not in view.taken]
            chosen = self.guide.choose(
                [self.catalogue.candidate(r, "predicted") for r in free], count
            )
            return [free[place] for place in chosen]
        if not np.isfinite(told).any():
            return []
        score = np.where(np.isfinite(told), told, np.inf)
        score[list(view.taken)] = np.inf
        columns = np.nan_to_num(self.catalogue.columns(), nan=-1.0)
        found: list[int] = []
        for _ in range(count):
            row = int(np.argmin(np.round(score, 6)))
            if not np.isfinite(score[row]):
                break
            found.append(row)
            score = score + 0.3 * (columns == columns[row]).mean(axis=1) ** 2
            score[row] = np.inf
        return found

    def _fill(self, count: int, begin: float) -> list[tuple[int, str, Candidate]]:
        """What the strategies propose, each as often as the bandit says."""
        view = self._view()
        with self._half(begin):
            self._climb(self._centres()[:CENTRES])
            self.catalogue.grow([int(row) for row in view.ranked[:ELITE]], self.rng)
        if self._pays(view, count) is False:
            self.stopped = Stop.GAIN
            return []
        picks: list[tuple[int, str, Candidate]] = []

        def accept(row: int, arm: str) -> None:
            view.take(row)
            self._seen.add(row)
            picks.append((row, arm, self.catalogue.candidate(row, arm or "rest")))

        for row in self._promising(view, (count + 1) // 2) if self.guide is not None else ():
            accept(row, "")
        barred: set[str] = set()
        hopeless: set[int] = set()
        misses = 0
        while len(picks) < count and misses < MISSES:
            arm = self.bandit.choose(frozenset(barred))
            if arm is None:
                break
            row = self._strategies[arm.name](view)
            if row is None or row in view.taken or not view.promising([row]):
                misses += 1
                if row is None:
                    barred.add(arm.name)
                elif row not in view.taken:
                    hopeless.add(row)
                    view.taken.add(row)
                continue
            misses = 0
            arm.waiting += 1
            accept(row, arm.name)
        view.taken -= hopeless
        if len(picks) < count:
            for row in self.catalogue.everything(sorted(view.taken)):
                if row not in view.taken:
                    accept(row, "")
                if len(picks) == count:
                    break
        self._scales = view.scales
        return picks

    def _pays(self, view: View, count: int) -> bool | None:
        """False when this batch and the last promised less than they cost; None when unknown."""
        if self.horizon is None or not view.can_learn:
            return None
        gain = np.where(view.free(), view.belief().gain(view.best()), 0.0)
        promised = float(np.sort(gain)[-count:].sum()) * self.horizon
        cost = count * sum(cost_of(o) for _, o in self._learnt) / len(self._learnt)
        self._poor = 0 if promised > cost else self._poor + 1
        return self._poor < PATIENCE


def _starts(depth: int, *, describes: bool) -> list[frozenset[str]]:
    """The parts of the start, batch by batch.

    Where several batches may be under way what is known is a batch of its own and what the model
    likes comes last, so that the device has work while the others are drawn and looked at.
    """
    parts = [KNOWN, FAR, *([LIKED] if describes else [])]
    return [frozenset(parts)] if depth == 1 else [frozenset({part}) for part in parts]


def seconds_of(outcome: Outcome) -> float:
    """The time of a trial that ran."""
    return float("inf") if outcome.seconds is None else outcome.seconds


def grade(outcome: Outcome, times: Sequence[float]) -> float:
    """How good an outcome is beside the sorted times known before it."""
    if outcome.status is not Status.OK:
        return 0.0
    if not times or seconds_of(outcome) < times[0]:
        return 1.0
    return 0.3 if len(times) < ELITE or seconds_of(outcome) < times[ELITE - 1] else 0.0
