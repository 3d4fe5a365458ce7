"""split, tile, fuse, reorder: loops, goldens, refusals."""

from __future__ import annotations

import numpy as np
from computations import chain, matmul
from refusals import refused

import tedsl as te


def names(stage: te.Stage) -> list[str]:
    """The loops by label."""
    known = {axis: stage.axis(axis.name) for axis in stage.leaf_iter_vars}
    return [known[axis].name for axis in stage.leaf_iter_vars]


def test_split(golden):
    c = chain(100)
    s = te.create_schedule(c.D)
    outer, inner = s[c.D].split(s[c.D].op.axis[0], factor=16)
    assert s[c.D].leaf_iter_vars[0] is outer
    assert s[c.D].leaf_iter_vars[1] is inner
    golden(str(s))


def test_split_by_parts(golden):
    c = chain(100)
    s = te.create_schedule(c.D)
    _outer, inner = s[c.D].split(s[c.D].op.axis[0], nparts=7)
    s[c.D].split(inner, 4)
    golden(str(s))


def test_split_with_a_larger_factor(golden):
    c = chain(5)
    s = te.create_schedule(c.D)
    s[c.D].split(s[c.D].op.axis[0], np.int64(64))
    golden(str(s))


def test_split_by_a_size(golden):
    n = te.size_var("n")
    c = chain(n)
    s = te.create_schedule(c.D)
    s[c.D].split(s[c.D].op.axis[0], nparts=n // 4 + 1)
    golden(str(s) + "\n" + s.as_python())


def test_tile(golden):
    c = chain(10, 20, 30)
    s = te.create_schedule(c.D)
    made = s[c.D].tile(*s[c.D].op.axis, 2, 4, 8)
    assert made == s[c.D].leaf_iter_vars
    assert [axis.name for axis in made] == [
        "i0.outer", "i1.outer", "i2.outer", "i0.inner", "i1.inner", "i2.inner",
    ]  # fmt: skip
    golden(str(s))


def test_tile_keeps_other_loops_in_place():
    m = matmul()
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    s[m.C].tile(j, i, 8, 4)
    assert names(s[m.C]) == ["j.outer", "i.outer", "j.inner", "i.inner", "k"]


def test_fuse(golden):
    c = chain(10, 20, 30)
    s = te.create_schedule(c.D)
    x, y, z = s[c.D].op.axis
    assert s[c.D].fuse(x) is x
    fused = s[c.D].fuse(x, y, z)
    assert fused.name == "i0.i1.i2.fused"
    assert s[c.D].leaf_iter_vars == (fused,)
    golden(str(s))


def test_fusing_more_than_int32_counts_in_int64():
    c = chain(1 << 17, 1 << 17)
    s = te.create_schedule(c.D)
    assert s[c.D].fuse(*s[c.D].op.axis).dtype == "int64"


def test_reorder(golden):
    m = matmul()
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    s[m.C].reorder(k, i)
    assert s[m.C].leaf_iter_vars == (k, j, i)
    golden(str(s))


def test_splitting_an_attach_axis_moves_the_attach_point_inside(golden):
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, _j = s[c.D].op.axis
    s[c.C].compute_at(s[c.D], i)
    _io, ii = s[c.D].split(i, 8)
    assert s[c.C].plan.placement.axis is ii
    golden(str(s))


def test_fusing_an_attach_axis_with_an_outer_one():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.C].compute_at(s[c.D], j)
    fused = s[c.D].fuse(i, j)
    assert s[c.C].plan.placement.axis is fused


def test_refused_fusing_away_an_attach_point():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.C].compute_at(s[c.D], i)
    with refused(s, "fuse(D.i0, D.i1): C is attached at D.i0", "attach C at i1"):
        s[c.D].fuse(i, j)


def test_refused_arguments_of_split():
    c = chain(64)
    s = te.create_schedule(c.D)
    (i,) = s[c.D].op.axis
    with refused(s, "split(D.i0): neither factor nor nparts is given", "give factor"):
        s[c.D].split(i)
    with refused(s, "both factor and nparts are given", "give factor"):
        s[c.D].split(i, 2, 3)
    with refused(s, "split(D.i0, factor=0): factor is 0", "allowed an int of at least 1"):
        s[c.D].split(i, 0)
    with refused(s, "nparts is -3", "give a positive int as nparts"):
        s[c.D].split(i, nparts=-3)
    with refused(s, "factor is 2.5 of type float", "positive int"):
        s[c.D].split(i, 2.5)  # pyright: ignore[reportArgumentType]
    with refused(s, "factor is True of type bool", "positive int"):
        s[c.D].split(i, True)
    with refused(s, "factor must be made of integers and sizes only", "te.var sizes"):
        s[c.D].split(i, i + 1)


