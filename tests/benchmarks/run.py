"""Measure tedsl against its peers, in one run: `python tests/benchmarks/run.py --target cpu|cuda`.

Outputs are checked against float32 first; then all candidates are timed in turn (interleaved,
medians, L2 flushed on the GPU).  The result goes to `results/<target>.json`, and the tables of the
README are written from those files (`--table` alone does only that).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from workloads import COMPILED, EAGER, TUNED, Workload, cpu_workloads, gpu_workloads, torch

import tedsl as te
from tedsl.runtime.timing import Stats, compare, compare_cuda

HERE = Path(__file__).parent
README = HERE.parent.parent / "README.md"
Calls = dict[str, Callable[[], object]]


def main() -> None:
    """Parse the options, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="measure rows whose name contains this")
    parser.add_argument("--quick", action="store_true", help="few samples, no torch.compile")
    parser.add_argument("--trials", type=int, default=0, help="search so many candidates a row")
    parser.add_argument("--seconds", type=float, default=None, help="search so long a row")
    parser.add_argument("--records", type=Path, default=HERE / "records")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--commit", default="", help="what is measured, where git cannot tell")
    parser.add_argument("--table", action="store_true", help="only write the README's tables")
    options = parser.parse_args()
    if not options.table:
        measure_all(options)
    if options.out == HERE / "results":
        write_tables()


def measure_all(options: argparse.Namespace) -> None:
    """Every chosen row; the file is written after each, so that an ended run leaves its rows."""
    rows: list[dict[str, Any]] = []
    chosen = cpu_workloads() if options.target == "cpu" else gpu_workloads()
    start = time.perf_counter()
    for load in chosen:
        if options.only in load.name:
            row = measure_row(load, options)
            rows.append(row)
            report: dict[str, Any] = {
                "machine": machine(options.target, options.commit),
                "rows": rows,
            }
            report["seconds"] = round(time.perf_counter() - start, 1)
            options.out.mkdir(parents=True, exist_ok=True)
            path = options.out / f"{options.target}.json"
            path.write_text(json.dumps(report, indent=1) + "\n")
            print(line(row), flush=True)


def line(row: dict[str, Any]) -> str:
    """One row as text."""
    times = ", ".join(f"{k} {v['ms']:.4f}" for k, v in row["times"].items())
    bars = ", ".join(f"{b['peer']} {b['got']:.2f} (>= {b['ratio']})" for b in row["bars"])
    verdict = "ok" if all(b["met"] for b in row["bars"]) else "MISSED"
    return f"{verdict:6} {row['name']}: {times} ms | {bars} | {row['how']}"


def machine(target: str, commit: str) -> dict[str, str]:
    """What the figures were taken on."""
    names = ["tedsl", "numpy", "llvmlite", "triton", "torch"]
    found = {name: installed(name) for name in names}
    commit = (
        commit
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
        ).stdout.strip()
    )
    where = {"python": platform.python_version(), "commit": commit or "unknown", **found}
    if target == "cuda":
        where["gpu"] = torch.cuda.get_device_name()
    else:
        where["cpu"] = cpu_name()
    return where


def installed(name: str) -> str:
    """A package's version, or what is missing."""
    try:
        return version(name)
    except ImportError:
        return "not installed"


def cpu_name() -> str:
    """The processor and its number of usable cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    return f"{model or platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def measure_row(load: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Build, check, time one workload."""
    kernel, how = kernel_for(load, options)
    gpu = load.target == "cuda"
    torch_inputs = random_inputs(load)
    inputs = torch_inputs if gpu else [t.numpy() for t in torch_inputs]
    error = check(load, kernel, inputs, torch_inputs)
    calls: Calls = {"tedsl": lambda: kernel(*inputs)}
    calls.update(peers(load, torch_inputs, options.quick))
    repeats = 10 if options.quick else 60 if gpu else 25
    timed = (compare_cuda if gpu else compare)(calls, repeats=repeats)
    ours = timed["tedsl"].median
    bars: list[dict[str, Any]] = [
        {"peer": bar.peer, "ratio": bar.ratio, "got": round(ratio(load, bar.peer, timed), 4)}
        for bar in load.bars
        if bar.peer in timed
    ]
    for bar in bars:
        bar["met"] = bar["got"] >= bar["ratio"]
    return {
        "name": load.name,
        "how": how,
        "error": error,
        "times": {
            name: {"ms": s.median * 1e3, "spread": round(s.spread, 4)} for name, s in timed.items()
        },
        "GB/s": round(load.traffic / ours / 1e9, 1),
        "GFLOP/s": round(load.flops / ours / 1e9, 1) if load.flops else None,
        "bars": bars,
        "schedule": kernel.schedule.as_python(),
    }


