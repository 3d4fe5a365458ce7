"""Scripts in the way of TVM's own tests of schedules; `te_scripts` says what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from te_scripts import Script, rand, script, te

# Stages attached where sizes are not known


@script
def attached_rows_of_unknown_length() -> Script:
    m, w = te.size_var("m"), te.size_var("l")
    A = te.placeholder((m, w), name="A")
    A1 = te.compute((m, w), lambda i, j: A[i, j] + 1.0, name="A1")
    A2 = te.compute((m, w), lambda i, j: A1[i, j] + 3.0, name="A2")
    s = te.create_schedule(A2.op)
    xo, _xi = s[A2].split(s[A2].op.axis[0], factor=8)
    s[A1].compute_at(s[A2], xo)
    a = rand(19, 13)
    return Script(s, [A, A2], [a], [a + 4])


@script
def bounds_of_a_nest() -> Script:
    m, w = te.var("m"), te.var("l")
    A = te.placeholder((m, w), name="A")
    A1 = te.compute((m, w), lambda i, j: A[i, j], name="A1")
    A2 = te.compute((m, w), lambda i, j: A1[i, j] + 3.0, name="A2")
    A3 = te.compute((m, w), lambda i, j: A2[i, j] + 3.0, name="A3")
    s = te.create_schedule(A3.op)
    s[A1].set_scope("shared")
    s[A2].set_scope("local")
    s[A1].compute_at(s[A3], s[A3].op.axis[0])
    s[A2].compute_at(s[A3], s[A3].op.axis[1])
    a = rand(9, 21)
    return Script(s, [A, A3], [a], [a + 6])


@script
def bounds_fused_and_split_by_a_variable() -> Script:
    m, w, split1 = te.var("m"), te.var("l"), 5
    A = te.placeholder((m, w), name="A")
    A1 = te.compute((m, w), lambda i, j: A[i, j], name="A1")
    A2 = te.compute((m, w), lambda i, j: A1[i, j] + 3.0, name="A2")
    s = te.create_schedule(A2.op)
    fused = s[A2].fuse(A2.op.axis[0], A2.op.axis[1])
    xo, _xi = s[A2].split(fused, split1)
    s[A1].compute_at(s[A2], xo)
    a = rand(6, 7)
    return Script(s, [A, A2], [a], [a + 3])


@script
def bounds_fused_and_split_by_constants() -> Script:
    m = te.var("m")
    w, split = te.const(6, "int32"), te.const(3, "int32")
    A = te.placeholder((m, w), name="A")
    A1 = te.compute((m, w), lambda i, j: A[i, j], name="A1")
    A2 = te.compute((m, w), lambda i, j: A1[i, j] + 3.0, name="A2")
    s = te.create_schedule(A2.op)
    fused = s[A2].fuse(A2.op.axis[0], A2.op.axis[1])
    xo, _xi = s[A2].split(fused, split)
    s[A1].compute_at(s[A2], xo)
    a = rand(5, 6)
    return Script(s, [A, A2], [a], [a + 3])


@script
def bounds_of_a_convolution_of_unknown_length() -> Script:
    n = te.var("n")
    A = te.compute((n + 2,), lambda i: te.floor(i.astype("float32") * 0.5), name="A")

    def computeB(ii: Any) -> Any:
        i = ii + 1
        return A[i - 1] + A[i] + A[i + 1]

    B = te.compute((n,), computeB, name="B")
    s = te.create_schedule(B.op)
    px, _xi = s[B].split(B.op.axis[0], nparts=1)
    s[B].bind(px, te.thread_axis("blockIdx.x"))
    s[A].compute_at(s[B], px)
    a = np.floor(np.arange(13, dtype="float32") * 0.5)
    return Script(s, [B], [], [a[:-2] + a[1:-1] + a[2:]])


@script
def bounds_of_a_blur_of_unknown_size() -> Script:
    n = te.size_var("n")
    A = te.placeholder((n, n), name="A")
    B = te.compute(
        (n - 2, n - 2),
        lambda y, x: te.min(te.min(A[y, x], A[y, x + 1]), A[y, x + 2]) + A[y + 2, x],
        name="B",
    )
    C = te.compute((n - 4, n - 4), lambda y, x: B[y, x] + B[y + 1, x] + B[y + 2, x + 2], "C")
    s = te.create_schedule(C.op)
    s[B].compute_at(s[C], C.op.axis[0])
    a = rand(15, 15)
    b = np.minimum(np.minimum(a[:-2, :-2], a[:-2, 1:-1]), a[:-2, 2:]) + a[2:, :-2]
    return Script(s, [A, C], [a], [b[:-2, :-2] + b[1:-1, :-2] + b[2:, 2:]])


@script
def row_statistics_of_unknown_length() -> Script:
    """A softmax by hand: a sum and exponentials attached at the row."""
    m, n = te.size_var("m"), te.size_var("n")
    A = te.placeholder((m, n), name="A")
    k, k2 = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "k2")
    top = te.compute((m,), lambda i: te.max(A[i, k], axis=k), name="top")
    E = te.compute((m, n), lambda i, j: te.exp(A[i, j] - top[i]), name="E")
    total = te.compute((m,), lambda i: te.sum(E[i, k2], axis=k2), name="total")
    B = te.compute((m, n), lambda i, j: E[i, j] / total[i], name="B")
    s = te.create_schedule(B.op)
    i = B.op.axis[0]
    s[B].parallel(i)
    for stage in (total, E, top):
        s[stage].compute_at(s[B], i)
    a = rand(7, 33)
    e = np.exp(a - a.max(1, keepdims=True))
    return Script(s, [A, B], [a], [e / e.sum(1, keepdims=True)])


@script
def cache_read_of_unknown_rows() -> Script:
    n = te.size_var("n")
    A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), "k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    AA = s.cache_read(A, "local", [C])
    CC = s.cache_write(C, "local")
    s[CC].compute_at(s[C], C.op.axis[0])
    s[AA].compute_at(s[CC], s[CC].op.axis[0])
    a, b = rand(11, 11), rand(11, 11, seed=1)
    return Script(s, [A, B, C], [a, b], [a @ b])


# Schedules of the tests of operations


@script
def pragma_of_the_tests() -> Script:
    m, w = te.size_var("m"), te.size_var("l")
    A = te.placeholder((m, w), name="A")
    A1 = te.compute((m, w), lambda i, j: A[i, j], name="A1")
    s = te.create_schedule(A1.op)
    xo, _ = s[A1].split(A1.op.axis[0], factor=8)
    s[A1].pragma(xo, "auto_unroll_max_step", 10)
    a = rand(9, 3)
    return Script(s, [A, A1], [a], [a])


@script
def scan_with_split_columns() -> Script:
    m, n = te.var("m"), te.var("n")
    x = te.compute((m, n), lambda i, j: te.const(1, "float32"), name="x")
    s_state = te.placeholder((m, n))
    s_init = te.compute((1, n), lambda _, i: x[0, i])
    s_update = te.compute((m, n), lambda t, i: s_state[t - 1, i] + x[t, i])
    res = te.scan(s_init, s_update, s_state)
    assert tuple(res.shape) == (m, n)
    s = te.create_schedule(res.op)
    s = s.normalize()
    s[x].compute_inline()
    return Script(s, [res], [], [np.ones((6, 5), "float32").cumsum(0)])


@script
def inline_of_a_reduction_over_two() -> Script:
    def argmax_comp(x: Any, y: Any) -> Any:
        idx = te.select((x[1] >= y[1]), x[0], y[0])
        val = te.select((x[1] >= y[1]), x[1], y[1])
        return idx, val

    def argmax_init(idx_typ: Any, val_typ: Any) -> Any:
        return te.const(-1, idx_typ), te.min_value(val_typ)

    argmax = te.comm_reducer(argmax_comp, argmax_init, name="argmax")
    m, n = te.var("m"), te.var("n")
    val = te.placeholder((m, n), name="val", dtype="float32")
    val1 = te.compute((m, n), lambda i, j: val[i, j] + 1, name="val1")
    val2 = te.compute((m, n), lambda i, j: te.exp(val1[i, j]), name="val2")
    k = te.reduce_axis((0, n), "k")
    T_idx, T_val = te.compute((m,), lambda i: argmax((k.var, val2[i, k]), axis=k), name="T")
    s = te.create_schedule(T_idx.op)
    s[val1].compute_inline()
    s = s.normalize()
    a = rand(7, 9)
    return Script(s, [val, T_idx, T_val], [a], [a.argmax(1).astype("int32"), np.exp(a + 1).max(1)])


@script
def constant_bounds() -> Script:
    n = 128
    A = te.placeholder((n,), name="A")
    A1 = te.compute((n,), lambda i: A[i] + 1, name="A1")
    s = te.create_schedule(A1.op)
    xo, xi = s[A1].split(A1.op.axis[0], 8)
    assert s[A1].leaf_iter_vars[0] == xo and s[A1].leaf_iter_vars[1] == xi
    assert A1.op.axis[0].dom.extent.value == 128
    a = rand(n)
    return Script(s, [A, A1], [a], [a + 1])


@script
def inline_mixed() -> Script:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    A1 = te.compute(A.shape, lambda *i: A(*i) + 1, name="A1")
    A2 = te.compute(A.shape, lambda *i: A1(*i) + 2, name="A2")
    C = te.compute((n,), lambda i: A2[i] + A1[i], name="C")
    s = te.create_schedule(C.op)
    xo, _xi = s[C].split(C.op.axis[0], factor=8)
    s[A1].compute_at(s[C], xo)
    s[A2].compute_inline()
    a = rand(21)
    return Script(s, [A, C], [a], [2 * a + 4])


@script
def scan_inlined_of_three_states() -> Script:
    m, n = te.var("m"), 4
    x = te.compute((m, n), lambda i, j: te.const(1, "float32"), name="x")
    s_state1, s_state2 = te.placeholder((m, n)), te.placeholder((m, n))
    s_init1 = te.compute((1, n), lambda _, i: x[0, i])
    s_init2 = te.compute((1, n), lambda _, i: x[0, i])
    s_xx = te.compute((m, n), lambda t, i: s_state1[t - 1, i] + x[t, i], name="xx")
    s_x1 = te.compute((m, n), lambda t, i: s_xx[t, i] + 1, name="x1")
    s_x2 = te.compute((m, n), lambda t, i: s_xx[t, i] + s_state2[t - 1, 2], name="x2")
    s_update1 = te.compute((m, n), lambda t, i: s_x1[t, i], "u1")
    s_update2 = te.compute((m, n), lambda t, i: s_x2[t, i], "u2")
    res1, res2 = te.scan([s_init1, s_init2], [s_update1, s_update2], [s_state1, s_state2])
    s = te.create_schedule(res1.op)
    s[s_xx].compute_inline()
    s[s_x1].compute_inline()
    s[s_x2].compute_inline()
    s[x].compute_inline()
    one, two = np.ones((5, 4), "float32"), np.ones((5, 4), "float32")
    for t in range(1, 5):
        one[t], two[t] = one[t - 1] + 2, one[t - 1] + 1 + two[t - 1, 2]
    return Script(s, [res1, res2], [], [one, two])


@script
def scan_of_two_widths() -> Script:
    """The last example of TVM's page on scans."""
    m, n, w = te.var("m"), te.var("n"), te.var("l")
    X = te.placeholder((m, n), name="X")
    s_state1, s_state2 = te.placeholder((m, n)), te.placeholder((m, w))
    s_init1 = te.compute((1, n), lambda _, i: X[0, i])
    s_init2 = te.compute((1, w), lambda _, i: 0.0)
    s_update1 = te.compute((m, n), lambda t, i: s_state1[t - 1, i] + X[t, i])
    s_update2 = te.compute((m, w), lambda t, i: s_state2[t - 1, i] + s_state1[t - 1, 0])
    scan1, scan2 = te.scan(
        [s_init1, s_init2], [s_update1, s_update2], [s_state1, s_state2], inputs=[X]
    )
    s = te.create_schedule(scan1.op)
    x = rand(6, 4)
    one = x.cumsum(0)
    two = np.zeros((6, 3), "float32")
    two[1:] = one[:-1, :1].cumsum(0)
    return Script(s, [X, scan1, scan2], [x], [one, two])


