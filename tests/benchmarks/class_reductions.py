"""Reductions of a whole array and of its columns."""

from __future__ import annotations

from typing import Any

import written
from workload import B, F, Workload


def workloads() -> list[Workload]:
    """Each reduction in float32 and bfloat16, of even and odd sizes, and of few long columns."""
    square, odd = (8192, 8192), (8191, 8193)
    return [
        _row("mean of squares", "mean_squares", F, *square),
        _row("column sum", "column_sum", F, *square),
        _row("var over everything", "variance", F, *square),
        _row("mean of squares", "mean_squares", B, *odd),
        _row("column sum", "column_sum", B, *odd),
        _row("var over everything", "variance", B, *odd),
        _row("column sum", "column_sum", B, 1 << 20, 64),
        _row("column sum", "column_sum", F, 128, 1 << 19),
        _row("mean of squares", "mean_squares", F, 1000, 1000),
    ]


def _row(title: str, function: str, dtype: str, m: int, n: int) -> Workload:
    make: Any = getattr(written, function)
    return Workload(
        name=f"{title}, {'f32' if dtype == F else 'bf16'} {m}x{n}",
        line="reductions",
        function=function,
        make=make,
        sizes={"m": m, "n": n, "dtype": dtype},
        small={"m": 70 + m % 2, "n": min(n, 90 + n % 2), "dtype": dtype},
        error=1e-4,
    )
