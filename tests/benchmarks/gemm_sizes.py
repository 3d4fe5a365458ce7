"""Twelve sizes of a matrix product by a few kernels, beside a search for each size.

    python tests/benchmarks/gemm_sizes.py                          bf16 on the GPU, 4 kernels
    python tests/benchmarks/gemm_sizes.py --target cpu --trials 8  float32, small sizes

Three rows per size: the dispatcher's kernel, the winner of a search for that size alone (of the
same symbolic computation, or with `--constant` of constant sizes), and their ratio; timed in turn.
Then the geometric mean of the ratios, the number of kernels, what both searches took, and what a
dispatch costs beside a plain call.  In what time is left the rules' kernel of each size as a
constant is timed beside the dispatcher's: what it costs that sizes come with the call.  `--out`
writes all as JSON, after each size; `complete` says whether all are in it.  With `--seconds` it
stops in time with the sizes it has.

All searches share one set of workers, which the first has started, and what it has measured of a
size is not measured again by the search for that size: `--cold` starts each from nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
import run

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.cluster.device_host import HOSTS
from tedsl.tensor.tensor import Tensor

LARGE = [
    (16, 4096, 4096), (64, 4096, 4096), (256, 4096, 4096), (1024, 4096, 4096),
    (4096, 4096, 4096), (8192, 8192, 8192), (512, 512, 512), (1024, 1024, 1024),
    (2048, 2048, 2048), (4096, 11008, 4096), (128, 11008, 4096), (1000, 3000, 2000),
]  # fmt: skip
SMALL = [
    (1, 256, 256), (8, 128, 128), (33, 65, 70), (64, 64, 64), (128, 64, 32), (64, 256, 128),
    (128, 128, 128), (16, 256, 256), (256, 64, 32), (7, 13, 100), (256, 32, 256), (96, 96, 96),
]  # fmt: skip
Call = Callable[[], object]
TOGETHER = 0.6
"""Of the seconds there are, what the search for all sizes may take."""
BUILD = 6.0
"""Seconds for the kernel of one constant size."""


def product(dtype: str) -> Callable[[Any, Any, Any], Tensor]:
    """The product as a function of its sizes."""

    def make(m: Any, n: Any, k: Any) -> Tensor:
        a = te.placeholder((m, k), dtype, name="A")
        b = te.placeholder((k, n), dtype, name="B")
        return te.nn.matmul(a, b)

    return make


def arrays(target: str, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    """Two inputs and an output."""
    if target == "cpu":
        rng = np.random.default_rng(0)
        a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
        return a.astype(np.float32), b.astype(np.float32), np.empty((m, n), np.float32)
    torch: Any = importlib.import_module("torch")
    made = [torch.randn(shape, device="cuda") for shape in ((m, k), (k, n), (m, n))]
    return tuple(array.to(torch.bfloat16) for array in made)


def seconds_of(target: str, call: Call) -> float:
    """Time of one call, launches included."""
    if target == "cpu":
        number = max(1, int(2e-3 / max(min(repeat(call, number=1, repeat=3)), 1e-7)))
        return min(repeat(call, number=number, repeat=5)) / number
    torch: Any = importlib.import_module("torch")
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e4


def in_turn(target: str, calls: list[Call], rounds: int) -> list[float]:
    """Medians of the times of several calls, taken in turn."""
    samples = [[seconds_of(target, call) for call in calls] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*samples, strict=True)]


def dispatch_cost(dispatch: Any, target: str, size: tuple[int, int, int]) -> float:
    """Seconds by which a call through the dispatcher takes longer than one of its kernel."""
    m, n, k = size
    a, b, out = arrays(target, m, n, k)
    kernel = dispatch.kernel(m=m, n=n, k=k)
    torch: Any = None if target == "cpu" else importlib.import_module("torch")

    def best(call: Callable[..., object]) -> float:
        found: list[float] = []
        for _ in range(200):
            begin = time.perf_counter()
            for _ in range(50):
                call(a, b, out=out)
            found.append((time.perf_counter() - begin) / 50)
            if torch is not None:
                torch.cuda.synchronize()
        return min(found)

    best(dispatch)
    best(kernel)
    return statistics.median(best(dispatch) - best(kernel) for _ in range(5))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--trials", type=int, default=128, help="of the search for all sizes")
    parser.add_argument("--each", type=int, default=64, help="trials of a search for one size")
    parser.add_argument("--kernels", type=int, default=4)
    parser.add_argument("--sizes", type=int, default=12, help="how many of the sizes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--constant", action="store_true", help="compare with constant sizes")
    parser.add_argument("--seconds", type=float, default=None, help="after which it stops")
    parser.add_argument("--cold", action="store_true", help="new workers for each search")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--commit", default="", help="what is measured, where git cannot tell")
    return parser.parse_args()


def beside_single(
    dispatch: Any, options: argparse.Namespace, point: tuple[int, int, int], left: float | None
) -> dict[str, Any]:
    """The dispatcher's kernel beside the winner of a search for one size, in `left` seconds."""
    m, n, k = point
    size = {"m": m, "n": n, "k": k}
    make = product("bfloat16" if options.target == "cuda" else "float32")
    begin = time.monotonic()
    own: dict[str, Any] = {} if options.constant else {"sizes": size}
    outputs = make(m, n, k) if options.constant else symbolic(options.target)
    own |= {} if options.cold else {"devices": [0]}
    single = tune(
        outputs, options.target, trials=options.each, seconds=left, records=False, **own
    ).kernel
    spent = time.monotonic() - begin
    a, b, out = arrays(options.target, m, n, k)
    kernel = dispatch.kernel(**size)
    calls: list[Call] = [lambda: kernel(a, b, out=out), lambda: single(a, b, out=out)]
    shared, best = in_turn(options.target, calls, options.rounds)
    number = dispatch.number(**size)
    sys.stdout.write(
        f"{m:>6} {n:>6} {k:>6}  kernel {number}  {shared * 1e6:>9.2f} us  "
        f"alone {best * 1e6:>9.2f} us  {shared / best:.3f}x\n"
    )
    sys.stdout.flush()
    times = {"dispatched": shared, "single": best, "ratio": shared / best, "search": spent}
    times["whole"] = time.monotonic() - begin
    return {**size, "kernel": number, **times}


