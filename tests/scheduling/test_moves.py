"""reverse_compute_at, reverse_compute_inline, decompose_reduction: goldens, refusals, numbers."""

from __future__ import annotations

from typing import Any

import pytest
from computations import argmax, chain, matmul, row_sum
from lowering import agrees
from refusals import refused
from replays import replays

import tedsl as te


def tiled_product(m: Any, n: Any) -> tuple[te.Schedule, Any, Any]:
    """A matrix product by tiles, bound to the grid, with an epilogue at root."""
    product = matmul(m, n, 16)
    s = te.create_schedule(product.D)
    stage = s[product.C]
    io, jo, ii, ji = stage.tile(*stage.op.axis, 16, 16)
    ko, ki = stage.split(stage.op.reduce_axis[0], 8)
    stage.reorder(io, jo, ko, ki, ii, ji)
    block = stage.fuse(io, jo)
    stage.bind(block, "blockIdx.x")
    stage.launch(num_warps=4)
    return s, product, (block, ko, ii, ji)


def test_epilogue(golden):
    s, m, (block, ko, _ii, ji) = tiled_product(33, 20)
    s[m.D].reverse_compute_at(s[m.C], block)
    s[m.C].vectorize(ji)
    s[m.C].pipeline(ko, 2)
    assert s[m.D].plan.placement.kernel.launch.num_warps == 4
    assert s[m.C].plan.placement.host == "D"
    golden(str(s))
    assert agrees(s, bound=1e-4)
    assert replays(s, m.D)


def test_epilogue_of_symbolic_sizes():
    n = te.size_var("n")
    s, m, (block, *_) = tiled_product(n, 20)
    s[m.D].reverse_compute_at(s[m.C], block)
    for size in (0, 1, 17):
        assert agrees(s, {n: size}, bound=1e-4)


def test_number_of_parts():
    m = matmul(60, 44, 8)
    s = te.create_schedule(m.D)
    io, ii = s[m.C].split(s[m.C].op.axis[0], nparts=7)
    s[m.D].reverse_compute_at(s[m.C], io)
    assert s[m.C].axis("i.inner") is ii
    assert agrees(s, targets=("cpu",), bound=1e-4)
    assert replays(s, m.D)


def test_reader_of_a_permutation(golden):
    A = te.placeholder((9, 7), name="A")
    B = te.compute((9, 7), lambda i, j: A[i, j] + 1, name="B")
    k = te.reduce_axis((0, 7), name="k")
    C = te.compute((3, 9), lambda x, y: te.sum(B[y, k] * B[y, k] + x, axis=k), name="C")
    s = te.create_schedule(C)
    io, _ = s[B].split(s[B].op.axis[0], 4)
    s[B].parallel(io)
    s[C].reverse_compute_at(s[B], io)
    golden(str(s))
    assert agrees(s, targets=("cpu",))


def test_shared_loops_reads_through_an_inlined_stage():
    c = chain(40)
    s = te.create_schedule(c.D)
    s[c.C].compute_inline()
    o, _ = s[c.B].split(s[c.B].op.axis[0], 16)
    s[c.D].reverse_compute_at(s[c.B], o)
    assert agrees(s)


def test_reverse_compute_at_refusals():
    s, m, (block, ko, ii, _ji) = tiled_product(64, 48)
    with refused(
        s,
        "D would run inside C.k.outer, a reduce loop: at k.outer = 0 C[0, 0] holds the terms of 1 "
        "of its 2 iterations, not the result",
        "legal   C.i.outer.j.outer.fused",
    ):
        s[m.D].reverse_compute_at(s[m.C], ko)
    with refused(s, "a reduce loop"):
        s[m.D].reverse_compute_at(s[m.C], ii)
    with refused(s, "C does not read D", "readers none"):
        s[m.C].reverse_compute_at(s[m.D], s[m.D].op.axis[0])
    with refused(s, "D does not read itself"):
        s[m.D].reverse_compute_at(s[m.D], s[m.D].op.axis[0])
    s[m.D].split(s[m.D].op.axis[0], 4)
    with refused(s, "D.i has been split or fused", "before scheduling D"):
        s[m.D].reverse_compute_at(s[m.C], block)


