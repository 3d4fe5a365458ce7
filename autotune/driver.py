"""The search from end to end: look in the records, else search, compare finalists, record, build.

Imports everything else of `autotune`.  Loaded by `tedsl.autotune.autotune` at its first call.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tedsl.autotune.builders import Problem, ScheduleFunction
from tedsl.autotune.environment import context_of, usable_cpus
from tedsl.autotune.evaluator import Evaluator, Limits
from tedsl.autotune.inputs import Extents
from tedsl.autotune.lock import DeviceLock
from tedsl.autotune.pool import COMMAND, Message
from tedsl.autotune.records import Context, Record, Records, default_path
from tedsl.autotune.report import Budget, Progress, failures, reasons, summary
from tedsl.autotune.scratch import scratch_folder
from tedsl.autotune.search import Outcome, Search, Status, Trial
from tedsl.autotune.space import Candidate, Decisions, Rejected, Space
from tedsl.autotune.workload import Workload
from tedsl.build import build, default_target
from tedsl.errors import BackendError, LowerError, ScheduleError, TuneError
from tedsl.expr.nodes import Var
from tedsl.expr.tensor import Tensor
from tedsl.runtime.kernel import Kernel
from tedsl.target import Target, TargetKind

DEFAULT_TRIALS = 64
ENDLESS = 1_000_000
FINALISTS = 4
FINAL_ROUNDS = 21
CLOSE = 1.10
"""Finalists are those within this factor of the fastest."""
TIE = 1.01
"""Medians within this factor are equal; the candidate tried earlier wins."""


@dataclass(frozen=True, slots=True, eq=False)
class TuneResult:
    """What a search found.

    Attributes:
        kernel: the winner, built.
        winner: its trial; its time is that of the closing comparison where there was one.
        trials: everything tried, in order (only the winner when it came from the records).
        rejected: how many candidates failed, by way of failing.
        replayed: True when the records answered and nothing was measured.
        interrupted: True when Ctrl-C ended the search.
        exhausted: True when the whole space was tried.
        seconds: time the call took.
    """

    kernel: Kernel
    winner: Trial
    trials: tuple[Trial, ...]
    rejected: Mapping[str, int]
    replayed: bool = False
    interrupted: bool = False
    exhausted: bool = False
    seconds: float = 0.0
    summary: str = ""

    @property
    def speedup(self) -> float | None:
        """How much faster than the default the winner is; None when either time is not known."""
        first = self.trials[0]
        known = first.candidate.origin == "default" and first.outcome.seconds
        return first.seconds / self.winner.seconds if known else None


@dataclass(slots=True)
class Options:
    """Everything that `tune` may be told; see `tedsl.autotune.autotune`."""

    trials: int | None = None
    seconds: float | None = None
    seed: int | None = None
    schedule: ScheduleFunction | None = None
    records: str | Path | bool | None = None
    progress: bool | None = None
    sizes: Mapping[str | Var, int] = field(default_factory=dict[str | Var, int])
    fresh: bool = False
    candidate_seconds: float = 30.0
    command: Sequence[str] = COMMAND


def tune(
    outputs: Tensor | Sequence[Tensor], target: str | Target | None, options: Options
) -> TuneResult:
    """Find a fast schedule; `autotune` with everything it learnt.

    Raises:
        TuneError: the search cannot start, or nothing ran correctly.
    """
    begin = time.monotonic()
    _check_options(options)
    chosen = _target(target)
    workload = Workload.of(outputs)
    problem = Problem(workload.outputs, chosen, options.schedule)
    space = problem.space()
    sizes = {k.name if isinstance(k, Var) else k: int(v) for k, v in options.sizes.items()}
    Extents(workload, sizes)  # every symbolic size has a value
    context = context_of(
        workload, chosen, space.name, json.dumps(sizes, sort_keys=True, separators=(",", ":"))
    )
    records = _open_records(options.records)
    try:
        tuner = _Tuner(problem, space, workload, context, records, options, sizes, begin)
        replayed = None if options.fresh else tuner.replay()
        found = tuner.run() if replayed is None else replayed
        if tuner.run_id:
            _keep(records, options.records)
        return found
    finally:
        records.close()


class _Tuner:
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
        bounded = options.trials is not None or options.seconds is not None
        self.trials = options.trials if bounded else DEFAULT_TRIALS
        self.seed = int(workload.hash[:8], 16) if options.seed is None else options.seed
        self.known: Mapping[str, Record] = {} if options.fresh else records.known(context)
        self.search = Search(
            space,
            trials=self.trials or ENDLESS,
            seed=self.seed,
            warm=[] if options.fresh else self._warm(),
        )
        self.progress = Progress(Budget(self.trials, options.seconds), options.progress)
        self.run_id = ""
        self.interrupted = False
        self.finals: dict[str, tuple[float, ...]] = {}

    def replay(self) -> TuneResult | None:
        """The recorded winner, when a run that was long enough is there and it still builds.

        A record made by another state of the compiler is checked and timed once more first.
        """
        options, records = self.options, self.records
        if not any(r.covers(options.trials, options.seconds) for r in records.runs(self.context)):
            return None
        record = records.best(self.context)
        if record is None:
            return None
        found = self.search.space.candidate(record.decisions, "record")
        if isinstance(found, Rejected) or found.key != record.key or found.trace != record.trace:
            return None  # the rules have changed since
        outcome = record.outcome
        if record.codegen != self.context.codegen:
            outcome = self._certify(found)
        if outcome.status is not Status.OK:
            return None
        try:
            kernel = build(self.problem.schedule(found.decisions), self.problem.target)
        except (ScheduleError, LowerError, BackendError):
            return None
        winner = Trial(0, found, outcome)
        seconds = time.monotonic() - self.begin
        return TuneResult(kernel, winner, (winner,), {}, replayed=True, seconds=seconds)

    def _certify(self, candidate: Candidate) -> Outcome:
        """Check and time one candidate, and record it as the winner of a run of this compiler."""
        self._start()
        found: list[Outcome] = []
        with (
            scratch_folder() as scratch,
            self._evaluator(scratch) as evaluator,
        ):
            evaluator.evaluate([candidate], lambda _, outcome: found.append(outcome))
        self.records.add(self.run_id, 0, candidate, found[0])
        right = found[0].status is Status.OK
        self.records.finish(self.run_id, "done" if right else "interrupted", candidate)
        return found[0]

    def _start(self) -> None:
        self.run_id = self.records.start(
            self.context, seed=self.seed, trials=self.trials, seconds=self.options.seconds
        )

    def _evaluator(self, scratch: str) -> Evaluator:
        return Evaluator(
            self._setup(scratch),
            self._encode,
            self._limits(),
            DeviceLock(self.context.device),
            self.options.command,
        )

    def run(self) -> TuneResult:
        """Search, compare, record, build."""
        self._start()
        winner: Trial | None = None
        state = "interrupted"
        try:
            with scratch_folder() as scratch:
                winner = self._measure(scratch)
            if not self.interrupted:
                state = "exhausted" if self.search.exhausted else "done"
        finally:
            self.progress.stop()
            self.records.finish(self.run_id, state, winner.candidate if winner else None)
        return self._result(winner)

    def _measure(self, scratch: str) -> Trial | None:
        with self._evaluator(scratch) as evaluator:
            try:
                self._loop(evaluator)
                return self._finals(evaluator)
            except KeyboardInterrupt:
                self.interrupted = True
                if self.search.best is None:
                    raise
                return self.search.best

    def _loop(self, evaluator: Evaluator) -> None:
        limit = self.options.seconds
        deadline = None if limit is None else self.begin + limit
        while batch := self.search.ask():
            outcomes: list[Outcome | None] = [None] * len(batch)
            first = len(self.search.done)

            def notify(
                position: int,
                outcome: Outcome,
                batch: Sequence[Candidate] = batch,
                outcomes: list[Outcome | None] = outcomes,
                first: int = first,
            ) -> None:
                outcomes[position] = outcome
                self.records.add(self.run_id, first + position, batch[position], outcome)
                self.progress.update(self.search, outcomes)

            best = self.search.best
            try:
                evaluator.evaluate(
                    batch,
                    notify,
                    bound=None if best is None else best.seconds,
                    deadline=deadline,
                    at_least=0 if first else 1,  # the default is measured whatever the budget
                    known=self._recorded(batch),
                )
            finally:
                self.search.tell(outcomes)
            if deadline is not None and time.monotonic() > deadline:
                return

    def _finals(self, evaluator: Evaluator) -> Trial | None:
        """The fastest few and the default again, in turn; the winner by its median.

        In a tie the one tried earlier wins, so equal candidates do not take turns over time.
        """
        finalists = self._finalists()
        if len(finalists) < 2:
            return finalists[0] if finalists else None
        samples = evaluator.compare([t.candidate for t in finalists], FINAL_ROUNDS, 4.0)
        if samples is None:
            return self.search.best
        retimed: list[Trial] = []
        for trial, taken in zip(finalists, samples, strict=True):
            median = statistics.median(taken)
            self.records.refine(self.run_id, trial.candidate.key, taken, median)
            outcome = replace(trial.outcome, seconds=median, samples=tuple(taken))
            retimed.append(replace(trial, outcome=outcome))
            self.search.done[trial.number] = retimed[-1]
        fastest = min(trial.seconds for trial in retimed)
        ties = [trial for trial in retimed if trial.seconds <= TIE * fastest]
        return min(ties, key=lambda trial: trial.number)

    def _finalists(self) -> list[Trial]:
        """The fastest few with different code, and the default when it ran."""
        ranked = self.search.ranking()
        close: dict[str, Trial] = {}
        for trial in ranked:
            if trial.seconds <= CLOSE * ranked[0].seconds and len(close) < FINALISTS:
                close.setdefault(trial.outcome.code, trial)
        default = self.search.done[0] if self.search.done else None
        if default is not None and default.outcome.status is Status.OK:
            close.setdefault(default.outcome.code, default)
        return list(close.values())

    def _result(self, winner: Trial | None) -> TuneResult:
        bad = failures((t.outcome for t in self.search.done), len(self.search.rejected))
        if winner is None:
            raise TuneError(
                f"none of {len(self.search.done)} candidates ran correctly",
                facts=[("failed", line.strip()) for line in reasons(self.search)],
                hint="build the default schedule with te.build and compare it with te.evaluate",
            )
        seconds = time.monotonic() - self.begin
        text = summary(self.search, winner, self._show, seconds)
        self.progress.write(text)
        return TuneResult(
            kernel=build(self.problem.schedule(winner.candidate.decisions), self.problem.target),
            winner=winner,
            trials=tuple(self.search.done),
            rejected=dict(bad),
            interrupted=self.interrupted,
            exhausted=self.search.exhausted,
            seconds=seconds,
            summary=text,
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
        return [*(r.decisions for r in ok[:FINALISTS]), *elsewhere]

    def _recorded(self, batch: Sequence[Candidate]) -> list[Outcome | None]:
        """Outcomes that an earlier run in this very context has measured."""
        found: list[Outcome | None] = []
        for candidate in batch:
            record = self.known.get(candidate.key)
            same = record is not None and record.codegen == self.context.codegen
            fits = record is not None and same and record.trace == candidate.trace
            found.append(record.outcome if record is not None and fits else None)
        return found

    def _setup(self, scratch: str) -> Message:
        return {
            "workload": self.workload.to_json(),
            "target": self.problem.target,
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

    def _limits(self) -> Limits:
        each = self.options.candidate_seconds
        gpu = self.problem.target == TargetKind.CUDA
        workers = max(1, min(8, usable_cpus() - 1))
        return Limits(compile=each, measure=each, workers=workers, overlap=gpu)

    def _show(self, candidate: Candidate) -> str:
        named = self.problem.naming.named
        knobs = tuple(replace(knob, name=named(knob.name)) for knob in candidate.knobs)
        return str(replace(candidate, knobs=knobs))


def _open_records(where: str | Path | bool | None) -> Records:
    """The record file asked for; False keeps records in memory, a .jsonl file is read first."""
    if where is None or where is True:
        return Records(default_path())
    if where is False:
        return Records(None)
    path = Path(where)
    if path.suffix != ".jsonl":
        return Records(path)
    records = Records(None)
    if path.exists():
        records.load(path)
    return records


def _keep(records: Records, where: str | Path | bool | None) -> None:
    """Write the winners to the .jsonl file asked for, with what others wrote to it meanwhile."""
    path = None if where is None or isinstance(where, bool) else Path(where)
    if path is not None and path.suffix == ".jsonl":
        if path.exists():
            records.load(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        records.export(path, winners_only=True)


def _target(target: str | Target | None) -> str:
    """`cpu` or `cuda`.

    Raises:
        TuneError: anything else.
    """
    try:
        parsed = default_target() if target is None else Target.parse(target)
    except BackendError as error:
        raise TuneError(
            f"unknown target {target!r}",
            subject="autotune",
            facts=[("allowed", "cpu, cuda")],
            hint='use target="cpu" where there is no GPU',
        ) from error
    if parsed.arch is not None or parsed.kind is TargetKind.TRITON_INTERPRET:
        raise TuneError(
            f"candidates cannot be timed on the target {str(parsed)!r}",
            subject="autotune",
            facts=[("allowed", "cpu, cuda")],
            hint='use target="cuda" on a machine with a GPU, or target="cpu"',
        )
    return parsed.kind.value


def _check_options(options: Options) -> None:
    """Refuse budgets that make no sense."""
    for name, value in (("trials", options.trials), ("seconds", options.seconds)):
        if value is not None and not value > 0:
            raise TuneError(
                f"{name}={value!r} is no budget",
                subject="autotune",
                hint=f"give {name} above 0, or leave it out ({DEFAULT_TRIALS} trials by default)",
            )
