"""Candidate schedules of attention beside cuDNN's and FlashAttention's kernels, on a device.

    python tests/benchmarks/attention_variants.py --out FOLDER --seconds 240
    python tests/benchmarks/attention_variants.py --out FOLDER --seconds 90 --only "backward"

Every candidate is built, verified and timed in a process of its own, in turn with its peers; one
that hangs is killed.  `FOLDER/attention_variants.json` has every row as soon as it is measured;
at the end a table says for each computation what its candidates reached.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import class_attention
from runner import Plan, Row, Runner
from workload import CUDNN, FLASH, FLEX, OURS, Workload

import tedsl as te
from tedsl.schedules import schedule_for

# Rows of a block, keys of a turn, warps, stages, programs that a processor is to have room for.
Sizes = tuple[int, ...]
DEEP: tuple[Sizes, ...] = (
    (64, 128, 4, 1, 3), (64, 128, 4, 1, 0), (64, 64, 4, 1, 4), (64, 64, 4, 2, 3),
    (128, 128, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4),
    (128, 64, 4, 2), (64, 64, 4, 2), (128, 32, 4, 3), (128, 32, 4, 4), (64, 32, 4, 4),
)  # fmt: skip
FLAT: tuple[Sizes, ...] = (
    (64, 128, 4, 2, 3), (64, 128, 4, 1, 4), (64, 128, 4, 1, 0), (64, 64, 4, 2, 4),
    (128, 128, 4, 3), (64, 64, 4, 3), (128, 128, 8, 3), (128, 128, 4, 2), (64, 128, 4, 3),
    (64, 64, 4, 2), (64, 64, 4, 4), (128, 64, 4, 4), (128, 32, 4, 4), (64, 128, 4, 4),
)  # fmt: skip
# Of the kernel for dQ, and of that for dK and dV.
BACKWARD: Mapping[int, tuple[tuple[Sizes, Sizes], ...]] = {
    128: (
        ((128, 128, 8, 2), (128, 64, 8, 2)),
        ((128, 128, 8, 2), (128, 32, 8, 3)),
        ((128, 64, 8, 3), (128, 32, 8, 3)),
        ((64, 64, 4, 3), (128, 32, 8, 3)),
        ((128, 32, 8, 3), (128, 32, 8, 2)),
        ((128, 128, 8, 2), (128, 32, 8, 4)),
        ((64, 32, 4, 3), (64, 32, 4, 3)),
        ((64, 32, 4, 4), (64, 64, 4, 3)),
    ),
    64: (
        ((128, 128, 8, 2), (128, 64, 8, 2)),
        ((128, 128, 8, 2), (128, 128, 8, 2)),
        ((128, 64, 4, 3), (128, 64, 4, 3)),
        ((64, 64, 4, 3), (64, 64, 4, 3)),
        ((64, 128, 4, 3), (64, 64, 4, 3)),
        ((64, 64, 4, 2), (64, 64, 4, 2)),
        ((64, 32, 4, 3), (64, 32, 4, 3)),
        ((64, 64, 4, 4), (64, 64, 4, 4)),
        ((64, 64, 4, 3), (64, 32, 4, 4)),
        ((64, 64, 4, 3), (128, 32, 8, 3)),
    ),
}


def workloads() -> list[Workload]:
    """The first candidates of all computations, then the second ones, and so on."""
    table = [_candidates(load) for load in _computations()]
    longest = max(map(len, table))
    return [group[n] for n in range(longest) for group in table if n < len(group)]


def _computations() -> list[Workload]:
    """Some rows of the benchmark: both depths, both directions, masks and none."""
    wanted = (
        "attention, bf16 64x4096x128",
        "attention, causal, bf16 64x4096x128",
        "attention, bf16 128x4096x64",
        "attention, causal, bf16 128x4096x64",
        "attention, causal, bf16 256x2048x64",
        "attention, causal, bf16 128x2048x128",
        "attention, causal, bf16 32x8192x128",
        "attention, causal, bf16 64x8192x64",
        "attention, causal, bf16 32x16384x64",
        "attention backward, causal, bf16 64x4096x128",
        "attention backward, bf16 128x4096x64",
        "attention, window 1024, bf16 32x8192x128",
        "attention, soft cap, bf16 64x4096x128",
        "attention, causal, bf16 16x16384x128",
    )
    rows = {load.name: load for load in class_attention.workloads()}
    return [rows[name] for name in wanted]


def _candidates(load: Workload) -> list[Workload]:
    made = _backward(load) if load.function == "attention_backward" else _forward(load)
    peers = {name: how for name, how in load.peers.items() if name in (CUDNN, FLASH, FLEX)}
    fast = {name: how for name, how in peers.items() if name is not FLEX}
    found = [
        replace(load, name=f"{load.name} | {name}", make=make, peers=fast)
        for name, make in made.items()
    ]
    # FlexAttention tunes itself for long: once for each computation is enough.
    return [replace(found[0], peers=peers), *found[1:]]


Make = Callable[..., te.Schedule]


def _forward(load: Workload) -> dict[str, Make]:
    """One kernel, in sizes of tiles."""
    made = _orders(load, ("out",))
    for sizes in DEEP if load.sizes["depth"] > 64 else FLAT:
        made[_tile(sizes)] = _decided(load, _named("out", sizes))
    if load.sizes["causal"]:
        small = _named("out", (64, 64, 4, 3))
        more = {"out.descending": False}
        made[f"{_tile((64, 64, 4, 3))} {more}"] = _decided(load, {**small, **more})
    return made


def _orders(load: Workload, kernels: Sequence[str]) -> dict[str, Make]:
    """The default; where rows differ in length, also one head after another and the same rows of
    all heads, between which the default lies."""
    made: dict[str, Make] = {"default": _decided(load, {})}
    for heads in (1, load.sizes["heads"]) if load.sizes["causal"] else ():
        decisions = {f"{kernel}.together": heads for kernel in kernels}
        made[f"default {decisions}"] = _decided(load, decisions)
    return made


def _backward(load: Workload) -> dict[str, Make]:
    """Two kernels, each in sizes of its own."""
    made = _orders(load, ("dq", "dk"))
    for dq, dkv in BACKWARD[load.sizes["depth"]]:
        decisions = {**_named("dq", dq), **_named("dk", dkv)}
        made[f"dq {_tile(dq)}, dk dv {_tile(dkv)}"] = _decided(load, decisions)
    return made


def _decided(load: Workload, decisions: Mapping[str, object]) -> Make:
    """The rules' schedule under decisions."""

    def make(**sizes: Any) -> te.Schedule:
        made = load.make(**sizes)
        outputs = made.outputs if isinstance(made, te.Schedule) else made
        return schedule_for(outputs, load.target, decisions)

    return make


