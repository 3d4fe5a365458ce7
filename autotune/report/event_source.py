"""Tells listeners what a search does.  Imports `events`, `protocol`, `outcome` and `search`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tedsl.autotune.measure.final_comparison import Verdict
from tedsl.autotune.outcome import Outcome, Status, Trial
from tedsl.autotune.report.events import (
    Compared,
    Compiled,
    Event,
    Finished,
    Interrupted,
    Listener,
    NewBest,
    Phase,
    Proposed,
    Refused,
    Stage,
    Tried,
    WorkerReady,
)
from tedsl.autotune.search.portfolio import Batch
from tedsl.autotune.search_space.space import Candidate, Rejected
from tedsl.autotune.workers.protocol import Ready
from tedsl.autotune.workers.utilization import Timeline


class Narrator:
    """Makes events of what the tuner reports.

    Args:
        listeners: called with every event, in order.
        begin: when the search began, on the clock of `time.monotonic`.
        show: a candidate as text, by the names that its author gave.

    Attributes:
        events: all that was told so far, but for `Proposed` and `Compiled`.
    """

    def __init__(
        self, listeners: Sequence[Listener], begin: float, show: Callable[[Candidate], str]
    ) -> None:
        self.listeners = tuple(listeners)
        self.begin = begin
        self.show = show
        self.events: list[Event] = []
        self._best: float | None = None
        self._default: float | None = None
        self._refused = 0
        self._over = False

    @property
    def at(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self.begin

    def tell(self, event: Event) -> None:
        """Call the listeners; nothing follows the last event."""
        if self._over:
            return
        self._over = isinstance(event, Finished)
        if not isinstance(event, (Proposed, Compiled)):
            self.events.append(event)
        for listener in self.listeners:
            listener(event)

    def phase(self, stage: Stage) -> None:
        """Something else begins."""
        self.tell(Phase(at=self.at, stage=stage))

    def ready(self, worker: Ready) -> None:
        """A worker has begun to work, perhaps some time ago."""
        rounded = {name: round(value, 3) for name, value in worker.seconds.items()}
        since = worker.at - self.begin
        self.tell(WorkerReady(at=self.at, role=worker.role, since=since, seconds=rounded))

    def proposed(self, batch: Batch, rejected: Sequence[Rejected]) -> None:
        """A batch was thought of; on the way some choices were found not to be legal."""
        for refused in rejected[self._refused :]:
            text = ", ".join(f"{name}={value}" for name, value in refused.decisions.items())
            self.tell(Refused(at=self.at, candidate=text, reason=refused.reason))
        self._refused = len(rejected)
        arms = batch.arms or [""] * len(batch.candidates)
        for number, (candidate, arm) in enumerate(
            zip(batch.candidates, arms, strict=True), batch.first
        ):
            self.tell(
                Proposed(
                    at=self.at,
                    number=number,
                    batch=batch.number,
                    candidate=self.show(candidate),
                    origin=arm or candidate.origin,
                )
            )

    def compiled(self, number: int, code: str, resources: dict[str, float]) -> None:
        """A candidate waits for the device."""
        self.tell(Compiled(at=self.at, number=number, code=code, resources=dict(resources)))

    def tried(
        self,
        number: int,
        candidate: Candidate,
        outcome: Outcome,
        timeline: Timeline,
        *,
        recorded: bool = False,
        again: bool = False,
    ) -> None:
        """A candidate has its outcome."""
        if self._best is None and not again:
            self.phase(Stage.SEARCH)
        ok = outcome.status is Status.OK
        text = self.show(candidate)
        self.tell(
            Tried(
                at=self.at,
                number=number,
                candidate=text,
                status=outcome.status.value,
                time=outcome.seconds if ok else None,
                reason=outcome.reason,
                recorded=recorded,
                again=again,
                idle=round(timeline.idle(time.monotonic()), 4),
                resources=dict(outcome.resources),
            )
        )
        if not ok or outcome.seconds is None:
            return
        if number == 0:
            self._default = outcome.seconds
        if self._best is None or outcome.seconds < self._best:
            self._best = outcome.seconds
            gain = None if self._default is None else self._default / outcome.seconds
            self.tell(
                NewBest(at=self.at, number=number, candidate=text, time=outcome.seconds, gain=gain)
            )

    def compared(
        self, finalists: Sequence[Trial], verdict: Verdict, incumbent: Trial | None
    ) -> None:
        """The closing comparison is done."""
        ratio = verdict.against
        self.tell(
            Compared(
                at=self.at,
                finalists=tuple(trial.number for trial in finalists),
                times=tuple(trial.seconds for trial in finalists),
                winner=verdict.winner.number,
                incumbent=None if incumbent is None else incumbent.number,
                against=None if ratio is None else (ratio.low, ratio.middle, ratio.high),
                ties=tuple(trial.number for trial in verdict.ties),
            )
        )

    def interrupted(self, reason: str) -> None:
        """The search ends early."""
        self.tell(Interrupted(at=self.at, reason=reason))

    def finished(
        self, state: str, stopped: str, trials: int, winner: Trial | None, timeline: Timeline
    ) -> None:
        """The search is over."""
        timed = winner is not None and winner.outcome.status is Status.OK
        self.tell(
            Finished(
                at=self.at,
                state=state,
                stopped=stopped,
                trials=trials,
                winner=None if winner is None else winner.number,
                candidate="" if winner is None else self.show(winner.candidate),
                time=winner.outcome.seconds if winner is not None and timed else None,
                idle=round(timeline.idle(time.monotonic()), 4),
                compile_seconds=round(timeline.compile_seconds, 6),
                measure_seconds=round(timeline.measure_seconds, 6),
            )
        )
