"""What is refused, and how: one golden message for each illegal request that other systems meet.

Every message names the primitive, stage and axis, says why, gives a counterexample with concrete
indices or the legal choices, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from computations import argmax, chain, matmul, row_sum

import tedsl as te


def message(s: te.Schedule, request: Callable[[], Any]) -> str:
    """The text of the refusal, without the line of the call; the schedule stays as it was."""
    before = (s.plan, str(s), s.trace)
    with pytest.raises(te.ScheduleError, match=r"[\s\S]*\n  do  ") as caught:
        request()
    assert (s.plan, str(s), s.trace) == before
    lines = str(caught.value).splitlines()
    return "\n".join(line for line in lines if not line.startswith("  called"))


def test_parallel_reduction(golden):
    m = matmul()
    s = te.create_schedule(m.D)
    (k,) = s[m.C].op.reduce_axis
    texts = [
        message(s, lambda: s[m.C].parallel(k)),
        message(s, lambda: s[m.C].bind(k, "blockIdx.x")),
    ]
    golden("\n\n".join(texts))


def test_vectorized_reduction_that_depends_on_the_order(golden):
    """Lanes of a sum are combined afterwards; those of an ordered reducer cannot be."""
    _X, B = row_sum()
    s = te.create_schedule(B)
    s[B].vectorize(s[B].op.reduce_axis[0])
    index, value = argmax(100, keep_first=False)
    s = te.create_schedule([index, value])
    (k,) = s[index].op.reduce_axis
    texts = [
        message(s, lambda: s[index].vectorize(k)),
        message(s, lambda: s[index].parallel(k)),
    ]
    golden("\n\n".join(texts))


def test_reorder_cannot_change_a_result(golden):
    """Definitions are pure: any order of a stage's loops is legal, and the grid stays outside."""
    m = matmul()
    s = te.create_schedule(m.D)
    s[m.C].reorder(*s[m.C].op.reduce_axis, *s[m.C].op.axis)
    i, j = s[m.D].op.axis
    s[m.D].bind(i, "blockIdx.x")
    s[m.D].reorder(j, i)
    golden(str(s))


def test_compute_at_inside_a_vectorized_loop(golden):
    """Accepted elsewhere, with wrong numbers."""
    c = chain(64, 8)
    s = te.create_schedule(c.D)
    outer, inner = s[c.D].split(s[c.D].op.axis[1], 4)
    s[c.D].vectorize(inner)
    first = message(s, lambda: s[c.C].compute_at(s[c.D], inner))
    s[c.C].compute_at(s[c.D], outer)
    golden(first + "\n\n" + message(s, lambda: s[c.D].vectorize(outer)))


def test_impossible_compute_at(golden):
    """All use sites and all legal places."""
    c = chain(64, 8)
    s = te.create_schedule(c.D)
    s[c.C].compute_at(s[c.D], s[c.D].op.axis[0])
    texts = [
        message(s, lambda: s[c.B].compute_at(s[c.C], s[c.C].op.axis[0])),
        message(s, lambda: s[c.C].compute_at(s[c.B], s[c.B].op.axis[0])),
        message(s, lambda: s[c.D].compute_at(s[c.C], s[c.C].op.axis[0])),
    ]
    golden("\n\n".join(texts))


def test_fusing_loops_apart(golden):
    T = te.compute((4, 5, 6), lambda i, j, k: i + j + k, name="T")
    s = te.create_schedule(T)
    i, j, k = s[T].op.axis
    texts = [
        message(s, lambda: s[T].fuse(i, k)),
        message(s, lambda: s[T].fuse(j, i)),
    ]
    golden("\n\n".join(texts))
    s[T].reorder(i, k, j)
    s[T].fuse(i, k)


