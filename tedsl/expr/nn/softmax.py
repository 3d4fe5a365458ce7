"""Rows of probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr import build
from tedsl.expr import math as functions
from tedsl.expr.axis import reduce_axis
from tedsl.expr.compute import compute
from tedsl.expr.nn.checks import dimension, require_float, require_rank, wide
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.reduce import max as max_over
from tedsl.expr.reduce import sum as sum_over
from tedsl.expr.tensor import Tensor, read


def softmax(x: Tensor, axis: int = -1, name: str = "softmax") -> Tensor:
    """exp(x - m) / sum(exp(x - m)) along `axis`, where m is the maximum: no overflow.

    Args:
        x: floats of at least one dimension.
        axis: the dimension to normalise; negative counts from the end.
        name: what the operation prints as.

    Returns:
        The shape and dtype of `x`.  Maximum and sum are stages `<name>.max` and `<name>.sum`.  A
        row of nothing but -inf, or one with inf, gives NaN.

    Raises:
        ExprError: no such dimension, or `x` is no float.
    """
    require_float(x, name)
    require_rank(x, 1, name)
    d = dimension(x, axis, name)
    others = x.shape[:d] + x.shape[d + 1 :]

    def at(i: Sequence[Expr], along: Expr) -> Expr:
        return wide(read(x, (*i[:d], along, *i[d:])))

    def largest(*i: Axis) -> Expr:
        return max_over(at(i, k), axis=k)

    def total(*i: Axis) -> Expr:
        return sum_over(functions.exp(at(i, r) - read(top, i)), axis=r)

    def element(*i: Axis) -> Expr:
        rest = (*i[:d], *i[d + 1 :])
        value = functions.exp(wide(read(x, i)) - read(top, rest)) / read(norm, rest)
        return build.cast(value, x.dtype)

    k = reduce_axis((0, x.shape[d]), name="k")
    r = reduce_axis((0, x.shape[d]), name="k")
    top = compute(others, largest, name=f"{name}.max")
    norm = compute(others, total, name=f"{name}.sum")
    return compute(x.shape, element, name=name)
