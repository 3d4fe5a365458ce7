"""Rows that several programs may share."""

from __future__ import annotations

import tedsl as te


def softmax(m: int, n: int, dtype: str = "float32") -> te.Tensor:
    """The softmax of rows, with a stage for the maximum and one for the sum."""
    x = te.placeholder((m, n), dtype, name="x")
    k, r = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "r")

    def wide(i: te.Expr, j: te.Expr) -> te.Expr:
        return x[i, j].astype("float32")

    top = te.compute((m,), lambda i: te.max(wide(i, k), axis=k), name="top")
    z = te.compute((m,), lambda i: te.sum(te.exp(wide(i, r) - top[i]), axis=r), name="z")
    return te.compute(
        (m, n), lambda i, j: (te.exp(wide(i, j) - top[i]) / z[i]).astype(dtype), name="y"
    )
