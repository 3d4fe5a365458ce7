"""Pointwise rows: chains, broadcast vectors, two results, a transposed and a gathered operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import written
from workload import B, F, Fill, Workload

N, ODD = 8192, (8191, 8193)
SHORT = {F: "f32", B: "bf16"}
ERROR = {F: 1e-5, B: 1e-2}


def _row(
    title: str,
    function: str,
    dtype: str,
    sizes: Mapping[str, int],
    small: Mapping[str, int],
    **more: Any,
) -> Workload:
    make: Callable[..., Any] = getattr(written, function)
    shape = "x".join(str(n) for n in sizes.values())
    return Workload(
        name=f"{title}, {SHORT[dtype]} {shape}",
        line="pointwise",
        function=function,
        make=make,
        sizes={**sizes, "dtype": dtype},
        small={**small, "dtype": dtype},
        error=ERROR[dtype],
        **more,
    )


def workloads() -> list[Workload]:
    """Even sizes in both dtypes first, then odd ones, then short and long ones."""
    plain = [
        ("chain of 5", "chain"),
        ("relu(x*w + b)", "row_vectors"),
        ("sin and cos", "sincos"),
        ("x + y.T", "transpose_add"),
    ]
    even, odd = {"m": N, "n": N}, {"m": ODD[0], "n": ODD[1]}
    rows = [
        _row(title, function, dtype, sizes, {"m": 48 + extra, "n": 64 + extra})
        for sizes, extra in ((even, 0), (odd, 1))
        for dtype in (F, B)
        for title, function in plain
    ]
    rows += [_gather(dtype, 16384, columns, 50000) for dtype in (B, F) for columns in (4096, 4097)]
    return [
        *rows,
        _row("chain of 5", "chain", F, {"m": 1, "n": 1 << 20}, {"m": 1, "n": 3000}),
        _row("chain of 5", "chain", B, {"m": 1 << 20, "n": 33}, {"m": 300, "n": 33}),
        _row("relu(x*w + b)", "row_vectors", B, {"m": 1 << 20, "n": 96}, {"m": 80, "n": 24}),
    ]


def _gather(dtype: str, m: int, n: int, table: int) -> Workload:
    """Only the rows that are asked for are read, most of them once."""
    size = 2 if dtype == B else 4
    return _row(
        "x[ids] + y",
        "gather_add",
        dtype,
        {"m": m, "n": n, "table": table},
        {"m": 24, "n": 40 + n % 2, "table": 7},
        fills={"ids": Fill(high="table")},
        traffic=3 * m * n * size + 8 * m,
    )
