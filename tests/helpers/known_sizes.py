"""A device whose times are known beforehand, at every size: a farm that answers by a formula.

Candidates are those of a schedule with a tile and a number of stages; the formula counts waves of
tiles over 132 processors, and the model that the search is told of is the formula with errors of
its own.  Nothing runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import random
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from tedsl.autotune.frontend.settings import Options
from tedsl.autotune.measure.pruning import AT
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.machine import context_of
from tedsl.autotune.workers.utilization import Timeline
from tedsl.runtime.cache.fingerprint import code_version

SIDES = (16, 32, 64, 128, 256)
STAGES = (2, 3, 4, 5)
WARPS = (2, 4, 8)
Size = Mapping[str, int]


def tiles(s: Any) -> None:
    """A schedule of a product, of which only the decisions count."""
    stage = s[s.outputs[0]]
    bm, bn = (s.knob(name, SIDES, 64) for name in ("bm", "bn"))
    i, j = stage.op.axis
    stage.tile(i, j, bm, bn)
    outer, _ = stage.split(stage.op.reduce_axis[0], factor=32)
    stage.pipeline(outer, num_stages=s.knob("stages", STAGES, 3))
    stage.launch(num_warps=s.knob("warps", WARPS, 4))


def seconds_of(decisions: Mapping[str, Any], size: Size) -> float:
    """Waves of tiles, each by its products, its operands, and what stages and warps do to it."""
    default = {"bm": 64, "bn": 64, "stages": 3, "warps": 4}
    bm, bn, stages, warps = (int(decisions.get(name, default[name])) for name in default)
    waves = -(-(-(-size["m"] // bm) * -(-size["n"] // bn)) // 132)
    few = 1.0 + 12.0 / min(bm, bn)
    wait = 1.0 + 0.25 * max(0, 3 - stages + (bm * bn < 4096)) + 0.06 * max(0, stages - 4)
    shape = 1.0 + 0.08 * abs(math.log2(bm * bn / 4096) / 2 + 2 - math.log2(warps))
    tile = (bm * bn * few + 24.0 * (bm + bn)) * wait * shape
    return 2e-6 + waves * size["k"] * tile * 1e-12


def wrong_by(decisions: Mapping[str, Any], size: Size, spread: float) -> float:
    """A factor that the model is wrong by: always the same for a candidate at a size."""
    text = case_text(decisions, size)
    seed = int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)
    return math.exp(random.Random(seed).gauss(0.0, spread))


def case_text(decisions: Mapping[str, Any], size: Size) -> str:
    """A candidate at a size, as text."""
    return json.dumps([sorted(decisions.items()), sorted(size.items())])


class KnownFarm:
    """What a search takes for a farm.

    Args:
        spread: of the logarithm of the model's errors.
        wrong: decisions of candidates that do not pass the closest checks.

    Attributes:
        counts: measurements by size.
        closely: decisions and size, as text, of what went through the closest checks.
    """

    def __init__(self, spread: float, wrong: Sequence[Mapping[str, Any]] = ()) -> None:
        self.spread = spread
        self.wrong = list(wrong)
        self.closely: set[str] = set()
        self.timeline = Timeline(time.monotonic())
        self.facts = {"device": "known", "features": "", "toolchain": "", "codegen": code_version()}
        self.counts: Counter[str] = Counter()
        self.setups: dict[str, dict[str, Any]] = {}
        self.done: dict[str, deque[tuple[int, Outcome]]] = {}

    def add(self, setup: dict[str, Any]) -> str:
        name = json.dumps(setup, sort_keys=True)
        self.setups[name] = setup
        self.done.setdefault(name, deque())
        return name

    def announce(self, problem: str) -> None:
        assert problem in self.setups

    def begin(self, problem: str, described: Sequence[Any], **_: Any) -> list[int]:
        size: Size = self.setups[problem]["sizes"]
        tickets: list[int] = []
        for one in described:
            self.counts[json.dumps(size)] += 1
            tickets.append(self.counts.total())
            seconds = seconds_of(one["decisions"], size)
            found = Outcome(Status.OK, seconds, (seconds,) * 5, code=str(one["key"]))
            if "closely" in one and one["decisions"] in self.wrong:
                found = Outcome(Status.WRONG, reason="wrong output")
            elif "closely" in one:
                self.closely.add(case_text(one["decisions"], size))
            self.done[problem].append((tickets[-1], found))
        return tickets

    def wait_until(self, problem: str, until: float | None) -> tuple[int, Outcome] | None:
        return self.done[problem].popleft() if self.done[problem] else None

    def compare(
        self, problem: str, described: Sequence[Any], rounds: int, seconds: float
    ) -> list[list[float]]:
        size: Size = self.setups[problem]["sizes"]
        return [[seconds_of(one["decisions"], size)] * rounds for one in described]

    def describe(
        self, problem: str, described: Sequence[Any], until: float | None = None
    ) -> list[dict[str, float]]:
        own: Size = self.setups[problem]["sizes"]
        return [
            {
                "seconds": self.told(one["decisions"], own),
                **{f"{AT}{n}": self.told(one["decisions"], s) for n, s in enumerate(one["at"])},
            }
            if "at" in one
            else {"seconds": self.told(one["decisions"], own)}
            for one in described
        ]

    def told(self, decisions: Mapping[str, Any], size: Size) -> float:
        """What the model says."""
        return seconds_of(decisions, size) * wrong_by(decisions, size, self.spread)


def search_together(
    outputs: Any, sizes: Sequence[Size], farm: KnownFarm, trials: int, kernels: int
) -> list[tuple[Size, float, Mapping[str, Any]]]:
    """Each size, its time with a few kernels that one search finds, and what serves it."""
    joint: Any = importlib.import_module("tedsl.autotune.multi.multi_size")

    class Unbuilt(joint.Joint):
        """A search whose kernels are not built."""

        def _built(self, chosen: Any, rows: Any, *_: Any) -> Any:
            assert len(chosen) <= kernels
            return [(row.sizes, row.seconds, chosen[row.kernel].decisions) for row in rows]

    options = Options(trials=trials, kernels=kernels, records=False, progress=False, schedule=tiles)
    weighted = [(dict(size), 1.0 / len(sizes)) for size in sizes]
    return Unbuilt(outputs, "cuda", weighted, Records(None), options, farm).run()


def best_alone(size: Size) -> float:
    """The least time of all candidates."""
    every = (
        {"bm": bm, "bn": bn, "stages": stages, "warps": warps}
        for bm in SIDES
        for bn in SIDES
        for stages in STAGES
        for warps in WARPS
    )
    return min(seconds_of(decisions, size) for decisions in every)


def search_alone(outputs: Any, size: Size, farm: KnownFarm, trials: int) -> float:
    """The time at a size that a search for it alone finds."""
    tuners: Any = importlib.import_module("tedsl.autotune.tuner")
    builders: Any = importlib.import_module("tedsl.autotune.search_space.problem")
    workloads: Any = importlib.import_module("tedsl.workload.workload")
    workload = workloads.Workload.of(outputs)
    problem = builders.Problem(workload.outputs, "cuda", tiles)
    space = problem.space()
    named = json.dumps(dict(size), sort_keys=True, separators=(",", ":"))
    context = context_of(workload, "cuda", space.name, named, farm.facts)
    options = Options(trials=trials, records=False, progress=False, schedule=tiles)
    tuner = tuners.Tuner(
        *(problem, space, workload, context, Records(None), options, dict(size), time.monotonic())
    )
    found = list[float]()
    steps = tuner.steps(tuner.share(farm))
    for _ in steps:
        best = tuner.search.best
        found.append(math.inf if best is None else best.seconds)
        if len(tuner.search.done) >= trials:
            break
    steps.close()
    return min(found)
