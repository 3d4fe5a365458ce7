"""Convolutions and pooling whose schedules are written for threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from te_scripts import Script, rand, script, te, threads
from te_scripts_operators import conv_nchw


def conv_hwcn_definition(size: int, channels: int, filters: int, batch: int) -> Any:
    """A convolution of 3 x 3 with padding, rows and columns first."""
    A = te.placeholder((size, size, channels, batch), name="A")
    W = te.placeholder((3, 3, channels, filters), name="W")
    Apad = te.compute(
        (size + 2, size + 2, channels, batch),
        lambda yy, xx, cc, nn: te.if_then_else(
            te.all(yy >= 1, yy - 1 < size, xx >= 1, xx - 1 < size),
            A[yy - 1, xx - 1, cc, nn],
            te.const(0.0, "float32"),
        ),
        name="Apad",
    )
    rc = te.reduce_axis((0, channels), name="rc")
    ry = te.reduce_axis((0, 3), name="ry")
    rx = te.reduce_axis((0, 3), name="rx")
    B = te.compute(
        (size, size, filters, batch),
        lambda yy, xx, ff, nn: te.sum(
            Apad[yy + ry, xx + rx, rc, nn] * W[ry, rx, rc, ff], axis=[ry, rx, rc]
        ),
        name="B",
    )
    return A, W, Apad, B


@script
def conv2d_hwcn_of_the_tutorial() -> Script:
    A, W, Apad, B = conv_hwcn_definition(size=6, channels=8, filters=16, batch=8)
    s = te.create_schedule(B.op)
    s[Apad].compute_inline()
    AA = s.cache_read(Apad, "shared", [B])
    WW = s.cache_read(W, "shared", [B])
    AL = s.cache_read(AA, "local", [B])
    WL = s.cache_read(WW, "local", [B])
    BL = s.cache_write(B, "local")
    num_thread, step, vthread = 4, 4, 2
    block_factor = num_thread * vthread
    thread_x = te.thread_axis((0, num_thread), "threadIdx.x")
    thread_y = te.thread_axis((0, num_thread), "threadIdx.y")
    hi, wi, fi, ni = s[B].op.axis
    bz = s[B].fuse(hi, wi)
    by, fi = s[B].split(fi, factor=block_factor)
    bx, ni = s[B].split(ni, factor=block_factor)
    for axis, block in zip((bz, by, bx), threads(*map("blockIdx.{}".format, "zyx")), strict=True):
        s[B].bind(axis, block)
    tyz, fi = s[B].split(fi, nparts=vthread)
    txz, ni = s[B].split(ni, nparts=vthread)
    ty, fi = s[B].split(fi, nparts=num_thread)
    tx, ni = s[B].split(ni, nparts=num_thread)
    s[B].reorder(bz, by, bx, tyz, txz, ty, tx, fi, ni)
    s[B].bind(tyz, te.thread_axis((0, vthread), "vthread", name="vy"))
    s[B].bind(txz, te.thread_axis((0, vthread), "vthread", name="vx"))
    s[B].bind(ty, thread_y)
    s[B].bind(tx, thread_x)
    s[BL].compute_at(s[B], tx)
    yi, xi, fi, ni = s[BL].op.axis
    ry, rx, rc = s[BL].op.reduce_axis
    rco, rci = s[BL].split(rc, factor=step)
    s[BL].reorder(rco, ry, rx, rci, fi, ni)
    for shared, local in ((AA, AL), (WW, WL)):
        s[shared].compute_at(s[BL], rx)
        s[local].compute_at(s[BL], rci)
        yi, xi, ci, last = s[shared].op.axis
        ty, ci = s[shared].split(ci, nparts=num_thread)
        tx, last = s[shared].split(last, nparts=num_thread)
        _, last = s[shared].split(last, factor=4)
        s[shared].reorder(ty, tx, yi, xi, ci, last)
        s[shared].bind(ty, thread_y)
        s[shared].bind(tx, thread_x)
        s[shared].vectorize(last)
    a, w = rand(6, 6, 8, 8), rand(3, 3, 8, 16, seed=1)
    want = conv_nchw(a.transpose(3, 2, 0, 1), w.transpose(3, 2, 0, 1))
    return Script(s, [A, W, B], [a, w], [want.transpose(2, 3, 1, 0)])


def conv_nchw_definition(CI: int, F: int, H: int, R: int) -> tuple[Any, Any, Any, Any]:
    X = te.placeholder((1, CI, H, H), name="X")
    K = te.placeholder((F, CI, R, R), name="K")
    p = R // 2
    P = te.compute(
        (1, CI, H + 2 * p, H + 2 * p),
        lambda n, c, y, x: te.if_then_else(
            te.all(y >= p, y < H + p, x >= p, x < H + p), X[n, c, y - p, x - p], 0.0
        ),
        name="P",
    )
    rc, ry, rx = (te.reduce_axis((0, e), name) for e, name in ((CI, "rc"), (R, "ry"), (R, "rx")))
    Y = te.compute(
        (1, F, H, H),
        lambda n, f, y, x: te.sum(P[n, rc, y + ry, x + rx] * K[f, rc, ry, rx], axis=[rc, ry, rx]),
        name="Y",
    )
    return X, K, P, Y


@script
def conv2d_nchw_of_topi() -> Script:
    """Split four ways along each axis: block, virtual thread, thread, element."""
    CI, F, H, R = 4, 16, 8, 3
    X, K, P, Y = conv_nchw_definition(CI, F, H, R)
    s = te.create_schedule(Y.op)
    s[P].compute_inline()
    output = Y
    OL = s.cache_write(Y, "local")
    AA = s.cache_read(P, "shared", [OL])
    WW = s.cache_read(K, "shared", [OL])
    n, f, y, x = s[output].op.axis
    rc, ry, rx = s[OL].op.reduce_axis

    def four_ways(axis: Any, v: int, t: int, e: int) -> list[Any]:
        b, rest = s[output].split(axis, factor=v * t * e)
        vt, rest = s[output].split(rest, factor=t * e)
        th, inner = s[output].split(rest, factor=e)
        return [b, vt, th, inner]

    bf, vf, tf, fi = four_ways(f, 2, 4, 1)
    by, vy, ty, yi = four_ways(y, 1, 2, 2)
    bx, vx, tx, xi = four_ways(x, 1, 4, 1)
    bf = s[output].fuse(n, bf)
    s[output].bind(bf, te.thread_axis("blockIdx.z"))
    s[output].bind(by, te.thread_axis("blockIdx.y"))
    s[output].bind(bx, te.thread_axis("blockIdx.x"))
    s[output].bind(vf, te.thread_axis("vthread"))
    s[output].bind(vy, te.thread_axis("vthread"))
    s[output].bind(vx, te.thread_axis("vthread"))
    s[output].bind(tf, te.thread_axis("threadIdx.z"))
    s[output].bind(ty, te.thread_axis("threadIdx.y"))
    s[output].bind(tx, te.thread_axis("threadIdx.x"))
    s[output].reorder(bf, by, bx, vf, vy, vx, tf, ty, tx, fi, yi, xi)
    s[OL].compute_at(s[output], tx)
    n, f, y, x = s[OL].op.axis
    rco, rci = s[OL].split(rc, factor=2)
    ryo, ryi = s[OL].split(ry, factor=3)
    rxo, rxi = s[OL].split(rx, factor=3)
    s[OL].reorder(rco, ryo, rxo, rci, ryi, rxi, n, f, y, x)
    s[AA].compute_at(s[OL], rxo)
    s[WW].compute_at(s[OL], rxo)
    for load in [AA, WW]:
        n, f, y, x = s[load].op.axis
        fused = s[load].fuse(n, f, y, x)
        tz, fused = s[load].split(fused, nparts=4)
        ty, fused = s[load].split(fused, nparts=2)
        tx, fused = s[load].split(fused, nparts=4)
        s[load].bind(tz, te.thread_axis("threadIdx.z"))
        s[load].bind(ty, te.thread_axis("threadIdx.y"))
        s[load].bind(tx, te.thread_axis("threadIdx.x"))
    s[output].pragma(bf, "auto_unroll_max_step", 0)
    s[output].pragma(bf, "unroll_explicit", False)
    a, k = rand(1, CI, H, H), rand(F, CI, R, R, seed=1)
    return Script(s, [X, K, Y], [a, k], [conv_nchw(a, k)])


@script
def conv2d_1x1_with_threads() -> Script:
    """The same schedule of a product: a window of one element."""
    CI, F, H = 8, 16, 8
    X = te.placeholder((1, CI, H, H), name="X")
    K = te.placeholder((F, CI), name="K")
    rc = te.reduce_axis((0, CI), name="rc")
    Y = te.compute(
        (1, F, H, H), lambda n, f, y, x: te.sum(X[n, rc, y, x] * K[f, rc], axis=rc), name="Y"
    )
    Z = te.compute(Y.shape, lambda *i: te.max(Y(*i), 0.0), name="Z", tag="elemwise")
    s = te.create_schedule(Z.op)
    s[Y].set_scope("local")
    XX = s.cache_read(X, "shared", [Y])
    KK = s.cache_read(K, "shared", [Y])
    n, f, y, x = s[Z].op.axis
    bf, tf = s[Z].split(f, factor=8)
    by, ty = s[Z].split(y, factor=4)
    s[Z].reorder(n, bf, by, tf, ty, x)
    s[Z].bind(s[Z].fuse(n, bf), te.thread_axis("blockIdx.y"))
    s[Z].bind(by, te.thread_axis("blockIdx.x"))
    s[Z].bind(tf, te.thread_axis("threadIdx.y"))
    s[Z].bind(ty, te.thread_axis("threadIdx.x"))
    s[Y].compute_at(s[Z], ty)
    ro, ri = s[Y].split(rc, factor=4)
    s[Y].reorder(ro, ri, *s[Y].op.axis)
    for stage in (XX, KK):
        s[stage].compute_at(s[Y], ro)
    _, c, yy, _xx = s[XX].op.axis
    s[XX].bind(c, te.thread_axis("threadIdx.y"))
    s[XX].bind(yy, te.thread_axis("threadIdx.x"))
    f, c = s[KK].op.axis
    s[KK].bind(f, te.thread_axis("threadIdx.y"))
    s[KK].bind(c, te.thread_axis("threadIdx.x"))
    a, k = rand(1, CI, H, H), rand(F, CI, seed=1)
    want = np.maximum(np.einsum("nchw,fc->nfhw", a, k), 0)
    return Script(s, [X, K, Z], [a, k], [want])


@script
def depthwise_with_threads() -> Script:
    C, H, R = 4, 10, 3
    X = te.placeholder((1, C, H, H), name="X")
    K = te.placeholder((C, R, R), name="K")
    ry, rx = te.reduce_axis((0, R), "ry"), te.reduce_axis((0, R), "rx")
    Y = te.compute(
        (1, C, H - 2, H - 2),
        lambda n, c, y, x: te.sum(X[n, c, y + ry, x + rx] * K[c, ry, rx], axis=[ry, rx]),
        name="Y",
    )
    s = te.create_schedule(Y.op)
    XS = s.cache_read(X, "shared", [Y])
    KS = s.cache_read(K, "shared", [Y])
    XL = s.cache_read(XS, "local", [Y])
    KL = s.cache_read(KS, "local", [Y])
    YL = s.cache_write(Y, "local")
    n, c, y, x = s[Y].op.axis
    bz = s[Y].fuse(n, c)
    ty, yi = s[Y].split(y, nparts=4)
    tx, xi = s[Y].split(x, nparts=4)
    s[Y].reorder(bz, ty, tx, yi, xi)
    s[Y].bind(bz, te.thread_axis("blockIdx.x"))
    s[Y].bind(ty, te.thread_axis("threadIdx.y"))
    s[Y].bind(tx, te.thread_axis("threadIdx.x"))
    s[YL].compute_at(s[Y], tx)
    s[XL].compute_at(s[Y], tx)
    s[KL].compute_at(s[Y], tx)
    s[XS].compute_at(s[Y], bz)
    s[KS].compute_at(s[Y], bz)
    n, c, y, x = s[XS].op.axis
    ty, y = s[XS].split(y, nparts=4)
    tx, x = s[XS].split(x, nparts=4)
    s[XS].bind(ty, te.thread_axis("threadIdx.y"))
    s[XS].bind(tx, te.thread_axis("threadIdx.x"))
    a, k = rand(1, C, H, H), rand(C, R, R, seed=1)
    want = np.zeros((1, C, H - 2, H - 2), "float32")
    for i in range(R):
        for j in range(R):
            want += a[:, :, i : i + H - 2, j : j + H - 2] * k[None, :, i, j, None, None]
    return Script(s, [X, K, Y], [a, k], [want])


@script
def pooling_with_threads() -> Script:
    X = te.placeholder((1, 4, 8, 8), name="X")
    dh, dw = te.reduce_axis((0, 2), "dh"), te.reduce_axis((0, 2), "dw")
    Y = te.compute(
        (1, 4, 4, 4),
        lambda n, c, y, x: te.max(X[n, c, y * 2 + dh, x * 2 + dw], axis=[dh, dw]),
        name="Y",
    )
    Z = te.compute((1, 4, 4, 4), lambda *i: Y(*i) + 1.0, name="Z")
    s = te.create_schedule(Z.op)
    fused = s[Z].fuse(*s[Z].op.axis)
    bx, tx = s[Z].split(fused, factor=32)
    s[Z].bind(bx, te.thread_axis("blockIdx.x"))
    s[Z].bind(tx, te.thread_axis("threadIdx.x"))
    s[Y].set_scope("local")
    s[Y].compute_at(s[Z], tx)
    x = rand(1, 4, 8, 8)
    return Script(s, [X, Z], [x], [x.reshape(1, 4, 4, 2, 4, 2).max((3, 5)) + 1])
