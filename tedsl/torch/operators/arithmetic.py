"""Arithmetic of two operands: sums with a factor, quotients, powers, angles.

Imports `elementwise`.
"""

from __future__ import annotations

import math
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Const, Expr
from tedsl.tensor import math as te
from tedsl.torch.elements.dtypes import Promotion, constant, is_number
from tedsl.torch.elements.value import Value
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten, prims
from tedsl.torch.operators.elementwise import Element, elementwise
from tedsl.torch.refusals import NotTaken

DEFAULT, FLOAT = Promotion.DEFAULT, Promotion.INT_TO_FLOAT


def _add(a: Expr, b: Expr) -> Expr:
    return build.logical_or(a, b) if a.dtype.is_bool else build.add(a, b)


def _mul(a: Expr, b: Expr) -> Expr:
    return build.logical_and(a, b) if a.dtype.is_bool else build.mul(a, b)


def _scaled(function: Element, alpha: Any) -> Element:
    def element(a: Expr, b: Expr) -> Expr:
        if alpha != 1:
            b = _mul(b, constant(alpha, b.dtype))
        return function(a, b)

    return element


def _number(alpha: Any) -> Any:
    if not is_number(alpha):
        raise NotTaken("alpha= is no number")
    return alpha


@takes(Family.POINTWISE, aten.add.Tensor, aten.add.Scalar)
def add(context: Context, a: Any, b: Any, alpha: Any) -> Value:
    """`a + alpha * b`; of bools, or."""
    function = _scaled(_add, _number(alpha))
    return elementwise(context, DEFAULT, function, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.sub.Tensor, aten.sub.Scalar)
