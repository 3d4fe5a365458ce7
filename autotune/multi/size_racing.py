"""At which of many sizes the candidates of a batch are tried, and in which order.

What a model speaks of is tried where it promises most, then wherever it is not expected to be far
from the best; anything else at one size, at two more, at three more, then at all, while it is near
the best at any so far.  Imports `size_case`, `kernel_set_cover` and `size_transfer`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

from tedsl.autotune.frontend.sizes import spread
from tedsl.autotune.multi.dispatcher import condition_of
from tedsl.autotune.multi.kernel_set_cover import best_of, cover, serving
from tedsl.autotune.multi.size_case import Case
from tedsl.autotune.multi.size_transfer import Forecast
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.database import Records
from tedsl.autotune.search.portfolio import Batch
from tedsl.autotune.search_space.space import Candidate, Rejected
from tedsl.reference.evaluate import evaluate_scalar
from tedsl.workload.extents import Extents

CUT = 1.6
"""A candidate that is this many times slower than the best at each size so far is cut."""
RUNGS = (1, 3, 6)
"""Numbers of sizes after which hopeless candidates are cut."""
FIRST = 2
"""Sizes at which a candidate is tried before anything of it is known but what was predicted."""
TURNS = 8
"""More than there are turns in which a batch is tried: what a share calls its batches by."""
COMPLETIONS = 4
"""How often what would be chosen is measured where it has not been, at most."""
ASSUMES = '"assume"'
FAILED = (Status.WRONG, Status.NONDETERMINISTIC)


class Ladder:
    """Tries batches of candidates at several sizes.

    Args:
        cases: the sizes.
        forecast: of the candidates, at the same sizes; told what is measured.
        records: where outcomes are kept.
        symbolic: whether one kernel of a candidate serves all sizes.
        overlaps: whether a batch is measured while others are compiled.

    Attributes:
        candidates: all that were tried, by key.
        order: places of the sizes, each far from those before it.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        forecast: Forecast,
        records: Records,
        *,
        symbolic: bool,
        overlaps: bool,
    ) -> None:
        self.cases = tuple(cases)
        self.forecast = forecast
        self.records = records
        self.symbolic = symbolic
        self.overlaps = overlaps
        self.candidates: dict[str, Candidate] = {}
        self.order = spread([case.sizes for case in self.cases])

    def _first_at(self, place: int, batch: Batch) -> list[Candidate]:
        """The candidates of a batch that are tried at a size first of all: the default, and those
        that promise most there."""
        found: list[Candidate] = []
        for candidate in batch.candidates:
            first = self.forecast.most_promising(candidate.key, FIRST) or self.order[:1]
            if _is_default(batch, candidate) and self.overlaps:
                first = self.order  # where one waits for the other it is tried like the others
            if place in first:
                found.append(candidate)
        return found

    def _begin(
        self,
        place: int,
        batch: Batch,
        candidates: Sequence[Candidate],
        turn: int,
        deadline: float | None,
        *,
        closely: bool = False,
    ) -> None:
        """Have candidates of a batch tried at a size, where they may run there."""
        case, number = self.cases[place], TURNS * batch.number + turn
        own: list[Candidate] = []
        waits = case.waits[number] = list[tuple[int, str]]()
        numbers = {c.key: batch.first + n for n, c in enumerate(batch.candidates)}
        for candidate in candidates:
            self.candidates.setdefault(candidate.key, candidate)
            case.asked.add(candidate.key)
            found = self._at(case, candidate)
            if isinstance(found, Outcome):
                case.outcomes[candidate.key] = found
            else:
                case.own[candidate.key] = found
                own.append(found)
                waits.append((numbers[candidate.key], candidate.key))
        case.missing[number] = len(own)
        if own:
            known = [] if closely else [case.known(candidate) for candidate in own]
            first = 0 if batch.first or not _is_default(batch, candidates[0]) else 1
            case.share.begin(
                number, own, known=known, deadline=deadline, at_least=first, closely=closely
            )

    def _finish(self, place: int, batch: Batch, turn: int) -> None:
        """Wait until all of a turn is done at a size; record each outcome as it comes."""
        case, number = self.cases[place], TURNS * batch.number + turn
        while case.missing[number]:
            done = case.share.wait()
            case.missing[done.batch] -= 1
            trial, key = case.waits[done.batch][done.position]
            if done.outcome is not None:
                case.outcomes[key] = done.outcome
                self.records.add(case.run, trial, case.own[key], done.outcome)
        for _, key in case.waits[number]:
            outcome = case.outcomes.get(key)
            if outcome is not None and outcome.status is Status.OK and outcome.seconds is not None:
                case.times[key] = outcome.seconds
                self.forecast.learn(key, place, outcome.seconds)

    def begin(self, batch: Batch, deadline: float | None) -> None:
        """Have each candidate of a batch tried where it promises most."""
        for place in range(len(self.cases)):
            self._begin(place, batch, self._first_at(place, batch), 0, deadline)

    def complete(self, batch: Batch, deadline: float | None) -> None:
        """Try a batch that is begun at all other sizes, except what is cut on the way."""
        for place in range(len(self.cases)):
            self._finish(place, batch, 0)
        ends = (*RUNGS[1:], len(self.order))
        for turn, (begin, end) in enumerate(zip(RUNGS, ends, strict=True), 1):
            known = {c.key for c in batch.candidates if self.forecast.knows(c.key)}
            alive = self._alive(batch, self.order[:begin])
            for place in self.order:
                late = place not in self.order[begin:end]
                wanted = [c for c in alive if self._pays(place, c, later=late)]
                self._begin(place, batch, wanted, turn, deadline)
            for place in self.order:
                self._finish(place, batch, turn)
            if len(known) == len(batch.candidates):
                break  # nothing is learnt for these from one size after the other
        self._alive(batch, self.order)

    def complete_table(
        self, within: float, kernels: int, first: tuple[int, int], deadline: float | None
    ) -> None:
        """Measure those that would be chosen if all were as fast as is expected where they have not
        been tried, and choose again.

        Args:
            within, kernels: as `cover` takes them.
            first: numbers of the next batch and of the next trial.
            deadline: when nothing new is begun.
        """
        weights = [case.weight for case in self.cases]
        for number in range(COMPLETIONS):
            ran = [key for key in self.candidates if any(key in case.times for case in self.cases)]
            hoped = {place: self.forecast.expected(key) for place, key in enumerate(ran)}
            late = deadline is not None and time.monotonic() > deadline
            if late or not ran or not all(math.isfinite(least) for least in best_of(hoped)):
                return
            chosen = cover(hoped, weights, within, kernels)
            wanted: list[list[Candidate]] = [[] for _ in self.cases]
            for size, place in enumerate(serving(hoped, chosen)):
                key = ran[chosen[place]]
                if key not in self.cases[size].asked:
                    wanted[size].append(self.candidates[key])
            if not any(wanted):
                return
            listed = tuple(dict.fromkeys(each for some in wanted for each in some))
            batch = Batch(first[0] + number, first[1], listed)
            for size, some in enumerate(wanted):
                self._begin(size, batch, some, 0, deadline)
            for size in range(len(self.cases)):
                self._finish(size, batch, 0)
            self._alive(batch, self.order)

    def certify(self, choose: Callable[[], Sequence[str]], first: tuple[int, int]) -> None:
        """Have what is chosen go through the closest checks at each size that it serves, and choose
        again where it does not pass: in a search for one size only what is near the best wins, but
        one of few kernels may serve a size where it was too far from the best to be looked at.

        Args:
            choose: the keys of what is chosen now.
            first: numbers of the next batch and of the next trial.
        """
        certain: set[tuple[int, str]] = set()
        for number in itertools.count(first[0]):
            chosen = choose()
            wanted: list[list[Candidate]] = []
            for place, case in enumerate(self.cases):
                keys = [key for key in chosen if key in case.times]
                key = min(keys, key=case.times.__getitem__, default="")
                close = (place, key) in certain or not key
                close = close or "closely" in case.outcomes[key].resources
                wanted.append([] if close else [self.candidates[key]])
                certain.add((place, key))
            if not any(wanted):
                return
            listed = tuple(dict.fromkeys(each for some in wanted for each in some))
            batch = Batch(number, first[1], listed)
            for place, some in enumerate(wanted):
                self._begin(place, batch, some, 0, None, closely=True)
            for place, some in enumerate(wanted):
                taken = {c.key: self.cases[place].times.pop(c.key) for c in some}
                self._finish(place, batch, 0)
                for key in taken.keys() & self.cases[place].times.keys():
                    self.cases[place].times[key] = taken[key]  # as compared with others in turn
            self._alive(batch, self.order)

    def _pays(self, place: int, candidate: Candidate, *, later: bool) -> bool:
        """Whether a candidate is tried at a size now: not again, not where it is expected to be far
        from the best, and if nothing is expected of it, when the size has its turn."""
        if candidate.key in self.cases[place].asked:
            return False
        if self.forecast.knows(candidate.key):
            return self.forecast.is_near(candidate.key, place, CUT)
        return not later

    def _alive(self, batch: Batch, places: Sequence[int]) -> list[Candidate]:
        """Those that are near the best at one of some sizes, could not be tried there, or run and
        are known to promise something elsewhere."""
        kept: list[Candidate] = []
        for candidate in batch.candidates:
            key = candidate.key
            found = [case.outcomes[key] for case in self.cases if key in case.outcomes]
            if self.symbolic and any(outcome.status in FAILED for outcome in found):
                for case in self.cases:
                    case.times.pop(key, None)  # one kernel serves all: it is wrong
                self.forecast.forget(key)
                continue
            done = [self.cases[place] for place in places]
            ratios = [case.times[key] / case.best for case in done if key in case.times]
            may_yet = any(outcome.status is Status.ILLEGAL for outcome in found)
            runs = self.forecast.knows(key) and any(o.status is Status.OK for o in found)
            near = min(ratios, default=math.inf) <= CUT
            if _is_default(batch, candidate) or may_yet or runs or near:
                kept.append(candidate)
        return kept

    def _at(self, case: Case, candidate: Candidate) -> Candidate | Outcome:
        """What a shared candidate is at a size; why it may not run there."""
        if not self.symbolic:
            found = case.space.candidate(candidate.decisions, candidate.origin)
            if isinstance(found, Rejected):
                return Outcome(Status.ILLEGAL, reason=found.reason, error=found.error)
            return found
        if ASSUMES in candidate.trace:
            plan = case.problem.schedule(candidate.decisions).plan
            scalars = Extents(case.workload, case.sizes).scalars
            for condition in plan.assumptions:
                if not evaluate_scalar(condition, scalars):
                    reason = f"assumes {condition_of([condition])}"
                    return Outcome(Status.ILLEGAL, reason=reason)
        return candidate


def _is_default(batch: Batch, candidate: Candidate) -> bool:
    """True for the first candidate of all, which is tried at every size."""
    return batch.first == 0 and candidate is batch.candidates[0]
