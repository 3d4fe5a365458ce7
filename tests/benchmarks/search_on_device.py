"""Searches from cold caches on this device, against what an exhaustive search found.

    python tests/benchmarks/search_on_device.py [--only gemm softmax norm] [--out FILE]
        [--budgets none normal full] [--alone]

Each computation is searched four times over: with nothing measured, with the normal budget (64
measurements), by torch.compile in its max-autotune mode, and by `triton.autotune` over a kernel
written by hand, which tries the configurations that the second search measured.  The winners, the
default and the best point of the recorded space are then timed in turn, in one process.  Prints one
JSON object per computation: seconds spent, measurements, where they went, idle share of the device,
and speed over the best known.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import record_space
import triton_peers

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.report.events import Event, Phase, Tried, WorkerReady
from tedsl.autotune.search.budget import BUDGETS
from tedsl.autotune.search.simulate.recorded_space import read_space
from tedsl.autotune.search_space.problem import Problem
from tedsl.expr.nodes import Const
from tedsl.runtime.timing import compare_cuda

SPACES = Path(__file__).parents[1] / "data" / "spaces"
B = "bfloat16"
ROUNDS = 41
Calls = dict[str, Callable[[], object]]


def norm() -> te.Tensor:
    """Layer norm of a sum, in bf16."""
    x, y = (te.placeholder((8192, 4096), B, name=name) for name in "xy")
    scale, shift = (te.placeholder((4096,), B, name=name) for name in ("scale", "shift"))
    total = te.compute((8192, 4096), lambda i, j: x[i, j] + y[i, j], name="total")
    return te.nn.layer_norm(total, scale, shift)


def torch_gemm(torch: Any) -> Callable[..., Any]:
    """The same as `record_space.gemm`."""
    return lambda a, b, bias: torch.nn.functional.gelu(a @ b + bias)


def torch_softmax(torch: Any) -> Callable[..., Any]:
    """The same as `record_space.softmax`."""
    return lambda x: torch.softmax(x, -1)


def torch_norm(torch: Any) -> Callable[..., Any]:
    """The same as `norm`."""
    layer_norm = torch.nn.functional.layer_norm
    return lambda x, y, scale, shift: layer_norm(x + y, (4096,), scale, shift)


@dataclass(frozen=True)
class Case:
    """A computation, its twin in PyTorch, and the recorded space it belongs to (if any)."""

    make: Callable[[], te.Tensor]
    twin: Callable[[Any], Callable[..., Any]]
    space: str = ""


CASES = {
    "gemm": Case(record_space.gemm, torch_gemm, "gemm"),
    "softmax": Case(record_space.softmax, torch_softmax, "softmax"),
    "norm": Case(norm, torch_norm),
}


def one(name: str, budgets: Sequence[str], peers: bool) -> dict[str, Any]:
    """All searches for one computation; the caches of this process are new and empty."""
    torch: Any = importlib.import_module("torch")
    case = CASES[name]
    report: dict[str, Any] = {"name": name, "device": torch.cuda.get_device_name()}
    kernels, measured = searched(case, budgets, report)
    given = {
        buffer.name: torch.randn(
            [int(extent.value) for extent in buffer.shape if isinstance(extent, Const)],
            device="cuda",
            dtype=getattr(torch, buffer.dtype.value),
        )
        for buffer in kernels["default"].signature.inputs
    }
    inputs = list(given.values())
    calls: Calls = {
        label: partial(kernel, *(given[b.name] for b in kernel.signature.inputs))
        for label, kernel in kernels.items()
    }
    if peers:
        calls |= searched_by_others(torch, case, name, inputs, measured, report)
    stats = compare_cuda(calls, repeats=ROUNDS, warmup=3, max_seconds=20.0)
    times = {label: found.median for label, found in stats.items()}
    best = min(times[label] for label in kernels)
    report["microseconds"] = {label: round(t * 1e6, 2) for label, t in times.items()}
    report["of the best"] = {label: round(best / t, 3) for label, t in times.items()}
    return report


def searched_by_others(
    torch: Any,
    case: Case,
    name: str,
    inputs: Sequence[Any],
    measured: Sequence[Mapping[str, object]],
    report: dict[str, Any],
) -> Calls:
    """What torch.compile and `triton.autotune` find, and the seconds that took."""
    begin = time.monotonic()
    twin = torch.compile(case.twin(torch), mode="max-autotune-no-cudagraphs")
    wanted = twin(*inputs).float()
    torch.cuda.synchronize()
    report["torch.compile"] = {"seconds": round(time.monotonic() - begin, 1)}
    answers = [{k.rpartition(".")[2]: v for k, v in found.items()} for found in measured]
    peer, count = triton_peers.PEERS[name](answers)
    begin = time.monotonic()
    got = peer(*inputs).float()
    torch.cuda.synchronize()
    seconds = round(time.monotonic() - begin, 1)
    error = float((got - wanted).norm() / wanted.norm())
    report["triton.autotune"] = {"seconds": seconds, "tried": count, "error": error}
    return {
        "torch.compile": lambda: twin(*inputs),
        "triton.autotune": lambda: peer(*inputs),
    }


def searched(
    case: Case, budgets: Sequence[str], report: dict[str, Any]
) -> tuple[dict[str, te.Kernel], list[Mapping[str, object]]]:
    """The kernels of the default, of the searches and of the recorded space's best point, and the
    choices of what the last search measured."""
    output = case.make()
    kernels = {"default": te.build(case.make(), "cuda")}
    measured: list[Mapping[str, object]] = []
    for budget in budgets:
        begin = time.monotonic()
        found = tune(output, "cuda", budget=budget, records=False, progress=False)
        measured = [t.candidate.decisions for t in found.trials if t.outcome.samples]
        report[budget] = {
            "seconds": round(time.monotonic() - begin, 1),
            "measured": len(measured),
            "idle": round(found.idle, 3),
            "compiling": round(found.compile_seconds, 1),
            "measuring": round(found.measure_seconds, 1),
            "rejected": dict(found.rejected),
            "phases": {e.stage.value: round(e.at, 1) for e in found.events if isinstance(e, Phase)},
            "workers ready": _ready(found.events),
            "outcomes after": [round(e.at, 1) for e in found.events if isinstance(e, Tried)][::8],
        }
        kernels[budget] = found.kernel
    if case.space:
        space = read_space(SPACES / f"{case.space}.csv.gz")
        row = min(range(len(space)), key=lambda r: space.outcomes[r].seconds or float("inf"))
        decisions = space.points().decisions(row)
        schedule = Problem([output], "cuda").schedule(decisions)
        kernels["best recorded"] = te.build(schedule, "cuda")
    return kernels, measured


def _ready(events: Sequence[Event]) -> dict[str, Any]:
    """When the first and the last worker of each role had begun, and what took how long there."""
    ready: dict[str, list[WorkerReady]] = {}
    for event in events:
        if isinstance(event, WorkerReady):
            ready.setdefault(event.role, []).append(event)
    return {
        role: {
            "since": [round(found[0].since, 1), round(found[-1].since, 1)],
            "seconds": dict(found[0].seconds),
        }
        for role, found in ready.items()
    }


def main() -> None:
    """Run each computation in a process of its own with empty caches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--budgets", nargs="+", choices=list(BUDGETS), default=["none", "normal"])
    parser.add_argument("--alone", action="store_true", help="leave out what others search")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(one(options.here, options.budgets, not options.alone)))
        return
    reports: list[dict[str, Any]] = []
    more = ["--budgets", *options.budgets, *(["--alone"] if options.alone else [])]
    for name in options.only:
        with tempfile.TemporaryDirectory() as cache:
            empty = {
                "TRITON_CACHE_DIR": f"{cache}/triton",
                "XDG_CACHE_HOME": cache,
                "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            }
            done = subprocess.run(
                [sys.executable, __file__, "--here", name, *more],
                env={**os.environ, **empty},
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
        lines = done.stdout.strip().splitlines()
        reports.append(json.loads(lines[-1]) if lines else {"name": name, "failed": True})
        print(json.dumps(reports[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(reports, indent=1) + "\n")


if __name__ == "__main__":
    main()
