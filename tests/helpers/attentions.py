"""Attention as two contractions around a softmax, its schedule (one kernel, one pass), and its
gradients."""

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
    heads: int,
    rows: int,
    keys: int,
    depth: int,
    dtype: str = F,
    causal: bool = False,
    finite: bool = False,
) -> Attention:
    """Q[heads, rows, depth], K and V[heads, keys, depth] -> O[heads, rows, depth]; `finite` says
    that so is V."""
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
            shares[h, i, j].astype(dtype).astype(F) * v[h, j, d].astype(F),
            **seen(i, 2),
            finite=finite and causal,
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


def gradients(
    heads: int, rows: int, keys: int, depth: int, dtype: str = F, causal: bool = False
) -> list[te.Tensor]:
    """dQ, dK and dV from the log-sum-exp of each row, and the sums of dO * O: five contractions, of
    which three have the results of the other two in an operand."""
    q, do = (te.placeholder((heads, rows, depth), dtype, name=name) for name in ("Q", "dO"))
    k, v = (te.placeholder((heads, keys, depth), dtype, name=name) for name in ("K", "V"))
    lse, delta = (te.placeholder((heads, rows), F, name=name) for name in ("lse", "delta"))
    d, c = (te.reduce_axis((0, depth), name) for name in ("d", "c"))
    i1, i2 = (te.reduce_axis((0, rows), "i") for _ in range(2))
    j1, whole, scale = te.reduce_axis((0, keys), "j"), (heads, rows, keys), depth**-0.5

    def product(a: Any, b: Any, **more: Any) -> te.Expr:
        return te.sum(a.astype(dtype).astype(F) * b.astype(F), **more)

    def seen(i: te.Axis, j: te.Axis) -> dict[str, Any]:
        return {"where": j <= i, "finite": True} if causal else {}

    s = te.compute(whole, lambda h, i, j: product(q[h, i, d], k[h, j, d], axis=d), name="S")
    p = te.compute(whole, lambda h, i, j: te.exp(s[h, i, j] * scale - lse[h, i]), name="P")
    dp = te.compute(whole, lambda h, i, j: product(do[h, i, c], v[h, j, c], axis=c), name="dP")
    ds = te.compute(whole, lambda h, i, j: p[h, i, j] * (dp[h, i, j] - delta[h, i]), name="dS")
    dq = te.compute(
        (heads, rows, depth),
        lambda h, i, a: product(ds[h, i, j1], k[h, j1, a], axis=j1, **seen(i, j1)),
        name="dq_sum",
    )
    dk = te.compute(
        (heads, keys, depth),
        lambda h, j, a: product(ds[h, i1, j], q[h, i1, a], axis=i1, **seen(i1, j)),
        name="dk_sum",
    )
    dv = te.compute(
        (heads, keys, depth),
        lambda h, j, a: product(p[h, i2, j], do[h, i2, a], axis=i2, **seen(i2, j)),
        name="dv_sum",
    )

    def rounded(t: te.Tensor, name: str) -> te.Tensor:
        return te.compute(t.shape, lambda h, i, a: t[h, i, a].astype(dtype), name=name)

    return [rounded(dq, "dq"), rounded(dk, "dk"), rounded(dv, "dv")]
