"""Scripts of convolutions, scans and functions from outside; `te_scripts` says what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from te_scripts import Array, Script, rand, script, te
from te_scripts_schedules import product

# Stencils and convolutions


@script
def blur() -> Script:
    H, W = 34, 34
    X = te.placeholder((H, W), name="X")
    bx = te.compute((H, W - 2), lambda y, x: X[y, x] + X[y, x + 1] + X[y, x + 2], name="bx")
    by = te.compute((H - 2, W - 2), lambda y, x: bx[y, x] + bx[y + 1, x] + bx[y + 2, x], "by")
    s = te.create_schedule(by.op)
    _yo, xo, _yi, xi = s[by].tile(by.op.axis[0], by.op.axis[1], 8, 16)
    s[bx].compute_at(s[by], xo)
    s[by].vectorize(xi)
    s[bx].vectorize(bx.op.axis[1])
    x = rand(H, W)
    h = x[:, :-2] + x[:, 1:-1] + x[:, 2:]
    return Script(s, [X, by], [x], [h[:-2] + h[1:-1] + h[2:]])


def conv_nchw(x: Array, w: Array, pad: int = 1) -> Array:
    n, _c, h, wd = x.shape
    f, _, kh, kw = w.shape
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    ho, wo = h + 2 * pad - kh + 1, wd + 2 * pad - kw + 1
    out = np.zeros((n, f, ho, wo), "float32")
    for i in range(kh):
        for j in range(kw):
            part = padded[:, :, i : i + ho, j : j + wo]
            out += np.einsum("nchw,fc->nfhw", part, w[:, :, i, j])
    return out


@script
def conv2d_nchw_direct() -> Script:
    N, C, H, W, F, R = 1, 4, 8, 8, 8, 3
    X = te.placeholder((N, C, H, W), name="X")
    K = te.placeholder((F, C, R, R), name="K")
    P = te.compute(
        (N, C, H + 2, W + 2),
        lambda n, c, y, x: te.if_then_else(
            te.all(y >= 1, y < H + 1, x >= 1, x < W + 1), X[n, c, y - 1, x - 1], 0.0
        ),
        name="P",
    )
    rc, ry, rx = (te.reduce_axis((0, e), name) for e, name in ((C, "rc"), (R, "ry"), (R, "rx")))
    Y = te.compute(
        (N, F, H, W),
        lambda n, f, y, x: te.sum(P[n, rc, y + ry, x + rx] * K[f, rc, ry, rx], axis=[rc, ry, rx]),
        name="Y",
        tag="conv2d_nchw",
    )
    Z = te.compute(Y.shape, lambda *i: te.max(Y(*i), 0.0), name="Z")
    s = te.create_schedule(Z.op)
    n, f, _y, x = s[Z].op.axis
    fo, fi = s[Z].split(f, 4)
    s[Z].parallel(s[Z].fuse(n, fo))
    s[Y].compute_at(s[Z], fi)
    s[P].compute_root()
    s[Z].vectorize(x)
    a, k = rand(N, C, H, W), rand(F, C, R, R, seed=1)
    return Script(s, [X, K, Z], [a, k], [np.maximum(conv_nchw(a, k), 0)])


@script
def depthwise_conv() -> Script:
    C, H, R = 6, 10, 3
    X = te.placeholder((1, C, H, H), name="X")
    K = te.placeholder((C, R, R), name="K")
    ry, rx = te.reduce_axis((0, R), "ry"), te.reduce_axis((0, R), "rx")
    Y = te.compute(
        (1, C, H - 2, H - 2),
        lambda n, c, y, x: te.sum(X[n, c, y + ry, x + rx] * K[c, ry, rx], axis=[ry, rx]),
        name="Y",
    )
    s = te.create_schedule(Y.op)
    YL = s.cache_write(Y, "local")
    _n, _c, y, x = s[Y].op.axis
    _yo, xo, _yi, _xi = s[Y].tile(y, x, 4, 4)
    s[YL].compute_at(s[Y], xo)
    s[YL].unroll(s[YL].op.reduce_axis[1])
    x_, k_ = rand(1, C, H, H), rand(C, R, R, seed=1)
    want = np.zeros((1, C, H - 2, H - 2), "float32")
    for i in range(R):
        for j in range(R):
            want += x_[:, :, i : i + H - 2, j : j + H - 2] * k_[None, :, i, j, None, None]
    return Script(s, [X, K, Y], [x_, k_], [want])


@script
def pooling() -> Script:
    X = te.placeholder((1, 3, 8, 8), name="X")
    dh, dw = te.reduce_axis((0, 2), "dh"), te.reduce_axis((0, 2), "dw")
    Y = te.compute(
        (1, 3, 4, 4),
        lambda n, c, y, x: te.max(X[n, c, y * 2 + dh, x * 2 + dw], axis=[dh, dw]),
        name="Y",
        tag="pool_max",
    )
    k1, k2 = te.reduce_axis((0, 4)), te.reduce_axis((0, 4))
    total = te.compute((1, 3), lambda n, c: te.sum(Y[n, c, k1, k2], axis=[k1, k2]), name="total")
    G = te.compute((1, 3), lambda n, c: total[n, c] / te.const(16, "float32"), name="G")
    s = te.create_schedule(G.op)
    s[total].compute_at(s[G], G.op.axis[1])
    s[Y].compute_at(s[G], s[G].op.axis[1])
    x = rand(1, 3, 8, 8)
    y = x.reshape(1, 3, 4, 2, 4, 2).max((3, 5))
    return Script(s, [X, G], [x], [y.mean((2, 3))])


@script
def winograd_stages() -> Script:
    """F(2, 3) in one dimension: both transforms, the product and the transform back."""
    P, C, F = 5, 4, 6
    X = te.placeholder((C, P * 2 + 2), name="X")
    K = te.placeholder((F, C, 3), name="K")
    bt = [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]
    gm = [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    at = [[1, 1, 1, 0], [0, 1, -1, -1]]

    def const_matrix(matrix: Any, name: str) -> Any:
        def value(i: Any, j: Any) -> Any:
            now = te.const(0.0, "float32")
            for a, row in enumerate(matrix):
                for b, entry in enumerate(row):
                    now = te.select(te.all(i == a, j == b), te.const(entry, "float32"), now)
            return now

        return te.compute((len(matrix), len(matrix[0])), value, name=name)

    G, B, A = const_matrix(gm, "G"), const_matrix(bt, "B"), const_matrix(at, "A")
    r, r4, rc, ra = (
        te.reduce_axis((0, e), n) for e, n in ((3, "r"), (4, "r4"), (C, "rc"), (4, "ra"))
    )
    U = te.compute((4, F, C), lambda e, f, c: te.sum(K[f, c, r] * G[e, r], axis=r), name="U")
    V = te.compute(
        (4, C, P), lambda e, c, p: te.sum(X[c, p * 2 + r4] * B[e, r4], axis=r4), name="V"
    )
    M = te.compute((4, F, P), lambda e, f, p: te.sum(U[e, f, rc] * V[e, rc, p], axis=rc), name="M")
    Y = te.compute(
        (F, P * 2), lambda f, x: te.sum(M[ra, f, x // 2] * A[x % 2, ra], axis=ra), name="Y"
    )
    s = te.create_schedule(Y.op)
    for matrix in (G, B, A):
        s[matrix].compute_inline()
    for stage, axis in ((U, r), (V, r4), (Y, ra)):
        s[stage].unroll(axis)
    s[M].parallel(M.op.axis[0])
    x, k = rand(C, P * 2 + 2), rand(F, C, 3, seed=1)
    want = np.stack(
        [sum(np.convolve(x[c], k[f, c, ::-1], "valid") for c in range(C)) for f in range(F)]
    )
    return Script(s, [X, K, Y], [x, k], [want.astype("float32")])


# Scans and functions from outside


@script
def cumsum() -> Script:
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
    scan = te.scan(init, update, state, inputs=[X], name="scan")
    s = te.create_schedule(scan.op)
    x = rand(10, 12)
    return Script(s, [X, scan], [x], [x.cumsum(0)])


@script
def cumsum_bound() -> Script:
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
    result = te.scan(init, update, state, inputs=X)
    s = te.create_schedule(result.op)
    block_x, thread_x = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
    for stage in (init, update):
        xo, xi = s[stage].split(stage.op.axis[1], factor=32)
        s[stage].bind(xo, block_x)
        s[stage].bind(xi, thread_x)
    x = rand(10, 40)
    return Script(s, [X, result], [x], [x.cumsum(0)])


@script
def scan_with_a_stage_inside() -> Script:
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    s1 = te.compute((m, n), lambda t, i: state[t - 1, i] * 2.0, name="s1")
    s2 = te.compute((m, n), lambda t, i: s1[t, i] + X[t, i], name="s2")
    result = te.scan(init, s2, state, inputs=[X])
    s = te.create_schedule(result.op)
    xo, _xi = s[s2].split(s2.op.axis[1], factor=32)
    s[s1].compute_at(s[s2], xo)
    x = rand(6, 40)
    want = x.copy()
    for t in range(1, 6):
        want[t] = want[t - 1] * 2 + x[t]
    return Script(s, [X, result], [x], [want])


@script
def rnn_cell() -> Script:
    T, B, H = 5, 4, 16
    X = te.placeholder((T, B, H), name="X")
    W = te.placeholder((H, H), name="W")
    state = te.placeholder((T, B, H), name="state")
    init = te.compute((1, B, H), lambda _, b, h: X[0, b, h], name="init")
    k = te.reduce_axis((0, H), name="k")
    dense = te.compute(
        (T, B, H), lambda t, b, h: te.sum(state[t - 1, b, k] * W[h, k], axis=k), name="dense"
    )
    update = te.compute((T, B, H), lambda t, b, h: te.tanh(dense[t, b, h] + X[t, b, h]), "update")
    out = te.scan(init, update, state, inputs=[X, W])
    s = te.create_schedule(out.op)
    x, w = rand(T, B, H), rand(H, H, seed=1) * 0.3
    want = x.copy()
    for t in range(1, T):
        want[t] = np.tanh(want[t - 1] @ w.T + x[t])
    return Script(s, [X, W, out], [x, w], [want])


@script
def extern_call() -> Script:
    X = te.placeholder((6, 8), name="X")

    def sort(ins: Any, outs: Any) -> None:
        outs[0][...] = np.sort(ins[0], axis=1)

    S = te.extern(shape=(6, 8), inputs=[X], fcompute=sort, name="S", dtype="float32")
    Z = te.compute((6, 8), lambda i, j: S[i, 7 - j], name="Z")
    s = te.create_schedule(Z.op)
    x = rand(6, 8)
    return Script(s, [X, Z], [x], [np.sort(x, 1)[:, ::-1]])


@script
def gradient_of_a_product() -> Script:
    A, B, C, _a, b = product(6, 7, 5)
    head = te.placeholder(C.shape, name="head")
    (dA,) = te.gradient(output=C, inputs=[A], head=head)
    s = te.create_schedule(dA.op)
    h = rand(6, 7, seed=2)
    return Script(s, [B, head, dA], [b, h], [h @ b.T])
