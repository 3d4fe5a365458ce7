"""Generated definitions: the oracle against a loop over single points, the bounds check against
brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tedsl as te
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
)
from tedsl.reference import reference
from tedsl.tensor.tensor import ComputeOp, Tensor

SHAPE = (5, 6)
INPUTS = [te.placeholder(SHAPE, "int32", name=name) for name in "AB"]


def wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


ARITHMETIC: dict[BinaryOp, Any] = {
    BinaryOp.ADD: lambda a, b: wrap(a + b),
    BinaryOp.SUB: lambda a, b: wrap(a - b),
    BinaryOp.MUL: lambda a, b: wrap(a * b),
    BinaryOp.FLOORDIV: lambda a, b: a // b,
    BinaryOp.FLOORMOD: lambda a, b: a % b,
    BinaryOp.TRUNCDIV: lambda a, b: math.trunc(a / b),
    BinaryOp.TRUNCMOD: lambda a, b: int(math.fmod(a, b)),
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
    BinaryOp.AND: lambda a, b: a & b,
    BinaryOp.OR: lambda a, b: a | b,
    BinaryOp.XOR: lambda a, b: a ^ b,
}
COMPARISON: dict[CompareOp, Any] = {
    CompareOp.EQ: lambda a, b: a == b,
    CompareOp.NE: lambda a, b: a != b,
    CompareOp.LT: lambda a, b: a < b,
    CompareOp.LE: lambda a, b: a <= b,
    CompareOp.GT: lambda a, b: a > b,
    CompareOp.GE: lambda a, b: a >= b,
}


class Point:
    """Python integers, one element at a time: slow and plain."""

    def __init__(self, arrays: Mapping[Tensor, Any]) -> None:
        self.arrays = arrays

    def value(self, expr: Expr, at: Mapping[Axis, int]) -> int:
        def sub(e: Expr) -> int:
            return self.value(e, at)

        match expr:
            case Const(value=value):
                return int(value)
            case Axis():
                return at[expr]
            case Unary(op=UnaryOp.NOT, a=a) if a.dtype.is_bool:
                return not sub(a)
            case Binary(op=op, a=a, b=b):
                return ARITHMETIC[op](sub(a), sub(b))
            case Compare(op=op, a=a, b=b):
                return COMPARISON[op](sub(a), sub(b))
            case Select(condition=c, a=a, b=b):
                yes, no = sub(a), sub(b)
                return yes if sub(c) else no
            case IfThenElse(condition=c, a=a, b=b):
                return sub(a) if sub(c) else sub(b)
            case TensorRead(tensor=tensor, indices=indices):
                return self.element(tensor, [sub(i) for i in indices])
            case Reduce():
                return self.fold(expr, at)
            case _:
                raise TypeError(type(expr).__name__)

    def element(self, tensor: Tensor, index: list[int]) -> int:
        extents = [int(str(e)) for e in tensor.shape]
        assert all(0 <= i < n for i, n in zip(index, extents, strict=True)), (tensor, index)
        op = tensor.op
        if isinstance(op, ComputeOp):
            return self.value(op.bodies[tensor.index], dict(zip(op.axes, index, strict=True)))
        return int(self.arrays[tensor][tuple(index)])

    def fold(self, node: Reduce, at: Mapping[Axis, int]) -> int:
        combine = node.reducer.operator
        assert combine is not None
        total = self.value((node.init or node.reducer.identity)[0], at)
        ranges = []
        for axis in node.axes:
            assert axis.domain is not None
            low = self.value(axis.domain.min, {})
            ranges.append(range(low, low + self.value(axis.domain.extent, {})))
        for point in itertools.product(*ranges):
            here = {**at, **dict(zip(node.axes, point, strict=True))}
            if node.where is None or self.value(node.where, here):
                total = ARITHMETIC[combine](total, self.value(node.sources[0], here))
        return total


def guarded_read(draw: Any, tensor: Tensor, axes: list[Expr]) -> Expr:
    """A read at a random affine place, guarded where it may be outside."""
    indices: list[Expr] = []
    tests: list[Expr] = []
    for extent in SHAPE:
        index: Expr = te.const(draw(st.integers(-1, extent)))
        for axis in draw(st.lists(st.sampled_from(axes), max_size=2)):
            index = index + axis * draw(st.sampled_from([1, 1, 2, -1]))
        if draw(st.booleans()):
            index = te.max(te.min(index, extent - 1), 0)
        else:
            tests += [index >= 0, index < extent]
        indices.append(index)
    return te.if_then_else(te.all(*tests), tensor[tuple(indices)], draw(st.integers(-3, 3)))


def scalar(draw: Any, axes: list[Expr], tensors: list[Tensor], depth: int) -> Expr:
    def deeper() -> Expr:
        return scalar(draw, axes, tensors, depth - 1)

    kind = draw(st.integers(0, 8 if depth else 1))
    if kind == 0:
        return te.const(draw(st.integers(-4, 4))) + draw(st.sampled_from([te.const(0), *axes]))
    if kind in (1, 2):
        return guarded_read(draw, draw(st.sampled_from(tensors)), axes or [te.const(1)])
    if kind in (3, 4):
        op = draw(st.sampled_from([te.add, te.subtract, te.multiply, te.minimum, te.maximum]))
        return op(deeper(), deeper())
    if kind == 5:
        op = draw(st.sampled_from([te.floordiv, te.floormod, te.truncdiv, te.truncmod]))
        return op(deeper(), draw(st.sampled_from([2, 3, -2, 7])))
    if kind in (6, 7):
        choose = draw(st.sampled_from([te.select, te.if_then_else]))
        compare = draw(st.sampled_from([te.less, te.equal, te.greater_equal]))
        return choose(compare(deeper(), deeper()), deeper(), deeper())
    low = draw(st.integers(-1, 2))
    k = te.reduce_axis((low, low + draw(st.integers(0, 3))), name="k")
    function = draw(st.sampled_from([te.sum, te.max, te.min, te.prod]))
    source = scalar(draw, [*axes, k], tensors, depth - 1)
    where = k % 2 == draw(st.integers(0, 1)) if draw(st.booleans()) else None
    init = scalar(draw, axes, tensors, 0) if draw(st.booleans()) else None
    return function(source, axis=k, where=where, init=init)


@st.composite
def graphs(draw: Any) -> Tensor:
    """Two computes, the second reading the first."""
    tensors = list(INPUTS)
    first = te.compute(SHAPE, lambda i, j: scalar(draw, [i, j], tensors, 2), name="C")
    tensors.append(first)
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.sampled_from([0, 1, 3, 4])) for _ in range(rank))
    return te.compute(shape, lambda *i: scalar(draw, list(i), tensors, 3), name="D")


@given(graph=graphs(), points=st.sampled_from([1, 7, 1 << 20]), seed=st.integers(0, 99))
def test_the_oracle_against_single_points(graph: Tensor, points: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {tensor: rng.integers(-9, 9, SHAPE, "int32") for tensor in INPUTS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "BLOCK_POINTS", points)
        (found,) = te.evaluate(graph, arrays)
    point = Point(arrays)
    wanted = np.zeros(found.shape, "int32")
    for index in np.ndindex(found.shape):
        wanted[index] = point.element(graph, list(index))
    np.testing.assert_array_equal(found, wanted)


@given(data=st.data())
def test_the_bounds_check_against_brute_force(data: st.DataObject) -> None:
    """With constant extents and affine guards, exactly the definitions that stray are refused."""
    extents = [data.draw(st.integers(1, 9)) for _ in range(2)]
    size = data.draw(st.integers(1, 20))
    scales = [data.draw(st.integers(-2, 3)) for _ in range(2)]
    offset = data.draw(st.integers(-3, 12))
    guard = [data.draw(st.integers(-1, 2)) for _ in range(2)]
    limit = data.draw(st.integers(0, 12))
    x = te.placeholder((size,), name="X")

    def inside(i: int, j: int) -> bool:
        kept = guard[0] * i + guard[1] * j < limit
        return not kept or 0 <= scales[0] * i + scales[1] * j + offset < size

    def define() -> Tensor:
        return te.compute(
            tuple(extents),
            lambda i, j: te.if_then_else(
                i * guard[0] + j * guard[1] < limit, x[i * scales[0] + j * scales[1] + offset], 0
            ),
        )

    if all(inside(i, j) for i in range(extents[0]) for j in range(extents[1])):
        define()
    else:
        with pytest.raises(te.ExprError, match=r"is outside X: .* reads X\[-?\d+\]"):
            te.create_schedule(define())