@script
def scan_of_a_matrix_and_a_vector() -> Script:
    """States of two numbers of dimensions: a linear attention."""
    T, D = 6, 4
    K, V = te.placeholder((T, D), name="K"), te.placeholder((T, D), name="V")
    S, z = te.placeholder((T, D, D), name="S"), te.placeholder((T, D), name="z")
    S0 = te.compute((1, D, D), lambda t, i, j: K[0, i] * V[0, j], name="S0")
    z0 = te.compute((1, D), lambda t, i: K[0, i], name="z0")
    S1 = te.compute((T, D, D), lambda t, i, j: S[t - 1, i, j] * 0.5 + K[t, i] * V[t, j], "S1")
    z1 = te.compute((T, D), lambda t, i: z[t - 1, i] * 0.5 + K[t, i], name="z1")
    out, norm = te.scan([S0, z0], [S1, z1], [S, z], inputs=[K, V])
    k = te.reduce_axis((0, D), "k")
    dot = te.compute((T, D), lambda t, j: te.sum(K[t, k] * out[t, k, j], axis=k), name="O")
    P = te.compute((T, D), lambda t, j: dot[t, j] + norm[t, j], name="P")
    s = te.create_schedule(P.op)
    kk, vv = rand(T, D), rand(T, D, seed=1)
    state, sums = np.zeros((D, D), "float32"), np.zeros(D, "float32")
    want = np.zeros((T, D), "float32")
    for t in range(T):
        state = state * 0.5 + np.outer(kk[t], vv[t])
        sums = sums * 0.5 + kk[t]
        want[t] = kk[t] @ state + sums
    return Script(s, [K, V, P], [kk, vv], [want])


