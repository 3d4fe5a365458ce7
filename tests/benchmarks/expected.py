"""How long the bars allow for a row on one H200, before anything is measured there.

The peers' times are those measured for `reference` rows with PyTorch 2.11 on an H200; where a row
was not among them its peer is taken to reach the rate of the nearest row that was.  Used by
`--static` only: a measured run compares with peers of the same run.
"""

from __future__ import annotations

from workload import (
    BEST,
    BEST_COMPILED,
    COMPILED,
    COPY,
    CUDNN,
    EAGER,
    FLEX,
    FOREACH,
    LIMIT,
    SCALED,
    Bar,
    Workload,
    line_of,
)

COPIED = 4.30e12
"""Bytes a second of a device copy."""
TENSOR = 760e12
"""Operations a second of the best matrix product measured."""
CALL = 4e-6
"""Seconds that no kernel goes below."""

MEASURED: dict[tuple[str, str], float] = {
    ("chain of 5, f32 8192x8192", BEST_COMPILED): 0.1896e-3,
    ("sin and cos, f32 8192x8192", BEST_COMPILED): 0.1972e-3,
    ("x + y.T, f32 8192x8192", BEST_COMPILED): 0.1917e-3,
    ("relu(x*w + b), f32 8192x8192", BEST_COMPILED): 0.1298e-3,
    ("x[ids] + y, bf16 16384x4096x50000", BEST_COMPILED): 0.0995e-3,
    ("mean of squares, f32 8192x8192", BEST_COMPILED): 0.1391e-3,
    ("column sum, f32 8192x8192", BEST_COMPILED): 0.0743e-3,
    ("softmax, bf16 65536x1024", BEST_COMPILED): 0.0691e-3,
    ("softmax, bf16 16384x4096", BEST_COMPILED): 0.1316e-3,
    ("softmax, bf16 4096x32768", BEST_COMPILED): 0.2446e-3,
    ("softmax, bf16 65536x257", BEST_COMPILED): 0.0302e-3,
    ("softmax, bf16 262144x128", BEST_COMPILED): 0.0378e-3,
    ("softmax, bf16 16384x5000", BEST_COMPILED): 0.1708e-3,
    ("softmax, bf16 16384x4097", BEST_COMPILED): 0.1928e-3,
    ("softmax, bf16 1024x131072", BEST_COMPILED): 0.2820e-3,
    ("softmax, bf16 128x1048576", BEST_COMPILED): 0.4496e-3,
    ("layer_norm, bf16 65536x1024", BEST_COMPILED): 0.0696e-3,
    ("layer_norm, bf16 16384x8192", BEST_COMPILED): 0.1451e-3,
    ("rms_norm(x + r), bf16 65536x1024", BEST_COMPILED): 0.1308e-3,
    ("rms_norm(x + r), bf16 16384x8192", BEST_COMPILED): 0.2550e-3,
    ("cross entropy, bf16 8192x128256", BEST_COMPILED): 1.2368e-3,
    ("matmul, bf16 4096x4096x4096", EAGER): 0.1869e-3,
    ("matmul, bf16 8192x8192x8192", EAGER): 1.6046e-3,
    ("matmul, bf16 16x8192x8192", EAGER): 0.0432e-3,
    ("matmul, bf16 256x256x65536", EAGER): 0.0319e-3,
    ("matmul + bias + gelu, bf16 4096x4096x4096", BEST): 0.2059e-3,
    ("matmul + bias + gelu, bf16 8192x8192x8192", BEST): 1.6906e-3,
    ("SwiGLU, bf16 4096x14336x4096", BEST): 1.3585e-3,
    ("rms_norm -> matmul, bf16 4096x4096x4096", BEST): 0.2132e-3,
}
"""Seconds of a peer, by row and peer."""

BYTES: dict[str, float] = {
    "pointwise": 0.97,
    "reductions": 0.9,
    "rows short": 0.88,
    "rows 4096": 0.48,
    "rows 32768": 0.5,
    "rows 5000": 0.45,
    "rows 4097": 0.33,
    "rows 131072": 0.44,
    "rows 1048576": 0.28,
    "norms": 0.9,
    "norms backward": 0.45,
    "cross entropy": 0.4,
    "cross entropy both": 0.5,
    "depthwise": 0.6,
    "horizontal": 0.2,
}
"""The share of a copy's bandwidth that the best peer of a line reached, or is believed to."""

OPERATIONS: dict[tuple[str, str], float] = {
    ("gemm", EAGER): 700e12,
    ("gemm gelu", BEST): 660e12,
    ("swiglu", BEST): 708e12,
    ("norm gemm", BEST): 645e12,
    ("gemm rows", BEST): 600e12,
    ("fp8", SCALED): 1200e12,
    ("attention", FLEX): 380e12,
    ("attention", CUDNN): 600e12,
    ("attention variants", FLEX): 350e12,
    ("attention backward", CUDNN): 480e12,
    ("convolution", BEST_COMPILED): 490e12,
}
"""Operations a second of a peer."""


def floor(load: Workload) -> float:
    """Seconds that the bytes or the operations of a row take at the measured ceilings."""
    wide = 1 / 15 if load.sizes.get("dtype") == "float32" else 1.0
    if any(tensor.dtype.is_float8 for tensor in load.inputs().values()):
        wide = 2.0
    return max(load.moved / COPIED, load.flops / (TENSOR * wide), CALL)


def peer_seconds(load: Workload, peer: str) -> float:
    """What a peer is expected to take."""
    if peer == COPY:
        return max(load.moved / COPIED, CALL)
    found = MEASURED.get((load.name, peer))
    if found is not None:
        return found
    if (rate := OPERATIONS.get((load.line, peer))) is not None:
        wide = 1 / 15 if load.sizes.get("dtype") == "float32" else 1.0
        return max(load.flops / (rate * wide), load.moved / (0.8 * COPIED), CALL)
    share = BYTES.get(load.line, 0.9)
    share = 0.4 if peer in (COMPILED, FOREACH) and load.line == "horizontal" else share
    return max(load.moved / (share * COPIED), CALL)


def bars_of(load: Workload) -> tuple[Bar, ...]:
    """The bars of a row's line, and its own."""
    return (*line_of(load.line).bars, *load.bars)


def allowed(load: Workload) -> float | None:
    """The longest that a row may take on the device to reach its bars; None without one."""
    times = [
        peer_seconds(load, bar.peer) / (bar.geomean or bar.least)
        for bar in bars_of(load)
        if bar.peer != LIMIT
    ]
    return min(times, default=None)
