"""Many problems under one budget: which of them the next batch of measurements is spent on.

Every problem has a search of its own that goes batch by batch.  After each batch the next problem
is the one that promises most per second: its weight times what a second spent on it brought lately,
mixed with what it could still bring if its time went on falling as it does at the best (with one
over the number of trials).  One that nothing is known of comes first, and now and then the choice
goes to one that was left alone for long.  Imports everything else of `autotune`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from tedsl.autotune.cluster.cluster import Farm
from tedsl.autotune.cluster.device_host import Place
from tedsl.autotune.frontend.driver import check_options, keep, open_records, target_of
from tedsl.autotune.frontend.result import TuneResult
from tedsl.autotune.frontend.settings import DEFAULT_TRIALS, ENDLESS, Options, Time
from tedsl.autotune.frontend.sizes import Size
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.machine import context_of
from tedsl.autotune.search_space.problem import Problem, ScheduleFunction
from tedsl.autotune.tuner import Tuner
from tedsl.errors import TuneError
from tedsl.runtime.timing import format_seconds
from tedsl.target import Target
from tedsl.tensor.tensor import Outputs
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

LATELY = 3
"""Batches that say what a problem brings now."""
RECENT_SHARE = 0.5
"""How much these count, beside what might still come."""
HOPE = 0.2
"""Of its time: what a problem is held to be able to gain by as many trials as it has had."""
ROUND = 12
"""Batches after which one goes to the problem that has waited longest."""


@dataclass(frozen=True, slots=True)
class Task:
    """One of many problems.

    Attributes:
        name: what its result is asked for by.
        outputs: the tensor to compute, or several.
        weight: how often its kernel runs, say; what counts is the weighted sum of times.
        sizes: values of symbolic sizes.
        schedule: a schedule function with knobs; without it the default rules.
    """

    name: str
    outputs: Outputs
    weight: float = 1.0
    sizes: Size = field(default_factory=dict[str, int])
    schedule: ScheduleFunction | None = None


Tasks = Sequence["Task | tuple[str, Outputs] | tuple[str, Outputs, float]"]


@dataclass(frozen=True, slots=True)
class Spent:
    """One batch: for which task, its trials and best time by then, and the seconds it took."""

    task: str
    trials: int
    best: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class ManyResult(Mapping[str, TuneResult]):
    """The result of each task, by name.

    Attributes:
        found: results.
        failed: tasks of which nothing ran, with the error, which asking for the result raises.
        history: every batch in the order in which they were done.
        seconds: time the call took.
    """

    found: Mapping[str, TuneResult]
    failed: Mapping[str, TuneError]
    history: tuple[Spent, ...]
    seconds: float

    def __getitem__(self, name: str) -> TuneResult:
        if name in self.failed:
            raise self.failed[name]
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __str__(self) -> str:
        """A row per task."""
        width = max((len(name) for name in [*self.found, *self.failed]), default=4)
        lines = [f"{'task':<{width}}  {'trials':>6}  {'time':>10}  vs default"]
        for name, result in self.found.items():
            trials = "known" if result.replayed else str(len(result.trials))
            gain = f"{result.speedup:.2f}x" if result.speedup else "-"
            known = result.winner.outcome.seconds
            seconds = "unmeasured" if known is None else format_seconds(known)
            lines.append(f"{name:<{width}}  {trials:>6}  {seconds:>10}  {gain}")
        lines += [f"{name:<{width}}  {error.reason}" for name, error in self.failed.items()]
        return "\n".join([*lines, f"{self.seconds:.1f} s"])


class Allocator:
    """Which of several searches to go on with.  Pure logic: told what each batch brought.

    Args:
        weights: of the searches.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = tuple(weights)
        self.bests: list[list[float]] = [[] for _ in weights]
        self.costs: list[list[float]] = [[] for _ in weights]
        self.last = [0 for _ in weights]
        self.batches = 0

    def learn(self, place: int, best: float, cost: float) -> None:
        """A batch of a search is done: its best time by now (infinite without one), and the
        seconds that the batch took."""
        self.batches += 1
        self.bests[place].append(best)
        self.costs[place].append(max(cost, 1e-3))
        self.last[place] = self.batches

    def choose(self, live: Sequence[int]) -> int:
        """The search that the next batch is spent on, of those that go on."""
        fresh = [place for place in live if not self.bests[place]]
        if fresh:
            return fresh[0]
        waiting = min(live, key=lambda place: (self.last[place], place))
        if self.batches - self.last[waiting] >= ROUND * len(live):
            return waiting
        return max(live, key=lambda place: (self.gain(place), -place))

    def gain(self, place: int) -> float:
        """Weighted seconds per call that a second of search promises."""
        bests, costs = self.bests[place], self.costs[place]
        if not math.isfinite(bests[-1]):
            return math.inf if len(bests) <= LATELY else 0.0
        known = [best for best in bests[-1 - LATELY :] if math.isfinite(best)]
        spent = sum(costs[-LATELY:])
        brought = (known[0] - known[-1]) / spent
        hoped = HOPE * bests[-1] / len(bests) / (spent / len(costs[-LATELY:]))
        return self.weights[place] * (RECENT_SHARE * brought + (1 - RECENT_SHARE) * hoped)


