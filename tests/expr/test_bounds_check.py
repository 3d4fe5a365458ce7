"""Reads that are proved to be outside are refused at the definition, guards considered."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te

N, M = te.var("n"), te.var("m")
A = te.placeholder((8,), name="A")
X = te.placeholder((N, M), name="X")
IDX = te.placeholder((8,), "int32", name="idx")


def test_counterexample() -> None:
    with pytest.raises(
        te.ExprError, match=r"compute C: A\[i \+ 1\] is outside A: i = 7 reads A\[8\]"
    ):
        te.compute((8,), lambda i: A[i + 1], name="C")
    with pytest.raises(te.ExprError, match=r"i = 0 reads A\[-1\], A has 8[\s\S]*if_then_else"):
        te.compute((8,), lambda i: A[i - 1] + A[i], name="C")
    with pytest.raises(te.ExprError, match=r"every point reads A\[-1\]"):
        te.compute((8,), lambda i: A[-1], name="C")


def test_rows_before_the_first_wait_for_a_scan() -> None:
    """As long as an input may turn out to be a scan's state; nothing else can use the result."""
    back = te.compute((8,), lambda i: A[i - 1], name="C")
    later = te.compute((8,), lambda i: back[i] + 1)
    for use in (
        lambda: te.create_schedule(later),
        lambda: te.build(later, target="cpu"),
        lambda: te.evaluate(later, {A: np.zeros(8, np.float32)}),
    ):
        with pytest.raises(te.ExprError, match=r"i = 0 reads A\[-1\], A has 8[\s\S]*if_then_else"):
            use()


def test_dimension_is_named() -> None:
    image = te.placeholder((6, 9), name="image")
    with pytest.raises(te.ExprError, match=r"x = 7 reads image\[y, 9\], image has 9 in dim"):
        te.compute((6, 8), lambda y, x: image[y, x + 2], name="blur")


def test_symbolic_sizes() -> None:
    with pytest.raises(te.ExprError, match=r"X\[i \+ 1, j\] is outside X: n = \d+, i = \d+ reads"):
        te.compute((N, M), lambda i, j: X[i + 1, j])
    with pytest.raises(te.ExprError, match=r"X\[j, i\] is outside X"):
        te.compute((N, M), lambda i, j: X[j, i])
    te.compute((N - 1, M), lambda i, j: X[i + 1, j] - X[i, j])
    te.compute((M, N), lambda i, j: X[j, i])
    te.compute((N,), lambda i: X[i, 0])
    te.compute((N, M), lambda i, j: X[N - 1 - i, j])


def test_if_then_else_guards() -> None:
    te.compute((8,), lambda i: te.if_then_else(i < 7, A[i + 1], 0))
    te.compute((8,), lambda i: te.if_then_else(i == 7, 0, A[i + 1]))
    te.compute((10,), lambda i: te.if_then_else(te.all(i >= 1, i < 9), A[i - 1], 0))
    te.compute((10,), lambda i: te.if_then_else(te.any(i < 1, i >= 9), 0, A[i - 1]))
    with pytest.raises(te.ExprError, match=r"i = 7 reads A\[8\]"):
        te.compute((8,), lambda i: te.if_then_else(i <= 7, A[i + 1], 0))


def test_select_does_not_guard() -> None:
    with pytest.raises(te.ExprError, match=r"i = 7 reads A\[8\]"):
        te.compute((8,), lambda i: te.select(i < 7, A[i + 1], 0))
    te.compute((8,), lambda i: A[te.select(i < 7, i + 1, 0)])
    te.compute((8,), lambda i: A[te.min(i + 1, 7)])


def test_where_guards() -> None:
    k = te.reduce_axis((0, 3), name="k")
    te.compute((8,), lambda i: te.sum(A[i + k], axis=k, where=i + k < 8))
    with pytest.raises(te.ExprError, match=r"i = 7, k = 1 reads A\[8\]|i = 7, k = 2 reads A\[9\]"):
        te.compute((8,), lambda i: te.sum(A[i + k], axis=k, where=i + k < 9))
    with pytest.raises(te.ExprError, match=r"compute C: A\[i \+ 1\] is outside"):
        te.compute((8,), lambda i: te.sum(A[k], axis=k, init=A[i + 1]), name="C")


def test_split_off_reductions_are_guarded() -> None:
    k = te.reduce_axis((0, 3), name="k")
    te.compute((8,), lambda i: te.if_then_else(i < 6, te.sum(A[i + k], axis=k), 0))
    with pytest.raises(te.ExprError, match=r"compute C\.red: A\[i \+ k\] is outside"):
        te.compute((8,), lambda i: 1 + te.sum(A[i + k], axis=k), name="C")


def test_reduction_ranges() -> None:
    k = te.reduce_axis((-1, 2), name="k")
    te.compute((6,), lambda i: te.sum(A[i + 1 + k], axis=k))
    with pytest.raises(te.ExprError, match=r"i = 0, k = -1 reads A\[-1\]"):
        te.compute((6,), lambda i: te.sum(A[i + k], axis=k))


def test_unknown_is_accepted() -> None:
    te.compute((8,), lambda i: A[IDX[i]])
    te.compute((8,), lambda i: te.if_then_else(IDX[i] > 3, A[i + 1], 0))
    te.compute((8,), lambda i: A[i + te.var("offset")])
    te.compute((8,), lambda i: te.if_then_else(i < te.var("limit"), A[i + 1], 0))


def test_data_dependent_indices_are_checked_inside() -> None:
    with pytest.raises(te.ExprError, match=r"idx\[i \+ 1\] is outside idx"):
        te.compute((8,), lambda i: A[IDX[i + 1]])
    byte = te.placeholder((8,), "uint8", name="byte")
    te.compute((8,), lambda i: te.placeholder((256,), name="T")[byte[i]])


def test_divisions() -> None:
    te.compute((16,), lambda i: A[i // 2])
    te.compute((16,), lambda i: A[i % 8])
    with pytest.raises(te.ExprError, match=r"i = 1[67] reads A\[8\]"):
        te.compute((18,), lambda i: A[i // 2])


def test_empty_spaces_read_nothing() -> None:
    te.compute((0,), lambda i: A[i + 100])
    k = te.reduce_axis((0, 0), name="k")
    te.compute((8,), lambda i: te.sum(A[i + 100], axis=k))
