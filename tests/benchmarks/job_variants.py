"""Measure several schedules of a row beside its peers, in one process; a job like `job_measure`.

The settings name a module whose `candidates(load)` gives decisions of the rules by name; without
`candidates` there is only the rules' default.  A candidate that is refused, does not compile or
computes something else is noted with its reason, and the others are timed in turn.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import job_measure
import torch_peers
from workload import OURS, Workload, buildable

import tedsl as te
from tedsl.errors import TedslError
from tedsl.runtime.timing import compare_cuda
from tedsl.schedules import schedule_for

torch: Any = torch_peers.torch
Decisions = Mapping[str, object]


def run(load: Workload, settings: Mapping[str, Any], wait: Callable[[], None]) -> dict[str, Any]:
    """Times of all, and why some have none."""
    job_measure.prepare_libraries()
    chosen: dict[str, Decisions] = {OURS: {}}
    if settings.get("candidates"):
        module: Any = importlib.import_module(settings["candidates"])
        chosen.update(module.candidates(load))
    tensors = job_measure.inputs_of(load)
    refused: dict[str, str] = {}
    kernels = built(load, chosen, tensors, refused)
    with torch.no_grad():
        calls = job_measure.peers(load, tensors, settings, {}, refused)
        job_measure.release()
        wait()
        own, errors = verified(load, kernels, tensors, refused)
        job_measure.release()
        times = compare_cuda({**own, **calls}, repeats=40, max_seconds=8.0)
    return {
        "line": load.line,
        "times": {name: round(s.median * 1e3, 5) for name, s in times.items()},
        "spread": {name: round(s.spread, 4) for name, s in times.items()},
        "errors": errors,
        "refused": refused,
        "decisions": {name: dict(chosen[name]) for name in own},
        "GFLOP/s": round(load.flops / times[OURS].median / 1e9, 1) if OURS in times else None,
    }


def built(
    load: Workload,
    chosen: Mapping[str, Decisions],
    tensors: Mapping[str, Any],
    refused: dict[str, str],
) -> dict[str, te.Kernel]:
    """The candidates that compile."""
    kernels: dict[str, te.Kernel] = {}
    for name, decisions in chosen.items():
        try:
            made = buildable(load.outputs())
            assert not isinstance(made, te.Schedule)
            kernel = te.build(schedule_for(made, load.target, decisions), load.target)
            given = [tensors[buffer.name] for buffer in kernel.module.inputs]
            job_measure.compile_ahead(kernel, given)
        except TedslError as error:
            refused[name] = f"{type(error).__name__}: {error}"[:400]
            continue
        kernels[name] = kernel
    return kernels


def verified(
    load: Workload,
    kernels: Mapping[str, te.Kernel],
    tensors: Mapping[str, Any],
    refused: dict[str, str],
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """Calls of the candidates that compute the same as PyTorch in float32, and their errors."""
    function: Any = getattr(torch_peers, load.function)
    wide = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
    found = function(**wide, **load.settings)
    wanted = found if isinstance(found, tuple) else (found,)
    calls: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for name, kernel in kernels.items():
        given = [tensors[buffer.name] for buffer in kernel.module.inputs]
        made = kernel(*given)
        results = made if isinstance(made, tuple) else (made,)
        pairs = zip(results, wanted, strict=True)
        errors[name] = max(float((a.float() - b).norm() / b.norm()) for a, b in pairs)
        if errors[name] <= load.error:
            calls[name] = lambda kernel=kernel, given=given: kernel(*given)
        else:
            refused[name] = f"relative error {errors[name]:.3g} is above {load.error:g}"
    return calls, errors