def tune_many(tasks: Tasks, target: str | Target | None, options: Options) -> ManyResult:
    """Find fast schedules for many problems under one budget.

    Raises:
        TuneError: the search cannot start, or nothing ran correctly for any of the tasks.
    """
    begin = time.monotonic()
    check_options(options)
    listed = _listed(tasks)
    chosen = target_of(target)
    total = _total(options, len(listed))
    place = Place(chosen, seconds=options.candidate_seconds)
    with (
        closing(open_records(options.records)) as records,
        Farm(place, options.devices, options.executor) as farm,
    ):
        tuners = [_tuner(task, chosen, options, total, records, farm, begin) for task in listed]
        known = None if options.fresh else _replayed(tuners, total)
        if known is None:
            work = _Work(listed, tuners, farm, total, options.seconds, begin)
            work.run()
            found, failed, history = work.found, work.failed, work.history
            keep(records, options.records)
        else:
            found, failed, history = known, {}, []
    named = {listed[n].name: result for n, result in sorted(found.items())}
    errors = {listed[n].name: error for n, error in sorted(failed.items())}
    if errors and not named:
        raise next(iter(errors.values()))
    return ManyResult(named, errors, tuple(history), time.monotonic() - begin)


class _Work:
    """The searches under way."""

    def __init__(
        self,
        tasks: Sequence[Task],
        tuners: Sequence[Tuner],
        farm: Farm,
        total: int | None,
        seconds: float | None,
        begin: float,
    ) -> None:
        self.tasks = tasks
        self.tuners = tuners
        self.total = total
        self.deadline = None if seconds is None else begin + seconds
        self.steps = [tuner.steps(tuner.share(farm)) for tuner in tuners]
        self.allocator = Allocator([task.weight for task in tasks])
        self.found: dict[int, TuneResult] = {}
        self.failed: dict[int, TuneError] = {}
        self.history: list[Spent] = []

    def run(self) -> None:
        """Spend the budget, then close every search."""
        try:
            while (live := self._live()) and not self._is_spent():
                place = self.allocator.choose(live)
                before = time.monotonic()
                self._step(place)
                self._note(place, time.monotonic() - before)
                if place in self.found and self.found[place].interrupted:
                    break
        except KeyboardInterrupt:
            pass  # what has been found by now is the result
        for place in self._live():
            if self.tuners[place].ledger.run:
                self._step(place, ends=True)
            else:
                self.steps[place].close()
                name = self.tasks[place].name
                self.failed[place] = TuneError(
                    f"the budget ended before {name!r} had its turn",
                    subject="tune_many",
                    hint="allow more trials or seconds",
                )

    def _live(self) -> list[int]:
        over = {*self.found, *self.failed}
        return [place for place in range(len(self.tasks)) if place not in over]

    def _is_spent(self) -> bool:
        tried = sum(len(tuner.search.done) for tuner in self.tuners)
        late = self.deadline is not None and time.monotonic() > self.deadline
        return late or (self.total is not None and tried >= self.total)

    def _step(self, place: int, ends: bool = False) -> None:
        """One batch of a search; with `ends` its closing comparison."""
        steps = self.steps[place]
        try:
            if ends:
                steps.send(False)
            else:
                next(steps)
        except StopIteration as end:
            self.found[place] = end.value
        except TuneError as error:
            self.failed[place] = error

    def _note(self, place: int, seconds: float) -> None:
        search = self.tuners[place].search
        best = math.inf if search.best is None else search.best.seconds
        self.allocator.learn(place, best, seconds)
        self.history.append(Spent(self.tasks[place].name, len(search.done), best, seconds))


