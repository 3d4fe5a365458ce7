"""Measure a row beside its peers, in one process: build, compile, verify, then time in turn.

Compiling comes first and runs beside that of other rows; timings that `torch.compile` takes while
it tunes hold a lock that all processes share, so that they do not disturb each other.  From the
moment that the row has its turn nothing else runs.  Loaded only where PyTorch is.
"""

from __future__ import annotations

import fcntl
import importlib
import inspect
import os
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import job_check
import job_tune
import numpy as np
import references
import torch_peers
from summary import DISTURBED
from workload import (
    COMPILED,
    COPY,
    EAGER,
    HOST_LIMIT,
    LAUNCHED,
    LIMIT,
    NUMPY,
    OURS,
    TUNED,
    Workload,
    buildable,
    shape_of,
)

import tedsl as te
from tedsl.runtime.timing import Stats, compare, compare_cuda

torch: Any = torch_peers.torch
Call = Callable[[], Any]
Settings = Mapping[str, Any]
LOCK = Path(tempfile.gettempdir()) / "tedsl-benchmark-device.lock"
TUNED_OPTIONS = {"max_autotune": True, "coordinate_descent_tuning": True}
SLOW = 0.2
"""Seconds of a call from which few samples have to do."""
AGAIN = 3
"""Times that a row is measured whose samples do not agree."""
CALLS = 200
"""Calls without waiting for the device, of which one sample of the host's time is the mean."""


def run(load: Workload, settings: Settings, wait: Callable[[], None]) -> dict[str, Any]:
    """Times of all, the error, what was built and how."""
    prepare_libraries()
    kernel, how = kernel_for(load, settings)
    tensors = inputs_of(load)
    seconds: dict[str, float] = {"tedsl build": sum(kernel.build_seconds.values())}
    arrays = tensors if load.target == "cuda" else {k: v.numpy() for k, v in tensors.items()}
    given = [arrays[buffer.name] for buffer in kernel.module.inputs]
    with timed(seconds, "tedsl compile"):
        compile_ahead(kernel, given)
    ours = kernel.graphed(copied=()) if load.graphed else kernel
    calls: dict[str, Call] = {OURS: lambda: ours(*given)}
    if load.graphed:
        calls[LAUNCHED] = lambda: kernel(*given)
    refused: dict[str, str] = {}
    with torch.no_grad():
        calls.update(peers(load, tensors, settings, seconds, refused))
        release()
        wait()
        error = check(load, ours(*given), tensors)
        release()
        slow = seconds_of(calls[OURS]) > SLOW
        times = take_times(load, calls, settings, slow)
    taken = times[OURS]
    return {
        "line": load.line,
        "how": how,
        "error": error,
        "times": {
            name: {"ms": s.median * 1e3, "spread": round(s.spread, 4)} for name, s in times.items()
        },
        "refused": refused,
        "compile_seconds": {name: round(value, 1) for name, value in seconds.items()},
        "GB/s": round(load.moved / taken.median / 1e9, 1),
        "GFLOP/s": round(load.flops / taken.median / 1e9, 1) if load.flops else None,
        "kernels": len(kernel.module.funcs),
        "schedule": kernel.schedule.as_python(),
    }


def prepare_libraries() -> None:
    """The libraries at their best, float32 exact, and the clock of `torch.compile` shared."""
    torch.manual_seed(5)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    if not torch.cuda.is_available():
        return
    # A backward pass that is timed again and again keeps what it needs.
    gradients: Any = importlib.import_module("torch._functorch.config")
    gradients.donated_buffer = False
    clock: Any = importlib.import_module("torch._inductor.runtime.benchmarking")
    for name in ("TritonBenchmarker", "InductorBenchmarker"):
        kind = getattr(clock, name, None)
        if kind is not None and "benchmark_gpu" in vars(kind):
            kind.benchmark_gpu = alone(vars(kind)["benchmark_gpu"])


def alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, while this process holds the lock."""

    def locked(*args: Any, **more: Any) -> Any:
        with lock():
            return function(*args, **more)

    return locked


_HELD: list[int] = []


@contextmanager
def lock() -> Generator[None]:
    """The lock of the device, entered again without waiting by who holds it."""
    if _HELD:
        yield
        return
    place = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        _HELD.append(place)
        yield
    finally:
        _HELD.clear()
        os.close(place)


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Generator[None]:
    """Note how long something took."""
    begin = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - begin


def kernel_for(load: Workload, settings: Settings) -> tuple[te.Kernel, str]:
    """The winner of a search, now or one that is kept, or the rules' default."""
    outputs = load.outputs()
    if isinstance(outputs, te.Schedule):
        return te.build(outputs, load.target), "written schedule"
    if settings.get("trials") or settings.get("seconds"):
        job_tune.run(load, settings, lambda: None)
    winner = job_tune.kept(load, settings)
    if winner is not None:
        return winner, "search"
    return te.build(buildable(outputs), load.target), "default rules"


def inputs_of(load: Workload) -> dict[str, Any]:
    """PyTorch tensors on the target's device, made there."""
    device = "cuda" if load.target == "cuda" else "cpu"
    made: dict[str, Any] = {}
    for name, tensor in load.inputs().items():
        fill, shape = load.fills.get(name, job_check.PLAIN), shape_of(tensor)
        kind = getattr(torch, tensor.dtype.value)
        if fill.high is not None:
            high = job_check.highest(fill, load.sizes)
            made[name] = torch.randint(0, high, shape, device=device, dtype=kind)
            continue
        data = torch.randn(shape, device=device, dtype=torch.float32) * fill.scale + fill.mean
        made[name] = (data.abs() if fill.positive else data).to(kind)
    return made


