"""Matrix products whose schedules are written for threads: two levels of tiles, virtual threads,
shared and local copies, cooperative loads."""

from __future__ import annotations

import numpy as np
from te_scripts import Script, rand, script, te
from te_scripts_schedules import product


@script
def gemm_of_threads() -> Script:
    """A block of 32 x 32, one element for each thread."""
    A, B, C, a, b = product(64, 64, 32)
    s = te.create_schedule(C.op)
    i, j = C.op.axis
    by, ty = s[C].split(i, factor=16)
    bx, tx = s[C].split(j, factor=16)
    s[C].reorder(by, bx, ty, tx)
    for axis, tag in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, "threadIdx.y")):
        s[C].bind(axis, te.thread_axis(tag))
    s[C].bind(tx, te.thread_axis("threadIdx.x"))
    return Script(s, [A, B, C], [a, b], [a @ b])


@script
def gemm_shared() -> Script:
    """Tiles of both operands in shared memory, which all threads load together."""
    A, B, C, a, b = product(64, 64, 32)
    s = te.create_schedule(C.op)
    AA, BB = s.cache_read(A, "shared", [C]), s.cache_read(B, "shared", [C])
    CL = s.cache_write(C, "local")
    tx, ty = te.thread_axis((0, 16), "threadIdx.x"), te.thread_axis((0, 16), "threadIdx.y")
    i, j = s[C].op.axis
    by, yi = s[C].split(i, factor=16)
    bx, xi = s[C].split(j, factor=16)
    s[C].reorder(by, bx, yi, xi)
    s[C].bind(by, te.thread_axis("blockIdx.y"))
    s[C].bind(bx, te.thread_axis("blockIdx.x"))
    s[C].bind(yi, ty)
    s[C].bind(xi, tx)
    s[CL].compute_at(s[C], xi)
    ko, ki = s[CL].split(s[CL].op.reduce_axis[0], factor=16)
    s[CL].reorder(ko, ki, *s[CL].op.axis)
    for stage in (AA, BB):
        s[stage].compute_at(s[CL], ko)
        y, x = s[stage].op.axis
        s[stage].bind(y, ty)
        s[stage].bind(x, tx)
    return Script(s, [A, B, C], [a, b], [a @ b])


@script
def gemm_of_the_topi_recipe() -> Script:
    """Two levels of tiles, virtual threads, shared and local copies, cooperative loads."""
    nn, scale, num_thread, step = 128, 4, 8, 8
    n = te.var("n") if False else nn
    A = te.placeholder((n, n), name="A")
    B = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((n, n), lambda ii, jj: te.sum(A[k, jj] * B[k, ii], axis=k), name="C")
    s = te.create_schedule(C.op)
    block_factor = scale * num_thread * 2
    block_x, thread_x = te.thread_axis("blockIdx.x"), te.thread_axis((0, num_thread), "threadIdx.x")
    block_y, thread_y = te.thread_axis("blockIdx.y"), te.thread_axis((0, num_thread), "threadIdx.y")
    thread_xz = te.thread_axis((0, 2), "vthread", name="vx")
    thread_yz = te.thread_axis((0, 2), "vthread", name="vy")
    CC = s.cache_write(C, "local")
    AA = s.cache_read(A, "shared", [CC])
    BB = s.cache_read(B, "shared", [CC])
    by, yi = s[C].split(C.op.axis[0], factor=block_factor)
    bx, xi = s[C].split(C.op.axis[1], factor=block_factor)
    s[C].bind(by, block_y)
    s[C].bind(bx, block_x)
    s[C].reorder(by, bx, yi, xi)
    tyz, yi = s[C].split(yi, nparts=2)
    ty, yi = s[C].split(yi, nparts=num_thread)
    txz, xi = s[C].split(xi, nparts=2)
    tx, xi = s[C].split(xi, nparts=num_thread)
    s[C].bind(tyz, thread_yz)
    s[C].bind(txz, thread_xz)
    s[C].bind(ty, thread_y)
    s[C].bind(tx, thread_x)
    s[C].reorder(tyz, txz, ty, tx, yi, xi)
    s[CC].compute_at(s[C], tx)
    yo, xo = CC.op.axis
    ko, ki = s[CC].split(k, factor=step)
    kt, ki = s[CC].split(ki, factor=1)
    s[CC].reorder(ko, kt, ki, yo, xo)
    s[AA].compute_at(s[CC], ko)
    s[BB].compute_at(s[CC], ko)
    s[CC].unroll(kt)
    for stage in (AA, BB):
        ty, xi = s[stage].split(s[stage].op.axis[0], nparts=num_thread)
        _, xi = s[stage].split(s[stage].op.axis[1], factor=num_thread * 4)
        tx, xi = s[stage].split(xi, nparts=num_thread)
        s[stage].bind(ty, thread_y)
        s[stage].bind(tx, thread_x)
        s[stage].vectorize(xi)
    s[AA].double_buffer()
    s[BB].double_buffer()
    a, b = rand(nn, nn), rand(nn, nn, seed=1)
    return Script(s, [A, B, C], [a, b], [b.T @ a])