def test_reverse_compute_at_needs_one_axis_for_each_dimension():
    A = te.placeholder((9, 9), name="A")
    B = te.compute((9, 9), lambda i, j: A[i, j] + 1, name="B")
    C = te.compute((8, 9), lambda i, j: B[i, j] + B[i + 1, j], name="C")
    s = te.create_schedule(C)
    with refused(
        s,
        "C reads B[i + 1, j], so that an iteration of its loops needs other iterations of B.i",
        "reads   B[i, j]; B[i + 1, j]",
        "use s[B].compute_at",
    ):
        s[C].reverse_compute_at(s[B], s[B].op.axis[0])
    D = te.compute((9,), lambda i: B[i, i], name="D")
    s = te.create_schedule(D)
    with refused(s, "D reads two dimensions of B at its axis i"):
        s[D].reverse_compute_at(s[B], s[B].op.axis[1])
    k = te.reduce_axis((0, 9), name="k")
    E = te.compute((9,), lambda i: te.sum(B[i, k], axis=k), name="E")
    s = te.create_schedule(E)
    with refused(s, "E reads B along its reduce axis k", "needs all iterations of B.j"):
        s[E].reverse_compute_at(s[B], s[B].op.axis[1])


def test_reverse_compute_at_of_other_readers():
    c = chain(40)
    s = te.create_schedule(c.D)
    with refused(s, "B is also read by D, which would no longer find it", "first attach D inside"):
        s[c.C].reverse_compute_at(s[c.B], s[c.B].op.axis[0])
    s = te.create_schedule([c.D, c.B])
    with refused(s, "B is an output of the schedule", "s.cache_write(B, scope)"):
        s[c.C].reverse_compute_at(s[c.B], s[c.B].op.axis[0])


def test_reverse_compute_at_of_partial_fusions():
    """A fused loop that crosses rows has no iteration of the reader's that needs one of its own."""
    c = chain(9, 7)
    s = te.create_schedule(c.D)
    s[c.C].compute_inline()
    o, _ = s[c.B].split(s[c.B].fuse(*s[c.B].op.axis), 4)
    with refused(s, "so they cannot be the same loops", "split the axes of B before fusing them"):
        s[c.D].reverse_compute_at(s[c.B], o)


def test_reverse_compute_inline(golden):
    A = te.placeholder((9, 7), name="A")
    B = te.compute((9, 7), lambda i, j: A[i, j] + 1, name="B")
    C = te.compute((7, 9), lambda x, y: B[y, x] * B[y, x], name="C")
    D = te.compute((7, 9), lambda x, y: C[x, y] - 1, name="D")
    s = te.create_schedule(D)
    outer, inner = s[B].split(s[B].op.axis[0], 4)
    s[B].parallel(outer)
    s[C].reverse_compute_inline()
    assert s[C].leaf_iter_vars[:2] == (outer, inner)
    s[C].unroll(inner)
    golden(str(s))
    assert agrees(s)
    assert replays(s, D)


def test_reverse_compute_inline_moves_guests():
    c = chain(40)
    s = te.create_schedule(c.D)
    s[c.C].compute_inline()
    o, _ = s[c.B].split(s[c.B].op.axis[0], 16)
    copy = s.cache_read(c.A, "local", [c.B])
    s[copy].compute_at(s[c.B], o)
    s[c.D].reverse_compute_inline()
    assert s[copy].plan.placement.host == "D"
    assert s[copy].plan.placement.axis is o
    assert agrees(s)
    assert replays(s, c.D)


def test_reverse_compute_inline_keeps_rows_aligned():
    A = te.placeholder((9, 7), name="A")
    B = te.compute((9, 7), lambda i, j: A[i, j] + 1, name="B")
    C = te.compute((7, 9), lambda x, y: B[y, x] * B[y, x], name="C")
    D = te.compute((7, 9), lambda x, y: C[x, y] - 1, name="D")
    s = te.create_schedule(D)
    s[C].storage_align(s[C].op.axis[0], 16, 3)
    s[C].reverse_compute_inline()
    assert [each.axis for each in s[C].plan.aligned] == [s[C].op.axis[0]]
    assert agrees(s)
    assert replays(s, D)


