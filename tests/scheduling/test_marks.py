"""bind, vectorize, unroll, parallel, pipeline, serial, dot, pragma, launch."""

from __future__ import annotations

import pytest
from computations import argmax, chain, matmul, row_sum
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.ir.nodes import LoopKind, Precision, Products


def test_bind(golden):
    m = matmul()
    s = te.create_schedule(m.D)
    io, jo, ii, ji = s[m.D].tile(*s[m.D].op.axis, 16, 16)
    s[m.D].bind(io, "blockIdx.y")
    s[m.D].bind(jo, te.program_id(0))
    s[m.D].bind(ii, te.thread_axis("threadIdx.y"))
    s[m.D].bind(ji, te.thread_axis((0, 16), "threadIdx.x"))
    assert [s[m.D].plan.mark(a).program for a in (io, jo)] == [1, 0]
    assert s[m.D].plan.mark(ii).kind is LoopKind.VECTORIZED
    golden(str(s))


def test_one_thread_axis_serves_several_stages():
    c = chain(64)
    s = te.create_schedule(c.D)
    thread = te.thread_axis("blockIdx.x")
    for tensor in (c.B, c.C, c.D):
        s[tensor].bind(s[tensor].op.axis[0], thread)
        assert s[tensor].plan.mark(s[tensor].op.axis[0]).program == 0


def test_vectorize(golden):
    _X, B = row_sum()
    s = te.create_schedule(B)
    s[B].vectorize(s[B].op.axis[0])
    _ko, ki = s[B].split(s[B].op.reduce_axis[0], 16)
    s[B].vectorize(ki)
    golden(str(s))


def test_unroll_parallel_pipeline(golden):
    m = matmul()
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    s[m.C].parallel(i)
    s[m.C].unroll(j)
    s[m.C].pipeline(k, num_stages=4, flatten=True)
    mark = s[m.C].plan.mark(k)
    assert (mark.kind, mark.num_stages, mark.flatten) == (LoopKind.SERIAL, 4, True)
    golden(str(s))


def test_serial(golden):
    c = chain(64)
    s = te.create_schedule(c.D)
    (i,) = s[c.D].op.axis
    s[c.D].parallel(i)
    s[c.D].serial(i)
    s[c.D].vectorize(i)
    golden(str(s))


def test_dot(golden):
    m = matmul()
    s = te.create_schedule(m.C)
    (k,) = s[m.C].op.reduce_axis
    s[m.C].dot(k, precision="tf32")
    s[m.C].pipeline(k)
    assert s[m.C].plan.mark(k).products == Products(Precision.TF32)
    golden(str(s))


def test_pragma(golden):
    c = chain(8, 8)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.D].pragma(i, "unroll")
    s[c.D].pragma(j, "vectorize")
    golden(str(s))


def test_launch(golden):
    c = chain(8)
    s = te.create_schedule(c.D)
    s[c.D].launch(num_warps=8)
    s[c.D].launch(num_stages=2, maxnreg=128)
    golden(str(s))


def test_refused_bind():
    m = matmul()
    s = te.create_schedule(m.D)
    i, j = s[m.D].op.axis
    with refused(s, "unknown thread 'warpIdx'", "allowed blockIdx.x", "as thread"):
        s[m.D].bind(i, "warpIdx")
    s[m.D].bind(i, "blockIdx.x")
    with refused(s, "i and j are both bound to blockIdx.x", "fuse i and j before binding"):
        s[m.D].bind(j, "blockIdx.x")
    with refused(s, "i is already bound to blockIdx.x", "s[D].serial(i)"):
        s[m.D].vectorize(i)
    with refused(s, "j has the extent 48, threadIdx.x was declared with 32", "split j by 32"):
        s[m.D].bind(j, te.thread_axis(32, "threadIdx.x"))
    s[m.C].compute_at(s[m.D], i)
    with refused(s, "C is computed inside the kernel of D, so its loops", "call this on s[D]"):
        s[m.C].bind(s[m.C].op.axis[0], "blockIdx.x")


@pytest.mark.parametrize("how", ["parallel", "grid"])
def test_refused_races(how):
    _X, B = row_sum()
    s = te.create_schedule(B)
    (k,) = s[B].op.reduce_axis
    with refused(
        s,
        "k is a reduce axis: its iterations write the same elements of B",
        "is a race",
        "s.rfactor(B, k)",
    ):
        s[B].parallel(k) if how == "parallel" else s[B].bind(k, "blockIdx.x")


def test_refused_lanes_of_unknown_number():
    n = te.size_var("n")
    c = chain(n)
    s = te.create_schedule(c.D)
    (i,) = s[c.D].op.axis
    with refused(s, "the extent of i0 is not a constant", "split(i0, factor=32)"):
        s[c.D].vectorize(i)
    with refused(s, "the extent of i0 is not a constant", "vectorize inner"):
        s[c.D].bind(i, "threadIdx.x")
    io, ii = s[c.D].split(i, 32)
    s[c.D].vectorize(ii)
    with refused(s, "the extent of i0.outer is not a constant"):
        s[c.D].vectorize(io)


