"""Which candidate to try next: default, earlier winners, space-filling points, then a bandit over
three strategies.

Pure logic over outcomes: `ask` proposes, `tell` learns, nothing here compiles or measures.  With
the same seed and the same outcomes the same candidates come in the same order.  Imports only
`space`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tedsl.autotune.space import Candidate, Decisions, Rejected, Space, difference

ELITE = 8
"""How many of the fastest candidates become parents."""
MAX_BATCH = 8
MISSES = 200
"""Fruitless draws in a row before the random strategies give way to a full walk of the
neighbours."""


class Status(StrEnum):
    """How the trial of one candidate ended.  Only `OK` may win."""

    OK = "ok"
    WRONG = "wrong"
    CRASH = "crash"
    TIMEOUT = "timeout"
    COMPILE_ERROR = "compile_error"
    ILLEGAL = "illegal"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial gave.

    Attributes:
        seconds: median time of one call, for `OK` only.
        samples: all times taken, in seconds.
        reason: short text that groups like failures; `error` is the whole message.
        code: hash of the generated code, where it got that far.
        resources: facts about the code (registers, shared memory, compile seconds).
    """

    status: Status
    seconds: float | None = None
    samples: tuple[float, ...] = ()
    reason: str = ""
    error: str = ""
    code: str = ""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate and its outcome, numbered in the order proposed."""

    number: int
    candidate: Candidate
    outcome: Outcome

    @property
    def seconds(self) -> float:
        """Time of one call; infinite unless the trial is `OK`."""
        ok = self.outcome.status is Status.OK and self.outcome.seconds is not None
        return self.outcome.seconds if ok and self.outcome.seconds is not None else math.inf


@dataclass(slots=True)
class Arm:
    """One strategy's account with the bandit: decayed uses and credit."""

    name: str
    uses: float = 0.0
    credit: float = 0.0


