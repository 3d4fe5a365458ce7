"""Solutions of tutorial 9: a log-sum-exp, a variance and a soft cap, each in one pass.

python tutorials/solutions/09_softmax_to_attention_online.py
"""

# %% Setup
from __future__ import annotations

from typing import Any

import numpy as np

import tedsl as te

N, K, BLOCK = 7, 1000, 128
F32 = "float32"
x_of_test = np.random.default_rng(0).standard_normal((N, K), dtype=np.float32) * 4 + 10


def axis(extent: int) -> te.Axis:
    """A loop that is summed over."""
    return te.reduce_axis((0, extent), name="k")


def in_one_pass(s: te.Schedule, last: str) -> None:
    """The chain that ends in `last`, online over blocks of its row."""
    block, _ = s[last].split(s[last].op.reduce_axis[0], factor=BLOCK)
    s[last].online(block)


# %% 1. log(sum(exp(x - m))) + m
# The chain ends in `l`, as in the softmax: the same proof.  The logarithm is pointwise and comes
# after the chain.
def log_sum_exp() -> te.Schedule:
    """One kernel: `l` takes `m` along, at a row of the result."""
    x = te.placeholder((N, K), F32, name="x")
    j, k = axis(K), axis(K)
    m = te.compute((N,), lambda i: te.max(x[i, j], axis=j), name="m")
    total = te.compute((N,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="l")
    y = te.compute((N,), lambda i: te.log(total[i]) + m[i], name="y")
    s = te.create_schedule(y)
    print(s["l"].proof())
    in_one_pass(s, "l")
    s["l"].compute_at(s["y"], s["y"].op.axis[0])
    return s


kernel = te.build(log_sum_exp(), "cpu")
exact = x_of_test.astype(np.float64)
wanted = np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1)) + exact.max(1)
np.testing.assert_allclose(kernel(x_of_test), wanted, rtol=1e-6)
assert len(kernel.explain().kernels) == 1
print("exercise 1: the repair of the softmax, t * exp(m - m')\n")


# %% 2. The sum of (x - mean)^2
# If the mean moves from u to u', then with d = u - u'
#     sum (x - u')^2 = sum (x - u)^2 + 2 d sum (x - u) + n d^2.
# So the sum of x - u and the number of elements have to be carried along: three numbers, which
# Welford's and Chan's formulas hold in another form.  `online` finds them by differentiating.
def variance() -> te.Schedule:
    """Mean and squares in one loop; the proof says rank 3."""
    x = te.placeholder((N, K), F32, name="x")
    j, k = axis(K), axis(K)
    total = te.compute((N,), lambda i: te.sum(x[i, j], axis=j), name="total")
    mean = te.compute((N,), lambda i: total[i] / K, name="mean")

    def square(i: te.Axis) -> te.Expr:
        away = x[i, k] - mean[i]
        return te.sum(away * away, axis=k)

    squares = te.compute((N,), square, name="squares")
    y = te.compute((N,), lambda i: squares[i] / K, name="y")
    s = te.create_schedule(y)
    s["mean"].compute_inline()
    proof = s["squares"].proof()
    assert any("rank" in line and "3" in line for line in proof.splitlines()), proof
    print(proof)
    in_one_pass(s, "squares")
    return s


kernel = te.build(variance(), "cpu")
np.testing.assert_allclose(kernel(x_of_test), exact.var(1), rtol=1e-5)
print("exercise 2: three sums, one of them a count\n")


# %% 3. A soft cap
# In the proof only the elements change, which are the capped scores now: `online` asks how m enters
# the value, and the cap comes before m is subtracted.  In the schedule `T` was inlined, which would
# compute each tanh twice, for m and for p; attached at the block of keys it is computed once.
def capped_attention(rows: int, depth: int, cap: float) -> te.Schedule:
    """One head; the schedule is that of the tutorial without its tiles."""
    q, k, v = (te.placeholder((rows, depth), F32, name=name) for name in "QKV")
    d = axis(depth)
    j0, j1, j2 = (axis(rows) for _ in range(3))
    S = te.compute((rows, rows), lambda i, j: te.sum(q[i, d] * k[j, d], axis=d), name="S")
    T = te.compute((rows, rows), lambda i, j: cap * te.tanh(S[i, j] * depth**-0.5 / cap), name="T")
    m = te.compute((rows,), lambda i: te.max(T[i, j0], axis=j0), name="m")
    p = te.compute((rows, rows), lambda i, j: te.exp(T[i, j] - m[i]), name="p")
    total = te.compute((rows,), lambda i: te.sum(p[i, j1], axis=j1), name="l")
    P = te.compute((rows, rows), lambda i, j: p[i, j] / total[i], name="P")
    out = te.compute((rows, depth), lambda i, c: te.sum(P[i, j2] * v[j2, c], axis=j2), name="O")
    s = te.create_schedule(out)
    s["P"].compute_inline()
    i, c = s["O"].op.axis
    block, row = s["O"].split(i, factor=16)
    keys, inner = s["O"].split(s["O"].op.reduce_axis[0], factor=32)
    s["O"].reorder(block, keys, row, inner, c)
    assert "h(t) = t * exp(m - m')" in s["O"].proof()
    s["O"].online(keys)
    s["T"].compute_at(s["O"], keys)
    s["S"].compute_at(s["O"], keys)
    s["O"].vectorize(c)
    return s


def capped_numpy(q: Any, k: Any, v: Any, cap: float) -> Any:
    """The same in NumPy."""
    scores = cap * np.tanh(q @ k.T * q.shape[1] ** -0.5 / cap)
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True) @ v


kernel = te.build(capped_attention(100, 16, 30.0), "cpu")
q, k, v = np.random.default_rng(1).standard_normal((3, 100, 16), dtype=np.float32) * 5
np.testing.assert_allclose(kernel(q, k, v), capped_numpy(q, k, v, 30.0), rtol=1e-4, atol=1e-4)
print("exercise 3: the same repair; T is attached, since it is not cheap any more")
