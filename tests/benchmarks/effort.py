"""Compare how long Triton takes over kernels with what `tedsl.backends.triton.compile.compile_time`
says.

    python tests/benchmarks/effort.py --out FILE [--arch sm_90] [--limit 90] [NAME ...]

Needs no GPU.  Times are of the processor, of compilers that run as processes of their own too; a
kernel that takes longer than the limit is stopped and counted as that long.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import triton

import tedsl as te
from tedsl import schedules
from tedsl.backends.triton.compile import compile_time
from tedsl.lower import pipeline
from tedsl.target import Target

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import narrow_cases


def _by_rules(make: Callable[[], Any], **decisions: object) -> Callable[[Target], te.Schedule]:
    def scheduled(target: Target) -> te.Schedule:
        made = make()
        outputs = list(made) if isinstance(made, tuple) else [made]
        return schedules.schedule_for(outputs, target, decisions)

    return scheduled


def _unrolled(turns: int, tile: int, calls: int) -> Callable[[Target], te.Schedule]:
    """A loop of `turns` over a tile, unrolled, with so many functions in each turn."""

    def scheduled(target: Target) -> te.Schedule:
        x = te.placeholder((turns, 1 << 20), name="x")
        k = te.reduce_axis((0, turns), name="k")

        def term(i: Any) -> Any:
            value = x[k, i]
            for _ in range(calls):
                value = te.exp(value) + 0.5
            return value

        y = te.compute((1 << 20,), lambda i: te.sum(term(i), axis=k), name="y")
        s = te.create_schedule(y)
        block = s.cache_write(y, "local")
        outer, inner = s[y].split(s[y].op.axis[0], tile)
        s[y].bind(outer, "blockIdx.x")
        s[y].vectorize(inner)
        s[block].compute_at(s[y], outer)
        s[block].unroll(s[block].op.reduce_axis[0])
        return s

    return scheduled


def _wide(tile: int, calls: int, warps: int = 4) -> Callable[[Target], te.Schedule]:
    """One tile of so many elements with so many functions of each."""

    def scheduled(target: Target) -> te.Schedule:
        x = te.placeholder((1 << 22,), name="x")

        def point(i: Any) -> Any:
            value = x[i]
            for n in range(calls):
                value = te.tanh(value) if n % 2 else te.exp(value)
            return value

        y = te.compute((1 << 22,), point, name="y")
        s = te.create_schedule(y)
        outer, inner = s[y].split(s[y].op.axis[0], tile)
        s[y].bind(outer, "blockIdx.x")
        s[y].vectorize(inner)
        s[y].launch(num_warps=warps)
        return s

    return scheduled


def _product(bm: int, bn: int, bk: int, dtype: str, warps: int) -> Callable[[Target], te.Schedule]:
    """A product in one tile for each program, whether a unit multiplies it or not."""

    def scheduled(target: Target) -> te.Schedule:
        a, b = (te.placeholder((1024, 1024), dtype, name=name) for name in "ab")
        k = te.reduce_axis((0, 1024), name="k")
        c = te.compute((1024, 1024), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        s = te.create_schedule(c)
        rows, columns, row, column = s[c].tile(*s[c].op.axis, bm, bn)
        s[c].bind(rows, "blockIdx.y")
        s[c].bind(columns, "blockIdx.x")
        s[c].vectorize(row)
        s[c].vectorize(column)
        outer, inner = s[c].split(s[c].op.reduce_axis[0], bk)
        s[c].vectorize(inner)
        s[c].reorder(rows, columns, outer, row, column, inner)
        s[c].launch(num_warps=warps)
        return s

    return scheduled


def cases() -> dict[str, Callable[[Target], te.Schedule]]:
    """What is compared: operators by default rules, and schedules that ask for much."""
    found = {
        name: _by_rules(make)
        for name, make in {**narrow_cases.PRODUCTS, **narrow_cases.OTHERS}.items()
    }
    for turns, tile, calls in (
        (16, 512, 2),
        (16, 2048, 2),
        (64, 512, 4),
        (64, 2048, 2),
        (128, 1024, 1),
        (300, 256, 1),
        (600, 256, 1),
    ):
        found[f"unrolled {turns} {tile} {calls}"] = _unrolled(turns, tile, calls)
    for tile, calls, warps in (
        (1024, 8, 4),
        (4096, 8, 4),
        (8192, 8, 4),
        (16384, 2, 4),
        (32768, 1, 4),
    ):
        found[f"wide {tile} {calls} {warps}"] = _wide(tile, calls, warps)
    for tile in (
        (64, 64, 32, "float32", 4),
        (128, 128, 32, "float32", 8),
        (128, 128, 32, "float32", 4),
    ):
        found[" ".join(map(str, ("product", *tile)))] = _product(*tile)
    for tile in (
        (16, 16, 16, "float64", 4),
        (32, 32, 16, "float64", 4),
        (64, 32, 16, "float64", 4),
    ):
        found[" ".join(map(str, ("product", *tile)))] = _product(*tile)
    for tile in ((64, 64, 8, "int32", 4), (32, 32, 32, "int32", 4), (128, 256, 64, "bfloat16", 8)):
        found[" ".join(map(str, ("product", *tile)))] = _product(*tile)
    for tile in ((128, 256, 64, "bfloat16", 4), (256, 256, 64, "bfloat16", 4)):
        found[" ".join(map(str, ("product", *tile)))] = _product(*tile)
    return found


def _compile(make: Callable[[Target], te.Schedule], target: Target, answers: Any) -> None:
    schedule = make(target)
    module = pipeline.lower(schedule.plan, target)
    parts = [compile_time.effort(f) for f in module.funcs if f.host_call is None]
    answers.put([astuple(part) for part in parts])
    start, children = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    te.build(schedule, str(target), cache=False)
    answers.put(
        time.process_time()
        - start
        + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        - children
    )


def measure(name: str, arch: str, limit: float) -> dict[str, Any]:
    """One case: what is said of it, and what it took."""
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    target = Target.parse(f"cuda:{arch}")
    child = context.Process(target=_compile, args=(cases()[name], target, answers))
    child.start()
    row: dict[str, Any] = {"name": name, "triton": triton.__version__, "arch": arch}
    try:
        row["parts"] = answers.get(timeout=limit)
        row["said"] = sum(compile_time.Effort(*part).seconds for part in row["parts"])
        row["took"] = answers.get(timeout=limit)
    except queue.Empty:
        row["took"], row["stopped"] = limit, True
        child.kill()
    child.join()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--limit", type=float, default=90.0)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"
    for name in args.names or cases():
        row = measure(name, args.arch, args.limit)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        said, took = row.get("said", float("nan")), row["took"]
        sys.stdout.write(f"{name:32} {said:7.1f} {took:7.1f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
