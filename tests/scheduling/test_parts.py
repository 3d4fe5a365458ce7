"""cut, partition and blockize: the iterations of a loop in parts, or all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from computations import argmax, chain, matmul, row_sum
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.ir.nodes import LoopKind

SIZES = (0, 1, 2, 5, 33)
TARGETS = [
    pytest.param("cpu", marks=pytest.mark.cpu),
    pytest.param("triton-interpret", marks=pytest.mark.ptxas),
]


def borders(n: Any) -> tuple[te.Schedule, Any]:
    """Means of neighbours, with copies of the first and the last element at the borders."""
    A = te.placeholder((n,), name="A")
    inner = lambda i: (A[i - 1] + A[i] + A[i + 1]) / 3.0  # noqa: E731
    B = te.compute(
        (n,),
        lambda i: te.if_then_else((i > 0) & (i < A.shape[0] - 1), inner(i), A[i]),
        name="B",
    )
    return te.create_schedule(B), B


def smoothed(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[1:-1] = (x[:-2] + x[1:-1] + x[2:]) / 3
    return y


def test_cut(golden):
    n = te.size_var("n")
    s, B = borders(n)
    s.assume(n >= 3)
    s[B].cut(s[B].op.axis[0], 1, n - 1)
    golden(f"{s}\n\n{te.lower(s, 'cpu')}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", ["serial", "parallel", "bind", "unroll", "split"])
def test_a_cut_loop_of_any_length(target: str, way: str):
    n = te.size_var("n")
    s, B = borders(n)
    (i,) = s[B].op.axis
    if way == "split":
        i, inner = s[B].split(i, 4)
        s[B].vectorize(inner)
    s[B].cut(i, 1, n - 1)
    if way in ("parallel", "unroll"):
        getattr(s[B], way)(i)
    elif way == "bind":
        s[B].bind(i, "blockIdx.x")
    kernel = te.build(s, target)
    for size in SIZES:
        x = np.arange(size, dtype=np.float32) ** 2
        np.testing.assert_allclose(kernel(x), smoothed(x), rtol=1e-6)


def test_a_loop_of_the_grid_is_cut_inside_the_other_loops_of_the_grid():
    m = matmul(33, 20, 7)
    s = te.create_schedule(m.D)
    s[m.C].compute_at(s[m.D], s[m.D].op.axis[1])
    i, j = s[m.D].op.axis
    s[m.D].bind(i, "blockIdx.x")
    s[m.D].bind(j, "blockIdx.y")
    s[m.D].cut(i, 3, 30)
    s[m.C].cut(s[m.C].op.reduce_axis[0], 5)
    assert agrees(s)


def test_parts_know_their_range():
    s, B = borders(100)
    s[B].cut(s[B].op.axis[0], 1, 99)
    text = str(te.lower(s, "cpu"))
    assert "if_then_else" not in text and "select" not in text
    assert agrees(s)


def test_cuts_that_are_refused():
    m = matmul()
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    cases: Any = (
        ((), "no point is given"),
        ((0,), "point is 0"),
        ((64,), "i has 64 iterations, and 64 is not inside it", "allowed 1 .. 63"),
        ((8, 4), "4 comes after 8", "ascending"),
        ((8, 8), "8 comes after 8"),
        ((te.size_var("q"),), "point uses q, which is no size of the computation"),
        (("4",), "point is '4' of type str"),
    )
    for points, *texts in cases:
        with refused(s, "cut(", *texts):
            s[m.C].cut(i, *points)
    s[m.C].vectorize(j)
    with refused(s, "cut(C.j", "j is vectorized", "lanes"):
        s[m.C].cut(j, 4)
    s[m.C].cut(i, 4)
    with refused(s, "split(C.i", "already cut at 4", "serial"):
        s[m.C].split(i, 4)
    with refused(s, "vectorize(C.i", "cut at 4", "lanes of a tile have no parts"):
        s[m.C].vectorize(i)
    s[m.C].serial(i)
    s[m.C].split(i, 4)


def test_partition():
    n = te.size_var("n")
    for policy, target, parts in (
        ("auto", "cpu", 2),
        ("never", "cpu", 1),
        ("always", "cpu", 2),
        ("auto", "triton-interpret", 1),
        ("always", "triton-interpret", 2),
    ):
        _, B = row_sum(4, n)
        s = te.create_schedule(B)
        outer, inner = s[B].split(s[B].op.reduce_axis[0], 8)
        s[B].vectorize(inner)
        s[B].bind(s[B].op.axis[0], "blockIdx.x")
        s[B].partition(outer, policy)
        module = te.lower(s, target)
        assert str(module.funcs[-1]).count("for k.outer") == parts, (policy, target)
        assert agrees(s, {n: 33}) and agrees(s, {n: 0})
    with refused(s, "unknown policy 'maybe'", "allowed auto, always, never"):
        s[B].partition(outer, "maybe")
    with refused(s, "k.inner is vectorized"):
        s[B].partition(inner)


def test_blockize(golden):
    m = matmul()
    s = te.create_schedule(m.C)
    i, j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    io, ii = s[m.C].split(i, 16)
    s[m.C].reorder(io, ii, j, k)
    s[m.C].vectorize(k)
    s[m.C].blockize(ii)
    kinds = [s[m.C].plan.mark(a).kind for a in (io, ii, j, k)]
    assert kinds == [LoopKind.SERIAL, *[LoopKind.VECTORIZED] * 3]
    golden(str(s))


def test_blocks_that_are_refused():
    c = chain(te.size_var("n"), 8)
    s = te.create_schedule(c.D)
    i, j = s[c.D].op.axis
    with refused(s, "blockize(D.i", "the extent of i0 is not a constant"):
        s[c.D].blockize(i)
    s[c.D].unroll(j)
    with refused(s, "blockize(D.i1", "already unrolled"):
        s[c.D].blockize(j)
    index, _ = argmax(keep_first=False)
    s = te.create_schedule(index)
    with refused(s, "blockize(M.i", "is not associative and commutative"):
        s[index].blockize(s[index].op.axis[0])


@pytest.mark.cpu
def test_cut_at_the_size_of_another_kernel():
    n, m = te.size_var("n"), te.size_var("m")
    A, B = te.placeholder((n,), name="A"), te.placeholder((m,), name="B")
    X = te.compute((n,), lambda i: A[i] + 1.0, name="X")
    Y = te.compute((m,), lambda i: B[i] * 2.0, name="Y")
    s = te.create_schedule([X, Y])
    s[X].cut(s[X].op.axis[0], 1, m)
    run = te.build(s, target="cpu")
    for rows, others in ((1, 1), (7, 3), (3, 7), (0, 2)):
        a, b = np.ones(rows, np.float32), np.ones(others, np.float32)
        x, y = run(a, b)
        assert np.array_equal(x, a + 1) and np.array_equal(y, b * 2)
