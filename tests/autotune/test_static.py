"""The closed-form estimate: figures known by hand, and order where one is plainly better."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace

import numpy as np
import pytest
from model_cases import HOPPER, drawn, lowered, norm, product, scaled, softmax
from triton_irs import matmul

import tedsl as te
from tedsl.autotune.search_space.space import Choice
from tedsl.cost.accesses import digits
from tedsl.cost.devices import WEIGHTS, device_for
from tedsl.cost.estimate import Estimate, estimate
from tedsl.cost.sampled_indices import layout
from tedsl.devices import A100, B200, H100, H200, CpuDevice, GpuDevice
from tedsl.errors import LowerError
from tedsl.ir.nodes import Launch

pytestmark = pytest.mark.uncompiled("looked at, not compiled")
PROCESSOR = CpuDevice("test", 4, 512, 32, 170e9, 48 << 10, 2 << 20, 32 << 20, 40e9, 2.7e9)


def on(tensor: te.Tensor, facts: GpuDevice = H200, **decisions: Choice) -> Estimate:
    return estimate(lowered(tensor, **decisions), facts)


@pytest.mark.parametrize(
    ("target", "name", "found"),
    [
        ("cuda:sm_80", "", A100),
        ("cuda", "NVIDIA A100-SXM4-40GB", A100),
        ("cuda:sm_90", "", H200),
        ("cuda", "NVIDIA H200", H200),
        ("cuda", "NVIDIA B200", B200),
        ("cuda", "a card of next year", H200),
    ],
)
def test_facts_by_name(target: str, name: str, found: GpuDevice) -> None:
    assert device_for(target, name) == found
    few = device_for(target, name or found.name, f"{found.arch}, 7 SMs, 80 GiB")
    assert few == replace(found, sms=7)


def test_layout_of_a_tile() -> None:
    assert layout([(64, 8), (1, 16)], 0).elements == 128
    assert layout([(64, 8), (1, 16)], 0).run == 16
    assert layout([(16, 8), (1, 16)], 0).run == 128, "rows that follow each other are one run"
    assert layout([(1, 8), (64, 16)], 0).run == 8
    assert layout([(1, 8), (1, 16)], 0).elements == 23, "windows overlap"
    assert layout([(65, 8), (1, 16)], 0).vector(2) == 2, "odd rows start anywhere"
    assert layout([(64, 8), (1, 16)], 0).vector(2) == 16
    assert layout([(64, 8), (2, 16)], 0).sectors(2) == 16, "every second element of two sectors"
    assert layout([(64, 8), (32, 16)], 0).sectors(2) == 128, "a sector for each element"


@pytest.mark.parametrize(
    ("extents", "steps"),
    [((4, 8), (64, 1)), ((4, 8), (1, 64)), ((3, 5, 7), (100, 7, 1)), ((4, 8), (0, 1))],
)
def test_a_fused_loop_is_taken_apart(extents: tuple[int, ...], steps: tuple[int, ...]) -> None:
    at = np.tensordot(np.asarray(steps), np.indices(extents), 1).ravel()
    found = digits(at, at.size)
    again = np.zeros(1, np.int64)
    for step, count in found:
        again = (again[None, :] + step * np.arange(count)[:, None]).ravel()
    np.testing.assert_array_equal(again, at)
    assert len(found) <= len(extents)
    assert math.prod(count for _, count in digits(at, 10 * at.size)) == 10 * at.size


def test_figures_of_a_product() -> None:
    """Three stages of both operands, the staged result, three barriers; 128 accumulators."""
    found = on(product(4096, 4096, 4096))
    assert found.shared == 3 * (128 * 64 + 64 * 256) * 2 + 128 * 256 * 2 + 3 * 8
    assert 128 < found.registers < 170
    assert found.occupancy == 1
    assert found.flops == pytest.approx(2 * 4096**3, rel=0.05)
    assert 96e6 < found.bytes < 400e6
    assert 140e-6 < found.seconds < 260e-6


def test_figures_of_rows() -> None:
    found = on(softmax(16384, 4096))
    assert found.bytes == pytest.approx(2 * 16384 * 4096 * 2, rel=0.01)
    assert found.shared == 16
    assert 55e-6 < found.seconds < 90e-6
    looped = on(softmax(16384, 4096), whole_row=False)
    assert looped.bytes == pytest.approx(found.bytes, rel=0.1), "later reads hit the cache"


def test_an_accumulator_that_does_not_fit_is_moved_around_each_product() -> None:
    """Measured on an H200: 8 to 15 times as long as eight warps, which have registers for it."""
    fits, spills = (on(product(4096, 4096, 4096), bm=256, bn=128, warps=w) for w in (8, 4))
    assert 4 * fits.seconds < spills.seconds < 20 * fits.seconds


def test_what_cannot_launch() -> None:
    launch = Launch(num_warps=8, num_stages=5)
    module = matmul((4096, 4096, 4096), (256, 256, 128), launch=launch, shared=True)
    found = estimate(module, H200)
    assert found.cannot_launch is not None
    assert "shared memory" in found.cannot_launch
    assert on(product(4096, 4096, 4096)).cannot_launch is None


def test_too_large_a_value_cannot_be_compiled() -> None:
    def of_size(size: int) -> te.Schedule:
        x = te.placeholder((4, size), "int8", name="x")
        y = te.compute((4, size), lambda i, j: x[i, j] + x[i, j], name="y")
        s = te.create_schedule(y)
        i, j = s[y].op.axis
        s[y].bind(i, "blockIdx.x")
        s[y].vectorize(j)
        return s

    with pytest.raises(LowerError, match=f"a tile of kernel y has {1 << 21} elements"):
        te.lower(of_size(1 << 21), HOPPER)
    module = te.lower(of_size(1 << 20), HOPPER)
    wide = tuple(replace(func, launch=Launch(num_warps=64)) for func in module.funcs)
    threads = estimate(replace(module, funcs=wide), H200).cannot_launch
    assert threads is not None
    assert "2048 threads" in threads


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({}, {"bm": 32, "bn": 32}),
        ({}, {"bm": 256, "bn": 256}),
        ({}, {"stages": 1}),
        ({}, {"warps": 1}),
        ({"stages": 4, "bm": 128, "bn": 128}, {"stages": 1, "bm": 128, "bn": 128}),
    ],
)
def test_plainly_better_tiles_are_faster(
    better: dict[str, Choice], worse: dict[str, Choice]
) -> None:
    tensor = product(4096, 4096, 4096)
    fast, slow = (estimate(lowered(tensor, **given), H200) for given in (better, worse))
    assert fast.seconds < slow.seconds


def test_a_program_that_adds_up_its_steps_multiplies_nothing_meanwhile() -> None:
    """On an H200 eight warps that stay took 0.152 ms; two programs take turns."""
    square = scaled(4096, 4096, 4096)
    alone, turns = on(square, resident=1, warps=8, stages=5), on(square)
    assert 0.9 < alone.seconds / 0.152e-3 < 1.1
    assert turns.seconds < 0.85 * alone.seconds
    assert turns.registers <= 255 and turns.occupancy == 2


def test_what_is_waited_for_takes_longer() -> None:
    """Triton waits for each step of integers, and lets one of float32 run on."""
    quick = replace(WEIGHTS, step=0.0)
    whole, half = lowered(scaled(4096, 4096, 4096, "int8")), lowered(product(4096, 4096, 4096))
    assert estimate(whole, H200).seconds > estimate(whole, H200, weights=quick).seconds
    assert estimate(half, H200).seconds == estimate(half, H200, weights=quick).seconds


def test_short_rows_want_few_warps() -> None:
    tensor = softmax(65536, 1024)
    assert on(tensor, warps=2).seconds < on(tensor, warps=32).seconds


def test_every_device_gives_figures() -> None:
    times = [on(product(2048, 2048, 2048), gpu).seconds for gpu in (A100, H100, H200, B200)]
    assert times[0] > times[1] >= times[2] > times[3]


def test_features_are_numbers_and_of_one_kind() -> None:
    names: set[frozenset[str]] = set()
    for tensor in (product(512, 512, 512), softmax(512, 1000), norm(512, 2048)):
        for _, module in drawn(tensor, 4):
            features = estimate(module, H200).features
            names.add(frozenset(features))
            assert all(value == value and abs(value) < 1e6 for value in features.values())
    assert len(names) == 1


def test_symbolic_sizes() -> None:
    n = te.size_var("n")
    x = te.placeholder((n, 1024), "float32", name="x")
    module = te.lower(te.nn.softmax(x), HOPPER)
    (size,) = module.sizes
    small, large = (estimate(module, H200, {size: rows}) for rows in (1024, 65536))
    assert large.bytes == pytest.approx(64 * small.bytes, rel=0.01)
    assert large.seconds > 10 * small.seconds


def test_kernels_add_up() -> None:
    x = te.placeholder((4096, 4096), "float32", name="x")
    y = te.compute((4096, 4096), lambda i, j: x[i, j] * 2.0, name="y")
    z = te.compute((4096, 4096), lambda i, j: y[i, j] + y[j, i], name="z")
    s = te.create_schedule(z)
    for stage in (s[y], s[z]):
        i, j = stage.op.axis
        outer, inner = stage.split(j, factor=1024)
        stage.bind(stage.fuse(i, outer), "blockIdx.x")
        stage.vectorize(inner)
    found = estimate(te.lower(s, HOPPER), H200)
    assert found.features["kernels"] == 2
    assert found.bytes >= 4 * 4096 * 4096 * 4
    assert found.seconds > 2 * H200.launch


def test_an_estimate_takes_no_time() -> None:
    """5 ms beyond the lowering, with slack for a busy machine."""
    modules = [m for t in (product(4096, 4096, 4096), softmax(4096, 4096)) for _, m in drawn(t, 5)]
    taken: list[float] = []
    for module in modules:
        begin = time.perf_counter()
        estimate(module, H200)
        taken.append(time.perf_counter() - begin)
    assert statistics.median(taken) < 0.02


@pytest.mark.cpu
def test_on_the_cpu() -> None:
    def module(rows: int, columns: int) -> te.Tensor:
        a = te.placeholder((512, 512), "float32", name="a")
        b = te.placeholder((512, 512), "float32", name="b")
        k = te.reduce_axis((0, 512), name="k")
        c = te.compute((512, 512), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        s = te.create_schedule(c)
        held = s.cache_write(c, "local")
        held = held[0] if isinstance(held, list) else held
        i, j = s[c].op.axis
        io, ii = s[c].split(i, factor=rows)
        jo, ji = s[c].split(j, factor=columns)
        s[c].reorder(io, jo, ii, ji)
        s[c].parallel(io)
        s[c].vectorize(ii)
        s[c].vectorize(ji)
        s[held].compute_at(s[c], jo)
        hi, hj = s[held].op.axis
        s[held].reorder(s[held].op.reduce_axis[0], hi, hj)
        s[held].vectorize(hi)
        s[held].vectorize(hj)
        return te.lower(s, "cpu")  # pyright: ignore[reportReturnType]

    tiled, thin, wide = (estimate(module(*t), PROCESSOR) for t in ((12, 32), (1, 16), (32, 64)))  # pyright: ignore[reportArgumentType]
    assert tiled.seconds < thin.seconds, "one chain of sums waits for itself"
    assert tiled.seconds < wide.seconds, "more sums than registers go through memory"
    assert tiled.flops == pytest.approx(2 * 512**3, rel=0.1)
    assert tiled.cannot_launch is None
