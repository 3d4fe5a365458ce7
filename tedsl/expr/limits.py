"""Constants of a dtype: the ends of its finite range, and infinity."""

from __future__ import annotations

import math

from tedsl.errors import ExprError
from tedsl.expr.nodes import Const
from tedsl.expr.promote import DTypeLike, as_dtype, make_const


def min_value(dtype: DTypeLike) -> Const:
    """The lowest finite value of `dtype`."""
    known = as_dtype(dtype)
    return make_const(known.info.lowest, known)


def max_value(dtype: DTypeLike) -> Const:
    """The highest finite value of `dtype`."""
    known = as_dtype(dtype)
    return make_const(known.info.highest, known)


def infinity(dtype: DTypeLike) -> Const:
    """Plus infinity.

    Raises:
        ExprError: `dtype` is no float, or one without an infinity.
    """
    known = as_dtype(dtype)
    if not known.info.has_infinity:
        raise ExprError(f"{known} has no infinity", hint="use te.max_value(dtype)")
    return Const(math.inf, known)
