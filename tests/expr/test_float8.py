"""8-bit floats in the language: what they hold, where they meet others, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from float8_values import FLOAT8, agree, edges, every, nearest

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import ExprError, ScheduleError
from tedsl.expr import numerics
from tedsl.expr.nodes import Const
from tedsl.expr.promote import promote_types

E4, E5 = FLOAT8
A = te.placeholder((4, 8), E4, name="A")
B = te.placeholder((4, 8), E5, name="B")
F = te.placeholder((4, 8), name="F")
K = te.reduce_axis((0, 8), name="k")


def over(body: Callable[[Any, Any], Any]) -> te.Tensor:
    return te.compute((4, 8), body)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_the_table_is_that_of_ml_dtypes(dtype: DType) -> None:
    facts: Any = ml_dtypes.finfo(dtype.value)
    assert (dtype.info.lowest, dtype.info.highest) == (float(facts.min), float(facts.max))
    assert dtype.bits == facts.bits == 8 and dtype.nbytes == 1
    assert dtype.info.has_infinity == bool(np.isinf(every(dtype).astype(np.float32)).any())


@pytest.mark.parametrize("dtype", FLOAT8)
def test_a_cast_gives_the_nearest_number(dtype: DType) -> None:
    """Halves to even, NaN or infinite beyond the range: what ml_dtypes and PyTorch do."""
    x = edges(dtype)
    agree(numerics.cast(x, DType.float32, dtype), nearest(x, dtype))
    agree(x.astype(numerics.numpy_dtype(dtype)), nearest(x, dtype))


def test_beyond_the_range() -> None:
    for dtype, ends, beyond in ((E4, (464, 464.1), np.nan), (E5, (61439, 61440), np.inf)):
        x = te.placeholder((2,), name="x")
        (got,) = te.evaluate(x.astype(dtype), {x: np.array(ends, "f4")})
        agree(got, [dtype.info.highest, beyond])


def test_a_cast_goes_through_float32() -> None:
    """float64 just above the middle of two numbers is that middle in float32."""
    x = np.array([1 + 2.0**-4 + 2.0**-40])
    for dtype in FLOAT8:
        agree(numerics.cast(x, DType.float64, dtype), [1.0])


def test_promotion() -> None:
    for wide in (DType.float16, DType.bfloat16, DType.float32, DType.float64):
        assert promote_types(E4, wide) is wide and promote_types(wide, E5) is wide
        small = every(E5)[every(E5) == every(E5)]
        agree(small.astype(numerics.numpy_dtype(wide)), small)
    assert promote_types(E4, E5) is DType.float32
    assert promote_types(E4, DType.int64) is E4 and promote_types(DType.bool, E5) is E5
    assert over(lambda i, j: A[i, j] * F[i, j]).dtype == "float32"
    assert over(lambda i, j: A[i, j] < B[i, j]).dtype == "bool"
    assert over(lambda i, j: te.select(i < j, A[i, j], 0.5)).dtype == E4


@pytest.mark.parametrize(
    "body",
    [
        lambda i, j: A[i, j] + A[j % 4, j],
        lambda i, j: A[i, j] * 2.0,
        lambda i, j: A[i, j] - i,
        lambda i, j: -B[i, j],
        lambda i, j: te.exp(A[i, j]),
        lambda i, j: te.isnan(A[i, j]),
        lambda i, j: A[i, j] < 1.0,
        lambda i, j: te.max(A[i, j], A[j % 4, j]),
        lambda i, j: te.min(B[i, K], axis=K),
        lambda i, j: te.sum(F[i, K], axis=K, dtype=E4),
    ],
)
def test_nothing_is_computed_in_8_bits(body: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(ExprError, match=r"float8_e\dm2?3?(fn)? operands(.|\n)*astype\('float32'\)"):
        over(body)


def test_sums_are_float32() -> None:
    total = te.compute((4,), lambda i: te.sum(A[i, K], axis=K), name="total")
    assert total.dtype == "float32"
    values = np.full((4, 8), 448, numerics.numpy_dtype(E4))
    np.testing.assert_array_equal(te.evaluate(total, {A: values})[0], np.full(4, 8 * 448.0))


def test_a_reducer_of_ones_own_is_refused() -> None:
    first = te.comm_reducer(lambda x, y: x, lambda t: te.const(0.0, t), name="first")
    with pytest.raises(ExprError, match=r"first was given float8_e4m3fn(.|\n)*cast them first"):
        te.compute((4,), lambda i: first(A[i, K], axis=K))


def test_constants() -> None:
    assert te.max_value(E4).value == 448.0 and te.min_value(E5).value == -57344.0
    assert te.infinity(E5).value == np.inf and np.isnan(te.const(float("nan"), E4).value)
    with pytest.raises(ExprError, match=r"float8_e4m3fn has no infinity(.|\n)*max_value"):
        te.infinity(E4)
    for number in (448.5, float("inf"), -1e9):
        with pytest.raises(ExprError, match=r"does not fit float8_e4m3fn(.|\n)*448"):
            te.const(number, E4)
    cast = te.infinity("float32").astype(E4)
    assert isinstance(cast, Const) and np.isnan(cast.value)


def test_derivatives_are_float32() -> None:
    """Rounding counts as the identity, and what is stored in 8 bits has wide derivatives."""
    kept = over(lambda i, j: (F[i, j] * 3.0).astype(E4))
    out = over(lambda i, j: kept[i, j].astype("float32") * A[i, j].astype("float32"))
    head = te.placeholder((4, 8), name="head")
    by_f, by_a = te.gradient(out, [F, A], head)
    assert by_f.dtype == by_a.dtype == "float32"
    rng = np.random.default_rng(0)
    f, h = rng.standard_normal((2, 4, 8), np.float32) * 1000
    a = (f / 8).astype(numerics.numpy_dtype(E4))
    got = te.evaluate([by_f, by_a], {F: f, A: a, head: h})
    np.testing.assert_allclose(got[0], h * 3 * a.astype(np.float32), rtol=1e-6)
    rounded = (f * 3).astype(numerics.numpy_dtype(E4)).astype(np.float32)
    np.testing.assert_array_equal(got[1], h * rounded)


def test_a_schedule_may_store_in_8_bits() -> None:
    made = over(lambda i, j: F[i, j] * 2.0)
    out = te.compute((4, 8), lambda i, j: made[i, j] + 1.0, name="out")
    s = te.create_schedule(out)
    s.set_precision(made, E5)
    f = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    got = te.build(s, "cpu", cache=False)(f)
    want = (f * 2).astype(numerics.numpy_dtype(E5)).astype(np.float32) + 1
    np.testing.assert_array_equal(got, want)


def test_a_schedule_may_not_add_up_in_8_bits() -> None:
    total = te.compute((4,), lambda i: te.sum(F[i, K], axis=K), name="total")
    s = te.create_schedule(te.compute((4,), lambda i: total[i] + 1.0, name="out"))
    with pytest.raises(ScheduleError, match=r"total is a reduction(.|\n)*cache_write"):
        s.set_precision(total, E4)
