"""log_softmax and logsumexp; softmax itself is in test_nn.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_values import DTYPES, Inputs, agrees, needs_torch, torch

import tedsl as te

nn = te.nn
INF = np.inf


def logsumexp(x: Any, axis: int) -> Any:
    return np.logaddexp.reduce(x, axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_values(axis: int, dtype: str) -> None:
    given = Inputs(dtype)
    x = given.normal(3, 5, 7, scale=2.0)
    total = logsumexp(given.wide(x), axis)
    given.check(nn.logsumexp(x, axis), total)
    kept = np.expand_dims(total, axis)
    given.check(nn.logsumexp(x, axis, keepdims=True), kept)
    given.check(nn.log_softmax(x, axis), given.wide(x) - kept)


def test_extreme_values() -> None:
    given = Inputs()
    rows = [[1e4, -1e4, 0], [-1e4, -1e4, -1e4], [5, -INF, 5], [1e38, -1e38, 0]]
    x = given.given(np.array(rows, "f4"))
    total = logsumexp(given.wide(x), 1)
    given.check(nn.logsumexp(x), total)
    given.check(nn.log_softmax(x), given.wide(x) - total[:, None])


def test_infinite_rows() -> None:
    given = Inputs()
    x = given.given(np.array([[-INF, -INF], [INF, 0], [np.nan, 0], [INF, -INF]], "f4"))
    np.testing.assert_array_equal(given.found(nn.logsumexp(x)), [-INF, INF, np.nan, INF])
    assert np.isnan(given.found(nn.log_softmax(x))[[0, 1, 2, 3], 0]).all()


def test_no_elements() -> None:
    given = Inputs()
    x = given.normal(3, 0)
    np.testing.assert_array_equal(given.found(nn.logsumexp(x)), [-INF] * 3)
    assert given.found(nn.logsumexp(x, 0)).shape == (0,)
    assert given.found(nn.log_softmax(x)).shape == (3, 0)


def test_one_dimension_and_one_element() -> None:
    given = Inputs()
    x = given.given(np.array([1e4], "f4"))
    assert given.found(nn.logsumexp(x)) == 1e4
    assert given.found(nn.log_softmax(x)) == 0.0


@pytest.mark.cpu
def test_kernels_of_symbolic_sizes() -> None:
    n = te.var("n")
    x = te.placeholder((n, 7), name="x")
    one, two = nn.log_softmax(x), nn.logsumexp(x)
    both = te.compute((n, 7), lambda i, j: one[i, j] * 2.0 + two[i], name="both")
    kernel = te.build(both, target="cpu", cache=False)
    for size in (1, 5):
        values = np.random.default_rng(size).standard_normal((size, 7)).astype("f4") * 30
        total = logsumexp(values.astype("f8"), 1)[:, None]
        found: Any = kernel(values)
        np.testing.assert_allclose(found, 2 * (values - total) + total, rtol=1e-5, atol=1e-4)


@pytest.mark.cpu
def test_a_kernel_in_tritons_interpreter() -> None:
    given = Inputs()
    agrees("triton-interpret", nn.log_softmax(given.normal(5, 7, scale=30.0)), given)


@pytest.mark.cpu
def test_infinite_rows_of_a_kernel() -> None:
    given = Inputs()
    rows = np.array([[-INF, -INF, -INF], [INF, 0, 0], [0, -INF, 0]], "f4")
    agrees("cpu", nn.logsumexp(given.given(rows)), given)


@needs_torch
def test_against_torch() -> None:
    given = Inputs()
    x = given.normal(4, 9, scale=10.0)
    here = given.torch(x)
    given.check(nn.log_softmax(x, 0), torch.nn.functional.log_softmax(here, 0).numpy())
    given.check(nn.logsumexp(x, 1, True), torch.logsumexp(here, 1, keepdim=True).numpy())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nn.logsumexp(te.placeholder((3,), name="x"), 1),
            r"logsumexp: x has 1 dimensions, there is no axis 1[\s\S]*-1 \.\. 0",
        ),
        (lambda: nn.log_softmax(te.placeholder((), name="s")), r"s has 0 dimensions, at least 1"),
        (lambda: nn.logsumexp(te.placeholder((3,), "int8", name="i")), r"i is int8, not a float"),
    ],
)
def test_refusals(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
