"""Joined dimensions: the same element, also where its number does not fit into 32 bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Const, Expr
from tedsl.ir.layout import collapse
from tedsl.tensor.axis import as_extent, data_axis

WIDE = 1 << 18
OPS = {
    BinaryOp.ADD: lambda a, b: a + b,
    BinaryOp.MUL: lambda a, b: a * b,
    BinaryOp.FLOORDIV: lambda a, b: a // b,
    BinaryOp.FLOORMOD: lambda a, b: a % b,
}


def value(expr: Expr, at: dict[Expr, int]) -> int:
    """In the width of each node, as hardware computes it."""
    match expr:
        case Const():
            found = int(expr.value)
        case Cast(a=a):
            found = value(a, at)
        case Binary(op=op, a=a, b=b):
            found = OPS[op](value(a, at), value(b, at))
        case _:
            found = at[expr]
    bits = 32 if expr.dtype is DType.int32 else 64
    return (found + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def flat(shape: Sequence[Expr], indices: Sequence[Expr], at: dict[Expr, int]) -> int:
    found = 0
    for size, index in zip(shape, indices, strict=True):
        found = found * value(size, at) + value(index, at)
    return found


def axis(extent: int, dtype: str = "int32") -> Axis:
    return data_axis("f", as_extent(te.const(extent, dtype), "f"))


@pytest.mark.parametrize("shift", [0, 7, 200_000])
def test_rows_far_from_the_first(shift: int) -> None:
    f = axis(4 * WIDE)
    shape = (as_extent(WIDE, "rows"), as_extent(WIDE, "columns"))
    sizes, indices = collapse(shape, (f // WIDE + shift, f % WIDE))
    for place in (0, 1, WIDE - 1, WIDE, 4 * WIDE - 1):
        assert flat(sizes, indices, {f: place}) == (place // WIDE + shift) * WIDE + place % WIDE


def test_an_axis_of_64_bits_read_at_indices_of_32() -> None:
    f = axis(WIDE * WIDE, "int64")
    shape = (as_extent(WIDE, "rows"), as_extent(WIDE, "columns"))
    where = (Cast(f // WIDE, DType.int32), Cast(f % WIDE, DType.int32))
    sizes, indices = collapse(shape, where)
    assert len(indices) == 1  # no division is left
    for place in (0, WIDE, 2**31 - 1, 2**31, 2**32 + 5, WIDE * WIDE - 1):
        assert flat(sizes, indices, {f: place}) == place


def test_sizes_of_calls_join_in_the_width_of_the_axis() -> None:
    n, f = te.size_var("n"), axis(1000)
    sizes, (index,) = collapse((te.size_var("m"), n), (f // n, f % n))
    assert index is f and len(sizes) == 1


def test_a_constant_size_keeps_its_type() -> None:
    n = te.const(200_000, "int64")
    x = te.placeholder((n, 5), name="x")
    assert [size.dtype for size in x.shape] == ["int64", "int32"]
    assert te.reduce_axis((0, n)).dtype is DType.int64
