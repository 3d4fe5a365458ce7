"""The computations of the benchmark in NumPy, float64: what `--check` compares with.

Named as in `written.py`; inputs come by name, as float64 (integers as they are).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from written import EPS
from written_models import ADAM_EPS, BETA1, BETA2, LR, STEP

Array = Any


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def chain(x: Array, y: Array) -> Array:
    return _sigmoid(np.maximum((x + y) * 2.0, 0.0) - 1.0)


short_chain = chain


def row_vectors(x: Array, w: Array, b: Array) -> Array:
    return np.maximum(x * w + b, 0.0)


def sincos(x: Array) -> tuple[Array, Array]:
    return np.sin(x), np.cos(x)


def transpose_add(x: Array, y: Array) -> Array:
    return x + y.T


def gather_add(e: Array, ids: Array, y: Array) -> Array:
    return e[ids] + y


def mean_squares(x: Array, y: Array) -> Array:
    return ((x - y) ** 2).mean()


def column_sum(x: Array) -> Array:
    return x.sum(0)


def variance(x: Array) -> Array:
    return x.var()


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _lse(x: Array) -> Array:
    top = x.max(-1)
    return top + np.log(np.exp(x - top[..., None]).sum(-1))


def log_softmax(x: Array) -> Array:
    return x - _lse(x)[:, None]


def layer_norm(x: Array, w: Array, b: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS) * w + b


def rms_norm_add(x: Array, r: Array, w: Array) -> tuple[Array, Array]:
    h = x + r
    return h, h / np.sqrt((h**2).mean(-1, keepdims=True) + EPS) * w


def layer_norm_backward(
    dy: Array, x: Array, w: Array, mean: Array, rstd: Array
) -> tuple[Array, Array, Array]:
    unit = (x - mean[:, None]) * rstd[:, None]
    head = dy * w
    a, b = head.mean(-1, keepdims=True), (head * unit).mean(-1, keepdims=True)
    return (head - a - unit * b) * rstd[:, None], (dy * unit).sum(0), dy.sum(0)


def rms_norm_backward(dy: Array, x: Array, w: Array, rstd: Array) -> tuple[Array, Array]:
    unit = x * rstd[:, None]
    head = dy * w
    b = (head * unit).mean(-1, keepdims=True)
    return (head - unit * b) * rstd[:, None], (dy * unit).sum(0)


def cross_entropy(x: Array, target: Array) -> Array:
    return _lse(x) - x[np.arange(len(x)), target]


def cross_entropy_both(x: Array, target: Array) -> tuple[Array, Array]:
    slope = softmax(x)
    slope[np.arange(len(x)), target] -= 1.0
    return cross_entropy(x, target), slope / len(x)


def matmul(a: Array, b: Array) -> Array:
    return a @ b


def matmul_gelu(a: Array, b: Array, bias: Array) -> Array:
    v = a @ b + bias
    return 0.5 * v * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (v + 0.044715 * v**3)))


def swiglu(a: Array, g: Array, u: Array) -> Array:
    gate = a @ g
    return gate * _sigmoid(gate) * (a @ u)


def norm_matmul(x: Array, w: Array, b: Array) -> Array:
    return (x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * w) @ b


def matmul_squares(a: Array, b: Array) -> tuple[Array, Array]:
    product = a @ b
    return product, (product**2).sum(-1)


def matmul_lse(a: Array, b: Array) -> Array:
    return _lse(a @ b)


def scaled_matmul(a: Array, b: Array, sa: Array, sb: Array) -> Array:
    return (a @ b.T) * sa[:, None] * sb


def _masked(rows: int, keys: int, causal: bool, window: int) -> Array:
    i, j = np.arange(rows)[:, None], np.arange(keys)[None, :]
    seen = (j <= i) if causal else np.ones((rows, keys), bool)
    return np.where(seen & (i - j < window) if window else seen, 0.0, -np.inf)


def attention(
    q: Array, k: Array, v: Array, causal: bool = False, window: int = 0, cap: float = 0.0
) -> Array:
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores = np.tanh(scores / cap) * cap if cap else scores
    return softmax(scores + _masked(q.shape[1], k.shape[1], causal, window)) @ v


def attention_backward(
    q: Array, k: Array, v: Array, o: Array, do: Array, lse: Array, causal: bool = False
) -> tuple[Array, Array, Array]:
    scale = q.shape[-1] ** -0.5
    scores = q @ k.swapaxes(-1, -2) * scale + _masked(q.shape[1], k.shape[1], causal, 0)
    p = np.exp(scores - lse[..., None])
    dp = do @ v.swapaxes(-1, -2)
    ds = p * (dp - (o * do).sum(-1)[..., None]) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do


def _windows(x: Array, side: int, stride: int, pad: int) -> Array:
    """[n, y, z, c, r, s]: the windows of an NHWC array."""
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(1, 2))
    return views[:, ::stride, ::stride]


def convolution(
    x: Array, w: Array, scale: Array, bias: Array, stride: int = 1, pad: int = 0
) -> Array:
    windows = _windows(x, w.shape[1], stride, pad)
    return np.maximum(np.einsum("nyzcrs,frsc->nyzf", windows, w) * scale + bias, 0.0)


def depthwise(
    x: Array, w: Array, scale: Array, bias: Array, stride: int = 1, pad: int = 0
) -> Array:
    windows = _windows(x, w.shape[0], stride, pad)
    return np.maximum(np.einsum("nyzcrs,rsc->nyzc", windows, w) * scale + bias, 0.0)


def adam(**tensors: Array) -> tuple[Array, ...]:
    outputs: list[Array] = []
    for place in range(len(tensors) // 4):
        p, g, m, v = (tensors[f"{name}{place}"] for name in "pgmv")
        m = m * BETA1 + g * (1.0 - BETA1)
        v = v * BETA2 + g * g * (1.0 - BETA2)
        root = np.sqrt(v / (1.0 - BETA2**STEP)) + ADAM_EPS
        outputs += [p - m * (LR / (1.0 - BETA1**STEP)) / root, m, v]
    return tuple(outputs)


def scaled_many(**tensors: Array) -> tuple[Array, ...]:
    return tuple(tensors[f"x{place}"] * 2.0 + 1.0 for place in range(len(tensors)))
