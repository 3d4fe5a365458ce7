"""Scripts in the way of TOPI's operators that move elements; `te_scripts` says what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from te_scripts import Array, Script, rand, script, te


def flat(output: Any, args: list[Any], inputs: list[Array], wanted: Array) -> Script:
    """Under TOPI's schedule of injective operators: all fused, split, parallel and vectorized."""
    s = te.create_schedule(output.op)
    fused = s[output].fuse(*s[output].op.axis)
    outer, inner = s[output].split(fused, factor=16)
    s[output].parallel(outer)
    s[output].vectorize(inner)
    return Script(s, [*args, output], inputs, [wanted])


@script
def leaky_relu() -> Script:
    X = te.placeholder((4, 7), name="X")

    def one(*indices: Any) -> Any:
        value = X(*indices)
        return te.select(value > 0, value, value * te.const(0.1, value.dtype))

    Y = te.compute(X.shape, one, name="T_leaky_relu", tag="elemwise")
    x = rand(4, 7)
    return flat(Y, [X], [x], np.where(x > 0, x, x * np.float32(0.1)))


@script
def prelu_and_scale_shift() -> Script:
    X = te.placeholder((2, 3, 4, 5), name="X")
    slope, shift = te.placeholder((3,), name="slope"), te.placeholder((3,), name="shift")

    def one(n: Any, c: Any, h: Any, w: Any) -> Any:
        v = X[n, c, h, w]
        return te.select(v > 0.0, v, v * slope[c]) + shift(c)

    Y = te.compute(X.shape, one)
    x, a, b = rand(2, 3, 4, 5), rand(3), rand(3, seed=1)
    want = np.where(x > 0, x, x * a[:, None, None]) + b[:, None, None]
    return flat(Y, [X, slope, shift], [x, a, b], want)


@script
def dilate(strides: tuple[int, ...] = (2, 3)) -> Script:
    X = te.placeholder((4, 5), name="X")
    shape = (7, 13)

    def one(*indices: Any) -> Any:
        not_zero, index_tuple = [], []
        for i in range(2):
            if strides[i] != 1:
                index_tuple.append(te.indexdiv(indices[i], strides[i]))
                not_zero.append(te.indexmod(indices[i], strides[i]).equal(0))
            else:
                index_tuple.append(indices[i])
        if not_zero:
            return te.if_then_else(te.all(*not_zero), X(*index_tuple), te.const(0.0, X.dtype))
        return X(*index_tuple)

    Y = te.compute(shape, one, name="DilatedInput")
    x = rand(4, 5)
    want = np.zeros(shape, "float32")
    want[::2, ::3] = x
    return flat(Y, [X], [x], want)


@script
def concatenate_and_split() -> Script:
    A, B = te.placeholder((3, 4), name="A"), te.placeholder((3, 6), name="B")
    C = te.compute((3, 10), lambda i, j: te.if_then_else(j >= 4, B[i, j - 4], A[i, j]), name="C")
    D = te.compute((3, 5), lambda i, j: C[i, j + 3], name="D")
    a, b = rand(3, 4), rand(3, 6, seed=1)
    return flat(D, [A, B], [a, b], np.concatenate([a, b], 1)[:, 3:8])


@script
def strided_slice_and_flip() -> Script:
    X = te.placeholder((12, 9), name="X")
    Y = te.compute((4, 9), lambda i, j: X[i * 3 + 1, X.shape[1] - 1 - j], name="Y")
    x = rand(12, 9)
    return flat(Y, [X], [x], x[1::3, ::-1])


@script
def reshape_by_indices() -> Script:
    X = te.placeholder((6, 8), name="X")

    def one(*out: Any) -> Any:
        index = out[0] * 3 * 4 + out[1] * 4 + out[2]
        return X(te.indexdiv(index, 8), te.indexmod(index, 8))

    Y = te.compute((4, 3, 4), one, name="T_reshape", tag="injective")
    x = rand(6, 8)
    return flat(Y, [X], [x], x.reshape(4, 3, 4))


