"""Does the closing comparison tell kernels apart that differ, and only those?

    python tests/benchmarks/aa_test.py --target cpu|cuda [--trials 200] [--out FILE]

First a kernel of about 20 us is compared with itself, built a second time, as often as asked: at
most 5% may be called different.  Then with one that takes 3% longer, which is the same computation
over more elements (how much longer it takes is measured with many samples first): at least 90% must
be found.  Arrays, rotation, clock and decision are those of the search.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tedsl as te
from tedsl.autotune.measure.bench import Bench
from tedsl.autotune.measure.final_comparison import Verdict, decide
from tedsl.autotune.measure.paired_ratios import ratio_of
from tedsl.autotune.outcome import Outcome, Status, Trial
from tedsl.autotune.records.machine import describe_cpu, describe_gpu
from tedsl.autotune.search_space.space import Candidate, Knob
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

SLOWER = 1.03
STEP = 256
LONG = 400
"""Rounds by which a true ratio is taken."""


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A kernel with the calls of its rotation."""

    bench: Bench
    rotation: list[Callable[[], object]]


def main() -> None:
    """Calibrate, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--microseconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(options.target, options.trials, options.microseconds * 1e-6, Path(folder))
    text = json.dumps(report, indent=1)
    if options.out is not None:
        options.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


def run(target: str, trials: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Both tests on one device."""
    begin = time.perf_counter()
    count, made = calibrated(target, seconds, folder)
    slower, ratio = slower_one(target, count, made, folder)
    same = Made(made.bench, made.bench.rotation(built(made.bench)))
    equal = [compare(made, same) for _ in range(trials)]
    apart = [compare(slower, made) for _ in range(trials)]
    return {
        "device": describe_cpu()[0] if target == "cpu" else describe_gpu()[0],
        "elements": count,
        "microseconds": round(1e6 * median_of(made), 2),
        "way": getattr(made.bench.clock, "way", "host clock"),
        "trials": trials,
        "identical, called different": sum(len(v.ties) == 1 for v in equal) / trials,
        "true ratio": round(ratio, 4),
        "difference found": sum(v.winner.number == 1 for v in apart) / trials,
        "rounds": [round(statistics.mean(rounds_of(v) for v in vs), 1) for vs in (equal, apart)],
        "seconds": round(time.perf_counter() - begin, 1),
    }


def made_of(target: str, count: int, folder: Path) -> Made:
    """A kernel over `count` elements on a bench of its own."""
    x = te.placeholder((count,), "float32", name="x")
    y = te.compute((count,), lambda i: te.tanh(x[i]) * 2.0 + 1.0, name="y")
    workload = Workload.of(y)
    place = folder / str(count)
    place.mkdir(exist_ok=True)
    bench = Bench(workload, Extents(workload, {}), target, 1, place)
    return Made(bench, bench.rotation(built(bench)))


def built(bench: Bench) -> Any:
    """The kernel of a bench, built anew: by the rules on a GPU, in one thread on the CPU."""
    output = bench.workload.outputs[0]
    if bench.target == "cuda":
        return te.build(output, bench.target)
    schedule = te.create_schedule(output)
    _, inner = schedule[output].split(bench.workload.computes[0].axes[0], factor=16)
    schedule[output].vectorize(inner)
    return te.build(schedule, bench.target)


def median_of(made: Made, rounds: int = 15) -> float:
    """Seconds of one call."""
    return statistics.median(made.bench.clock.time({"": made.rotation}, rounds, 5.0)[""])


def calibrated(target: str, seconds: float, folder: Path) -> tuple[int, Made]:
    """How many elements take about so long, and the kernel."""
    count = 64 * STEP
    for _ in range(8):
        made = made_of(target, count, folder)
        taken = median_of(made)
        if 0.9 < taken / seconds < 1.1:
            break
        factor = min(8.0, max(0.125, seconds / taken))
        count = max(STEP, round(count * factor / STEP) * STEP)
    return count, made_of(target, count, folder)


def slower_one(target: str, count: int, made: Made, folder: Path) -> tuple[Made, float]:
    """A kernel that takes 3% longer, as near as it can be had, and by how much it does."""
    more, ratio = count, 1.0
    best = made, 1.0
    for _ in range(12):
        # a fixed part of the time does not grow with the elements
        step = round(count * (SLOWER - ratio) / STEP) or (1 if ratio < SLOWER else -1)
        more = max(count, more + step * STEP)
        found = made_of(target, more, folder)
        taken = sampled(found, made, LONG)
        ratio = ratio_of(taken[0], taken[1]).middle
        if abs(ratio - SLOWER) < abs(best[1] - SLOWER):
            best = found, ratio
        if abs(ratio - SLOWER) < 0.003:
            break
    return best


def sampled(one: Made, other: Made, rounds: int) -> list[list[float]]:
    """Samples of two kernels, taken in turn."""
    rotations = {"one": one.rotation, "other": other.rotation}
    found = one.bench.clock.time(rotations, rounds, 60.0)
    return [list(found["one"]), list(found["other"])]


def compare(one: Made, other: Made) -> Verdict:
    """What the closing comparison says, `one` being the incumbent."""
    made = {0: one, 1: other}
    trials = [_trial(0), _trial(1)]

    def taken(left: Sequence[Trial], rounds: int) -> list[list[float]]:
        rotations = {str(t.number): made[t.number].rotation for t in left}
        found = one.bench.clock.time(rotations, rounds, 10.0)
        return [list(found[name]) for name in rotations]

    return decide(trials, trials[0], taken)


def rounds_of(verdict: Verdict) -> int:
    """How many rounds a comparison took."""
    return len(verdict.samples[0])


def _trial(number: int) -> Trial:
    candidate = Candidate((Knob("n", (number,), number),), str(number), "random")
    return Trial(number, candidate, Outcome(Status.OK, 1.0, (1.0,), code=str(number)))


if __name__ == "__main__":
    main()
