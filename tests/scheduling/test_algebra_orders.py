"""Reducers that keep one of two elements: which are proved to combine in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.scheduling.algebra.orders import keeps_one

N = 300


def made(combine: Any, dtypes: tuple[str, ...] = ("float32", "int32")) -> te.Tensor:
    """A reduction by this combination over pairs of an element and its place."""
    x = te.placeholder((N,), dtypes[0], name="x")
    k = te.reduce_axis((0, N), name="k")
    low = {"float32": -np.inf, "int32": -(2**31)}[dtypes[0]]
    reducer = te.comm_reducer(
        combine, lambda *_: (te.const(low, dtypes[0]), te.const(2**30, "int32"))
    )
    return te.compute((1,), lambda i: reducer((x[k], k), axis=k), name="best")[0]


def kept(tensor: te.Tensor) -> bool:
    """Whether the reducer of a reduction is proved by its orders."""
    op: Any = tensor.op
    return keeps_one(op.bodies[0].reducer)


def first_of_largest(a: tuple[te.Expr, ...], b: tuple[te.Expr, ...]) -> tuple[te.Expr, ...]:
    """The usual argmax: the earlier place of equal elements."""
    mine = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return te.select(mine, a[0], b[0]), te.select(mine, a[1], b[1])


def left_of_largest(a: tuple[te.Expr, ...], b: tuple[te.Expr, ...]) -> tuple[te.Expr, ...]:
    """Of equal elements the one that comes first in the combination, whichever that is."""
    mine = a[0] >= b[0]
    return te.select(mine, a[0], b[0]), te.select(mine, a[1], b[1])


def circular(a: tuple[te.Expr, ...], b: tuple[te.Expr, ...]) -> tuple[te.Expr, ...]:
    """The larger element with the smaller place: no element that there was."""
    return te.select(a[0] > b[0], a[0], b[0]), te.select(a[0] > b[0], b[1], a[1])


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_first_of_the_largest(dtype: str) -> None:
    # NaN compares with nothing, so that either of two elements may stay: no law for floats.
    assert kept(made(first_of_largest, (dtype, "int32"))) is (dtype == "int32")


def test_places_of_equals_must_decide() -> None:
    assert not kept(made(left_of_largest, ("int32", "int32")))
    assert not kept(made(circular, ("int32", "int32")))


def test_arithmetic_is_not_tried() -> None:
    def larger_by_one(a: tuple[te.Expr, ...], b: tuple[te.Expr, ...]) -> tuple[te.Expr, ...]:
        mine = a[0] > b[0] + 1
        return te.select(mine, a[0], b[0]), te.select(mine, a[1], b[1])

    assert not kept(made(larger_by_one, ("int32", "int32")))


@pytest.mark.cpu
@pytest.mark.parametrize("search", [te.nn.argmax, te.nn.argmin])
@pytest.mark.parametrize("shape", [(70001,), (5, 3001)])
def test_the_place_of_an_extreme_is_found_in_vectors(search: Any, shape: tuple[int, ...]) -> None:
    x = te.placeholder(shape, "float32", name="x")
    place = search(x, axis=len(shape) - 1)
    kernel = te.build(place, target="cpu")
    assert any("vectorize" in line for line in kernel.schedule.as_python().splitlines())
    given = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
    for nan in (False, True):
        if nan:
            given[..., 77] = given[..., 2000] = np.nan
        expected = (np.argmax if search is te.nn.argmax else np.argmin)(given, axis=-1)
        np.testing.assert_array_equal(kernel(given), expected)