@script
def cache_of_the_tests() -> Script:
    m, n = te.size_var("m"), te.size_var("n")
    A = te.placeholder((m, n), name="A")
    B = te.placeholder((m, n), name="B")
    C = te.compute((m, n), lambda i, j: A(i, j) * B(i, j), name="C")
    s = te.create_schedule(C.op)
    AA = s.cache_read(A, "shared", readers=[C])
    CC = s.cache_write(C, "shared")
    s[AA].compute_at(s[CC], CC.op.axis[0])
    s = s.normalize()
    a, b = rand(6, 10), rand(6, 10, seed=3)
    return Script(s, [A, B, C], [a, b], [a * b])


@script
def cache_relayouts() -> Script:
    m, n = te.var("m"), te.var("n")
    A = te.placeholder((m * 4, n * 4), name="A")
    C = te.compute((m * 4, n * 4), lambda i, j: A(i, j) * 2, name="C")
    s = te.create_schedule(C.op)
    x, y = C.op.axis
    xo, xi = s[C].split(x, factor=4)
    yo, yi = s[C].split(y, factor=4)
    s[C].reorder(yo, xo, yi, xi)
    s[C].fuse(yo, xo)
    s.cache_write(C, "global")
    a = rand(8, 12)
    return Script(s, [A, m, n, C], [a, 2, 3], [a * 2])


