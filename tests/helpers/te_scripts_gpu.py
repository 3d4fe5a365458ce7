"""Scripts whose schedules are written for threads: blocks, threads, virtual threads, and stages in
`shared` and `local` memory that are computed inside the loops of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from te_scripts import Script, rand, script, te, threads


@script
def two_levels_of_threads() -> Script:
    """A row of a tile as two thread axes."""
    A = te.placeholder((64, 64), name="A")
    B = te.compute((64, 64), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((64, 64), lambda i, j: B[i, j] * 2.0, name="C")
    s = te.create_schedule(C.op)
    i, _j = C.op.axis
    bx, i = s[C].split(i, factor=32)
    ty, tx = s[C].split(i, factor=8)
    s[C].bind(bx, te.thread_axis("blockIdx.x"))
    s[C].bind(ty, te.thread_axis("threadIdx.y"))
    s[C].bind(tx, te.thread_axis("threadIdx.x"))
    s[B].compute_at(s[C], bx)
    a = rand(64, 64)
    return Script(s, [A, C], [a], [(a + 1) * 2])


@script
def attached_at_a_thread() -> Script:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((n,), lambda i: B[i] * 2.0, name="C")
    s = te.create_schedule(C.op)
    bx, tx = s[C].split(C.op.axis[0], factor=32)
    s[C].bind(bx, te.thread_axis("blockIdx.x"))
    s[C].bind(tx, te.thread_axis("threadIdx.x"))
    s[B].compute_at(s[C], tx)
    a = rand(100)
    return Script(s, [A, C], [a], [(a + 1) * 2])


@script
def attached_before_bind() -> Script:
    A = te.placeholder((128,), name="A")
    B = te.compute((128,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((128,), lambda i: B[i] * 2.0, name="C")
    s = te.create_schedule(C.op)
    bx, tx = s[C].split(C.op.axis[0], factor=32)
    s[B].compute_at(s[C], tx)
    s[C].bind(bx, te.thread_axis("blockIdx.x"))
    s[C].bind(tx, te.thread_axis("threadIdx.x"))
    a = rand(128)
    return Script(s, [A, C], [a], [(a + 1) * 2])


@script
def serial_over_threads() -> Script:
    A = te.placeholder((128,), name="A")
    B = te.compute((128,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((128,), lambda i: B[i] * 2.0, name="C")
    s = te.create_schedule(C.op)
    bx, rest = s[C].split(C.op.axis[0], factor=64)
    _si, tx = s[C].split(rest, factor=32)
    s[C].bind(bx, te.thread_axis("blockIdx.x"))
    s[C].bind(tx, te.thread_axis("threadIdx.x"))
    s[B].compute_at(s[C], bx)
    a = rand(128)
    return Script(s, [A, C], [a], [(a + 1) * 2])


@script
def grid_stride() -> Script:
    A = te.placeholder((1000,), name="A")
    B = te.compute((1000,), lambda i: te.exp(A[i]), name="B")
    s = te.create_schedule(B.op)
    xo, xi = s[B].split(B.op.axis[0], factor=16 * 4)
    xi, tx = s[B].split(xi, factor=16)
    s[B].reorder(xi, tx)
    s[B].bind(xo, te.thread_axis("blockIdx.x"))
    s[B].bind(tx, te.thread_axis("threadIdx.x"))
    a = rand(1000)
    return Script(s, [A, B], [a], [np.exp(a)])


@script
def injective_of_topi() -> Script:
    """The schedule that TVM gives to everything elementwise: fused, split by threads, the rest in
    turn."""
    A = te.placeholder((6, 50, 7), name="A")
    B = te.compute((6, 50, 7), lambda i, j, k: te.max(A[i, j, k], 0.0), name="B", tag="elemwise")
    s = te.create_schedule(B.op)
    fused = s[B].fuse(*s[B].op.axis)
    num_thread, max_block = 64, 4
    xo, xi = s[B].split(fused, factor=num_thread * max_block)
    bx, tx = s[B].split(xi, factor=num_thread)
    s[B].reorder(bx, tx, xo)
    s[B].bind(bx, te.thread_axis("blockIdx.x"))
    s[B].bind(tx, te.thread_axis("threadIdx.x"))
    a = rand(6, 50, 7)
    return Script(s, [A, B], [a], [np.maximum(a, 0)])


@script
def virtual_threads() -> Script:
    A = te.placeholder((64, 64), name="A")
    B = te.compute((64, 64), lambda i, j: A[j, i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    bx, by, vx, vy = threads("blockIdx.x", "blockIdx.y", "vthread", "vthread")
    thread_x = te.thread_axis((0, 4), "threadIdx.x")
    thread_y = te.thread_axis(dom=(0, 4), tag="threadIdx.y", name="ty")
    i, j = B.op.axis
    io, ii = s[B].split(i, nparts=2)
    jo, ji = s[B].split(j, nparts=2)
    vi, ii = s[B].split(ii, nparts=2)
    vj, ji = s[B].split(ji, nparts=2)
    ti, ii = s[B].split(ii, nparts=4)
    tj, ji = s[B].split(ji, nparts=4)
    s[B].reorder(io, jo, vi, vj, ti, tj, ii, ji)
    for axis, thread in zip(
        (io, jo, vi, vj, ti, tj), (by, bx, vy, vx, thread_y, thread_x), strict=False
    ):
        s[B].bind(axis, thread)
    a = rand(64, 64)
    return Script(s, [A, B], [a], [a.T + 1])


@script
def cross_thread_reduction() -> Script:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    _ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
    BF = s.rfactor(B, ki)
    xo, xi = s[B].split(s[B].op.axis[0], factor=32)
    s[B].bind(xo, te.thread_axis("blockIdx.x"))
    s[B].bind(xi, te.thread_axis("threadIdx.y"))
    tx = te.thread_axis("threadIdx.x")
    s[B].bind(s[B].op.reduce_axis[0], tx)
    s[BF].compute_at(s[B], s[B].op.reduce_axis[0])
    s[B].set_store_predicate(tx.var.equal(0))
    a = rand(70, 50)
    return Script(s, [A, B], [a], [a.sum(1)])


@script
def cross_thread_reduction_with_epilogue() -> Script:
    """What topi makes of a sum that is followed by something."""
    A = te.placeholder((20, 96), name="A")
    k = te.reduce_axis((0, 96), "k")
    B = te.compute((20,), lambda i: te.sum(A[i, k], axis=k), name="B", tag="comm_reduce")
    C = te.compute((20,), lambda i: B[i] / 96.0, name="C", tag="broadcast")
    s = te.create_schedule(C.op)
    thread_x, block_x = te.thread_axis((0, 32), "threadIdx.x"), te.thread_axis("blockIdx.x")
    fused = s[B].fuse(*s[B].op.reduce_axis)
    _ko, ki = s[B].split(fused, factor=32)
    BF = s.rfactor(B, ki)
    tx = s[B].op.reduce_axis[0]
    s[B].bind(tx, thread_x)
    s[BF].compute_at(s[B], tx)
    outer = s[C].fuse(*s[C].op.axis)
    s[C].bind(outer, block_x)
    s[B].compute_at(s[C], s[C].leaf_iter_vars[0])
    s[C].set_store_predicate(thread_x.var.equal(0))
    a = rand(20, 96)
    return Script(s, [A, C], [a], [a.mean(1)])


@script
def reduction_over_all() -> Script:
    A = te.placeholder((12, 40), name="A")
    r, c = te.reduce_axis((0, 12), "r"), te.reduce_axis((0, 40), "c")
    B = te.compute((1,), lambda i: te.sum(A[r, c], axis=[r, c]), name="B")
    s = te.create_schedule(B.op)
    fused = s[B].fuse(*s[B].op.reduce_axis)
    _, ki = s[B].split(fused, factor=32)
    BF = s.rfactor(B, ki)
    s[B].bind(s[B].op.axis[0], te.thread_axis("blockIdx.x"))
    s[B].bind(s[B].op.reduce_axis[0], te.thread_axis("threadIdx.x"))
    s[BF].compute_at(s[B], s[B].op.reduce_axis[0])
    a = rand(12, 40)
    return Script(s, [A, B], [a], [a.sum().reshape(1)])


@script
def argmax_across_threads() -> Script:
    def fcombine(x: Any, y: Any) -> Any:
        first = te.any(x[1] > y[1], te.all(x[1] == y[1], x[0] < y[0]))
        return te.select(first, x[0], y[0]), te.select(first, x[1], y[1])

    def fidentity(t0: Any, t1: Any) -> Any:
        return te.max_value(t0), te.min_value(t1)

    reducer = te.comm_reducer(fcombine, fidentity, name="argmax")
    A = te.placeholder((6, 64), name="A")
    k = te.reduce_axis((0, 64), "k")
    T0, T1 = te.compute((6,), lambda i: reducer((k.var, A[i, k]), axis=k), name="T")
    s = te.create_schedule(T0.op)
    _, ki = s[T0].split(s[T0].op.reduce_axis[0], factor=16)
    BF0, _BF1 = s.rfactor(T0, ki)
    s[T0].bind(s[T0].op.axis[0], te.thread_axis("blockIdx.x"))
    s[T0].bind(s[T0].op.reduce_axis[0], te.thread_axis("threadIdx.x"))
    s[BF0].compute_at(s[T0], s[T0].op.reduce_axis[0])
    a = rand(6, 64)
    return Script(s, [A, T0, T1], [a], [a.argmax(1).astype("int32"), a.max(1)])


@script
def row_sum_reordered() -> Script:
    A = te.placeholder((64, 48), name="A")
    k = te.reduce_axis((0, 48), "k")
    B = te.compute((64,), lambda i: te.sum(A[i, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    s[B].reorder(s[B].op.reduce_axis[0], s[B].op.axis[0])
    a = rand(64, 48)
    return Script(s, [A, B], [a], [a.sum(1)])


@script
def softmax_of_topi() -> Script:
    m, n = 10, 48
    A = te.placeholder((m, n), name="A")
    k1, k2 = te.reduce_axis((0, n), "k1"), te.reduce_axis((0, n), "k2")
    M = te.compute((m,), lambda i: te.max(A[i, k1], axis=k1), name="M")
    E = te.compute((m, n), lambda i, j: te.exp(A[i, j] - M[i]), name="E")
    S = te.compute((m,), lambda i: te.sum(E[i, k2], axis=k2), name="S")
    B = te.compute((m, n), lambda i, j: E[i, j] / S[i], name="B")
    s = te.create_schedule(B.op)
    num_thread = 16
    block_x, thread_x = te.thread_axis("blockIdx.x"), te.thread_axis((0, num_thread), "threadIdx.x")
    s[E].compute_inline()
    s[M].bind(M.op.axis[0], block_x)
    k = S.op.reduce_axis[0]
    _ko, ki = s[S].split(k, factor=num_thread)
    SF = s.rfactor(S, ki)
    s[S].bind(s[S].op.axis[0], block_x)
    s[S].bind(s[S].op.reduce_axis[0], thread_x)
    s[SF].compute_at(s[S], s[S].op.reduce_axis[0])
    s[S].set_store_predicate(thread_x.var.equal(0))
    tx, _xi = s[B].split(B.op.axis[1], nparts=num_thread)
    s[B].bind(B.op.axis[0], block_x)
    s[B].bind(tx, thread_x)
    a = rand(m, n)
    e = np.exp(a - a.max(1, keepdims=True))
    return Script(s, [A, B], [a], [e / e.sum(1, keepdims=True)])


@script
def transpose_through_shared() -> Script:
    A = te.placeholder((64, 64), name="A")
    B = te.compute((64, 64), lambda i, j: A[j, i], name="B")
    s = te.create_schedule(B.op)
    AS = s.cache_read(A, "shared", [B])
    io, jo, ii, ji = s[B].tile(B.op.axis[0], B.op.axis[1], 32, 32)
    s[B].bind(io, te.thread_axis("blockIdx.y"))
    s[B].bind(jo, te.thread_axis("blockIdx.x"))
    ty, ii = s[B].split(ii, nparts=8)
    s[B].reorder(ty, ji, ii)
    s[B].bind(ty, te.thread_axis("threadIdx.y"))
    s[B].bind(ji, te.thread_axis("threadIdx.x"))
    s[AS].compute_at(s[B], jo)
    y, x = s[AS].op.axis
    ty, y = s[AS].split(y, nparts=8)
    s[AS].bind(ty, te.thread_axis("threadIdx.y"))
    s[AS].bind(x, te.thread_axis("threadIdx.x"))
    a = rand(64, 64)
    return Script(s, [A, B], [a], [a.T])
