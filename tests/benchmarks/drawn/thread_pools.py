"""Drawn rows on the CPU in PyTorch's threads and in tedsl's own, beside eager PyTorch.

    python tests/benchmarks/drawn/thread_pools.py --seed 271127 --numbers 1 5 20 44 96

Calls of ours and of eager are timed in blocks by turns, as `run_drawn.py` does: after each block of
eager its threads go on looking for work for some milliseconds, and threads of another pool share
the processors with them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "helpers"))

from kinds import row_of
from run_drawn import RESULTS, machine

from tedsl.backends.cpu import num_threads, set_num_threads

torch: Any = importlib.import_module("torch")
tensors: Any = importlib.import_module("tensors")
trace: Any = importlib.import_module("tedsl.torch").trace
BLOCK, LEAST, TURNS = 0.004, 3, 9
"""Seconds of calls in a block, the least number of them, and how many blocks there are of each."""


def main() -> None:
    """Time the rows, print them and write them down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=271127)
    parser.add_argument("--numbers", type=int, nargs="+", default=[1, 5, 20, 44, 64, 96, 129])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = [row_of(options.seed, number, "cpu", ["float32"], []) for number in options.numbers]
    found: dict[str, dict[str, float]] = {row.name: {} for row in rows}
    for pool in ("PyTorch's", "its own"):
        if pool == "its own":
            set_num_threads(num_threads())
        for row in rows:
            found[row.name] |= timed(row, pool, options.out)
    for name, each in found.items():
        print(name, {what: round(us, 1) for what, us in each.items()})
    threads = {"threads": num_threads(), "microseconds": found, "machine": machine("cpu")}
    path = options.out / "thread_pools.json"
    path.write_text(json.dumps(threads, indent=1) + "\n", encoding="utf-8")


def timed(row: Any, pool: str, folder: Path) -> dict[str, float]:
    """Microseconds of a call of ours in one pool, and of eager beside it: medians of the blocks."""
    path = folder / "thread_pools_row.py"
    path.write_text(row.source(), encoding="utf-8")
    spec: Any = importlib.util.spec_from_file_location("thread_pools_row", path)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.unlink()
    given = tensors.made(row, "cpu")
    with torch.no_grad():
        ours = trace(module.f, *given).build(target="cpu")
        blocks = [(block(ours, given), block(module.f, given)) for _ in range(TURNS)]
    mine, eager = (statistics.median(each) * 1e6 for each in zip(*blocks, strict=True))
    return {f"tedsl in {pool} threads": mine, f"eager beside {pool}": eager}


def block(call: Callable[..., Any], given: Sequence[Any]) -> float:
    """Seconds of a call: the lower quartile of a block; the first call wakes threads."""
    call(*given)
    found, begin = list[float](), time.perf_counter()
    while len(found) < LEAST or time.perf_counter() - begin < BLOCK:
        since = time.perf_counter()
        call(*given)
        found.append(time.perf_counter() - since)
    return statistics.quantiles(found, n=4)[0]


if __name__ == "__main__":
    main()
