"""Rows by number, positions of extremes and running sums, against numpy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_values import DTYPES, TOLERANCE, Inputs, agrees, built, needs_torch, torch

import tedsl as te
from tedsl.expr.numerics import numpy_dtype

nn = te.nn
INF, NAN = np.inf, np.nan


# Rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, "int16", "bool"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 0), (2, 3)])
def test_embedding(shape: tuple[int, ...], dtype: str) -> None:
    given = Inputs(dtype)
    weight, i = given.normal(5, 3, scale=3.0), given.integers(5, *shape, dtype="int32")
    found = given.found(nn.embedding(i, weight))
    np.testing.assert_array_equal(found, given.values[weight][given.values[i]])


def test_rows_that_are_read_often_add_up_their_derivatives() -> None:
    given = Inputs("float16")
    weight, i = given.normal(3, 2), given.given(np.array([0, 2, 2, 0, 2]), "i")
    head = given.given(np.full((5, 2), 0.5, "f2"), "h")
    (by_weight,) = te.gradient(nn.embedding(i, weight), [weight], head)
    np.testing.assert_array_equal(given.found(by_weight), [[1, 1], [0, 0], [1.5, 1.5]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_one_hot(dtype: str) -> None:
    given = Inputs()
    i = given.integers(5, 2, 3, dtype=dtype)
    made = nn.one_hot(i, 5)
    assert made.dtype == "int64"
    np.testing.assert_array_equal(given.found(made), np.eye(5)[given.values[i].astype("i8")])
    few = nn.one_hot(i, 3, "float16")
    assert few.dtype == "float16"
    np.testing.assert_array_equal(
        given.found(few), np.eye(5)[given.values[i].astype("i8")][..., :3]
    )
    outside = given.given(np.array([-1, 7]), "o")
    assert not given.found(nn.one_hot(outside, 5)).any()


# Positions --------------------------------------------------------------------------------------

KINDS = (*DTYPES, "int8", "uint32", "bool")


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_positions(axis: int | None, dtype: str) -> None:
    """Few different values, so that there are ties."""
    given = Inputs()
    x = given.given(given.random.integers(0, 3, (4, 5, 6)).astype(numpy_dtype(te.DType(dtype))))
    values = given.values[x].astype("f8")
    for ours, theirs in ((nn.argmax, np.argmax), (nn.argmin, np.argmin)):
        for keepdims in (False, True):
            made = ours(x, axis, keepdims)
            assert made.dtype == "int64"
            wanted = theirs(values, axis, keepdims=keepdims)
            np.testing.assert_array_equal(given.found(made), wanted)
            assert given.found(made).shape == np.shape(wanted)


ROWS = np.array(
    [
        [-INF, -INF, -INF],
        [INF, INF, 0],
        [0, NAN, NAN],
        [NAN, INF, -INF],
        [-0.0, 0.0, -0.0],
        [-1e4, 1e4, 1e4],
    ],
    "f4",
)


def test_special_values() -> None:
    """As in numpy: NaN comes before all numbers, and what is equal is decided by the place."""
    given = Inputs()
    x = given.given(ROWS)
    np.testing.assert_array_equal(given.found(nn.argmax(x, 1)), ROWS.argmax(1))
    np.testing.assert_array_equal(given.found(nn.argmin(x, 1)), ROWS.argmin(1))
    lowest = given.given(np.full((2, 3), -128, "i1"), "low")
    assert given.found(nn.argmax(lowest, 1)).tolist() == [0, 0]


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_positions_of_a_kernel(target: str) -> None:
    n = te.var("n")
    x = te.placeholder((n, 3), name="x")
    found = built(target, nn.argmax(x, 1), ROWS)
    np.testing.assert_array_equal(found, ROWS.argmax(1))
    if target == "cpu":
        y = te.placeholder((3, n), name="y")
        found = built(target, nn.argmin(y), np.ascontiguousarray(ROWS.T))
        np.testing.assert_array_equal(found, ROWS.T.argmin())


def test_one_and_none() -> None:
    given = Inputs()
    one, none = given.normal(3, 1), given.normal(0, 4)
    assert given.found(nn.argmax(one, 1)).tolist() == [0, 0, 0]
    assert given.found(nn.argmax(none, 1)).shape == (0,)


# Running sums -----------------------------------------------------------------------------------


def running(x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    turned = np.flip(x, axis) if reverse else x
    sums = np.cumsum(turned, axis, dtype="f8") - (turned if exclusive else 0)
    return np.flip(sums, axis) if reverse else sums


WAYS = [(e, r) for e in (False, True) for r in (False, True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum(axis: int, dtype: str) -> None:
    for shape in ((4, 3, 5), (1, 1, 1), (2, 0, 3), (0, 2, 0)):
        given = Inputs(dtype)
        x = given.normal(*shape)
        for exclusive, reverse in WAYS:
            made = nn.cumsum(x, axis, exclusive, reverse)
            given.check(made, running(given.wide(x), axis, exclusive, reverse))


def test_dtypes_of_sums() -> None:
    given = Inputs()
    flags, small = (
        given.given(np.array([True, True, False, True])),
        given.given(np.full(4, 100, "i1")),
    )
    for x, dtype, kind, wanted in (
        (flags, None, "int32", [1, 2, 2, 3]),
        (small, None, "int8", [100, -56, 44, -112]),
        (small, "int64", "int64", [100, 200, 300, 400]),
        (small, "float16", "float16", [100, 200, 300, 400]),
    ):
        made = nn.cumsum(x, dtype=dtype)
        assert made.dtype == kind
        assert given.found(made).tolist() == wanted


def test_many_small_terms() -> None:
    """Added up in float16, sums of 0.01 would stay below 32."""
    given = Inputs("float16")
    x = given.given(np.full(5_000, 0.02, "f2"))
    np.testing.assert_allclose(given.found(nn.cumsum(x))[-1], 100, rtol=2e-3)


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_sums_of_a_kernel(target: str) -> None:
    n = te.var("n")
    x = te.placeholder((3, n), "float16", name="x")
    kernel = te.build(nn.cumsum(x, exclusive=True, reverse=True), target=target, cache=False)
    for size in (0, 1, 6):
        values = np.random.default_rng(size).standard_normal((3, size)).astype("f2")
        bound = TOLERANCE["float16"]
        wanted = running(values.astype("f8"), 1, True, True)
        found: Any = kernel(values)
        np.testing.assert_allclose(found.astype("f8"), wanted, rtol=bound, atol=bound)


@pytest.mark.cpu
def test_a_kernel_of_rows() -> None:
    given = Inputs()
    weight, i = given.normal(5, 3), given.integers(5, 4, 2)
    agrees("cpu", nn.embedding(i, weight), given)


@needs_torch
def test_against_torch() -> None:
    given = Inputs()
    x, i = given.given(ROWS), given.integers(5, 2, 3)
    weight, y = given.normal(5, 4), given.normal(4, 6)
    rows, numbers = given.torch(x), given.torch(i)
    f = torch.nn.functional
    pairs: list[tuple[te.Tensor, Any]] = [
        (nn.argmax(x, 1), torch.argmax(rows, 1)),
        (nn.argmin(x, 1, True), torch.argmin(rows, 1, keepdim=True)),
        (nn.argmax(y), torch.argmax(given.torch(y))),
        (nn.embedding(i, weight), f.embedding(numbers, given.torch(weight))),
        (nn.one_hot(i, 5), f.one_hot(numbers, 5)),
        (nn.cumsum(y, 0), torch.cumsum(given.torch(y), 0)),
    ]
    for ours, theirs in pairs:
        found = given.found(ours)
        assert found.dtype == theirs.numpy().dtype
        np.testing.assert_allclose(found, theirs.numpy(), rtol=1e-5, atol=1e-6)


X = te.placeholder((4, 9), name="x")
TARGET = te.placeholder((4,), "int32", name="t")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.embedding(X, X), r"embedding: x is float32, not an integer"),
        (lambda: nn.embedding(TARGET, TARGET), r"t has 1 dimensions, 2 are needed"),
        (lambda: nn.one_hot(X, 3), r"one_hot: x is float32, not an integer"),
        (lambda: nn.one_hot(TARGET, -1), r"extent 1 is -1, below 0"),
        (lambda: nn.argmax(X, 2), r"argmax: x has 2 dimensions, there is no axis 2"),
        (lambda: nn.argmin(te.placeholder((), name="s")), r"s has 0 dimensions, at least 1"),
        (
            lambda: nn.argmin(te.placeholder((3, 0), name="e"), 1),
            r"argmin: e has the extent 0 along axis 1: there is nothing to search",
        ),
        (lambda: nn.argmax(te.placeholder((3, 0), name="e")), r"nothing to search"),
        (lambda: nn.cumsum(X, 3), r"cumsum: x has 2 dimensions, there is no axis 3"),
        (lambda: nn.cumsum(X, dtype="real"), r"unknown dtype 'real'"),
    ],
)
def test_refusals(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
