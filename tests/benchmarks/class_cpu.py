"""The rows that are measured on the CPU."""

from __future__ import annotations

from typing import Any

import written
from workload import COMPILED, EAGER, NUMPY, Bar, F, Workload


def workloads() -> list[Workload]:
    """Each with the bar of its own."""
    n, m = 4096, 1024
    square = {"m": n, "n": n, "dtype": F}
    cube = {"m": m, "n": m, "k": m, "dtype": F}
    both = (Bar(NUMPY, 0.0, 2.5), Bar(COMPILED, 0.0, 1.0))
    return [
        _row(f"chain of 5, f32 {n}x{n}", "chain", square, both),
        _row(f"softmax, f32 {n}x{n}", "softmax", square, (Bar(EAGER, 0, 1.0),)),
        _row(f"layer_norm, f32 {n}x{n}", "layer_norm", square, (Bar(EAGER, 0, 1.0),)),
        _row(f"matmul, f32 {m}^3", "matmul", cube, (Bar(NUMPY, 0, 0.7),)),
        _row(f"matmul + bias + gelu, f32 {m}^3", "matmul_gelu", cube, (Bar(EAGER, 0, 0.9),)),
    ]


def _row(name: str, function: str, sizes: dict[str, Any], bars: tuple[Bar, ...]) -> Workload:
    make: Any = getattr(written, function)
    products = 2 if "k" in sizes else 0
    return Workload(
        name=name,
        line="cpu",
        function=function,
        make=make,
        sizes=sizes,
        small={k: 40 if isinstance(v, int) else v for k, v in sizes.items()},
        flops=products * sizes["m"] * sizes["n"] * sizes.get("k", 0),
        error=1e-5,
        bars=bars,
        target="cpu",
    )