@script
def cache_relayout_of_a_reduction() -> Script:
    m, n = 8, 12
    A, B = te.placeholder((m * 4, n), name="A"), te.placeholder((m * 4, n), name="B")
    k1, k2 = te.reduce_axis((0, n), "k1"), te.reduce_axis((0, 2), "k2")
    C = te.compute(
        (m * 4,),
        lambda i: te.sum(A[i, k1] * B[i, k1] * k2.var.astype("float32"), axis=[k1, k2]),
        name="C",
    )
    s = te.create_schedule(C.op)
    x = C.op.axis[0]
    xo, xi = s[C].split(x, factor=4)
    kpart1, kpart2 = s[C].split(k1, nparts=4)
    s[C].reorder(k2, xo, kpart2, xi, kpart1)
    CC = s.cache_write(C, "global")
    s[CC].vectorize(s[CC].op.axis[-1])
    a, b = rand(m * 4, n), rand(m * 4, n, seed=1)
    return Script(s, [A, B, C], [a, b], [(a * b).sum(1)])


@script
def cache_of_what_is_in_between() -> Script:
    m = 32
    A = te.placeholder((m,), name="A")
    B = te.compute((m,), lambda i: A[i] * 2, name="B")
    C = te.compute((m,), lambda i: B[i] + 1, name="C")
    D = te.compute((m,), lambda i: B[i] - C[i], name="D")
    s = te.create_schedule(D.op)
    BB = s.cache_read(B, "local", [C.op, D.op])
    BW = s.cache_write(B, "local")
    s[BW].compute_at(s[B], B.op.axis[0])
    outer, _ = s[D].split(D.op.axis[0], nparts=4)
    s[C].compute_at(s[D], outer)
    s[BB].compute_at(s[D], outer)
    a = rand(m)
    return Script(s, [A, D], [a], [np.full(m, -1, "float32")])


