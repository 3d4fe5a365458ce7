"""Gradients through scans: every form of recurrence against central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numeric import check
from scans import listed

import tedsl as te
from tedsl.reference.reference import evaluate
from tedsl.tensor.printer import print_graph
from tedsl.tensor.tensor import ScanOp, Tensor

Inputs = dict[te.Tensor, Any]


def given(*shape: te.Expr | int, name: str = "X") -> te.Tensor:
    return te.placeholder(shape, "float64", name=name)


def draws(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape)


def one(made: Tensor | list[Tensor]) -> Tensor:
    (result,) = listed(made)
    return result


def product(rows: te.Expr | int = 5) -> tuple[te.Tensor, te.Tensor]:
    """The cumulative product of the rows of X."""
    x, s = given(rows, 3), given(rows, 3, name="S")
    first = te.compute((1, 3), lambda t, i: x[0, i], name="first")
    step = te.compute((rows, 3), lambda t, i: s[t - 1, i] * x[t, i], name="U")
    return one(te.scan(first, step, s, name="H")), x


def test_linear_recurrence() -> None:
    x, a, b, s = given(6, 2), given(2, name="A"), given(1, 2, name="B"), given(6, 2, name="S")
    step = te.compute((6, 2), lambda t, i: a[i] * s[t - 1, i] + x[t, i], name="U")
    h = one(te.scan(b, step, s, name="H"))
    check(h, {x: draws(6, 2), a: draws(2), b: draws(1, 2)}, [x, a, b])


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_cumulative_product_of_symbolic_length(rows: int) -> None:
    n = te.size_var("n")
    h, x = product(n)
    check(h, {x: draws(rows, 3)}, [x], {n: rows})


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_start_for_rows_that_may_not_be_there(rows: int) -> None:
    n = te.size_var("n")
    x, start, s = given(n, 3), given(2, 3, name="start"), given(n, 3, name="S")
    step = te.compute((n, 3), lambda t, i: s[t - 1, i] * s[t - 2, i] + x[t, i], name="U")
    h = one(te.scan(start, step, s, name="H"))
    check(h, {x: draws(rows, 3), start: draws(2, 3)}, [x, start], {n: rows})


def test_every_row_is_given() -> None:
    h, x = product(1)
    check(h, {x: draws(1, 3)}, [x])


def test_two_rows_back() -> None:
    x, a, s = given(2, 3), given(3, name="A"), given(7, 3, name="S")
    two = te.compute((2, 3), lambda t, i: x[t, i] * 2.0, name="two")
    step = te.compute((7, 3), lambda t, i: a[i] * s[t - 1, i] + s[t - 2, i] * s[t - 1, i], name="U")
    h = one(te.scan(two, step, s, name="fib"))
    check(h, {x: draws(2, 3) * 0.5, a: draws(3)}, [x, a])


def test_a_reduction_over_the_rows_before() -> None:
    x, w, s = given(3, 2), given(3, name="W"), given(8, 2, name="S")
    k = te.reduce_axis((0, 3), name="k")
    first = te.compute((3, 2), lambda t, i: x[t, i], name="first")
    step = te.compute(
        (8, 2),
        lambda t, i: te.sum(w[k] * s[t - 1 - k, i] * s[t - 1 - k, i], axis=k),
        name="U",
    )
    h = one(te.scan(first, step, s, name="H"))
    check(h, {x: draws(3, 2) * 0.7, w: draws(3) * 0.7}, [x, w])


def test_guarded_rows_and_neighbours() -> None:
    """A row that is not always there, columns that need each other, and a singularity at a row
    that no step reads."""
    x, s = given(5, 3), given(5, 3, name="S")
    first = te.compute((1, 3), lambda t, i: te.const(0.5, "float64"), name="first")
    step = te.compute(
        (5, 3),
        lambda t, i: (
            te.if_then_else(t >= 2, s[t - 2, i], 1.0) * s[t - 1, i]
            + te.if_then_else(i > 0, s[t - 1, te.max(i - 1, 0)], 0.0)
            + te.log(x[t, i])
        ),
        name="U",
    )
    h = one(te.scan(first, step, s, name="H"))
    values = draws(5, 3) + 1.5
    values[0] = 0.0
    (gradient,) = te.gradient(h, x, head := given(5, 3, name="head"))
    (found,) = evaluate(gradient, {x: values, head: np.ones((5, 3))})
    assert np.isfinite(found).all() and not found[0].any()
    check(h, {x: draws(5, 3) + 1.5}, [x])


def cell() -> tuple[te.Tensor, Inputs]:
    x, w, v, h0 = given(4, 2, 3), given(3, 3, name="W"), given(3, 3, name="V"), given(1, 2, 3)
    s = given(4, 2, 3, name="S")
    k, n = te.reduce_axis((0, 3), name="k"), te.reduce_axis((0, 3), name="n")
    fed = te.compute(x.shape, lambda t, b, i: te.sum(x[t, b, n] * v[n, i], axis=n), name="fed")
    mix = te.compute(x.shape, lambda t, b, i: te.sum(s[t - 1, b, k] * w[k, i], axis=k), name="mix")
    step = te.compute(x.shape, lambda t, b, i: te.tanh(mix[t, b, i] + fed[t, b, i]), name="U")
    h = one(te.scan(h0, step, s, name="h"))
    y = te.compute(x.shape, lambda t, b, i: h[t, b, i] * h[t, b, i], name="y")
    return y, {t: draws(*(int(str(e)) for e in t.shape)) for t in (x, w, v, h0)}


def test_recurrent_cell(golden: Callable[..., None]) -> None:
    """The step is not computed again: the derivative of tanh is made of the result, and weights
    get theirs from one product over all steps."""
    y, inputs = cell()
    golden(print_graph(check(y, inputs, list(inputs))))


def test_two_states_and_a_count() -> None:
    """States that need each other, with one start; an integer one has no derivative."""
    x, h, c = given(5, 3), given(5, 3, name="h"), given(5, 3, name="c")
    number = te.placeholder((5, 3), "int32", name="number")
    start = given(1, 3, name="start")
    none = te.compute((1, 3), lambda t, i: te.const(0, "int32"), name="none")
    count = te.compute((5, 3), lambda t, i: number[t - 1, i] + 1, name="count")
    nc = te.compute((5, 3), lambda t, i: te.sigmoid(h[t - 1, i]) * c[t - 1, i] + x[t, i], name="nc")
    nh = te.compute((5, 3), lambda t, i: te.tanh(nc[t, i]) / te.cast(count[t, i], "float64"))
    made = te.scan([start, start, none], [nh, nc, count], [h, c, number], name="cell")
    a, b, _ = listed(made)
    y = te.compute((5, 3), lambda t, i: a[t, i] + b[t, i] * a[t, i], name="y")
    check(y, {x: draws(5, 3), start: draws(1, 3)}, [x, start])


def test_jacobian_and_second_derivative() -> None:
    h, x = product(3)
    value = draws(3, 3)
    (jacobian,) = te.gradient(h, x)
    (found,) = evaluate(jacobian, {x: value})
    assert found.shape == (3, 3, 3, 3)
    head = given(3, 3, name="head")
    (row,) = te.gradient(h, x, head)
    weights = draws(3, 3)
    (want,) = evaluate(row, {x: value, head: weights})
    np.testing.assert_allclose(np.einsum("ab,abij->ij", weights, found), want)
    values = {x: value, head: weights}
    check(row, values, [x, head])


def test_of_what_is_not_reached() -> None:
    h, _ = product()
    other = given(2, name="other")
    (gradient,) = te.gradient(h, [other], given(5, 3, name="head"))
    assert not any(isinstance(op, ScanOp) for op in [gradient.op])
    (found,) = evaluate(gradient, {})
    assert not found.any()


def test_by_the_result() -> None:
    """The result is an input of what reads it: its rows do not follow from one another then."""
    h, x = product()
    y = te.compute((5, 3), lambda t, i: h[t, i] * h[t, i], name="y")
    (gradient,) = te.gradient(y, [h], head := given(5, 3, name="head"))
    value = draws(5, 3)
    (found,) = evaluate(gradient, {x: value, head: np.ones((5, 3))})
    np.testing.assert_allclose(found, 2 * np.cumprod(value, axis=0))


def test_sixteen_bits_accumulate_in_thirty_two() -> None:
    x, s = (te.placeholder((4, 3), "float16", name=name) for name in "XS")
    first = te.compute((1, 3), lambda t, i: x[0, i], name="first")
    step = te.compute((4, 3), lambda t, i: s[t - 1, i] * x[t, i], name="U")
    h = one(te.scan(first, step, s, name="H"))
    (gradient,) = te.gradient(h, x, te.placeholder((4, 3), name="head"))
    assert gradient.dtype is x.dtype
    scans = [op for op in te.create_schedule(gradient).stages if isinstance(op.op, ScanOp)]
    assert [str(each.op.output_dtypes[0]) for each in scans] == ["float32", "float16"]


def all_before(rows: te.Expr | int) -> tuple[te.Tensor, te.Tensor]:
    """Each row from all rows before it."""
    s, start = given(rows, 2, name="S"), given(1, 2)
    k = te.reduce_axis((0, rows), name="k")
    every = te.compute(
        (rows, 2), lambda t, i: te.sum(te.sin(s[k, i]), axis=k, where=k < t), name="every"
    )
    return one(te.scan(start, every, s, name="far")), start


def test_from_all_rows_before() -> None:
    h, start = all_before(6)
    check(h, {start: draws(1, 2)}, [start])


def test_refusals() -> None:
    h, _ = product()
    head = given(5, 3, name="head")
    step = next(op for op in te.create_schedule(h).stages if op.name == "U").op
    with pytest.raises(te.ExprError, match=r"U belongs to the steps of scan 'H'"):
        te.gradient(h, [step.outputs[0]], head)
    n = te.size_var("n")
    with pytest.raises(te.ExprError, match=r"S\[k, i\] in every is at no fixed number of steps"):
        te.gradient(*all_before(n), given(n, 2, name="head"))
    long = given(40, 2, name="S")
    start = given(20, 2)
    back = te.compute((40, 2), lambda t, i: long[t - 20, i] * 0.5, name="back")
    distant = one(te.scan(start, back, long, name="distant"))
    with pytest.raises(te.ExprError, match=r"S\[t - 20, i\] is up to 20 steps back of scan"):
        te.gradient(distant, start, given(40, 2, name="head"))
