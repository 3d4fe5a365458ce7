"""Text of expressions and graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tedsl as te
from tedsl.expr.nodes import Axis, Binary, BinaryOp
from tedsl.expr.printer import print_expr
from tedsl.tensor.printer import print_graph

i, j, n = Axis("i"), Axis("j"), te.var("n")
x = te.var("x", "float32")
A = te.placeholder((n, 16), name="A")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (i + j * 2, "i + j * 2"),
        ((i + j) * 2, "(i + j) * 2"),
        (i - (j - 1), "i - (j - 1)"),
        (i - j - 1, "i - j - 1"),
        (i + (j + n), "i + j + n"),
        (x + (x + 1.5), "x + (x + 1.5)"),
        (i * (j // 2) % 3, "i * (j // 2) % 3"),
        (-(i + 1), "-(i + 1)"),
        (i * -1, "i * -1"),
        ((i < 3) & (j >= n), "(i < 3) & (j >= n)"),
        (~((x < 3) | (i == j)), "~((x < 3.0) | (i == j))"),
        (i << 2 | j, "i << 2 | j"),
        (te.max(i, te.exp(x)), "max(float32(i), exp(x))"),
        (te.const(3, "int64"), "int64(3)"),
        (te.const(True), "True"),
        (te.select(i < j, i, 0), "select(i < j, i, 0)"),
        (te.if_then_else(i < j, A[i, j], 0), "if_then_else(i < j, A[i, j], 0.0)"),
        (te.truncdiv(i, j), "truncdiv(i, j)"),
        (x**0.5, "pow(x, 0.5)"),
        (Binary(BinaryOp.MUL, te.const(-2), i), "-2 * i"),
    ],
)
def test_expressions(expr: te.Expr, text: str) -> None:
    assert str(expr) == repr(expr) == print_expr(expr) == text


def test_tensors() -> None:
    assert repr(A) == "A: float32[n, 16]"
    assert repr(A[i]) == "A[i, ...]"
    assert repr(A.op) == "A = placeholder(float32[n, 16])"


def test_graph(golden: Callable[..., None]) -> None:
    """Names of a graph are made unique, in a fixed order; reductions show their ranges."""
    k = te.reduce_axis((0, n), name="i")
    b = te.placeholder((n, n), "float16", name="A")
    m = te.compute((n, 16), lambda i, j: te.sum(b[i, k] * A[k, j], axis=k), name="C")
    out = te.compute((n, 16), lambda i, j: (m[i, j] + 1, te.exp(m[i, j])), name="C")
    r = te.reduce_axis((1, n), name="r")
    last = te.compute(
        (), lambda: te.max(out[0][r, 0] - out[1][r - 1, 0], axis=r, where=r % 2 == 0), name="last"
    )
    golden(print_graph([last, out[0]]))


def test_deterministic() -> None:
    def text() -> str:
        a = te.placeholder((4,), name="a")
        return print_graph(a * 2 + a / 3)

    assert text() == text()