@script
def depth_to_space() -> Script:
    X = te.placeholder((1, 8, 3, 4), name="X")

    def one(n: Any, c: Any, y: Any, x: Any) -> Any:
        by, bx = te.truncdiv(y, 2), te.truncdiv(x, 2)
        sub = te.truncmod(y, 2) * 2 + te.truncmod(x, 2)
        return X(n, sub * 2 + c, by, bx)

    Y = te.compute((1, 2, 6, 8), one, name="depth_to_space")
    x = rand(1, 8, 3, 4)
    want = x.reshape(1, 2, 2, 2, 3, 4).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 6, 8)
    return flat(Y, [X], [x], want)


@script
def upsampling_bilinear() -> Script:
    X = te.placeholder((1, 2, 5, 6), name="X")
    H, W = 10, 12

    def pixel(n: Any, c: Any, y: Any, x: Any) -> Any:
        y = te.max(te.min(y, 4), 0)
        x = te.max(te.min(x, 5), 0)
        return X(n, c, y, x).astype("float")

    def lerp(A: Any, B: Any, t: Any) -> Any:
        return A * (1.0 - t) + B * t

    def one(n: Any, c: Any, y: Any, x: Any) -> Any:
        in_y = te.const(5 / 10, "float") * (y + 0.5) - 0.5
        in_x = te.const(6 / 12, "float") * (x + 0.5) - 0.5
        y0, x0 = te.floor(in_y).astype("int32"), te.floor(in_x).astype("int32")
        ty, tx = in_y - y0, in_x - x0
        top = lerp(pixel(n, c, y0, x0), pixel(n, c, y0, x0 + 1), tx)
        bottom = lerp(pixel(n, c, y0 + 1, x0), pixel(n, c, y0 + 1, x0 + 1), tx)
        return lerp(top, bottom, ty)

    Y = te.compute((1, 2, H, W), one, name="resize", tag="resize")
    x = rand(1, 2, 5, 6)
    fy = np.arange(H, dtype="float32") * 0.5 - 0.25
    fx = np.arange(W, dtype="float32") * 0.5 - 0.25
    y0, x0 = np.floor(fy).astype(int), np.floor(fx).astype(int)
    ty, tx = (fy - y0)[:, None], fx - x0

    def at(y: Array, xx: Array) -> Array:
        return x[:, :, np.clip(y, 0, 4)][..., np.clip(xx, 0, 5)]

    top = at(y0, x0) * (1 - tx) + at(y0, x0 + 1) * tx
    bottom = at(y0 + 1, x0) * (1 - tx) + at(y0 + 1, x0 + 1) * tx
    return flat(Y, [X], [x], (top * (1 - ty) + bottom * ty).astype("float32"))


@script
def take_with_clip_and_wrap() -> Script:
    X = te.placeholder((7, 5), name="X")
    at = te.placeholder((2, 3), "int32", name="I")
    clip = te.compute(
        (2, 3, 5), lambda i, j, k: X[te.min(te.max(0, at[i, j]), 6), k], name="T_take"
    )
    wrap = te.compute(
        (2, 3, 5), lambda i, j, k: X[te.truncmod(te.truncmod(at[i, j], 7) + 7, 7), k], name="W"
    )
    Y = te.compute((2, 3, 5), lambda *i: clip(*i) + wrap(*i), name="Y")
    x = rand(7, 5)
    index = np.array([[0, -3, 6], [9, 4, 2]], "int32")
    return flat(Y, [X, at], [x, index], x[np.clip(index, 0, 6)] + x[index % 7])


@script
def gather_nd_and_one_hot() -> Script:
    X = te.placeholder((4, 5), name="X")
    at = te.placeholder((2, 6), "int32", name="I")
    G = te.compute((6,), lambda k: X[at[0, k], at[1, k]], name="G")
    Y = te.compute(
        (6, 5),
        lambda i, j: te.select(at[1, i] == j, G[i], te.const(-1.0, "float32")),
        name="Y",
    )
    x = rand(4, 5)
    index = np.array([[0, 1, 2, 3, 3, 0], [4, 0, 2, 1, 3, 1]], "int32")
    want = np.where(
        index[1][:, None] == np.arange(5), x[index[0], index[1]][:, None], np.float32(-1)
    )
    return flat(Y, [X, at], [x, index], want)