def test_stale_and_foreign_loops(golden):
    m, other = matmul(), chain(16)
    _X, B = row_sum()
    s = te.create_schedule([m.D, B])
    i, j = s[m.C].op.axis
    (k,) = s[B].op.reduce_axis
    s[m.C].split(i, 8)
    s[m.D].fuse(*s[m.D].op.axis)
    s.rfactor(B, k)
    foreign = te.create_schedule(other.D)
    anything: Any = "zz"
    requests: list[Callable[[], Any]] = [
        lambda: s[m.C].split(i, 4),
        lambda: s[m.D].unroll(s[m.D].op.axis[1]),
        lambda: s[m.D].unroll(j),
        lambda: s[B].split(k, 4),
        lambda: s[m.C].unroll(foreign[other.D].op.axis[0]),
        lambda: s[m.C].compute_at(foreign[other.D], foreign[other.D].op.axis[0]),
        lambda: s[other.B],
        lambda: s[other.D],
        lambda: s["zz"],
        lambda: s[m.C].axis("zz"),
        lambda: s[m.C].unroll(anything),
    ]
    golden("\n\n".join(message(s, request) for request in requests))


def test_undone_loops(golden):
    m = matmul()
    s = te.create_schedule(m.D)
    outer, _ = s[m.C].split(s[m.C].op.axis[0], 8)
    s.undo()
    golden(message(s, lambda: s[m.C].unroll(outer)))


def test_rfactor_of_a_reducer_that_is_not_associative(golden):
    """Refuted by a counterexample, which no consent overrules."""
    X = te.placeholder((8, 100), name="X")
    k = te.reduce_axis((0, 100), name="k")
    less = te.comm_reducer(lambda x, y: x - y, lambda t: te.const(0, t), name="less")
    W = te.compute((8,), lambda i: less(X[i, k], axis=k), name="W")
    s = te.create_schedule(W)
    index, value = argmax(100, keep_first=False)
    t = te.create_schedule([index, value])
    texts = [
        message(s, lambda: s.rfactor(W, k)),
        message(s, lambda: s.rfactor(W, k, consent=True)),
        message(t, lambda: t.rfactor(index, t[index].op.reduce_axis[0])),
    ]
    golden("\n\n".join(texts))


def test_consumer_under_the_reduction_of_its_producer(golden):
    """Accepted elsewhere: the whole consumer is computed again in each iteration."""
    m = matmul()
    s = te.create_schedule(m.D)
    (k,) = s[m.C].op.reduce_axis
    first = message(s, lambda: s[m.D].reverse_compute_at(s[m.C], k))
    s[m.C].reorder(k, *s[m.C].op.axis)
    second = message(s, lambda: s[m.D].reverse_compute_at(s[m.C], s[m.C].op.axis[0]))
    golden(first + "\n\n" + second)


def test_source_out_of_bounds(golden):
    """At the definition, for constant and symbolic sizes."""
    A = te.placeholder((8,), name="A")
    n = te.size_var("n")
    X = te.placeholder((n,), name="X")
    texts: list[str] = []
    for define in (
        lambda: te.compute((8,), lambda i: A[i + 1], name="C"),
        lambda: te.compute((n,), lambda i: X[i + 1], name="C"),
    ):
        with pytest.raises(te.ExprError, match=r"is outside [AX]: ") as caught:
            define()
        texts.append(str(caught.value))
    golden("\n\n".join(texts))


def test_primitives_that_would_change_results(golden):
    """An epilogue in each iteration of the reduction, values cut off, elements lost, a restart."""
    m = matmul()
    s = te.create_schedule(m.D)
    stage = s[m.C]
    ko, ki = stage.split(stage.op.reduce_axis[0], 8)
    stage.reorder(ko, *stage.op.axis, ki)
    requests: list[Callable[[], Any]] = [
        lambda: s[m.D].reverse_compute_inline(),
        lambda: s.set_precision(m.C, "int32"),
        lambda: s.decompose_reduction(m.C, ki),
    ]
    texts = [message(s, request) for request in requests]
    c = chain(9, 7)
    t = te.create_schedule(c.D)
    texts.append(message(t, lambda: t[c.B].transform_layout(lambda i, j: (i % 4, j))))
    golden("\n\n".join(texts))
