"""Timers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time

import pytest

from tedsl.errors import BackendError
from tedsl.runtime.timing import (
    Stats,
    compare,
    format_seconds,
    measure,
    measure_cuda,
    wait_until_quiet,
)


def test_statistics() -> None:
    stats = Stats((4.0, 1.0, 2.0, 3.0, 100.0))
    assert stats.median == 3.0
    assert stats.best == 1.0
    assert stats.quantile(0.25) == 2.0
    assert stats.spread == pytest.approx(1 / 3)
    assert Stats((1.0, 2.0)).median == 1.5
    assert stats.bandwidth(6) == 2.0
    assert str(Stats((1e-3,))) == "1 ms ± 0.0% (1 samples)"


def test_units() -> None:
    seconds = (2.0, 0.0125, 3e-6, 5e-8)
    assert [format_seconds(s) for s in seconds] == ["2 s", "12.5 ms", "3 us", "50 ns"]


def test_short_calls_are_batched_and_long_ones_are_not() -> None:
    calls = []
    quick = measure(lambda: calls.append(1), repeats=3, min_sample=1e-3)
    assert len(quick.samples) == 3
    assert quick.median < 1e-5
    assert len(calls) > 300
    slow = measure(lambda: time.sleep(0.002), repeats=3, min_sample=1e-3)
    assert 0.002 <= slow.median < 0.02


def test_candidates_are_interleaved() -> None:
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)
        time.sleep(0.05)

    both = compare({"a": lambda: call("a"), "b": lambda: call("b")}, repeats=4, warmup=0)
    assert set(both) == {"a", "b"}
    assert order[-16:] == ["a", "a", "b", "b"] * 4  # the first of two is not timed


def test_a_sample_waits_for_threads_that_spin() -> None:
    """What a candidate leaves behind takes no processor from the next one."""
    spinning: list[bool] = []
    seen: list[bool] = []
    threads: list[threading.Thread] = []

    def spin() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        spinning.clear()

    def leaves_a_thread() -> None:
        if not spinning:
            spinning.append(True)
            threads.append(threading.Thread(target=spin))
            threads[-1].start()

    compare({"noisy": leaves_a_thread, "next": lambda: seen.append(bool(spinning))}, repeats=3)
    assert seen[-3:] == [False] * 3
    for thread in threads:
        thread.join()


def test_waiting_ends_where_a_thread_has_work() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert not wait_until_quiet(limit=0.01)
    finally:
        stop.set()
        thread.join()
    assert wait_until_quiet(limit=60)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_thread_without_a_processor_is_busy() -> None:
    """Where others take the processor, a thread that wants it uses little of it."""
    script = """
import os, subprocess, sys, threading
from tedsl.runtime.timing import wait_until_quiet
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
spin = [sys.executable, "-c", "while True: pass"]
others = [subprocess.Popen(spin) for _ in range(8)]
stop = threading.Event()
def work():
    while not stop.is_set():
        pass
thread = threading.Thread(target=work)
thread.start()
try:
    print([wait_until_quiet(limit=0.01) for _ in range(5)])
finally:
    stop.set()
    thread.join()
    for each in others:
        each.kill()
        each.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == str([False] * 5)


def test_time_is_bounded() -> None:
    stats = measure(lambda: time.sleep(0.01), repeats=1000, max_seconds=0.05)
    assert 3 <= len(stats.samples) < 20


def test_no_gpu() -> None:
    if importlib.util.find_spec("torch"):
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    with pytest.raises(BackendError, match=r"GPU(.|\n)*(measure\(\)|pip install)"):
        measure_cuda(lambda: None)