@script
def layout_transform_to_blocks() -> Script:
    X = te.placeholder((1, 32, 6, 6), name="X")
    Y = te.compute((1, 2, 6, 6, 16), lambda n, C, h, w, c: X[n, C * 16 + c, h, w], name="Y")
    s = te.create_schedule(Y.op)
    n, C, h, _w, c = s[Y].op.axis
    s[Y].parallel(s[Y].fuse(s[Y].fuse(n, C), h))
    s[Y].vectorize(c)
    x = rand(1, 32, 6, 6)
    return Script(s, [X, Y], [x], [x.reshape(1, 2, 16, 6, 6).transpose(0, 1, 3, 4, 2)])


@script
def binarize_pack() -> Script:
    X = te.placeholder((4, 64), name="X")

    def pack(i: Any, j: Any) -> Any:
        packed = te.const(0, "uint32")
        for b in range(32):
            bit = (X[i, j * 32 + b] >= 0).astype("uint32")
            packed = packed << 1 | bit
        return packed

    Y = te.compute((4, 2), pack, name="PackedInput", tag="binarize_pack")
    s = te.create_schedule(Y.op)
    s[Y].parallel(s[Y].op.axis[0])
    x = rand(4, 64)
    bits = (x >= 0).reshape(4, 2, 32).astype("uint64")
    want = (bits << np.arange(31, -1, -1, dtype="uint64")).sum(-1).astype("uint32")
    return Script(s, [X, Y], [x], [want])


@script
def binary_dense() -> Script:
    A, B = (te.placeholder((n, 2), "uint32", name=name) for n, name in ((4, "A"), (5, "B")))
    k = te.reduce_axis((0, 2), name="k")
    M = te.compute(
        (4, 5), lambda i, j: te.sum(te.popcount(A[i, k] ^ B[j, k]), axis=k), tag="binary_dense"
    )
    Y = te.compute((4, 5), lambda i, j: 64 - 2 * M(i, j).astype("int32"), tag="elemwise")
    s = te.create_schedule(Y.op)
    s[M].compute_at(s[Y], Y.op.axis[1])
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2**32, (n, 2), dtype="uint32") for n in (4, 5))
    pop = np.bitwise_count if hasattr(np, "bitwise_count") else None
    x = a[:, None] ^ b[None]
    counts = pop(x) if pop else np.vectorize(lambda v: bin(v).count("1"))(x)
    return Script(s, [A, B, Y], [a, b], [64 - 2 * counts.astype("int32").sum(-1, dtype="int32")])


@script
def shifts_of_quantized_numbers() -> Script:
    X = te.placeholder((8, 16), "int32", name="X")
    shifted = te.compute(X.shape, lambda *i: X(*i) >> 4, name="shr")
    clipped = te.compute(X.shape, lambda *i: te.min(shifted(*i), (1 << 3) - 1), name="min")
    Y = te.compute(X.shape, lambda *i: te.max(clipped(*i), -8).astype("int8"), name="Y")
    s = te.create_schedule(Y.op)
    s[shifted].compute_inline()
    s[clipped].compute_inline()
    x = rand(8, 16, dtype="int32") * 16
    return Script(s, [X, Y], [x], [np.clip(x >> 4, -8, 7).astype("int8")])


@script
def requantize_in_fixed_point() -> Script:
    X = te.placeholder((33,), "int32", name="X")
    multiplier, shift = 1395864371, 3

    def one(i: Any) -> Any:
        wide = X[i].astype("int64") * te.const(multiplier, "int64")
        rounded = (wide + te.const(1 << (31 + shift - 1), "int64")) >> te.const(31 + shift, "int64")
        return rounded.astype("int32")

    Y = te.compute((33,), one, name="Y")
    x = rand(33, dtype="int32") * 1000
    want = ((x.astype("int64") * multiplier + (1 << (30 + shift))) >> (31 + shift)).astype("int32")
    return flat(Y, [X], [x], want)


