"""The bits of a value as another type of the same width, on every way to run an expression."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te
from tedsl.expr.nodes import Const
from tedsl.expr.numerics import numpy_dtype

PAIRS = [
    ("float32", "int32"),
    ("float32", "uint32"),
    ("float64", "int64"),
    ("int32", "float32"),
    ("uint32", "float32"),
    ("int64", "float64"),
    ("uint64", "float64"),
    ("bfloat16", "int16"),
    ("bfloat16", "uint16"),
    ("int16", "bfloat16"),
    ("uint16", "bfloat16"),
    ("int32", "uint32"),
    ("float32", "float32"),
]
TARGETS = [
    pytest.param("reference"),
    pytest.param("cpu", marks=pytest.mark.cpu),
    pytest.param("triton-interpret", marks=pytest.mark.ptxas),
]


def given(dtype: str) -> np.ndarray:
    """Values whose bits, read as floats, are no NaN."""
    numbers = np.array([0.0, -0.0, 1.0, -1.5, 3e-3, -2.5e4, 7.0, 1e-2])
    kind = "bfloat16" if dtype.endswith("16") else "float" + dtype[-2:]
    floats = numbers.astype(numpy_dtype(te.DType(kind)))
    return floats.view(numpy_dtype(te.DType(dtype)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("source", "to"), PAIRS)
def test_bits_are_kept(source: str, to: str, target: str) -> None:
    a = given(source)
    A = te.placeholder(a.shape, source, name="A")
    B = te.compute(a.shape, lambda i: te.reinterpret(to, A[i]), name="B")
    assert B.dtype == to
    found = te.evaluate(B, {A: a})[0] if target == "reference" else te.build(B, target)(a)
    width = f"i{a.dtype.itemsize}"
    np.testing.assert_array_equal(np.asarray(found).view(width), a.view(width))


def test_of_a_whole_tensor_and_twice() -> None:
    A = te.placeholder((8,), name="A")
    assert te.reinterpret("int32", A).dtype == "int32"
    i = te.var("i")
    assert te.bits(te.bits(A[i])) is not None
    value = A[i]
    assert te.reinterpret("float32", te.reinterpret("int32", value)) is value
    assert isinstance(te.reinterpret("int32", te.const(1, "uint32")), Const)


@pytest.mark.parametrize(
    ("source", "to"), [("float32", "int64"), ("float16", "int16"), ("bool", "int8")]
)
def test_what_has_no_such_bits(source: str, to: str) -> None:
    A = te.placeholder((8,), source, name="A")
    with pytest.raises(te.ExprError, match=r"\n  do .*(astype|view)"):
        te.compute((8,), lambda i: te.reinterpret(to, A[i]))


def test_a_derivative_through_bits_is_refused_and_one_beside_them_is_right() -> None:
    """The scale of a fast exponential is constant almost everywhere; bits of x itself are not."""
    A = te.placeholder((8,), name="A")

    def scaled(i: te.Expr) -> te.Expr:
        whole = te.floor(A[i])
        return A[i] * te.reinterpret("float32", (te.cast(whole, "int32") + 127) << 23)

    a = np.linspace(-2.3, 3.1, 8).astype("float32")
    (gradient,) = te.gradient(te.compute((8,), scaled, name="B"), [A])
    found = te.evaluate(gradient, {A: a})[0]
    np.testing.assert_allclose(found, np.diag(2.0 ** np.floor(a)))
    B = te.compute((8,), lambda i: te.reinterpret("float32", te.reinterpret("int32", A[i]) & 7))
    with pytest.raises(te.ExprError, match=r"reinterpret has no derivative"):
        te.gradient(B, [A])


def test_other_widths_of_a_fold_keep_the_bits() -> None:
    """What is summed in float64 is computed in float32 up to its bits."""
    A = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), "k")

    def magnitude(i: te.Expr) -> te.Expr:
        return te.reinterpret("float32", te.reinterpret("int32", A[i, k]) & 0x7FFFFFFF)

    B = te.compute((4,), lambda i: te.sum(magnitude(i), axis=k, dtype="float64"), name="B")
    a = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    np.testing.assert_allclose(te.evaluate(B, {A: a})[0], abs(a.astype("f8")).sum(1))


def test_programs_are_written_out_with_them() -> None:
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: te.reinterpret("uint32", A[i]) >> 23, name="B")
    assert "bits(A[i0])" in str(B.op) or "bits(" in str(B.op)
