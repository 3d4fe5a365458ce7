"""Timers."""

from __future__ import annotations

import importlib.util
import time

import pytest

from tedsl.errors import BackendError
from tedsl.runtime.timing import Stats, compare, format_seconds, measure, measure_cuda


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
        time.sleep(0.0002)

    both = compare({"a": lambda: call("a"), "b": lambda: call("b")}, repeats=4, warmup=0)
    assert set(both) == {"a", "b"}
    assert order[-8:] == ["a", "b"] * 4


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
