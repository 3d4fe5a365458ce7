"""TVM's functions of the bits of a number, of functions that `te` has."""

from __future__ import annotations

from typing import Any

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr.build import as_expr
from tedsl.tensor import math as functions

math: Any = functions
_BITS = {DType.float16: "int16", DType.float32: "int32", DType.float64: "int64"}


def copysign(x1: Any, x2: Any) -> Any:
    """The size of the first number with the sign of the second, that of a zero too.

    Raises:
        ExprError: they are no floats of 16, 32 or 64 bits.
    """
    size, sign = (_bits(each, "copysign") for each in (x1, x2))
    top = _top(size)
    return math.reinterpret(x1.dtype, (size & ~top) | (sign & top))


def nextafter(x1: Any, x2: Any) -> Any:
    """The number next to the first in the direction of the second.

    Floats of one sign are in the order of their bits as integers.

    Raises:
        ExprError: they are no floats of 16, 32 or 64 bits.
    """
    place = _bits(x1, "nextafter")
    outwards = math.equal(x1 < x2, x1 > 0)
    one = math.cast(1, place.dtype)
    beside = math.reinterpret(x1.dtype, place + math.select(outwards, one, -one))
    least = copysign(math.reinterpret(x1.dtype, one), x2)
    moved = math.select(math.equal(x1, 0), least, beside)
    found = math.select(math.equal(x1, x2), x2, moved)
    return math.select(math.logical_or(math.isnan(x1), math.isnan(x2)), x1 + x2, found)


def clz(x: Any) -> Any:
    """How many zeros the bits of an integer begin with, as an int32; of 0 all.

    Raises:
        ExprError: it is no integer.
    """
    x = as_expr(x)
    if not x.dtype.is_integer:
        raise ExprError(f"{x.dtype} is no integer", subject="clz", hint="cast it to one")
    count = 8 * x.dtype.nbytes
    for step in (1, 2, 4, 8, 16, 32):
        if step < count:  # all bits below the first one are 1
            x = x | _shifted(x, step, count)
    return math.cast(count - math.popcount(x), "int32")


def _shifted(x: Any, step: int, count: int) -> Any:
    """Bits moved down, zeros after them."""
    return (x >> step) & ((1 << (count - step)) - 1)


def _top(bits: Any) -> Any:
    """The bit of the sign."""
    return math.cast(-(1 << (8 * bits.dtype.nbytes - 1)), bits.dtype)


def _bits(x: Any, name: str) -> Any:
    x = as_expr(x)
    if x.dtype not in _BITS:
        raise ExprError(
            f"{x.dtype} is no float of 16, 32 or 64 bits", subject=name, hint="cast it to one"
        )
    return math.reinterpret(_BITS[x.dtype], x)
