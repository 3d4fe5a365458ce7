"""Operators of 16-bit floats at real sizes as everybody writes them: products under `te.sum`, with
no cast; and sums of products that are no matrix product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tedsl as te

BF16, F16, F32 = "bfloat16", "float16", "float32"
Case = Callable[[], Any]


def _p(name: str, *shape: int, dtype: str = BF16) -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


def _k(*extents: int) -> Any:
    made = [te.reduce_axis((0, n), name=f"k{at}") for at, n in enumerate(extents)]
    return made[0] if len(made) == 1 else made


def linear(m: int = 4096, n: int = 4096, d: int = 4096, dtype: str = BF16) -> te.Tensor:
    """x @ w.T + b, and what follows, in the dtype of x."""
    x, w, b = _p("x", m, d, dtype=dtype), _p("w", n, d, dtype=dtype), _p("b", n, dtype=dtype)
    k = _k(d)
    y = te.compute((m, n), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="y")
    return te.compute((m, n), lambda i, j: te.relu(y[i, j] + b[j]).astype(dtype), name="out")


def bmm(dtype: str = F16) -> te.Tensor:
    a, b, k = _p("a", 32, 1024, 128, dtype=dtype), _p("b", 32, 128, 1024, dtype=dtype), _k(128)
    return te.compute(
        (32, 1024, 1024), lambda h, i, j: te.sum(a[h, i, k] * b[h, k, j], axis=k), name="c"
    )


def scores() -> te.Tensor:
    q, key, d = _p("q", 32, 2048, 64), _p("key", 32, 2048, 64), _k(64)
    return te.compute(
        (32, 2048, 2048),
        lambda h, i, j: te.sum(q[h, i, d] * key[h, j, d], axis=d) * 0.125,
        name="s",
    )


def attention(keys: int = 1024, depth: int = 64) -> te.Tensor:
    q, key, v = _p("q", 16, keys, depth), _p("key", 16, keys, depth), _p("v", 16, keys, depth)
    d = _k(depth)
    j0, j1, j2 = (te.reduce_axis((0, keys), name=f"j{n}") for n in range(3))
    whole = (16, keys, keys)
    s = te.compute(whole, lambda h, i, j: te.sum(q[h, i, d] * key[h, j, d], axis=d), name="S")
    m = te.compute((16, keys), lambda h, i: te.max(s[h, i, j0], axis=j0), name="m")
    p = te.compute(whole, lambda h, i, j: te.exp(s[h, i, j] - m[h, i]), name="p")
    total = te.compute((16, keys), lambda h, i: te.sum(p[h, i, j1], axis=j1), name="l")
    w = te.compute(whole, lambda h, i, j: (p[h, i, j] / total[h, i]).astype(BF16), name="P")
    return te.compute(
        (16, keys, depth), lambda h, i, c: te.sum(w[h, i, j2] * v[h, j2, c], axis=j2), name="O"
    )


def attention_wide() -> te.Tensor:
    """Weights stay float32 beside 16-bit values."""
    q, key, v, d = _p("q", 8, 512, 64), _p("key", 8, 512, 64), _p("v", 8, 512, 64), _k(64)
    j0, j1, j2 = (te.reduce_axis((0, 512), name=f"j{n}") for n in range(3))
    whole = (8, 512, 512)
    s = te.compute(whole, lambda h, i, j: te.sum(q[h, i, d] * key[h, j, d], axis=d), name="S")
    m = te.compute((8, 512), lambda h, i: te.max(s[h, i, j0], axis=j0), name="m")
    p = te.compute(whole, lambda h, i, j: te.exp(s[h, i, j] - m[h, i]), name="p")
    total = te.compute((8, 512), lambda h, i: te.sum(p[h, i, j1], axis=j1), name="l")
    w = te.compute(whole, lambda h, i, j: p[h, i, j] / total[h, i], name="P")
    return te.compute(
        (8, 512, 64), lambda h, i, c: te.sum(w[h, i, j2] * v[h, j2, c], axis=j2), name="O"
    )


def _padded(x: te.Tensor, first: int) -> te.Tensor:
    """`x` with a ring of zeros around its dimensions `first` and the next one."""
    shape = [int(str(n)) for n in x.shape]
    high, wide = shape[first], shape[first + 1]
    shape[first], shape[first + 1] = high + 2, wide + 2

    def point(*i: Any) -> Any:
        y, z = i[first], i[first + 1]
        at = (*i[:first], y - 1, z - 1, *i[first + 2 :])
        return te.if_then_else(te.all(y >= 1, y <= high, z >= 1, z <= wide), x[at], 0.0)

    return te.compute(tuple(shape), point, name="pad")


def conv_nhwc(dtype: str = BF16) -> te.Tensor:
    x, w = _p("x", 8, 56, 56, 64, dtype=dtype), _p("w", 3, 3, 64, 128, dtype=dtype)
    pad, (r, q, c) = (
        _padded(x, 1),
        _k(3, 3, 64),
    )
    return te.compute(
        (8, 56, 56, 128),
        lambda n, y, z, f: te.sum(pad[n, y + r, z + q, c] * w[r, q, c, f], axis=[r, q, c]),
        name="conv",
    )


def conv_nchw() -> te.Tensor:
    x, w = _p("x", 8, 64, 56, 56), _p("w", 128, 64, 3, 3)
    pad, (c, r, q) = (
        _padded(x, 2),
        _k(64, 3, 3),
    )
    return te.compute(
        (8, 128, 56, 56),
        lambda n, f, y, z: te.sum(pad[n, c, y + r, z + q] * w[f, c, r, q], axis=[c, r, q]),
        name="conv",
    )


def conv_grouped() -> te.Tensor:
    x, w = _p("x", 8, 30, 30, 256), _p("w", 3, 3, 32, 256)
    r, q, c = _k(3, 3, 32)
    return te.compute(
        (8, 28, 28, 256),
        lambda n, y, z, f: te.sum(
            x[n, y + r, z + q, f // 32 * 32 + c] * w[r, q, c, f], axis=[r, q, c]
        ),
        name="conv",
    )


def depthwise() -> te.Tensor:
    x, w = _p("x", 8, 58, 58, 256), _p("w", 3, 3, 256)
    r, q = (te.reduce_axis((0, 3), name=v) for v in "rq")
    return te.compute(
        (8, 56, 56, 256),
        lambda n, y, z, c: te.sum(x[n, y + r, z + q, c] * w[r, q, c], axis=[r, q]),
        name="conv",
    )


def experts() -> te.Tensor:
    """Each 128 rows have a matrix of their own."""
    x, w, e, k = _p("x", 4096, 1024), _p("w", 8, 1024, 2048), _p("e", 32, dtype="int32"), _k(1024)
    return te.compute(
        (4096, 2048), lambda t, j: te.sum(x[t, k] * w[e[t // 128], k, j], axis=k), name="y"
    )


def gathered() -> te.Tensor:
    """Rows of the left operand are picked by an index."""
    x, w, at, k = _p("x", 50000, 1024), _p("w", 1024, 1024), _p("at", 4096, dtype="int32"), _k(1024)
    return te.compute((4096, 1024), lambda t, j: te.sum(x[at[t], k] * w[k, j], axis=k), name="y")


def gathered_inside() -> te.Tensor:
    """What is folded is picked by an index."""
    x, w, at, k = _p("x", 4096, 4096), _p("w", 1024, 1024), _p("at", 1024, dtype="int32"), _k(1024)
    return te.compute((4096, 1024), lambda t, j: te.sum(x[t, at[k]] * w[k, j], axis=k), name="y")


def dequantised() -> te.Tensor:
    x, w, scale, k = (
        _p("x", 2048, 4096),
        _p("w", 4096, 4096, dtype="int8"),
        _p("scale", 4096),
        _k(4096),
    )
    return te.compute(
        (2048, 4096), lambda i, j: te.sum(x[i, k] * (w[j, k] * scale[j]), axis=k), name="y"
    )


def outer_sum() -> te.Tensor:
    a, b, k = _p("a", 8192, 512), _p("b", 8192, 512), _k(8192)
    return te.compute((512, 512), lambda i, j: te.sum(a[k, i] * b[k, j], axis=k), name="y")


def weighted_rows() -> te.Tensor:
    w, x, k = _p("w", 64, 512), _p("x", 64, 512, 256), _k(512)
    return te.compute((64, 256), lambda b, c: te.sum(w[b, k] * x[b, k, c], axis=k), name="y")


def bilinear() -> te.Tensor:
    x, w, y = _p("x", 256, 128), _p("w", 64, 128, 128), _p("y", 256, 128)
    i, j = _k(128), te.reduce_axis((0, 128), name="j")
    return te.compute(
        (256, 64), lambda b, o: te.sum(x[b, i] * w[o, i, j] * y[b, j], axis=[i, j]), name="z"
    )


def correlation() -> te.Tensor:
    a, b, c = _p("a", 4, 64, 48, 48), _p("b", 4, 64, 56, 56), _k(64)
    return te.compute(
        (4, 9, 9, 48, 48),
        lambda n, u, v, y, z: te.sum(a[n, c, y, z] * b[n, c, y + u, z + v], axis=c),
        name="cost",
    )


def mixed() -> te.Tensor:
    a, b, k = _p("a", 2048, 1024, dtype=F16), _p("b", 1024, 2048, dtype=F32), _k(1024)
    return te.compute((2048, 2048), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")


def two_halves() -> te.Tensor:
    a, b, k = _p("a", 2048, 1024, dtype=F16), _p("b", 1024, 2048), _k(1024)
    return te.compute((2048, 2048), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")


def eighths() -> te.Tensor:
    a, b, k = _p("a", 2048, 1024, dtype="float8_e4m3fn"), _p("b", 1024, 2048), _k(1024)
    return te.compute((2048, 2048), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")


def squares() -> te.Tensor:
    x, k = _p("x", 8192, 4096), _k(4096)
    return te.compute((8192,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="y")


def distances() -> te.Tensor:
    a, b, k = _p("a", 2048, 128), _p("b", 2048, 128), _k(128)
    return te.compute(
        (2048, 2048),
        lambda i, j: te.sum((a[i, k] - b[j, k]) ** 2, axis=k),
        name="y",
    )


def gated() -> te.Tensor:
    x, u, g = _p("x", 2048, 2048), _p("u", 2048, 4096), _p("g", 2048, 4096)
    k, q = _k(2048), te.reduce_axis((0, 2048), name="q")
    a = te.compute((2048, 4096), lambda i, j: te.sum(x[i, k] * u[k, j], axis=k), name="a")
    b = te.compute((2048, 4096), lambda i, j: te.sum(x[i, q] * g[q, j], axis=q), name="b")
    return te.compute(
        (2048, 4096), lambda i, j: (a[i, j] * b[i, j] * te.sigmoid(b[i, j])).astype(BF16), name="y"
    )


def einsum() -> te.Tensor:
    x, w = _p("x", 1024, 16, 64), _p("w", 16, 64, 1024)
    h, d = _k(16, 64)
    return te.compute(
        (1024, 1024), lambda i, j: te.sum(x[i, h, d] * w[h, d, j], axis=[h, d]), name="y"
    )


def squared_weights() -> te.Tensor:
    """One operand is computed of what is read."""
    x, w, k = _p("x", 2048, 1024), _p("w", 1024, 2048), _k(1024)
    return te.compute(
        (2048, 2048), lambda i, j: te.sum(te.exp(x[i, k]) * w[k, j], axis=k), name="y"
    )


def rounded() -> te.Tensor:
    """Each product is rounded on purpose."""
    x, w, k = _p("x", 2048, 1024), _p("w", 1024, 2048), _k(1024)
    return te.compute(
        (2048, 2048), lambda i, j: te.sum((x[i, k] * w[k, j]).astype(BF16), axis=k), name="y"
    )


def product_of(dtype: str, within: str | None = None, m: int = 1024) -> te.Tensor:
    """A matrix product of a dtype that no unit may take, added up `within` another."""
    x, w, k = _p("x", m, 1024, dtype=dtype), _p("w", 1024, m, dtype=dtype), _k(1024)
    return te.compute(
        (m, m), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k, dtype=within), name="y"
    )


def tuples() -> Any:
    """A sum and the largest of products, side by side."""
    both = te.comm_reducer(
        lambda x, y: (x[0] + y[0], x[1] + te.abs(y[1])),
        lambda a, b: (te.const(0, a), te.const(0, b)),
    )
    x, w, k = _p("x", 1024, 512), _p("w", 512, 1024), _k(512)

    def terms(i: Any, j: Any) -> Any:
        product = x[i, k].astype(F32) * w[k, j].astype(F32)
        return both((product, product), axis=k)

    return te.compute((1024, 1024), terms, name="y")


def channels(count: int = 64) -> te.Tensor:
    """A long body under a sum over an axis that is not the last."""
    size = 126
    x = te.placeholder((128, count, size, size), F32, name="x")
    t = te.compute(x.shape, lambda n, c, i, j: te.tanh(x[n, c, i, j]), name="t")

    def gate(n: Any, c: Any, i: Any, j: Any) -> Any:
        inside = te.minimum(te.maximum(t[n, c, i, j] + 3.0, 0.0), 6.0)
        return x[n, c, i, j] + t[n, c, i, j] * inside / 6.0

    y = te.compute(x.shape, gate, name="y")
    k = _k(count)
    return te.compute(
        (128, size, size), lambda n, i, j: te.sum(te.exp(y[n, k, i, j]), axis=k), name="z"
    )


PRODUCTS: dict[str, Case] = {
    "linear": linear,
    "linear f16": lambda: linear(dtype=F16),
    "linear of one row": lambda: linear(1),
    "linear of odd sizes": lambda: linear(1000, 1001, 999),
    "bmm": bmm,
    "scores": scores,
    "attention": attention,
    "conv nhwc": conv_nhwc,
    "conv nhwc f16": lambda: conv_nhwc(F16),
    "conv nchw": conv_nchw,
    "conv grouped": conv_grouped,
    "experts": experts,
    "gathered": gathered,
    "dequantised": dequantised,
    "outer sum": outer_sum,
    "gated": gated,
    "einsum": einsum,
    "squared weights": squared_weights,
    "eighths": eighths,
}
"""Products that the matrix units take, or might."""
OTHERS: dict[str, Case] = {
    "attention wide": attention_wide,
    "depthwise": depthwise,
    "gathered inside": gathered_inside,
    "weighted rows": weighted_rows,
    "bilinear": bilinear,
    "correlation": correlation,
    "mixed": mixed,
    "two halves": two_halves,
    "squares": squares,
    "distances": distances,
    "rounded": rounded,
    "tuples": tuples,
    "product f64": lambda: product_of("float64"),
    "product i32": lambda: product_of("int32"),
    "product i16": lambda: product_of("int16"),
    "product i8": lambda: product_of("int8"),
    "product i8 in i32": lambda: product_of("int8", "int32"),
    "product u8 in i32": lambda: product_of("uint8", "int32"),
    "product f32 in f64": lambda: product_of("float32", "float64"),
    "product bf16 in bf16": lambda: product_of(BF16, BF16),
    "channels": channels,
    "channels 8": lambda: channels(8),
}
"""Sums of products, and others, that are computed element by element."""
