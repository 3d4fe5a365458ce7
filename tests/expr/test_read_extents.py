"""Reductions whose bounds are read from memory: rows of a sparse matrix, windows that data say."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tedsl as te

FIRST = np.array([0, 3, 3, 5, 9, 10, 14], "int32")


def rows_of(nnz: Any, dtype: str = "int32") -> tuple[Any, list[te.Tensor]]:
    """The sums of six rows of a sparse matrix."""
    first = te.placeholder((7,), dtype, name="first")
    data = te.placeholder((nnz,), name="data")

    def row(i: te.Axis) -> te.Expr:
        k = te.reduce_axis((first[i], first[i + 1]), name="k")
        return te.sum(data[k], axis=k)

    return te.compute((6,), row, name="rows"), [first, data]


def wanted(data: np.ndarray) -> np.ndarray:
    ends = itertools.pairwise(FIRST)
    return np.array([data[begin:end].sum() for begin, end in ends])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("nnz", [14, "n"])
@pytest.mark.parametrize(
    "target",
    [
        "reference",
        pytest.param("cpu", marks=pytest.mark.cpu),
        pytest.param("triton-interpret", marks=pytest.mark.ptxas),
    ],
)
def test_sparse_rows(nnz: Any, dtype: str, target: str) -> None:
    out, tensors = rows_of(te.size_var("n") if nnz == "n" else nnz, dtype)
    data = np.random.default_rng(0).standard_normal(14).astype("float32")
    first = FIRST.astype(dtype)
    if target == "reference":
        found = te.evaluate(out, dict(zip(tensors, (first, data), strict=True)))[0]
    else:
        found = te.build(out, target)(first=first, data=data)
    np.testing.assert_allclose(found, wanted(data), 1e-5, 1e-5)


def test_the_shortest_dimension_that_moves_with_the_axis_counts() -> None:
    """Neither what is read at other places nor a longer dimension."""
    X, Y = te.placeholder((5, 12), name="X"), te.placeholder((40,), name="Y")
    end = te.placeholder((5,), "int32", name="end")

    def row(i: te.Axis) -> te.Expr:
        k = te.reduce_axis((0, end[i]), name="k")
        return te.max(X[i, 11 - k] + Y[2 * k + i] + X[i // 2, k // 4], axis=k)

    out = te.compute((5,), row, name="out")
    (k,) = out.op.reduce_axis
    assert k.dom is not None and k.dom.extent == 12
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 12)), rng.standard_normal(40)
    ends = np.array([1, 12, 0, 5, 2], "int32")
    found = te.evaluate(out, {X: x.astype("f4"), Y: y.astype("f4"), end: ends})[0]
    for i, e in enumerate(ends):
        terms = [x[i, 11 - k] + y[2 * k + i] + x[i // 2, k // 4] for k in range(e)]
        np.testing.assert_allclose(found[i], max(terms, default=-np.inf), 1e-5)


@pytest.mark.parametrize("kind", ["guarded", "where", "no read", "not alone"])
def test_what_says_no_extent_is_refused_with_what_to_write(kind: str) -> None:
    X, end = te.placeholder((12,), name="X"), te.placeholder((5,), "int32", name="end")

    def row(i: te.Axis) -> te.Expr:
        k = te.reduce_axis((0, end[i]), name="k")
        match kind:
            case "guarded":
                return te.sum(te.if_then_else(k < 12, X[k], 0.0), axis=k)
            case "where":
                return te.sum(X[k], axis=k, where=k < 7)
            case "no read":
                return te.sum(te.cast(k, "float32"), axis=k)
            case _:
                return te.sum(X[k * k % 12], axis=k)

    with pytest.raises(te.ExprError, match=r"no read of the terms says(.|\n)*where=k < end\[i\]"):
        te.compute((5,), row, name="out")
