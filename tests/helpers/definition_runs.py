"""Build drawn definitions by the default rules, for every target; run them where that can be.

    python tests/helpers/definition_runs.py --seeds 0:5000 --jobs 64 --seconds 540 --out result.json

None may be refused, and none may take long.  Each pair of a seed and a target runs in one of
several processes, which may die or hang: that is counted as well.  On `cpu` and `triton-interpret`
small definitions are called, for each of their sizes, and compared with the NumPy oracle.  The
result counts what came out, with a reproducer for each failure.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf, prod
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from drawn_definitions import Definition, draw
from rule_cases import random_inputs
from rule_checks import EPSILON

import tedsl as te
from tedsl.backends.triton.emit import module as emitter
from tedsl.expr.nodes import Const, Var
from tedsl.expr.numerics import Array
from tedsl.expr.visit import walk
from tedsl.lower.pipeline import lower
from tedsl.reference.reference import evaluate
from tedsl.schedules import attempts
from tedsl.schedules.fallback import Judge
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.printer import operations, print_graph
from tedsl.tensor.tensor import ComputeOp, ScanOp, Tensor

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100", "triton-interpret")
SLOW = 20.0
"""Seconds of a processor that a build may take, with the tools that it calls."""
LIMIT = 300.0
"""Seconds after which a process is ended."""
LIFE = 400
"""Pairs after which a process makes room: what it has loaded stays loaded."""
# Points of all loops up to which a definition is run.
POINTS = {"cpu": 3_000_000, "triton-interpret": 300_000}


@dataclass(frozen=True)
class Outcome:
    """What came of one seed on one target: `built`, `agreed`, or what went wrong."""

    seed: int
    target: str
    kind: str
    what: str
    seconds: float
    fallbacks: tuple[str, ...] = ()
    detail: str = ""

    @property
    def failed(self) -> bool:
        """True for anything but a kernel, in time, that agrees as far as it was run."""
        return self.what not in ("built", "agreed")


def attempt(seed: int, definition: Definition, target: str, ptxas: bool, run: bool) -> Outcome:
    """Build, and run where that is asked for and can be."""
    begin = _spent()

    def outcome(what: str, detail: str = "", fallbacks: Sequence[str] = ()) -> Outcome:
        seconds = round(_spent() - begin, 3) if not built else built[0]
        return Outcome(seed, target, definition.kind, what, seconds, tuple(fallbacks), detail[:600])

    built: list[float] = []
    try:
        kernel, schedule = _built(definition.outputs, target, ptxas)
        built.append(round(_spent() - begin, 3))
        fallbacks = [str(each) for each in schedule.fallbacks]
        if built[0] > SLOW:
            return outcome("slow", fallbacks=fallbacks)
        small = _points(definition.outputs) <= POINTS.get(target, 0)
        if kernel is None or not run or not small:
            return outcome("built", fallbacks=fallbacks)
        wrong = [text for sizes in definition.runs if (text := _wrong(kernel, definition, sizes))]
        return outcome("wrong" if wrong else "agreed", "\n".join(wrong), fallbacks)
    except te.InternalError as error:
        return outcome("internal", str(error))
    except te.TedslError as error:
        return outcome("refused", f"{type(error).__name__}: {error}")
    except RecursionError as error:
        return outcome("crashed", f"RecursionError: {error}")
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
        return outcome("crashed", f"{type(error).__name__}: {error}")


def _spent() -> float:
    """Processor time of this process and of those that have ended: others may keep it waiting."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _built(outputs: list[Tensor], target: str, ptxas: bool) -> tuple[Any, Schedule]:
    """The kernel, or None for a target that has its text only."""
    if target.startswith("cuda:") and not ptxas:
        where = Target.parse(target)

        def printed(schedule: Schedule, judge: Judge) -> Schedule:
            module = lower(schedule.plan, where)
            judge(module)
            emitter.emit(module, where)
            return schedule

        return None, attempts(outputs, where).carried_out(printed)
    kernel = te.build(outputs, target=target, cache=False)
    return (None if target.startswith("cuda:") else kernel), kernel.schedule


