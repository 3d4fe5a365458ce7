"""One search for many sizes: candidates are decisions, and a candidate has a time at each size.

    start      for each size what the static model holds for fastest there, those first that bring
               most over all sizes
    batch      every candidate at the sizes where it promises most, then wherever else it is not
               expected to be far from the best; without a model at the first size, then at two,
               at three more, then at all the rest, if it is near the best at any so far
    score      what the search learns: the power mean of slowdowns against the best known, in which
               the sizes where a candidate is good count most, since others will serve the rest
    finals     at each size the fastest few and the chosen ones, in turn
    result     `cover`: a few kernels that lose little; `dispatcher`: which serves which size

The sizes are of one symbolic computation, whose kernels serve all of them, or of several constant
ones that a function makes.  Every size has its own context in the records, so that a later search
for one of them, and this one when it is repeated, begins with what is known.  Imports everything
else of `autotune` but `driver`.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from tedsl.autotune.cluster.cluster import Farm
from tedsl.autotune.frontend.lockfile import LockFile
from tedsl.autotune.frontend.settings import ENDLESS, Options, Time
from tedsl.autotune.measure.pruning import AT
from tedsl.autotune.multi.dispatcher import (
    Choice,
    Dispatcher,
    Row,
    condition_of,
    places_of,
    variables_of,
)
from tedsl.autotune.multi.kernel_set_cover import Times, best_of, cover, serving
from tedsl.autotune.multi.size_case import Case, reasons_at
from tedsl.autotune.multi.size_racing import COMPLETIONS, Ladder
from tedsl.autotune.multi.size_transfer import Forecast
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.machine import context_of
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.report.events import Stage
from tedsl.autotune.search.candidate_table import PREDICTED
from tedsl.autotune.search.portfolio import Batch, Search
from tedsl.autotune.search_space.constant_sizes import Instances, Make
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate, Decisions, Rejected
from tedsl.autotune.tuner import Tuner
from tedsl.build import build
from tedsl.cost.devices import device_for
from tedsl.devices import Device
from tedsl.errors import TuneError
from tedsl.scheduling.plan.scan_structure import inputs_of
from tedsl.tensor.computes import Computes
from tedsl.tensor.tensor import Outputs, Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload, digest

UNTRIED = 1.6
"""How many times slower than the best a candidate counts at least where it was not tried."""
POWER = 4.0
"""Of the mean of slowdowns: the larger, the less does it count where a candidate is slow."""
CLOSE = 1.10
RIVALS = 3
ROUNDS = 24
FINAL_SECONDS = 2.0
NEVER = -1.0
"""Stands in the records for the time of what does not run at a size."""


class Joint:
    """The search for many sizes.

    Args:
        outputs: tensors with symbolic sizes, or a function from sizes, by name, to tensors.
        target: `cpu` or `cuda`.
        sizes: each with its weight.
        records: where all is kept.
        options: as for a search of one size.
        farm: where candidates are tried.
    """

    def __init__(
        self,
        outputs: Outputs | Make,
        target: str,
        sizes: Sequence[tuple[dict[str, int], float]],
        records: Records,
        options: Options,
        farm: Farm,
    ) -> None:
        self.begin = time.monotonic()
        self.make = None if isinstance(outputs, (Tensor, Computes, Sequence)) else outputs
        self.target = target
        self.records = records
        self.options = options
        self.farm = farm
        self.interrupted = False
        self.cases = self._cases(cast("Outputs", outputs), sizes)
        self.lead = max(self.cases, key=lambda case: math.prod(case.sizes.values()))
        self.trials = self.lead.tuner.trials or ENDLESS
        self.forecast = Forecast([case.weight for case in self.cases])
        describes = target != "cpu"
        self.ladder = Ladder(
            *(self.cases, self.forecast, records),
            symbolic=self.make is None,
            overlaps=self.lead.tuner.search.depth > 1,
        )
        self.search = Search(
            self.lead.space,
            depth=self.lead.tuner.search.depth,
            trials=self.trials,
            seed=self.lead.tuner.seed,
            warm=[] if options.fresh else self._warm(),
            describe=self._describe if describes else None,
            guide=self.forecast if describes and self.make is None else None,
        )
        self.narrator = self.lead.tuner.narrator
        self.state = "interrupted"
        self.served: list[str] = []

    def _cases(
        self,
        outputs: Outputs,
        sizes: Sequence[tuple[dict[str, int], float]],
    ) -> list[Case]:
        """A case for each size; `outputs` are those of a symbolic computation."""
        cases: list[Case] = []
        for size, weight in sizes:
            made = outputs if self.make is None else self.make(**size)
            first = cases[0] if cases and self.make is None else None
            workload = Workload.of(made) if first is None else first.workload
            function = self.options.schedule
            known = (workload.outputs, self.target, function, self._device)
            problem = Problem(*known) if first is None else first.problem
            space = problem.space() if first is None else first.space
            named = size if workload.variables else {}
            Extents(workload, named)  # every symbolic size has a value
            context = context_of(
                workload,
                self.target,
                space.name,
                json.dumps(named, sort_keys=True, separators=(",", ":")),
                self.farm.facts,
            )
            tuner = Tuner(
                problem, space, workload, context, self.records, self.options, named, self.begin
            )
            cases.append(
                Case(size, weight, workload, problem, space, tuner, tuner.share(self.farm))
            )
        return cases

    @property
    def _device(self) -> Device | None:
        """The GPU of the farm, which may be elsewhere; None for the processor here."""
        facts = self.farm.facts
        if self.target == "cpu" or not facts:
            return None
        return device_for(self.target, facts["device"], facts["features"])

    @property
    def context(self) -> Context:
        """The context of all sizes together."""
        workloads = dict.fromkeys(case.workload.hash for case in self.cases)
        together = digest(" ".join(workloads)) if len(workloads) > 1 else next(iter(workloads))
        sizes = json.dumps([case.sizes for case in self.cases], sort_keys=True)
        return replace(self.lead.tuner.context, workload=together, sizes=sizes)

    def replay(self) -> Dispatcher | None:
        """What the records lead to, when a run over these sizes had at least this budget."""
        trials, seconds = self.lead.tuner.trials, self.options.seconds
        runs = (run for run in self.records.runs(self.context) if run.covers(trials, seconds))
        run = next(runs, None)
        if run is None:
            return None
        chosen: list[Candidate] = []
        table: dict[int, tuple[float, ...]] = {}
        least: Mapping[str, float] = {}
        for place, record in enumerate(self.records.candidates(run.id)):
            found = self.lead.space.candidate(record.decisions, "record")
            if isinstance(found, Rejected) or found.trace != record.trace:
                return None  # the rules have changed since
            chosen.append(found)
            table[place] = tuple(t if t != NEVER else math.inf for t in record.outcome.samples)
            least = record.outcome.resources
        if not chosen or len(chosen) != least.get("kernels"):
            return None
        best = [least[f"least {n}"] for n in range(len(self.cases))]
        return self._built(chosen, self._rows(table, list(table), best))

    def _keep(self, joint: str, chosen: Sequence[str], state: str) -> None:
        """Record what was chosen: for each candidate its time at every size, and the least times
        of all."""
        least = {f"least {n}": case.best for n, case in enumerate(self.cases)}
        least["kernels"] = len(chosen)
        for place, key in enumerate(chosen):
            times = tuple(case.times.get(key, NEVER) for case in self.cases)
            seconds = statistics.geometric_mean([t for t in times if t != NEVER])
            outcome = Outcome(Status.OK, seconds, times, resources=least)
            self.records.add(joint, place, self.ladder.candidates[key], outcome)
        winner = self.ladder.candidates[chosen[0]] if chosen else None
        self.records.finish(joint, state, winner)

    def _rows(self, table: Times, chosen: Sequence[int], best: Sequence[float]) -> list[Row]:
        """What each size gets of the chosen ones."""
        return [
            Row(case.sizes, place, seconds, seconds / best[n], case.weight)
            for n, (case, place) in enumerate(zip(self.cases, serving(table, chosen), strict=True))
            if math.isfinite(seconds := table[chosen[place]][n])
        ]

    def run(self) -> Dispatcher:
        """Search, compare, choose, record, build.

        Raises:
            TuneError: there is a size at which nothing ran correctly.
        """
        options, records = self.options, self.records
        trials = self.lead.tuner.trials
        joint = records.start(
            self.context, seed=self.lead.tuner.seed, trials=trials, seconds=options.seconds
        )
        for case in self.cases:
            case.run = records.start(
                case.tuner.context, seed=case.tuner.seed, trials=0, seconds=options.seconds
            )
        try:
            try:
                with self.lead.tuner.display:
                    self.narrator.phase(Stage.SEARCH)
                    self._loop()
                    self.narrator.phase(Stage.FINALS)
                    self._finals()
                    self._certify()
            except (KeyboardInterrupt, TuneError) as error:
                self.interrupted = True
                self.narrator.interrupted(str(error) or "interrupted")
                if any(not case.times for case in self.cases):
                    raise
            if not self.interrupted:
                self.state = "exhausted" if self.search.exhausted else "done"
        finally:
            count = len(self.search.done)
            self.narrator.finished(self.state, "", count, self.search.best, self.farm.timeline)
            for case in self.cases:
                first = min(case.times, key=lambda key: case.times[key], default=None)
                winner = None if first is None else case.own[first]
                records.finish(case.run, self.state, winner, len(case.outcomes))
            whole = all(case.times for case in self.cases)
            self._keep(joint, self._chosen() if whole else [], self.state)
        return self.dispatcher()

    def pinned(self, lock: LockFile) -> Dispatcher | None:
        """The dispatcher that a lock file pins; None where it does not know every size.

        Raises:
            TuneError: it does not, and the search is frozen.
        """
        rows: list[Row] = []
        chosen: dict[str, Candidate] = {}
        for case in self.cases:
            context = case.tuner.context
            found = lock.pinned(context, case.space, frozen=self.options.frozen)
            entry = lock.find(context)
            if found is None or entry is None:
                return None
            chosen.setdefault(found.key, found)
            place = list(chosen).index(found.key)
            rows.append(Row(case.sizes, place, entry.seconds, 1.0, case.weight))
        return self._built(list(chosen.values()), rows)

    def pin(self, lock: LockFile, found: Dispatcher) -> None:
        """Write to a lock file what serves each size."""
        for case, row in zip(self.cases, found.table, strict=True):
            names = ", ".join(tensor.name for tensor in case.workload.outputs)
            own = case.own[self.served[row.kernel]]
            lock.pin(case.tuner.context, names, own, row.seconds)

    def dispatcher(self) -> Dispatcher:
        """The kernels that lose least, and what decides between them.

        Raises:
            TuneError: there is a size at which nothing ran correctly.
        """
        for case in self.cases:
            if not case.times:
                tried = len(case.outcomes)
                raise _nothing_at(case, f"none of {tried} candidates ran correctly at {case.label}")
        keys, table = self._table()
        chosen = self._chosen()
        rows = self._rows(table, [keys.index(key) for key in chosen], best_of(table))
        if len(rows) < len(self.cases):
            raise TuneError(
                f"{self.options.kernels} kernels cannot serve all of {len(self.cases)} sizes",
                hint="allow more: kernels=...",
            )
        self.served = chosen
        return self._built([self.ladder.candidates[key] for key in chosen], rows)

    def _built(self, chosen: Sequence[Candidate], rows: Sequence[Row]) -> Dispatcher:
        lead = self.lead
        if self.make is None:
            made = [build(lead.problem.schedule(c.decisions), self.target) for c in chosen]
            names = list(rows[0].sizes)
            called = variables_of(names)
            choices = [
                Choice(
                    self._text(candidate), condition_of(kernel.schedule.plan.assumptions, called)
                )
                for candidate, kernel in zip(chosen, made, strict=True)
            ]
            return Dispatcher(choices, rows, lambda n, _: made[n], places_of(made[0], names))
        decisions = [candidate.decisions for candidate in chosen]
        instances = Instances(self.make, self.target, self.options.schedule, decisions)
        for case in self.cases:
            instances.problems[tuple(sorted(case.sizes.items()))] = case.problem
        choices = [Choice(self._text(candidate)) for candidate in chosen]
        return Dispatcher(choices, rows, instances.kernel, self._constant_places())

    def _text(self, candidate: Candidate) -> str:
        named = self.lead.problem.naming.named
        knobs = tuple(replace(knob, name=named(knob.name)) for knob in candidate.knobs)
        return str(replace(candidate, knobs=knobs))

    def _constant_places(self) -> dict[str, tuple[int, int]]:
        """For each size an argument and dimension that equals it at every tuned size."""
        shapes: list[list[tuple[int, ...]]] = []
        for case in self.cases:
            size = Extents(case.workload, {})
            plan = case.problem.schedule({}).plan
            shapes.append([size.shape(tensor) for tensor in inputs_of(plan)])
        found: dict[str, tuple[int, int]] = {}
        for name in self.cases[0].sizes:
            for argument, shape in enumerate(shapes[0]):
                for dimension in range(len(shape)):
                    told = [each[argument][dimension] for each in shapes]
                    if told == [case.sizes[name] for case in self.cases]:
                        found.setdefault(name, (argument, dimension))
        return found

    def _warm(self) -> list[Decisions]:
        """What won at these sizes before, or at sizes near them."""
        found: dict[str, Decisions] = {}
        for case in [self.lead, *self.cases]:
            ok = [r for r in case.tuner.known.values() if r.outcome.status is Status.OK]
            ok.sort(key=lambda r: (r.outcome.seconds or 0.0, r.key))
            near = self.records.seeds(case.tuner.context, 1)
            for decisions in [*(r.decisions for r in ok[:1]), *near]:
                found.setdefault(json.dumps(decisions, sort_keys=True), decisions)
        return list(found.values())

    def _describe(
        self, candidates: Sequence[Candidate], until: float | None
    ) -> Sequence[Mapping[str, float] | None]:
        """What the static model says of candidates; of symbolic ones at all sizes."""
        if self.make is not None:
            return self.lead.share.describe(candidates, until)
        sizes = [case.sizes for case in self.cases]
        found: list[Mapping[str, float] | None] = []
        for candidate, told in zip(
            candidates, self.lead.share.describe(candidates, until, at=sizes), strict=True
        ):
            features = None if told is None else dict(told)
            if features is not None:
                times = [features.pop(f"{AT}{n}", math.inf) for n in range(len(sizes))]
                self.forecast.add(candidate.key, times)
                features[PREDICTED] = self.forecast.score(candidate.key, POWER)
            found.append(features)
        return found

    def _loop(self) -> None:
        least = sorted(self.cases, key=lambda case: math.prod(case.sizes.values()))
        for case in least:  # the sooner a reference is made the sooner its size can be measured
            self.farm.announce(case.share.problem)
        clock = Time.of(self.begin, self.options.seconds)
        deadline = clock.end
        under_way: list[Batch] = []
        while True:
            while len(under_way) < self.search.depth:
                batch = None if clock.is_over else self.search.ask(clock.thinking())
                if batch is None:
                    break
                self.narrator.proposed(batch, self.search.rejected)
                self.ladder.begin(batch, deadline)
                under_way.append(batch)
            if not under_way:
                break
            batch = under_way.pop(0)
            self.ladder.complete(batch, deadline)
            outcomes = [self._told(candidate) for candidate in batch.candidates]
            self.search.tell(batch, outcomes)
            pairs = zip(batch.candidates, outcomes, strict=True)
            for number, (candidate, outcome) in enumerate(pairs, batch.first):
                if outcome is not None:
                    self.narrator.tried(number, candidate, outcome, self.farm.timeline)
        options, first = self.options, (self.search.asked, len(self.search.done))
        self.ladder.complete_table(options.within, options.kernels, first, deadline)

    def _told(self, candidate: Candidate) -> Outcome | None:
        """What the search learns of a candidate: its score as a time, or how it failed."""
        key = candidate.key
        found = [case.outcomes[key] for case in self.cases if key in case.outcomes]
        ratios = {
            n: case.times[key] / case.best for n, case in enumerate(self.cases) if key in case.times
        }
        if not ratios:
            bad = [outcome for outcome in found if outcome.status is not Status.OK]
            return next(iter(bad), None)
        tried = [n for n, case in enumerate(self.cases) if key in case.outcomes]
        usual = statistics.geometric_mean(list(ratios.values()))
        score = 0.0
        for n, case in enumerate(self.cases):
            ratio = ratios.get(n, math.inf if n in tried else max(UNTRIED, usual))
            score += case.weight * ratio**-POWER
        ok = next(outcome for outcome in found if outcome.status is Status.OK)
        scale = statistics.geometric_mean([case.best for case in self.cases if case.times])
        return replace(ok, seconds=scale * score ** (-1 / POWER), samples=())

    def _table(self) -> tuple[list[str], dict[int, list[float]]]:
        """The candidates that ran, and for each its time at each size."""
        ran = {key for case in self.cases for key in case.times}
        keys = [key for key in self.ladder.candidates if key in ran]
        return keys, {
            number: [case.times.get(key, math.inf) for case in self.cases]
            for number, key in enumerate(keys)
        }

    def _chosen(self) -> list[str]:
        keys, table = self._table()
        weights = [case.weight for case in self.cases]
        chosen = cover(table, weights, self.options.within, self.options.kernels)
        return [keys[number] for number in chosen]

    def _certify(self) -> None:
        """Let nothing be chosen that has not passed the closest checks."""
        if all(case.times for case in self.cases):
            first = (self.search.asked + COMPLETIONS, len(self.search.done))
            self.ladder.certify(self._served, first)

    def _served(self) -> list[str]:
        """What is chosen now; whatever a failed check leaves, a size has something that ran."""
        for case in self.cases:
            if not case.times:
                what = f"nothing that ran at {case.label} passed the closest checks"
                raise _nothing_at(case, what)
        return self._chosen()

    def _finals(self) -> None:
        """Time the fastest few of each size and the chosen ones in turn; nothing else may be
        faster than the fastest of these afterwards."""
        if any(not case.times for case in self.cases):
            return
        chosen = self._chosen()
        for case in self.cases:
            ranked = sorted(case.times, key=lambda key: (case.times[key], key))
            near = [key for key in ranked[:RIVALS] if case.times[key] <= CLOSE * case.best]
            rivals: dict[str, str] = {}
            for key in [*near, *(key for key in chosen if key in case.times)]:
                rivals.setdefault(case.outcomes[key].code or key, key)
            if len(rivals) < 2:
                continue
            keys = list(rivals.values())
            own = [case.own[key] for key in keys]
            taken = case.share.compare(own, ROUNDS, FINAL_SECONDS)
            if taken is None:
                continue
            before = dict(case.times)
            for key, samples in zip(keys, taken, strict=True):
                case.times[key] = statistics.median(samples)
                self.records.refine(case.run, case.own[key].key, samples, case.times[key])
            least = min(case.times[key] for key in keys)
            drift = statistics.median(case.times[key] / before[key] for key in keys)
            codes = {code: case.times[key] for code, key in rivals.items()}
            for key in case.times:
                if key not in keys:
                    same = codes.get(case.outcomes[key].code or key)
                    case.times[key] = same or max(drift * before[key], least)


def _nothing_at(case: Case, what: str) -> TuneError:
    """There is no kernel for a size."""
    return TuneError(
        what,
        facts=[("failed", line) for line in reasons_at(case)],
        hint="build the default schedule with te.build and compare it with te.evaluate",
    )
