"""What a warm `te.autotune` costs in a new process, imports aside.

    python tests/benchmarks/warm_call.py [--target cpu|cuda] [--processes 9] [--out FILE]

For each computation one process searches, with caches of its own; the others then load the modules
that the first had loaded, take the time of the call that returns the callable kernel, and run it.
Prints one JSON object: medians in milliseconds, of the clock and of the processor, and whether
anything was compiled.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import tedsl as te

SIZE = 512


def softmax() -> te.Tensor:
    """Rows of float32."""
    return te.nn.softmax(te.placeholder((SIZE, SIZE), "float32", name="x"))


def linear() -> te.Tensor:
    """A product with bias and gelu."""
    a, b = (te.placeholder((SIZE, SIZE), "float32", name=name) for name in "ab")
    bias = te.placeholder((SIZE,), "float32", name="bias")
    product = te.nn.matmul(a, b)
    return te.nn.gelu(te.compute((SIZE, SIZE), lambda i, j: product[i, j] + bias[j], name="biased"))


CASES: dict[str, Callable[[], te.Tensor]] = {"softmax": softmax, "linear": linear}


def called(name: str, target: str, modules: Sequence[str]) -> dict[str, Any]:
    """One call in this process."""
    for module in modules:
        with suppress(ImportError):  # names that a program gives itself
            importlib.import_module(module)
    output = CASES[name]()
    wall, processor = time.perf_counter(), time.process_time()
    kernel = te.autotune(output, target=target, budget="quick", progress=False)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    rng = np.random.default_rng(1)
    shapes = [[int(str(extent)) for extent in b.shape] for b in kernel.signature.inputs]
    arrays: list[Any] = [rng.standard_normal(shape, np.float32) for shape in shapes]
    if target == "cuda":
        torch: Any = importlib.import_module("torch")
        arrays = [torch.from_numpy(array).cuda() for array in arrays]
    kernel(*arrays)
    return {
        "ms": wall * 1e3,
        "processor ms": processor * 1e3,
        "from cache": kernel.from_cache,
        "modules": list(sys.modules),
    }


def median(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Several processes, after one that searches."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = Path(folder) / "modules.json"
        loaded.write_text("[]")
        command = [sys.executable, __file__, "--target", options.target, "--here", name]
        env = {**os.environ, "TEDSL_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
        found: list[dict[str, Any]] = []
        for _ in range(options.processes + 1):
            given = [*command, "--modules", str(loaded)]
            done = subprocess.run(given, env=env, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout.strip().splitlines()[-1]))
            loaded.write_text(json.dumps(found[-1].pop("modules")))
    first, *rest = found
    return {
        "search ms": round(first["ms"], 1),
        "warm ms": round(statistics.median(each["ms"] for each in rest), 1),
        "warm processor ms": round(statistics.median(each["processor ms"] for each in rest), 1),
        "compiled": sum(not each["from cache"] for each in rest),
    }


def main() -> None:
    """All computations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--modules", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(
            json.dumps(
                called(options.here, options.target, json.loads(options.modules.read_text()))
            )
        )
        return
    report = {name: median(name, options) for name in CASES}
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
