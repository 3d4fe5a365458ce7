"""One search from its first batch to its result: ask, try, record, tell, compare, build.

On a GPU three batches are under way at once: one is measured, the next is compiled, and the one
after is thought of.  On the CPU one batch follows the other, since compiling and measuring want the
same cores.  Imports everything else of `autotune` but `driver`.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tedsl.autotune.closing import Closing
from tedsl.autotune.cluster.cluster import Farm, Share
from tedsl.autotune.cluster.shared_claims import SharedEngine
from tedsl.autotune.frontend.result import TuneResult
from tedsl.autotune.frontend.settings import (
    DEFAULT_TRIALS,
    ENDLESS,
    Options,
    Time,
    limits_of,
    pays_to_describe,
)
from tedsl.autotune.measure.final_comparison import Verdict
from tedsl.autotune.outcome import Outcome, Status, Trial
from tedsl.autotune.records.database import Record, Records
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.records.run_log import Ledger
from tedsl.autotune.report.event_source import Narrator
from tedsl.autotune.report.events import Stage, Started, listener_of
from tedsl.autotune.report.live_display import display_of
from tedsl.autotune.report.report import failures, reasons, summary
from tedsl.autotune.search.portfolio import CHOSEN_FROM, Batch, Search
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate, Decisions, Rejected, Space
from tedsl.autotune.under_way import Flight, UnderWay
from tedsl.autotune.workers.device_lock import DeviceLock
from tedsl.autotune.workers.interrupt import Interrupts
from tedsl.autotune.workers.local_executor import Engine
from tedsl.autotune.workers.protocol import Built, Done, Trier
from tedsl.autotune.workers.scratch_dir import scratch_folder
from tedsl.autotune.workers.utilization import Timeline
from tedsl.backends.processes.serving import Message
from tedsl.build import build
from tedsl.checking.random_inputs import ADVERSE, KINDS
from tedsl.cost.devices import device_for
from tedsl.cost.roofline import Roofline, roofline
from tedsl.devices import GpuDevice
from tedsl.errors import BackendError, LowerError, ScheduleError, TuneError
from tedsl.target import TargetKind
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

CHOSEN_ON_CPU = 64
"""Candidates of which the model chooses one: there, looking at one takes as long as building it."""
DEPTH = 3
"""Batches under way at once on a GPU: one is measured, one is compiled, one is thought of."""
WARM = 4


class Tuner:
    """One search."""

    def __init__(
        self,
        problem: Problem,
        space: Space,
        workload: Workload,
        context: Context,
        records: Records,
        options: Options,
        sizes: Mapping[str, int],
        begin: float,
    ) -> None:
        self.problem = problem
        self.workload = workload
        self.context = context
        self.records = records
        self.options = options
        self.sizes = dict(sizes)
        self.begin = begin
        bounded = options.asked is not None or options.seconds is not None
        self.trials = options.asked if bounded else DEFAULT_TRIALS
        self.time = Time.of(begin, options.seconds)
        self.seed = int(workload.hash[:8], 16) if options.seed is None else options.seed
        self.space = space
        self.gpu = problem.target == TargetKind.CUDA
        self.limits = limits_of(options, self.gpu)
        self.timeline = Timeline(begin)
        self.engine: Trier | None = None
        self.display = display_of(options.progress)
        heard = () if options.events is None else (listener_of(options.events),)
        self.narrator = Narrator([self.display, *heard], begin, self._show)
        self.roofline: Roofline | None = None
        self.ledger = Ledger(records)
        self.interrupted = False
        self.interrupts = Interrupts()
        self.closing: Closing | None = None

    # What a search needs and a replay does not is made when it is first asked for.

    @cached_property
    def known(self) -> Mapping[str, Record]:
        """What was recorded in this very context, by candidate."""
        return {} if self.options.fresh else self.records.known(self.context)

    @cached_property
    def champion(self) -> str:
        """The winner of the newest run here that has one."""
        runs = () if self.options.fresh else self.records.runs(self.context)
        return next((run.winner for run in runs if run.winner), "")

    @cached_property
    def search(self) -> Search:
        """What proposes candidates."""
        return Search(
            self.space,
            depth=DEPTH if self.gpu else 1,
            trials=self.trials or ENDLESS,
            seed=self.seed,
            warm=[] if self.options.fresh else self._warm(),
            describe=self._describe if pays_to_describe(self.options, self.gpu) else None,
        )

    def replay(self) -> TuneResult | None:
        """The recorded winner, when a run that was long enough is there and it still builds.

        A record made with other tools is checked and timed once more first.
        """
        trials, seconds, records = self.options.asked, self.options.seconds, self.records
        exact = any(run.covers(trials, seconds) for run in records.runs(self.context))
        near = records.runs(self.context, near=True)
        if not any(run.covers(trials, seconds) for run in near):
            return None
        elsewhere = [] if exact else records.candidates_elsewhere(self.context, 1)
        record = records.best(self.context) if exact else next(iter(elsewhere), None)
        if record is None:
            return None
        found = self.space.candidate(record.decisions, "record")
        if isinstance(found, Rejected) or found.key != record.key or found.trace != record.trace:
            return None  # the rules have changed since
        outcome = record.outcome
        if not exact:
            outcome = self._certify(found)
        if outcome.status is not Status.OK:
            return None
        try:
            return self.chosen(found, outcome)
        except (ScheduleError, LowerError, BackendError):
            return None

    def tried(self) -> tuple[int, bool]:
        """How many trials the longest finished run of this very context had, and whether that was
        all there is."""
        runs = [r for r in self.records.runs(self.context) if r.state in ("done", "exhausted")]
        whole = any(run.state == "exhausted" for run in runs)
        return max((run.trials or 0 for run in runs), default=0), whole

    def chosen(self, candidate: Candidate, outcome: Outcome | None = None) -> TuneResult:
        """The result that is this candidate, without a search."""
        kernel = build(self.problem.schedule(candidate.decisions), self.problem.target)
        winner = Trial(0, candidate, outcome or Outcome(Status.OK))
        seconds = time.monotonic() - self.begin
        self._announce()
        self.narrator.finished("replayed", "", 0, winner, self.timeline)
        events = tuple(self.narrator.events)
        return TuneResult(
            kernel,
            winner,
            (winner,),
            {},
            replayed=True,
            seconds=seconds,
            events=events,
            named=self.problem.naming.named,
            sizes=self.sizes,
        )

    def _certify(self, candidate: Candidate) -> Outcome:
        """Check and time one candidate, and record it as the winner of a run of this compiler."""
        self._start()
        (outcome,) = self.measure([candidate])
        if outcome is None:
            raise TuneError("a candidate without a deadline was not tried")
        self.records.add(self.ledger.run, 0, candidate, outcome)
        right = outcome.status is Status.OK
        self.records.finish(self.ledger.run, "done" if right else "interrupted", candidate)
        return outcome

    def measure(
        self, candidates: Sequence[Candidate], deadline: float | None = None
    ) -> list[Outcome | None]:
        """Check and time candidates without searching; None for those the deadline came before."""
        outcomes: list[Outcome | None] = [None] * len(candidates)
        with scratch_folder() as scratch, self._engine(scratch) as engine:
            engine.begin(0, candidates, deadline=deadline)
            missing = set(range(len(candidates)))
            while missing:
                done = engine.wait()  # what is timed again after drift comes again
                outcomes[done.position] = done.outcome
                missing.discard(done.position)
        return outcomes

    def _start(self) -> None:
        self.ledger.run = self.records.start(
            self.context, seed=self.seed, trials=self.trials, seconds=self.options.seconds
        )

    def _engine(self, scratch: str, *, measures: bool = True) -> Engine:
        lock = DeviceLock(self.context.device)
        setup = self._setup(scratch)
        engine = Engine(
            setup, self._encode, self.limits, lock, self.options.command, measures=measures
        )
        engine.on_built = self._built
        engine.on_ready = self.narrator.ready
        engine.on_tick = self.display.tick
        engine.interrupted = lambda: self.interrupts.requested
        self.interrupts.wake = engine.nudge
        self.engine = engine
        if self.problem.function is None:
            self.space.elsewhere = engine
        return engine

    def _describe(
        self, candidates: Sequence[Candidate], until: float | None
    ) -> Sequence[Mapping[str, float] | None]:
        """What the static model says of candidates."""
        engine = self.engine
        return [None] * len(candidates) if engine is None else engine.describe(candidates, until)

    def choose(self) -> TuneResult:
        """Take what the static model holds for fastest, or what is recorded; measure nothing."""
        record = None if self.options.fresh else self.records.best(self.context)
        found = None if record is None else self.search.space.candidate(record.decisions, "record")
        if isinstance(found, Candidate) and record is not None:
            return self.chosen(found, record.outcome)
        with scratch_folder() as scratch, self._engine(scratch, measures=False) as engine:
            if self.gpu:
                engine.rouse()
            best = self.search.first_choice(CHOSEN_FROM if self.gpu else CHOSEN_ON_CPU)
        return replace(self.chosen(best), replayed=False)

    def run(self) -> TuneResult:
        """Search, compare, record, build.

        Ctrl-C ends the search with the best so far, or with KeyboardInterrupt where nothing has
        run correctly yet.
        """
        with (
            self.display,
            self.interrupts,
            scratch_folder() as scratch,
            self._engine(scratch) as engine,
        ):
            if self.gpu:  # on a CPU what starts would disturb what is measured
                engine.rouse()
                engine.refer((*KINDS, *ADVERSE))
            engine.on_done = self.ledger.hear
            shared = self.records.path is not None and not self.options.fresh
            whole = SharedEngine(engine, self.records, self.context, lambda: self.ledger.run)
            return finished(self.steps(whole if shared else engine))

    def steps(self, engine: Trier) -> Generator[None, bool | None, TuneResult]:
        """`run` with an engine of the caller, who is asked after each batch.

        `send(False)` ends the search there, as if its budget had been used up.
        """
        _ = self.champion, self.search  # of the runs before this one
        self._start()
        self.engine, self.timeline = engine, engine.timeline
        self.roofline = _roofline(
            self.workload, self.sizes, self.problem.target, self.context.device
        )
        self._announce()
        self.narrator.phase(Stage.SETUP)
        verdict: Verdict | None = None
        measured = True
        state = "interrupted"
        rounds = self._rounds(engine)
        stopped = False
        try:
            try:
                for _ in rounds:
                    stopped = (yield) is False
                    if stopped:
                        break
                rounds.close()
                verdict = self._closing(engine).run() or self._unmeasured()
            except (KeyboardInterrupt, TuneError) as error:
                verdict = self._cut_short(error)
            finally:
                self.interrupts.hold()  # until nothing is claimed
            measured = verdict is None or verdict.winner.outcome.seconds is not None
            if measured and not self.interrupted:
                state = "exhausted" if self.search.exhausted else "done"
            self.narrator.phase(Stage.BUILD)
        finally:
            rounds.close()
            winner = verdict.winner if verdict else None
            done = len(self.search.done)
            key = winner.candidate if winner and measured else None
            if winner is not None and key is not None:
                self.ledger.ensure(winner)
            count = done if stopped or state == "exhausted" else None
            self.records.finish(self.ledger.run, state, key, count)
            why = self.search.stopped.value if self.search.stopped else ""
            self.narrator.finished(state, why, done, winner, self.timeline)
        self.interrupts.heed()
        return self._result(verdict)

    def _closing(self, engine: Trier) -> Closing:
        """The closing comparison of what was found."""
        self.closing = Closing(
            *(engine, self.search, self.ledger, self.narrator, self.timeline, self.time),
            self.champion,
            self.interrupts,
            self._note_end,
        )
        return self.closing

    def _announce(self) -> None:
        """Tell what is going to be searched."""
        options = self.options
        self.narrator.tell(
            Started(
                at=self.narrator.at,
                outputs=tuple(tensor.name for tensor in self.workload.outputs),
                target=self.problem.target,
                device=self.context.device,
                workload=self.workload.hash,
                space=self.context.space,
                trials=self.trials,
                seconds=options.seconds,
                seed=self.seed,
                floor=0.0 if self.roofline is None else self.roofline.seconds,
                known=0 if self.options.fresh else self.records.count(self.context),
            )
        )

    def _cut_short(self, error: KeyboardInterrupt | TuneError) -> Verdict:
        """What is known by then.

        Raises:
            KeyboardInterrupt, TuneError: `error`, when nothing is.
        """
        self._note_end(str(error) or "interrupted")
        if self.search.best is None:
            raise error
        if isinstance(error, TuneError):
            warnings.warn(
                f"the search ended early, with the best so far: {error.reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return Verdict(self.search.best)

    def _unmeasured(self) -> Verdict | None:
        """The default, where the time was over before anything is known of it; nothing runs."""
        tried = any(trial.number == 0 for trial in self.search.done)
        if tried or not self.time.is_over:
            return None
        return Verdict(Trial(0, self.search.space.default(), Outcome(Status.OK)))

    def _note_end(self, reason: str) -> None:
        """The search is cut short."""
        self.interrupted = True
        self.narrator.interrupted(reason)

    def _rounds(self, engine: Trier) -> Generator[None]:
        """Keep batches under way until the search or the time is over.  The first is begun whatever
        the time; nothing is waited for after the latest."""
        under_way = UnderWay()
        try:
            while True:
                while len(under_way.flights) < self.search.depth and not (
                    self.time.is_over and not self.ledger.is_empty
                ):
                    batch = self.search.ask(self.time.thinking())
                    if batch is None:
                        break
                    under_way.flights.append(self._launch(engine, batch))
                if not self._land(engine, under_way):
                    return
                yield
        finally:
            kept = self.ledger.close()
            come = engine.drain() if isinstance(engine, (Engine, SharedEngine)) else []
            for done in (*come, *kept):
                self._take(done, under_way)
            for flight in under_way.flights:
                self.search.tell(flight.batch, flight.outcomes)

    def _launch(self, engine: Trier, batch: Batch) -> Flight:
        """Give a batch to the engine; the default is measured whatever the budget."""
        candidates = batch.candidates
        known = self._recorded(candidates)
        self.ledger.begin(batch)
        self.narrator.proposed(batch, self.search.rejected)
        engine.begin(
            batch.number,
            candidates,
            known=known,
            deadline=self.time.end,
            at_least=0 if batch.first else 1,
        )
        return Flight(batch, known, len(candidates), [None] * len(candidates))

    def _land(self, engine: Trier, under_way: UnderWay) -> bool:
        """Take outcomes until the oldest batch is whole, or need not be waited for, and tell the
        search; false when there is none, or the time did not suffice."""
        while under_way.missing and not (under_way.flights and self._lands(under_way)):
            done = engine.wait_until(self.time.latest)
            if done is None:
                return False
            self._take(done, under_way)
        if not under_way.flights:
            return False
        flight = under_way.land()
        self.search.tell(flight.batch, flight.outcomes)
        return True

    def _lands(self, under_way: UnderWay) -> bool:
        """Whether the oldest batch is waited for no more."""
        if not under_way.flights[0].missing:
            return True
        hurries = self.time.end is not None and not self.time.is_over and self.search.depth > 1
        return hurries and under_way.has_few(self.search.batch)

    def _take(self, done: Done, under_way: UnderWay) -> None:
        """Note and record what became of a candidate."""
        self.ledger.keep(done)
        if done.again:
            self._correct(done, under_way)
            return
        flight = under_way.of(done.batch)
        if flight is None or flight.outcomes[done.position] is not None:
            return
        flight.missing -= 1
        flight.outcomes[done.position] = done.outcome
        if done.outcome is not None:
            candidate = flight.batch.candidates[done.position]
            number = flight.batch.first + done.position
            recorded = done.outcome is flight.known[done.position]
            self.narrator.tried(number, candidate, done.outcome, self.timeline, recorded=recorded)
            if flight in under_way.late:
                self.search.tell_late(flight.batch, done.position, done.outcome)

    def _built(self, built: Built) -> None:
        """A candidate is compiled."""
        found = self.ledger.find(built.batch, built.position)
        if found is not None:
            self.narrator.compiled(found[0], built.code, built.resources)

    def _correct(self, done: Done, under_way: UnderWay) -> None:
        """Take a second outcome of a candidate in place of its first."""
        outcome, found = done.outcome, self.ledger.find(done.batch, done.position)
        if outcome is None or found is None:
            return
        number, candidate = found
        for flight in under_way:
            if flight.batch.number == done.batch:
                flight.outcomes[done.position] = outcome
        for place, trial in enumerate(self.search.done):
            if trial.number == number:
                self.search.done[place] = replace(trial, outcome=outcome)
        self.narrator.tried(number, candidate, outcome, self.timeline, again=True)

    def _result(self, verdict: Verdict | None) -> TuneResult:
        winner = None if verdict is None else verdict.winner
        bad = failures((t.outcome for t in self.search.done), len(self.search.rejected))
        if verdict is None or winner is None:
            raise TuneError(
                f"none of {len(self.search.done)} candidates ran correctly",
                facts=[("failed", line.strip()) for line in reasons(self.search)],
                hint="build the default schedule with te.build and compare it with te.evaluate",
            )
        now = time.monotonic()
        seconds = now - self.begin
        timeline, closing = self.timeline, self.closing
        text = summary(self.search, winner, self._show, seconds)
        self.display.write(text)
        return TuneResult(
            kernel=build(self.problem.schedule(winner.candidate.decisions), self.problem.target),
            winner=winner,
            trials=tuple(self.search.done) or (winner,),
            rejected=dict(bad),
            interrupted=self.interrupted,
            exhausted=self.search.exhausted,
            seconds=seconds,
            summary=text,
            idle=timeline.idle(now),
            compile_seconds=timeline.compile_seconds,
            measure_seconds=timeline.measure_seconds,
            against=verdict.against,
            stopped=self.search.stopped.value if self.search.stopped else "",
            events=tuple(self.narrator.events),
            searched=(closing.searched if closing else ()) or tuple(self.search.done),
            verified=closing.verified if closing else 0,
            roofline=self.roofline,
            workers=self.limits.workers,
            named=self.problem.naming.named,
            sizes=self.sizes,
        )

    def _warm(self) -> list[Decisions]:
        """Decisions worth trying early: the best of earlier runs here, then winners elsewhere.

        A run that was cut short is not seeded by itself: with its seed the same candidates come
        again in the same order, and those it had measured are not measured twice.
        """
        elsewhere: list[Decisions] = list(self.records.seeds(self.context))
        runs = self.records.runs(self.context)
        if runs and runs[0].state in ("running", "interrupted") and runs[0].seed == self.seed:
            return elsewhere
        ok = [r for r in self.known.values() if r.outcome.status is Status.OK]
        ok.sort(key=lambda r: (r.outcome.seconds or 0.0, r.key))
        return [*(r.decisions for r in ok[:WARM]), *elsewhere]

    def _recorded(self, batch: Sequence[Candidate]) -> list[Outcome | None]:
        """Outcomes that an earlier run in this very context has measured."""
        found: list[Outcome | None] = []
        for candidate in batch:
            record = self.known.get(candidate.key)
            fits = record is not None and record.trace == candidate.trace
            found.append(record.outcome if record is not None and fits else None)
            if record is not None and fits:
                self.ledger.recorded(candidate, record.outcome)
        return found

    def share(self, farm: Farm) -> Share:
        """What `steps` takes where a farm tries the candidates."""
        setup = self._setup("")
        del setup["scratch"]
        return Share(farm, setup, self._encode)

    def _setup(self, scratch: str) -> Message:
        return {
            "workload": self.workload.to_json(),
            "target": self.problem.target,
            "device": self.context.device,
            "features": self.context.features if self.gpu else "",
            "sizes": self.sizes,
            "seed": random.Random(self.seed).getrandbits(31),
            "scratch": scratch,
            "trace": self.problem.function is not None,
        }

    def _encode(self, candidate: Candidate) -> Message:
        described: Message = {"key": candidate.identity, "decisions": candidate.decisions}
        if self.problem.function is not None:
            schedule = self.problem.schedule(candidate.decisions)
            described["trace"] = schedule.trace.to_json()
        return described

    def _show(self, candidate: Candidate) -> str:
        named = self.problem.naming.named
        knobs = tuple(replace(knob, name=named(knob.name)) for knob in candidate.knobs)
        return str(replace(candidate, knobs=knobs))


def _roofline(
    workload: Workload, sizes: Mapping[str, int], target: str, device: str
) -> Roofline | None:
    """What the computation needs at least; None on a device whose figures are not known."""
    facts = device_for(target, device)
    product = [word for word in facts.name.split() if any(c.isdigit() for c in word)]
    if isinstance(facts, GpuDevice) and not any(word in device for word in product):
        return None
    return roofline(Extents(workload, sizes), facts)


def finished(steps: Generator[None, bool | None, TuneResult]) -> TuneResult:
    """What a search that goes step by step ends with."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: TuneResult = end.value
            return result
