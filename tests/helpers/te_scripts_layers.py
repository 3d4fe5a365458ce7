"""Scripts in the way of TOPI's layers and of accelerators; `te_scripts` says what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from te_scripts import Array, Script, rand, script, te
from te_scripts_operators import conv_nchw
from te_scripts_schedules import product


@script
def conv2d_of_the_reduction_page() -> Script:
    n = te.var("n")
    Input = te.placeholder((n, n), name="Input")
    Filter = te.placeholder((3, 3), name="Filter")
    di, dj = te.reduce_axis((0, 3), name="di"), te.reduce_axis((0, 3), name="dj")
    Output = te.compute(
        (n - 2, n - 2),
        lambda i, j: te.sum(Input[i + di, j + dj] * Filter[di, dj], axis=[di, dj]),
        name="Output",
    )
    s = te.create_schedule(Output.op)
    x, w = rand(9, 9), rand(3, 3, seed=1)
    want = sum(x[a : a + 7, b : b + 7] * w[a, b] for a in range(3) for b in range(3))
    return Script(s, [Input, Filter, Output], [x, w], [want])


@script
def conv2d_in_blocks_of_channels() -> Script:
    """NCHW16c: packed data and kernels, a register tile of the width."""
    ic, oc, H, bn, reg = 8, 16, 8, 4, 4
    X = te.placeholder((1, ic // bn, H + 2, H + 2, bn), name="X")
    K = te.placeholder((oc // bn, ic // bn, 3, 3, bn, bn), name="K")
    rc = te.reduce_axis((0, ic), name="ic")
    kh, kw = te.reduce_axis((0, 3), name="kh"), te.reduce_axis((0, 3), name="kw")
    idxdiv, idxmod = te.indexdiv, te.indexmod
    Y = te.compute(
        (1, oc // bn, H, H, bn),
        lambda n, o, oh, ow, ob: te.sum(
            X[n, idxdiv(rc, bn), oh + kh, ow + kw, idxmod(rc, bn)].astype("float32")
            * K[o, idxdiv(rc, bn), kh, kw, idxmod(rc, bn), ob],
            axis=[rc, kh, kw],
        ),
        name="conv2d_NCHWc",
        tag="conv2d_NCHWc",
    )
    s = te.create_schedule(Y.op)
    CC = s.cache_write(Y, "global")
    batch, oc_chunk, oh, ow, oc_block = s[Y].op.axis
    ow_chunk, ow_block = s[Y].split(ow, factor=reg)
    s[Y].reorder(oc_chunk, oh, ow_chunk, ow_block, oc_block)
    parallel_axis = s[Y].fuse(batch, oc_chunk, oh)
    s[Y].vectorize(oc_block)
    s[Y].parallel(parallel_axis)
    s[CC].compute_at(s[Y], ow_chunk)
    _, oc_chunk, oh, ow, oc_block = s[CC].op.axis
    ic_, kh, kw = s[CC].op.reduce_axis
    ow_chunk, ow_block = s[CC].split(ow, factor=reg)
    ic_chunk, ic_block = s[CC].split(ic_, factor=bn)
    s[CC].reorder(oc_chunk, oh, ow_chunk, ic_chunk, kh, ic_block, kw, ow_block, oc_block)
    s[CC].unroll(kw)
    s[CC].vectorize(oc_block)
    s[CC].unroll(ow_block)
    x, w = rand(1, ic, H, H), rand(oc, ic, 3, 3, seed=1)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    blocks = padded.reshape(1, ic // bn, bn, H + 2, H + 2).transpose(0, 1, 3, 4, 2)
    kernel = w.reshape(oc // bn, bn, ic // bn, bn, 3, 3).transpose(0, 2, 4, 5, 3, 1)
    want = conv_nchw(x, w).reshape(1, oc // bn, bn, H, H).transpose(0, 1, 3, 4, 2)
    inputs = [np.ascontiguousarray(blocks), np.ascontiguousarray(kernel)]
    return Script(s, [X, K, Y], inputs, [np.ascontiguousarray(want)])


@script
def conv2d_spatial_pack() -> Script:
    """The template of ARM processors: packed data, packed kernels, unpacked results."""
    CI, CO, H, VH, VW, VC = 4, 8, 8, 2, 4, 4
    data, kernel = (te.placeholder(e, name="d") for e in ((1, CI, H, H), (CO, CI, 3, 3)))
    pad = te.compute(
        (1, CI, H + 2, H + 2),
        lambda n, c, h, w: te.if_then_else(
            te.all(h >= 1, h - 1 < H, w >= 1, w - 1 < H), data[n, c, h - 1, w - 1], 0.0
        ),
        name="data_pad",
        tag="injective,pad",
    )
    data_vec = te.compute(
        (1, H // VH, H // VW, CI, VH + 2, VW + 2),
        lambda n, h, w, ci, vh, vw: pad[n][ci][h * VH + vh][w * VW + vw],
        name="data_vec",
    )
    kernel_vec = te.compute(
        (CO // VC, CI, 3, 3, VC),
        lambda co, ci, kh, kw, vc: kernel[co * VC + vc][ci][kh][kw],
        name="kernel_vec",
    )
    ci = te.reduce_axis((0, CI), name="ci")
    kh, kw = te.reduce_axis((0, 3), name="kh"), te.reduce_axis((0, 3), name="kw")
    conv = te.compute(
        (1, CO // VC, H // VH, H // VW, VH, VW, VC),
        lambda n, co, h, w, vh, vw, vc: te.sum(
            data_vec[n, h, w, ci, vh + kh, vw + kw].astype("float32")
            * kernel_vec[co, ci, kh, kw, vc].astype("float32"),
            axis=[ci, kh, kw],
        ),
        name="conv",
    )
    output = te.compute(
        (1, CO, H, H),
        lambda n, co, h, w: conv[
            n, te.floordiv(co, VC), te.floordiv(h, VH), te.floordiv(w, VW),
            te.floormod(h, VH), te.floormod(w, VW), te.floormod(co, VC),
        ],
        name="output_unpack",
        tag="spatial_conv2d_output",
    )  # fmt: skip
    s = te.create_schedule(output.op)
    s[pad].compute_inline()
    n, co, oh, ow, vh, vw, vc = s[conv].op.axis
    s[conv].reorder(n, co, oh, ow, ci, kh, kw, vh, vw, vc)
    s[conv].unroll(kw)
    s[conv].unroll(vh)
    s[conv].vectorize(vc)
    n, co, h, w = s[output].op.axis
    co, vc = s[output].split(co, VC)
    oh, ow, vh, vw = s[output].tile(h, w, VH, VW)
    s[output].reorder(n, co, oh, ow, vh, vw, vc)
    s[output].vectorize(vw)
    s[conv].compute_at(s[output], ow)
    s[output].parallel(co)
    s[data_vec].parallel(s[data_vec].op.axis[1])
    s[kernel_vec].parallel(s[kernel_vec].op.axis[0])
    x, k = rand(1, CI, H, H), rand(CO, CI, 3, 3, seed=1)
    return Script(s, [data, kernel, output], [x, k], [conv_nchw(x, k)])


@script
def conv2d_transpose_nchw() -> Script:
    CI, CO, H, stride = 3, 4, 5, 2
    data, kernel = (
        te.placeholder((1, CI, H, H), name="data"),
        te.placeholder((CI, CO, 3, 3), name="k"),
    )
    flipped = te.compute(
        (CO, CI, 3, 3), lambda o, i, h, w: kernel[i, o, 2 - h, 2 - w], name="kernel_transform"
    )
    wide = (H - 1) * stride + 1
    dilated = te.compute(
        (1, CI, wide, wide),
        lambda n, c, y, x: te.if_then_else(
            te.all(te.indexmod(y, stride).equal(0), te.indexmod(x, stride).equal(0)),
            data[n, c, te.indexdiv(y, stride), te.indexdiv(x, stride)],
            te.const(0.0, "float32"),
        ),
        name="data_dilate",
    )
    pad = te.compute(
        (1, CI, wide + 2, wide + 2),
        lambda n, c, y, x: te.if_then_else(
            te.all(y >= 1, y < wide + 1, x >= 1, x < wide + 1), dilated[n, c, y - 1, x - 1], 0.0
        ),
        name="data_pad",
    )
    dc = te.reduce_axis((0, CI), name="dc")
    dh, dw = te.reduce_axis((0, 3), name="dh"), te.reduce_axis((0, 3), name="dw")
    out = te.compute(
        (1, CO, wide, wide),
        lambda b, c, h, w: te.sum(
            pad[b, dc, h + dh, w + dw] * flipped[c, dc, dh, dw], axis=[dc, dh, dw]
        ),
        tag="conv2d_transpose_nchw",
    )
    s = te.create_schedule(out.op)
    s[dilated].compute_inline()
    s[pad].compute_at(s[out], out.op.axis[1])
    s[flipped].compute_inline()
    x, k = rand(1, CI, H, H), rand(CI, CO, 3, 3, seed=1)
    spread = np.zeros((1, CI, wide, wide), "float32")
    spread[:, :, ::stride, ::stride] = x
    want = conv_nchw(spread, np.ascontiguousarray(k.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]))
    return Script(s, [data, kernel, out], [x, k], [want])


@script
def group_conv1d_dilated() -> Script:
    G, CI, CO, L = 2, 6, 4, 12
    X, W = te.placeholder((1, CI, L), name="X"), te.placeholder((CO, CI // G, 3), name="W")
    rc, rk = te.reduce_axis((0, CI // G), name="rc"), te.reduce_axis((0, 3), name="rk")
    Y = te.compute(
        (1, CO, L - 4),
        lambda n, f, x: te.sum(
            X[n, f // (CO // G) * (CI // G) + rc, x + rk * 2] * W[f, rc, rk], axis=[rc, rk]
        ),
        tag="group_conv1d_ncw",
    )
    s = te.create_schedule(Y.op)
    _n, f, x = s[Y].op.axis
    fo, fi = s[Y].split(f, nparts=2)
    s[Y].reorder(fo, x, fi, rc, rk)
    s[Y].unroll(rk)
    a, w = rand(1, CI, L), rand(CO, CI // G, 3, seed=1)
    want = np.zeros((1, CO, L - 4), "float32")
    for o in range(CO):
        for c in range(CI // G):
            for k in range(3):
                want[0, o] += a[0, o // 2 * 3 + c, 2 * k : 2 * k + L - 4] * w[o, c, k]
    return Script(s, [X, W, Y], [a, w], [want])


@script
def conv3d_ncdhw() -> Script:
    X, W = te.placeholder((1, 2, 5, 6, 7), name="X"), te.placeholder((3, 2, 2, 2, 2), name="W")
    axes = [te.reduce_axis((0, 2), name=n) for n in ("rc", "rz", "ry", "rx")]
    rc, rz, ry, rx = axes
    Y = te.compute(
        (1, 3, 4, 5, 6),
        lambda n, f, z, y, x: te.sum(
            X[n, rc, z + rz, y + ry, x + rx] * W[f, rc, rz, ry, rx], axis=axes
        ),
        tag="conv3d_ncdhw",
    )
    s = te.create_schedule(Y.op)
    n, f, z, _y, x = s[Y].op.axis
    s[Y].parallel(s[Y].fuse(n, f, z))
    s[Y].vectorize(x)
    a, w = rand(1, 2, 5, 6, 7), rand(3, 2, 2, 2, 2, seed=1)
    windows = np.lib.stride_tricks.sliding_window_view(a, (2, 2, 2), (2, 3, 4))
    return Script(
        s, [X, W, Y], [a, w], [np.einsum("nczyxijk,fcijk->nfzyx", windows, w).astype("float32")]
    )


@script
def average_pool_without_padding() -> Script:
    """The count of a window is that of the elements inside it."""
    X = te.placeholder((1, 2, 7, 7), name="X")
    P = te.compute(
        (1, 2, 9, 9),
        lambda n, c, y, x: te.if_then_else(
            te.all(y >= 1, y < 8, x >= 1, x < 8), X[n, c, y - 1, x - 1], te.const(0.0, "float32")
        ),
        name="pad_temp",
    )
    dh, dw = te.reduce_axis((0, 3), name="rv0"), te.reduce_axis((0, 3), name="rv1")
    S = te.compute(
        (1, 2, 4, 4),
        lambda n, c, y, x: te.sum(P[n, c, y * 2 + dh, x * 2 + dw], axis=[dh, dw]),
        tag="pool_sum",
    )

    def mean(n: Any, c: Any, y: Any, x: Any) -> Any:
        y0, x0 = y * te.const(2, "int32") - 1, x * te.const(2, "int32") - 1
        y1, x1 = te.min(y0 + 3, 7), te.min(x0 + 3, 7)
        y0, x0 = te.max(y0, te.const(0, "int32")), te.max(x0, te.const(0, "int32"))
        return te.div(S[n, c, y, x], te.max((y1 - y0) * (x1 - x0), te.const(1, "int32")))

    Y = te.compute((1, 2, 4, 4), mean, name="Y", tag="elemwise")
    s = te.create_schedule(Y.op)
    s[P].compute_inline()
    s[S].compute_at(s[Y], Y.op.axis[2])
    x = rand(1, 2, 7, 7)
    padded, ones = (np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1))) for a in (x, np.ones_like(x)))

    def windows(a: Array) -> Array:
        return np.lib.stride_tricks.sliding_window_view(a, (3, 3), (2, 3))[:, :, ::2, ::2].sum(
            (4, 5)
        )

    return Script(s, [X, Y], [x], [windows(padded) / windows(ones)])


@script
def local_response_normalization() -> Script:
    X = te.placeholder((2, 6, 4), name="X")
    P = te.compute(
        (2, 10, 4),
        lambda n, c, w: te.if_then_else(
            te.all(c >= 2, c < 8), X[n, c - 2, w], te.const(0, "float32")
        ),
    )
    r = te.reduce_axis((0, 5))
    S = te.compute((2, 6, 4), lambda n, c, w: te.sum(P[n, c + r, w] * P[n, c + r, w], axis=r))
    U = te.compute((2, 6, 4), lambda *i: te.power(2.0 + te.div(1e-2 * S(*i), 5), 0.75), name="up")
    Y = te.compute((2, 6, 4), lambda *i: te.div(X(*i), U(*i)), name="Y")
    s = te.create_schedule(Y.op)
    for stage in (U, S):
        s[stage].compute_at(s[Y], Y.op.axis[1])
    x = rand(2, 6, 4)
    padded = np.pad(x * x, ((0, 0), (2, 2), (0, 0)))
    sums = sum(padded[:, i : i + 6] for i in range(5))
    return Script(s, [X, Y], [x], [x / (2 + 1e-2 * sums / 5) ** 0.75])


@script
def layer_norm_of_two_sums() -> Script:
    """One pass over a row with a reducer of two, as TOPI's layer_norm has."""
    m, n = 6, 20
    X, g = te.placeholder((m, n), name="X"), te.placeholder((n,), name="g")
    k = te.reduce_axis((0, n), name="k")
    both = te.comm_reducer(
        lambda x, y: (x[0] + y[0], x[1] + y[1]),
        lambda a, b: (te.const(0, a), te.const(0, b)),
        name="sum_both",
    )
    s1, s2 = te.compute((m,), lambda i: both((X[i, k], X[i, k] * X[i, k]), axis=k), name="sums")

    def one(i: Any, j: Any) -> Any:
        mean = s1[i] / n
        var = s2[i] / n - mean * mean
        return (X[i, j] - mean) * te.rsqrt(var + te.const(1e-5, "float32")) * g[j]

    Y = te.compute((m, n), one, name="T_layer_norm")
    s = te.create_schedule(Y.op)
    s[s1].compute_at(s[Y], Y.op.axis[0])
    x, gamma = rand(m, n), rand(n)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gamma
    return Script(s, [X, g, Y], [x, gamma], [want])


