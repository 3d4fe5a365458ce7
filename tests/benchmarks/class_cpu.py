"""The rows that are measured on the CPU."""

from __future__ import annotations

from typing import Any

import written
import written_models
from workload import COMPILED, EAGER, NUMPY, Bar, F, Fill, Workload


def workloads() -> list[Workload]:
    """Each with the bar of its own."""
    n, m = 4096, 1024
    square = {"m": n, "n": n, "dtype": F}
    cube = {"m": m, "n": m, "k": m, "dtype": F}
    both = (Bar(NUMPY, 0.0, 2.5), Bar(COMPILED, 0.0, 1.0))
    return [
        _row(f"chain of 5, f32 {n}x{n}", "chain", square, both),
        _row(f"softmax, f32 {n}x{n}", "softmax", square, (Bar(EAGER, 0, 1.1),)),
        _row(f"layer_norm, f32 {n}x{n}", "layer_norm", square, (Bar(EAGER, 0, 1.0),)),
        _row(f"matmul, f32 {m}^3", "matmul", cube, (Bar(NUMPY, 0, 0.9),)),
        _row(f"matmul + bias + gelu, f32 {m}^3", "matmul_gelu", cube, (Bar(EAGER, 0, 0.9),)),
        _convolution(1, 56, 64),
        _convolution(8, 14, 256),
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


def _convolution(n: int, size: int, channels: int) -> Workload:
    """3x3, NHWC, as many filters as channels, with scale, bias and relu."""
    window: dict[str, Any] = {"side": 3, "stride": 1, "pad": 1, "dtype": F}
    return Workload(
        name=f"conv 3x3 + scale + bias + relu, f32 {n}x{size}x{size}x{channels}",
        line="cpu",
        function="convolution",
        make=written_models.convolution,
        sizes={"n": n, "size": size, "channels": channels, "filters": channels, **window},
        small={"n": 2, "size": 6, "channels": 16, "filters": 20, **window},
        settings={"stride": 1, "pad": 1},
        fills={"w": Fill((9 * channels) ** -0.5), "scale": Fill(0.1, 1.0)},
        flops=2 * n * size * size * channels * channels * 9,
        error=1e-5,
        bars=(Bar(EAGER, 0, 0.8),),
        target="cpu",
    )
