"""Iteration variables and runtime scalars that users name: `reduce_axis`, `var`, `size_var`."""

from __future__ import annotations

from typing import SupportsIndex

from tedsl.dtypes import TABLE, DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.index_arith import LARGEST, whole_number
from tedsl.expr.naming import check_name
from tedsl.expr.nodes import Axis, AxisKind, Const, Expr, Range, Var
from tedsl.expr.promote import DTypeLike, as_dtype
from tedsl.expr.visit import walk

INT32_MAX = int(TABLE[DType.int32].highest)


def var(name: str = "n", dtype: DTypeLike = DType.int32) -> Var:
    """A runtime scalar: a symbolic size, or a number given at the call.

    Args:
        name: what it prints as.
        dtype: its type; sizes are int32 or int64.
    """
    check_name(name, "runtime scalar")
    return Var(name, as_dtype(dtype))


def size_var(name: str = "n", dtype: DTypeLike = DType.int32) -> Var:
    """A runtime scalar that is known to be at least 0."""
    check_name(name, "size")
    return Var(name, as_dtype(dtype), lower=0)


def reduce_axis(dom: tuple[Expr | int, Expr | int] | Range, name: str = "k") -> Axis:
    """The axis of a reduction, over `lo <= k < hi`.

    Args:
        dom: `(lo, hi)`, or a `Range`; `lo` need not be 0, both may be symbolic.
        name: what it prints as.

    Returns:
        An axis for `te.sum` and its like; also an integer expression.

    Raises:
        ExprError: `hi < lo`, a bound that is no int32 or int64, or one that uses another axis.
    """
    check_name(name, "reduce_axis")
    if isinstance(dom, Range):
        low = as_extent(dom.min, f"reduce_axis {name}")
        extent = as_extent(dom.extent, f"reduce_axis {name}")
    elif isinstance(dom, tuple) and len(dom) == 2:  # pyright: ignore[reportUnnecessaryIsInstance]
        low = as_extent(dom[0], f"reduce_axis {name}")
        high = as_extent(dom[1], f"reduce_axis {name}")
        if isinstance(low, Const) and isinstance(high, Const):
            extent = as_extent(int(high.value) - int(low.value), f"reduce_axis {name}")
        else:
            extent = build.sub(high, low)
    else:
        raise ExprError(
            f"reduce_axis {name!r} was given {dom!r}",
            hint="give the half-open range as a pair: te.reduce_axis((0, n), name='k')",
        )
    if isinstance(extent, Const) and extent.value < 0:
        raise ExprError(
            f"reduce_axis {name!r} has the range {low} .. {build.add(low, extent)}, of negative "
            "extent",
            hint="give (lo, hi) with lo <= hi",
        )
    dtype = DType.int64 if DType.int64 in (low.dtype, extent.dtype) else DType.int32
    domain = Range(build.cast(low, dtype), build.cast(extent, dtype))
    return Axis(name, AxisKind.REDUCE, domain, dtype)


def data_axis(name: str, extent: Expr) -> Axis:
    """A data axis over `0 <= i < extent`."""
    check_name(name, "axis")
    zero = Const(0, extent.dtype)
    return Axis(name, AxisKind.DATA, Range(zero, extent), extent.dtype)


def as_extent(value: object, subject: str) -> Expr:
    """A size or bound as an int32 or int64 expression.

    Raises:
        ExprError: anything else, a number beyond `LARGEST`, or an expression over axes.
    """
    number = whole_number(value.value if isinstance(value, Const) else value)
    if number is not None and abs(number) > LARGEST:
        raise ExprError(
            f"{number} is larger than any array",
            subject=subject,
            facts=[("allowed", "sizes and bounds up to 2**62")],
            hint="give a smaller number",
        )
    if isinstance(value, SupportsIndex) and number is not None:
        return Const(number, DType.int32 if abs(number) <= INT32_MAX else DType.int64)
    if isinstance(value, Expr) and value.dtype in (DType.int32, DType.int64):
        for node in walk(value):
            if isinstance(node, Axis):
                raise ExprError(
                    f"a size depends on the axis {node.name}",
                    subject=subject,
                    hint="sizes use only numbers and te.var; restrict a reduction with where=",
                )
        return value
    kind = f"{value.dtype} expression" if isinstance(value, Expr) else type(value).__name__
    raise ExprError(
        f"{value!r} ({kind}) is no size",
        subject=subject,
        hint="give an int, or an int32 or int64 expression such as te.var('n')",
    )