def test_reverse_compute_inline_refusals():
    m = matmul()
    s = te.create_schedule(m.D)
    with refused(
        s,
        "C is a reduction, whose result is finished after its reduce loops only",
        "use s[D].reverse_compute_at(s[C], axis) with one of: C.i, C.j",
    ):
        s[m.D].reverse_compute_inline()
    c = chain(16)
    s = te.create_schedule(c.D)
    with refused(s, "D reads 2 computed stages (C, B)", "inline the others first"):
        s[c.D].reverse_compute_inline()
    with refused(s, "B reads 0 computed stages", "leave B as it is"):
        s[c.B].reverse_compute_inline()
    with refused(s, "B is also read by D"):
        s[c.C].reverse_compute_inline()
    s[c.C].compute_inline()
    with refused(s, "C is inlined into its readers and has no loops"):
        s[c.C].reverse_compute_inline()
    A = te.placeholder((9,), name="A")
    B = te.compute((9,), lambda i: A[i] + 1, name="B")
    k = te.reduce_axis((0, 9), name="k")
    for body, text in (
        (lambda i: B[i + 1], "C reads B[i + 1]"),
        (lambda i: B[i], "B.i has the extent 9 and C.i has 8"),
        (lambda i: te.sum(B[k], axis=k), "C reads B along its reduce axis k"),
    ):
        C = te.compute((8,), body, name="C")
        s = te.create_schedule(C)
        with refused(s, text):
            s[C].reverse_compute_inline()
    wide = te.compute((9, 2), lambda i, j: B[i] + j, name="C")
    s = te.create_schedule(wide)
    with refused(s, "C has 2 dimensions and B has 1", "s[B].compute_inline()"):
        s[wide].reverse_compute_inline()
    same = te.compute((9,), lambda i: B[i] * 2, name="C")
    s = te.create_schedule(same)
    s[same].vectorize(s[same].op.axis[0])
    with refused(s, "C.i is vectorized, and its loops would be replaced by those of B"):
        s[same].reverse_compute_inline()


def test_an_inlined_stage_has_no_loops_to_take_over():
    c = chain(40)
    s = te.create_schedule(c.D)
    s[c.C].compute_inline()
    with refused(s, "C is inlined into its readers", "s[C].compute_root()"):
        s[c.C].reverse_compute_inline()
    with refused(s, "C is inlined into its readers"):
        s[c.C].reverse_compute_at(s[c.B], s[c.B].op.axis[0])


def test_decompose_reduction(golden):
    m = matmul(33, 44, 17)
    s = te.create_schedule(m.D)
    stage = s[m.C]
    io, jo, ii, ji = stage.tile(*stage.op.axis, 8, 8)
    ko, _ki = stage.split(stage.op.reduce_axis[0], 4)
    stage.reorder(io, jo, ko, ii, ji)
    start = s.decompose_reduction(m.C, ko)
    assert s[start].name == "C.init"
    assert s[start].plan.placement.axis is jo
    s[start].vectorize(s[start].op.axis[1])
    golden(str(s))
    assert agrees(s, targets=("cpu",), bound=1e-4)
    assert replays(s, m.D)


def test_decompose_reduction_before_the_nest():
    _X, B = row_sum(9, 33)
    s = te.create_schedule(B)
    start = s.decompose_reduction(B, s[B].op.axis[0])
    assert s[start].plan.placement.at_root
    assert agrees(s)
    assert replays(s, B)


def test_decompose_reduction_keeps_init_and_tuples():
    X = te.placeholder((9, 33), name="X")
    P = te.placeholder((9,), name="P")
    k = te.reduce_axis((0, 33), name="k")
    B = te.compute((9,), lambda i: te.max(X[i, k], axis=k, init=P[i]), name="B")
    s = te.create_schedule(B)
    s.decompose_reduction(B, s[B].op.axis[0])
    assert agrees(s)
    index, value = argmax(33)
    s = te.create_schedule([index, value])
    starts: Any = s.decompose_reduction(index, s[index].op.reduce_axis[0])
    assert [each.name for each in starts] == ["M.init.v0", "M.init.v1"]
    assert agrees(s, targets=("cpu",))
    assert replays(s, index, value)


def test_decompose_reduction_refusals():
    m = matmul()
    s = te.create_schedule(m.D)
    ko, ki = s[m.C].split(s[m.C].op.reduce_axis[0], 4)
    with refused(
        s,
        "the reduce loop k.outer is outside k.inner: starting there, at k.outer = 1 C[0, 0] would "
        "lose what k.outer = 0 added",
        "legal   C.i, C.j, C.k.outer",
    ):
        s.decompose_reduction(m.C, ki)
    with refused(s, "D is no reduction", "call decompose_reduction on a stage whose body is"):
        s.decompose_reduction(m.D, s[m.D].op.axis[0])
    s.decompose_reduction(m.C, ko)


@pytest.mark.cpu
def test_epilogue_on_the_cpu():
    s, m, (block, *_) = tiled_product(33, 20)
    s[m.D].reverse_compute_at(s[m.C], block)
    kernel = te.build(s, target="cpu", cache=False)
    assert len(kernel.module.funcs) == 1
