"""Matrix products: squares, odd, skinny and deep shapes, and products with work around them."""

from __future__ import annotations

from typing import Any

import written
from workload import BEYOND, COMPILED, EAGER, SCALED, TUNED, B, F, Workload

SHAPES = (
    (16, 8192, 8192),
    (4095, 4095, 4095),
    (256, 256, 65536),
    (4096, 64, 4096),
    (1000, 3000, 2000),
    (64, 14336, 4096),
    (512, 512, 32768),
    (2047, 8191, 1025),
    (8192, 8192, 128),
    (1, 8192, 8192),
    (1024, 1024, 1024),
    (2048, 11008, 4096),
)
"""Rows, columns and depth of the twelve: skinny, deep, odd, unaligned, shallow, medium."""


def workloads() -> list[Workload]:
    """The squares first, then one of each fusion, then the rest."""
    return [
        _row("matmul", "matmul", "gemm", 4096, 4096, 4096),
        _row("matmul + bias + gelu", "matmul_gelu", "gemm gelu", 4096, 4096, 4096),
        _row("SwiGLU", "swiglu", "swiglu", 4096, 14336, 4096, products=2),
        _row("rms_norm -> matmul", "norm_matmul", "norm gemm", 4096, 4096, 4096),
        _row("matmul -> sums of squares", "matmul_squares", "gemm rows", 4096, 4096, 4096),
        _scaled(4096, 4096, 4096),
        _row("matmul", "matmul", "gemm", 8192, 8192, 8192),
        *(_row("matmul", "matmul", "gemm", m, n, k) for m, n, k in SHAPES),
        _row("matmul + bias + gelu", "matmul_gelu", "gemm gelu", 8192, 8192, 8192),
        _row("matmul + bias + gelu", "matmul_gelu", "gemm gelu", 4095, 4097, 1000),
        _row("matmul -> log-sum-exp", "matmul_lse", "gemm rows", 4096, 32000, 4096),
        _row("SwiGLU", "swiglu", "swiglu", 1000, 5000, 2000, products=2),
        _row("rms_norm -> matmul", "norm_matmul", "norm gemm", 2047, 5000, 4096),
        _scaled(1000, 8192, 8192),
        _row("matmul", "matmul", BEYOND, 2048, 2048, 2048, dtype=F),
    ]


def _row(
    title: str,
    function: str,
    line: str,
    m: int,
    n: int,
    k: int,
    dtype: str = B,
    products: int = 1,
) -> Workload:
    make: Any = getattr(written, function)
    return Workload(
        name=f"{title}, {'f32' if dtype == F else 'bf16'} {m}x{n}x{k}",
        line=line,
        function=function,
        make=make,
        sizes={"m": m, "n": n, "k": k, "dtype": dtype},
        small={"m": _less(m), "n": _less(n), "k": _less(k), "dtype": dtype},
        flops=2 * m * n * k * products,
        error=1e-5 if dtype == F else 1e-2,
        uses_dot=min(m, n, k) >= 16,
    )


def _less(extent: int) -> int:
    """Small, and as odd as `extent` is."""
    return extent if extent <= 64 else 96 + (extent % 16)


def _scaled(m: int, n: int, k: int) -> Workload:
    return Workload(
        name=f"fp8 matmul with row scales, e4m3 {m}x{n}x{k}",
        line="fp8",
        function="scaled_matmul",
        make=written.scaled_matmul,
        sizes={"m": m, "n": n, "k": k, "dtype": "float8_e4m3fn"},
        small={"m": 64, "n": 64, "k": 64, "dtype": "float8_e4m3fn"},
        traffic=m * k + n * k + 2 * m * n + 4 * (m + n),
        flops=2 * m * n * k,
        peers={SCALED: "prepare_scaled"},
        without=(EAGER, COMPILED, TUNED),
        uses_dot=True,
    )
