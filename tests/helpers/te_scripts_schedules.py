"""Scripts of matrix products and of single primitives; `te_scripts` says what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from te_scripts import Array, Script, rand, script, te

# Matrix products


def product(M: int, N: int, K: int) -> tuple[Any, Any, Any, Array, Array]:
    k = te.reduce_axis((0, K), "k")
    A = te.placeholder((M, K), name="A")
    B = te.placeholder((K, N), name="B")
    C = te.compute((M, N), lambda m, n: te.sum(A[m, k] * B[k, n], axis=k), name="C")
    return A, B, C, rand(M, K), rand(K, N, seed=1)


@script
def gemm_blocked() -> Script:
    A, B, C, a, b = product(64, 64, 32)
    s = te.create_schedule(C.op)
    mo, no, mi, ni = s[C].tile(C.op.axis[0], C.op.axis[1], 32, 32)
    (kaxis,) = s[C].op.reduce_axis
    ko, ki = s[C].split(kaxis, factor=4)
    s[C].reorder(mo, no, ko, ki, mi, ni)
    s[C].vectorize(ni)
    return Script(s, [A, B, C], [a, b], [a @ b])


@script
def gemm_permuted() -> Script:
    A, B, C, a, b = product(64, 64, 32)
    s = te.create_schedule(C.op)
    x, y = s[C].op.axis
    mo, no, mi, ni = s[C].tile(x_parent=x, y_parent=y, x_factor=16, y_factor=32)
    ko, ki = s[C].split(s[C].op.reduce_axis[0], factor=4)
    s[C].reorder(mo, no, ko, mi, ki, ni)
    s[C].vectorize(var=ni)
    s[C].parallel(var=mo)
    return Script(s, [A, B, C], [a, b], [a @ b])


@script
def gemm_packed() -> Script:
    M = N = 64
    K, bn = 32, 32
    A, B, _, a, b = product(M, N, K)
    k = te.reduce_axis((0, K), "k")
    packedB = te.compute(
        (N / bn, K, bn), lambda bigN, k, little: B[k, bigN * bn + little], "packedB"
    )
    C = te.compute(
        (M, N),
        lambda m, n: te.sum(A[m, k] * packedB[n // bn, k, te.indexmod(n, bn)], axis=k),
        name="C",
    )
    s = te.create_schedule(C.op)
    CC = s.cache_write(C, "global")
    mo, no, _mi, _ni = s[C].tile(C.op.axis[0], C.op.axis[1], bn, bn)
    s[CC].compute_at(s[C], no)
    mc, nc = s[CC].op.axis
    (kaxis,) = s[CC].op.reduce_axis
    ko, ki = s[CC].split(kaxis, factor=4)
    s[CC].reorder(ko, mc, ki, nc)
    s[CC].vectorize(nc)
    s[CC].unroll(ki)
    s[C].parallel(mo)
    bigN, _, little = s[packedB].op.axis
    s[packedB].vectorize(little)
    s[packedB].parallel(bigN)
    return Script(s, [A, B, C], [a, b], [a @ b])


@script
def gemm_intermediate_listed() -> Script:
    A, B, C, a, b = product(16, 16, 8)
    D = te.compute(C.shape, lambda i, j: te.max(C[i, j], 0.0), name="D")
    s = te.create_schedule(D.op)
    s[C].compute_at(s[D], D.op.axis[1])
    return Script(s, [A, B, C, D], [a, b], [a @ b, np.maximum(a @ b, 0)])


@script
def gemv_tensorized() -> Script:
    M, N, L = 16, 32, 8
    A = te.placeholder((M, L), name="A")
    B = te.placeholder((N, L), name="B")
    k = te.reduce_axis((0, L), name="k")
    C = te.compute((M, N), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")
    s = te.create_schedule(C.op)
    x, y = C.op.axis
    yo, yi = s[C].split(y, factor=16)
    s[C].reorder(x, yo, yi, s[C].op.reduce_axis[0])
    s[C].pragma(x, "auto_unroll_max_step", 16)
    a, b = rand(M, L), rand(N, L, seed=1)
    return Script(s, [A, B, C], [a, b], [a @ b.T])


# Schedule primitives


@script
def primitives_split_fuse_reorder() -> Script:
    A = te.placeholder((12, 20), name="A")
    B = te.compute((12, 20), lambda i, j: A[i, j] + 1.0, name="B")
    s = te.create_schedule(B.op)
    xo, yo, xi, yi = s[B].tile(B.op.axis[0], B.op.axis[1], x_factor=5, y_factor=3)
    fused = s[B].fuse([xo, yo])
    s[B].reorder(yi, fused, xi)
    a = rand(12, 20)
    return Script(s, [A, B], [a], [a + 1])


@script
def primitives_double_marks() -> Script:
    A = te.placeholder((16, 16), name="A")
    B = te.compute((16, 16), lambda i, j: A[i, j] * 2.0, name="B")
    s = te.create_schedule(B.op)
    i, j = B.op.axis
    s[B].vectorize(j)
    s[B].vectorize(j)
    s[B].parallel(i)
    s[B].parallel(i)
    a = rand(16, 16)
    return Script(s, [A, B], [a], [a * 2])


@script
def primitives_inline_after_attach() -> Script:
    A = te.placeholder((16,), name="A")
    A1 = te.compute((16,), lambda i: A[i] + 1.0, name="A1")
    A2 = te.compute((16,), lambda i: A1[i] * 2.0, name="A2")
    C = te.compute((16,), lambda i: A1[i] + A2[i], name="C")
    s = te.create_schedule(C.op)
    xo, _xi = s[C].split(C.op.axis[0], factor=4)
    s[A2].compute_inline()
    s[A1].compute_at(s[C], xo)
    a = rand(16)
    return Script(s, [A, C], [a], [(a + 1) * 3])


@script
def primitives_bind_before_reorder() -> Script:
    A = te.placeholder((32, 32), name="A")
    B = te.compute((32, 32), lambda i, j: A[i, j] * 2.0, name="B")
    s = te.create_schedule(B.op)
    i, j = B.op.axis
    io, ii = s[B].split(i, 8)
    jo, ji = s[B].split(j, 8)
    s[B].bind(io, te.thread_axis("blockIdx.y"))
    s[B].bind(jo, te.thread_axis("blockIdx.x"))
    s[B].reorder(io, jo, ii, ji)
    s[B].bind(ii, te.thread_axis("threadIdx.y"))
    s[B].bind(ji, te.thread_axis("threadIdx.x"))
    a = rand(32, 32)
    return Script(s, [A, B], [a], [a * 2])


@script
def primitives_cache_write_takes_the_layout() -> Script:
    A = te.placeholder((12, 20), name="A")
    B = te.compute((12, 20), lambda i, j: A[i, j] + 1.0, name="B")
    s = te.create_schedule(B.op)
    io, ii = s[B].split(B.op.axis[0], 4)
    jo, ji = s[B].split(B.op.axis[1], 5)
    s[B].reorder(io, jo, ii, ji)
    BC = s.cache_write(B, "global")
    assert len(s[BC].op.axis) == 4
    a = rand(12, 20)
    return Script(s, [A, B], [a], [a + 1])


@script
def primitives_cache_write_of_a_split_reduction() -> Script:
    A = te.placeholder((10, 6, 7), name="A")
    k = te.reduce_axis((0, 7), "k")
    B = te.compute((10, 6), lambda i, j: te.sum(A[i, j, k], axis=k, init=0.5), name="B")
    s = te.create_schedule(B.op)
    fused = s[B].fuse(*B.op.axis)
    outer, inner = s[B].split(fused, 8)
    ko, ki = s[B].split(k, 3)
    s[B].reorder(inner, ko, outer, ki)
    BC = s.cache_write(B, "global")
    assert len(s[BC].op.axis) == 2 and len(s[B].leaf_iter_vars) == 2
    s[BC].vectorize(s[BC].leaf_iter_vars[0])
    a = rand(10, 6, 7)
    return Script(s, [A, B], [a], [a.sum(2) + 0.5])


@script
def primitives_cache_write_of_several_outputs() -> Script:
    A = te.placeholder((9, 6), name="A")
    B0, B1 = te.compute((9, 6), lambda i, j: (A[i, j] + 1.0, A[i, j] * 2.0), name="B")
    s = te.create_schedule([B0.op, B1.op])
    i, j = s[B0].op.axis
    s[B0].tile(i, j, 4, 3)
    C0, C1 = s.cache_write([B0, B1], "global")
    assert C0.op is C1.op and len(s[C0].op.axis) == 4
    a = rand(9, 6)
    return Script(s, [A, B0, B1], [a], [a + 1, a * 2])


@script
def primitives_that_look_at_a_schedule() -> Script:
    n = te.var("n")
    A = te.placeholder((n, 16), name="A")
    B = te.compute((n, 16), lambda i, j: A[i, j] + 1.0, name="B", attrs={"layout": "NC"})
    C = te.compute((n, 16), lambda i, j: B[i, j] * 2.0, name="C")
    s = te.create_schedule(C.op)
    assert A.shape[0] == n and C.shape[1] == 16
    assert B.op.attrs["layout"] == "NC" and B.op.input_tensors == (A,) and B.value_index == 0
    assert len(B.op.body) == 1 and B.op.num_outputs == 1 and B.op.output(0) == B
    outer, inner = s[C].split(C.op.axis[1], 4)
    assert inner in s[C].leaf_iter_vars and C.op.axis[1] not in s[C].leaf_iter_vars
    assert C.op.axis[1] in s[C].all_iter_vars and len(s[C].relations) == 1
    s[B].compute_at(s[C], outer)
    assert s[B].attach_type == 4 and s[B].attach_ivar is outer
    assert s[B].attach_stage.op == s[C].op and s[B].scope == "local" and s[C].is_output
    s[C].unroll(inner)
    assert inner in s[C].iter_var_attrs and s[C].origin_op == C.op and s.stage_map[C.op].op == C.op
    a = rand(5, 16)
    return Script(s, [A, C], [a], [(a + 1) * 2])


@script
def primitives_of_storage() -> Script:
    A = te.placeholder((32, 32), name="A")
    B = te.compute((32, 32), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((32, 32), lambda i, j: B[j, i] * 2.0, name="C")
    s = te.create_schedule(C.op)
    AA = s.cache_read(A, "local", [B])
    s[B].storage_align(B.op.axis[0], 32, 1)
    s[AA].compute_at(s[B], B.op.axis[0])
    s[C].prefetch(B, C.op.axis[0], 1)
    a = rand(32, 32)
    return Script(s, [A, C], [a], [(a.T + 1) * 2])


@script
def primitives_scope_and_root() -> Script:
    A = te.placeholder((16, 16), name="A")
    B = te.compute((16, 16), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((16, 16), lambda i, j: B[i, j] * 2.0, name="C")
    s = te.create_schedule(C.op)
    s[B].compute_at(s[C], C.op.axis[0])
    s[B].set_scope("local")
    s[B].compute_root()
    a = rand(16, 16)
    return Script(s, [A, C], [a], [(a + 1) * 2])


@script
def primitives_group() -> Script:
    A = te.placeholder((16, 16), name="A")
    B = te.compute((16, 16), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((16, 16), lambda i, j: B[i, j] * 2.0, name="C")
    D = te.compute((16, 16), lambda i, j: C[i, j] - 3.0, name="D")
    s = te.create_schedule(D.op)
    g = s.create_group(outputs=C, inputs=A, include_inputs=False)
    g.compute_at(s[D], D.op.axis[0])
    s = s.normalize()
    a = rand(16, 16)
    return Script(s, [A, D], [a], [(a + 1) * 2 - 3])


@script
def primitives_transform_layout() -> Script:
    A = te.placeholder((16, 16), name="A")
    B = te.compute((16, 16), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((16, 16), lambda i, j: B[i, j] * 2.0, name="C")
    s = te.create_schedule(C.op)
    s[B].transform_layout(lambda i, j: [j, i // 4, i % 4])
    a = rand(16, 16)
    return Script(s, [A, C], [a], [(a + 1) * 2])


@script
def primitives_outputs_that_read_outputs() -> Script:
    A = te.placeholder((16,), name="A")
    B = te.compute((16,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((16,), lambda i: B[i] * 2.0, name="C")
    s = te.create_schedule([B.op, C.op])
    a = rand(16)
    return Script(s, [A, B, C], [a], [a + 1, (a + 1) * 2])
