"""compute_at, compute_inline, compute_root, set_scope: places, goldens, refusals."""

from __future__ import annotations

from computations import Matmul, chain, matmul, row_sum
from refusals import refused

import tedsl as te
from tedsl.ir.nodes import Scope


def two_readers() -> tuple[Matmul, te.Tensor]:
    """C is read by D and by E; both are outputs."""
    m = matmul()
    E = te.compute((64, 48), lambda i, j: m.C[i, j] + m.D[i, j], name="E")
    return m, E


def test_compute_at(golden):
    m = matmul()
    s = te.create_schedule(m.D)
    _io, jo, _ii, _ji = s[m.D].tile(*s[m.D].op.axis, 16, 16)
    s[m.C].compute_at(s[m.D], jo)
    assert s[m.C].plan.scope is Scope.LOCAL
    golden(str(s))


def test_compute_at_inside_an_attached_stage(golden):
    c = chain(64, 64)
    E = te.compute((64, 64), lambda i, j: c.C[i, j] + 1.0, name="E")
    s = te.create_schedule(E)
    s[c.C].compute_at(s[E], s[E].op.axis[0])
    s[c.B].compute_at(s[c.C], s[c.C].op.axis[1])
    golden(str(s))


def test_compute_at_a_loop_that_encloses_all_readers(golden):
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.C].compute_at(s[c.D], j)
    s[c.B].compute_at(s[c.D], i)
    golden(str(s))


def test_compute_at_the_reader_of_an_inlined_stage(golden):
    c = chain(64)
    s = te.create_schedule(c.D)
    s[c.C].compute_inline()
    io, _ii = s[c.D].split(s[c.D].op.axis[0], 8)
    s[c.B].compute_at(s[c.D], io)
    golden(str(s))


def test_compute_at_a_reduce_loop(golden):
    X, _ = row_sum()
    Y = te.compute((8, 100), lambda i, j: X[i, j] * 2.0, name="Y")
    k = te.reduce_axis((0, 100), name="k")
    Z = te.compute((8,), lambda i: te.sum(Y[i, k], axis=k), name="Z")
    s = te.create_schedule(Z)
    ko, _ki = s[Z].split(k, 10)
    s[Y].compute_at(s[Z], ko)
    golden(str(s))


def test_compute_root(golden):
    m = matmul()
    s = te.create_schedule(m.D)
    s[m.C].compute_at(s[m.D], s[m.D].op.axis[0])
    s[m.C].compute_root()
    golden(str(s))


def test_compute_inline(golden):
    c = chain(64)
    s = te.create_schedule(c.D)
    s[c.B].compute_inline()
    s[c.C].compute_inline()
    golden(str(s))


def test_set_scope(golden):
    c = chain(64)
    s = te.create_schedule(c.D)
    s[c.C].set_scope("shared")
    s[c.C].compute_at(s[c.D], s[c.D].op.axis[0])
    assert s[c.C].plan.scope is Scope.SHARED
    s[c.C].set_scope("global")
    golden(str(s))


def test_legal_places():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    assert s[c.C].legal_places() == ((s[c.D], i), (s[c.D], j))
    assert s[c.B].legal_places() == ()
    assert s[c.D].legal_places() == ()
    assert s[c.A].legal_places() == ()
    s[c.C].compute_at(s[c.D], i)
    assert s[c.B].legal_places() == ((s[c.D], i),)
    s[c.D].vectorize(j)
    s[c.C].compute_root()
    assert s[c.C].legal_places() == ((s[c.D], i),)


def test_every_legal_place_is_accepted_and_no_other():
    m, E = two_readers()
    s = te.create_schedule(E)
    s[m.D].compute_at(s[E], s[E].op.axis[0])
    s[E].vectorize(s[E].op.axis[1])
    legal = {(place.name, axis) for place, axis in s[m.C].legal_places()}
    for stage in s.stages:
        for axis in stage.leaf_iter_vars:
            attempt = s.copy()
            try:
                attempt[m.C].compute_at(stage.name, axis)
            except te.ScheduleError:
                assert (stage.name, axis) not in legal
            else:
                assert (stage.name, axis) in legal


def test_refused_with_a_reader_outside():
    m, E = two_readers()
    s = te.create_schedule(E)
    with refused(
        s,
        "compute_at(C, at=D.j): C is also read by E, which runs outside the loop D.j",
        "readers D with loops [i, j]; E with loops [i, j]",
        "legal   root",
        "leave C at root, or first attach E inside D so that one loop encloses all readers",
    ):
        s[m.C].compute_at(s[m.D], s[m.D].op.axis[1])


def test_refused_where_nothing_reads():
    c = chain(64)
    F = te.compute((64,), lambda i: c.D[i] + 1.0, name="F")
    s = te.create_schedule(F)
    with refused(
        s,
        "compute_at(C, at=F.i): nothing inside the loop F.i reads C; it is read by D",
        "legal   root, inline, D.i0",
        "attach C at a loop of D",
    ):
        s[c.C].compute_at(s[F], s[F].op.axis[0])


def test_refused_consumer_under_a_producers_loop():
    m = matmul()
    F = te.compute((64, 48), lambda i, j: m.D[i, j] + 1.0, name="F")
    s = te.create_schedule(F)
    with refused(s, "nothing inside the loop C.k reads D; it is read by F", "legal   root, inline"):
        s[m.D].compute_at(s[m.C], s[m.C].op.reduce_axis[0])


def test_refused_outputs():
    c = chain(64)
    s = te.create_schedule([c.D, c.C])
    for call in (
        lambda: s[c.C].compute_at(s[c.D], s[c.D].op.axis[0]),
        lambda: s[c.C].compute_inline(),
    ):
        with refused(s, "C is an output of the schedule and stays at root", "s.cache_write(C"):
            call()
    with refused(s, "C is an output of the schedule and lives in device memory", "cache_write"):
        s[c.C].set_scope("local")


