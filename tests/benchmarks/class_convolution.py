"""Convolutions with scale, bias and relu, NHWC: shapes of ResNet-50 and of a UNet; depthwise."""

from __future__ import annotations

from typing import Any

import written_models
from workload import BEYOND, B, F, Fill, Workload

# Images, side, channels, filters, side of the filter, stride, padding.
SHAPES = (
    (64, 56, 128, 128, 3, 1, 1),
    (64, 28, 256, 256, 3, 1, 1),
    (8, 64, 320, 320, 3, 1, 1),
    (64, 56, 64, 256, 1, 1, 0),
    (64, 56, 128, 128, 3, 2, 1),
    (64, 14, 256, 256, 3, 1, 1),
    (64, 7, 512, 512, 3, 1, 1),
    (64, 56, 256, 128, 1, 1, 0),
    (64, 224, 3, 64, 7, 2, 3),
    (5, 127, 96, 100, 3, 1, 1),
)
DEPTHWISE = ((32, 112, 96, 3, 1, 1), (64, 56, 144, 3, 2, 1), (32, 15, 961, 5, 1, 2))


def workloads() -> list[Workload]:
    """One of each kind first."""
    rows = [_convolution(*shape) for shape in SHAPES]
    deep = [_depthwise(*shape) for shape in DEPTHWISE]
    return [rows[0], deep[0], *rows[1:], *deep[1:], _convolution(*SHAPES[5], dtype=F)]


def _out(size: int, side: int, stride: int, pad: int) -> int:
    return (size + 2 * pad - side) // stride + 1


def _convolution(
    n: int, size: int, c: int, f: int, side: int, stride: int, pad: int, dtype: str = B
) -> Workload:
    sizes: dict[str, Any] = {"n": n, "size": size, "channels": c, "filters": f}
    window: dict[str, Any] = {"side": side, "stride": stride, "pad": pad, "dtype": dtype}
    out = _out(size, side, stride, pad)
    return Workload(
        name=f"conv {side}x{side} /{stride}, {'f32' if dtype == F else 'bf16'} "
        f"{n}x{size}x{size}x{c} -> {f}",
        line="convolution" if dtype == B else BEYOND,
        function="convolution",
        make=written_models.convolution,
        sizes={**sizes, **window},
        small={
            "n": 2,
            "size": max(6 + size % 2, side),
            "channels": min(c, 16),
            "filters": 16 + f % 16,
            **window,
        },
        settings={"stride": stride, "pad": pad},
        fills={"w": Fill((side * side * c) ** -0.5), "scale": Fill(0.1, 1.0)},
        flops=2 * n * out * out * f * side * side * c,
        error=1e-5 if dtype == F else 1e-2,
        uses_dot=True,
    )


def _depthwise(n: int, size: int, c: int, side: int, stride: int, pad: int) -> Workload:
    window: dict[str, Any] = {"side": side, "stride": stride, "pad": pad, "dtype": B}
    return Workload(
        name=f"depthwise {side}x{side} /{stride}, bf16 {n}x{size}x{size}x{c}",
        line="depthwise",
        function="depthwise",
        make=written_models.depthwise,
        sizes={"n": n, "size": size, "channels": c, **window},
        small={"n": 1, "size": 6 + size % 2, "channels": 16 + c % 16, **window},
        settings={"stride": stride, "pad": pad},
        fills={"w": Fill(1.0 / side), "scale": Fill(0.1, 1.0)},
    )
