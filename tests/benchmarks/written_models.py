"""Attention, convolutions and optimiser steps of the benchmark, as plain expressions; the sequel of
`written.py`, under the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workload import F
from written import given, over, wide

import tedsl as te
from tedsl.tensor.tensor import Tensor

Outputs = Sequence[Tensor]

NAMES = ("q", "k", "v", "o", "do")
LR, BETA1, BETA2, ADAM_EPS, STEP = 1e-3, 0.9, 0.999, 1e-8, 10


def attention(
    heads: int,
    rows: int,
    keys: int,
    depth: int,
    dtype: str = F,
    causal: bool = False,
    window: int = 0,
    cap: float = 0.0,
) -> Outputs:
    """softmax(q k^T / sqrt(depth)) v; with a window a row sees so many keys up to its own.  What a
    row does not see is finite."""
    shape = (heads, rows, keys)
    q = given("q", heads, rows, depth, dtype=dtype)
    k = given("k", heads, keys, depth, dtype=dtype)
    v = given("v", heads, keys, depth, dtype=dtype)
    d, axes = over(depth, "d"), [over(keys, "j") for _ in range(3)]

    def seen(i: Any, j: Any) -> dict[str, Any]:
        if not causal:
            return {"axis": j}
        ahead = j <= i
        return {"axis": j, "where": ahead & (i - j < window) if window else ahead}

    scores = te.compute(
        shape, lambda h, i, j: te.sum(wide(q[h, i, d]) * wide(k[h, j, d]), axis=d), name="S"
    )

    def capped(h: Any, i: Any, j: Any) -> Any:
        scaled = scores[h, i, j] * depth**-0.5
        return te.tanh(scaled * (1.0 / cap)) * cap if cap else scaled

    t = te.compute(shape, capped, name="T")
    top = te.compute(
        (heads, rows), lambda h, i: te.max(t[h, i, axes[0]], **seen(i, axes[0])), name="m"
    )
    p = te.compute(shape, lambda h, i, j: te.exp(t[h, i, j] - top[h, i]), name="p")
    total = te.compute(
        (heads, rows), lambda h, i: te.sum(p[h, i, axes[1]], **seen(i, axes[1])), name="l"
    )
    share = te.compute(shape, lambda h, i, j: p[h, i, j] / total[h, i], name="P")
    j = axes[2]
    folded = te.compute(
        (heads, rows, depth),
        lambda h, i, c: te.sum(
            wide(share[h, i, j].astype(dtype)) * wide(v[h, j, c]),
            **seen(i, j),
            finite=causal,
        ),
        name="O",
    )
    return [te.compute(folded.shape, lambda h, i, c: folded[h, i, c].astype(dtype), name="out")]


def attention_backward(
    heads: int, rows: int, depth: int, dtype: str = F, causal: bool = False
) -> Outputs:
    """Gradients by q, k and v, from the result and the log-sum-exp that the forward pass keeps."""
    shape = (heads, rows, rows)
    q, k, v, o, do = (given(name, heads, rows, depth, dtype=dtype) for name in NAMES)
    lse = given("lse", heads, rows)
    d, e, c = over(depth, "d"), over(depth, "e"), over(depth, "c")
    i1, i2, j1 = over(rows, "i"), over(rows, "i"), over(rows, "j")
    scale = depth**-0.5

    scores = te.compute(
        shape, lambda h, i, j: te.sum(wide(q[h, i, d]) * wide(k[h, j, d]), axis=d), name="S"
    )

    def seen(i: Any, j: Any) -> dict[str, Any]:
        return {"where": j <= i, "finite": True} if causal else {}

    p = te.compute(shape, lambda h, i, j: te.exp(scores[h, i, j] * scale - lse[h, i]), name="P")
    delta = te.compute(
        (heads, rows), lambda h, i: te.sum(wide(o[h, i, e]) * wide(do[h, i, e]), axis=e), name="D"
    )
    dp = te.compute(
        shape, lambda h, i, j: te.sum(wide(do[h, i, c]) * wide(v[h, j, c]), axis=c), name="dP"
    )
    ds = te.compute(
        shape,
        lambda h, i, j: p[h, i, j] * (dp[h, i, j] - delta[h, i]),
        name="dS",
    )
    whole = (heads, rows, depth)

    def narrow(x: Any) -> Any:
        return wide(x.astype(dtype))

    dv = te.compute(
        whole,
        lambda h, j, a: te.sum(narrow(p[h, i1, j]) * wide(do[h, i1, a]), axis=i1, **seen(i1, j)),
        name="dv_sum",
    )
    dk = te.compute(
        whole,
        lambda h, j, a: te.sum(narrow(ds[h, i2, j]) * wide(q[h, i2, a]), axis=i2, **seen(i2, j)),
        name="dk_sum",
    )
    dq = te.compute(
        whole,
        lambda h, i, a: te.sum(narrow(ds[h, i, j1]) * wide(k[h, j1, a]), axis=j1, **seen(i, j1)),
        name="dq_sum",
    )

    def result(x: Tensor, name: str, factor: float = scale) -> Tensor:
        return te.compute(whole, lambda h, i, a: (x[h, i, a] * factor).astype(dtype), name=name)

    return [result(dq, "dq"), result(dk, "dk"), result(dv, "dv", 1.0)]


def _windows(extent: int, filter_extent: int, stride: int, pad: int) -> int:
    """How many windows lie along a side."""
    return (extent + 2 * pad - filter_extent) // stride + 1


def _padded(x: Tensor, n: int, size: int, channels: int, pad: int) -> Tensor:
    """With zeros around it."""
    if not pad:
        return x
    wider = size + 2 * pad

    def value(b: Any, y: Any, z: Any, c: Any) -> Any:
        inside = (y >= pad) & (y < size + pad) & (z >= pad) & (z < size + pad)
        zero = te.const(0.0, x.dtype)
        return te.if_then_else(inside, x[b, y - pad, z - pad, c], zero)

    return te.compute((n, wider, wider, channels), value, name="padded")


def convolution(
    n: int,
    size: int,
    channels: int,
    filters: int,
    side: int,
    stride: int = 1,
    pad: int = 0,
    dtype: str = F,
) -> Outputs:
    """relu(conv(x, w) * scale + bias); x and the result are NHWC, w is [filters, side, side, c]."""
    x = given("x", n, size, size, channels, dtype=dtype)
    w = given("w", filters, side, side, channels, dtype=dtype)
    scale, bias = given("scale", filters, dtype=dtype), given("bias", filters, dtype=dtype)
    out = _windows(size, side, stride, pad)
    padded = _padded(x, n, size, channels, pad)
    r, s, c = over(side, "r"), over(side, "s"), over(channels, "c")
    conv = te.compute(
        (n, out, out, filters),
        lambda b, y, z, f: te.sum(
            wide(padded[b, y * stride + r, z * stride + s, c]) * wide(w[f, r, s, c]),
            axis=[r, s, c],
        ),
        name="conv",
    )
    return [
        te.compute(
            conv.shape,
            lambda b, y, z, f: te.maximum(
                conv[b, y, z, f] * wide(scale[f]) + wide(bias[f]), 0.0
            ).astype(dtype),
            name="out",
        )
    ]


def depthwise(
    n: int, size: int, channels: int, side: int, stride: int = 1, pad: int = 0, dtype: str = F
) -> Outputs:
    """The same with a filter for each channel, [side, side, c]."""
    x = given("x", n, size, size, channels, dtype=dtype)
    w = given("w", side, side, channels, dtype=dtype)
    scale, bias = given("scale", channels, dtype=dtype), given("bias", channels, dtype=dtype)
    out = _windows(size, side, stride, pad)
    padded = _padded(x, n, size, channels, pad)
    r, s = over(side, "r"), over(side, "s")
    conv = te.compute(
        (n, out, out, channels),
        lambda b, y, z, c: te.sum(
            wide(padded[b, y * stride + r, z * stride + s, c]) * wide(w[r, s, c]), axis=[r, s]
        ),
        name="conv",
    )
    return [
        te.compute(
            conv.shape,
            lambda b, y, z, c: te.maximum(
                conv[b, y, z, c] * wide(scale[c]) + wide(bias[c]), 0.0
            ).astype(dtype),
            name="out",
        )
    ]


def adam_sizes(count: int, least: int, step: int) -> list[int]:
    """Lengths of many small tensors, no two alike and most of them odd."""
    return [least + step * place for place in range(count)]


def adam(count: int, least: int, step: int, dtype: str = F) -> Outputs:
    """One step of Adam on many tensors: parameters, first and second moments."""
    sizes = adam_sizes(count, least, step)
    p, g, m, v = (
        [given(f"{name}{i}", n, dtype=dtype) for i, n in enumerate(sizes)] for name in "pgmv"
    )
    made = te.nn.foreach_adam(p, g, m, v, STEP, lr=LR, betas=(BETA1, BETA2), eps=ADAM_EPS)
    return [tensor for step_of_one in zip(*made, strict=True) for tensor in step_of_one]


def scaled_many(count: int, least: int, step: int, dtype: str = F) -> Outputs:
    """Many small tensors, each times two plus one."""

    def one(x: Tensor, place: int) -> Tensor:
        return te.compute(
            x.shape, lambda i: (wide(x[i]) * 2.0 + 1.0).astype(dtype), name=f"y{place}"
        )

    sizes = adam_sizes(count, least, step)
    return [one(given(f"x{i}", n, dtype=dtype), i) for i, n in enumerate(sizes)]