def test_refused_inputs():
    c = chain(64)
    s = te.create_schedule(c.D)
    with refused(s, "A is an input of the computation", "s.cache_read(A, scope, readers)"):
        s[c.A].compute_at(s[c.B], s[c.B].op.axis[0])
    with refused(s, "A is an input of the computation"):
        s[c.A].compute_inline()


def test_refused_targets():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, _j = s[c.D].op.axis
    with refused(s, "compute_at(C, at=C.i0): C cannot be computed inside itself", "legal   root"):
        s[c.C].compute_at(s[c.C], s[c.C].op.axis[0])
    with refused(s, "i0 is an axis of C, not of D"):
        s[c.B].compute_at(s[c.D], s[c.C].op.axis[0])
    _io, _ii = s[c.D].split(i, 8)
    with refused(s, "i0 is no loop of D any more: it has been split into i0.outer, i0.inner"):
        s[c.C].compute_at(s[c.D], i)
    s[c.C].compute_inline()
    with refused(s, "C is inlined into its readers and has no loops", "schedule its readers"):
        s[c.B].compute_at(s[c.C], s[c.C].op.axis[0])


def test_refused_vectorized_places():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, _ = s[c.D].op.axis
    s[c.D].vectorize(i)
    with refused(
        s, "D.i0 is vectorized: its lanes run at once", "attach C at a loop of D that is not"
    ):
        s[c.C].compute_at(s[c.D], i)


def test_lanes_run_inside_every_loop():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.D].vectorize(i)
    s[c.C].compute_at(s[c.D], j)
    assert s[c.D].plan.loop_order[0] is j


def test_refused_between_the_loops_of_the_grid():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.D].bind(i, "blockIdx.y")
    s[c.D].bind(j, "blockIdx.x")
    with refused(
        s,
        "D.i0 is outside i1, which is bound to the grid: nothing runs between",
        "legal   root, inline, D.i1",
        "attach C at i1",
    ):
        s[c.C].compute_at(s[c.D], i)


def test_refused_binding_inside_an_attach_point():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.D].bind(i, "blockIdx.y")
    s[c.C].compute_at(s[c.D], i)
    with refused(s, "bind(D.i1", "C is attached at D.i0", "nothing runs between", "first move C"):
        s[c.D].bind(j, "blockIdx.x")


def test_refused_kernels_inside_kernels():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    s[c.C].bind(s[c.C].op.axis[0], "blockIdx.x")
    with refused(s, "C.i0 is bound to the grid, and only a kernel of its own", "s[C].serial(i0)"):
        s[c.C].compute_at(s[c.D], s[c.D].op.axis[0])
    s[c.C].serial(s[c.C].op.axis[0])
    s[c.C].launch(num_warps=4)
    with refused(s, "C has launch options, and only a kernel of its own", "call launch on the"):
        s[c.C].compute_at(s[c.D], s[c.D].op.axis[0])


def test_refused_before_the_reduction_begins():
    X = te.placeholder((8, 100), name="X")
    P = te.compute((8,), lambda i: X[i, 0] * 2.0, name="P")
    k = te.reduce_axis((0, 100), name="k")
    S = te.compute((8,), lambda i: te.sum(X[i, k], axis=k, init=P[i]), name="S")
    s = te.create_schedule(S)
    with refused(
        s,
        "the init of S reads P before the reduce loop k, which encloses the attach point",
        "legal   root, inline, S.i",
        "outside k",
    ):
        s[P].compute_at(s[S], k)
    s[P].compute_at(s[S], s[S].op.axis[0])


def test_refused_inlining():
    m = matmul()
    s = te.create_schedule(m.D)
    with refused(s, "C is a reduction and cannot be substituted", "legal   root, D.i, D.j"):
        s[m.C].compute_inline()
    A = te.placeholder((4,), name="A")
    P, Q = te.compute((4,), lambda i: (A[i] + 1.0, A[i] * 2.0), name="P")
    R = te.compute((4,), lambda i: P[i] + Q[i], name="R")
    t = te.create_schedule(R)
    with refused(t, "P has 2 outputs, which are computed together", "legal   root, R.i"):
        t[P].compute_inline()


def test_refused_inlining_a_stage_with_guests():
    c = chain(64)
    E = te.compute((64,), lambda i: c.C[i] + 1.0, name="E")
    s = te.create_schedule(E)
    s[c.B].compute_at(s[c.C], s[c.C].op.axis[0])
    with refused(s, "B is attached at C.i0, a loop that would be gone", "first move B"):
        s[c.C].compute_inline()


def test_refused_leaving_an_enclosing_loop():
    c = chain(64)
    s = te.create_schedule(c.D)
    (i,) = s[c.D].op.axis
    s[c.C].compute_at(s[c.D], i)
    s[c.B].compute_at(s[c.D], i)
    with refused(
        s,
        "compute_root(C): B is attached at D.i0, and would no longer be at a legal place",
        "B is also read by C, which runs outside the loop D.i0",
        "readers C with loops [i0]; D with loops [i0]",
        "first move B",
    ):
        s[c.C].compute_root()


def test_refused_scopes():
    c = chain(64)
    s = te.create_schedule(c.D)
    with refused(s, "unknown scope 'texture'", "allowed global, local, shared"):
        s[c.C].set_scope("texture")
    s[c.C].compute_inline()
    with refused(s, "C is inlined into its readers, no result of it is kept", "compute_at first"):
        s[c.C].set_scope("local")