@script
def sequence_mask_and_where() -> Script:
    X = te.placeholder((5, 4, 3), name="X")
    lengths = te.placeholder((4,), "int32", name="lengths")

    def one(*out: Any) -> Any:
        tid, bid = out[0], out[1]
        return te.if_then_else(te.all(tid >= lengths(bid)), te.const(-1.0, X.dtype), X(*out))

    Y = te.compute(X.shape, one, name="Y")
    x, n = rand(5, 4, 3), np.array([1, 5, 0, 3], "int32")
    want = np.where((np.arange(5)[:, None] >= n)[..., None], np.float32(-1), x)
    return flat(Y, [X, lengths], [x, n], want)


@script
def triangle_and_diagonal() -> Script:
    X, d = te.placeholder((6, 6), name="X"), te.placeholder((6,), name="d")
    L = te.compute((6, 6), lambda i, j: te.if_then_else(i >= j, X[i, j], te.const(0, X.dtype)), "L")
    Y = te.compute((6, 6), lambda i, j: te.if_then_else(j.equal(i), d[i], L[i, j]), name="Y")
    x, v = rand(6, 6), rand(6)
    want = np.tril(x)
    np.fill_diagonal(want, v)
    return flat(Y, [X, d], [x, v], want)


@script
def arange_full_and_meshgrid() -> Script:
    start, stop, step = 3.0, 18.0, 1.5
    n = te.const(10, "int32")
    A = te.compute((n,), lambda i: (start + step * i).astype("float32"), name="A")
    F = te.compute((10, 4), lambda *i: te.const(2.5, "float32"), name="F")
    Y = te.compute((10, 4), lambda i, j: A[i] + F[i, j] * j.astype("float32"), name="Y")
    want = (np.arange(start, stop, step)[:, None] + 2.5 * np.arange(4)).astype("float32")
    return flat(Y, [], [], want)


@script
def repeat_tile_and_expand() -> Script:
    X = te.placeholder((3, 4), name="X")
    R = te.compute((9, 4), lambda i, j: X[te.indexdiv(i, 3), j], name="R")
    T = te.compute((9, 8), lambda i, j: R[i, te.indexmod(j, 4)], name="T")
    E = te.compute((9, 1, 8), lambda i, _, j: T[i, j], name="E")
    Y = te.compute((9, 2, 8), lambda i, j, k: E[i, 0, k] * (j + 1).astype("float32"), name="Y")
    x = rand(3, 4)
    want = np.tile(np.repeat(x, 3, 0), (1, 2))[:, None] * np.array([1, 2], "float32")[:, None]
    return flat(Y, [X], [x], want)


@script
def mirror_pad() -> Script:
    X = te.placeholder((5, 6), name="X")

    def one(*out: Any) -> Any:
        index = []
        for i, size in enumerate((5, 6)):
            at = out[i] - 2
            above = te.if_then_else(at >= size, 2 * size - at - 2, at)
            index.append(te.if_then_else(at < 0, -at, above))
        return X(*index)

    Y = te.compute((9, 10), one, name="MirrorPadInput")
    x = rand(5, 6)
    return flat(Y, [X], [x], np.pad(x, 2, mode="reflect"))


@script
def let_and_reinterpret() -> Script:
    X = te.placeholder((16,), name="X")
    Y = te.compute(
        (16,),
        lambda i: te.reinterpret("float32", te.reinterpret("int32", X[i]) & 0x7FFFFFFF),
        name="Y",
    )
    x = rand(16)
    return flat(Y, [X], [x], np.abs(x))


@script
def fast_exponential() -> Script:
    """TOPI's fast_exp: a polynomial, and the exponent by bits."""
    X = te.placeholder((64,), name="X")

    def one(*i: Any) -> Any:
        x = te.max(te.min(X(*i), 88.3762626647950), -88.3762626647949)
        f = te.floor(x * 1.44269504088896341 + 0.5)
        a = x - f * 0.6931471805599453
        y = te.const(1.9875691500e-4, "float32")
        for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
            y = y * a + te.const(c, "float32")
        y = y * a * a + a + 1.0
        bits = (f.astype("int32") + 127) << 23
        return te.max(te.reinterpret("float32", bits) * y, X(*i))

    Y = te.compute((64,), one)
    x = rand(64) * 4
    return flat(Y, [X], [x], np.exp(x))