def test_lanes_of_an_attached_stage_are_those_of_its_region():
    n = te.size_var("n")
    c = chain(n)
    s = te.create_schedule(c.D)
    io, _ii = s[c.D].split(s[c.D].op.axis[0], 32)
    s[c.C].compute_at(s[c.D], io)
    s[c.C].vectorize(s[c.C].op.axis[0])
    with refused(
        s,
        "compute_root(C): C.i0 is vectorized, and its extent would no longer be a constant",
        "s[C].serial(i0)",
    ):
        s[c.C].compute_root()


def test_refused_lanes_of_a_reducer_with_an_order():
    index, value = argmax(keep_first=False)
    s = te.create_schedule([index, value])
    (k,) = s[index].op.reduce_axis
    with refused(
        s,
        "the reducer argmax of M is not associative and commutative",
        "because x=",
        "keep the loop serial, or write the combination so that equal values are told apart",
    ):
        s[index].vectorize(k)


def test_lanes_of_a_proved_reducer():
    index, value = argmax(keep_first=True)
    s = te.create_schedule([index, value])
    (k,) = s[index].op.reduce_axis
    s[index].vectorize(k)
    assert s[index].plan.mark(k).kind is LoopKind.VECTORIZED


def test_refused_marks_over_marks():
    c = chain(8, 8)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.D].pipeline(i)
    with refused(s, "i0 is already pipelined in 3 stages", "s[D].serial(i0)"):
        s[c.D].parallel(i)
    s[c.D].unroll(j)
    with refused(s, "i1 is already unrolled", "s[D].serial(i1)"):
        s[c.D].pipeline(j)


def test_the_grid_is_outside_all_other_loops():
    """Whatever the order of the calls: a loop that is bound moves out, one that is not stays in."""
    c = chain(8, 8)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.C].compute_at(s[c.D], i)
    s[c.D].bind(j, "blockIdx.y")
    assert [axis is j for axis in s[c.D].leaf_iter_vars] == [True, False]
    s[c.D].reorder(i, j)
    assert [axis is j for axis in s[c.D].leaf_iter_vars] == [True, False]
    assert s[c.C].attach_ivar is i and agrees(s)
    s[c.D].bind(i, "blockIdx.x")
    s[c.D].serial(j)
    assert [axis is j for axis in s[c.D].leaf_iter_vars] == [False, True]
    assert agrees(s)


def test_once_more_is_as_once():
    c = chain(8, 8)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    for _ in range(2):
        s[c.D].vectorize(j)
        s[c.D].parallel(i)
        s[c.C].unroll(s[c.C].op.axis[0])
    assert agrees(s)


def test_what_is_computed_by_each_thread_is_computed_outside_the_threads():
    c = chain(64)
    s = te.create_schedule(c.D)
    io, ii = s[c.D].split(s[c.D].op.axis[0], 16)
    s[c.C].compute_at(s[c.D], ii)
    s[c.D].bind(io, "blockIdx.x")
    s[c.D].bind(ii, "threadIdx.x")
    assert s[c.C].attach_ivar is io
    s[c.B].compute_at(s[c.D], ii)
    assert s[c.B].attach_ivar is io and agrees(s)
    s = te.create_schedule(c.D)
    (i,) = s[c.D].op.axis
    s[c.D].bind(i, "threadIdx.x")
    s[c.C].compute_at(s[c.D], i)
    unit = s[c.C].attach_ivar
    assert unit is s[c.D].leaf_iter_vars[0] and unit is not i and agrees(s)


def test_refused_options():
    m = matmul()
    s = te.create_schedule(m.C)
    _i, j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    with refused(s, "num_stages is 0", "an int of at least 1"):
        s[m.C].pipeline(k, 0)
    with refused(s, "j is a data axis; the precision is that of a sum", "name a reduce axis of C"):
        s[m.C].dot(j, "tf32")
    with refused(s, "unknown precision 'bf16'", "allowed ieee, tf32, tf32x3"):
        s[m.C].dot(k, "bf16")
    with refused(
        s, "unknown pragma 'fast'", "allowed unroll, vectorize, parallel, auto_unroll_max_step"
    ):
        s[m.C].pragma(k, "fast")
    with refused(s, "num_warps is 3", "allowed 1, 2, 4, 8, 16, 32", "power of two"):
        s[m.C].launch(num_warps=3)
    with refused(s, "maxnreg is 0", "at least 1"):
        s[m.C].launch(maxnreg=0)


def test_refused_launch_of_an_attached_stage():
    m = matmul()
    s = te.create_schedule(m.D)
    s[m.C].compute_at(s[m.D], s[m.D].op.axis[0])
    with refused(s, "C is computed inside the kernel of D, so it has no launch", "on s[D]"):
        s[m.C].launch(num_warps=4)


def test_refused_vectorizing_around_an_attach_point():
    m = matmul()
    s = te.create_schedule(m.D)
    i, j = s[m.D].op.axis
    s[m.C].compute_at(s[m.D], j)
    with refused(s, "C is attached at D.j, and would no longer be", "D.j is vec", "first move C"):
        s[m.D].vectorize(j)
    s[m.D].vectorize(i)