def sub(context: Context, a: Any, b: Any, alpha: Any) -> Value:
    """`a - alpha * b`."""
    function = _scaled(build.sub, _number(alpha))
    return elementwise(context, DEFAULT, function, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(context: Context, a: Any, b: Any, alpha: Any) -> Value:
    """`b - alpha * a`."""
    function = _scaled(build.sub, _number(alpha))
    return elementwise(context, DEFAULT, function, [b, a], [context.fakes[1], context.fakes[0]])


@takes(Family.POINTWISE, aten.mul.Tensor, aten.mul.Scalar)
def mul(context: Context, a: Any, b: Any) -> Value:
    """`a * b`; of bools, and."""
    return elementwise(context, DEFAULT, _mul, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.div.Tensor, aten.div.Scalar)
def div(context: Context, a: Any, b: Any) -> Value:
    """`a / b` in floats."""
    return elementwise(context, FLOAT, build.div, [a, b], context.fakes[:2])


@takes(
    Family.POINTWISE,
    aten.pow.Tensor_Tensor,
    aten.pow.Tensor_Scalar,
    aten.pow.Scalar,
    limits="of integers: constant exponents from 0 to 64",
)
def power(context: Context, a: Any, b: Any) -> Value:
    """`a ** b`."""

    def element(x: Expr, y: Expr) -> Expr:
        known = y.value if isinstance(y, Const) and x.dtype.is_float else None
        if known == 0.5:
            return te.sqrt(x)
        if known == -0.5:
            return te.rsqrt(x)
        if known is not None and known in (-1.0, -2.0):
            return build.div(1.0, x if known == -1.0 else x * x)
        return build.power(x, y)

    return elementwise(context, DEFAULT, element, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.atan2.default)
def atan2(context: Context, a: Value, b: Value) -> Value:
    """The angle of a point."""
    return elementwise(context, FLOAT, build.atan2, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.hypot.default, limits="up to float32")
def hypot(context: Context, a: Value, b: Value) -> Value:
    """The length of a vector, in float64, whose squares do not overflow."""

    def element(x: Expr, y: Expr) -> Expr:
        if x.dtype is DType.float64:
            raise NotTaken("squares of float64 may overflow")
        p, q = build.cast(x, DType.float64), build.cast(y, DType.float64)
        infinite = build.logical_or(te.isinf(x), te.isinf(y))
        length = build.cast(te.sqrt(p * p + q * q), x.dtype)
        return build.select(infinite, build.const(math.inf, x.dtype), length)

    return elementwise(context, FLOAT, element, [a, b], context.fakes[:2])


def _shifted(left: bool) -> Element:
    """A shift by as many bits as there are, or by a negative number, leaves nothing of them."""

    def element(a: Expr, b: Expr) -> Expr:
        bits = a.dtype.bits
        outside = build.ge(b, bits)
        if a.dtype.info.lowest != 0:
            outside = build.logical_or(outside, build.lt(b, 0))
        count = build.select(outside, build.const(bits - 1, b.dtype), b)
        if left:
            return build.select(outside, build.const(0, a.dtype), build.left_shift(a, count))
        rest = build.right_shift(a, count)
        if a.dtype.info.lowest != 0:
            return rest
        return build.select(outside, build.const(0, a.dtype), rest)

    return element


def _register_shift(name: str, old: str, left: bool) -> None:
    packet, older = getattr(aten, name), getattr(aten, old)
    spellings = packet.Tensor, packet.Tensor_Scalar, packet.Scalar_Tensor

    @takes(Family.POINTWISE, *spellings, older.Tensor, older.Scalar)
    def convert(context: Context, a: Any, b: Any) -> Value:
        return elementwise(context, DEFAULT, _shifted(left), [a, b], context.fakes[:2])

    del convert


_register_shift("bitwise_left_shift", "__lshift__", True)
_register_shift("bitwise_right_shift", "__rshift__", False)


@takes(Family.POINTWISE, aten.maximum.default)
def maximum(context: Context, a: Value, b: Value) -> Value:
    """The larger; NaN of any NaN."""
    return elementwise(context, DEFAULT, build.maximum, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.minimum.default)
def minimum(context: Context, a: Value, b: Value) -> Value:
    """The smaller; NaN of any NaN."""
    return elementwise(context, DEFAULT, build.minimum, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.fmax.default)
def fmax(context: Context, a: Value, b: Value) -> Value:
    """The larger; of NaN and a number, the number."""

    def element(x: Expr, y: Expr) -> Expr:
        if not x.dtype.is_float:
            return build.maximum(x, y)
        rest = build.select(te.isnan(y), x, build.maximum(x, y))
        return build.select(te.isnan(x), y, rest)

    return elementwise(context, DEFAULT, element, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.fmin.default)
def fmin(context: Context, a: Value, b: Value) -> Value:
    """The smaller; of NaN and a number, the number."""

    def element(x: Expr, y: Expr) -> Expr:
        if not x.dtype.is_float:
            return build.minimum(x, y)
        rest = build.select(te.isnan(y), x, build.minimum(x, y))
        return build.select(te.isnan(x), y, rest)

    return elementwise(context, DEFAULT, element, [a, b], context.fakes[:2])


def _is_float_value(value: Any) -> bool:
    return isinstance(value, Value) and value.dtype.is_float


@takes(Family.POINTWISE, *([prims.fma.default] if hasattr(prims, "fma") else []))
def fma(context: Context, a: Value, b: Any, c: Value) -> Value:
    """`a * b + c`, in which Dynamo takes changes such as `addcmul_` apart."""

    def element(p: Expr, q: Expr, r: Expr) -> Expr:
        return p * q + r

    return elementwise(context, DEFAULT, element, [a, b, c], context.fakes[:3])


@takes(Family.POINTWISE, aten.addcmul.default)
def addcmul(context: Context, x: Value, a: Value, b: Value, value: Any) -> Value:
    """`x + value * a * b`."""

    def element(p: Expr, q: Expr, r: Expr) -> Expr:
        return p + constant(value, p.dtype) * q * r

    return elementwise(context, DEFAULT, element, [x, a, b], context.fakes[:3])


@takes(Family.POINTWISE, aten.addcdiv.default, limits="floats")
def addcdiv(context: Context, x: Value, a: Value, b: Value, value: Any) -> Value:
    """`x + value * a / b`."""
    if not _is_float_value(x):
        raise NotTaken("integers")

    def element(p: Expr, q: Expr, r: Expr) -> Expr:
        return p + constant(value, p.dtype) * q / r

    return elementwise(context, DEFAULT, element, [x, a, b], context.fakes[:3])
