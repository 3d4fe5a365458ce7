"""How long primitives and the lowering take on a graph of 20 stages.

    python tests/benchmarks/compile_time.py [--profile]

Prints the median and the slowest call of each primitive in milliseconds, the time to print the
schedule, and the time to lower it for each target, with constant and with runtime sizes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import tedsl as te
from tedsl.lower.pipeline import lower
from tedsl.target import Target

BLOCKS = 4  # of five stages each
TARGETS = ("cpu", "triton-interpret")


def graph(rows: Any, columns: Any) -> Any:
    """Twenty stages: four times a row sum, a scaled row, a shift, a product and a residue."""
    last = te.placeholder((rows, columns), name="X")
    for n in range(BLOCKS):
        k = te.reduce_axis((0, columns), name=f"k{n}")
        total = _reduced(last, rows, k, n)
        scaled = _stage(rows, columns, lambda i, j, x=last, t=total: x[i, j] / t[i], f"scaled{n}")
        moved = _stage(rows, columns, lambda i, j, x=scaled: x[i, j] - 0.5, f"moved{n}")
        squared = _stage(rows, columns, lambda i, j, x=moved: x[i, j] * x[i, j], f"squared{n}")
        last = _stage(
            rows, columns, lambda i, j, x=squared, y=last: te.exp(x[i, j]) + y[i, j], f"out{n}"
        )
    return last


def _reduced(source: Any, rows: Any, k: Any, n: int) -> Any:
    return te.compute(
        (rows,), lambda i: te.sum(source[i, k] * source[i, k], axis=k), name=f"total{n}"
    )


def _stage(rows: Any, columns: Any, body: Callable[..., Any], name: str) -> Any:
    return te.compute((rows, columns), lambda i, j: body(i, j), name=name)


def scheduled(output: Any) -> tuple[te.Schedule, dict[str, list[float]]]:
    """A schedule of the graph, one kernel for each block, and the seconds of each call."""
    seconds: dict[str, list[float]] = defaultdict(list)
    s = te.create_schedule(output)

    def timed(handle: Any, primitive: str, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = getattr(handle, primitive)(*args, **kwargs)
        seconds[primitive].append(time.perf_counter() - begin)
        return result

    for n in reversed(range(BLOCKS)):
        host = s[f"out{n}"]
        i, j = host.op.axis
        jo, ji = timed(host, "split", j, factor=32)
        timed(host, "vectorize", ji)
        timed(host, "parallel", i)
        for name in ("moved", "squared"):
            timed(s[f"{name}{n}"], "compute_inline")
        stage = s[f"scaled{n}"]
        timed(stage, "compute_at", host, jo)
        timed(stage, "vectorize", stage.op.axis[1])
        stage = s[f"total{n}"]
        timed(stage, "compute_at", host, i)
        outer, inner = timed(stage, "split", stage.op.reduce_axis[0], factor=16)
        timed(stage, "vectorize", inner)
        timed(stage, "pipeline", outer, 2)
    return s, seconds


def lowering_seconds(s: te.Schedule, target: str) -> float:
    """The time of one lowering."""
    begin = time.perf_counter()
    lower(s.plan, Target.parse(target))
    return time.perf_counter() - begin


def report(sizes: str, output: Any) -> None:
    """Print the figures of one graph."""
    s, seconds = scheduled(output)
    every = [value for values in seconds.values() for value in values]
    sys.stdout.write(f"{sizes} sizes, {len(s.stages) - 1} stages\n")
    for primitive, values in sorted({**seconds, "any primitive": every}.items()):
        middle, worst = 1e3 * statistics.median(values), 1e3 * max(values)
        sys.stdout.write(f"  {primitive:15} median {middle:7.2f} ms  slowest {worst:7.2f} ms\n")
    begin = time.perf_counter()
    str(s)
    sys.stdout.write(f"  print           {1e3 * (time.perf_counter() - begin):7.1f} ms\n")
    for target in TARGETS:
        lowering_seconds(s, target)
        best = min(lowering_seconds(s, target) for _ in range(3))
        sys.stdout.write(f"  lower for {target:17} {best:6.3f} s\n")


def main() -> None:
    """Report, or profile the calls and the lowering."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    n = te.size_var("n")
    if not options.profile:
        report("constant", graph(64, 1000))
        report("runtime", graph(te.size_var("m"), n))
        return
    profile = cProfile.Profile()
    profile.enable()
    s, _ = scheduled(graph(te.size_var("m"), n))
    for target in TARGETS:
        lowering_seconds(s, target)
    profile.disable()
    pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
