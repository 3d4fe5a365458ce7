"""Rows of probabilities and their logarithms, without overflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.nn.arguments import dimension, require_float, require_rank, wide
from tedsl.nn.operator import operator
from tedsl.tensor import math as functions
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.reduce import max as max_over
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.tensor import Tensor, read


@operator
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
    return _normalised(x, axis, name, lambda v, norm: functions.exp(v) / norm)


@operator
def log_softmax(x: Tensor, axis: int = -1, name: str = "log_softmax") -> Tensor:
    """x - m - log(sum(exp(x - m))) along `axis`, where m is the maximum: the logarithm of the
    softmax, also where that is too small for its dtype.

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
    return _normalised(x, axis, name, lambda v, norm: v - functions.log(norm))


@operator
def logsumexp(x: Tensor, axis: int = -1, keepdims: bool = False, name: str = "logsumexp") -> Tensor:
    """m + log(sum(exp(x - m))) along `axis`, where m is the maximum; m itself where that is
    infinite.

    Args:
        x: floats of at least one dimension.
        axis: the dimension to sum over; negative counts from the end.
        keepdims: keep this dimension, with extent 1.
        name: what the operation prints as.

    Returns:
        `x.shape` without that dimension, in the dtype of `x`; -inf for a row of nothing but -inf or
        of no elements.  Maximum and sum are stages `<name>.max` and `<name>.sum`.

    Raises:
        ExprError: no such dimension, or `x` is no float.
    """
    d = _checked(x, axis, name)
    top, norm = max_and_sum(x, d, name)
    shape = (*x.shape[:d], *((build.const(1),) if keepdims else ()), *x.shape[d + 1 :])

    def element(*i: Axis) -> Expr:
        rest = (*i[:d], *i[d + 1 :]) if keepdims else i
        largest = read(top, rest)
        infinite = build.eq(functions.abs(largest), math.inf)
        value = build.select(infinite, largest, largest + functions.log(read(norm, rest)))
        return build.cast(value, x.dtype)

    return compute(shape, element, name=name)


def max_and_sum(x: Tensor, d: int, name: str) -> tuple[Tensor, Tensor]:
    """The maximum m along dimension `d`, and the sum of exp(x - m), both wide: the stages
    `<name>.max` and `<name>.sum`."""
    others = x.shape[:d] + x.shape[d + 1 :]

    def at(i: Sequence[Expr], along: Expr) -> Expr:
        return wide(read(x, (*i[:d], along, *i[d:])))

    def largest(*i: Axis) -> Expr:
        return max_over(at(i, k), axis=k)

    def total(*i: Axis) -> Expr:
        return sum_over(functions.exp(at(i, r) - read(top, i)), axis=r)

    k = reduce_axis((0, x.shape[d]), name="k")
    r = reduce_axis((0, x.shape[d]), name="k")
    top = compute(others, largest, name=f"{name}.max")
    return top, compute(others, total, name=f"{name}.sum")


def _checked(x: Tensor, axis: int, name: str) -> int:
    require_float(x, name)
    require_rank(x, 1, name)
    return dimension(x, axis, name)


def _normalised(x: Tensor, axis: int, name: str, function: Callable[[Expr, Expr], Expr]) -> Tensor:
    """`function(x - maximum, sum)` along `axis`."""
    d = _checked(x, axis, name)
    top, norm = max_and_sum(x, d, name)

    def element(*i: Axis) -> Expr:
        rest = (*i[:d], *i[d + 1 :])
        value = function(wide(read(x, i)) - read(top, rest), read(norm, rest))
        return build.cast(value, x.dtype)

    return compute(x.shape, element, name=name)
