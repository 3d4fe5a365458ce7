"""Scripts of elements and reductions; `te_scripts` says what they are."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
from te_scripts import Script, rand, script, te

# Elements


@script
def vector_add() -> Script:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.placeholder((n,), name="B")
    C = te.compute(A.shape, lambda i: A[i] + B[i], name="C")
    s = te.create_schedule(C.op)
    outer, inner = s[C].split(C.op.axis[0], factor=64)
    s[C].parallel(outer)
    s[C].vectorize(inner)
    a, b = rand(1000), rand(1000, seed=1)
    return Script(s, [A, B, C], [a, b], [a + b])


@script
def vector_add_bound() -> Script:
    n = te.size_var("n")
    A = te.placeholder(shape=(n,), dtype="float32", name="A")
    B = te.placeholder(shape=(n,), dtype="float32", name="B")
    C = te.compute(shape=A.shape, fcompute=lambda *i: A(*i) + B(*i), name="C", tag="add")
    s = te.create_schedule([C.op])
    bx, tx = s[C].split(parent=C.op.axis[0], factor=32)
    s[C].bind(ivar=bx, thread_ivar=te.thread_axis("blockIdx.x"))
    s[C].bind(tx, te.thread_axis("threadIdx.x"))
    a, b = rand(77), rand(77, seed=1)
    return Script(s, [A, B, C], [a, b], [a + b])


@script
def scalar_argument() -> Script:
    n = te.var(name="n", dtype="int32")
    alpha = te.var("alpha", dtype="float32")
    X = te.placeholder((n,), "float32", "X")
    Y = te.placeholder((n,), "float32", "Y")
    Z = te.compute((n,), lambda i: alpha * X[i] + Y[i], "Z")
    s = te.create_schedule(Z.op)
    xo, _xi = s[Z].split(Z.op.axis[0], nparts=4)
    s[Z].unroll(xo)
    x, y = rand(40), rand(40, seed=1)
    return Script(s, [alpha, X, Y, Z], [2.5, x, y], [2.5 * x + y])


@script
def sizes_in_the_list() -> Script:
    n, m = te.var("n"), te.var("m")
    X = te.placeholder((n, m), name="X")
    Z = te.compute((n, m), lambda i, j: X[i, j] * 2.0, name="Z")
    s = te.create_schedule(Z.op)
    s[Z].fuse(*Z.op.axis)
    x = rand(5, 9)
    return Script(s, [X, n, m, Z], [x, 5, 9], [x * 2])


@script
def size_of_the_result_only() -> Script:
    q = te.var("q")
    Z = te.compute((q,), lambda i: i * 2, name="Z")
    s = te.create_schedule(Z.op)
    return Script(s, [Z], [], [np.arange(0, 22, 2, dtype="int32")])


@script
def intermediate_in_the_list() -> Script:
    X = te.placeholder((8, 8), name="X")
    Y = te.compute((8, 8), lambda i, j: X[i, j] + 1.0, name="Y")
    Z = te.compute((8, 8), lambda i, j: Y[i, j] * Y[j, i], name="Z")
    s = te.create_schedule(Z.op)
    x = rand(8, 8)
    return Script(s, [X, Y, Z], [x], [x + 1, (x + 1) * (x + 1).T])


@script
def intermediate_attached_in_the_list() -> Script:
    X = te.placeholder((8, 8), name="X")
    Y = te.compute((8, 8), lambda i, j: X[i, j] + 1.0, name="Y")
    Z = te.compute((8, 8), lambda i, j: Y[i, j] * 3.0, name="Z")
    s = te.create_schedule(Z.op)
    s[Y].compute_at(s[Z], Z.op.axis[0])
    x = rand(8, 8)
    return Script(s, [X, Y, Z], [x], [x + 1, (x + 1) * 3])


@script
def unused_argument() -> Script:
    X = te.placeholder((8,), name="X")
    U = te.placeholder((3,), name="U")
    Z = te.compute((8,), lambda i: X[i] * 2.0, name="Z")
    s = te.create_schedule(Z.op)
    x, u = rand(8), rand(3)
    return Script(s, [X, U, Z], [x, u], [x * 2])


@script
def repeated_argument() -> Script:
    X = te.placeholder((8,), name="X")
    Z = te.compute((8,), lambda i: X[i] * 2.0, name="Z")
    s = te.create_schedule(Z.op)
    x = rand(8)
    return Script(s, [X, X, Z], [x, x], [x * 2])


@script
def operations_given_twice() -> Script:
    A = te.placeholder((8,), name="A")
    T0, T1 = te.compute((8,), lambda i: (A[i] + 1.0, A[i] * 2.0), name="T")
    s = te.create_schedule([T0.op, T1.op])
    s[T0].vectorize(T0.op.axis[0])
    a = rand(8)
    return Script(s, [A, T0, T1], [a], [a + 1, a * 2])


@script
def tuple_inputs() -> Script:
    m, n = te.var("m"), te.var("n")
    A0 = te.placeholder((m, n), name="A0")
    A1 = te.placeholder((m, n), name="A1")
    B0, B1 = te.compute((m, n), lambda i, j: (A0[i, j] + 2.0, A1[i, j] * 3.0), name="B")
    C = te.compute((m, n), lambda i, j: B0[i, j] + B1[i, j], name="C")
    s = te.create_schedule(C.op)
    outer, _ = s[C].split(C.op.axis[1], factor=32)
    s[B0].compute_at(s[C], outer)
    a, b = rand(6, 10), rand(6, 10, seed=1)
    return Script(s, [A0, A1, C], [a, b], [(a + 2) + b * 3])


@script
def math_calls() -> Script:
    A = te.placeholder((64,), name="A")
    names = ("exp", "tanh", "sigmoid", "sin", "cos", "erf", "floor", "ceil", "round", "trunc")
    B = te.compute((64,), lambda i: sum((getattr(te, f)(A[i]) for f in names), 0.0), name="B")
    s = te.create_schedule(B.op)
    a = rand(64)
    want = np.exp(a) + np.tanh(a) + 1 / (1 + np.exp(-a)) + np.sin(a) + np.cos(a)
    want = want + np.vectorize(erf)(a) + np.floor(a) + np.ceil(a) + np.round(a) + np.trunc(a)
    return Script(s, [A, B], [a], [want.astype("float32")])


@script
def math_of_tvm_alone() -> Script:
    A = te.placeholder((64,), name="A")
    B = te.compute(
        (64,),
        lambda i: te.exp10(A[i]) + te.fmod(A[i], te.const(0.75, "float32")) + te.nearbyint(A[i]),
        name="B",
    )
    s = te.create_schedule(B.op)
    a = rand(64)
    return Script(s, [A, B], [a], [10**a + np.fmod(a, np.float32(0.75)) + np.rint(a)])


@script
def index_functions() -> Script:
    A = te.placeholder((6, 8), name="A")
    B = te.compute((48,), lambda i: A[te.indexdiv(i, 8), te.indexmod(i, 8)], name="B")
    C = te.compute(
        (48,), lambda i: B[te.floormod(te.floordiv(i, 2) * 2 + te.truncmod(i, 2), 48)], name="C"
    )
    s = te.create_schedule(C.op)
    s[B].compute_inline()
    a = rand(6, 8)
    return Script(s, [A, C], [a], [a.reshape(-1)])


@script
def conditions() -> Script:
    A = te.placeholder((10, 10), name="A")
    P = te.compute(
        (12, 12),
        lambda i, j: te.if_then_else(
            te.all(i >= 1, i < 11, te.any(j >= 1, j > 3), j < 11),
            A[i - 1, j - 1],
            te.const(0.0, "float32"),
        ),
        name="P",
    )
    R = te.compute((12, 12), lambda i, j: te.max(P[i, j], 0.0) + te.min(P[i, j], 1.0), name="R")
    s = te.create_schedule(R.op)
    s[P].compute_inline()
    a = rand(10, 10)
    p = np.pad(a, 1)
    return Script(s, [A, R], [a], [np.maximum(p, 0) + np.minimum(p, 1)])


@script
def casts_and_limits() -> Script:
    A = te.placeholder((16,), dtype="int8", name="A")
    B = te.compute(
        (16,),
        lambda i: (
            te.max(A[i].astype("int32"), te.const(-3, dtype="int32"))
            + te.select(A[i] > te.const(0, "int8"), te.max_value("int8").astype("int32"), 1)
        ),
        name="B",
    )
    s = te.create_schedule(B.op)
    a = rand(16, dtype="int8")
    want = np.maximum(a.astype("int32"), -3) + np.where(a > 0, 127, 1)
    return Script(s, [A, B], [a], [want.astype("int32")])


@script
def float_spelt_without_bits() -> Script:
    A = te.placeholder((16,), dtype="float", name="A")
    B = te.compute((16,), lambda i: A[i].astype("int") + 1, name="B")
    s = te.create_schedule(B.op)
    a = rand(16) * 8
    return Script(s, [A, B], [a], [a.astype("int32") + 1])


@script
def tensors_with_operators() -> Script:
    A = te.placeholder((4, 8), name="A")
    B = te.placeholder((8,), name="B")
    C = te.exp(A * 2.0 - B) / (A * A + 1.0)
    s = te.create_schedule(C.op)
    a, b = rand(4, 8), rand(8)
    return Script(s, [A, B, C], [a, b], [np.exp(a * 2 - b) / (a * a + 1)])


@script
def slices() -> Script:
    A = te.placeholder((4, 5, 6), name="A")
    B = te.compute((4, 5, 6), lambda i, j, k: A[i][j][k] + A[i, j][k], name="B")
    s = te.create_schedule(B.op)
    s[B].reorder(*reversed(s[B].op.axis))
    a = rand(4, 5, 6)
    return Script(s, [A, B], [a], [a + a])


@script
def no_dimension() -> Script:
    A = te.placeholder((), name="A")
    B = te.compute((), lambda: A() + 1.0, name="B")
    s = te.create_schedule(B.op)
    a = np.array(3, "float32")
    return Script(s, [A, B], [a], [a + np.float32(1)])


@script
def float_extent() -> Script:
    N = 64
    A = te.placeholder((N,), name="A")
    B = te.compute((N / 32, 32), lambda x, y: A[x * 32 + y], name="B")
    s = te.create_schedule(B.op)
    a = rand(N)
    return Script(s, [A, B], [a], [a.reshape(2, 32)])


@script
def fewer_names_than_dimensions() -> Script:
    A = te.placeholder((4, 5, 6), name="A")
    B = te.compute((4, 5, 6), lambda i, *rest: A(i, *rest) * 2.0, name="B", varargs_names=None)
    s = te.create_schedule(B.op)
    a = rand(4, 5, 6)
    return Script(s, [A, B], [a], [a * 2])


@script
def gather() -> Script:
    A = te.placeholder((10, 4), name="A")
    at = te.placeholder((6,), dtype="int32", name="at")
    B = te.compute((6, 4), lambda i, j: A[at[i], j], name="B")
    s = te.create_schedule(B.op)
    a, i = rand(10, 4), np.array([3, 1, 9, 0, 0, 5], "int32")
    return Script(s, [A, at, B], [a, i], [a[i]])


# Reductions


@script
def row_sum() -> Script:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    _ko, _ki = s[B].split(B.op.reduce_axis[0], factor=16)
    xo, xi = s[B].split(B.op.axis[0], factor=32)
    s[B].bind(xo, te.thread_axis("blockIdx.x"))
    s[B].bind(xi, te.thread_axis("threadIdx.x"))
    a = rand(70, 50)
    return Script(s, [A, B], [a], [a.sum(1)])


@script
def rfactor_parallel() -> Script:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), name="k")
    B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    _ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
    BF = s.rfactor(tensor=B, axis=ki, factor_axis=0)
    s[BF].parallel(s[BF].op.axis[0])
    a = rand(30, 50)
    return Script(s, [A, B], [a], [a.sum(1)])


@script
def rfactor_of_a_scalar() -> Script:
    A = te.placeholder((1024,), name="A")
    k = te.reduce_axis((0, 1024), name="k")
    B = te.compute((1,), lambda i: te.sum(A[k], axis=k), name="B")
    s = te.create_schedule(B.op)
    _, ki = s[B].split(s[B].op.reduce_axis[0], nparts=16)
    BF = s.rfactor(B, ki, -1)
    s[BF].vectorize(s[BF].op.axis[1])
    a = rand(1024)
    return Script(s, [A, B], [a], [a.sum(keepdims=True)])


@script
def extremes_with_where() -> Script:
    A = te.placeholder((8, 12), name="A")
    k = te.reduce_axis((0, 12), name="k")
    B = te.compute((8,), lambda i: te.max(A[i, k], axis=k, where=k < i + 1), name="B")
    r = te.reduce_axis((0, 12), name="r")
    C = te.compute((8,), lambda i: te.min(A[i, r], axis=[r], init=[-1.0]), name="C")
    s = te.create_schedule([B.op, C.op])
    a = rand(8, 12)
    want = np.array([a[i, : i + 1].max() for i in range(8)])
    return Script(s, [A, B, C], [a], [want, np.minimum(a.min(1), -1).astype("float32")])


@script
def extent_depends_on_an_axis() -> Script:
    X = te.placeholder((9,), name="X")

    def triangle(i: Any) -> Any:
        r = te.reduce_axis((0, i + 1), name="r")
        return te.sum(X[r], axis=r)

    Z = te.compute((9,), triangle, name="Z")
    s = te.create_schedule(Z.op)
    x = rand(9)
    return Script(s, [X, Z], [x], [x.cumsum()])


@script
def range_does_not_begin_at_zero() -> Script:
    A = te.placeholder((16,), name="A")
    k = te.reduce_axis(dom=(2, 10), name="k")
    B = te.compute((1,), lambda i: te.sum(A[k], axis=k), name="B")
    s = te.create_schedule(B.op)
    s[B].split(k, 3)
    a = rand(16)
    return Script(s, [A, B], [a], [a[2:10].sum(keepdims=True)])


@script
def product_reducer() -> Script:
    A = te.placeholder((6, 7), name="A")
    product = te.comm_reducer(lambda x, y: x * y, lambda t: te.const(1, dtype=t), name="product")
    k = te.reduce_axis((0, 7), "k")
    B = te.compute((6,), lambda i: product(A[i, k], axis=k), name="B")
    C = te.compute((6,), lambda i: product(B[i], 2.0), name="C")
    s = te.create_schedule(C.op)
    a = rand(6, 7)
    return Script(s, [A, C], [a], [a.prod(1) * 2])


@script
def argmax() -> Script:
    def fcombine(x: Any, y: Any) -> Any:
        lhs = te.select((x[1] >= y[1]), x[0], y[0])
        rhs = te.select((x[1] >= y[1]), x[1], y[1])
        return lhs, rhs

    def fidentity(t0: Any, t1: Any) -> Any:
        return te.const(-1, t0), te.min_value(t1)

    reducer = te.comm_reducer(fcombine, fidentity, name="argmax")
    m, n = te.var("m"), te.var("n")
    idx = te.placeholder((m, n), name="idx", dtype="int32")
    val = te.placeholder((m, n), name="val", dtype="float32")
    k = te.reduce_axis((0, n), "k")
    T0, T1 = te.compute((m,), lambda i: reducer((idx[i, k], val[i, k]), axis=k), name="T")
    s = te.create_schedule(T0.op)
    v = rand(5, 20)
    i = np.broadcast_to(np.arange(20, dtype="int32"), (5, 20)).copy()
    return Script(s, [idx, val, T0, T1], [i, v], [v.argmax(1).astype("int32"), v.max(1)])


@script
def two_axes_reordered() -> Script:
    A = te.placeholder((6, 7, 8), name="A")
    r, c = te.reduce_axis((0, 7), "r"), te.reduce_axis((0, 8), "c")
    B = te.compute((6,), lambda i: te.sum(A[i, r, c], axis=[r, c]), name="B")
    s = te.create_schedule(B.op)
    s[B].reorder(c, r, B.op.axis[0])
    a = rand(6, 7, 8)
    return Script(s, [A, B], [a], [a.sum((1, 2))])


@script
def softmax() -> Script:
    m, n = 12, 40
    A = te.placeholder((m, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    M = te.compute((m,), lambda i: te.max(A[i, k], axis=k), name="M")
    E = te.compute((m, n), lambda i, j: te.exp(A[i, j] - M[i]), name="E", tag="softmax_exp")
    k2 = te.reduce_axis((0, n), name="k2")
    S = te.compute((m,), lambda i: te.sum(E[i, k2], axis=k2), name="S")
    B = te.compute((m, n), lambda i, j: E[i, j] / S[i], name="B", attrs={"axis": 1})
    s = te.create_schedule(B.op)
    row = B.op.axis[0]
    s[B].parallel(row)
    for each in (S, E, M):
        s[each].compute_at(s[B], row)
    a = rand(m, n)
    e = np.exp(a - a.max(1, keepdims=True))
    return Script(s, [A, B], [a], [e / e.sum(1, keepdims=True)])
