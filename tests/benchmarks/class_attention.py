"""Attention: forward with and without a mask, a window, a soft cap; backward.

About 16384 tokens and a width of 2048 in every row: the longer the sequence, the fewer of them.
"""

from __future__ import annotations

from typing import Any

import written_models
from workload import BEYOND, COMPILED, CUDNN, EAGER, FLASH, FLEX, TUNED, B, F, Fill, Workload

TOKENS, WIDTH = 16384, 2048
WITHOUT = (EAGER, COMPILED, TUNED)
FORWARD = {FLEX: "prepare_flex", CUDNN: "prepare_cudnn", FLASH: "prepare_flash"}
BACKWARD = {
    FLEX: "prepare_flex_backward",
    CUDNN: "prepare_cudnn_backward",
    FLASH: "prepare_flash_backward",
}


def workloads() -> list[Workload]:
    """One row of each depth first, then variants and the backward pass, then the other lengths."""
    first = [_forward(4096, 128, False), _forward(4096, 128, True), _forward(4096, 64, True)]
    others = [
        _forward(rows, depth, causal)
        for rows in (2048, 8192, 16384, 4096)
        for depth in (64, 128)
        for causal in (False, True)
    ]
    names = {row.name for row in first}
    return [
        first[0],
        _backward(4096, 128, True),
        *first[1:],
        _variant("window 1024", 8192, 128, window=1024),
        _variant("soft cap", 4096, 128, cap=50.0),
        _backward(4096, 64, False),
        *(row for row in others if row.name not in names),
        _forward(4000, 128, False),
        _forward(2047, 64, False),
        _variant("window 256", 16384, 64, window=256),
        _backward(8192, 128, False),
        _backward(2048, 64, True),
        _forward(2048, 64, True, dtype=F),
    ]


def _heads(rows: int, depth: int) -> int:
    return max(1, TOKENS // rows) * (WIDTH // depth)


def _forward(rows: int, depth: int, causal: bool, dtype: str = B) -> Workload:
    heads = _heads(rows, depth)
    short = "f32" if dtype == F else "bf16"
    return Workload(
        name=f"attention{', causal' if causal else ''}, {short} {heads}x{rows}x{depth}",
        line="attention" if dtype == B else BEYOND,
        function="attention",
        make=written_models.attention,
        sizes=_sizes(heads, rows, depth, dtype, causal=causal),
        small=_sizes(1, 64 + rows % 16, min(depth, 32), dtype, causal=causal),
        settings={"causal": causal},
        flops=(2 if causal else 4) * heads * rows * rows * depth,
        # The weights are rounded to the dtype of the values before the second product.
        error=1e-4 if dtype == F else 1e-2,
        peers={k: v for k, v in FORWARD.items() if dtype == B or k is FLEX},
        without=WITHOUT,
        uses_dot=True,
    )


def _sizes(heads: int, rows: int, depth: int, dtype: str, **more: Any) -> dict[str, Any]:
    sizes = {"heads": heads, "rows": rows, "keys": rows, "depth": depth, "dtype": dtype}
    return {**sizes, **more}


def _variant(title: str, rows: int, depth: int, window: int = 0, cap: float = 0.0) -> Workload:
    heads = _heads(rows, depth)
    pairs = rows * window - window * (window - 1) // 2 if window else rows * (rows + 1) // 2
    settings = {"causal": True, "window": window, "cap": cap}
    return Workload(
        name=f"attention, {title}, bf16 {heads}x{rows}x{depth}",
        line="attention variants",
        function="attention",
        make=written_models.attention,
        sizes=_sizes(heads, rows, depth, B, **settings),
        small=_sizes(1, 64, 32, B, **{**settings, "window": 16 if window else 0}),
        settings=settings,
        flops=4 * heads * pairs * depth,
        peers={FLEX: "prepare_flex"},
        without=WITHOUT,
        uses_dot=True,
    )


def _backward(rows: int, depth: int, causal: bool) -> Workload:
    """Five products of the forward pass's size; two programs compute one of them twice."""
    heads = _heads(rows, depth)
    sizes = {"rows": rows, "depth": depth, "dtype": B, "causal": causal}
    return Workload(
        name=f"attention backward{', causal' if causal else ''}, bf16 {heads}x{rows}x{depth}",
        line="attention backward",
        function="attention_backward",
        make=written_models.attention_backward,
        sizes={"heads": heads, **sizes},
        small={**sizes, "heads": 1, "rows": 64, "depth": 32},
        settings={"causal": causal},
        fills={"lse": Fill(0.1, 8.0)},
        flops=(5 if causal else 10) * heads * rows * rows * depth,
        peers=BACKWARD,
        without=WITHOUT,
        uses_dot=True,
        one_kernel=False,
    )
