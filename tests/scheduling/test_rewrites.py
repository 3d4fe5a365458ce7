"""cache_read, recompute, cache_write, rfactor: rewritten graphs, goldens, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from computations import argmax, chain, matmul, row_sum
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.ir.nodes import Scope


def test_cache_read(golden):
    m = matmul()
    s = te.create_schedule(m.D)
    io, ii = s[m.C].split(s[m.C].op.axis[0], 8)
    old = m.C
    copy = s.cache_read(m.A, "shared", [m.C])
    assert s[copy].name == "A.shared"
    assert s[copy].plan.scope is Scope.SHARED
    assert s[old].name == "C"
    assert s[old].op is not old.op
    assert s[old].leaf_iter_vars[:2] == (io, ii)
    s[copy].compute_at(s[m.C], ii)
    golden(str(s))


def test_cache_read_of_some_readers(golden):
    c = chain(64)
    s = te.create_schedule(c.D)
    s.cache_read(c.B, "local", c.D)
    golden(str(s))


def test_cache_read_twice_gives_other_names():
    c = chain(64)
    s = te.create_schedule(c.D)
    first = s.cache_read(c.B, "local", c.D)
    second = s.cache_read(c.B, "local", [c.C])
    assert [s[first].name, s[second].name] == ["B.local", "B.local_1"]


def test_cache_read_beside_an_attached_stage():
    c = chain(64)
    s = te.create_schedule(c.D)
    (i,) = s[c.D].op.axis
    s[c.C].compute_at(s[c.D], i)
    s[c.B].compute_at(s[c.D], i)
    copy = s.cache_read(c.B, "local", [c.C, c.D])
    assert s[copy].plan.placement.axis is i


def test_recompute(golden):
    c = chain(64)
    s = te.create_schedule(c.D)
    s[c.B].split(s[c.B].op.axis[0], 8)
    again = s.recompute(c.B, [c.D])
    assert s[again].name == "B.again"
    s[again].compute_at(s[c.D], s[c.D].op.axis[0])
    golden(str(s))


def test_a_reduction_computed_twice_has_axes_of_its_own():
    m = matmul()
    both = te.compute(m.C.shape, lambda i, j: m.C[i, j] * 2.0, name="E")
    s = te.create_schedule([m.D, both])
    (k,) = s[m.C].op.reduce_axis
    again = s.recompute(m.C, both)
    (own,) = s[again].op.reduce_axis
    assert own is not k and own.domain is k.domain
    s[again].split(own, 4)
    assert any(axis is k for axis in s[m.C].leaf_iter_vars)


def test_an_output_may_be_computed_again_for_all_its_readers():
    c = chain(64)
    s = te.create_schedule([c.B, c.D])
    s.recompute(c.B, [c.C, c.D])
    assert [stage.name for stage in s.stages] == ["A", "B", "B.again", "C", "D"]


def test_what_one_pass_repairs_is_computed_again_of_what_is_complete():
    """The copy has no statistic that runs, and nothing to repair."""
    x = te.placeholder((5, 7), name="x")
    k, m = te.reduce_axis((0, 7)), te.reduce_axis((0, 7))
    top = te.compute((5,), lambda i: te.max(x[i, m], axis=m), name="top")
    total = te.compute((5,), lambda i: te.sum(te.exp(x[i, k] - top[i]), axis=k), name="total")
    y = te.compute((5, 7), lambda i, j: te.exp(x[i, j] - top[i]) / total[i], name="y")
    s = te.create_schedule([y, total])
    s[total].online(s[total].op.reduce_axis[0])
    again = s[s.recompute(total, [y])]
    assert "repair" in str(s[total].op) and "repair" not in str(again.op)
    agrees(s)


def test_refused_recompute():
    c = chain(64)
    s = te.create_schedule(c.D)
    with refused(s, "C, D are all that read B", "readers C, D", "name some of its readers"):
        s.recompute(c.B, [c.C, c.D])
    with refused(s, "A is no stage of te.compute", "s.cache_read"):
        s.recompute(c.A, [c.B])
    with refused(s, "no reader is given"):
        s.recompute(c.B, [])


def test_cache_write(golden):
    m = matmul()
    s = te.create_schedule(m.D)
    axes, (k,) = s[m.C].op.axis, s[m.C].op.reduce_axis
    s[m.C].pipeline(k, 2)
    cache = s.cache_write(m.C, "local")
    assert s[cache].name == "C.local"
    assert s[cache].op.reduce_axis == (k,)
    assert s[cache].plan.mark(k).num_stages == 2
    assert s[m.C].op.axis == axes
    assert s[m.C].op.reduce_axis == ()
    s[cache].compute_at(s[m.C], s[m.C].op.axis[0])
    golden(str(s))


def test_cache_write_of_an_output(golden):
    m = matmul()
    s = te.create_schedule(m.C)
    cache = s.cache_write(m.C, "local")
    assert s.outputs == (s[m.C].op.outputs[0],)
    _io, jo, _ii, _ji = s[m.C].tile(*s[m.C].op.axis, 16, 16)
    s[cache].compute_at(s[m.C], jo)
    golden(str(s))


def test_cache_write_follows_the_order_of_loops(golden):
    m = matmul()
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    s[m.C].reorder(j, k, i)
    s.cache_write(m.C, "global")
    golden(str(s))


def test_cache_write_of_several_outputs(golden):
    index, value = argmax()
    s = te.create_schedule([index, value])
    caches = s.cache_write([index, value], "local")
    assert [tensor.name for tensor in caches] == ["M.local.v0", "M.local.v1"]
    golden(str(s))


def test_rfactor(golden):
    _X, B = row_sum()
    s = te.create_schedule(B)
    axes = s[B].op.axis
    _ko, ki = s[B].split(s[B].op.reduce_axis[0], 16)
    partial = s.rfactor(B, ki)
    assert s[partial].name == "B.rf"
    assert s[B].op.axis == axes
    assert [axis.name for axis in s[B].op.reduce_axis] == ["k.inner.v"]
    golden(str(s))


def test_rfactor_of_the_only_reduce_axis(golden):
    _X, B = row_sum()
    s = te.create_schedule(B)
    s.rfactor(B, s[B].op.reduce_axis[0], factor_axis=-1)
    golden(str(s))


def test_rfactor_keeps_where_and_init(golden):
    X = te.placeholder((8, 100), name="X")
    P = te.placeholder((8,), name="P")
    k = te.reduce_axis((3, 100), name="k")
    r = te.reduce_axis((0, 4), name="r")
    S = te.compute(
        (8,),
        lambda i: te.sum(X[i, k] * r, axis=[k, r], where=X[i, k] > 0.0, init=P[i]),
        name="S",
    )
    F = te.compute((8,), lambda i: S[i] * 2.0, name="F")
    s = te.create_schedule(F)
    _ko, ki = s[S].split(k, nparts=10)
    kio, _kii = s[S].split(ki, 3)
    s.rfactor(S, kio, 1)
    golden(str(s))


def test_rfactor_of_fused_loops(golden):
    X = te.placeholder((8, 10, 12), name="X")
    k, r = te.reduce_axis((0, 10), name="k"), te.reduce_axis((0, 12), name="r")
    S = te.compute((8,), lambda i: te.max(X[i, k, r], axis=[k, r]), name="S")
    s = te.create_schedule(S)
    outer, _inner = s[S].split(s[S].fuse(k, r), 7)
    s.rfactor(S, outer)
    golden(str(s))


def test_rfactor_of_a_tuple(golden):
    index, value = argmax()
    s = te.create_schedule([index, value])
    ko, _ki = s[index].split(s[index].op.reduce_axis[0], 16)
    partial = s.rfactor(value, ko)
    assert [tensor.name for tensor in partial] == ["M.rf.v0", "M.rf.v1"]
    golden(str(s))


def test_rfactor_of_a_symbolic_extent(golden):
    n = te.size_var("n")
    _X, B = row_sum(8, n)
    s = te.create_schedule(B)
    ko, _ki = s[B].split(s[B].op.reduce_axis[0], 128)
    s.rfactor(B, ko)
    golden(str(s))


def test_rfactor_of_an_attached_stage_is_attached():
    m = matmul()
    s = te.create_schedule(m.D)
    (i, _) = s[m.D].op.axis
    s[m.C].compute_at(s[m.D], i)
    _ko, ki = s[m.C].split(s[m.C].op.reduce_axis[0], 8)
    partial = s.rfactor(m.C, ki)
    assert s[partial].plan.placement.axis is i
    assert s[m.C].plan.placement.axis is i


def test_refused_cache_read():
    c = chain(64)
    s = te.create_schedule(c.D)
    with refused(s, 'cache_read(A, "local", [D]): D does not read A', "readers B", "that read A"):
        s.cache_read(c.A, "local", [c.D])
    with refused(s, "no reader is given", "readers C, D", "name stages that read B"):
        s.cache_read(c.B, "local", [])
    with refused(s, "the reader C is given twice", "readers C, D"):
        s.cache_read(c.B, "local", [c.C, c.C])
    with refused(s, "unknown scope 'texture'", "allowed global, local, shared"):
        s.cache_read(c.B, "texture", [c.C])
    other = te.placeholder((4,), name="other")
    with refused(s, "cache_read: other is not part of the schedule", "stages  A, B, C, D"):
        s.cache_read(other, "local", [c.C])


def test_refused_cache_write():
    m = matmul()
    s = te.create_schedule(m.D)
    with refused(s, "A is an input of the computation, nothing writes it", "s.cache_read"):
        s.cache_write(m.A, "local")
    with refused(s, "no tensor is given", "te.compute returned"):
        s.cache_write([], "local")
    with refused(s, "the tensors are not outputs of one operation", "outputs C", "each once"):
        s.cache_write([m.C, m.D], "local")
    with refused(s, "unknown scope 'texture'"):
        s.cache_write(m.C, "texture")
    t = s.copy()
    t[m.C].unroll(t[m.C].split(t[m.C].op.axis[0], 4)[1])
    with refused(t, "i.inner is marked, and becomes a dimension", "before bind, vectorize and"):
        t.cache_write(m.C, "local")
    c = chain(64)
    u = te.create_schedule(c.D)
    u[c.C].compute_inline()
    with refused(u, "C is inlined into its readers", "s[C].compute_root()"):
        u.cache_write(c.C, "local")
    u[c.B].compute_at(u[c.D], u[c.D].op.axis[0])
    with refused(
        u, "B is attached at D.i0, a loop that this call rebuilds", "before s[B].compute_at"
    ):
        u.cache_write(c.D, "local")


def test_refused_cache_write_of_one_output_of_two():
    index, value = argmax()
    s = te.create_schedule([index, value])
    with refused(s, "M has 2 outputs, which are computed together", "outputs M.v0, M.v1"):
        s.cache_write(index, "local")


def test_refused_rfactor():
    m = matmul()
    s = te.create_schedule(m.D)
    i, _j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    with refused(s, "D is no reduction", "te.sum, te.max"):
        s.rfactor(m.D, s[m.D].op.axis[0])
    with refused(s, "rfactor(C, axis=C.i): i is a data axis", "reduce  k", "name a reduce loop"):
        s.rfactor(m.C, i)
    with refused(s, "factor_axis is 3", "allowed -3 .. 2", "dimension of the new tensor"):
        s.rfactor(m.C, k, 3)
    with refused(s, "factor_axis is 'x' of type str"):
        s.rfactor(m.C, k, "x")  # pyright: ignore[reportArgumentType]
    t = s.copy()
    t[m.C].unroll(k)
    with refused(t, "k is unrolled, and the loops of C are rebuilt", "s[C].serial(k)"):
        t.rfactor(m.C, k)


def test_refused_rfactor_with_guests():
    X, _ = row_sum()
    Y = te.compute((8, 100), lambda i, j: X[i, j] * 2.0, name="Y")
    k = te.reduce_axis((0, 100), name="k")
    Z = te.compute((8,), lambda i: te.sum(Y[i, k], axis=k), name="Z")
    s = te.create_schedule(Z)
    s[Y].compute_at(s[Z], k)
    with refused(s, "Y is attached at Z.k, a loop that this call rebuilds", "before s[Y]"):
        s.rfactor(Z, k)


def test_refused_rfactor_of_a_reducer_with_an_order():
    index, value = argmax(keep_first=False)
    s = te.create_schedule([index, value])
    (k,) = s[index].op.reduce_axis
    for consent in (False, True):
        with refused(s, "reducer argmax of M is not associative", "because x=", "leave M as it is"):
            s.rfactor(index, k, consent=consent)


def test_rfactor_by_consent():
    def combine(x, y):
        total = te.max(x[1] + y[1], 1.0)
        return (x[0] * x[1] + y[0] * y[1]) / total, x[1] + y[1]

    mean = te.comm_reducer(combine, lambda a, b: (te.const(0, a), te.const(0, b)), name="mean")
    X = te.placeholder((8, 100), name="X")
    k = te.reduce_axis((0, 100), name="k")
    one = te.const(1.0, "float32")
    means: Any = te.compute((8,), lambda i: mean((X[i, k], one), axis=k), name="M")
    average = means[0]
    s = te.create_schedule(average.op)
    with refused(s, "reducer mean of M is not known", "because", "pass consent=True"):
        s.rfactor(average, k)
    s.rfactor(average, k, consent=True)


def test_stale_axes_after_rfactor():
    _X, B = row_sum()
    s = te.create_schedule(B)
    ko, ki = s[B].split(s[B].op.reduce_axis[0], 16)
    s.rfactor(B, ki)
    with refused(s, "k.outer was an axis of B until rfactor rebuilt it", "fetch the axes again"):
        s[B].unroll(ko)


def test_moved_axes_after_cache_write():
    m = matmul()
    s = te.create_schedule(m.C)
    (old,) = s[m.C].op.reduce_axis
    s.cache_write(m.C, "local")
    with refused(s, "k is an axis of C.local, not of C", "or call this on s[C.local]"):
        s[m.C].unroll(old)


@pytest.mark.parametrize("scope", ["local", "global"])
def test_rewrites_keep_earlier_handles(scope):
    m = matmul()
    s = te.create_schedule(m.D)
    before = m.C, m.D
    s.cache_read(m.A, scope, [m.C])
    cache = s.cache_write(m.C, scope)
    s.rfactor(cache, s[cache].op.reduce_axis[0])
    assert [s[tensor].name for tensor in before] == ["C", "D"]
    assert s.plan.outputs[0] is s[m.D].op.outputs[0]


def test_cache_write_of_split_loops_keeps_64_bits():
    """The cache has the index type of the loops that it is laid out by."""
    n = te.size_var("n", "int64")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b)
    s[b].split(s[b].op.axis[0], 2)
    s.cache_write(b, "local")
    te.lower(s, target="cpu", check=True)
    assert agrees(s, {n: 5}, targets=("cpu",))