def beside_constant(
    dispatch: Any, options: argparse.Namespace, point: tuple[int, int, int]
) -> dict[str, float]:
    """The dispatcher's kernel beside that of the rules for constant sizes."""
    m, n, k = point
    make = product("bfloat16" if options.target == "cuda" else "float32")
    a, b, out = arrays(options.target, m, n, k)
    fixed = te.build(make(m, n, k), options.target)
    kernel = dispatch.kernel(m=m, n=n, k=k)
    calls: list[Call] = [lambda: kernel(a, b, out=out), lambda: fixed(a, b, out=out)]
    shared, constant = in_turn(options.target, calls, options.rounds)
    text = f"{m:>6} {n:>6} {k:>6}  constant sizes {constant * 1e6:>9.2f} us"
    sys.stdout.write(f"{text}  {shared / constant:.3f}x\n")
    sys.stdout.flush()
    return {"constant": constant, "ratio_to_constant": shared / constant}


def symbolic(target: str) -> Tensor:
    """The product of any sizes."""
    make = product("bfloat16" if target == "cuda" else "float32")
    return make(te.size_var("m"), te.size_var("n"), te.size_var("k"))


def main() -> None:
    """Measure, and print a table."""
    options = arguments()
    with nullcontext() if options.cold else HOSTS.kept():
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Search for all sizes, then for each, as long as there is time."""
    target = options.target
    points = (LARGE if target == "cuda" else SMALL)[: options.sizes]
    sizes = [{"m": m, "n": n, "k": k} for m, n, k in points]
    begin = time.monotonic()
    dispatch = te.autotune(
        symbolic(target),
        target,
        sizes=sizes,
        trials=options.trials,
        seconds=None if options.seconds is None else TOGETHER * options.seconds,
        kernels=options.kernels,
        records=False,
        devices=None if options.cold else [0],
    )
    together = time.monotonic() - begin
    sys.stdout.write(f"{dispatch}\n\n{dispatch.source}\n{together:.0f} s for all\n")
    cost = dispatch_cost(dispatch, target, min(points, key=math.prod))
    rows: list[dict[str, Any]] = []
    where = {"machine": run.machine("measure", target, options.commit)}
    found = where | summary(rows, dispatch, cost, together, len(points))
    for point in points:
        left = None if options.seconds is None else begin + options.seconds - time.monotonic()
        usual = statistics.fmean([row["whole"] for row in rows]) if rows else 0.0
        if left is not None and left <= usual:
            break
        rows.append(beside_single(dispatch, options, point, left))
        found = where | summary(rows, dispatch, cost, together, len(points))
        write(options.out, found, rows)
    write(options.out, found, rows)
    for row in rows:
        left = None if options.seconds is None else begin + options.seconds - time.monotonic()
        if left is not None and left <= BUILD:
            break
        row |= beside_constant(dispatch, options, (row["m"], row["n"], row["k"]))
        write(options.out, found, rows)
    sys.stdout.write(
        f"{len(rows)} of {len(points)} sizes by {found['kernels']} kernels, "
        f"{found['geomean'] or math.nan:.3f}x the time of a search for each size (geometric mean); "
        f"{together:.0f} s for all, {found['seconds_alone']:.0f} s one by one; "
        f"a dispatch costs {found['dispatch_us']:.2f} us\n"
    )


def write(out: Path | None, found: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write what there is by now."""
    if out is not None:
        out.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def summary(
    rows: list[dict[str, Any]], dispatch: Any, cost: float, together: float, points: int
) -> dict[str, Any]:
    """What the rows so far come to."""
    return {
        "complete": len(rows) == points,
        "kernels": len(dispatch.kernels),
        "geomean": statistics.geometric_mean([row["ratio"] for row in rows]) if rows else None,
        "dispatch_us": cost * 1e6,
        "seconds_together": together,
        "seconds_alone": sum(row["search"] for row in rows),
    }


if __name__ == "__main__":
    main()