@script
def gemm_with_local_copies() -> Script:
    """As above, and the operands once more in registers."""
    M = N = K = 64
    A, B, C, a, b = product(M, N, K)
    s = te.create_schedule(C.op)
    AA = s.cache_read(A, "shared", [C])
    BB = s.cache_read(B, "shared", [C])
    AL = s.cache_read(AA, "local", [C])
    BL = s.cache_read(BB, "local", [C])
    CL = s.cache_write(C, "local")
    y, x = s[C].op.axis
    (k,) = s[CL].op.reduce_axis
    by, y = s[C].split(y, factor=32)
    bx, x = s[C].split(x, factor=32)
    vy, y = s[C].split(y, nparts=2)
    ty, y = s[C].split(y, nparts=4)
    vx, x = s[C].split(x, nparts=2)
    tx, x = s[C].split(x, nparts=8)
    s[C].reorder(by, bx, vy, vx, ty, tx, y, x)
    s[C].bind(by, te.thread_axis("blockIdx.y"))
    s[C].bind(bx, te.thread_axis("blockIdx.x"))
    s[C].bind(vy, te.thread_axis("vthread"))
    s[C].bind(vx, te.thread_axis("vthread"))
    s[C].bind(ty, te.thread_axis("threadIdx.y"))
    s[C].bind(tx, te.thread_axis("threadIdx.x"))
    s[CL].compute_at(s[C], tx)
    ko, ki = s[CL].split(k, factor=8)
    s[CL].reorder(ko, ki, *s[CL].op.axis)
    for stage in (AA, BB):
        s[stage].compute_at(s[CL], ko)
    for stage in (AL, BL):
        s[stage].compute_at(s[CL], ki)
    for stage in (AA, BB):
        fused = s[stage].fuse(*s[stage].op.axis)
        ty, fused = s[stage].split(fused, nparts=4)
        tx, fused = s[stage].split(fused, nparts=8)
        s[stage].bind(ty, te.thread_axis("threadIdx.y"))
        s[stage].bind(tx, te.thread_axis("threadIdx.x"))
    s[C].pragma(by, "auto_unroll_max_step", 64)
    s[C].pragma(by, "unroll_explicit", True)
    return Script(s, [A, B, C], [a, b], [a @ b])


@script
def gemm_of_odd_sizes() -> Script:
    A, B, C, a, b = product(50, 70, 30)
    s = te.create_schedule(C.op)
    CL = s.cache_write(C, "local")
    AA = s.cache_read(A, "shared", [CL])
    BB = s.cache_read(B, "shared", [CL])
    y, x = s[C].op.axis
    by, y = s[C].split(y, factor=16)
    bx, x = s[C].split(x, factor=32)
    ty, y = s[C].split(y, nparts=4)
    tx, x = s[C].split(x, nparts=8)
    s[C].reorder(by, bx, ty, tx, y, x)
    for axis, tag in (
        (by, "blockIdx.y"),
        (bx, "blockIdx.x"),
        (ty, "threadIdx.y"),
        (tx, "threadIdx.x"),
    ):
        s[C].bind(axis, te.thread_axis(tag))
    s[CL].compute_at(s[C], tx)
    ko, ki = s[CL].split(s[CL].op.reduce_axis[0], factor=16)
    s[CL].reorder(ko, ki, *s[CL].op.axis)
    for stage in (AA, BB):
        s[stage].compute_at(s[CL], ko)
        ty, _ = s[stage].split(s[stage].op.axis[0], nparts=4)
        tx, _ = s[stage].split(s[stage].op.axis[1], nparts=8)
        s[stage].bind(ty, te.thread_axis("threadIdx.y"))
        s[stage].bind(tx, te.thread_axis("threadIdx.x"))
    return Script(s, [A, B, C], [a, b], [a @ b])


@script
def dense_small_batch() -> Script:
    """One thread block for each output, threads along the reduction, as topi's dense."""
    A = te.placeholder((2, 128), name="A")
    W = te.placeholder((10, 128), name="W")
    bias = te.placeholder((10,), name="bias")
    k = te.reduce_axis((0, 128), name="k")
    C = te.compute((2, 10), lambda i, j: te.sum(A[i, k] * W[j, k], axis=k), name="C", tag="dense")
    D = te.compute((2, 10), lambda i, j: C[i, j] + bias[j], name="D", tag="broadcast")
    s = te.create_schedule(D.op)
    num_thread = 64
    _ko, kf = s[C].split(C.op.reduce_axis[0], factor=num_thread)
    CF = s.rfactor(C, kf)
    s[C].compute_at(s[D], D.op.axis[1])
    s[D].bind(s[D].op.axis[0], te.thread_axis("blockIdx.y"))
    s[D].bind(s[D].op.axis[1], te.thread_axis("blockIdx.x"))
    tx = s[C].op.reduce_axis[0]
    thread_x = te.thread_axis("threadIdx.x")
    s[C].bind(tx, thread_x)
    s[CF].compute_at(s[C], tx)
    s[C].set_store_predicate(thread_x.var.equal(0))
    s[D].set_store_predicate(thread_x.var.equal(0))
    a, w, b = rand(2, 128), rand(10, 128, seed=1), rand(10)
    return Script(s, [A, W, bias, D], [a, w, b], [a @ w.T + b])


