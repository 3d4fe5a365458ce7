"""Attention as two contractions around a softmax, and its schedule: one kernel, one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tedsl as te

F = "float32"


@dataclass(frozen=True)
class Attention:
    """O = softmax(scale * Q K^T) V per head, with every stage of it."""

    scores: te.Tensor
    scaled: te.Tensor
    weights: te.Tensor
    shares: te.Tensor
    folded: te.Tensor
    result: te.Tensor


def attention(
    heads: int, rows: int, keys: int, depth: int, dtype: str = F, causal: bool = False
) -> Attention:
    """Q[heads, rows, depth], K and V[heads, keys, depth] -> O[heads, rows, depth]."""
    q = te.placeholder((heads, rows, depth), dtype, name="Q")
    k = te.placeholder((heads, keys, depth), dtype, name="K")
    v = te.placeholder((heads, keys, depth), dtype, name="V")
    d = te.reduce_axis((0, depth), "d")
    axes = [te.reduce_axis((0, keys), "j") for _ in range(3)]

    def seen(i: te.Axis, n: int) -> dict[str, Any]:
        return {"axis": axes[n], **({"where": axes[n] <= i} if causal else {})}

    shape, whole = (heads, rows), (heads, rows, keys)
    scores = te.compute(
        whole, lambda h, i, j: te.sum(q[h, i, d].astype(F) * k[h, j, d].astype(F), axis=d), name="S"
    )
    scaled = te.compute(whole, lambda h, i, j: scores[h, i, j] * depth**-0.5, name="T")
    top = te.compute(shape, lambda h, i: te.max(scaled[h, i, axes[0]], **seen(i, 0)), name="m")
    weights = te.compute(whole, lambda h, i, j: te.exp(scaled[h, i, j] - top[h, i]), name="p")
    total = te.compute(shape, lambda h, i: te.sum(weights[h, i, axes[1]], **seen(i, 1)), name="l")
    shares = te.compute(whole, lambda h, i, j: weights[h, i, j] / total[h, i], name="P")
    j = axes[2]
    folded = te.compute(
        (heads, rows, depth),
        lambda h, i, d: te.sum(
            shares[h, i, j].astype(dtype).astype(F) * v[h, j, d].astype(F), **seen(i, 2)
        ),
        name="O",
    )
    result = te.compute(
        (heads, rows, depth), lambda h, i, d: folded[h, i, d].astype(dtype), name="out"
    )
    return Attention(scores, scaled, weights, shares, folded, result)


def one_pass(
    a: Attention, rows: int = 128, keys: int = 64, stages: int = 3, warps: int = 4
) -> te.Schedule:
    """One program for each head and block of rows; a loop over blocks of keys."""
    s = te.create_schedule(a.result)
    h, i, d = s[a.result].op.axis
    block, i = s[a.result].split(i, rows)
    s[a.result].reorder(h, block, i, d)
    s[a.result].bind(h, "blockIdx.y")
    s[a.result].bind(block, "blockIdx.x")
    s[a.shares].compute_inline()
    s[a.scaled].compute_inline()
    fold = s[a.folded]
    fold.compute_at(s[a.result], block)
    (j,) = fold.op.reduce_axis
    j, inner = fold.split(j, keys)
    fold.online(j, casts=True)
    s[a.scores].compute_at(fold, j)
    (depth,) = s[a.scores].op.reduce_axis
    s[a.scores].vectorize(depth)
    fold.dot(inner, finite=True)
    fold.pipeline(j, stages)
    s[a.result].launch(num_warps=warps)
    return s
