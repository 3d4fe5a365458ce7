"""Every operator and cast on the CPU against its meaning in `expr.numerics`, for all dtypes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cpu_machines import MACHINES, compiling_for
from cpu_modules import call, elementwise

from tedsl.dtypes import DType
from tedsl.expr import numerics
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Select,
    Unary,
    UnaryOp,
)
from tedsl.ir.nodes import LoopKind

pytestmark = pytest.mark.cpu

INTEGERS = [d for d in DType if d.is_integer]
FLOATS = [d for d in DType if d.is_float]
EXACT_FLOAT = [
    UnaryOp.NEG,
    UnaryOp.ABS,
    UnaryOp.SIGN,
    UnaryOp.FLOOR,
    UnaryOp.CEIL,
    UnaryOp.ROUND,
    UnaryOp.TRUNC,
    UnaryOp.ISNAN,
    UnaryOp.ISINF,
    UnaryOp.ISFINITE,
    UnaryOp.SQRT,
]
INTEGER_UNARY = [
    UnaryOp.NEG,
    UnaryOp.NOT,
    UnaryOp.ABS,
    UnaryOp.SIGN,
    UnaryOp.POPCOUNT,
    UnaryOp.FLOOR,
]
FLOAT_BINARY = [
    BinaryOp.ADD,
    BinaryOp.SUB,
    BinaryOp.MUL,
    BinaryOp.DIV,
    BinaryOp.FLOORDIV,
    BinaryOp.FLOORMOD,
    BinaryOp.TRUNCDIV,
    BinaryOp.TRUNCMOD,
    BinaryOp.MIN,
    BinaryOp.MAX,
]
INTEGER_BINARY = [op for op in BinaryOp if op not in (BinaryOp.DIV, BinaryOp.ATAN2)]
COUNT = 1031


def sample(dtype: DType, seed: int) -> np.ndarray:
    """Random values with the extremes and zeros among them."""
    rng = np.random.default_rng(seed)
    kind = numerics.numpy_dtype(dtype)
    if dtype.is_bool:
        return rng.integers(0, 2, COUNT).astype(np.bool_)
    info = dtype.info
    if dtype.is_integer:
        lowest, highest = int(info.lowest), int(info.highest)
        wide = rng.integers(lowest, highest, COUNT, dtype=kind, endpoint=True)
        small = rng.integers(max(lowest, -9), 10, COUNT).astype(kind)
        x = np.where(rng.random(COUNT) < 0.5, wide, small)
        edge = [lowest, highest, 0, 1, highest // 2, max(lowest, -1)]
    else:
        x = (rng.standard_normal(COUNT) * 10 ** rng.uniform(-2, 2, COUNT)).astype(kind)
        x[100:400] = (rng.integers(-40, 40, 300) / 4).astype(kind)
        edge = [np.inf, -np.inf, np.nan, 0.0, -0.0, 0.5, info.highest, info.lowest]
        edge += [1e-40, 3e-8, -2.5]
    rng.shuffle(edge)
    x[: len(edge)] = np.array(edge).astype(kind)
    return x


def run(
    make: Callable[..., Expr], out: DType, *inputs: tuple[np.ndarray, DType], scalar: bool = False
) -> np.ndarray:
    arrays = [a for a, _ in inputs]
    y = np.zeros(COUNT, numerics.numpy_dtype(out))
    kind = LoopKind.SERIAL if scalar else None
    call(elementwise(COUNT, [d for _, d in inputs], out, make, kind), *arrays, y)
    return y


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal, with NaN equal to NaN."""
    want = np.asarray(want)
    assert got.dtype == want.dtype
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_operators(dtype: DType, scalar: bool) -> None:
    x, y = sample(dtype, 1), sample(dtype, 2)
    for op in INTEGER_UNARY:
        got = run(lambda a, op=op: Unary(op, a), dtype, (x, dtype), scalar=scalar)
        same(got, numerics.unary(op, x, dtype))
    for op in INTEGER_BINARY:
        right = y
        if op in (BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD):
            right = np.where(y == 0, np.array(1, y.dtype), y)
        with np.errstate(all="ignore"):
            want = numerics.binary(op, x, right, dtype)
        got = run(
            lambda a, b, op=op: Binary(op, a, b), dtype, (x, dtype), (right, dtype), scalar=scalar
        )
        np.testing.assert_array_equal(got, want, err_msg=op.name)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("by", [1, 2, 3, 7, 16, 100])
