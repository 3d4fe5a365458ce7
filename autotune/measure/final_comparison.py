"""The closing comparison: the fastest few against one another and against the incumbent.

    rounds   a b c d | d c b a | a b c d | ...        each a sample, in turn and back again
    looks    after 16, 32, 64 ... rounds: whoever is slower than the leader beyond doubt leaves
    winner   the incumbent, unless another is faster than it beyond doubt;
             among equals the one with the fewest registers, then the one tried first

Decisions are by the intervals of `paired_ratios`, so that a second search does not prefer another
of two equal kernels by chance.  Imports `outcome` and `paired_ratios`.
"""

from __future__ import annotations

import statistics as medians
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tedsl.autotune.measure.paired_ratios import LOOKS, Ratio, ratio_of
from tedsl.autotune.outcome import Outcome, Trial

MOST = 8
CLOSE = 1.10
"""Finalists are those within this factor of the fastest."""
FAR = 1.5
"""An incumbent slower than this needs no comparison."""

Compare = Callable[[Sequence[Trial], int], "Sequence[Sequence[float]] | None"]
"""Takes trials and a number of rounds; gives the samples of each, taken in turn."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the closing comparison found.

    Attributes:
        winner: the trial that won.
        samples: what each finalist took, in the order of the finalists; empty without a comparison.
        against: the winner's time over the incumbent's, where both were compared.
        ties: trials that are as fast as the winner for all that is known.
    """

    winner: Trial
    samples: tuple[tuple[float, ...], ...] = ()
    against: Ratio | None = None
    ties: tuple[Trial, ...] = ()


def finalists(ranked: Sequence[Trial], incumbent: Trial | None) -> list[Trial]:
    """The fastest few with different code, and the incumbent where it is not far behind."""
    close: dict[str, Trial] = {}
    if incumbent is not None and ranked and incumbent.seconds <= FAR * ranked[0].seconds:
        close[_code(incumbent)] = incumbent
    for trial in ranked:
        if trial.seconds <= CLOSE * ranked[0].seconds and len(close) < MOST:
            close.setdefault(_code(trial), trial)
    return sorted(close.values(), key=lambda trial: trial.seconds)


def decide(
    trials: Sequence[Trial],
    incumbent: Trial | None,
    compare: Compare,
    looks: Sequence[int] = LOOKS,
) -> Verdict:
    """Compare until one is ahead, or all that are left are equal, or the looks are used up."""
    if len(trials) < 2:
        return Verdict(trials[0])
    contest = _Contest(trials)
    before = 0
    for look in looks:
        taken = compare([trials[place] for place in contest.left], look - before)
        if taken is None:
            break
        contest.add(taken)
        before = look
        if contest.is_settled() or contest.is_short(look):
            break
    if not contest.rounds:
        return Verdict(min(trials, key=lambda trial: (trial.seconds, trial.number)))
    return contest.verdict(incumbent)


class _Contest:
    """Samples of the finalists so far, and who is still in."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = tuple(trials)
        self.samples: list[list[float]] = [[] for _ in trials]
        self.left = list(range(len(trials)))

    @property
    def rounds(self) -> int:
        """How often those that are still in were sampled."""
        return len(self.samples[self.left[0]])

    def add(self, taken: Sequence[Sequence[float]]) -> None:
        """Samples of those that are still in; whoever is clearly slower is out then."""
        for place, fresh in zip(self.left, taken, strict=True):
            self.samples[place].extend(fresh)
        leader = self.leader()
        self.left = [p for p in self.left if p == leader or not self.ratio(p, leader).is_above]

    def leader(self) -> int:
        """The fastest of those that are still in; of equal ones the first."""
        return min(self.left, key=lambda p: (medians.median(self.samples[p]), p))

    def ratio(self, one: int, other: int) -> Ratio:
        """Time of one finalist over that of another."""
        return ratio_of(self.samples[one], self.samples[other])

    def is_settled(self) -> bool:
        """True when more rounds would change nothing."""
        leader = self.leader()
        return all(self.ratio(p, leader).is_decided for p in self.left if p != leader)

    def is_short(self, look: int) -> bool:
        """True when the samples asked for took too long to be all taken."""
        return self.rounds < look

    def verdict(self, incumbent: Trial | None) -> Verdict:
        """The winner among those that are still in."""
        leader = self.leader()
        equal = [p for p in self.left if p == leader or not self.ratio(p, leader).is_above]
        ties = tuple(sorted((self.trials[p] for p in equal), key=preference))
        holder = next((p for p, trial in enumerate(self.trials) if trial is incumbent), None)
        chosen = incumbent if incumbent is not None and holder in equal else ties[0]
        place = next(p for p in equal if self.trials[p] is chosen)
        against = None if holder is None else self.ratio(place, holder)
        samples = tuple(tuple(taken) for taken in self.samples)
        return Verdict(chosen, samples, against, ties)


def preference(trial: Trial) -> tuple[float, int]:
    """Among equals: fewer registers first, then whoever was tried first."""
    return trial.outcome.resources.get("registers", 0.0), trial.number


def retimed(trial: Trial, samples: Sequence[float]) -> Trial:
    """A trial with the time it took in the comparison."""
    outcome = trial.outcome
    again = Outcome(
        outcome.status,
        medians.median(samples),
        tuple(samples),
        outcome.reason,
        outcome.error,
        outcome.code,
        outcome.resources,
    )
    return Trial(trial.number, trial.candidate, again)


def _code(trial: Trial) -> str:
    return trial.outcome.code or trial.candidate.identity
