"""Operators and functions of whole tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.tensor.printer import print_operation

N = te.var("n")
A = te.placeholder((8, 16), name="A")
ROW = te.placeholder((16,), name="row")
COLUMN = te.placeholder((8, 1), name="column")
I32 = te.placeholder((8, 16), "int32", name="I")


def array(tensor: te.Tensor, seed: int = 0) -> Any:
    shape = [int(str(extent)) for extent in tensor.shape]
    values = np.random.default_rng(seed).uniform(1, 9, shape)
    return values.astype(tensor.dtype.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: a + b * c,
        lambda a, b, c: (a - b) / c,
        lambda a, b, c: 2 - a * 3 + 1 / b,
        lambda a, b, c: -a + abs(b),
        lambda a, b, c: np.float32(2) * a,
        lambda a, b, c: a**2,
        lambda a, b, c: (a > b) & (c <= a),
        lambda a, b, c: ~(a < b) | (a >= c),
    ],
)
def test_operators_follow_numpy(function: Callable[..., Any]) -> None:
    tensors = (A, ROW, COLUMN)
    arrays = [array(tensor, seed) for seed, tensor in enumerate(tensors)]
    (found,) = te.evaluate(function(*tensors), dict(zip(tensors, arrays, strict=True)))
    wanted = function(*arrays)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a // 3 + a % 3,
        lambda a: a << 1 | a >> 2 ^ a & 3,
        lambda a: 100 // a + 100 % a,
        lambda a: -a,
        lambda a: 1 << a & 3,
    ],
)
def test_integer_operators_follow_numpy(function: Callable[[Any], Any]) -> None:
    given = array(I32)
    (found,) = te.evaluate(function(I32), {I32: given})
    np.testing.assert_array_equal(found, function(given))


def test_each_operator_is_one_named_operation() -> None:
    assert print_operation((A * 2).op) == "mul[i0, i1] = A[i0, i1] * 2.0  # float32[8, 16]"
    assert print_operation((A + ROW).op) == "add[i0, i1] = A[i0, i1] + row[i1]  # float32[8, 16]"
    assert print_operation((A * COLUMN).op) == (
        "mul[i0, i1] = A[i0, i1] * column[i0, 0]  # float32[8, 16]"
    )
    assert print_operation(te.exp(A).op) == "exp[i0, i1] = exp(A[i0, i1])  # float32[8, 16]"
    assert A.astype("float32") is A
    assert A.astype("float16").dtype == "float16"
    assert te.cast(A, "int32").dtype == "int32"


def test_functions_take_tensors_and_scalars() -> None:
    assert isinstance(te.exp(A), te.Tensor)
    assert isinstance(te.exp(A[0, 0]), te.Expr)
    assert isinstance(te.exp(1.0), te.Expr)
    assert isinstance(te.maximum(A, 0), te.Tensor)
    assert isinstance(te.select(te.greater(A, ROW), A, 0), te.Tensor)
    assert isinstance(te.where(A > 0, A, ROW), te.Tensor)
    assert isinstance(te.relu(A), te.Tensor)
    assert isinstance(te.relu(A[0, 0]), te.Expr)
    assert isinstance(te.clip(A, 0, 6), te.Tensor)
    assert isinstance(te.logical_not(A > 0), te.Tensor)
    assert isinstance(te.equal(A, 3), te.Tensor)


def test_equality_of_tensors_is_identity() -> None:
    assert (A == A) is True
    assert (A == ROW) is False
    assert {A: 1}[A] == 1
    for other in (A[0, 0], 3):
        with pytest.raises(te.ExprError, match=r"== between the tensor A and a scalar[\s\S]*equal"):
            _ = other == A
        with pytest.raises(te.ExprError, match=r"te\.equal\(A, x\)"):
            operator.eq(other, A)


def test_shapes_that_do_not_fit() -> None:
    other = te.placeholder((7,), name="other")
    with pytest.raises(te.ExprError, match=r"add: shapes \[8, 16\] and \[7\] do not broadcast"):
        _ = A + other


def test_symbolic_extents() -> None:
    m = te.var("m")
    x, y = te.placeholder((N, m), name="X"), te.placeholder((m,), name="Y")
    assert [str(extent) for extent in (x + y).shape] == ["n", "m"]
    z = te.placeholder((N,), name="Z")
    with pytest.raises(te.ExprError, match=r"m is not known to equal n[\s\S]*te\.var"):
        _ = x + z
    twice, sum_ = te.placeholder((N * 2,)), te.placeholder((N + N,))
    assert (twice + sum_).ndim == 1


def test_scalars_over_axes_are_refused() -> None:
    def body(i: te.Expr) -> Any:
        return A[i, 0] * ROW

    with pytest.raises(te.ExprError, match=r"over the axis i meets a whole tensor"):
        te.compute((8,), body)


def test_runtime_scalars_broadcast() -> None:
    scale = te.var("scale", "float32")
    (found,) = te.evaluate(A * scale, {A: array(A)}, sizes={scale: 3})
    np.testing.assert_allclose(found, array(A) * 3)


def test_rank_zero_tensors_broadcast() -> None:
    scale = te.placeholder((), name="scale")
    found = te.evaluate(A * scale, {A: array(A), scale: np.array(3, np.float32)})
    np.testing.assert_allclose(found[0], array(A) * 3)