def test_division_by_constants(dtype: DType, by: int) -> None:
    x = sample(dtype, 3)
    for op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD):
        got = run(lambda a, op=op: Binary(op, a, Const(by, dtype)), dtype, (x, dtype))
        with np.errstate(all="ignore"):
            want = numerics.binary(op, x, np.full_like(x, by), dtype)
        np.testing.assert_array_equal(got, want, err_msg=op.name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_operators(dtype: DType) -> None:
    x, y = sample(dtype, 4), sample(dtype, 5)
    with np.errstate(all="ignore"):
        for op in EXACT_FLOAT:
            want = numerics.unary(op, x, dtype)
            out = DType.bool if want.dtype == np.bool_ else dtype
            same(run(lambda a, op=op: Unary(op, a), out, (x, dtype)), want)
        for op in FLOAT_BINARY:
            got = run(lambda a, b, op=op: Binary(op, a, b), dtype, (x, dtype), (y, dtype))
            want = numerics.binary(op, x, y, dtype)
            if op is BinaryOp.TRUNCDIV:
                ok = np.abs(want.astype(np.float64)) < 100
                got, want = got[ok], want[ok]
            np.testing.assert_array_equal(
                got.astype(np.float64), want.astype(np.float64), err_msg=op.name
            )


@pytest.mark.parametrize("dtype", list(DType))
def test_comparisons_and_selection(dtype: DType) -> None:
    x, y = sample(dtype, 6), sample(dtype, 7)
    y[::3] = x[::3]
    for op in CompareOp:
        same(
            run(lambda a, b, op=op: Compare(op, a, b), DType.bool, (x, dtype), (y, dtype)),
            numerics.COMPARE[op](x, y),
        )
    picked = run(
        lambda a, b: Select(Compare(CompareOp.NE, a, b), a, b), dtype, (x, dtype), (y, dtype)
    )
    same(picked, np.where(x != y, x, y))


def test_bool_operators() -> None:
    x, y = sample(DType.bool, 8), sample(DType.bool, 9)
    for op in (BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR, BinaryOp.MIN, BinaryOp.MAX):
        got = run(
            lambda a, b, op=op: Binary(op, a, b), DType.bool, (x, DType.bool), (y, DType.bool)
        )
        same(got, numerics.binary(op, x, y, DType.bool))
    same(run(lambda a: Unary(UnaryOp.NOT, a), DType.bool, (x, DType.bool)), ~x)


@pytest.mark.parametrize("source", list(DType))
def test_casts(source: DType) -> None:
    x = sample(source, 10)
    for target in DType:
        values = x
        if source.is_float and not target.is_float and not target.is_bool:
            low, high = max(target.info.lowest, -(2**31)), min(target.info.highest, 2**31 - 256)
            wide = np.nan_to_num(x.astype(np.float64), nan=0, posinf=0, neginf=0)
            values = np.clip(wide, low / 2, high / 2).astype(x.dtype)
        with np.errstate(all="ignore"):
            want = numerics.cast(values, source, target)
        got = run(lambda a, t=target: Cast(a, t), target, (values, source))
        np.testing.assert_array_equal(
            got.astype(np.float64), want.astype(np.float64), err_msg=f"{source} to {target}"
        )


@pytest.mark.parametrize("machine", MACHINES)
def test_other_machines(machine: str) -> None:
    with compiling_for(machine):
        for dtype in (DType.int8, DType.int32, DType.uint64):
            test_integer_operators(dtype, False)
        for dtype in (DType.bfloat16, DType.float32):
            test_float_operators(dtype)


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
def test_literals_are_rounded_to_their_type(dtype: DType) -> None:
    x = sample(dtype, 11)
    for value in (0.1, 1 / 3, -2.7, 1e-7):
        with np.errstate(all="ignore"):
            want = x * numerics.numpy_dtype(dtype).type(value)
        got = run(lambda a, v=value: Binary(BinaryOp.MUL, a, Const(v, dtype)), dtype, (x, dtype))
        same(got, want)
