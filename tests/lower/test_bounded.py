"""What is read at a place that is known when the kernel runs, and is outside, is 0: wherever the
stage that is read is computed, on every target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lowering import after_passes

import tedsl as te
from tedsl.ir.interp import run
from tedsl.lower.pipeline import lower
from tedsl.target import Target

N = 12
A = te.placeholder((10, 4), "float32", name="A")
I = te.placeholder((N,), "int32", name="I")  # noqa: E741
P = te.compute((10, 4), lambda i, j: A[9 - i, j] * 2.0 + 1.0, name="P")
C = te.compute((N, 4), lambda i, j: P[I[i] + 1, j] + 3.0, name="C")
FAR = [-1, 8, 0, 9, 10, -2, 3, 2**31 - 1, -(2**31), 2**30, 5, -(2**30)]


def plain(s: te.Schedule) -> None:
    del s


def inlined(s: te.Schedule) -> None:
    s["P"].compute_inline()


def attached(s: te.Schedule) -> None:
    s["P"].compute_at(s["C"], s["C"].op.axis[0])


def copied(s: te.Schedule) -> None:
    copy = s.cache_read(P, "local", [C])
    s[copy].compute_at(s["C"], s["C"].op.axis[0])


def lanes(s: te.Schedule) -> None:
    s["P"].compute_inline()
    outer, inner = s["C"].split(s["C"].op.axis[0], 8)
    s["C"].bind(outer, "blockIdx.x")
    s["C"].vectorize(inner)
    s["C"].vectorize(s["C"].op.axis[1])


def of_rows(place: np.ndarray[Any, Any], a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """C by its definition, with 0 where P is read outside."""
    p = a[::-1] * 2 + 1
    inside = (place >= 0) & (place < 10)
    return np.where(inside[:, None], p[np.clip(place, 0, 9)], 0) + 3


@pytest.mark.parametrize("change", [plain, inlined, attached, copied, lanes])
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_what_is_outside_is_0_wherever_it_is_computed(
    target: str, change: Callable[[te.Schedule], None]
) -> None:
    s = te.create_schedule(C)
    change(s)
    rng = np.random.default_rng(1)
    a, places = rng.standard_normal((10, 4)).astype("f4"), np.array(FAR, "i4")
    want = of_rows(places.astype("i4") + np.int32(1), a)
    after_passes(s, target)  # verifies each level
    module = lower(s.plan, Target.parse(target))
    given = {"A": a, "I": places}
    (found,) = run(module, {b: given[b.name] for b in module.inputs}, {}).values()
    np.testing.assert_array_equal(found, want)
    kernel = te.build(s, target=target)
    np.testing.assert_array_equal(kernel(*[given[b.name] for b in module.inputs]), want)


WIDE = te.placeholder((4, 16), "float32", name="W")
B = te.placeholder((6,), "int32", name="B")
M = te.placeholder((6,), "int32", name="M")


@pytest.mark.cpu
@pytest.mark.parametrize(
    "index",
    [
        lambda i: B[i] * 4,
        lambda i: B[i] + M[i],
        lambda i: B[i] * M[i],
        lambda i: -B[i],
        lambda i: B[i] * 4 // 8,
        lambda i: te.abs(B[i]),
    ],
)
def test_arithmetic_that_wraps_does_not_leave_the_tensor(index: Callable[[Any], Any]) -> None:
    """The address is that of the index that was looked at, in the index's own type."""
    c = te.compute((6, 16), lambda i, j: WIDE[index(i), j], name="c")
    rng = np.random.default_rng(2)
    w = rng.standard_normal((4, 16)).astype("f4")
    b = np.array([0, 2**30, -(2**31), 2**31 - 1, 1, -(2**30)], "i4")
    m = np.array([3, 2**31 - 1, -(2**31), 1, 2, 4], "i4")
    at = te.evaluate(te.compute((6,), index, name="at"), {B: b, M: m})[0]
    want = np.where(((at >= 0) & (at < 4))[:, None], w[np.clip(at, 0, 3)], 0)
    kernel = te.build(c, target="cpu")
    given = {"B": b, "M": m, "W": w}
    got = kernel(*[given[b.name] for b in kernel.module.inputs])
    np.testing.assert_array_equal(got, want)


def test_a_table_without_rows_is_read_nowhere() -> None:
    n = te.size_var("n")
    table = te.placeholder((n, 4), "float32", name="T")
    c = te.compute((N, 4), lambda i, j: table[I[i], j], name="C")
    kernel = te.build(c, target="cpu")
    given = {"T": np.empty((0, 4), "f4"), "I": np.zeros(N, "i4")}
    got = kernel(*[given[b.name] for b in kernel.module.inputs])
    np.testing.assert_array_equal(got, np.zeros((N, 4), "f4"))


def test_a_runtime_scalar_in_an_index() -> None:
    k = te.var("k")
    c = te.compute((4,), lambda i: A[i + k, 0], name="C")
    kernel = te.build(c, target="cpu")
    a = np.ones((10, 4), "f4")
    for start in (0, 8, -3, 10**9, -(10**9)):
        want = [float(0 <= i + start < 10) for i in range(4)]
        np.testing.assert_array_equal(kernel(a, k=start), want)


@pytest.mark.parametrize(
    "index",
    [
        lambda i: I[i] % 10,
        lambda i: te.max(te.min(I[i], 9), 0),
        lambda i: te.cast(te.cast(I[i] % 7, "uint8"), "int32"),
    ],
)
def test_what_is_proved_has_no_mask(index: Callable[[Any], Any]) -> None:
    c = te.compute((N,), lambda i: A[index(i), 0], name="C")
    assert ";" not in str(te.lower(te.create_schedule(c)))
    guarded = te.compute(
        (N,),
        lambda i: te.if_then_else(te.all(I[i] >= 0, I[i] < 10), A[I[i], 0], -1.0),
        name="C",
    )
    assert str(te.lower(te.create_schedule(guarded))).count("I[i] < 10") == 2


@pytest.mark.parametrize("target", [None, "cpu", "cuda:sm_90"])
def test_a_schedule_shows_what_is_read(target: str | None) -> None:
    s = te.create_schedule(C, target=target)
    inlined(s)
    assert "if_then_else((0 <= I[i] + 1) & (I[i] + 1 < 10), " in str(s)


def test_the_gradient_agrees_with_what_is_read() -> None:
    """A row that no place reads gets nothing, and what is read outside gives nothing to any."""
    w = te.placeholder((5, 3), "float32", name="W")
    e = te.nn.embedding(I, w)
    head = te.placeholder((N, 3), "float32", name="head")
    (g,) = te.gradient(e, [w], head)
    h = np.random.default_rng(3).standard_normal((N, 3)).astype("f4")
    places = np.array(FAR, "i4")
    kernel = te.build(g, target="cpu")
    given = {"I": places, "head": h}
    want = np.zeros((5, 3), "f4")
    for row, place in enumerate(FAR):
        if 0 <= place < 5:
            want[place] += h[row]
    got = kernel(*[given[b.name] for b in kernel.module.inputs])
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_oracle_says_which_stage_reads_outside() -> None:
    a = np.ones((10, 4), "f4")
    with pytest.raises(te.ExprError, match=r"evaluate C: P\[I\[i\] \+ 1, j\] reads index -?\d+"):
        te.evaluate(C, {A: a, I: np.array(FAR, "i4")})
