"""The oracle against direct numpy: every intrinsic, dtype, reduction and guard."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tedsl as te
from tedsl.expr import build
from tedsl.expr.nodes import BinaryOp, CompareOp, UnaryOp
from tedsl.expr.numerics import numpy_dtype
from tedsl.reference import reference
from tedsl.tensor.reduce import Reduction

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
RNG = np.random.default_rng(7)


def run(function: Callable[..., Any], *arrays: Any) -> Any:
    """One element-wise compute over 1-D arrays, evaluated."""
    tensors = [te.placeholder(a.shape, a.dtype.name, name=f"A{n}") for n, a in enumerate(arrays)]
    out = te.compute(arrays[0].shape, lambda i: function(*(t[i] for t in tensors)), name="C")
    (found,) = te.evaluate(out, dict(zip(tensors, arrays, strict=True)))
    assert found.dtype == numpy_dtype(out.dtype)
    return found


def wide(values: Any) -> Any:
    """bfloat16 as float32, where numpy's tests know NaN."""
    array = np.asarray(values)
    return array.astype("f4") if array.dtype.name == "bfloat16" else array


def same(found: Any, wanted: Any) -> None:
    """Equal, NaN to NaN."""
    np.testing.assert_array_equal(wide(found), wide(wanted))


def close(found: Any, wanted: Any, rtol: float = 1e-7, atol: float = 0) -> None:
    """Equal within bounds, NaN to NaN."""
    np.testing.assert_allclose(wide(found), wide(wanted), rtol=rtol, atol=atol)


def rows(function: Callable[..., Any], x: te.Tensor, k: te.Axis) -> te.Tensor:
    """`function` over the second dimension."""
    return te.compute(x.shape[:1], lambda i: function(x[i, k], axis=k))


SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.7, -3.7, 50.0]
EXTREME = [*SPECIAL, math.inf, -math.inf, math.nan]
NUMPY: dict[UnaryOp, Any] = {
    UnaryOp.EXP: np.exp,
    UnaryOp.EXP2: np.exp2,
    UnaryOp.EXPM1: np.expm1,
    UnaryOp.LOG: np.log,
    UnaryOp.LOG2: np.log2,
    UnaryOp.LOG10: np.log10,
    UnaryOp.LOG1P: np.log1p,
    UnaryOp.SQRT: np.sqrt,
    UnaryOp.RSQRT: lambda a: 1 / np.sqrt(a),
    UnaryOp.TANH: np.tanh,
    UnaryOp.SIGMOID: lambda a: 1 / (1 + np.exp(-a)),
    UnaryOp.ERF: np.vectorize(math.erf, otypes=[float]),
    UnaryOp.SIN: np.sin,
    UnaryOp.COS: np.cos,
    UnaryOp.TAN: np.tan,
    UnaryOp.ASIN: np.arcsin,
    UnaryOp.ACOS: np.arccos,
    UnaryOp.ATAN: np.arctan,
    UnaryOp.SINH: np.sinh,
    UnaryOp.COSH: np.cosh,
    UnaryOp.ASINH: np.arcsinh,
    UnaryOp.ACOSH: np.arccosh,
    UnaryOp.ATANH: np.arctanh,
    UnaryOp.FLOOR: np.floor,
    UnaryOp.CEIL: np.ceil,
    UnaryOp.ROUND: np.round,
    UnaryOp.TRUNC: np.trunc,
    UnaryOp.NEG: np.negative,
    UnaryOp.ABS: np.abs,
    UnaryOp.SIGN: np.sign,
    UnaryOp.ISNAN: np.isnan,
    UnaryOp.ISINF: np.isinf,
    UnaryOp.ISFINITE: np.isfinite,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", NUMPY)
def test_functions_of_floats(op: UnaryOp, dtype: str) -> None:
    given = np.array(EXTREME).astype(numpy_dtype(te.DType(dtype)))
    found = run(lambda x: build.unary(op, x), given)
    wanted = NUMPY[op](given.astype(np.float64))
    if wanted.dtype == bool:
        same(found, wanted)
    else:
        same(found, wanted.astype(found.dtype))


def test_every_function_has_a_name() -> None:
    named = {op for op in UnaryOp if hasattr(te, op.value)}
    assert set(UnaryOp) - named == {UnaryOp.NEG, UnaryOp.NOT}
    assert te.negative.__name__ == "neg"
    assert te.exp.__doc__


@pytest.mark.parametrize("dtype", INTEGERS)
def test_functions_of_integers(dtype: str) -> None:
    info = np.iinfo(dtype)
    given = np.array([info.min, info.max, 0, 1, 5, 100], dtype)
    for function in (np.abs, np.sign, np.negative):
        if dtype.startswith("u") and function is np.negative:
            continue
        same(run(getattr(te, function.__name__.replace("absolute", "abs")), given), function(given))
    same(run(lambda x: ~x, given), ~given)
    counted = [bin(int(v) & (2**info.bits - 1)).count("1") for v in given]
    same(run(te.popcount, given), np.array(counted, dtype))
    close(run(te.sqrt, abs(given)), np.sqrt(abs(given).astype("f8")), rtol=1e-6)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps(dtype: str) -> None:
    info = np.iinfo(dtype)
    a = RNG.integers(info.min, info.max, 200, dtype, endpoint=True)
    b = RNG.integers(info.min, info.max, 200, dtype, endpoint=True)
    for function in (
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x & y,
        lambda x, y: x | y,
        lambda x, y: x ^ y,
    ):
        same(run(function, a, b), function(a, b))
    same(run(te.minimum, a, b), np.minimum(a, b))
    same(run(te.maximum, a, b), np.maximum(a, b))
    shift = RNG.integers(0, info.bits, 200).astype(dtype)
    same(run(te.left_shift, a, shift), a << shift)
    same(run(te.right_shift, a, shift), a >> shift)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division(dtype: str) -> None:
    info = np.iinfo(dtype)
    a = RNG.integers(info.min, info.max, 300, dtype, endpoint=True)
    b = RNG.integers(max(info.min, -9), 10, 300, dtype)
    b[b == 0] = 3
    a[a == info.min] += 1  # info.min / -1 has no value
    x, y = [int(v) for v in a], [int(v) for v in b]
    pairs = list(zip(x, y, strict=True))
    quotient = [abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in pairs]
    remainder = [p - q * t for (p, q), t in zip(pairs, quotient, strict=True)]
    same(run(te.floordiv, a, b), np.array([p // q for p, q in pairs], dtype))
    same(run(te.floormod, a, b), np.array([p % q for p, q in pairs], dtype))
    same(run(te.truncdiv, a, b), np.array(quotient, dtype))
    same(run(te.truncmod, a, b), np.array(remainder, dtype))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic(dtype: str) -> None:
    kind = numpy_dtype(te.DType(dtype))
    a, b = (
        np.array(EXTREME * len(EXTREME)).astype(kind),
        np.repeat(EXTREME, len(EXTREME)).astype(kind),
    )
    for function in (
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
    ):
        same(run(function, a, b), function(a, b))
    same(run(te.minimum, a, b), np.minimum(a, b))
    same(run(te.maximum, a, b), np.maximum(a, b))
    double = a.astype("f8"), b.astype("f8")
    same(run(te.power, a, b), np.power(*double).astype(kind))
    same(run(te.atan2, a, b), np.arctan2(*double).astype(kind))
    for op, ufunc in zip(
        CompareOp,
        (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
        strict=True,
    ):
        same(run(lambda x, y, o=op: build.compare(o, x, y), a, b), ufunc(a, b))


def test_float_division_variants() -> None:
    a = RNG.uniform(-9, 9, 50).astype("f4")
    b = RNG.uniform(1, 4, 50).astype("f4")
    close(run(lambda x, y: x // y, a, b), np.floor(a / b))
    close(run(lambda x, y: x % y, a, b), np.mod(a, b), atol=1e-5)
    close(run(te.truncdiv, a, b), np.trunc(a / b))
    close(run(te.truncmod, a, b), np.fmod(a, b), atol=1e-5)


@pytest.mark.parametrize("source", (*FLOATS, *INTEGERS, "bool"))
@pytest.mark.parametrize("target", (*FLOATS, *INTEGERS, "bool"))
def test_casts(source: str, target: str) -> None:
    kind, to = numpy_dtype(te.DType(source)), numpy_dtype(te.DType(target))
    values = np.array([0, 1, 3.7, 100.2]) if target.startswith(("u", "b")) else np.array(SPECIAL)
    given = abs(values).astype(kind) if source.startswith("u") else values.astype(kind)
    wanted = given != 0 if target == "bool" else given.astype(np.float64).astype(to)
    same(run(lambda x: x.astype(target), given), wanted)


def test_narrowing_integers_wraps() -> None:
    given = np.array([300, -1, 128, 70000], "int32")
    same(run(lambda x: x.astype("int8"), given), given.astype("int8"))
    same(run(lambda x: x.astype("uint16"), given), given.astype("u2"))


def test_bools() -> None:
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    same(run(lambda x, y: x & ~y, a, b), a & ~b)
    same(run(lambda x, y: x ^ y, a, b), a ^ b)
    same(run(te.max, a, b), a | b)
    same(run(lambda x, y: te.all(x, te.any(y, ~x)), a, b), a & (b | ~a))
    same(run(te.select, a, b, ~b), np.where(a, b, ~b))


def test_if_then_else_is_lazy() -> None:
    given = np.arange(8, dtype="f4")
    tensor = te.placeholder((8,), name="A")
    c = te.compute(
        (10,), lambda i: te.if_then_else(te.all(i >= 1, i < 9), tensor[i - 1], -1), name="C"
    )
    same(te.evaluate(c, {tensor: given})[0], [-1, *given, -1])
    idx = te.placeholder((8,), "int32", name="idx")
    d = te.compute((8,), lambda i: te.if_then_else(idx[i] >= 0, tensor[idx[i]], 0), name="D")
    where = np.array([7, -3, 0, -1, 5, 100 - 99, -7, 2], "int32")
    (found,) = te.evaluate(d, {tensor: given, idx: where})
    same(found, np.where(where >= 0, given[where], 0))
    with pytest.raises(te.ExprError, match=r"A\[idx\[i\]\] reads index 8 of dimension 0"):
        te.evaluate(d, {tensor: given, idx: np.full(8, 8, "int32")})


def test_a_value_used_inside_and_outside_a_guard() -> None:
    tensor = te.placeholder((4,), name="A")

    def body(i: te.Expr) -> te.Expr:
        value = tensor[te.min(i, 3)]
        return te.if_then_else(i < 2, value, 0) + value

    c = te.compute((5,), body, name="C")
    given = np.arange(1, 5, dtype="f4")
    same(te.evaluate(c, {tensor: given})[0], [2, 4, 3, 4, 4])


def test_integer_division_is_guarded() -> None:
    a = np.array([4, 5, 6], "int32")
    b = np.array([2, 0, 3], "int32")
    found = run(lambda x, y: te.if_then_else(y != 0, te.truncdiv(x, y), -1), a, b)
    same(found, [2, -1, 2])


A = te.placeholder((33, 7), name="A")
GIVEN = RNG.standard_normal((33, 7)).astype("f4")
K = te.reduce_axis((0, 7), name="k")


@pytest.mark.parametrize("points", [1 << 20, 64, 5, 1])
def test_reductions(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_POINTS", points)
    outs = [rows(function, A, K) for function in (te.sum, te.prod, te.max, te.min)]
    found = te.evaluate(outs, {A: GIVEN})
    for value, wanted in zip(
        found, (GIVEN.sum(1), GIVEN.prod(1), GIVEN.max(1), GIVEN.min(1)), strict=True
    ):
        close(value, wanted, rtol=2e-5, atol=1e-6)


def argmax() -> Reduction:
    return te.comm_reducer(
        lambda x, y: (
            te.select(te.any(x[1] > y[1], te.all(x[1] == y[1], x[0] < y[0])), x[0], y[0]),
            te.maximum(x[1], y[1]),
        ),
        lambda t0, t1: (te.max_value(t0), te.min_value(t1)),
        name="argmax",
    )


@pytest.mark.parametrize("points", [1 << 20, 50, 3])
def test_tuple_reductions(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_POINTS", points)
    ties = np.round(GIVEN)
    index, value = te.compute((33,), lambda i: argmax()((K, A[i, K]), axis=K))
    found = te.evaluate([index, value], {A: ties})
    same(found[0], ties.argmax(1))
    same(found[1], ties.max(1))


@pytest.mark.parametrize("points", [1 << 20, 3])
def test_welford(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_POINTS", points)

    def combine(x: Any, y: Any) -> Any:
        n = x[0] + y[0]
        d = y[1] - x[1]
        part = te.select(n > 0, y[0] / te.max(n, 1.0), 0.0)
        return n, x[1] + d * part, x[2] + y[2] + d * d * x[0] * part

    welford = te.comm_reducer(combine, lambda a, b, c: (0.0, 0.0, 0.0), name="welford")
    outs = te.compute((33,), lambda i: welford((te.const(1.0), A[i, K], te.const(0.0)), axis=K))
    count, mean, m2 = te.evaluate(outs, {A: GIVEN})
    same(count, np.full(33, 7))
    close(mean, GIVEN.mean(1), atol=1e-6)
    close(m2 / 7, GIVEN.var(1), rtol=1e-5)


def test_order_is_kept() -> None:
    """An associative but not commutative combination: composition of affine functions."""
    both = te.comm_reducer(
        lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1]), lambda a, b: (1.0, 0.0), name="compose"
    )
    _, found = te.compute((33,), lambda i: both((A[i, K], A[i, K] + 1), axis=K))
    wanted = np.zeros(33)
    for column in GIVEN.T.astype("f8"):
        wanted = wanted * column + column + 1
    close(te.evaluate(found, {A: GIVEN})[0], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("points", [1 << 20, 4])
def test_where_and_init(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_POINTS", points)
    c = te.compute(
        (33,), lambda i: te.sum(A[i, K + 1], axis=K, where=te.all(K < 6, K % 2 == 0), init=A[i, 0])
    )
    found = te.evaluate(c, {A: GIVEN})[0]
    close(found, GIVEN[:, [0, 1, 3, 5]].sum(1), rtol=1e-5, atol=1e-6)
    index, _ = te.compute((33,), lambda i: argmax()((K, A[i, K]), axis=K, where=A[i, K] < 0))
    found = te.evaluate(index, {A: GIVEN})[0]
    masked = np.where(GIVEN < 0, GIVEN, -np.inf)
    some = np.isfinite(masked).any(1)
    same(found[some], masked.argmax(1)[some])
    assert (found[~some] == 2**31 - 1).all()


def test_nan_and_infinity_in_reductions() -> None:
    given = GIVEN.copy()
    given[0, 3], given[1, 2], given[2] = np.nan, np.inf, -np.inf
    outs = [rows(f, A, K) for f in (te.max, te.min, te.sum)]
    for found, wanted in zip(
        te.evaluate(outs, {A: given}), (given.max(1), given.min(1), given.sum(1)), strict=True
    ):
        close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS))
def test_empty_reductions_give_the_identity(dtype: str) -> None:
    x = te.placeholder((3, 0), dtype, name="X")
    k = te.reduce_axis((0, 0), name="k")
    outs = [rows(f, x, k) for f in (te.sum, te.prod, te.max, te.min)]
    found = te.evaluate(outs, {x: np.zeros((3, 0), numpy_dtype(te.DType(dtype)))})
    low, high = te.DType(dtype).info.lowest, te.DType(dtype).info.highest
    if dtype in FLOATS:
        low, high = -math.inf, math.inf
    for value, wanted in zip(found, (0, 1, low, high), strict=True):
        assert (value == np.array(wanted).astype(value.dtype)).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_reductions_are_exact(dtype: str) -> None:
    info = np.iinfo(dtype)
    given = RNG.integers(info.min, info.max, (5, 40), dtype, endpoint=True)
    x = te.placeholder((5, 40), dtype, name="X")
    k = te.reduce_axis((0, 40), name="k")
    outs = [rows(f, x, k) for f in (te.sum, te.prod, te.max, te.min)]
    found = te.evaluate(outs, {x: given})
    for value, ufunc in zip(found, (np.add, np.multiply, np.maximum, np.minimum), strict=True):
        same(value, ufunc.reduce(given, axis=1, dtype=value.dtype))
    short = np.dtype(dtype).itemsize < 4  # sums and products of these are wide
    assert [value.dtype.itemsize for value in found[:2]] == 2 * [4 if short else info.bits // 8]


def test_precise_sums() -> None:
    x = te.placeholder((1, 200_001), name="X")
    k = te.reduce_axis((0, 200_001), name="k")
    given = np.full((1, 200_001), 0.1, "f4")
    given[0, 0] = 1e6
    c = te.compute((1,), lambda i: te.sum(x[i, k], axis=k))
    exact = np.float32(given.astype("f8").sum())
    assert te.evaluate(c, {x: given}, precise=True)[0][0] == exact


def test_sixteen_bit_sums() -> None:
    for dtype in ("float16", "bfloat16"):
        kind = numpy_dtype(te.DType(dtype))
        given = RNG.uniform(0, 1, (4, 1000)).astype(kind)
        x = te.placeholder((4, 1000), dtype, name="X")
        k = te.reduce_axis((0, 1000), name="k")
        c = rows(te.sum, x, k)
        d = rows(functools.partial(te.sum, dtype=dtype), x, k)
        wide, narrow = te.evaluate([c, d], {x: given})
        assert (wide.dtype, narrow.dtype) == (np.float32, kind)
        exact = given.astype("f8").sum(1)
        close(wide, exact, rtol=1e-6)
        same(narrow, exact.astype("f4").astype(kind))


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ik,kj->ij", ((5, 6), (6, 7))),
        ("ki,jk->ij", ((6, 5), (7, 6))),
        ("bik,bkj->bij", ((3, 5, 6), (3, 6, 7))),
        ("bik,kj->bij", ((3, 5, 6), (6, 7))),
        ("ikl,lkj->ij", ((5, 6, 2), (2, 6, 7))),
        ("ik,k->i", ((5, 6), (6,))),
        ("k,k->", ((6,), (6,))),
        ("ik,kl->i", ((5, 6), (6, 4))),
        ("ik,jk->ij", ((0, 6), (7, 6))),
        ("ik,jk->ij", ((5, 0), (7, 0))),
    ],
)
@pytest.mark.parametrize("precise", [False, True])
def test_contractions(spec: str, shapes: tuple[Any, Any], precise: bool) -> None:
    terms, out = spec.split("->")
    left, right = terms.split(",")
    sizes = {
        c: n for t, s in ((left, shapes[0]), (right, shapes[1])) for c, n in zip(t, s, strict=True)
    }
    arrays = [RNG.standard_normal(s).astype("f4") for s in shapes]
    tensors = [te.placeholder(s, name=n) for s, n in zip(shapes, "XY", strict=True)]
    axes = {c: te.reduce_axis((0, n), name=c) for c, n in sizes.items() if c not in out}

    def body(*i: te.Expr) -> te.Expr:
        at = {**axes, **dict(zip(out, i, strict=True))}
        x, y = (t(*(at[c] for c in term)) for t, term in zip(tensors, (left, right), strict=True))
        return te.sum(x * y, axis=list(axes.values()))

    c = te.compute([sizes[c] for c in out], body, name="C")
    found = te.evaluate(c, dict(zip(tensors, arrays, strict=True)), precise=precise)[0]
    close(found, np.einsum(spec, *arrays), rtol=1e-5, atol=1e-5)


def test_a_contraction_over_part_of_a_tensor() -> None:
    x = te.placeholder((9, 12), name="X")
    k = te.reduce_axis((2, 9), name="k")
    c = te.compute((4, 9), lambda i, j: te.sum(x[i, k + 3] * x[j, k - 2], axis=k))
    given = RNG.standard_normal((9, 12)).astype("f4")
    found = te.evaluate(c, {x: given})[0]
    close(found, given[:4, 5:12] @ given[:, :7].T, rtol=1e-5, atol=1e-5)


def test_products_are_rounded_before_the_sum_where_a_cast_says_so() -> None:
    x = te.placeholder((4, 64), "float16", name="X")
    k = te.reduce_axis((0, 64), name="k")
    given = RNG.uniform(0.5, 1, (4, 64)).astype("f2")
    rounded = te.compute((4, 4), lambda i, j: te.sum((x[i, k] * x[j, k]).astype("float16"), axis=k))
    wanted = (given[:, None] * given[None]).astype("f4").sum(-1)
    close(te.evaluate(rounded, {x: given})[0], wanted, rtol=1e-6)
    exact = te.compute((4, 4), lambda i, j: te.sum(x[i, k] * x[j, k], axis=k))
    wide = given.astype("f4")
    close(te.evaluate(exact, {x: given})[0], wide @ wide.T, rtol=1e-6)
    assert not np.allclose(wanted, wide @ wide.T, rtol=1e-6)


@pytest.mark.parametrize("points", [1 << 20, 30])
def test_reads_of_every_form(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_POINTS", points)
    x = te.placeholder((12, 12), name="X")
    given = RNG.standard_normal((12, 12)).astype("f4")
    i, j = np.meshgrid(np.arange(6), np.arange(6), indexing="ij")
    for function, wanted in (
        (lambda i, j: x[j, i], given[:6, :6].T),
        (lambda i, j: x[i, i] + x[j, 0], given[i, i] + given[j, 0]),
        (lambda i, j: x[i + j, 2 * j + 1], given[i + j, 2 * j + 1]),
        (lambda i, j: x[11 - i, 3 + j], given[11 - i, 3 + j]),
        (lambda i, j: x[i * 6 // 4, (i + j) % 5], given[i * 6 // 4, (i + j) % 5]),
        (lambda i, j: i * 10 + j, (i * 10 + j)),
        (lambda i, j: 3.5, np.full((6, 6), 3.5)),
    ):
        found = te.evaluate(te.compute((6, 6), function), {x: given})[0]
        same(found, wanted)


def test_symbolic_sizes() -> None:
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), name="X")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((m,), lambda j: te.sum(x[k, j], axis=k) / n.astype("float32"))
    for shape in ((5, 3), (1, 1), (7, 0)):
        given = RNG.standard_normal(shape).astype("f4")
        found = te.evaluate(c, {x: given})[0]
        close(found, given.mean(0), rtol=1e-5, atol=1e-6)
    y = te.placeholder((n * 2,), name="Y")
    with pytest.raises(te.ExprError, match=r"the value of n is not known[\s\S]*sizes="):
        te.evaluate(y * 2, {y: np.zeros(4, "f4")})
    assert te.evaluate(y * 2, {y: np.zeros(4, "f4")}, sizes={n: 2})[0].shape == (4,)
    with pytest.raises(te.ExprError, match=r"Y is float32\[6\] and was given float32\[4\]"):
        te.evaluate(y * 2, {y: np.zeros(4, "f4")}, sizes={n: 3})


def test_inputs_must_fit() -> None:
    with pytest.raises(te.ExprError, match=r"no array was given for the placeholder A"):
        te.evaluate(A * 2, {})
    with pytest.raises(te.ExprError, match=r"A is float32\[33, 7\] and was given float64\[33, 7\]"):
        te.evaluate(A * 2, {A: GIVEN.astype("f8")})
    with pytest.raises(te.ExprError, match=r"and was given float32\[7, 33\]"):
        te.evaluate(A * 2, {A: GIVEN.T})


def test_rank_zero() -> None:
    s = te.compute((), lambda: te.sum(A[0, K], axis=K))
    t = te.compute((3,), lambda i: s() * i)
    found = te.evaluate([s, t], {A: GIVEN})
    assert found[0].shape == ()
    close(found[1], GIVEN[0].sum() * np.arange(3), rtol=1e-5)


def test_several_outputs_and_placeholders() -> None:
    first, second = te.compute((33, 7), lambda i, j: (A[i, j] * 2, A[i, j] > 0))
    found = te.evaluate([second, first, A], {A: GIVEN})
    same(found[0], GIVEN > 0)
    same(found[1], GIVEN * 2)
    assert found[2] is GIVEN


def test_pieces_cover_a_space() -> None:
    for ranges, points in (([(0, 5), (2, 9)], 7), ([(0, 5), (2, 9)], 3), ([(0, 0), (0, 4)], 10)):
        seen = [
            (i, j)
            for (a, b), (c, d) in reference.pieces(ranges, points)
            for i in range(a, b)
            for j in range(c, d)
        ]
        (a, b), (c, d) = ranges
        assert seen == [(i, j) for i in range(a, b) for j in range(c, d)] or sorted(seen) == [
            (i, j) for i in range(a, b) for j in range(c, d)
        ]
    assert list(reference.pieces([], 5)) == [()]


def test_binary_operators_all_have_meaning() -> None:
    floats = {BinaryOp.DIV, BinaryOp.POW, BinaryOp.ATAN2}
    for op in BinaryOp:
        dtype = "float32" if op in floats else "int32"
        given = np.array([3, 1], dtype)
        assert run(lambda x, y, o=op: build.binary(o, x, y), given, given).shape == (2,)


def test_bfloat16_rounds_after_every_operation() -> None:
    a = np.array([1.0, 3.0], ml_dtypes.bfloat16)
    found = run(
        lambda x: x + te.const(0.00390625, "bfloat16") + te.const(0.00390625, "bfloat16"), a
    )
    same(found, a)