def test_refused_sizes():
    n, m = te.size_var("n"), te.var("m")
    s = te.create_schedule(chain(n).D)
    (i,) = s["D"].op.axis
    with refused(s, "factor uses m, which is no size of the computation", "sizes   n", "s.size"):
        s["D"].split(i, m)
    with refused(s, "nparts could be less than 1", "te.max(nparts, 1)"):
        s["D"].split(i, nparts=n)
    s["D"].split(i, nparts=te.max(n, 1))


def test_refused_axes():
    m = matmul()
    s = te.create_schedule(m.D)
    i, _j = s[m.D].op.axis
    io, ii = s[m.D].split(i, 8)
    with refused(
        s,
        "split(D.i, factor=2): i is no loop of D any more: it has been split into i.outer, i.inner",
        "loops   [i.outer, i.inner, j]",
        "use i.outer or i.inner",
    ):
        s[m.D].split(i, 2)
    fused = s[m.D].fuse(io, ii)
    with refused(s, "i.outer is no loop of D any more: it has been fused into", "use i.outer.i"):
        s[m.D].unroll(io)
    with refused(s, "k is an axis of C, not of D", "use an axis of D, or call this on s[C]"):
        s[m.D].split(s[m.C].op.reduce_axis[0], 4)
    foreign = te.reduce_axis((0, 4), name="q")
    with refused(s, "D has no axis q: it is of another computation", "fetch it from s[D].op"):
        s[m.D].split(foreign, 4)
    with refused(s, "expected a loop of D, got 'i' of type str", "pass an axis of s[D].op.axis"):
        s[m.D].split("i", 4)  # pyright: ignore[reportArgumentType]
    with refused(s, "i.outer.i.inner.fused is given twice", "name each loop once"):
        s[m.D].reorder(fused, fused)


def test_refused_stages_without_loops():
    c = chain(64)
    s = te.create_schedule(c.D)
    (i,) = s[c.D].op.axis
    with refused(s, "A is an input of the computation and has no loops", "s.cache_read(A"):
        s[c.A].split(i, 4)
    s[c.C].compute_inline()
    with refused(s, "C is inlined into its readers and has no loops", "s[C].compute_root()"):
        s[c.C].split(s[c.C].op.axis[0], 4)


def test_refused_fuse():
    m = matmul()
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    with refused(s, "j, i are not in the order of the loops", "fuse(i, j), or first reorder(j, i)"):
        s[m.C].fuse(j, i)
    with refused(s, "j is data-parallel and k is a reduction", "s.rfactor"):
        s[m.C].fuse(j, k)
    io, _ii = s[m.C].split(i, 4)
    with refused(s, "i.outer, j are not directly inside each other", "loops   [i.outer", "reorder"):
        s[m.C].fuse(io, j)


def test_refused_tile():
    c = chain(8, 8)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    with refused(s, "3 arguments given: tile takes as many factors as axes", "tile(x, y,"):
        s[c.D].tile(i, j, 4)
    with refused(s, "expected a loop of D, got 4 of type int"):
        s[c.D].tile(i, 4, j, 4)
    with refused(s, "tile(D.i0, D.i1, 4, 0): factor is 0"):
        s[c.D].tile(i, j, 4, 0)


def test_refused_taking_marked_loops_apart():
    c = chain(8, 8)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.D].bind(i, "blockIdx.x")
    s[c.D].vectorize(j)
    with refused(s, "i0 is already bound to blockIdx.x", "call split before marking the loop"):
        s[c.D].split(i, 2)
    with refused(s, "i1 is already vectorized", "s[D].serial(i1)"):
        s[c.D].tile(j, 2)
    with refused(s, "i0 is already bound to blockIdx.x", "call fuse before marking"):
        s[c.D].fuse(i, j)
    s[c.D].serial(j)
    s[c.D].split(j, 4)


def test_refused_reorder_of_attach_points():
    c = chain(64, 64)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    s[c.C].compute_at(s[c.D], j)
    s[c.B].compute_at(s[c.D], i)
    with refused(
        s,
        "reorder(D.i1, D.i0): B is attached at D.i0, and would no longer be at a legal place",
        "B is also read by C, which runs outside the loop D.i0",
        "first move B",
    ):
        s[c.D].reorder(j, i)
