"""Where the host's time for one call of a tiny kernel goes, step by step.

    python tests/benchmarks/call_steps.py [--rounds 60]

The workloads of `class_launch`, all in one process, so that they differ in nothing but themselves;
medians in microseconds of what the function written for a call does (`tedsl.runtime.calls.direct`).
Without a GPU on a device that does nothing, with tensors in host memory: all but allocation and
launch are as on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

import class_launch
from fake_cuda import fake_cuda
from job_measure import torch
from workload import Workload, buildable, shape_of

import tedsl as te

Steps = dict[str, Callable[[], Any]]
CALLS = 200
"""Calls without waiting for the device, of which one sample is the mean."""


def kernel_of(load: Workload, build: Callable[..., te.Kernel]) -> tuple[te.Kernel, list[Any]]:
    """The kernel by the default rules, called until its calls have a function, and its inputs."""
    kernel = build(buildable(load.outputs()))
    device = "cuda" if torch.cuda.is_initialized() else "cpu"
    tensors = load.inputs()
    given = [
        torch.ones(shape_of(tensors[each.name]), dtype=getattr(torch, each.dtype.value)).to(device)
        for each in kernel.module.inputs
    ]
    for _ in range(5):
        kernel(*given)
    return kernel, given


def steps_of(kernel: te.Kernel, given: list[Any]) -> Steps:
    """The call, and what it consists of."""
    private: Any = kernel
    like = private._like
    if like is None or not like.alone:
        raise SystemExit(f"no function was written for the calls of {kernel.name}")
    names: Mapping[str, Any] = like.direct.__globals__
    result = kernel(*given)
    launches = private._executor.inlined(like.known.binding)
    addresses = [each.data_ptr() for each in (*given, result)]
    places = [f"p{place}" for place in range(len(addresses))]
    text = "\n    ".join([f"def launch({', '.join(places)}):", *launches.lines])
    found: dict[str, Any] = dict(launches.names)
    exec(text, found)
    (make,) = like.known.allocators
    return {
        "call": lambda: kernel(*given),
        "arguments compared": lambda: names["alike"](*given),
        "addresses": lambda: [each.data_ptr() for each in given],
        "result made and freed": make,
        "current device": names["current"],
        "launched": lambda: found["launch"](*addresses),
        "nothing": lambda: None,
    }


def times(steps: Steps, rounds: int) -> dict[str, float]:
    """Medians in microseconds, of samples taken in turn."""
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 2):
        for name, step in steps.items():
            wait()
            begin = time.perf_counter()
            for _ in range(CALLS):
                step()
            samples[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    wait()
    return {name: statistics.median(taken[2:]) for name, taken in samples.items()}


def wait() -> None:
    """Until the device, if there is one, has nothing to do."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def main() -> None:
    """All workloads, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    with ExitStack() as stack:
        if torch.cuda.is_available():
            torch.cuda.init()

            def build(output: Any) -> te.Kernel:
                return te.build(output, "cuda")
        else:
            build = stack.enter_context(fake_cuda(lambda *_: None))
        made = {load.name: kernel_of(load, build) for load in class_launch.workloads()}
        for name, (kernel, given) in made.items():
            found = times(steps_of(kernel, given), options.rounds)
            print(f"{name}: " + ", ".join(f"{step} {us:.2f}" for step, us in found.items()))


if __name__ == "__main__":
    main()