@script
def log_softmax_and_loss() -> Script:
    m, n = 5, 9
    X, y = te.placeholder((m, n), name="X"), te.placeholder((m,), "int32", name="y")
    k, k2 = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, n), name="k2")
    top = te.compute((m,), lambda i: te.max(X[i, k], axis=k), tag="softmax_maxelem")
    total = te.compute((m,), lambda i: te.sum(te.exp(X[i, k2] - top[i]), axis=k2))
    logs = te.compute((m, n), lambda i, j: X[i, j] - top[i] - te.log(total[i]), name="logs")
    r = te.reduce_axis((0, m), name="r")
    loss = te.compute((1,), lambda _: te.sum(-logs[r, y[r]], axis=r), name="nll_loss")
    s = te.create_schedule(loss.op)
    s[logs].compute_inline()
    s[total].compute_at(s[loss], r)
    x, labels = rand(m, n), np.array([0, 3, 8, 2, 2], "int32")
    logits = x - np.log(np.exp(x).sum(1, keepdims=True))
    return Script(s, [X, y, loss], [x, labels], [-logits[np.arange(m), labels].sum(keepdims=True)])


@script
def dense_packed_with_rfactor() -> Script:
    """`dense_nopack` of processors: the depth is split, factored and vectorized."""
    M, N, K = 4, 6, 40
    A, B = te.placeholder((M, K), name="A"), te.placeholder((N, K), name="B")
    vec = te.const(8)
    k = te.reduce_axis((0, K // 8), "k")
    CC = te.compute(
        (M, N, vec), lambda z, y, x: te.sum(A[z, k * vec + x] * B[y, k * vec + x], axis=k)
    )
    kk = te.reduce_axis((0, vec), "kk")
    C = te.compute((M, N), lambda y, x: te.sum(CC[y, x, kk], axis=kk), tag="dense_nopack")
    s = te.create_schedule(C.op)
    y, x = s[C].op.axis
    yo, yi = s[C].split(y, 2)
    xo, xi = s[C].split(x, 3)
    s[C].reorder(yo, xo, yi, xi)
    xyo = s[C].fuse(yo, xo)
    s[C].parallel(xyo)
    s[C].unroll(kk)
    s[CC].compute_at(s[C], xyo)
    z, y, x = s[CC].op.axis
    (k,) = s[CC].op.reduce_axis
    yz = s[CC].fuse(z, y)
    s[CC].reorder(k, yz, x)
    s[CC].unroll(yz)
    s[CC].vectorize(x)
    a, b = rand(M, K), rand(N, K, seed=1)
    return Script(s, [A, B, C], [a, b], [a @ b.T])


@script
def batch_matmul_of_processors() -> Script:
    Bt, M, N, K = 2, 9, 10, 12
    x, y = te.placeholder((Bt, M, K), name="x"), te.placeholder((Bt, N, K), name="y")
    k = te.reduce_axis((0, K), name="k")
    C = te.compute(
        (Bt, M, N), lambda b, i, j: te.sum(x[b, i, k] * y[b, j, k], axis=k), tag="batch_matmul"
    )
    D = te.compute((Bt, M, N), lambda *i: te.max(C(*i), te.const(0, "float32")), name="D")
    s = te.create_schedule(D.op)
    CC = s.cache_write(C, "global")
    b, i, j = s[D].op.axis
    io, ii = s[D].split(i, 4)
    jo, ji = s[D].split(j, 4)
    s[D].reorder(b, io, jo, ii, ji)
    bxyo = s[D].fuse(b, io, jo)
    s[D].parallel(bxyo)
    s[C].compute_at(s[D], bxyo)
    s[CC].compute_at(s[C], s[C].op.axis[0])
    (kk,) = s[CC].op.reduce_axis
    ko, ki = s[CC].split(kk, 4)
    _, ci, cj = s[CC].op.axis
    s[CC].reorder(ko, ci, ki, cj)
    Crf = s.rfactor(CC, ki)
    s[Crf].compute_at(s[CC], s[CC].op.axis[0])
    a, w = rand(Bt, M, K), rand(Bt, N, K, seed=1)
    return Script(s, [x, y, D], [a, w], [np.maximum(a @ w.transpose(0, 2, 1), 0)])


@script
def accelerator_product() -> Script:
    """Blocks of 16, narrow integers, and the buffers of an accelerator."""
    R, N, M, b = 1, 4, 3, 16
    data = te.placeholder((R, N, 1, b), name="data", dtype="int8")
    weight = te.placeholder((M, N, b, b), name="weight", dtype="int8")
    data_buf = te.compute((R, N, 1, b), lambda *i: data(*i), "data_buf")
    weight_buf = te.compute((M, N, b, b), lambda *i: weight(*i), "weight_buf")
    ko, ki = te.reduce_axis((0, N), name="ko"), te.reduce_axis((0, b), name="ki")
    res_gem = te.compute(
        (R, M, 1, b),
        lambda bo, co, bi, ci: te.sum(
            data_buf[bo, ko, bi, ki].astype("int32") * weight_buf[co, ko, ci, ki].astype("int32"),
            axis=[ko, ki],
        ),
        name="res_gem",
    )
    res_shr = te.compute((R, M, 1, b), lambda *i: res_gem(*i) >> 8, name="res_shr")
    inp_max = (1 << 7) - 1
    res_max = te.compute((R, M, 1, b), lambda *i: te.max(res_shr(*i), 0), "res_max")
    res_min = te.compute((R, M, 1, b), lambda *i: te.min(res_max(*i), inp_max), "res_min")
    res = te.compute((R, M, 1, b), lambda *i: res_min(*i).astype("int8"), name="res")
    s = te.create_schedule(res.op)
    s[data_buf].set_scope("local.inp_buffer")
    s[weight_buf].set_scope("local.wgt_buffer")
    for stage in (res_gem, res_shr, res_min, res_max):
        s[stage].set_scope("local.acc_buffer")
    _b, oc, _, _ = s[res].op.axis
    oc_out, _oc_in = s[res].split(oc, 2)
    s[res].reorder(oc_out, _b)
    for stage in (res_gem, res_shr, res_min, res_max):
        s[stage].compute_at(s[res], oc_out)
    b_, oc, b_i, oc_i = s[res_gem].op.axis
    ic_out, ic_inn = s[res_gem].split(ko, 2)
    s[res_gem].reorder(ic_out, b_, oc, ic_inn, b_i, oc_i, ki)
    s[data_buf].compute_at(s[res_gem], ic_out)
    s[weight_buf].compute_at(s[res_gem], ic_out)
    d, w = rand(R, N, 1, b, dtype="int8"), rand(M, N, b, b, dtype="int8", seed=1)
    acc = np.einsum("okbi,mkci->ombc", d.astype("int32"), w.astype("int32"))
    return Script(s, [data, weight, res], [d, w], [np.clip(acc >> 8, 0, 127).astype("int8")])


@script
def product_with_write_cache_and_rfactor() -> Script:
    A, B, C, a, b = product(24, 20, 36)
    s = te.create_schedule(C.op)
    ko, ki = s[C].split(C.op.reduce_axis[0], nparts=4)
    CF = s.rfactor(C, ko)
    s[CF].parallel(s[CF].op.axis[0])
    s[CF].vectorize(s[CF].op.axis[2])
    assert ki is not None
    return Script(s, [A, B, C], [a, b], [a @ b])


@script
def deformable_sampling() -> Script:
    """A convolution at computed, fractional places."""
    H = 6
    X, off = te.placeholder((2, H, H), name="X"), te.placeholder((2, 3, 4, 4), name="off")
    W = te.placeholder((3, 2, 3), name="W")

    def at(c: Any, y: Any, x: Any) -> Any:
        inside = te.all(y >= 0, x >= 0, y < H, x < H)
        return te.if_then_else(inside, X[c, y, x], te.const(0.0, "float32"))

    def bilinear(c: Any, y: Any, x: Any) -> Any:
        y0, x0 = te.floor(y).astype("int32"), te.floor(x).astype("int32")
        dy, dx = y - y0.astype("float32"), x - x0.astype("float32")
        top = at(c, y0, x0) * (1.0 - dx) + at(c, y0, x0 + 1) * dx
        low = at(c, y0 + 1, x0) * (1.0 - dx) + at(c, y0 + 1, x0 + 1) * dx
        return top * (1.0 - dy) + low * dy

    D = te.compute(
        (2, 3, 4, 4),
        lambda c, k, y, x: bilinear(c, y + 1 + off[0, k, y, x], x + k + off[1, k, y, x]),
        name="data_deform",
    )
    rc, rk = te.reduce_axis((0, 2), name="rc"), te.reduce_axis((0, 3), name="rk")
    Y = te.compute(
        (3, 4, 4), lambda f, y, x: te.sum(D[rc, rk, y, x] * W[f, rc, rk], axis=[rc, rk]), name="Y"
    )
    s = te.create_schedule(Y.op)
    s[D].compute_at(s[Y], Y.op.axis[1])
    x, o, w = rand(2, H, H), rand(2, 3, 4, 4), rand(3, 2, 3)
    padded = np.pad(x, ((0, 0), (9, 9), (9, 9)))
    d = np.zeros((2, 3, 4, 4), "float32")
    for k, yy, xx in np.ndindex(3, 4, 4):
        py, px = yy + 1 + o[0, k, yy, xx], xx + k + o[1, k, yy, xx]
        y0, x0 = int(np.floor(py)), int(np.floor(px))
        p = padded[:, y0 + 9 : y0 + 11, x0 + 9 : x0 + 11]
        fy, fx = py - y0, px - x0
        d[:, k, yy, xx] = (
            p[:, 0, 0] * (1 - fy) * (1 - fx) + p[:, 0, 1] * (1 - fy) * fx
            + p[:, 1, 0] * fy * (1 - fx) + p[:, 1, 1] * fy * fx
        )  # fmt: skip
    return Script(s, [X, off, W, Y], [x, o, w], [np.einsum("ckyx,fck->fyx", d, w)])


@script
def lstm_of_the_recipe() -> Script:
    """Two states, gates as a stage of four, as in TVM's recipe of an LSTM."""
    T, B, H = 4, 3, 5
    X = te.placeholder((T, B, 4 * H), name="X")
    Wh = te.placeholder((4, H, H), name="Wh")
    s_h, s_c = te.placeholder((T, B, H), name="s_h"), te.placeholder((T, B, H), name="s_c")
    h0 = te.compute((1, B, H), lambda *i: 0.0, name="h0")
    c0 = te.compute((1, B, H), lambda *i: 0.0, name="c0")
    k = te.reduce_axis((0, H), name="k")
    gates_h = te.compute(
        (T, B, 4, H), lambda t, i, x, j: te.sum(s_h[t - 1, i, k] * Wh[x, j, k], axis=k), "gh"
    )
    gates = te.compute(
        (T, B, 4, H), lambda t, i, x, j: X[t, i, x * H + j] + gates_h[t, i, x, j], name="gates"
    )
    sig = te.sigmoid
    c1 = te.compute(
        (T, B, H),
        lambda t, i, j: (
            sig(gates[t, i, 2, j]) * s_c[t - 1, i, j]
            + sig(gates[t, i, 0, j]) * te.tanh(gates[t, i, 1, j])
        ),
        name="next_c",
    )
    h1 = te.compute(
        (T, B, H), lambda t, i, j: sig(gates[t, i, 3, j]) * te.tanh(c1[t, i, j]), name="next_h"
    )
    out_h, out_c = te.scan([h0, c0], [h1, c1], [s_h, s_c], inputs=[X], name="lstm_scan")
    s = te.create_schedule(out_h.op)
    s[gates].compute_inline()
    x, w = rand(T, B, 4 * H), rand(4, H, H) * 0.3
    h, c = np.zeros((T, B, H), "float32"), np.zeros((T, B, H), "float32")

    def sigmoid(v: Array) -> Array:
        return 1 / (1 + np.exp(-v))

    for t in range(1, T):
        g = x[t].reshape(B, 4, H) + np.einsum("bk,xjk->bxj", h[t - 1], w)
        c[t] = sigmoid(g[:, 2]) * c[t - 1] + sigmoid(g[:, 0]) * np.tanh(g[:, 1])
        h[t] = sigmoid(g[:, 3]) * np.tanh(c[t])
    return Script(s, [X, Wh, out_h, out_c], [x, w], [h, c])


@script
def roi_average() -> Script:
    """Windows whose sizes are read: their extents depend on the place through a tensor."""
    X = te.placeholder((3, 12), name="X")
    roi = te.placeholder((4, 2), "int32", name="roi")

    def pool(r: Any, c: Any) -> Any:
        a, b = roi[r, 0], roi[r, 1]
        w = te.reduce_axis((a, b), name="w")
        return te.max(X[c, w], axis=w)

    Y = te.compute((4, 3), pool, name="Y", tag="roi_pool")
    s = te.create_schedule(Y.op)
    s[Y].parallel(Y.op.axis[0])
    x = rand(3, 12)
    places = np.array([[0, 3], [5, 12], [7, 8], [2, 9]], "int32")
    return Script(s, [X, roi, Y], [x, places], [np.stack([x[:, a:b].max(1) for a, b in places])])


@script
def tensors_of_the_tests() -> Script:
    """`test_te_tensor`: shapes, slices, names, equality."""
    m, n, w = te.size_var("m"), te.size_var("n"), te.size_var("w")
    A, B = te.placeholder((m, w), name="A"), te.placeholder((n, w), name="B")
    T = te.compute((m, n, w), lambda i, j, k: A[i, k] * B[j, k])
    assert tuple(T.shape) == (m, n, w) and T.op.output(0).__hash__() == T.__hash__()
    assert T.op.output(0) == T and A.op.output(0) == A and str(T) and T.ndim == 3
    rv = te.reduce_axis((0, A.shape[1]), "k")
    C = te.compute((m, n), lambda i, j: te.sum(T(i, j, rv + 0), axis=rv), "C")
    assert C.op.reduce_axis[0].dom.min.value == 0 and C.dtype == "float32"
    D = te.compute((m, n), lambda i, j: C[i][j] + A[i, 0], name="D")
    s = te.create_schedule(D.op)
    assert len(s.stages) >= 5
    a, b = rand(4, 6), rand(5, 6, seed=1)
    return Script(s, [A, B, D], [a, b], [a @ b.T + a[:, :1]])
