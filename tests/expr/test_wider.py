"""What a sum adds up is computed in the type that it is added up in."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.nodes import Expr, Reduce
from tedsl.expr.visit import walk
from tedsl.expr.wider import holds
from tedsl.tensor.tensor import ComputeOp
from tedsl.tensor.verify_op import MAX_DEPTH

N = 8
B, C = (te.placeholder((N, N), "bfloat16", name=name) for name in "BC")
H = te.placeholder((N, N), "float16", name="H")
F = te.placeholder((N, N), "float8_e4m3fn", name="F")
Q, U = te.placeholder((N, N), "int8", name="Q"), te.placeholder((N, N), "uint8", name="U")
X = te.placeholder((N, N), "float32", name="X")
m = te.placeholder((), "bfloat16", name="m")
k = te.reduce_axis((0, N), name="k")


def body(term: Callable[[Expr, Expr], Expr], dtype: str | None = None) -> str:
    """The definition of the sum of `term` over k, as it prints."""
    made = te.compute((N, N), lambda i, j: te.sum(term(i, j), axis=k, dtype=dtype), name="T")
    assert isinstance(made.op, ComputeOp)
    return str(made.op.bodies[0]).removeprefix("sum(k)")


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (lambda i, j: B[i, k] * C[k, j], "(float32(B[i, k]) * float32(C[k, j]))"),
        (lambda i, j: B[i, k] * H[k, j], "(float32(B[i, k]) * float32(H[k, j]))"),
        (lambda i, j: B[i, k] * X[k, j], "(float32(B[i, k]) * X[k, j])"),
        (lambda i, j: B[i, k] * F[k, j], "(float32(B[i, k]) * float32(bfloat16(F[k, j])))"),
        (lambda i, j: B[i, k] * Q[k, j], "(float32(B[i, k]) * float32(bfloat16(Q[k, j])))"),
        (
            lambda i, j: (B[i, k] - m[()]) ** 2,
            "((float32(B[i, k]) - float32(m[])) * (float32(B[i, k]) - float32(m[])))",
        ),
        (
            lambda i, j: te.exp(B[i, k] - m[()]) * 0.1,
            "(exp(float32(B[i, k]) - float32(m[])) * 0.1)",
        ),
        (
            lambda i, j: te.if_then_else(i < k, B[i, k] * C[k, j], 0.0),
            "(if_then_else(i < k, float32(B[i, k]) * float32(C[k, j]), 0.0))",
        ),
        (
            lambda i, j: te.select(B[i, k] + C[k, j] > 0, -B[i, k], C[k, j] / 3),
            "(select(B[i, k] + C[k, j] > bfloat16(0.0), -float32(B[i, k]), "
            "float32(C[k, j]) / 3.0))",
        ),
        (lambda i, j: B[i, k], "(float32(B[i, k]))"),
        (lambda i, j: X[i, k] * X[k, j], "(X[i, k] * X[k, j])"),
        (lambda i, j: Q[i, k] * Q[k, j], "(int32(Q[i, k]) * int32(Q[k, j]))"),
    ],
)
def test_terms_are_computed_as_they_are_added(
    term: Callable[[Expr, Expr], Expr], expected: str
) -> None:
    assert body(term) == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (
            lambda i, j: (B[i, k] * C[k, j]).astype("bfloat16"),
            "(float32(B[i, k] * C[k, j]))",
        ),
        (lambda i, j: te.cast(B[i, k] * C[k, j], "bfloat16"), "(float32(B[i, k] * C[k, j]))"),
        (lambda i, j: (B[i, k] * C[k, j]).astype("float32"), "(float32(B[i, k] * C[k, j]))"),
        (
            lambda i, j: (B[i, k] * C[k, j]).astype("bfloat16") * m[()],
            "(float32(B[i, k] * C[k, j]) * float32(m[]))",
        ),
    ],
)
def test_a_cast_rounds(term: Callable[[Expr, Expr], Expr], expected: str) -> None:
    assert body(term) == expected


@pytest.mark.parametrize(
    ("term", "dtype", "expected"),
    [
        (lambda i, j: B[i, k] * C[k, j], "bfloat16", "(B[i, k] * C[k, j])"),
        (lambda i, j: B[i, k] * C[k, j], "float64", "(float64(B[i, k]) * float64(C[k, j]))"),
        (lambda i, j: X[i, k] * X[k, j], "float64", "(float64(X[i, k]) * float64(X[k, j]))"),
        (lambda i, j: X[i, k] * X[k, j], "float16", "(float16(X[i, k] * X[k, j]))"),
        (lambda i, j: Q[i, k] * Q[k, j], "int32", "(int32(Q[i, k]) * int32(Q[k, j]))"),
        (lambda i, j: Q[i, k] * Q[k, j] // 2, "int32", "(int32(Q[i, k]) * int32(Q[k, j]) // 2)"),
        (lambda i, j: Q[i, k] * Q[k, j] // 2, "float32", "(float32(Q[i, k] * Q[k, j] // int8(2)))"),
        (lambda i, j: Q[i, k] * Q[k, j], "float32", "(float32(Q[i, k]) * float32(Q[k, j]))"),
        (lambda i, j: (Q[i, k] * Q[k, j]).astype("int8"), "int32", "(int32(Q[i, k] * Q[k, j]))"),
        (lambda i, j: Q[i, k] * 2 >> 1, "int32", "(int32(Q[i, k] * int8(2) >> int8(1)))"),
        (lambda i, j: U[i, k] - U[k, j], "int32", "(int32(U[i, k]) - int32(U[k, j]))"),
        (lambda i, j: Q[i, k] - Q[k, j], "uint32", "(uint32(Q[i, k] - Q[k, j]))"),
        (lambda i, j: i * k, "float32", "(float32(i * k))"),
        (lambda i, j: i * k, "float64", "(float64(i) * float64(k))"),
    ],
)
def test_a_dtype_that_is_asked_for(
    term: Callable[[Expr, Expr], Expr], dtype: str, expected: str
) -> None:
    assert body(term, dtype) == expected


def test_products_follow_the_same_rule() -> None:
    made = te.prod(B[0, k] + 1, axis=k)
    assert str(made) == "prod(k)(float32(B[0, k]) + 1.0)"
    assert str(te.max(B[0, k] * C[k, 0], axis=k)) == "max(k)(B[0, k] * C[k, 0])"


def test_a_number_is_not_rounded_to_the_narrow_type() -> None:
    x = te.placeholder((N,), "bfloat16", name="x")
    total = te.compute((), lambda: te.sum(x[k] * 0.1, axis=k), name="total")
    (found,) = te.evaluate(total, {x: np.ones(N, ml_dtypes.bfloat16)})
    np.testing.assert_allclose(found, 0.8, rtol=1e-6)


def test_definitions_keep_no_cast_that_changes_nothing() -> None:
    made = te.compute((N, N), lambda i, j: (B[i, j] * C[i, j]).astype("bfloat16") + 1, name="T")
    assert isinstance(made.op, ComputeOp)
    assert str(made.op.bodies[0]) == "B[i, j] * C[i, j] + bfloat16(1.0)"
    deepest = te.compute((N,), lambda i: te.max((B[i, k] * 2).astype("bfloat16"), axis=k))
    assert isinstance(deepest.op, ComputeOp)
    assert str(deepest.op.bodies[0]) == "max(k)(B[i, k] * bfloat16(2.0))"


def test_shared_terms_stay_shared() -> None:
    term: Expr = B[0, k]
    for _ in range(60):
        term = term * term  # 2 to the power of 60 terms, if each were converted by itself
    total = te.sum(term, axis=k)
    assert isinstance(total, Reduce)
    assert sum(1 for _ in walk(total.sources[0])) < 200


def test_bodies_too_deep_are_refused_by_compute() -> None:
    term: Expr = B[0, k]
    for _ in range(4 * MAX_DEPTH):
        term = (term + 1).astype("bfloat16")
    with pytest.raises(te.ExprError, match=r"is nested \d+ deep"):
        te.compute((), lambda: te.sum(term, axis=k), name="deep")


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("float32", "bfloat16", True),
        ("float16", "bfloat16", False),
        ("bfloat16", "float16", False),
        ("float16", "float8_e5m2", True),
        ("float8_e4m3fn", "float8_e5m2", False),
        ("int32", "uint32", False),
        ("int64", "uint32", True),
        ("uint32", "int8", False),
        ("float32", "int32", False),
        ("float32", "uint16", True),
        ("float64", "int32", True),
        ("float64", "int64", False),
        ("bfloat16", "uint8", True),
        ("int32", "float16", False),
        ("int32", "bool", True),
    ],
)
def test_which_type_holds_which(wide: str, narrow: str, expected: bool) -> None:
    assert holds(DType(wide), DType(narrow)) is expected
