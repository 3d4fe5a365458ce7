"""How many neighbours a thread has, and which elements the threads of a warp have."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.lower.pipeline import lower
from tedsl.target import Target

HOPPER = Target.parse("cuda:sm_90")


def window(dtype: str, taps: int, step: int = 1, size: int = 4096) -> te.Schedule:
    """Y[i, j] = X[i, j] + X[i, j + step] + ..., a tile of 1024 for each program."""
    x = te.placeholder((8, size + 64), dtype, name="X")
    y = te.compute(
        (8, size), lambda i, j: sum(x[i, j + n * step] for n in range(1, taps)) + x[i, j]
    )
    s = te.create_schedule(y)
    i, j = s[y].axis("i"), s[y].axis("j")
    outer, inner = s[y].split(j, factor=1024)
    s[y].bind(outer, "blockIdx.x")
    s[y].bind(i, "blockIdx.y")
    s[y].vectorize(inner)
    return s


def source(s: te.Schedule) -> str:
    return emit(lower(s.plan, HOPPER), HOPPER).source


@pytest.mark.parametrize(
    ("dtype", "taps", "step", "each"),
    [
        ("float32", 8, 1, 1),
        ("float32", 8, 2, 2),
        ("float32", 8, 4, None),
        ("float32", 2, 1, None),
        ("bfloat16", 16, 1, 2),
    ],
)
def test_windows(dtype: str, taps: int, step: int, each: int | None) -> None:
    """Where most loads of a window move one element at once, a thread has one: else each of them
    would ask for four times as many lines.  Two of 16 bits are asked for at once."""
    text = source(window(dtype, taps, step))
    hints = [line for line in text.splitlines() if "multiple_of" in line]
    assert bool(hints) == (each is not None)
    if each is not None:
        assert f"{each})" in hints[-1] and not any("4)" in line or "8)" in line for line in hints)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_windows_are_right(dtype: str) -> None:
    s = window(dtype, 8, size=2048)
    kernel = te.build(s, target="triton-interpret")
    x = np.random.default_rng(0).integers(0, 8, (8, 2048 + 64)).astype(dtype)
    np.testing.assert_array_equal(np.asarray(kernel(x)), sum(x[:, n : n + 2048] for n in range(8)))


@pytest.mark.ptxas
def test_a_pool_of_unaligned_results_needs_no_shared_memory() -> None:
    """The threads that load elements of a window store the result."""
    x = te.placeholder((32, 64, 4096), name="x")
    y = te.nn.avg_pool1d(x, 8, stride=1, padding=4)
    s = te.schedule_for(y, HOPPER)
    (info,) = compile_offline(emit(lower(s.plan, HOPPER), HOPPER), "sm_90")
    assert info.shared == 0


def every_other(reversed_: bool = False) -> te.Schedule:
    """Y[j] = sum over k of X[k, 2 * j], of which Triton sees no run along j."""
    x = te.placeholder((64, 512), name="X")
    k = te.reduce_axis((0, 64), "k")
    y = te.compute((256,), lambda j: te.sum(x[k, 2 * j], axis=k), name="Y")
    s = te.create_schedule(y)
    outer, inner = s[y].split(s[y].axis("j"), factor=128)
    deep, lanes = s[y].split(k, factor=16)
    s[y].reorder(outer, inner, deep, lanes)
    s[y].bind(outer, "blockIdx.x")
    s[y].vectorize(inner)
    s[y].vectorize(lanes)
    return s


@pytest.fixture(params=[(3, 6, 0), (3, 7, 0)], ids=["first", "last"])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """Which axis of a block a release of Triton gives to the threads of a warp, where it sees no
    run along any."""
    where = importlib.import_module("tedsl.lower.pipeline").order_lanes.__module__
    monkeypatch.setattr(sys.modules[where], "release", lambda _: request.param)
    return request.param


def test_lanes_are_results_that_are_closer(release: tuple[int, ...]) -> None:
    assert ("(128, 16)" if release < (3, 7) else "(16, 128)") in source(every_other())


def turned_and_cut() -> te.Schedule:
    """Y[i, j] = X[(64 * i + j) // 63, (64 * i + j) % 63] + 1, of which Triton sees no run."""
    x = te.placeholder((64, 65), name="X")
    y = te.compute((32, 64), lambda i, j: x[(64 * i + j) // 63, (64 * i + j) % 63] + 1.0, name="Y")
    s = te.create_schedule(y)
    i, j = s[y].op.axis
    outer, inner = s[y].split(i, factor=8)
    s[y].bind(outer, "blockIdx.x")
    s[y].vectorize(inner)
    s[y].vectorize(j)
    return s


def test_what_is_stored_has_close_elements_in_a_warp(release: tuple[int, ...]) -> None:
    text = source(turned_and_cut())
    assert ("j[:, None]" in text) is (release < (3, 7))
    kernel = te.build(turned_and_cut(), target="triton-interpret")
    x = np.random.default_rng(0).random((64, 65)).astype(np.float32)
    want = x[:, :63].reshape(-1)[: 32 * 64].reshape(32, 64) + 1
    np.testing.assert_array_equal(np.asarray(kernel(x)), want)


def test_lanes_are_right() -> None:
    kernel = te.build(every_other(), target="triton-interpret")
    x = np.random.default_rng(0).integers(0, 8, (64, 512)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(kernel(x)), x[:, ::2].sum(0))
