"""What only a GPU shows: graphs and events, cold rotations, what a fault of the device leaves."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from small_problems import checked_closely

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.measure.bench import Bench
from tedsl.autotune.measure.guarded_buffers import DeviceArena
from tedsl.dtypes import DType
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")


def scaled(count: int) -> Tensor:
    x = te.placeholder((count,), "float32", name="x")
    return te.compute((count,), lambda i: x[i] * 2.0 + 1.0, name="y")


def bench_of(output: Tensor, folder: Path, **sizes: int) -> Bench:
    workload = Workload.of(output)
    return Bench(workload, Extents(workload, sizes), "cuda", 3, folder)


def test_short_calls_are_timed_cold_by_the_steadier_way(tmp_path: Path):
    bench = bench_of(scaled(1 << 20), tmp_path)
    kernel = te.build(list(bench.workload.outputs), "cuda")
    assert bench.check(kernel) is None
    assert checked_closely(bench, kernel) is None
    samples = bench.time(kernel, None)
    assert (tmp_path / "clock").read_text() in ("graph", "events")
    bandwidth = 2 * 4 * (1 << 20) / sorted(samples)[len(samples) // 2]
    assert 1e11 < bandwidth < 8e12  # of the memory, not of the cache
    assert len(bench.rotation(kernel)) > 4
    one, other = bench.compare([kernel, kernel], 16, 2.0)
    assert abs(median(one) / median(other) - 1) < 0.1
    assert bench.arena.fault() is None


def test_long_calls_are_timed_one_by_one(tmp_path: Path):
    bench = bench_of(scaled(1 << 28), tmp_path)
    kernel = te.build(list(bench.workload.outputs), "cuda")
    samples = bench.time(kernel, None)
    assert min(samples) > 1e-4
    assert not (tmp_path / "clock").exists()


def test_other_sizes_are_checked(tmp_path: Path):
    n = te.size_var("n")
    x = te.placeholder((n, 64), "float32", name="x")
    bench = bench_of(te.nn.softmax(x), tmp_path, n=512)
    kernel = te.build(list(bench.workload.outputs), "cuda")
    assert bench.check(kernel) is None
    assert checked_closely(bench, kernel) is None


def test_bits_are_compared_on_the_device():
    arena = DeviceArena()
    guarded = arena.empty((5,), DType.float32)
    before = arena.snapshot(guarded)
    assert arena.same(guarded, before)  # not a number, and yet the same
    guarded.array[2] = 1.0
    assert not arena.same(guarded, before)
    assert arena.copies(1 << 40) == 1


def test_where_the_time_of_a_search_went(tmp_path: Path):
    x = te.placeholder((4096, 1024), "float32", name="x")
    found = tune(te.nn.softmax(x), "cuda", trials=32, records=tmp_path / "r.sqlite")
    assert found.compile_seconds > 0
    assert 0 <= found.idle < 1
    assert found.measure_seconds < found.seconds