@script
def fuse_of_nothing() -> Script:
    n = 10
    X = te.placeholder(shape=(n,), dtype="int32", name="X")
    k = te.reduce_axis((0, n))
    Y = te.compute((), lambda: te.sum(X[k], k), name="Y")
    s = te.create_schedule([Y.op])
    ax = s[Y.op].fuse(*Y.op.axis)
    axo, _axi = s[Y.op].split(ax, nparts=20)
    s[Y.op].bind(axo, te.thread_axis("blockIdx.x"))
    x = rand(n, dtype="int32")
    return Script(s, [X, Y], [x], [x.sum(dtype="int32").reshape(())])


@script
def extents_of_triangles() -> Script:
    """A reduction up to the row: a triangular product."""
    n = 12
    L = te.placeholder((n, n), name="L")
    x = te.placeholder((n,), name="x")

    def row(i: Any) -> Any:
        k = te.reduce_axis((0, i + 1), "k")
        return te.sum(L[i, k] * x[k], axis=k)

    y = te.compute((n,), row, name="y")
    s = te.create_schedule(y.op)
    yl = s.cache_write(y, "local")
    outer, _ = s[y].split(y.op.axis[0], 4)
    s[yl].compute_at(s[y], outer)
    a, v = rand(n, n), rand(n)
    return Script(s, [L, x, y], [a, v], [np.tril(a) @ v])


@script
def extents_from_an_index() -> Script:
    """A sparse product by rows: where a row begins and ends is read."""
    rows, nnz, cols = 6, 14, 8
    indptr = te.placeholder((rows + 1,), "int32", name="indptr")
    indices = te.placeholder((nnz,), "int32", name="indices")
    data = te.placeholder((nnz,), name="data")
    dense = te.placeholder((4, cols), name="dense")

    def f(i: Any, row: Any) -> Any:
        start = indptr[row]
        elem = te.reduce_axis((0, indptr[row + 1] - start), name="elem")
        return te.sum(data[start + elem] * dense[i, indices[start + elem]], axis=elem)

    out = te.compute((4, rows), f, name="out", tag="sparse_dense_sp_rhs_csrmm")
    s = te.create_schedule(out.op)
    ptr = np.array([0, 3, 3, 5, 9, 10, 14], "int32")
    index = (np.arange(nnz) * 5 % cols).astype("int32")
    values, d = rand(nnz), rand(4, cols)
    full = np.zeros((rows, cols), "float32")
    for row in range(rows):
        for e in range(ptr[row], ptr[row + 1]):
            full[row, index[e]] += values[e]
    return Script(s, [data, indices, indptr, dense, out], [values, index, ptr, d], [d @ full.T])


