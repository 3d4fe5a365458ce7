"""Where a region depends on a result (`P[X[i]]`), the result is computed before it, or the call is
refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lowering import agrees

import tedsl as te

A = te.placeholder((5,), "float32", name="A")
I = te.placeholder((8,), "int32", name="I")  # noqa: E741
P = te.compute((5,), lambda i: A[i] * 2.0, name="P")
X = te.compute((8,), lambda i: (I[i] * 3 + 1) % 5, name="X")
C = te.compute((8,), lambda i: P[X[i]], name="C")
BOTH = ("cpu", "triton-interpret")


def split(out: Any) -> tuple[te.Schedule, Any, Any]:
    s = te.create_schedule(out)
    outer, inner = s[out].split(s[out].op.axis[0], 4)
    return s, outer, inner


@pytest.mark.parametrize("stored", ["", "at", "root"])
@pytest.mark.parametrize("first", ["X", "P"])
def test_the_index_is_computed_first(stored: str, first: str) -> None:
    s, outer, inner = split(C)
    for name in "XP" if first == "X" else "PX":
        s[name].compute_at(s[C], inner)
    if stored == "at":
        s[X].store_at(s[C], outer)
    elif stored:
        s[X].store_root()
    assert agrees(s, targets=("cpu",) if stored else BOTH)


@pytest.mark.cpu
def test_the_numbers_of_the_report() -> None:
    a, ix = np.arange(5, dtype="f4"), np.arange(8, dtype="i4")
    for stored in (False, True):
        s, outer, inner = split(C)
        s[X].compute_at(s[C], inner)
        if stored:
            s[X].store_at(s[C], outer)
        s[P].compute_at(s[C], inner)
        got = te.build(s, target="cpu")(a, ix)
        np.testing.assert_array_equal(got, a[(ix * 3 + 1) % 5] * 2)


def copies() -> te.Schedule:
    s, _, inner = split(C)
    copy = s.cache_read(I, "local", [X])
    s[X].compute_at(s[C], inner)
    s[copy].compute_at(s[C], inner)
    s[P].compute_at(s[C], inner)
    return s


def copied_index() -> te.Schedule:
    s, _, inner = split(C)
    copy = s.cache_read(X, "local", [C])
    s[X].compute_inline()
    s[copy].compute_at(s[C], inner)
    s[P].compute_at(s[C], inner)
    return s


def programs() -> te.Schedule:
    s, outer, inner = split(C)
    s[C].bind(outer, "blockIdx.x")
    s[X].compute_at(s[C], inner)
    s[P].compute_at(s[C], inner)
    return s


def inlined_between() -> te.Schedule:
    Q = te.compute((8,), lambda i: C[i] + 1.0, name="Q")
    s, _, inner = split(Q)
    s[C].compute_inline()
    s[X].compute_at(s[Q], inner)
    s[P].compute_at(s[Q], inner)
    return s


def two_deep() -> te.Schedule:
    D = te.compute((5,), lambda i: P[i] + 1.0, name="D")
    E = te.compute((8,), lambda i: D[X[i]], name="E")
    s, _, inner = split(E)
    for stage in (X, D, P):
        s[stage].compute_at(s[E], inner)
    return s


def condition_of_a_fold() -> te.Schedule:
    k = te.reduce_axis((0, 8), name="k")
    T = te.compute((4,), lambda i: te.sum(P[X[k]] * i, axis=k, where=X[k] < 3), name="T")
    s = te.create_schedule(T)
    s[X].compute_at(s[T], k)
    s[P].compute_at(s[T], k)
    return s


def scan() -> te.Schedule:
    state = te.placeholder((8,), "float32", name="state")
    start = te.compute((1,), lambda t: te.const(0.0, "float32"), name="start")
    update = te.compute((8,), lambda t: state[t - 1] + P[X[t]], name="update")
    S: Any = te.scan(start, update, state, name="S")
    s = te.create_schedule(S)
    t = s[S].leaf_iter_vars[0]
    s[X].compute_at(s[S], t)
    s[P].compute_at(s[S], t)
    return s


def chain() -> te.Schedule:
    k, q = (te.reduce_axis((0, 8), name=name) for name in "kq")
    m = te.compute((1,), lambda i: te.max(P[X[k]], axis=k), name="m")
    total = te.compute((1,), lambda i: te.sum(te.exp(P[X[q]] - m[i]), axis=q), name="l")
    s = te.create_schedule(total)
    s[total].online(q)
    s[X].compute_at(s[total], q)
    s[P].compute_at(s[total], q)
    return s


EVERYWHERE = (copies, copied_index, programs, inlined_between, two_deep, condition_of_a_fold, scan,
              chain)  # fmt: skip


@pytest.mark.parametrize("made", EVERYWHERE, ids=lambda made: made.__name__)
def test_through_every_way_to_place_it(made: Callable[[], te.Schedule]) -> None:
    assert agrees(made())


@pytest.mark.cpu
def test_steps_that_are_launched_apart_run_in_order() -> None:
    a, ix = np.arange(5, dtype="f4"), np.arange(8, dtype="i4")
    s = scan()
    kernels = [te.build(s, target=target) for target in BOTH]
    want = np.concatenate([[0], np.cumsum(a[(ix[1:] * 3 + 1) % 5] * 2)])
    for kernel in kernels:
        np.testing.assert_allclose(kernel(a, ix), want)


def test_two_indices_read_the_whole_dimension() -> None:
    Y = te.compute((8,), lambda i: (I[i] + 2) % 5, name="Y")
    E = te.compute((8,), lambda i: P[X[i]] + P[Y[i]], name="E")
    s = te.create_schedule(E)
    for stage in (P, X, Y):
        s[stage].compute_at(s[E], s[E].op.axis[0])
    assert agrees(s, targets=("cpu",))


@pytest.mark.parametrize("computed", [False, True])
def test_an_index_that_is_read_under_a_condition_is_not_read_before_it(computed: bool) -> None:
    """X has 5 elements, and the loop 8 iterations: the region does not ask it beyond its end."""
    J = te.placeholder((5,), "int32", name="J")
    Y = te.compute((5,), lambda i: (J[i] * 3 + 1) % 5, name="Y")
    source = Y if computed else J
    E = te.compute((8,), lambda i: te.if_then_else(i < 5, P[source[i]], 0.0), name="E")
    s = te.create_schedule(E)
    if computed:
        s[Y].compute_at(s[E], s[E].op.axis[0])
    s[P].compute_at(s[E], s[E].op.axis[0])
    assert agrees(s, targets=("cpu",))


def rows() -> tuple[te.Schedule, Any, Any, Any]:
    E = te.compute((8, 4), lambda i, j: P[X[i]] + j, name="E")
    s = te.create_schedule(E)
    i, j = s[E].op.axis
    return s, E, i, j


@pytest.mark.parametrize("first", ["X", "P"])
def test_an_index_that_is_computed_further_in_is_refused(first: str) -> None:
    s, E, i, j = rows()
    places = {"X": j, "P": i}
    second = "P" if first == "X" else "X"
    s[first].compute_at(s[E], places[first])
    before = (str(s), len(s.trace))
    with pytest.raises(te.ScheduleError, match=r"known when X\[i\] is, and X is computed at E.j"):
        s[second].compute_at(s[E], places[second])
    assert (str(s), len(s.trace)) == before
    listed = [axis.name for _, axis in s[second].legal_places()]
    assert listed == (["j"] if second == "P" else ["i"])


def test_an_index_beside_what_it_places_is_refused() -> None:
    E = te.compute((8,), lambda i: P[X[i]], name="E")
    s = te.create_schedule(E)
    i = s[E].op.axis[0]
    s[X].compute_at(s[E], i)
    s[P].compute_at(s[E], i)
    with pytest.raises(te.ScheduleError, match=r"run together \(compute_with\)"):
        s[P].compute_with(s[X], s[X].op.axis[0])
