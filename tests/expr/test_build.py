"""Smart constructors: promotion, checks, folding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Compare, Const, Expr, Unary, Var
from tedsl.expr.promote import as_dtype, promote_types


def scalar(dtype: str) -> Var:
    return Var("x", DType(dtype))


@pytest.mark.parametrize(
    ("a", "b", "met"),
    [
        ("float16", "bfloat16", "float32"),
        ("float16", "float32", "float32"),
        ("float64", "bfloat16", "float64"),
        ("int64", "float16", "float16"),
        ("bool", "int8", "int8"),
        ("bool", "float16", "float16"),
        ("int8", "int32", "int32"),
        ("uint8", "uint16", "uint16"),
        ("uint8", "int8", "int16"),
        ("uint32", "int32", "int64"),
        ("uint8", "int32", "int32"),
        ("int16", "int16", "int16"),
    ],
)
def test_strong_dtypes_meet(a: str, b: str, met: str) -> None:
    assert promote_types(DType(a), DType(b)) == met
    assert promote_types(DType(b), DType(a)) == met
    x, y = build.promote(scalar(a), scalar(b))
    assert (x.dtype, y.dtype) == (met, met)


def test_uint64_with_signed_is_refused() -> None:
    with pytest.raises(te.ExprError, match=r"no integer dtype holds both uint64 and int8"):
        _ = scalar("uint64") + scalar("int8")


@pytest.mark.parametrize(
    ("dtype", "number", "met"),
    [
        ("float16", 2, "float16"),
        ("float16", 2.5, "float16"),
        ("uint8", 3, "uint8"),
        ("int8", True, "int8"),
        ("int64", 1.5, "float32"),
        ("bool", 7, "int32"),
        ("bool", 1.5, "float32"),
        ("float32", np.float64(1.5), "float32"),
        ("int32", np.int64(4), "int32"),
        ("float16", np.float32(1.5), "float32"),
        ("int8", np.int16(1), "int16"),
    ],
)
def test_python_numbers_are_weak(dtype: str, number: float, met: str) -> None:
    for result in (scalar(dtype) + number, number + scalar(dtype)):
        assert result.dtype == met


@pytest.mark.parametrize(
    ("dtype", "number"), [("uint8", 300), ("uint8", -1), ("float16", 1e6), ("int8", 128)]
)
def test_numbers_that_do_not_fit(dtype: str, number: float) -> None:
    with pytest.raises(te.ExprError, match=rf"does not fit {dtype}[\s\S]*allowed"):
        _ = scalar(dtype) + number


def test_default_dtypes() -> None:
    assert [te.const(v).dtype for v in (True, 1, 2**40, 1.0)] == [
        "bool",
        "int32",
        "int64",
        "float32",
    ]
    assert te.const(3, "float16").value == 3.0
    assert te.const(np.uint8(3)).dtype == "uint8"
    assert te.const(float("nan"), "bfloat16").dtype == "bfloat16"


def test_fractions_are_no_integers() -> None:
    with pytest.raises(te.ExprError, match=r"1\.5 is not a value of int32"):
        te.const(1.5, "int32")


def test_dtype_names() -> None:
    assert as_dtype(np.float32) == as_dtype(np.dtype("float32")) == as_dtype("float32")
    assert as_dtype(bool) == "bool"
    assert as_dtype("fp32") == as_dtype("float") == "float32"
    with pytest.raises(te.ExprError, match=r"unknown dtype 'single'[\s\S]*float32"):
        te.placeholder((1,), "single")


def test_division_of_integers_names_the_alternatives() -> None:
    i = Axis("i")
    with pytest.raises(te.ExprError, match=r"/ of int32[\s\S]*te\.truncdiv"):
        _ = i / 2
    assert (i / 2.0).dtype == "float32"
    assert isinstance(i // 2, Binary)


@pytest.mark.parametrize("function", [te.floordiv, te.floormod, te.truncdiv, te.truncmod])
def test_division_by_zero_constant(function: Callable[[Expr, int], Expr]) -> None:
    with pytest.raises(te.ExprError, match=r"by the constant 0"):
        function(Axis("i"), 0)


def test_operators_refuse_wrong_kinds() -> None:
    f, b, i = scalar("float32"), scalar("bool"), scalar("int32")
    with pytest.raises(te.ExprError, match=r"& does not take float32"):
        _ = f & 1.0
    with pytest.raises(te.ExprError, match=r"<< does not take float32"):
        _ = f << 1
    with pytest.raises(te.ExprError, match=r"\+ does not take bool[\s\S]*astype"):
        _ = b + b
    with pytest.raises(te.ExprError, match=r"neg does not take bool[\s\S]*~"):
        _ = -b
    with pytest.raises(te.ExprError, match=r"not does not take float32"):
        _ = ~f
    with pytest.raises(te.ExprError, match=r"popcount does not take float32"):
        te.popcount(f)
    with pytest.raises(te.ExprError, match=r"<< by 32 bits of a int32[\s\S]*0 \.\. 31"):
        _ = i << 32
    with pytest.raises(te.ExprError, match=r"a power of int32"):
        _ = i**i


def test_conditions_must_be_bool() -> None:
    i = Axis("i")
    for function in (te.select, te.if_then_else):
        with pytest.raises(te.ExprError, match=r"the condition is int32[\s\S]*x != 0"):
            function(i, 1, 2)
    with pytest.raises(te.ExprError, match=r"all: the condition is int32"):
        te.all(i, i > 0)


def test_truth_value_is_refused() -> None:
    with pytest.raises(te.ExprError, match=r"no truth value[\s\S]*te\.if_then_else"):
        bool(Axis("i") < 3)


def test_equality_builds_a_comparison() -> None:
    i, j = Axis("i"), Axis("j")
    assert isinstance(i == j, Compare)
    assert isinstance(i != 3, Compare)
    assert {i: 1, j: 2}[i] == 1
    assert (i == "text") is False
    assert te.structural_equal(i + j * 2, i + j * 2)
    assert not te.structural_equal(i + j * 2, i + j * 3)


def test_unknown_operands_are_type_errors() -> None:
    word: Any = "text"
    with pytest.raises(TypeError, match=r"'text' .str. is no operand of an expression"):
        _ = Axis("i") + word
    with pytest.raises(te.ExprError, match=r"'text' is not a number"):
        te.maximum(Axis("i"), word)


def same(a: Expr, b: Expr) -> bool:
    return te.structural_equal(a, b)


def test_neutral_operands_fold() -> None:
    i, x = Axis("i"), scalar("float32")
    for kept in (i + 0, 0 + i, i - 0, i * 1, 1 * i, i // 1, i | 0, i ^ 0, i << 0, te.max(i, i)):
        assert kept is i
    for kept in (x * 1, 1 * x, x / 1, x - 0.0):
        assert kept is x
    for zero in (i * 0, i % 1, i & 0):
        assert same(zero, te.const(0))
    assert isinstance(x + 0.0, Binary), "-0.0 + 0.0 is 0.0"
    assert isinstance(x * 0.0, Binary), "NaN * 0.0 is NaN"
    assert isinstance(x - te.const(-0.0), Binary)


def test_negations_undo_each_other() -> None:
    for dtype in ("float32", "int8", "uint16"):
        x = scalar(dtype)
        assert te.negative(te.negative(x)) is x
        assert same(te.negative(te.negative(te.negative(x))), te.negative(x))


def test_constants_fold_exactly() -> None:
    assert same(te.const(7) // -2, te.const(-4))
    assert same(te.truncdiv(te.const(7), -2), te.const(-3))
    assert same(te.const(7) % -2, te.const(-1))
    assert same(te.truncmod(te.const(-7), 2), te.const(-1))
    assert same(te.const(200, "uint8") + 100, te.const(44, "uint8"))
    assert isinstance(te.const(2**31 - 1) + 1, Binary), "signed overflow stays as written"
    assert isinstance(te.const(0.1, "float64").astype("float32"), Const)
    third = te.const(0.1) + te.const(0.2)
    assert isinstance(third, Const)
    assert third.value == float(np.float32(0.1) + np.float32(0.2))
    assert isinstance(te.const(0.1, "float16") + te.const(0.2, "float16"), Binary)
    assert same(te.const(-3.7).astype("int32"), te.const(-3.7).astype("int32"))
    assert same(te.const(300).astype("uint8"), te.const(44, "uint8"))
    assert same(te.const(2).astype("bool"), te.const(True))


def test_comparisons_fold() -> None:
    i = Axis("i")
    assert same(te.const(3) < 4, te.const(True))
    assert same(i == i, te.const(True))
    assert same(i < i, te.const(False))
    x = scalar("float32")
    assert isinstance(x == x, Compare), "NaN differs from itself"
    assert isinstance(te.const(0.1) == te.const(0.1), Compare), "rounding comes first"


def test_logic_folds() -> None:
    c = Axis("i") > 3
    true, false = te.const(True), te.const(False)
    assert (c & true) is c
    assert (false | c) is c
    assert same(c & false, false)
    assert same(c | true, true)
    assert (~~scalar("bool")).dtype == "bool"
    assert same(~c, Axis("i") > 3) is False
    negated = ~c
    assert isinstance(negated, Compare)
    assert negated.op == "<="
    assert isinstance(~(scalar("float32") > 3), Unary), "NaN fails both"
    assert te.select(true, Axis("i"), 3).dtype == "int32"


def test_powers_of_small_integers_are_products() -> None:
    i, x = Axis("i"), scalar("float32")
    assert same(i**2, i * i)
    assert same(x**3, x * x * x)
    assert same(x**0, te.const(1.0))
    assert isinstance(x**0.5, Binary)
    assert (x**0.5).dtype == "float32"
    assert isinstance(x**5, Binary)
    assert (x**5).dtype == "float32"
    assert (i**2.5).dtype == "float32"


def test_functions_of_integers() -> None:
    i = Axis("i")
    assert te.exp(i).dtype == "float32"
    assert isinstance(te.exp(i).children()[0], Cast)
    assert te.floor(i) is i
    assert same(te.isnan(i), te.const(False))
    assert same(te.isfinite(i), te.const(True))
    assert te.abs(scalar("uint8")).dtype == "uint8"
    assert te.atan2(i, i).dtype == "float32"
    assert abs(i).dtype == "int32"


def test_bools_combine_as_logic() -> None:
    a, b = scalar("bool"), scalar("bool")
    for result, op in ((te.max(a, b), BinaryOp.OR), (te.minimum(a, b), BinaryOp.AND)):
        assert isinstance(result, Binary)
        assert result.op is op


def test_limits() -> None:
    assert te.min_value("int8").value == -128
    assert te.max_value("float16").value == 65504.0
    assert te.infinity("float32").value == float("inf")
    with pytest.raises(te.ExprError, match=r"int8 has no infinity"):
        te.infinity("int8")