class Search:
    """Proposes candidates of a space in batches.

    Args:
        space: where candidates come from.
        trials: how many candidates may be proposed in all (illegal ones are not counted).
        seed: of every random choice.
        warm: decisions of earlier winners, tried right after the default.
    """

    def __init__(
        self, space: Space, *, trials: int, seed: int, warm: Sequence[Decisions] = ()
    ) -> None:
        self.space = space
        self.trials = trials
        self.rng = random.Random(seed)
        self.batch = max(1, min(MAX_BATCH, trials // 8))
        self.done: list[Trial] = []
        self.rejected: list[Rejected] = []
        self.exhausted = False
        self._warm = list(warm)
        self._arms = [Arm("random"), Arm("evolve"), Arm("local")]
        self._seen: set[str] = set()
        self._refused: set[str] = set()
        self._walks: dict[str, Iterator[Candidate | Rejected]] = {}
        self._pending: list[tuple[Candidate, Arm | None]] = []
        self._started = False

    @property
    def best(self) -> Trial | None:
        """The fastest trial so far; of equal ones the earlier."""
        ranked = self.ranking()
        return ranked[0] if ranked else None

    def ranking(self) -> list[Trial]:
        """Trials that ran correctly, fastest first; of equal ones the earlier first."""
        ok = [trial for trial in self.done if trial.outcome.status is Status.OK]
        return sorted(ok, key=lambda trial: (trial.seconds, trial.number))

    def ask(self) -> list[Candidate]:
        """The next batch; empty when the budget is spent or the space is exhausted."""
        room = self.trials - len(self.done) - len(self._pending)
        if self._pending or room <= 0 or self.exhausted:
            return []
        if not self._started:
            self._first(room)
        else:
            self._fill(min(self.batch, room))
        self.exhausted = not self._pending
        return [candidate for candidate, _ in self._pending]

    def tell(self, outcomes: Sequence[Outcome | None]) -> None:
        """The outcomes of the last batch, in its order; None for a candidate that was not tried."""
        for (candidate, arm), outcome in zip(self._pending, outcomes, strict=False):
            if outcome is None:
                continue
            before = self.best
            trial = Trial(len(self.done), candidate, outcome)
            self.done.append(trial)
            if arm is not None:
                self._credit(arm, trial, before)
        self._pending = []

    def _first(self, room: int) -> None:
        """Default, earlier winners, then points far from one another."""
        self._started = True
        self._offer(self.space.default(), None)
        for decisions in self._warm:
            if len(self._pending) < room:
                self._offer(self.space.candidate(decisions, "record"), None)
        fill = min(room, len(self._pending) + min(16, max(2, self.trials // 5)))
        misses = 0
        while len(self._pending) < fill and misses < MISSES:
            misses = 0 if self._offer(self._far(), None) else misses + 1

    def _fill(self, count: int) -> None:
        misses = 0
        while len(self._pending) < count and misses < MISSES:
            arm = self._choose()
            if self._offer(self._propose(arm), arm):
                misses = 0
            else:
                arm.uses += 0.02
                misses += 1
        if len(self._pending) < count:
            self._walk_all(count)

    def _propose(self, arm: Arm) -> Candidate | Rejected | None:
        ranked = self.ranking()
        if arm.name == "random" or not ranked:
            return self._far()
        if arm.name == "local":
            return next((c for t in ranked[:ELITE] for c in self._walk(t.candidate)), None)
        elite = ranked[:ELITE]
        parent = min(self.rng.choice(elite), self.rng.choice(elite), key=lambda t: t.number)
        parent = min((parent, self.rng.choice(elite)), key=lambda t: (t.seconds, t.number))
        if len(elite) > 1 and self.rng.random() < 0.3:
            other = self.rng.choice([t for t in elite if t is not parent])
            return self.space.cross(parent.candidate, other.candidate, self.rng)
        return self.space.mutate(parent.candidate, self.rng)

    def _far(self) -> Candidate | Rejected:
        """Of four random candidates, the one that differs most from all tried."""
        draws = [self.space.sample(self.rng) for _ in range(4)]
        legal = [d for d in draws if isinstance(d, Candidate)]
        for refused in draws:
            if isinstance(refused, Rejected):
                self._offer(refused, None)
        if not legal:
            return draws[0]
        tried = [t.candidate for t in self.done[-256:]] + [c for c, _ in self._pending]
        fresh = [c for c in legal if c.identity not in self._seen] or legal
        return max(fresh, key=lambda c: min((difference(c, t) for t in tried), default=0))

    def _walk(self, centre: Candidate) -> Iterator[Candidate | Rejected]:
        """Neighbours of `centre` not handed out yet."""
        walk = self._walks.get(centre.identity)
        if walk is None:
            walk = self._walks[centre.identity] = self.space.neighbours(centre)
        return walk

    def _walk_all(self, count: int) -> None:
        """Neighbours of everything seen, so that a small space is covered to the last point."""
        centres = [t.candidate for t in self.done] + [c for c, _ in self._pending]
        for centre in centres:
            for found in self.space.neighbours(centre):
                if self._offer(found, None) and isinstance(found, Candidate):
                    centres.append(found)
                if len(self._pending) >= count:
                    return

    def _offer(self, found: Candidate | Rejected | None, arm: Arm | None) -> bool:
        """Queue `found` when it is legal and new; note it when it is refused."""
        if found is None:
            return False
        if isinstance(found, Rejected):
            key = repr(sorted(found.decisions.items()))
            if key not in self._refused:
                self._refused.add(key)
                self.rejected.append(found)
            return False
        if found.identity in self._seen:
            return False
        self._seen.add(found.identity)
        self._pending.append((found, arm))
        return True

    def _choose(self) -> Arm:
        """The arm with the highest upper confidence bound; of equal ones the first."""
        total = sum(arm.uses for arm in self._arms) + 1.0

        def bound(arm: Arm) -> float:
            uses = arm.uses + sum(1 for _, a in self._pending if a is arm)
            if uses < 0.5:
                return 10.0 - self._arms.index(arm)
            return arm.credit / uses + 0.5 * math.sqrt(math.log(total + 1.0) / uses)

        return max(self._arms, key=bound)

    def _credit(self, arm: Arm, trial: Trial, before: Trial | None) -> None:
        """Full credit for a new best, part of it for landing among the elite; old credit fades."""
        for other in self._arms:
            other.uses *= 0.97
            other.credit *= 0.97
        arm.uses += 1.0
        if before is None or trial.seconds < before.seconds:
            arm.credit += 1.0 if trial.outcome.status is Status.OK else 0.0
        elif trial in self.ranking()[:ELITE]:
            arm.credit += 0.3