@script
def batch_matmul_of_topi() -> Script:
    Bt, M, N, K = 2, 32, 32, 16
    A = te.placeholder((Bt, M, K), name="A")
    W = te.placeholder((Bt, N, K), name="W")
    k = te.reduce_axis((0, K), name="k")
    C = te.compute((Bt, M, N), lambda b, i, j: te.sum(A[b, i, k] * W[b, j, k], axis=k), name="C")
    s = te.create_schedule(C.op)
    A_shared = s.cache_read(A, "shared", [C])
    A_local = s.cache_read(A_shared, "local", [C])
    W_shared = s.cache_read(W, "shared", [C])
    W_local = s.cache_read(W_shared, "local", [C])
    C_local = s.cache_write(C, "local")
    b, y, x = s[C].op.axis
    by, ty = s[C].split(y, 16)
    ty, yi = s[C].split(ty, 4)
    bx, tx = s[C].split(x, 16)
    tx, xi = s[C].split(tx, 4)
    thread_x, thread_y = te.thread_axis("threadIdx.x"), te.thread_axis("threadIdx.y")
    s[C].reorder(b, by, bx, ty, tx, yi, xi)
    s[C].bind(b, te.thread_axis("blockIdx.z"))
    s[C].bind(by, te.thread_axis("blockIdx.y"))
    s[C].bind(bx, te.thread_axis("blockIdx.x"))
    s[C].bind(ty, thread_y)
    s[C].bind(tx, thread_x)
    s[C].pragma(yi, "auto_unroll_max_step", 16)
    s[C_local].compute_at(s[C], tx)
    _, yi, xi = s[C_local].op.axis
    ko, ki = s[C_local].split(s[C_local].op.reduce_axis[0], 8)
    s[C_local].reorder(ko, ki, yi, xi)
    for shared, local in ((A_shared, A_local), (W_shared, W_local)):
        s[local].compute_at(s[C_local], ki)
        s[shared].compute_at(s[C_local], ko)
        _, r, c = s[shared].op.axis
        t, _ = s[shared].split(r, 4)
        t2, c = s[shared].split(c, 2)
        s[shared].bind(t, thread_y)
        s[shared].bind(t2, thread_x)
        s[shared].double_buffer()
    a, w = rand(Bt, M, K), rand(Bt, N, K, seed=1)
    return Script(s, [A, W, C], [a, w], [a @ w.transpose(0, 2, 1)])


@script
def epilogue_on_registers() -> Script:
    """A product whose result is followed by a bias and a clip, in the registers of a thread."""
    A, B, C, a, b = product(64, 64, 32)
    bias = te.placeholder((64,), name="bias")
    D = te.compute(C.shape, lambda i, j: C[i, j] + bias[j], name="D")
    E = te.compute(C.shape, lambda i, j: te.max(D[i, j], te.const(0, "float32")), name="E")
    s = te.create_schedule(E.op)
    s[D].compute_inline()
    s[C].set_scope("local")
    AA, BB = s.cache_read(A, "shared", [C]), s.cache_read(B, "shared", [C])
    by, bx, yi, xi = s[E].tile(*s[E].op.axis, x_factor=32, y_factor=32)
    ty, yi = s[E].split(yi, nparts=8)
    tx, xi = s[E].split(xi, nparts=8)
    s[E].reorder(by, bx, ty, tx, yi, xi)
    s[E].bind(by, te.thread_axis("blockIdx.y"))
    s[E].bind(bx, te.thread_axis("blockIdx.x"))
    s[E].bind(ty, te.thread_axis("threadIdx.y"))
    s[E].bind(tx, te.thread_axis("threadIdx.x"))
    s[E].vectorize(xi)
    s[C].compute_at(s[E], tx)
    ko, ki = s[C].split(C.op.reduce_axis[0], factor=8)
    s[C].reorder(ko, ki, *s[C].op.axis)
    s[C].unroll(ki)
    for stage in (AA, BB):
        s[stage].compute_at(s[C], ko)
        y, x = s[stage].op.axis
        ty, y = s[stage].split(y, nparts=8)
        tx, x = s[stage].split(x, nparts=8)
        s[stage].reorder(ty, tx, y, x)
        s[stage].bind(ty, te.thread_axis("threadIdx.y"))
        s[stage].bind(tx, te.thread_axis("threadIdx.x"))
    v = rand(64)
    return Script(s, [A, B, bias, E], [a, b, v], [np.maximum(a @ b + v, 0)])