def _points(outputs: list[Tensor]) -> int:
    """The points of all loops."""
    total = 0
    for op in operations(outputs):
        if isinstance(op, ComputeOp):
            extents = [a.domain.extent for a in (*op.axes, *op.reduce_axes) if a.domain]
            total += prod(int(e.value) if isinstance(e, Const) else 40 for e in extents)
    return total


def _wrong(kernel: Any, definition: Definition, sizes: dict[str, int]) -> str:
    """How a call differs from the oracle; empty where it does not."""
    found = {
        node
        for op in operations(definition.outputs)
        for extent in op.shape
        for node in walk(extent)
        if isinstance(node, Var)
    }
    values = {var: sizes[var.name] for var in found if var.name in sizes}
    inputs = random_inputs(definition.outputs, values)
    want = evaluate(definition.outputs, inputs, values)
    states = {
        s for op in operations(definition.outputs) if isinstance(op, ScanOp) for s in op.states
    }
    given = [array for tensor, array in inputs.items() if tensor not in states]
    scalars = {name: sizes[name] for name in kernel.signature.keywords}
    result = kernel(*given, **scalars)
    got = list(result) if isinstance(result, tuple) else [result]
    narrow = max(
        (EPSILON[t.dtype.value] for op in operations(definition.outputs) for t in op.outputs
         if t.dtype.is_float), default=0.0,
    )  # fmt: skip
    lines = [
        f"{t.name} with {sizes}: {text}"
        for t, x, y in zip(definition.outputs, got, want, strict=True)
        if (text := differs(x, y, narrow))
    ]
    return "\n".join(lines)


def differs(got: Array, want: Array, epsilon: float) -> str:
    """Where two results differ by more than roundings of the narrowest dtype on the way."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    if not epsilon:
        return "" if np.array_equal(got, want) else f"{int(np.sum(got != want))} elements differ"
    x, y = np.asarray(got, np.float64), np.asarray(want, np.float64)
    finite = np.isfinite(y)
    largest = max(1.0, float(np.abs(y[finite]).max(initial=0)))
    bound = 256 * epsilon * largest * (1 if want.dtype.kind == "f" else 4)
    far = finite & ~(np.abs(x - y) <= bound)
    odd = ~finite & ~((x == y) | (np.isnan(x) & np.isnan(y)))
    count = int(np.sum(far)) + int(np.sum(odd))
    worst = float(np.abs(x - y)[far].max(initial=0)) if far.any() else 0.0
    return f"{count} of {x.size} elements differ, by up to {worst:.3g} of {bound:.3g}" * (count > 0)


# Processes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What to do for each seed."""

    targets: tuple[str, ...]
    ptxas: bool
    run: bool
    generator: Callable[[int], Definition] = draw


class _Child:
    """A process that attempts one pair of seed and target after the other.

    It keeps to two processors of its own: so do its kernels and the tools that it calls.
    """

    def __init__(self, number: int, plan: Plan) -> None:
        cores = sorted(os.sched_getaffinity(0))
        own = {cores[(number + more) % len(cores)] for more in range(2)}
        context = multiprocessing.get_context("fork")
        self.number, self.given = number, 0
        self.pair, self.begin = (0, ""), 0.0
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there, own, plan), daemon=True)
        self.process.start()
        there.close()

    def give(self, pair: tuple[int, str]) -> None:
        """Say what is next."""
        self.pair, self.begin = pair, time.monotonic()
        self.given += 1
        self.pipe.send(pair)

    def answer(self) -> Outcome | None:
        """What came of it, or of the process; None as long as there is nothing to tell."""
        try:
            if self.pipe.poll():
                return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self.ended("died")
        return self.ended("hung") if time.monotonic() - self.begin > LIMIT else None

    def ended(self, what: str) -> Outcome:
        """How a process failed to answer; it is no more."""
        seconds = round(time.monotonic() - self.begin, 3)
        self.close()
        status = f"{what}, status {self.process.exitcode}"
        return Outcome(*self.pair, "", what, seconds, detail=status)

    def close(self) -> None:
        """End the process."""
        self.given = LIFE
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(pipe: Connection, cores: set[int], plan: Plan) -> None:
    os.sched_setaffinity(0, cores)
    parent = os.getppid()
    while os.getppid() == parent:  # others have the pipe too: no end of it tells of the parent's
        if pipe.poll(5.0):
            seed, target = pipe.recv()
            definition = plan.generator(seed)
            pipe.send(attempt(seed, definition, target, plan.ptxas, plan.run))