def _listed(tasks: Tasks) -> list[Task]:
    """Tasks as such.

    Raises:
        TuneError: none, two of one name, or a weight that is not above 0.
    """
    listed = [
        task
        if isinstance(task, Task)
        else Task(task[0], task[1], task[2] if len(task) > 2 else 1.0)
        for task in tasks
    ]
    names = [task.name for task in listed]
    twice = [name for name in names if names.count(name) > 1]
    light = [task for task in listed if not task.weight > 0]
    if not listed or twice or light:
        why = "there is no task"
        if light:
            why = f"the task {light[0].name!r} has the weight {light[0].weight}"
        elif twice:
            why = f"two tasks are called {twice[0]!r}"
        raise TuneError(
            why,
            subject="tune_many",
            hint='give tasks as ("name", outputs) or ("name", outputs, weight above 0)',
        )
    return listed


def _total(options: Options, tasks: int) -> int | None:
    """Trials of all tasks together; None when only time is bounded."""
    if options.trials is not None:
        return options.trials
    if options.seconds is not None and options.budget is None:
        return None
    each = options.asked
    if each == 0:
        raise TuneError(
            'budget="none" measures nothing, so there is nothing to spend where it pays',
            subject="tune_many",
            hint='use te.autotune(..., budget="none") for each',
        )
    return (each or DEFAULT_TRIALS) * tasks


def _tuner(
    task: Task,
    target: str,
    options: Options,
    total: int | None,
    records: Records,
    farm: Farm,
    begin: float,
) -> Tuner:
    """The search of a task, bounded by the budget of all."""
    own = replace(
        options,
        trials=total or ENDLESS,
        seconds=None,
        budget=None,
        schedule=task.schedule or options.schedule,
        progress=False,
    )
    workload = Workload.of(task.outputs)
    problem = Problem(workload.outputs, target, own.schedule)
    space = problem.space()
    sizes = dict(task.sizes)
    Extents(workload, sizes)  # every symbolic size has a value
    text = json.dumps(sizes, sort_keys=True, separators=(",", ":"))
    context = context_of(workload, target, space.name, text, farm.facts)
    tuner = Tuner(problem, space, workload, context, records, own, sizes, begin)
    tuner.time = Time.of(begin, options.seconds)
    return tuner


def _replayed(tuners: Sequence[Tuner], total: int | None) -> dict[int, TuneResult] | None:
    """The recorded winners, when earlier runs had as many trials together."""
    tried = [tuner.tried() for tuner in tuners]
    counts = [count for count, _ in tried]
    whole = all(exhausted for _, exhausted in tried)
    if total is None or not all(counts) or not (whole or sum(counts) >= total):
        return None
    found: dict[int, TuneResult] = {}
    for place, tuner in enumerate(tuners):
        tuner.options = replace(tuner.options, trials=1)
        result = tuner.replay()
        if result is None:
            return None
        found[place] = result
    return found