def compile_ahead(kernel: te.Kernel, given: Sequence[Any]) -> None:
    """Compile for the device without a launch: the first one may hang, and waits for its turn."""
    launcher: Any = getattr(getattr(kernel, "_executor", None), "_launcher", None)
    if launcher is None:
        return
    outputs = [
        torch.empty(
            [int(getattr(n, "value", 0)) for n in buffer.shape],
            dtype=getattr(torch, buffer.dtype.value),
            device="cuda",
        )
        for buffer in kernel.module.outputs
    ]
    launcher._start()
    launcher._prepare([*given, *outputs], (), torch.cuda.current_device())


def peers(
    load: Workload,
    tensors: Mapping[str, Any],
    settings: Settings,
    seconds: dict[str, float],
    refused: dict[str, str],
) -> dict[str, Call]:
    """The same by others, compiled and run once; what refuses is noted and left out."""
    function: Any = getattr(torch_peers, load.function)
    eager = called(function, load, tensors)
    makers: dict[str, Callable[[], Call]] = {EAGER: lambda: eager}
    if not settings.get("quick"):
        makers[COMPILED] = lambda: called(torch.compile(function, dynamic=False), load, tensors)
        if load.target == "cuda" and settings.get("tuned", True):
            tuned = torch.compile(function, dynamic=False, options=TUNED_OPTIONS)
            makers[TUNED] = lambda: called(tuned, load, tensors)
    for name, preparer in load.peers.items():
        if not (settings.get("quick") and "compile" in name):
            prepare: Any = getattr(torch_peers, preparer)
            makers[name] = partial(prepare, **tensors, **load.settings)
    if load.target == "cuda" and not load.host:
        makers[COPY] = lambda: copy_of(load.moved)
    if load.target == "cpu" and any(bar.peer == NUMPY for bar in load.bars):
        makers[NUMPY] = lambda: numpy_call(load, tensors)
    found: dict[str, Call] = {}
    for name, make in makers.items():
        if name in load.without:
            continue
        try:
            with timed(seconds, name):
                found[name] = make()
                found[name]()
        except Exception as error:  # whatever a library raises: the row is measured without it
            refused[name] = f"{type(error).__name__}: {str(error)[:300]}"
            found.pop(name, None)
    return found


def called(function: Callable[..., Any], load: Workload, tensors: Mapping[str, Any]) -> Call:
    """A call of a function of tensors, by position where it has named parameters."""
    own: Any = getattr(torch_peers, load.function)
    settings = dict(load.settings)
    parameters = inspect.signature(own).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return lambda: function(**tensors, **settings)
    given = [tensors[p.name] for p in parameters if p.name in tensors]
    return (lambda: function(*given, **settings)) if settings else (lambda: function(*given))


def copy_of(moved: int) -> Call:
    """A device copy that moves as many bytes."""
    source = torch.empty(max(1, moved // 2), dtype=torch.uint8, device="cuda")
    other = torch.empty_like(source)
    return lambda: other.copy_(source)


def numpy_call(load: Workload, tensors: Mapping[str, Any]) -> Call:
    """The computation in NumPy, in the dtype of its inputs."""
    function: Any = getattr(references, load.function)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    return lambda: function(**arrays)


def check(load: Workload, got: Any, tensors: Mapping[str, Any]) -> float:
    """The relative error of the worst output against the same in wide floats.

    Raises:
        ValueError: it is above the bound.
    """
    function: Any = getattr(torch_peers, load.function)
    exact = torch.float64 if load.sizes.get("dtype", "float32") == "float32" else torch.float32
    wide = {
        name: tensor.to(exact) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    expected = function(**wide, **load.settings)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    found = got if isinstance(got, tuple) else (got,)
    worst = 0.0
    for mine, want in zip(found, wanted, strict=True):
        mine = torch.from_numpy(np.asarray(mine)) if isinstance(mine, np.ndarray) else mine
        norm = float(want.norm()) or 1.0
        error = float((mine.to(exact) - want).norm()) / norm
        worst = max(worst, error if error == error else float("inf"))
    if not worst <= load.error:
        raise ValueError(f"relative error {worst:.3g} is above {load.error:g}")
    return worst


def release() -> None:
    """Give memory back to the device: other rows hold theirs there, too."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def seconds_of(call: Call) -> float:
    """One call, until it is done."""
    begin = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def take_times(
    load: Workload, calls: Mapping[str, Call], settings: Settings, slow: bool
) -> dict[str, Stats]:
    """Samples of each in turn."""
    quick = bool(settings.get("quick"))
    if load.host:
        return {**host_times(calls, 10 if quick else 40), LIMIT: Stats((HOST_LIMIT,))}
    if load.target == "cpu":
        return compare(calls, repeats=10 if quick else 25)
    if slow:
        return compare_cuda(calls, repeats=3, warmup=1)
    found: dict[str, Stats] = {}
    for _ in range(AGAIN):
        taken = compare_cuda(calls, repeats=10 if quick else 60, max_seconds=10.0)
        if not found or worst_spread(taken) < worst_spread(found):
            found = taken
        if worst_spread(found) <= DISTURBED:
            break
    return found


def worst_spread(times: Mapping[str, Stats]) -> float:
    """The largest spread of the samples of one."""
    return max(stats.spread for stats in times.values())


def host_times(calls: Mapping[str, Call], rounds: int) -> dict[str, Stats]:
    """Seconds of the host for a call, with the device far from being full."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            samples[name].append((time.perf_counter() - begin) / CALLS)
            torch.cuda.synchronize()
    return {name: Stats(tuple(taken[2:])) for name, taken in samples.items()}
