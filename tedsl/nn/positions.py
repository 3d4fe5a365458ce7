"""`te.argmax` and `te.argmin`: where the extreme of a tensor or of an expression is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, BinaryOp, Expr
from tedsl.nn import indexing
from tedsl.tensor.tensor import Tensor


def argmax(
    x: Tensor | Expr,
    axis: int | Axis | Sequence[Axis] | None = None,
    keepdims: bool = False,
    name: str = "argmax",
) -> Any:
    """The position of the largest element: of the first of them, or of the first NaN.

    Args:
        x: a tensor, or an expression over reduce axes, as for `te.sum`.
        axis: of a tensor the dimension to search, or None for all in row-major order; of an
            expression a `te.reduce_axis`, or several, whose position in row-major order it is.
        keepdims: of a tensor: keep the dimensions searched, with extent 1.
        name: of a tensor: what the operation prints as.

    Returns:
        `te.nn.argmax(x, axis)` of a tensor; of an expression one that stands for the position, to
        be used in a `te.compute`.  Both are int64.

    Raises:
        ExprError: no such dimension, nothing to search, or an expression without a reduce axis.
    """
    return _position(BinaryOp.MAX, x, axis, keepdims, name)


def argmin(
    x: Tensor | Expr,
    axis: int | Axis | Sequence[Axis] | None = None,
    keepdims: bool = False,
    name: str = "argmin",
) -> Any:
    """The position of the smallest element: of the first of them, or of the first NaN; arguments,
    result and errors as for `argmax`."""
    return _position(BinaryOp.MIN, x, axis, keepdims, name)


def _position(
    op: BinaryOp,
    x: Tensor | Expr,
    axis: int | Axis | Sequence[Axis] | None,
    keepdims: bool,
    name: str,
) -> Any:
    if isinstance(x, Tensor):
        search = indexing.argmax if op is BinaryOp.MAX else indexing.argmin
        return search(x, cast("Any", axis), keepdims, name)
    axes = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    if not axes or not all(isinstance(each, Axis) and each.domain is not None for each in axes):
        raise ExprError(
            f"the axis is {axis!r}",
            subject=name,
            facts=[("allowed", "a reduce axis of the expression, or a list of them")],
            hint="make one with te.reduce_axis((0, n), name='k')",
        )
    place: Expr = build.const(0)
    for each in cast("Sequence[Axis]", axes):
        assert each.domain is not None
        place = place * each.domain.extent + (each - each.domain.min)
    value = build.as_expr(x)
    value = build.cast(value, DType.int32) if value.dtype.is_bool else value
    found = cast("tuple[Expr, Expr]", indexing.first(op)((value, place), axis=cast("Any", axes)))
    return build.cast(found[1], DType.int64)
