"""Build drawn definitions by the default rules, for every target; run them where that can be.

    python tests/helpers/definition_runs.py --seeds 0:200 --no-ptxas --out result.json

None may be refused, and none may take long.  A seed runs in a process that may die or hang: that is
counted as well.  On `cpu` and `triton-interpret` small definitions are called, for each of their
sizes, and compared with the NumPy oracle.  The result counts what came out, with a reproducer for
each failure.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from multiprocessing.connection import Connection
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
from tedsl.tensor.tensor import ComputeOp, Tensor

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100", "triton-interpret")
SLOW = 20.0
"""Seconds of a processor that a build may take, with the tools that it calls."""
LIMIT = 300.0
"""Seconds after which a process is ended."""
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
    arrays = {tensor.name: array for tensor, array in inputs.items()}
    given = [arrays[buffer.name] for buffer in kernel.module.inputs]
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


def _work(pipe: Connection, seeds: Sequence[int], plan: Plan) -> None:
    for seed in seeds:
        for target in plan.targets:
            pipe.send(("begin", seed, target))
            definition = plan.generator(seed)
            pipe.send(("end", attempt(seed, definition, target, plan.ptxas, plan.run)))
    pipe.send(("done",))


def _message(pipe: Connection) -> tuple[Any, ...]:
    """What a process says, or what became of it."""
    try:
        return pipe.recv() if pipe.poll(LIMIT) else ("hung",)
    except EOFError:
        return ("died",)


def run_seeds(seeds: Iterable[int], plan: Plan) -> Iterable[Outcome]:
    """The outcomes of seeds, in a process that is replaced where it dies or hangs."""
    context = multiprocessing.get_context("fork")
    waiting = list(seeds)
    while waiting:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, waiting, plan), daemon=True)
        process.start()
        there.close()
        at: tuple[Any, ...] = waiting[0], plan.targets[0]
        while True:
            message = _message(here)
            if message[0] == "begin":
                at = message[1:]
            elif message[0] == "end":
                yield message[1]
                continue
            elif message[0] == "done":
                waiting = []
                break
            else:
                process.kill()
                process.join()
                what = f"{message[0]}, status {process.exitcode}"
                yield Outcome(at[0], at[1], "", message[0], LIMIT, detail=what)
                waiting = waiting[waiting.index(at[0]) + 1 :]
                break
        process.join()


def reproducer(outcome: Outcome, generator: Callable[[int], Definition] = draw) -> str:
    """What shows a failure: the seed and the definition."""
    definition = generator(outcome.seed)
    return (
        f"--- seed {outcome.seed} on {outcome.target}: {outcome.what} after {outcome.seconds} s\n"
        f"    from drawn_definitions import draw; te.build(draw({outcome.seed}).outputs, "
        f'target="{outcome.target}")\n{outcome.detail}\n{print_graph(definition.outputs)}'
    )


def commit() -> str:
    """The commit that was tested."""
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
    counts: dict[str, dict[str, int]] = {}
    for target in dict.fromkeys(each.target for each in outcomes):
        own = [each for each in outcomes if each.target == target]
        counts[target] = dict(Counter(each.what for each in own))
        counts[target]["definitions"] = len(own)
        counts[target]["with a fallback"] = sum(bool(each.fallbacks) for each in own)
    slowest = sorted(outcomes, key=lambda each: -each.seconds)[:5]
    return {
        "commit": commit(),
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
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    targets = tuple(options.targets.split(","))
    plan = Plan(targets, not options.no_ptxas, not options.no_run)
    outcomes: list[Outcome] = []
    for each in run_seeds(range(int(first), int(last)), plan):
        outcomes.append(each)
        if each.failed:
            sys.stdout.write(reproducer(each) + "\n")
            sys.stdout.flush()
        if options.out is not None and (each.failed or len(outcomes) % 100 == 0):
            options.out.write_text(json.dumps(summary(outcomes), indent=1) + "\n")
    found = summary(outcomes)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps({k: found[k] for k in ("commit", "counts", "slowest")}) + "\n")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
