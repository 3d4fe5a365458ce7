"""Whole quotients and remainders.  Imports `elementwise`.

Of integers, a divisor that is 0 is an error in PyTorch: `Context.checks` says what has to hold, and
the kernel divides by something else.  Of floats, the remainder is exact, as that of the C library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Const, Expr
from tedsl.tensor import math as te
from tedsl.torch.elements.dtypes import Promotion, promoted
from tedsl.torch.elements.value import Value, cast_to
from tedsl.torch.importer.context import Check, Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.operators.elementwise import Element, elementwise
from tedsl.torch.refusals import NotTaken

DEFAULT, FLOAT = Promotion.DEFAULT, Promotion.INT_TO_FLOAT
_STEP = 28
"""Bits of a quotient by which float64 takes an exact remainder of float32 at once."""
_WHOLE = "up to float32; integers by what is not 0"


def _sound(b: Expr) -> Expr:
    """A divisor by which every integer may be divided: 1 in the place of 0 and of -1."""
    bad = build.eq(b, 0)
    if b.dtype.info.lowest != 0:
        bad = build.logical_or(bad, build.eq(b, -1))
    return build.select(bad, build.const(1, b.dtype), b)


def _whole(divide: Callable[[Expr, Expr], Expr], quotient: bool) -> Element:
    """A quotient or a remainder of integers; by -1 it is that by 1 but for the sign."""

    def element(a: Expr, b: Expr) -> Expr:
        if isinstance(b, Const):
            if b.value == 0 or a.dtype.is_bool:
                raise NotTaken("a division of integers by 0, or of bools")
            if b.value != -1:
                return divide(a, b)
        found = divide(a, _sound(b))
        if quotient and a.dtype.info.lowest != 0:
            return build.select(build.eq(b, -1), build.neg(a), found)
        return found

    return element


def _modulus(a: Expr, b: Expr) -> Expr:
    """`|a|` modulo `|b|` in float64, exact for float32: quotients of 280 bits in ten steps."""
    if a.dtype is DType.float64:
        raise NotTaken("the remainder of float64 is exact in PyTorch: a quotient does not give it")
    rest, size = (te.abs(build.cast(each, DType.float64)) for each in (a, b))
    whole = rest
    for power in range(9 * _STEP, -1, -_STEP):
        step = size * 2.0**power
        rest = rest - te.trunc(build.div(rest, step)) * step
    return build.select(build.logical_and(te.isinf(b), build.logical_not(te.isinf(a))), whole, rest)


def _fmod(a: Expr, b: Expr) -> Expr:
    found = _modulus(a, b)
    return build.cast(build.select(build.lt(a, 0.0), build.neg(found), found), a.dtype)


def _remainder(a: Expr, b: Expr) -> Expr:
    found = build.cast(_fmod(a, b), DType.float64)
    return build.cast(
        build.select(_apart(found, b), found + build.cast(b, DType.float64), found), a.dtype
    )


def _apart(found: Expr, b: Expr) -> Expr:
    """A remainder on the other side of 0 than the divisor."""
    sides = build.ne(build.lt(found, 0.0), build.lt(b, 0.0))
    return build.logical_and(build.ne(found, 0.0), sides)


def _floor_quotient(a: Expr, b: Expr) -> Expr:
    """In the order of operations of PyTorch, which goes by the remainder."""
    found = _fmod(a, b)
    quotient = build.div(a - found, b)
    quotient = build.select(_apart(found, b), quotient - 1.0, quotient)
    low = te.floor(quotient)
    low = build.select(build.gt(quotient - low, 0.5), low + 1.0, low)
    low = build.select(build.eq(quotient, 0.0), build.const(0.0, a.dtype), low)
    return build.select(build.eq(b, 0.0), build.div(a, b), low)


def _trunc_quotient(a: Expr, b: Expr) -> Expr:
    return te.trunc(build.div(a, b))


_OF_FLOATS = {
    "fmod": _fmod,
    "remainder": _remainder,
    "floor": _floor_quotient,
    "trunc": _trunc_quotient,
}
_OF_INTEGERS = {
    "fmod": _whole(build.truncmod, False),
    "remainder": _whole(build.floormod, False),
    "floor": _whole(build.floordiv, True),
    "trunc": _whole(build.truncdiv, True),
}


def _divided(context: Context, kind: str, a: Any, b: Any) -> Value:
    """A quotient or remainder, as the type says; of integers with the check of the divisor."""
    types = promoted(DEFAULT, context.fakes[:2])
    if types.computed.is_float:
        return elementwise(context, DEFAULT, _OF_FLOATS[kind], [a, b], context.fakes[:2])
    if isinstance(b, Value):
        divisor = cast_to(context.held(b, "divisor"), types.computed)
        some = Value(
            b.shape,
            DType.int32,
            lambda i: build.cast(build.ne(divisor[i], 0), DType.int32),
            None,
            1,
        )
        context.checks.append(Check(some, 1, 2))
    return elementwise(context, DEFAULT, _OF_INTEGERS[kind], [a, b], context.fakes[:2])


@takes(Family.POINTWISE, aten.div.Tensor_mode, aten.div.Scalar_mode, limits=_WHOLE)
def div_mode(context: Context, a: Any, b: Any, rounding_mode: str | None) -> Value:
    """A quotient that is rounded."""
    if rounding_mode is None:
        return elementwise(context, FLOAT, build.div, [a, b], context.fakes[:2])
    return _divided(context, rounding_mode, a, b)


@takes(Family.POINTWISE, aten.floor_divide.default, aten.floor_divide.Scalar, limits=_WHOLE)
def floor_divide(context: Context, a: Any, b: Any) -> Value:
    """A quotient rounded to minus infinity."""
    return _divided(context, "floor", a, b)


@takes(Family.POINTWISE, aten.fmod.Tensor, aten.fmod.Scalar, limits=_WHOLE)
def fmod(context: Context, a: Any, b: Any) -> Value:
    """The remainder with the sign of `a`."""
    return _divided(context, "fmod", a, b)


@takes(
    Family.POINTWISE,
    aten.remainder.Tensor,
    aten.remainder.Scalar,
    aten.remainder.Scalar_Tensor,
    limits=_WHOLE,
)
def remainder(context: Context, a: Any, b: Any) -> Value:
    """The remainder with the sign of `b`."""
    return _divided(context, "remainder", a, b)
