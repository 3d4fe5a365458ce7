"""The computations of the benchmark in the language: plain expressions where `te.nn` has no word.

Sixteen-bit inputs are widened on reading and the result is rounded once.  When `te.nn` gains an
operator, its function here becomes a call of it; names of placeholders stay, they are how inputs
are passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workload import F

import tedsl as te
from tedsl.tensor.tensor import Tensor

EPS = 1e-5
Outputs = Sequence[Tensor]


def given(name: str, *shape: Any, dtype: str = F) -> Tensor:
    """An input."""
    return te.placeholder(shape, dtype, name=name)


def over(extent: Any, name: str = "k") -> Any:
    """An axis that is folded."""
    return te.reduce_axis((0, extent), name=name)


def wide(value: Any) -> Any:
    """In the dtype that is computed in."""
    return value.astype(F)


# Pointwise ------------------------------------------------------------------------------------


def chain(m: int, n: int, dtype: str = F) -> Outputs:
    x, y = given("x", m, n, dtype=dtype), given("y", m, n, dtype=dtype)
    return [
        te.compute(
            (m, n),
            lambda i, j: te.sigmoid(
                te.maximum((wide(x[i, j]) + wide(y[i, j])) * 2.0, 0.0) - 1.0
            ).astype(dtype),
            name="chain",
        )
    ]


def short_chain(n: int, dtype: str = F) -> Outputs:
    x, y = given("x", n, dtype=dtype), given("y", n, dtype=dtype)
    return [
        te.compute(
            (n,),
            lambda i: te.sigmoid(te.maximum((wide(x[i]) + wide(y[i])) * 2.0, 0.0) - 1.0).astype(
                dtype
            ),
            name="chain",
        )
    ]


def row_vectors(m: int, n: int, dtype: str = F) -> Outputs:
    x = given("x", m, n, dtype=dtype)
    w, b = given("w", n, dtype=dtype), given("b", n, dtype=dtype)
    return [
        te.compute(
            (m, n),
            lambda i, j: te.maximum(wide(x[i, j]) * wide(w[j]) + wide(b[j]), 0.0).astype(dtype),
            name="row_vectors",
        )
    ]


def sincos(m: int, n: int, dtype: str = F) -> Outputs:
    x = given("x", m, n, dtype=dtype)
    both = te.compute(
        (m, n),
        lambda i, j: (te.sin(wide(x[i, j])).astype(dtype), te.cos(wide(x[i, j])).astype(dtype)),
        name="sincos",
    )
    return list(both)


def transpose_add(m: int, n: int, dtype: str = F) -> Outputs:
    x, y = given("x", m, n, dtype=dtype), given("y", n, m, dtype=dtype)
    return [
        te.compute(
            (m, n),
            lambda i, j: (wide(x[i, j]) + wide(y[j, i])).astype(dtype),
            name="transpose_add",
        )
    ]


def gather_add(m: int, n: int, table: int, dtype: str = F) -> Outputs:
    e, ids = given("e", table, n, dtype=dtype), given("ids", m, dtype="int64")
    y = given("y", m, n, dtype=dtype)
    return [
        te.compute(
            (m, n),
            lambda i, j: (wide(e[ids[i], j]) + wide(y[i, j])).astype(dtype),
            name="gather_add",
        )
    ]


# Reductions -----------------------------------------------------------------------------------


def mean_squares(m: int, n: int, dtype: str = F) -> Outputs:
    x, y = given("x", m, n, dtype=dtype), given("y", m, n, dtype=dtype)
    i, j = over(m, "i"), over(n, "j")

    def difference() -> Any:
        d = wide(x[i, j]) - wide(y[i, j])
        return te.sum(d * d, axis=[i, j])

    total = te.compute((), difference, name="total")
    return [te.compute((), lambda: total() / float(m * n), name="mean")]


def column_sum(m: int, n: int, dtype: str = F) -> Outputs:
    x = given("x", m, n, dtype=dtype)
    i = over(m, "i")
    return [te.compute((n,), lambda j: te.sum(wide(x[i, j]), axis=i), name="columns")]


def variance(m: int, n: int, dtype: str = F) -> Outputs:
    """In one pass: two sums side by side, of numbers moved by the first one, so that a large mean
    costs no accuracy."""
    x = given("x", m, n, dtype=dtype)
    i, j = over(m, "i"), over(n, "j")
    zero = te.const(0.0, F)
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda *_: (zero, zero), name="both"
    )

    def moved() -> Any:
        value = wide(x[i, j]) - wide(x[0, 0])
        return both((value, value * value), axis=[i, j])

    sums, squares = te.compute((), moved, name="sums")
    share = 1.0 / (m * n)

    def spread() -> Any:
        mean = sums() * share
        return squares() * share - mean * mean

    return [te.compute((), spread, name="variance")]


# Rows -----------------------------------------------------------------------------------------


def softmax(m: int, n: int, dtype: str = F) -> Outputs:
    return [te.nn.softmax(given("x", m, n, dtype=dtype))]


def _log_sum_exp(x: Tensor, m: int, n: int) -> Tensor:
    """log(sum(exp(x))) of each row, float32."""
    k, r = over(n), over(n)
    top = te.compute((m,), lambda i: te.max(wide(x[i, k]), axis=k), name="top")
    total = te.compute((m,), lambda i: te.sum(te.exp(wide(x[i, r]) - top[i]), axis=r), name="total")
    return te.compute((m,), lambda i: top[i] + te.log(total[i]), name="lse")


def log_softmax(m: int, n: int, dtype: str = F) -> Outputs:
    x = given("x", m, n, dtype=dtype)
    lse = _log_sum_exp(x, m, n)
    return [te.compute((m, n), lambda i, j: (wide(x[i, j]) - lse[i]).astype(dtype), name="out")]


def layer_norm(m: int, n: int, dtype: str = F) -> Outputs:
    x = given("x", m, n, dtype=dtype)
    return [te.nn.layer_norm(x, given("w", n, dtype=dtype), given("b", n, dtype=dtype), eps=EPS)]


def rms_norm_add(m: int, n: int, dtype: str = F) -> Outputs:
    """The residual stream, and its norm."""
    x, r = given("x", m, n, dtype=dtype), given("r", m, n, dtype=dtype)
    w = given("w", n, dtype=dtype)
    h = te.compute((m, n), lambda i, j: wide(x[i, j]) + wide(r[i, j]), name="h")
    k = over(n)
    squares = te.compute((m,), lambda i: te.sum(h[i, k] * h[i, k], axis=k), name="squares")

    def both(i: Any, j: Any) -> Any:
        unit = h[i, j] * te.rsqrt(squares[i] / float(n) + EPS)
        return h[i, j].astype(dtype), (unit * wide(w[j])).astype(dtype)

    return list(te.compute((m, n), both, name="out"))


def layer_norm_backward(m: int, n: int, dtype: str = F) -> Outputs:
    """Gradients by x, weight and bias, from what the forward pass keeps."""
    dy, x = given("dy", m, n, dtype=dtype), given("x", m, n, dtype=dtype)
    w, mean, rstd = given("w", n, dtype=dtype), given("mean", m), given("rstd", m)
    k, r = over(n), over(n)

    def unit(i: Any, j: Any) -> Any:
        return (wide(x[i, j]) - mean[i]) * rstd[i]

    def head(i: Any, j: Any) -> Any:
        return wide(dy[i, j]) * wide(w[j])

    a = te.compute((m,), lambda i: te.sum(head(i, k), axis=k), name="a")
    b = te.compute((m,), lambda i: te.sum(head(i, r) * unit(i, r), axis=r), name="b")
    dx = te.compute(
        (m, n),
        lambda i, j: ((head(i, j) - (a[i] + unit(i, j) * b[i]) * (1.0 / n)) * rstd[i]).astype(
            dtype
        ),
        name="dx",
    )
    p, q = over(m, "p"), over(m, "q")
    dw = te.compute((n,), lambda j: te.sum(wide(dy[p, j]) * unit(p, j), axis=p), name="dw_sum")
    db = te.compute((n,), lambda j: te.sum(wide(dy[q, j]), axis=q), name="db_sum")
    return [
        dx,
        te.compute((n,), lambda j: dw[j].astype(dtype), name="dw"),
        te.compute((n,), lambda j: db[j].astype(dtype), name="db"),
    ]


def rms_norm_backward(m: int, n: int, dtype: str = F) -> Outputs:
    dy, x = given("dy", m, n, dtype=dtype), given("x", m, n, dtype=dtype)
    w, rstd = given("w", n, dtype=dtype), given("rstd", m)
    k, p = over(n), over(m, "p")

    def head(i: Any, j: Any) -> Any:
        return wide(dy[i, j]) * wide(w[j])

    b = te.compute((m,), lambda i: te.sum(head(i, k) * wide(x[i, k]) * rstd[i], axis=k), name="b")
    dx = te.compute(
        (m, n),
        lambda i, j: ((head(i, j) - wide(x[i, j]) * rstd[i] * b[i] * (1.0 / n)) * rstd[i]).astype(
            dtype
        ),
        name="dx",
    )
    dw = te.compute(
        (n,), lambda j: te.sum(wide(dy[p, j]) * wide(x[p, j]) * rstd[p], axis=p), name="dw_sum"
    )
    return [dx, te.compute((n,), lambda j: dw[j].astype(dtype), name="dw")]


def cross_entropy(m: int, n: int, dtype: str = F) -> Outputs:
    x, target = given("x", m, n, dtype=dtype), given("target", m, dtype="int64")
    lse = _log_sum_exp(x, m, n)
    return [te.compute((m,), lambda i: lse[i] - wide(x[i, target[i]]), name="loss")]


def cross_entropy_both(m: int, n: int, dtype: str = F) -> Outputs:
    """The losses, and the gradient of their mean by the logits."""
    x, target = given("x", m, n, dtype=dtype), given("target", m, dtype="int64")
    lse = _log_sum_exp(x, m, n)
    loss = te.compute((m,), lambda i: lse[i] - wide(x[i, target[i]]), name="loss")

    def slope(i: Any, j: Any) -> Any:
        share = te.exp(wide(x[i, j]) - lse[i])
        hit = te.select(j.astype("int64") == target[i], 1.0, 0.0)
        return ((share - hit) * (1.0 / m)).astype(dtype)

    return [loss, te.compute((m, n), slope, name="dx")]


# Contractions ---------------------------------------------------------------------------------


def _product(a: Tensor, b: Tensor, m: int, n: int, k: int, name: str = "product") -> Tensor:
    """a @ b in float32."""
    r = over(k)
    return te.compute((m, n), lambda i, j: te.sum(wide(a[i, r]) * wide(b[r, j]), axis=r), name=name)


def matmul(m: int, n: int, k: int, dtype: str = F) -> Outputs:
    return [te.nn.matmul(given("a", m, k, dtype=dtype), given("b", k, n, dtype=dtype))]


def matmul_gelu(m: int, n: int, k: int, dtype: str = F) -> Outputs:
    a, b = given("a", m, k, dtype=dtype), given("b", k, n, dtype=dtype)
    bias = given("bias", n, dtype=dtype)
    product = _product(a, b, m, n, k)
    biased = te.compute((m, n), lambda i, j: product[i, j] + wide(bias[j]), name="biased")
    return [te.cast(te.nn.gelu(biased, approximate="tanh"), dtype)]


def swiglu(m: int, n: int, k: int, dtype: str = F) -> Outputs:
    a = given("a", m, k, dtype=dtype)
    gate = _product(a, given("g", k, n, dtype=dtype), m, n, k, "gate")
    up = _product(a, given("u", k, n, dtype=dtype), m, n, k, "up")
    return [
        te.compute(
            (m, n),
            lambda i, j: (gate[i, j] * te.sigmoid(gate[i, j]) * up[i, j]).astype(dtype),
            name="swiglu",
        )
    ]


def norm_matmul(m: int, n: int, k: int, dtype: str = F) -> Outputs:
    """rms_norm(x) @ b."""
    h = te.nn.rms_norm(given("x", m, k, dtype=dtype), given("w", k, dtype=dtype), eps=EPS)
    return [te.nn.matmul(h, given("b", k, n, dtype=dtype))]


def matmul_squares(m: int, n: int, k: int, dtype: str = F) -> Outputs:
    """A product, and the sum of the squares of each of its rows."""
    a, b = given("a", m, k, dtype=dtype), given("b", k, n, dtype=dtype)
    product = _product(a, b, m, n, k)
    r = over(n, "r")
    squares = te.compute(
        (m,), lambda i: te.sum(product[i, r] * product[i, r], axis=r), name="squares"
    )
    return [te.compute((m, n), lambda i, j: product[i, j].astype(dtype), name="out"), squares]


def matmul_lse(m: int, n: int, k: int, dtype: str = F) -> Outputs:
    """log(sum(exp(a @ b))) of each row; the product itself is not wanted."""
    a, b = given("a", m, k, dtype=dtype), given("b", k, n, dtype=dtype)
    return [_log_sum_exp(_product(a, b, m, n, k), m, n)]


def scaled_matmul(m: int, n: int, k: int, dtype: str) -> Outputs:
    """Rows of 8-bit floats with a scale each."""
    a, b = given("a", m, k, dtype=dtype), given("b", n, k, dtype=dtype)
    return [te.nn.scaled_matmul(a, b, given("sa", m), given("sb", n))]
