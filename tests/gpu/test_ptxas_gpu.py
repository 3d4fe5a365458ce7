"""Kernels that LLVM or ptxas get wrong: `backends/triton/compile/assembler.py` says them so that
they do not."""

from __future__ import annotations

import numpy as np
import pytest
from mixed_lanes import rows_less_their_least
from packed_sums import bytes_at_clamped_remainders
from window_parts import (
    few_products,
    greatest_of_negated,
    partial_extremes,
    repeated_pairs,
    skewed_rows_of_wide_counters,
)

import tedsl as te
from tedsl.reference.reference import evaluate


@pytest.mark.gpu
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_bytes_at_clamped_remainders(warps: int) -> None:
    """Index arithmetic that LLVM has narrowed to 16 bits, around loads of bytes, 8 for a thread."""
    torch = pytest.importorskip("torch")
    s, a, d = bytes_at_clamped_remainders(warps)
    data = np.random.default_rng(1).integers(-3, 4, (3, 4, 7, 7)).astype(np.int8)
    (want,) = evaluate([d], {a: data})
    got = te.build(s, target="cuda")(torch.tensor(data, device="cuda"))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(5, 2), (31, 33), (40, 64)])
def test_rows_less_their_least(sizes: tuple[int, int]) -> None:
    """Masks of rows beside masks of columns: of 5 rows, 4 were stored."""
    torch = pytest.importorskip("torch")
    s, x, y, (n, m) = rows_less_their_least()
    data = np.random.default_rng(1).integers(-8, 9, (2, *sizes)).astype(np.float32)
    (want,) = evaluate([y], {x: data}, {n: sizes[0], m: sizes[1]})
    got = torch.full(want.shape, float("nan"), device="cuda")
    te.build(s, target="cuda")(torch.tensor(data, device="cuda"), out=got)
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.mark.gpu
def test_windows_in_parts() -> None:
    """Loops that end at quotients from which the number of a part is subtracted, 0 too."""
    torch = pytest.importorskip("torch")
    s, x, y = partial_extremes()
    data = np.random.default_rng(1).integers(-3, 4, (16, 3, 7, 4)).astype(np.int32)
    (want,) = evaluate([y], {x: data})
    got = te.build(s, target="cuda")(torch.tensor(data, device="cuda"))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("place", [0, 1, 2])
def test_greatest_of_negated(place: int) -> None:
    """Two maxima as one instruction, of which any number may be the greatest."""
    torch = pytest.importorskip("torch")
    s, x, y = greatest_of_negated()
    data = np.zeros(3, np.int32)
    data[place] = -2
    (want,) = evaluate([y], {x: data})
    got = te.build(s, target="cuda")(torch.tensor(data, device="cuda"))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [2, 4])
def test_few_products(depth: int) -> None:
    """Not several times as large, and of all digits of float32."""
    torch = pytest.importorskip("torch")
    s, a, b, c = few_products(depth)
    rng = np.random.default_rng(1)
    left = rng.standard_normal((16, depth)).astype(np.float32)
    right = rng.standard_normal((depth, 16)).astype(np.float32)
    (want,) = evaluate([c], {a: left, b: right})
    kernel = te.build(s, target="cuda")
    got = kernel(torch.tensor(left, device="cuda"), torch.tensor(right, device="cuda"))
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_repeated_pairs(dtype: str) -> None:
    """Masked lanes of 8-bit floats, of which each thread has many: NaN came out for 0."""
    torch = pytest.importorskip("torch")
    s, x, w, y, n = repeated_pairs(dtype)
    rng = np.random.default_rng(1)
    left = rng.integers(-8, 9, (64, 1)).astype(np.float32)
    right = rng.integers(-8, 9, (1, 8)).astype(np.float32)
    (want,) = evaluate([y], {x: left, w: right}, {n: 1})
    kernel = te.build(s, target="cuda")
    got = kernel(torch.tensor(left, device="cuda"), torch.tensor(right, device="cuda"))
    np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.mark.gpu
def test_skewed_rows_of_wide_counters() -> None:
    """Loops that ptxas writes out, with numbers of 64 bits: every second column of one row from
    the 12th on was stored to the 4th."""
    torch = pytest.importorskip("torch")
    s, x, y = skewed_rows_of_wide_counters()
    data = np.random.default_rng(1).integers(-3, 4, (10, 63)).astype(np.int8)
    (want,) = evaluate([y], {x: data})
    got = torch.full(want.shape, 77, dtype=torch.int8, device="cuda")
    te.build(s, target="cuda")(torch.tensor(data, device="cuda"), out=got)
    np.testing.assert_array_equal(got.cpu().numpy(), want)
