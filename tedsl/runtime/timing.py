"""Honest timing: medians over many samples, candidates interleaved, on the CPU and on a GPU.

Used by the search, the tutorials and the benchmarks.  A sample is the time of one call: where calls
are too short for the clock, the mean of a batch sized so that a sample lasts `min_sample` seconds.
PyTorch is imported only for GPU timing.  Imports `errors`.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tedsl.errors import BackendError
from tedsl.packages import install
from tedsl.slips import suggests

Call = Callable[[], object]
_FLUSH_BYTES = 256 << 20  # more than the L2 of any GPU so far
_WAIT_CYCLES = 180_000
_GLANCE = 0.02  # seconds of a look; the clock of all threads moves by ticks of up to 10 ms
_THREADS = Path("/proc/self/task")
AWAKE = 0.04  # seconds after which processors that have slept work, at full speed
_BUSY_LIMIT = 0.5  # seconds after which threads that are busy are not waiting for work


@suggests()
@dataclass(frozen=True, slots=True)
class Stats:
    """Seconds per call of one candidate.  `samples` are in the order taken."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample (the mean of the two middle ones)."""
        return self.quantile(0.5)

    @property
    def best(self) -> float:
        """The shortest sample."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """Half the interquartile range over the median: 0.01 says that samples agree within 1%."""
        middle = self.median
        return (self.quantile(0.75) - self.quantile(0.25)) / 2 / middle if middle else 0.0

    def quantile(self, q: float) -> float:
        """The `q`-quantile, linear between samples."""
        ordered = sorted(self.samples)
        place = q * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    def bandwidth(self, nbytes: int) -> float:
        """Bytes per second at the median."""
        return nbytes / self.median

    def __str__(self) -> str:
        return f"{format_seconds(self.median)} ± {self.spread:.1%} ({len(self.samples)} samples)"


def format_seconds(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def measure(
    fn: Call,
    *,
    repeats: int = 20,
    warmup: int = 2,
    min_sample: float = 1e-4,
    max_seconds: float = 10.0,
) -> Stats:
    """Time `fn()` on the CPU.

    Args:
        fn: the call.
        repeats: samples to take.
        warmup: calls before the first sample.
        min_sample: seconds a sample lasts at least; shorter calls are batched.
        max_seconds: stop early (with at least three samples) once so much time has passed.
    """
    return compare(
        {"": fn}, repeats=repeats, warmup=warmup, min_sample=min_sample, max_seconds=max_seconds
    )[""]


def compare(
    candidates: Mapping[str, Call],
    *,
    repeats: int = 20,
    warmup: int = 2,
    min_sample: float = 1e-4,
    max_seconds: float = 60.0,
) -> dict[str, Stats]:
    """Time several calls on the CPU, one sample of each in turn, so that drift hits all alike.

    Threads of other libraries wait busily for some time after a call (OpenMP's, OpenBLAS's for
    0.1 s) and would take a processor from the next candidate, and processors that have slept are
    slow at first.  So every sample of several begins when the process is quiet, with calls that are
    not timed and wake the candidate's own threads.

    Args:
        candidates: the calls by name.
        repeats: samples of each.
        warmup: calls of each before its first sample.
        min_sample: seconds a sample lasts at least.
        max_seconds: stop early (with at least three rounds) once so much time has passed.
    """
    batches = {name: _batch(fn, warmup, min_sample) for name, fn in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    start = time.perf_counter()
    for done in range(max(repeats, 1)):
        if done >= 3 and time.perf_counter() - start > max_seconds:
            break
        for name, fn in candidates.items():
            if len(candidates) > 1:
                wait_until_quiet()
                wake(fn)
            samples[name].append(_sample(fn, batches[name]))
    return {name: Stats(tuple(taken)) for name, taken in samples.items()}


def wait_until_quiet(limit: float = _BUSY_LIMIT) -> bool:
    """Sleep until no other thread of this process computes or waits busily.

    Where other processes take the processors, a thread that waits for its turn uses none of them
    and is busy nevertheless: Linux tells of each thread whether it could run.

    Returns:
        False where some thread was still busy after `limit` seconds.
    """
    start = time.perf_counter()
    while True:
        begin, used = time.perf_counter(), time.process_time()
        time.sleep(_GLANCE)
        now = time.perf_counter()
        if time.process_time() - used < (now - begin) / 4 and not _others_could_run():
            return True
        if now - start > limit:
            return False


def _others_could_run() -> bool:
    """Whether a thread of this process but the caller's runs, or would if there were a processor
    for it.  False where the system does not say.

    A thread of Python that waits for the interpreter's lock gets it while a file is read.
    """
    own = str(threading.get_native_id())
    with suppress(OSError):
        for thread in os.listdir(_THREADS):
            with suppress(OSError):  # it has ended meanwhile
                told = (_THREADS / thread / "stat").read_text()
                state = told.rpartition(") ")[2][0]  # what stands before is a name
                if state == "R" and thread != own:
                    return True
    return False


def wake(fn: Call, seconds: float = AWAKE) -> None:
    """Call until the threads and processors that `fn` uses are as in the middle of many calls."""
    start = time.perf_counter()
    while True:
        fn()
        if time.perf_counter() - start > seconds:
            return


def _sample(fn: Call, batch: int) -> float:
    begin = time.perf_counter()
    for _ in range(batch):
        fn()
    return (time.perf_counter() - begin) / batch


def _batch(fn: Call, warmup: int, min_sample: float) -> int:
    """Warm up, and find how many calls one sample needs."""
    for _ in range(warmup):
        fn()
    batch = 1
    while batch < 1 << 20:
        taken = _sample(fn, batch) * batch
        if taken >= min_sample:
            break
        batch = max(batch * 2, math.ceil(batch * min_sample / max(taken, 1e-9)))
    return min(batch, 1 << 20)


def measure_cuda(
    fn: Call, *, repeats: int = 50, warmup: int = 5, flush: bool = True, max_seconds: float = 10.0
) -> Stats:
    """Time `fn()` on the current GPU stream; see `compare_cuda`."""
    return compare_cuda(
        {"": fn}, repeats=repeats, warmup=warmup, flush=flush, max_seconds=max_seconds
    )[""]


def compare_cuda(
    candidates: Mapping[str, Call],
    *,
    repeats: int = 50,
    warmup: int = 5,
    flush: bool = True,
    max_seconds: float = 60.0,
) -> dict[str, Stats]:
    """Time several GPU calls with events on the current stream, one sample of each in turn.

    A sample is one call between two events.  What is queued before it (a wait of about 0.1 ms and
    the flush) hides the time that the host needs to launch, so host overhead counts only where it
    is longer than that, or where a call waits for the host.

    Args:
        candidates: the calls by name.
        repeats: samples of each.
        warmup: calls of each before its first sample.
        flush: overwrite memory before each sample, then read it: nothing of the inputs is in the
            L2 cache then, nor anything that has yet to be written.  (What is evicted last outlives
            the overwriting: on an H200 a third of 24 MiB is still there after 512 MiB, and after
            reading as much a tenth.)
        max_seconds: stop early (with at least three rounds) once so much time has passed.

    Raises:
        BackendError: no GPU, or no PyTorch.
    """
    torch = _torch_with_gpu()
    scratch = torch.empty(_FLUSH_BYTES // 8 if flush else 0, dtype=torch.int64, device="cuda")
    total = torch.empty((), dtype=torch.int64, device="cuda")
    for fn in candidates.values():
        for _ in range(warmup):
            fn()
    torch.cuda.synchronize()
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    start = time.perf_counter()
    for done in range(max(repeats, 1)):
        if done >= 3 and time.perf_counter() - start > max_seconds:
            break
        pairs: dict[str, tuple[Any, Any]] = {}
        for name, fn in candidates.items():
            torch.cuda._sleep(_WAIT_CYCLES)
            scratch.zero_()
            torch.sum(scratch, dim=0, out=total)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            fn()
            end.record()
            pairs[name] = begin, end
        torch.cuda.synchronize()
        for name, (begin, end) in pairs.items():
            samples[name].append(begin.elapsed_time(end) * 1e-3)
    return {name: Stats(tuple(taken)) for name, taken in samples.items()}


def _torch_with_gpu() -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise BackendError("timing on a GPU needs PyTorch", hint=install("torch")) from error
    if not torch.cuda.is_available():
        raise BackendError("no GPU to time on", hint="time on the CPU with measure()")
    return torch
