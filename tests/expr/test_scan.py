"""Scans: what they mean, and which definitions are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

import tedsl as te
from tedsl.tensor.tensor import ScanOp

N, M = te.var("n"), te.var("m")
X = te.placeholder((N, M), name="X")
S = te.placeholder((N, M), name="S")
FIRST = te.compute((1, M), lambda t, i: X[0, i], name="first")
TWO = te.compute((2, M), lambda t, i: X[0, i], name="two")


def update(read: Callable[[te.Axis, te.Axis], te.Expr], name: str = "U") -> te.Tensor:
    return te.compute((N, M), read, name=name)


def one(result: te.Tensor | list[te.Tensor]) -> te.Tensor:
    assert isinstance(result, te.Tensor)
    return result


RUNNING = one(te.scan(FIRST, update(lambda t, i: S[t - 1, i] + X[t, i]), S, [X], "total"))


def ones(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [0, 1, 2, 9])
def test_running_sum(rows: int) -> None:
    given = te.placeholder((1, M), name="given")
    total = one(te.scan(given, update(lambda t, i: S[t - 1, i] + X[t, i]), S))
    x = ones(rows, 5)
    (found,) = te.evaluate(total, {X: x, given: x[:1] if rows else ones(1, 5)})
    np.testing.assert_allclose(found, np.cumsum(x, 0), rtol=1e-5)


def test_the_operation() -> None:
    op = RUNNING.op
    assert [axis.name for axis in op.axis] == ["t", "i"]
    assert str(op) == ("total[t, i] = if_then_else(t < 1, first[t, i], U[t, i])  # float32[n, m]")
    pair = te.scan([FIRST], [update(lambda t, i: S[t - 1, i])], [S])
    assert isinstance(pair, list) and len(pair) == 1


def test_two_rows_back() -> None:
    f, s = te.placeholder((12,), "int64"), te.placeholder((12,), "int64")
    two = te.compute((2,), lambda t: f[t])
    fib = one(te.scan(two, te.compute((12,), lambda t: s[t - 1] + s[t - 2]), s))
    (found,) = te.evaluate(fib, {f: np.ones(12, np.int64)})
    assert found.tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]


def test_states_advance_together() -> None:
    start = te.placeholder((2, 4), name="start")
    x, v = te.placeholder((9, 4), name="x"), te.placeholder((9, 4), name="v")
    x0 = te.compute((1, 4), lambda t, i: start[0, i])
    v0 = te.compute((1, 4), lambda t, i: start[1, i])
    nx = te.compute((9, 4), lambda t, i: x[t - 1, i] + 0.1 * v[t - 1, i])
    nv = te.compute((9, 4), lambda t, i: 0.9 * v[t - 1, i] - 0.2 * x[t - 1, i])
    outs = te.scan([x0, v0], [nx, nv], [x, v])
    given = ones(2, 4)
    found = te.evaluate(list(outs), {start: given})
    a, b = [given[0]], [given[1]]
    for _ in range(8):
        a.append(a[-1] + np.float32(0.1) * b[-1])
        b.append(np.float32(0.9) * b[-1] - np.float32(0.2) * a[-2])
    np.testing.assert_allclose(found[0], a, rtol=1e-5)
    np.testing.assert_allclose(found[1], b, rtol=1e-5)


def test_a_body_of_several_computes() -> None:
    w = te.placeholder((M, M), name="W")
    k = te.reduce_axis((0, M), name="k")
    mixed = update(lambda t, i: te.sum(S[t - 1, k] * w[k, i], axis=k), "mixed")
    h = one(te.scan(FIRST, update(lambda t, i: te.tanh(mixed[t, i] + X[t, i])), S, name="h"))
    after = te.compute((N, M), lambda t, i: h[t, i] * 2.0)
    x, weights = ones(7, 5), ones(5, 5)
    rows = [x[0]]
    for t in range(1, 7):
        rows.append(np.tanh(rows[-1] @ weights + x[t]))
    (found,) = te.evaluate(after, {X: x, w: weights})
    np.testing.assert_allclose(found, 2 * np.array(rows), rtol=1e-4, atol=1e-5)


def test_a_body_read_at_two_steps() -> None:
    half = update(lambda t, i: S[t - 1, i] * 0.5, "half")
    both = update(lambda t, i: half[t, i] + half[t - 1, i])
    (found,) = te.evaluate(one(te.scan(TWO, both, S)), {X: ones(6, 3)})
    for t in range(2, 6):
        np.testing.assert_allclose(found[t], (found[t - 1] + found[t - 2]) / 2, rtol=1e-5)


def test_guarded_reads() -> None:
    later = update(lambda t, i: te.if_then_else(t >= 2, S[t - 2, i], 0.0) + S[t - 1, i])
    (found,) = te.evaluate(one(te.scan(FIRST, later, S)), {X: np.ones((6, 2), np.float32)})
    assert found[:, 0].tolist() == [1, 1, 2, 3, 5, 8]


def test_inits_and_updates_are_copied_where_they_are_more() -> None:
    shift = update(lambda t, i: X[t, i])
    steps = update(lambda t, i: S[t - 1, i])
    plain = te.placeholder((1, M), name="plain")
    other = te.placeholder((N, M), name="other")
    outs = te.scan([plain, plain], [steps, shift], [S, other], name="r")
    op = outs[0].op
    assert isinstance(op, ScanOp)
    assert [t.name for t in op.inits] == ["r.init", "r.init"]
    assert [t.name for t in op.updates] == ["U", "r.update"]
    x = ones(4, 3)
    found = te.evaluate(list(outs), {plain: x[:1], X: x})
    np.testing.assert_array_equal(found[0], np.repeat(x[:1], 4, 0))
    np.testing.assert_array_equal(found[1], x)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t - 2, i]), S, name="r"),
            r"scan r: S\[t - 2, i\] is before the first row: n = \d+, t = 1 reads S\[-1, i\], "
            r"and init gives 1 row[\s\S]*as many rows as the updates look back",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t, i] + 1), S),
            r"S\[t, i\] is not computed yet[\s\S]*S\[t - 1\]",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t - te.var("d"), i]), S),
            r"cannot be proved to be a row before t",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t - 1, i].astype("float64")), S),
            r"the update U of scan 'scan' is float64\[n, m\], not float32\[n, m\]",
        ),
        (
            lambda: te.scan(te.compute((1, N), lambda t, i: 0.0), update(lambda t, i: X[t, i]), S),
            r"the init compute of scan 'scan' is float32\[1, n\], not float32\[1, m\]",
        ),
        (
            lambda: te.scan([FIRST], [FIRST, FIRST], [S]),
            r"has 1 inits, 2 updates and 1 states",
        ),
        (lambda: te.scan(FIRST, FIRST, FIRST), r"the state first of scan 'scan' is computed"),
        (lambda: te.scan([FIRST] * 2, [RUNNING] * 2, [S] * 2), r"the state S .* is given twice"),
        (lambda: te.scan(FIRST, RUNNING, X), r"init or inputs of scan 'scan' depend on its state"),
        (lambda: te.scan(FIRST, RUNNING, S), r"the scan total reads the state of scan 'scan'"),
        (lambda: te.scan(FIRST, cast(te.Tensor, 3), S), r"given 3 as update"),
    ],
)
def test_refused(define: Callable[[], object], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        define()


def test_init_has_too_many_rows() -> None:
    s = te.placeholder((2, 3))
    with pytest.raises(te.ExprError, match=r"init of scan 'scan' has 3 rows, the result 2"):
        te.scan(te.compute((3, 3), lambda t, i: 0.0), te.compute((2, 3), lambda t, i: 1.0), s)


def test_reads_within_the_body_are_followed() -> None:
    half = update(lambda t, i: S[t - 1, i] * 0.5, "half")
    both = update(lambda t, i: half[t, i] + half[t - 1, i])
    with pytest.raises(te.ExprError, match=r"\(in half\) is before the first row"):
        te.scan(FIRST, both, S)
    late = update(lambda t, i: half[t, i] + te.if_then_else(t >= 3, half[t - 2, i], 0.0))
    with pytest.raises(te.ExprError, match=r"\(in half\) is before the first row"):
        te.scan(FIRST, late, S)
    k = te.reduce_axis((0, 3), name="k")
    window = update(lambda t, i: te.sum(S[t - 1 - k, i], axis=k), "window")
    three = te.compute((3, M), lambda t, i: X[0, i])
    te.scan(three, window, S)
    with pytest.raises(
        te.ExprError, match=r"before the first row: .*t = 2, k = 2 reads S\[-1, i\]"
    ):
        te.scan(TWO, window, S)


def test_states_of_several_shapes() -> None:
    """Each state has dimensions of its own; they have the rows in common."""
    narrow = te.placeholder((6,), name="narrow")
    wide = te.placeholder((6, 3), name="wide")
    first = te.compute((1,), lambda t: 0.0, name="first")
    rows = te.compute((1, 3), lambda t, i: 0.0, name="rows")
    one = te.compute((6,), lambda t: narrow[t - 1] + 1.0, name="one")
    many = te.compute((6, 3), lambda t, i: wide[t - 1, i] + narrow[t - 1], name="many")
    results = te.scan([rows, first], [many, one], [wide, narrow], name="mixed")
    assert isinstance(results, list)
    assert [each.ndim for each in results] == [2, 1]
    last = "mixed.v1[t] = if_then_else(t < 1, first[t], one[t])  # float32[6]"
    assert str(results[1].op).splitlines()[1] == last
    sums = te.evaluate(results, {})
    np.testing.assert_array_equal(sums[1], np.arange(6))
    np.testing.assert_array_equal(sums[0][:, 0], [0, 0, 1, 3, 6, 10])
    other, few = te.placeholder((6, 3), name="other"), te.placeholder((5,), name="few")
    thin = te.compute((6, 2), lambda t, i: other[t - 1, i] + 1.0, name="thin")
    less = te.compute((5,), lambda t: few[t - 1] + 1.0, name="less")
    with pytest.raises(te.ExprError, match=r"update thin of scan 'mixed' is float32\[6, 2\], not"):
        te.scan([rows, first], [thin, one], [other, narrow], name="mixed")
    with pytest.raises(te.ExprError, match=r"the state few (.|\n)*rows +6, first rows 1"):
        te.scan([rows, first], [many, less], [wide, few], name="mixed")


def test_a_scan_within_the_steps_of_another_is_refused_with_a_way_out() -> None:
    outer = te.placeholder((4, 3), name="outer")
    inner = te.placeholder((3, 1), name="inner")
    start = te.compute((1, 1), lambda j, o: 0.0)
    step = te.compute((3, 1), lambda j, o: inner[j - 1, o] + outer[3, j], name="step")
    (sums,) = [te.scan(start, step, inner, name="sums")]
    assert isinstance(sums, te.Tensor)
    update = te.compute((4, 3), lambda t, i: outer[t - 1, i] + sums[i, 0], name="update")
    rows = te.compute((1, 3), lambda t, i: 1.0)
    with pytest.raises(te.ExprError, match=r"the scan sums reads the state of scan") as caught:
        te.scan(rows, update, outer, name="whole")
    assert "let one scan run over both" in caught.value.hint
