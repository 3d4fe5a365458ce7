"""Arithmetic of two operands: sums with a factor, quotients and remainders, powers, angles.

Imports `elementwise`.
"""

from __future__ import annotations

from typing import Any

from tedsl.expr import build
from tedsl.expr.nodes import Const, Expr
from tedsl.tensor import math as te
from tedsl.torch.elements.dtypes import Promotion, constant, is_number
from tedsl.torch.elements.value import Value
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
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


def _fmod(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_float:
        raise NotTaken("the remainder of floats is exact in PyTorch: a quotient does not give it")
    return build.truncmod(a, _divisor(b))


def _remainder(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_float:
        raise NotTaken("the remainder of floats is exact in PyTorch: a quotient does not give it")
    return build.floormod(a, _divisor(b))


def _divisor(b: Expr) -> Expr:
    """An integer divisor that is not 0, for which PyTorch raises an error."""
    if not isinstance(b, Const) or b.value == 0:
        raise NotTaken("an integer divisor may be 0")
    return b


def _floor_quotient(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_float:
        raise NotTaken("a floor division of floats is exact in PyTorch")
    return build.floordiv(a, _divisor(b))


def _trunc_quotient(a: Expr, b: Expr) -> Expr:
    return te.trunc(build.div(a, b)) if a.dtype.is_float else build.truncdiv(a, _divisor(b))


@takes(Family.POINTWISE, aten.div.Tensor, aten.div.Scalar)
def div(context: Context, a: Any, b: Any) -> Value:
    """`a / b` in floats."""
    return elementwise(context, FLOAT, build.div, [a, b], context.fakes[:2])


@takes(
    Family.POINTWISE,
    aten.div.Tensor_mode,
    aten.div.Scalar_mode,
    limits="floor: integers by a constant other than 0; trunc of integers: the same",
)
def div_mode(context: Context, a: Any, b: Any, rounding_mode: str | None) -> Value:
    """A quotient that is rounded."""
    if rounding_mode is None:
        return div(context, a, b)  # pyright: ignore[reportReturnType]
    function = _floor_quotient if rounding_mode == "floor" else _trunc_quotient
    return elementwise(context, DEFAULT, function, [a, b], context.fakes[:2])


_WHOLE = "integers by a constant other than 0"


@takes(Family.POINTWISE, aten.floor_divide.default, limits=_WHOLE)
def floor_divide(context: Context, a: Any, b: Any) -> Value:
    """A quotient rounded to minus infinity."""
    return elementwise(context, DEFAULT, _floor_quotient, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.fmod.Tensor, aten.fmod.Scalar, limits=_WHOLE)
def fmod(context: Context, a: Any, b: Any) -> Value:
    """The remainder with the sign of `a`."""
    return elementwise(context, DEFAULT, _fmod, [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.remainder.Tensor, aten.remainder.Scalar, limits=_WHOLE)
def remainder(context: Context, a: Any, b: Any) -> Value:
    """The remainder with the sign of `b`."""
    return elementwise(context, DEFAULT, _remainder, [a, b], context.fakes[:2])


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


@takes(Family.POINTWISE, aten.addcmul.default, limits="floats")
def addcmul(context: Context, x: Value, a: Value, b: Value, value: Any) -> Value:
    """`x + value * a * b`."""
    if not _is_float_value(x):
        raise NotTaken("integers")

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