def kernel_for(load: Workload, options: argparse.Namespace) -> tuple[te.Kernel, str]:
    """The searched schedule, a recorded winner, or the rules' default."""
    outputs = load.make()
    if isinstance(outputs, te.Schedule):
        return te.build(outputs, load.target), "written schedule"
    records = options.records / f"{load.target}.sqlite"
    if options.trials or options.seconds:
        kernel = te.autotune(
            outputs,
            load.target,
            trials=options.trials or None,
            seconds=options.seconds,
            records=records,
            progress=False,
        )
        return kernel, "search"
    return te.build(outputs if len(outputs) > 1 else outputs[0], load.target), "default rules"


def random_inputs(load: Workload) -> list[Any]:
    """Fresh normal numbers, as PyTorch tensors on the target's device."""
    where = "cuda" if load.target == "cuda" else "cpu"
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return [
        torch.randn(*shape, device=where, dtype=kinds[dtype])
        for shape, dtype in zip(load.shapes, load.dtypes, strict=True)
    ]


def check(load: Workload, kernel: te.Kernel, inputs: list[Any], torch_inputs: list[Any]) -> float:
    """The relative error of the worst output; exits when it is above the bound."""
    got = kernel(*inputs)
    outs = got if isinstance(got, tuple) else (got,)
    expected = load.torch_call(*[t.float() for t in torch_inputs])
    wanted = expected if isinstance(expected, tuple) else (expected,)
    worst = 0.0
    for out, want in zip(outs, wanted, strict=True):
        mine = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
        error = float((mine.float() - want).norm() / want.norm())
        worst = max(worst, error if error == error else float("inf"))
    if worst > load.error:
        sys.exit(f"{load.name}: relative error {worst:.3g} is above {load.error:g}")
    return worst


def peers(load: Workload, inputs: list[Any], quick: bool) -> Calls:
    """The same computation by others, and a copy of as many bytes on the GPU."""
    calls: Calls = {EAGER: lambda: load.torch_call(*inputs)}
    if load.target == "cpu":
        arrays = [t.numpy() for t in inputs]
        if "matmul" in load.name and "gelu" not in load.name:
            calls["numpy"] = lambda: np.matmul(*arrays)
        if "chain" in load.name:
            x, y = arrays
            calls["numpy"] = lambda: 1.0 / (1.0 + np.exp(1.0 - np.maximum((x + y) * 2.0, 0.0)))
    else:
        half = torch.empty(load.traffic // 2, dtype=torch.uint8, device="cuda")
        other = torch.empty_like(half)
        calls["copy"] = lambda: other.copy_(half)
    if not quick:
        plain = torch.compile(load.torch_call, dynamic=False)
        calls[COMPILED] = lambda: plain(*inputs)
        if load.target == "cuda":
            tuned = torch.compile(
                load.torch_call,
                dynamic=False,
                options={"max_autotune": True, "coordinate_descent_tuning": True},
            )
            calls[TUNED] = lambda: tuned(*inputs)
    return calls


def ratio(load: Workload, peer: str, timed: dict[str, Stats]) -> float:
    """Seconds of the peer over ours; `torch.compile max-autotune` is the better of its two."""
    theirs = timed[peer].median
    if peer == TUNED:
        theirs = min(theirs, timed[COMPILED].median)
    return theirs / timed["tedsl"].median


def write_tables() -> None:
    """Replace what stands between the README's markers by the tables of the results."""
    text = README.read_text()
    for target in ("cpu", "cuda"):
        path = HERE / "results" / f"{target}.json"
        begin, end = f"<!-- benchmark {target} -->", f"<!-- end {target} -->"
        if path.exists() and begin in text and end in text:
            head, rest = text.split(begin)
            tail = rest.split(end)[1]
            text = head + begin + "\n" + table(json.loads(path.read_text())) + end + tail
    README.write_text(text)


def table(report: dict[str, Any]) -> str:
    """A Markdown table: milliseconds of each, and how many times as fast tedsl is."""
    where = report["machine"]
    device = where.get("gpu") or where.get("cpu")
    tools = ", ".join(f"{k} {where[k]}" for k in ("torch", "numpy", "triton", "llvmlite"))
    lines = [f"{device}; {tools}; commit {where['commit']}.", ""]
    names = [EAGER, COMPILED, TUNED, "numpy", "copy"]
    used = [n for n in names if any(n in r["times"] for r in report["rows"])]
    lines.append("| workload | tedsl, ms | " + " | ".join(f"vs {n}" for n in used) + " | from |")
    lines.append("|---" * (len(used) + 3) + "|")
    for row in report["rows"]:
        ours = row["times"]["tedsl"]["ms"]
        cells = [f"{row['times'][n]['ms'] / ours:.2f}x" if n in row["times"] else "" for n in used]
        lines.append(f"| {row['name']} | {ours:.4f} | " + " | ".join(cells) + f" | {row['how']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