def run_seeds(
    seeds: Iterable[int], plan: Plan, jobs: int = 1, seconds: float = inf
) -> Iterator[Outcome]:
    """The outcomes of all seeds on all targets, as they come, until the seconds are over.

    Args:
        jobs: processes at a time; one that dies or hangs is replaced, and costs one pair.
    """
    end = time.monotonic() + seconds
    waiting = ((seed, target) for seed in seeds for target in plan.targets)
    children = [_Child(number, plan) for number in range(jobs)]
    busy: list[_Child] = []
    for child, pair in zip(children, waiting, strict=False):
        child.give(pair)
        busy.append(child)
    try:
        while busy:
            wait([child.pipe for child in busy], timeout=1.0)
            for child in list(busy):
                outcome = child.answer()
                if outcome is None:
                    continue
                busy.remove(child)
                yield outcome
                pair = next(waiting, None) if time.monotonic() < end else None
                if pair is None:
                    continue
                if child.given >= LIFE:
                    child.close()
                    child = children[child.number] = _Child(child.number, plan)
                child.give(pair)
                busy.append(child)
    finally:
        for child in children:
            child.close()


def reproducer(outcome: Outcome, generator: Callable[[int], Definition] = draw) -> str:
    """What shows a failure: the seed and the definition."""
    definition = generator(outcome.seed)
    return (
        f"--- seed {outcome.seed} on {outcome.target}: {outcome.what} after {outcome.seconds} s\n"
        f"    from drawn_definitions import draw; te.build(draw({outcome.seed}).outputs, "
        f'target="{outcome.target}")\n{outcome.detail}\n{print_graph(definition.outputs)}'
    )


def commit() -> str:
    """The commit that was tested, where git can tell."""
    folder = Path(__file__).parent
    done = subprocess.run(
        ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts by target, the slowest builds, and the failures."""
    outcomes = sorted(outcomes, key=lambda each: each.seed)
    counts: dict[str, dict[str, int]] = {}
    for target in dict.fromkeys(each.target for each in outcomes):
        own = [each for each in outcomes if each.target == target]
        counts[target] = dict(Counter(each.what for each in own))
        counts[target]["definitions"] = len(own)
        counts[target]["with a fallback"] = sum(bool(each.fallbacks) for each in own)
    slowest = sorted(outcomes, key=lambda each: -each.seconds)[:5]
    return {
        "counts": counts,
        "slowest": [(each.seed, each.target, each.seconds) for each in slowest],
        "failures": [asdict(each) for each in outcomes if each.failed],
        "fallbacks": [
            (each.seed, each.target, *each.fallbacks) for each in outcomes if each.fallbacks
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:50", help="A:B")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--no-ptxas", action="store_true", help="cuda targets: the text only")
    parser.add_argument("--no-run", action="store_true", help="call nothing")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=inf, help="after which no pair is begun")
    parser.add_argument("--commit", default="", help="what is tested, where git cannot tell")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    targets = tuple(options.targets.split(","))
    plan = Plan(targets, not options.no_ptxas, not options.no_run)
    outcomes: list[Outcome] = []
    asked = {
        "commit": options.commit or commit(),
        "seeds": options.seeds,
        "ptxas": plan.ptxas,
        "jobs": options.jobs,
    }
    begin = written = time.monotonic()

    def found() -> dict[str, Any]:
        pairs = {"seconds": round(time.monotonic() - begin, 1), "pairs": len(outcomes)}
        pairs["pairs not begun"] = (last - first) * len(targets) - len(outcomes)
        result = {**asked, **pairs, **summary(outcomes)}
        if options.out is not None:
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return result

    for each in run_seeds(range(first, last), plan, options.jobs, options.seconds):
        outcomes.append(each)
        if each.failed:
            sys.stdout.write(reproducer(each) + "\n")
            sys.stdout.flush()
        if time.monotonic() > written + 10:
            found()
            written = time.monotonic()
    result = found()
    shown = {key: value for key, value in result.items() if key not in ("failures", "fallbacks")}
    sys.stdout.write(json.dumps(shown) + "\n")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
