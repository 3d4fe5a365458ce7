"""Adjoints that are zero by algebra are not computed; others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numeric import check

import tedsl as te
from tedsl.tensor.printer import print_graph

F8 = "float64"


def row(x: te.Tensor, fold: Any, body: Callable[..., te.Expr], name: str, **more: Any) -> te.Tensor:
    """`fold` of `body(i, k)` over each row."""
    k = te.reduce_axis((0, x.shape[1]), name="k")
    options = {key: value(k) for key, value in more.items()}
    return te.compute((x.shape[0],), lambda i: fold(body(i, k), axis=k, **options), name=name)


def log_softmax(x: te.Tensor) -> te.Tensor:
    top = row(x, te.max, lambda i, k: x[i, k], "top")
    total = row(x, te.sum, lambda i, k: te.exp(x[i, k] - top[i]), "total")
    return te.compute(x.shape, lambda i, j: x[i, j] - top[i] - te.log(total[i]), name="y")


def masked_softmax(x: te.Tensor) -> te.Tensor:
    top = row(x, te.max, lambda i, k: x[i, k], "top", where=lambda k: k % 3 != 1)
    total = row(
        x, te.sum, lambda i, k: te.exp(x[i, k] - top[i]), "total", where=lambda k: k % 3 != 1
    )

    def element(i: te.Axis, j: te.Axis) -> te.Expr:
        value = te.exp(x[i, j] - top[i]) / total[i]
        return te.if_then_else(j % 3 != 1, value, te.const(0.0, x.dtype))

    return te.compute(x.shape, element, name="y")


def base_two(x: te.Tensor) -> te.Tensor:
    top = row(x, te.max, lambda i, k: x[i, k], "top")
    total = row(x, te.sum, lambda i, k: te.exp2((x[i, k] - top[i]) * 1.4427), "total")
    return te.compute(
        x.shape, lambda i, j: te.exp2((x[i, j] - top[i]) * 1.4427) / total[i], name="y"
    )


def cross_entropy(x: te.Tensor) -> te.Tensor:
    y = log_softmax(x)
    return row(x, te.sum, lambda i, k: y[i, k] * te.sin(x[i, k]), "loss")


def variance(x: te.Tensor) -> te.Tensor:
    top = row(x, te.sum, lambda i, k: x[i, k], "top")
    n = te.cast(x.shape[1], x.dtype)

    def square(i: te.Expr, k: te.Expr) -> te.Expr:
        return (x[i, k] - top[i] / n) * (x[i, k] - top[i] / n)

    return row(x, te.sum, square, "y")


VANISHING = [te.nn.softmax, log_softmax, masked_softmax, base_two, cross_entropy, variance]


def adjoints(output: te.Tensor, x: te.Tensor, h: te.Tensor) -> str:
    return print_graph(te.gradient(output, [x], h))


@pytest.mark.parametrize("function", VANISHING)
@pytest.mark.parametrize("columns", [7, te.size_var("n")])
def test_shifts_that_change_nothing(
    function: Callable[[te.Tensor], te.Tensor], columns: int | te.Var
) -> None:
    x = te.placeholder((3, columns), F8, name="x")
    sizes = {columns: 7} if isinstance(columns, te.Var) else None
    values = np.random.default_rng(3).standard_normal((3, 7))
    output = function(x)
    check(output, {x: values}, [x], sizes)
    text = adjoints(output, x, te.placeholder(output.shape, F8, name="h"))
    assert "top.arg" not in text and "max.arg" not in text
    assert "_d_top" not in text and "_d_softmax.max" not in text


def not_normalised(x: te.Tensor) -> te.Tensor:
    top = row(x, te.max, lambda i, k: x[i, k], "top")
    return te.compute(x.shape, lambda i, j: te.exp(x[i, j] - top[i]), name="y")


def other_row(x: te.Tensor) -> te.Tensor:
    """The sum of another row: nothing cancels."""
    top = row(x, te.max, lambda i, k: x[i, k], "top")
    total = row(x, te.sum, lambda i, k: te.exp(x[i, k] - top[i]), "total")
    return te.compute(x.shape, lambda i, j: te.exp(x[i, j] - top[i]) / total[2 - i], name="y")


def other_mask(x: te.Tensor) -> te.Tensor:
    top = row(x, te.max, lambda i, k: x[i, k], "top")
    total = row(x, te.sum, lambda i, k: te.exp(x[i, k]), "total", where=lambda k: k < 4)
    return te.compute(x.shape, lambda i, j: te.exp(x[i, j] - top[i]) / total[i], name="y")


def other_center(x: te.Tensor) -> te.Tensor:
    """The mean of all but one: the deviations do not add up to 0."""
    top = row(x, te.sum, lambda i, k: x[i, k], "top", where=lambda k: k > 0)
    return row(x, te.sum, lambda i, k: te.power(x[i, k] - top[i] / 6.0, 2), "y")


def other_range(x: te.Tensor) -> te.Tensor:
    top = row(x, te.max, lambda i, k: x[i, k], "top")
    k = te.reduce_axis((1, 7), name="k")
    total = te.compute((3,), lambda i: te.sum(te.exp(x[i, k] - top[i]), axis=k), name="total")
    return te.compute(x.shape, lambda i, j: te.exp(x[i, j] - top[i]) / total[i], name="y")


@pytest.mark.parametrize(
    "function", [not_normalised, other_row, other_mask, other_center, other_range]
)
def test_shifts_that_matter(function: Callable[[te.Tensor], te.Tensor]) -> None:
    x = te.placeholder((3, 7), F8, name="x")
    output = function(x)
    check(output, {x: np.random.default_rng(3).standard_normal((3, 7))}, [x])
    h = te.placeholder(output.shape, F8, name="h")
    if function is not other_range:
        assert "_d_top" in adjoints(output, x, h)


def test_integers_from_memory_are_not_reasoned_about() -> None:
    """`uint8` 200 + 100 is 44, so the sum of both as floats differs from the float of the sum."""
    x = te.placeholder((2,), F8, name="x")
    a = te.placeholder((2,), "uint8", name="a")

    def element(i: te.Axis) -> te.Expr:
        both = (a[i] + a[i]).astype(F8)
        return x[i] * (both - a[i].astype(F8) - a[i].astype(F8))

    y = te.compute((2,), element, name="y")
    check(y, {x: np.array([1.0, 2.0]), a: np.array([100, 200], "u1")}, [x])
