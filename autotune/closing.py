"""How a search ends: the fastest few are compared, and the winner is called again and again.

Imports `finals`, `jobs`, `ledger` and `narrator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tedsl.autotune.frontend.settings import Time
from tedsl.autotune.measure.final_comparison import Verdict, decide, finalists, retimed
from tedsl.autotune.outcome import Status, Trial
from tedsl.autotune.records.run_log import Ledger
from tedsl.autotune.report.event_source import Narrator
from tedsl.autotune.report.events import Stage
from tedsl.autotune.search.portfolio import Search
from tedsl.autotune.workers.interrupt import Interrupts
from tedsl.autotune.workers.protocol import CALLS, Trier
from tedsl.autotune.workers.utilization import Timeline

VERIFY_SECONDS = 2.0
"""Seconds that these calls may take."""
FINAL_SECONDS = 3.0
"""Seconds that one look of the closing comparison may take."""


@dataclass(slots=True, eq=False)
class Closing:
    """The end of one search.

    Attributes:
        champion: the winner of an earlier search here, by key.
        note_end: called with the reason where the search is cut short.
        searched: the trials with the times that they had before.
        verified: how often the winner was called again.
    """

    engine: Trier
    search: Search
    ledger: Ledger
    narrator: Narrator
    timeline: Timeline
    time: Time
    champion: str
    interrupts: Interrupts
    note_end: Callable[[str], object]
    searched: tuple[Trial, ...] = ()
    verified: int = 0

    def run(self) -> Verdict | None:
        """The fastest few and the incumbent, in turn; new times for all of them.  The winner is
        called so often again that a rare fault shows; with one it is out, and the rest compete."""
        if not finalists(self.search.ranking(), self._incumbent()):
            return None
        self.narrator.phase(Stage.FINALS)
        self.searched = tuple(self.search.done)
        while True:
            verdict = self._contest()
            if verdict is None or self._is_verified(verdict.winner):
                return verdict

    def _is_verified(self, winner: Trial) -> bool:
        """Whether many more calls of a winner are right; what they found is recorded."""
        if self.interrupts.requested:
            return True
        seconds = min(VERIFY_SECONDS, self.time.verifying())
        try:
            found = self.engine.verify(winner.candidate, CALLS, seconds)
        except KeyboardInterrupt:
            self.note_end("interrupted")
            return True
        self.verified = found.calls
        if found.fault is None:
            return True
        fault = replace(found.fault, code=winner.outcome.code)
        for place, trial in enumerate(self.search.done):
            alike = bool(fault.code) and trial.outcome.code == fault.code
            if alike or trial.candidate.key == winner.candidate.key:
                self.search.done[place] = replace(trial, outcome=fault)
                self.ledger.records.add(self.ledger.run, trial.number, trial.candidate, fault)
        self.narrator.tried(winner.number, winner.candidate, fault, self.timeline, again=True)
        return False

    def _contest(self) -> Verdict | None:
        """One closing comparison of those that are right for all that is known."""
        incumbent = self._incumbent()
        chosen = finalists(self.search.ranking(), incumbent)
        if not chosen:
            return None

        def compare(trials: Sequence[Trial], rounds: int) -> list[list[float]] | None:
            try:
                if self.interrupts.requested:
                    raise KeyboardInterrupt
                seconds = self.time.left(FINAL_SECONDS)
                if not seconds:
                    return None
                return self.engine.compare([t.candidate for t in trials], rounds, seconds)
            except KeyboardInterrupt:
                self.note_end("interrupted")
                return None  # the samples so far decide

        verdict = decide(chosen, incumbent, compare)
        winner = verdict.winner
        retaken: list[Trial] = []
        for trial, taken in zip(chosen, verdict.samples, strict=False):
            again = retimed(trial, taken)
            self.ledger.ensure(trial)
            self.ledger.records.refine(self.ledger.run, trial.candidate.key, taken, again.seconds)
            self.search.done[self.search.done.index(trial)] = again
            if trial is winner:
                verdict = replace(verdict, winner=again)
            retaken.append(again)
        if retaken:
            self.narrator.compared(retaken, verdict, incumbent)
        return verdict

    def _incumbent(self) -> Trial | None:
        """What must be beaten: the winner of an earlier search here, else the default."""
        ok = [t for t in self.search.done if t.outcome.status is Status.OK]
        earlier = [t for t in ok if t.candidate.key == self.champion]
        default = [t for t in ok if t.number == 0]
        return next(iter([*earlier, *default]), None)