def _named(kernel: str, sizes: Sizes) -> dict[str, object]:
    names = ("bm", "bk", "warps", "stages", "occupancy")[: len(sizes)]
    return {f"{kernel}.{name}": size for name, size in zip(names, sizes, strict=True)}


def _tile(sizes: Sizes) -> str:
    rows, turn, warps, stages, *programs = sizes
    return f"{rows}x{turn} w{warps} s{stages}" + "".join(f" by {n}" for n in programs if n)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose name contains one of")
    parser.add_argument("--jobs", type=int, default=0, help="child processes at a time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "attention_variants.json"
    rows: list[Row] = []
    begin = time.monotonic()

    def add(row: Row) -> None:
        row.pop("schedule", None)
        rows.append(row)
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(f"{time.monotonic() - begin:5.0f} s {_line(row)}", flush=True)

    every = [load.name for load in workloads()]
    names = [name for name in every if any(part in name for part in options.only)]
    plan = Plan(
        mode="measure",
        settings={"quick": True},
        suite="attention_variants",
        jobs=options.jobs or max(2, len(os.sched_getaffinity(0)) * 3 // 4),
        prepare=120.0,
        measure=25.0,
        seconds=options.seconds - 10.0,
    )
    left = Runner(plan, add).run(names)
    print(_table(rows))
    print(f"{len(left)} candidates had no time; {path}")


def _line(row: Row) -> str:
    if "failed" in row:
        return f"{row['name']}: FAILED {row['failed'][:200]}"
    times = ", ".join(f"{name} {taken['ms']:.4f}" for name, taken in row["times"].items())
    return f"{row['name']}: {times} ms, error {row['error']:.1e}, {row['GFLOP/s']} GFLOP/s"


def _table(rows: Sequence[Row]) -> str:
    """For each computation its candidates, the fastest first, with how many times longer each peer
    took in the same process."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["name"].split(" | ")[0], []).append(row)
    lines: list[str] = []
    for name, group in groups.items():
        measured = [row for row in group if "times" in row]
        lines += ["", name]
        for row in sorted(measured, key=lambda row: row["times"][OURS]["ms"]):
            ours = row["times"][OURS]["ms"]
            ratios = ", ".join(
                f"{peer} {taken['ms'] / ours:.2f}x"
                for peer, taken in row["times"].items()
                if peer != OURS
            )
            candidate = row["name"].split(" | ")[1]
            lines.append(f"  {ours:8.4f} ms  {row['GFLOP/s'] / 1e3:6.0f} TF  {ratios}  {candidate}")
        lines += [f"  failed  {r['name'].split(' | ')[1]}" for r in group if "failed" in r]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