@script
def extents_of_an_adaptive_pool() -> Script:
    """Windows whose ends are computed from the place, as in TOPI's adaptive pooling."""
    n, out = 10, 4
    X = te.placeholder((3, n), name="X")

    def start(i: Any) -> Any:
        return te.indexdiv(i * n, out)

    def end(i: Any) -> Any:
        return te.indexdiv((i + 1) * n + out - 1, out)

    def pool(c: Any, i: Any) -> Any:
        r = te.reduce_axis((0, end(i) - start(i)), name="r")
        return te.sum(X[c, start(i) + r], axis=r)

    S = te.compute((3, out), pool, name="S", tag="adaptive_pool_sum")
    Y = te.compute(
        (3, out), lambda c, i: S[c, i] / te.floor((end(i) - start(i)).astype("float32")), "Y"
    )
    s = te.create_schedule(Y.op)
    s[S].compute_at(s[Y], Y.op.axis[1])
    x = rand(3, n)
    parts = [x[:, i * n // out : -(-(i + 1) * n // out)].mean(1) for i in range(out)]
    return Script(s, [X, Y], [x], [np.stack(parts, 1)])


@script
def extents_of_two_axes() -> Script:
    n = 9
    X = te.placeholder((n, n), name="X")

    def box(i: Any, j: Any) -> Any:
        a, b = te.reduce_axis((0, i + 1), "a"), te.reduce_axis((j, n), "b")
        return te.max(X[a, b], axis=[a, b])

    Y = te.compute((n, n), box, name="Y")
    s = te.create_schedule(Y.op)
    io, _jo, ii, ji = s[Y].tile(*Y.op.axis, 4, 4)
    s[Y].parallel(io)
    s[Y].reorder(ii, ji, *s[Y].op.reduce_axis)
    x = rand(n, n)
    want = np.array([[x[: i + 1, j:].max() for j in range(n)] for i in range(n)])
    return Script(s, [X, Y], [x], [want])


@script
def group_inside_a_group() -> Script:
    m, n = 12, 10
    x = te.placeholder((m, n), name="x")
    x1 = te.compute(x.shape, lambda *i: x(*i) + 1, name="x1")
    x2 = te.compute(x.shape, lambda *i: x1(*i) + 2, name="x2")
    x3 = te.compute(x.shape, lambda *i: x2(*i) * 3, name="x3")
    x4 = te.compute(x.shape, lambda *i: x3(*i) * 2, name="x4")
    s = te.create_schedule(x4.op)
    g1 = s.create_group(outputs=x1, inputs=x)
    g2 = s.create_group(outputs=x3, inputs=x, include_inputs=True)
    assert [len(g.members) for g in (g1, g2)] == [1, 3]
    g2.compute_at(s[x4], x4.op.axis[0])
    a = rand(m, n)
    return Script(s, [x, x4], [a], [(a + 3) * 6])


@script
def rolling_buffer_of_rows() -> Script:
    A = te.placeholder((12, 12), name="A")
    P1 = te.compute((10, 12), lambda i, j: A[i, j] + A[i + 1, j] + A[i + 2, j], name="P1")
    P2 = te.compute((8, 12), lambda i, j: te.max(P1[i, j], P1[i + 2, j]), name="P2")
    s = te.create_schedule(P2.op)
    outer, _inner = s[P2].split(P2.op.axis[0], 1)
    s[P1].compute_at(s[P2], outer)
    s[P1].rolling_buffer()
    a = rand(12, 12)
    p = a[:-2] + a[1:-1] + a[2:]
    return Script(s, [A, P2], [a], [np.maximum(p[:-2], p[2:])])


@script
def double_buffer_of_a_copy() -> Script:
    n = 64
    A = te.placeholder((8, n), name="A")
    B = te.compute((8, n), lambda i, j: A[i, j] * 2, name="B")
    s = te.create_schedule(B.op)
    AA = s.cache_read(A, "local", [B])
    s[AA].compute_at(s[B], B.op.axis[0])
    s[AA].double_buffer()
    a = rand(8, n)
    return Script(s, [A, B], [a], [a * 2])


@script
def store_predicate_of_a_rfactor() -> Script:
    n = 64
    A = te.placeholder((16, n), name="A")
    k = te.reduce_axis((0, n), "k")
    B = te.compute((16,), lambda i: te.sum(A[i, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    ko, ki = s[B].split(B.op.reduce_axis[0], factor=16)
    BF = s.rfactor(B, ki)
    xo, xi = s[B].split(s[B].op.axis[0], factor=8)
    s[B].bind(xo, te.thread_axis("blockIdx.x"))
    s[B].bind(xi, te.thread_axis("threadIdx.y"))
    tx = te.thread_axis("threadIdx.x")
    s[B].bind(s[B].op.reduce_axis[0], tx)
    s[BF].compute_at(s[B], s[B].op.reduce_axis[0])
    s[B].set_store_predicate(tx.var.equal(0))
    assert ko is not None
    a = rand(16, n)
    return Script(s, [A, B], [a], [a.sum(1)])
