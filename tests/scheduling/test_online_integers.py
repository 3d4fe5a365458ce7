"""Integers wrap: one pass over dependent reductions of them gives what the definition gives, modulo
the size of their type, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis, BinaryOp, Var
from tedsl.expr.numerics import numpy_dtype
from tedsl.scheduling.algebra.associativity import Verdict, combines_in_any_order
from tedsl.scheduling.algebra.numeric_check import Trial, checked
from tedsl.scheduling.algebra.rescaling import Sign
from tedsl.scheduling.algebra.signs import fold_sign, sign_of
from tedsl.tensor.tensor import Tensor

ROWS, LENGTH = 5, 37
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
Value = Callable[[Any, Any, Any], Any]


def narrow(reduce: Any, term: Any, **more: Any) -> Any:
    """A reduction in the type of its terms, in which sums wrap."""
    return reduce(term, **({"dtype": term.dtype} if reduce is te.sum else {}), **more)


def chain(dtype: str, first: Any, last: Any, value: Value, where: bool = False) -> Tensor:
    """`last` of `value(x, r, k)` over the elements x of a row, with r the `first` of them."""
    X = te.placeholder((ROWS, LENGTH), dtype, name="X")
    j, k = (te.reduce_axis((0, LENGTH), name=name) for name in "jk")

    def only(axis: Any, i: Any) -> dict[str, Any]:
        return {"where": axis < 3 * i} if where else {}

    r = te.compute((ROWS,), lambda i: narrow(first, X[i, j], axis=j, **only(j, i)), name="r")
    return te.compute(
        (ROWS,), lambda i: narrow(last, value(X[i, k], r[i], k), axis=k, **only(k, i)), name="T"
    )


def elements(dtype: str) -> np.ndarray:
    """Numbers of the whole type, its ends among them."""
    low, high = DType(dtype).info.lowest, DType(dtype).info.highest
    rng = np.random.default_rng(3)
    found = rng.integers(int(low), int(high), (ROWS, LENGTH), numpy_dtype(DType(dtype)), True)
    found[1, 0], found[2, -1], found[3, 5:8] = low, high, (high, low, high)
    return found


def fused(T: Tensor, parts: bool = False, **options: Any) -> te.Schedule:
    """The chain in one loop, or in parts."""
    s = te.create_schedule(T)
    outer, _ = s[T].split(T.op.reduce_axis[0], factor=4)
    if parts:
        s.split_online(T, outer, **options)
    else:
        s[T].online(outer, **options)
    return s


def agree(T: Tensor, dtype: str, parts: bool = False, **options: Any) -> str:
    """The same numbers as the schedule without a chain; the proof."""
    data = elements(dtype)
    expected = te.build(te.create_schedule(T), target="cpu")(data)
    s = fused(T, parts, **options)
    te.lower(s, "cpu", check=True)
    got = te.build(s, target="cpu")(data)
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, expected, rtol=1e-4)
    else:
        np.testing.assert_array_equal(got, expected)
    return te.create_schedule(T)[T].proof(**options)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("first", "last"), [(te.max, te.max), (te.min, te.min), (te.sum, te.max)])
def test_extremes_of_differences_that_wrap_are_refused(dtype: str, first: Any, last: Any) -> None:
    T = chain(dtype, first, last, lambda x, r, k: x - r)
    with pytest.raises(ScheduleError, match=f"integers of {dtype} wrap: .* does not follow"):
        fused(T, casts=True)


def test_the_maximum_of_a_difference_that_wraps_in_an_inlined_stage() -> None:
    A = te.placeholder((33, 128), "uint8", name="A")
    j, k = (te.reduce_axis((0, 128), name=name) for name in "jk")
    D = te.compute((33, 128), lambda i, c: A[i, c] - te.max(A[i, j], axis=j), name="D")
    T = te.compute((33,), lambda i: te.max(D[i, k], axis=k), name="T")
    s = te.create_schedule(T)
    s[D].compute_inline()
    outer, _ = s[T].split(k, factor=32)
    with pytest.raises(ScheduleError, match="integers of uint8 wrap"):
        s[T].online(outer, casts=True)
    with pytest.raises(ScheduleError, match="integers of uint8 wrap"):
        s.split_online(T, outer, casts=True)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("first", [te.max, te.sum])
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "value",
    [
        lambda x, r, k: x - r,
        lambda x, r, k: x * 2 - r * 3,
        lambda x, r, k: x * r,
        lambda x, r, k: (x - r) * (x - r),
        lambda x, r, k: x * 3 + r * x * x,
    ],
    ids=["difference", "multiples", "product", "square", "polynomial"],
)
def test_sums_of_polynomials_follow_modulo(
    dtype: str, value: Value, first: Any, parts: bool
) -> None:
    """Of a tag that is a sum no estimate is read: that is no integer."""
    proof = agree(chain(dtype, first, te.sum, value), dtype, parts)
    assert f"{dtype} wraps: only sums, differences and products follow" in proof


def test_a_scale_in_int32() -> None:
    """The quantised product: narrow elements, a wide scale."""
    T = chain("int8", te.max, te.sum, lambda x, r, k: x.astype("int32") * r.astype("int32"))
    assert "nothing wraps" not in agree(T, "int8")


REFUSED: dict[str, tuple[str, Value, Any]] = {
    "cast to a wider integer": ("uint8", lambda x, r, k: (x - r).astype("int32"), te.sum),
    "cast to a float": ("int32", lambda x, r, k: te.exp((x - r).astype("float64")), te.sum),
    "magnitude": ("int8", lambda x, r, k: te.abs(x - r), te.sum),
    "wider after narrower": (
        "int32",
        lambda x, r, k: (x.astype("int8") - r.astype("int8")).astype("int32"),
        te.sum,
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_needs_the_whole_number_is_refused(name: str) -> None:
    dtype, value, last = REFUSED[name]
    with pytest.raises(ScheduleError, match=r"integers of u?int\d+ wrap: |cannot be separated|mix"):
        fused(chain(dtype, te.max, last, value), casts=True)


@pytest.mark.parametrize("where", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize(("first", "last"), [(te.max, te.max), (te.min, te.min), (te.max, te.min)])
def test_extremes_that_ranges_keep_from_wrapping(
    dtype: str, first: Any, last: Any, where: bool
) -> None:
    """Of no element a maximum of integers is the end of their type, and stays that."""
    T = chain(
        dtype, first, last, lambda x, r, k: x.astype("int32") - r.astype("int32"), where=where
    )
    assert "nothing wraps" in agree(T, dtype)


def test_exponentials_of_differences_in_a_wide_enough_type() -> None:
    X = te.placeholder((ROWS, LENGTH), "int8", name="X")
    j, k = (te.reduce_axis((0, LENGTH), name=name) for name in "jk")
    r = te.compute((ROWS,), lambda i: te.max(X[i, j].astype("int16"), axis=j), name="r")

    def power(i: Any) -> Any:
        return te.exp((X[i, k].astype("int16") - r[i]).astype("float32"))

    T = te.compute((ROWS,), lambda i: te.sum(power(i), axis=k), name="T")
    assert "nothing wraps" in agree(T, "int8")


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32"])
def test_exponentials_of_differences_of_floats(dtype: str) -> None:
    """What the refusal of a difference of integers advises."""
    T = chain(
        dtype, te.max, te.sum, lambda x, r, k: te.exp(x.astype("float64") - r.astype("float64"))
    )
    agree(T, dtype)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_a_place_that_is_found_without_arithmetic(dtype: str) -> None:
    """Tuples of integers that are only compared and chosen are combined in any order."""
    X = te.placeholder((ROWS, LENGTH), dtype, name="X")

    def first(a: Any, b: Any) -> Any:
        before = te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] <= b[0]))
        return te.select(before, a[0], b[0]), te.select(a[1] >= b[1], a[1], b[1])

    reducer = te.comm_reducer(
        first, lambda i, v: (te.const(2**31 - 1, i), te.min_value(v)), name="argmax"
    )
    j, k = (te.reduce_axis((0, LENGTH), name=name) for name in "jk")
    place: Any = te.compute(
        (ROWS,), lambda i: reducer((j.astype("int32"), X[i, j]), axis=j), name="m"
    )
    T = te.compute((ROWS,), lambda i: te.sum(X[i, k] * place[1][i], axis=k), name="T")
    agree(T, dtype)


def test_a_reducer_whose_laws_need_more_than_its_type_holds() -> None:
    """a + max(b - a, 0) is max(a, b) over the integers, and neither commutes where it wraps."""
    reducer = te.comm_reducer(
        lambda a, b: a + te.max(b - a, te.const(0, a.dtype)), lambda t: te.min_value(t), name="top"
    )
    X = te.placeholder((LENGTH,), "uint8", name="X")
    k = te.reduce_axis((0, LENGTH), name="k")
    T: Any = te.compute((1,), lambda i: reducer(X[k], axis=k), name="T")
    found: Any = T.op.bodies[0]
    assert combines_in_any_order(found.reducer, found.sources).verdict is not Verdict.PROVED


def test_a_reducer_that_chooses_by_a_sum_that_may_wrap_is_not_proved() -> None:
    """Over the integers the greater of two sums, which no small number refutes."""
    reducer = te.comm_reducer(
        lambda a, b: te.select(a - b + 7 >= 7, a, b), lambda t: te.const(-100, t), name="top"
    )
    X = te.placeholder((LENGTH,), "int64", name="X")
    k = te.reduce_axis((0, LENGTH), name="k")
    T: Any = te.compute((1,), lambda i: reducer(X[k], axis=k), name="T")
    found: Any = T.op.bodies[0]
    assert combines_in_any_order(found.reducer, found.sources).verdict is not Verdict.PROVED


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_sums_of_tuples_of_integers_are_proved(dtype: str) -> None:
    reducer = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1] + 2 * (a[0] * b[0])),
        lambda t, u: (te.const(0, t), te.const(0, u)),
        name="moments",
    )
    X = te.placeholder((LENGTH,), dtype, name="X")
    k = te.reduce_axis((0, LENGTH), name="k")
    T: Any = te.compute((1,), lambda i: reducer((X[k], X[k] * X[k]), axis=k), name="T")
    found: Any = T[0].op.bodies[0]
    assert combines_in_any_order(found.reducer, found.sources).verdict is Verdict.PROVED


def test_signs_of_integers_that_wrap() -> None:
    X = te.placeholder((LENGTH,), "int8", name="X")
    axis, size = Axis("k"), te.size_var("n")
    positive = {X[axis]: Sign.POSITIVE}
    value = X[axis]
    assert sign_of(value + value, {value: Sign.POSITIVE}) is Sign.ANY
    assert sign_of(te.abs(value), positive) is Sign.ANY
    assert sign_of(value.astype("uint8") + 1) is Sign.NONNEGATIVE
    assert sign_of(size + 1) is Sign.POSITIVE
    assert fold_sign(BinaryOp.ADD, Sign.POSITIVE, DType.int32) is Sign.ANY
    assert fold_sign(BinaryOp.ADD, Sign.POSITIVE, DType.uint8) is Sign.NONNEGATIVE
    assert fold_sign(BinaryOp.MAX, Sign.POSITIVE, DType.int32) is Sign.POSITIVE
    assert fold_sign(BinaryOp.ADD, Sign.POSITIVE, DType.float32) is Sign.POSITIVE


@pytest.mark.parametrize("dtype", [DType.uint8, DType.int32])
def test_the_check_on_numbers_wraps(dtype: DType) -> None:
    """max(c - r') = max(c - r) + (r - r') holds for integers, and not for those of a type."""
    c, r, old, new, total = (Var(name, dtype) for name in ("c", "r", "o", "n", "t"))
    trial = Trial(
        c - r,
        BinaryOp.MAX,
        [r],
        [old],
        [new],
        [c],
        [],
        {each: Sign.ANY for each in (c, r, old, new, total)},
        [c - r],
        [total],
        [total + (old - new)],
        total,
        {},
    )
    points, error = checked(trial)
    assert points
    assert error == 1.0
