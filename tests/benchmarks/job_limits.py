"""Build a row as `job_measure` does, compile it, and time it alone, without its peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import job_measure
from workload import Workload

import tedsl as te
from tedsl.runtime.timing import measure_cuda

REPEATS = 40


def run(load: Workload, settings: Mapping[str, Any], wait: Callable[[], None]) -> dict[str, Any]:
    """The time by the clock, and the schedule that it is of."""
    kernel, how = job_measure.kernel_for(load, settings)
    call = call_of(load, kernel)
    wait()
    stats = measure_cuda(call, repeats=REPEATS, max_seconds=3.0)
    return {
        "line": load.line,
        "how": how,
        "ms": round(stats.median * 1e3, 5),
        "spread": round(stats.spread, 4),
        "kernels": len(kernel.module.funcs),
        "schedule": kernel.schedule.as_python(),
    }


def call_of(load: Workload, kernel: te.Kernel) -> Callable[[], object]:
    """A call on inputs like the benchmark's, compiled ahead; one of plain launches where the
    benchmark takes a graph, since the profiler counts those."""
    job_measure.torch.manual_seed(5)
    tensors = job_measure.inputs_of(load)
    given = [tensors[buffer.name] for buffer in kernel.module.inputs]
    job_measure.compile_ahead(kernel, given)
    return lambda: kernel(*given)
