"""Tensors that are made of nothing: constants, counts, unit matrices.  Imports `importer`."""

from __future__ import annotations

from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.torch.elements.dtypes import constant, is_number
from tedsl.torch.elements.value import Indices, Value, filled
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten, prims
from tedsl.torch.refusals import NotTaken

EXACT = 1 << 24
"""The whole numbers up to it are floats of 32 bits."""


def _full(context: Context, number: Any) -> Value:
    shape, dtype = context.shape(), context.dtype()
    if isinstance(number, Expr):
        return Value(shape, dtype, lambda _: build.cast(number, dtype))
    if not is_number(number):
        raise NotTaken("a number that is known at the call only")
    return filled(number, shape, dtype)


@takes(Family.CREATION, aten.full.default, aten.full_like.default)
def full(context: Context, _: Any, number: Any, *__: Any) -> Value:
    """One number everywhere."""
    return _full(context, number)


@takes(Family.CREATION, aten.new_full.default)
def new_full(context: Context, _: Any, __: Any, number: Any, *___: Any) -> Value:
    """One number everywhere, of the type of another tensor."""
    return _full(context, number)


@takes(Family.CREATION, aten.scalar_tensor.default)
def scalar_tensor(context: Context, number: Any, *_: Any) -> Value:
    """A tensor of one number."""
    return _full(context, number)


@takes(Family.CREATION, aten.fill.Scalar)
def fill(context: Context, _: Any, number: Any) -> Value:
    """A tensor with all elements replaced."""
    return _full(context, number)


@takes(
    Family.CREATION,
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
)
def zeros(context: Context, *_: Any) -> Value:
    """0 everywhere."""
    return _full(context, 0)


@takes(Family.CREATION, aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(context: Context, *_: Any) -> Value:
    """1 everywhere."""
    return _full(context, 1)


def _counted(context: Context, start: Any, step: Any) -> Value:
    """`start + i * step`, of floats in the type that PyTorch counts in, or of whole numbers that
    any float of 32 bits holds in that of indices."""
    dtype, (length,) = context.dtype(), context.shape()
    if not (is_number(start) and is_number(step)):
        raise NotTaken("a count that is known at the call only")
    work = dtype if dtype.is_integer else DType.float64
    if not dtype.is_integer and float(start).is_integer() and float(step).is_integer():
        most = abs(start) + abs(step) * length if isinstance(length, int) else EXACT + 1
        start, step = int(start), int(step)
        work = DType.int32 if most <= EXACT else work

    def element(i: Indices) -> Expr:
        place = build.cast(i[0], work)
        return build.cast(constant(start, work) + place * constant(step, work), dtype)

    return Value(context.shape(), dtype, element, None, 1)


@takes(Family.CREATION, aten.arange.default)
def arange(context: Context, *_: Any) -> Value:
    """0, 1, 2, ..."""
    return _counted(context, 0, 1)


@takes(Family.CREATION, aten.arange.start)
def arange_start(context: Context, start: Any, *_: Any) -> Value:
    """Counted from a number."""
    return _counted(context, start, 1)


@takes(Family.CREATION, aten.arange.start_step)
def arange_step(context: Context, start: Any, end: Any, step: Any = 1, *_: Any) -> Value:
    """Counted from a number in steps."""
    del end
    return _counted(context, start, step)


@takes(Family.CREATION, prims.iota.default)
def iota(context: Context, length: Any, start: Any, step: Any, *_: Any) -> Value:
    """Counted integers."""
    del length
    return _counted(context, start, step)


@takes(Family.CREATION, aten.eye.default, aten.eye.m)
def eye(context: Context, *_: Any) -> Value:
    """1 where row and column are the same, else 0."""
    dtype = context.dtype()

    def element(i: Indices) -> Expr:
        return build.select(build.eq(i[0], i[1]), constant(1, dtype), constant(0, dtype))

    return Value(context.shape(), dtype, element, None, 1)


@takes(
    Family.CREATION,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    limits="what PyTorch leaves open is 0",
)
def empty(context: Context, *_: Any) -> Value:
    """Anything: 0."""
    return _full(context, 0)
