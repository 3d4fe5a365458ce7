"""Rounding errors of long sums by the rules of the CPU: those of pairwise summation, not those of
one accumulator."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tedsl as te
from tedsl.tensor.tensor import Tensor

EPS = float(np.finfo(np.float32).eps)


def down_columns(rows: int, columns: int) -> Tensor:
    x, k = te.placeholder((rows, columns), name="x"), te.reduce_axis((0, rows), name="k")
    return te.compute((columns,), lambda j: te.sum(x[k, j], axis=k), name="total")


def with_what_follows(rows: int, columns: int) -> Tensor:
    total = down_columns(rows, columns)
    return te.compute((columns,), lambda j: total[j] * 0.5 + 1.0, name="y")


def along_rows(rows: int, columns: int) -> Tensor:
    x, k = te.placeholder((rows, columns), name="x"), te.reduce_axis((0, columns), name="k")
    return te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name="total")


def everything(rows: int, columns: int) -> Tensor:
    x = te.placeholder((rows, columns), name="x")
    i, j = te.reduce_axis((0, rows), name="i"), te.reduce_axis((0, columns), name="j")
    return te.compute((), lambda: te.sum(x[i, j], axis=[i, j]), name="total")


@pytest.mark.parametrize(
    ("rows", "columns"), [(1030, 67), (10_007, 33), (100_003, 5), (5, 100_003)]
)
@pytest.mark.parametrize("defined", [down_columns, with_what_follows, along_rows, everything])
def test_errors_are_those_of_runs(defined, rows: int, columns: int) -> None:
    """Of n terms around 0, of size 1: units of rounding of the size of a sum, sqrt(n).  One
    accumulator for 1,000 terms and more has 6 to 13 of them."""
    out = defined(rows, columns)
    x = np.random.default_rng(3).standard_normal((rows, columns), np.float32)
    found = te.build(out, target="cpu")(x).astype(np.float64)
    terms = x.size if defined is everything else columns if defined is along_rows else rows
    worst = float(np.abs(found - _exact(defined, x)).max())
    assert worst <= 5 * EPS * math.sqrt(terms), worst / EPS / math.sqrt(terms)


def _exact(defined, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    if defined is everything:
        return wide.sum()
    if defined is along_rows:
        return wide.sum(1)
    return wide.sum(0) if defined is down_columns else wide.sum(0) * 0.5 + 1.0
