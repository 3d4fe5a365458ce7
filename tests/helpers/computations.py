"""Small computations that tests schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tedsl as te
from tedsl.tensor.tensor import Tensor


@dataclass(frozen=True)
class Matmul:
    """D = relu(C + bias), C = A @ B."""

    A: Tensor
    B: Tensor
    bias: Tensor
    C: Tensor
    D: Tensor


def matmul(m: Any = 64, n: Any = 48, depth: Any = 32) -> Matmul:
    """A matrix product and an epilogue."""
    A = te.placeholder((m, depth), name="A")
    B = te.placeholder((depth, n), name="B")
    bias = te.placeholder((n,), name="bias")
    k = te.reduce_axis((0, depth), name="k")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute((m, n), lambda i, j: te.relu(C[i, j] + bias[j]), name="D")
    return Matmul(A, B, bias, C, D)


@dataclass(frozen=True)
class Chain:
    """B = A + 1; C = B * 2; D = C - B."""

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor


def chain(*shape: Any) -> Chain:
    """Three element-wise stages, of which the last reads both others."""
    A = te.placeholder(shape, name="A")
    B = te.compute(shape, lambda *i: A[i] + 1.0, name="B")
    C = te.compute(shape, lambda *i: B[i] * 2.0, name="C")
    D = te.compute(shape, lambda *i: C[i] - B[i], name="D")
    return Chain(A, B, C, D)


def row_sum(rows: Any = 8, columns: Any = 100) -> tuple[Tensor, Tensor]:
    """X and the sums of its rows, B."""
    X = te.placeholder((rows, columns), name="X")
    k = te.reduce_axis((0, columns), name="k")
    return X, te.compute((rows,), lambda i: te.sum(X[i, k], axis=k), name="B")


def argmax(columns: int = 100, keep_first: bool = True) -> tuple[Any, Any]:
    """Index and value of each row's maximum, M; `keep_first` tells equal values apart by index."""

    def earlier(x: Any, y: Any) -> tuple[Any, Any]:
        before = (x[1] > y[1]) | ((x[1] == y[1]) & (x[0] <= y[0]))
        first = before if keep_first else x[1] >= y[1]
        return te.select(first, x[0], y[0]), te.select(first, x[1], y[1])

    reducer = te.comm_reducer(
        earlier, lambda i, v: (te.const(-1, i), te.min_value(v)), name="argmax"
    )
    X = te.placeholder((8, columns), name="X")
    k = te.reduce_axis((0, columns), name="k")
    index, value = te.compute((8,), lambda i: reducer((k, X[i, k]), axis=k), name="M")
    return index, value
