"""Clamps of differences, of which ptxas loses a sign where what is subtracted was narrowed."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te
from tedsl.backends.triton.emit.module import emit


def turned(times: int = 1) -> tuple[te.Schedule, te.Tensor]:
    """Rows from the last but one to the first, the first again where there are no more; its loops
    have 64 bits."""
    n = te.size_var("n")
    x = te.placeholder((n, 7, te.const(1, "int64")), "int32", name="x")
    y = te.compute(
        x.shape,
        lambda i, j, k: x[te.max(n - i * times - 2, 0), j, te.const(0, "int64") - k],
        name="y",
    )
    s = te.create_schedule(y)
    outer, inner = s[y].split(s[y].fuse(*y.op.axis), factor=1024)
    s[y].bind(outer, "blockIdx.x")
    s[y].vectorize(inner)
    return s, x


def test_a_clamp_of_what_is_counted_down_is_calculated_in_64_bits() -> None:
    s, _ = turned()
    source = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    clamps = [line for line in source.splitlines() if "tl.maximum(" in line]
    assert clamps
    assert all("tl.cast(n, tl.int64) - " in line and "0).to(tl.int32)" in line for line in clamps)


def test_sums_that_may_wrap_stay_in_their_type() -> None:
    s, _ = turned(1103515245)
    source = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    clamps = [line for line in source.splitlines() if "tl.maximum(" in line]
    assert clamps
    assert not any("tl.int64" in line for line in clamps)


def test_what_a_difference_is_compared_with_keeps_its_type() -> None:
    """Its own arithmetic may wrap."""
    n = te.size_var("n")
    x = te.placeholder((n, 7, te.const(1, "int64")), "int32", name="x")
    y = te.compute(x.shape, lambda i, j, k: te.max(n - i - 2, x[i, j, k] * 65537), name="y")
    s = te.create_schedule(y)
    outer, inner = s[y].split(s[y].fuse(*y.op.axis), factor=1024)
    s[y].bind(outer, "blockIdx.x")
    s[y].vectorize(inner)
    given = np.random.default_rng(1).integers(0, 1 << 30, (33, 7, 1)).astype(np.int32)
    with np.errstate(over="ignore"):
        wanted = np.maximum(31 - np.arange(33)[:, None, None], given * np.int32(65537))
    kernel = te.build(s, "triton-interpret", cache=False)
    assert "tl.int64) - " in kernel.source
    assert np.array_equal(kernel(given), wanted)


def turned_in_numpy(given: np.ndarray) -> np.ndarray:
    rows = len(given)
    found: np.ndarray = given[np.maximum(rows - np.arange(rows) - 2, 0)]
    return found


def numbers(rows: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 9, (rows, 7, 1)).astype(np.int32)


@pytest.mark.parametrize("rows", [1, 2, 33, 300])
def test_numbers_of_such_a_clamp(rows: int) -> None:
    kernel = te.build(turned()[0], "triton-interpret", cache=False)
    assert np.array_equal(kernel(numbers(rows)), turned_in_numpy(numbers(rows)))


@pytest.mark.gpu
def test_numbers_of_such_a_clamp_on_the_device() -> None:
    """On an H200 with ptxas 12.8 the second row was the last one of `x`."""
    torch = pytest.importorskip("torch")
    kernel = te.build(turned()[0], "cuda", cache=False)
    for rows in (1, 2, 33, 300):
        found = kernel(torch.from_numpy(numbers(rows)).cuda()).cpu().numpy()
        assert np.array_equal(found, turned_in_numpy(numbers(rows)))
