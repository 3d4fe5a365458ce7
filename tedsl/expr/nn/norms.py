"""Normalisation by statistics of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tedsl.expr import build
from tedsl.expr import math as functions
from tedsl.expr.axis import reduce_axis
from tedsl.expr.compute import compute
from tedsl.expr.nn.checks import require_float, require_rank, require_shape, wide
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.reduce import sum as sum_over
from tedsl.expr.tensor import Tensor, read


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    name: str = "layer_norm",
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimension (arXiv:1607.06450).

    The variance is the mean of (x - mean)^2, over n and not n - 1, taken in a second pass so that a
    large mean costs no accuracy.

    Args:
        x: floats, `[..., n]`.
        weight: `[n]`, or None for 1.
        bias: `[n]`, or None for 0.
        eps: keeps the division finite.
        name: what the operation prints as.

    Returns:
        The shape and dtype of `x`.  Mean and variance are stages `<name>.mean`, `<name>.var`
        over sums `<name>.mean.red`, `<name>.var.red`.

    Raises:
        ExprError: a weight or bias of another shape, or `x` is no float.
    """
    _check_norm(x, weight, bias, name)
    mean = _row_mean(x, lambda v, _: v, f"{name}.mean")
    variance = _row_mean(x, lambda v, i: _square(v - read(mean, i)), f"{name}.var")

    def element(*i: Axis) -> Expr:
        rows = i[:-1]
        value = (wide(read(x, i)) - read(mean, rows)) * functions.rsqrt(read(variance, rows) + eps)
        return build.cast(_scale_and_shift(value, weight, bias, i[-1]), x.dtype)

    return compute(x.shape, element, name=name)


def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, name: str = "rms_norm"
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv:1910.07467).

    Args:
        x: floats, `[..., n]`.
        weight: `[n]`, or None for 1.
        eps: keeps the division finite.
        name: what the operation prints as.

    Returns:
        The shape and dtype of `x`.  The mean square is the stage `<name>.ms`.

    Raises:
        ExprError: a weight of another shape, or `x` is no float.
    """
    _check_norm(x, weight, None, name)
    square = _row_mean(x, lambda v, _: _square(v), f"{name}.ms")

    def element(*i: Axis) -> Expr:
        value = wide(read(x, i)) * functions.rsqrt(read(square, i[:-1]) + eps)
        return build.cast(_scale_and_shift(value, weight, None, i[-1]), x.dtype)

    return compute(x.shape, element, name=name)


def _square(v: Expr) -> Expr:
    return v * v


def _check_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, subject: str) -> None:
    require_float(x, subject)
    require_rank(x, 1, subject)
    for each in (weight, bias):
        if each is not None:
            require_shape(each, (x.shape[-1],), subject)


def _row_mean(x: Tensor, function: Callable[[Expr, Sequence[Expr]], Expr], name: str) -> Tensor:
    """The mean of `function(element, row indices)` over the last dimension."""
    count = x.shape[-1]
    k = reduce_axis((0, count), name="k")

    def element(*i: Axis) -> Expr:
        total = sum_over(function(wide(read(x, (*i, k))), i), axis=k)
        return total / build.cast(count, total.dtype)

    return compute(x.shape[:-1], element, name=name)


def _scale_and_shift(value: Expr, weight: Tensor | None, bias: Tensor | None, column: Expr) -> Expr:
    if weight is not None:
        value = value * wide(read(weight, (column,)))
    return value if bias is None else value + wide(read(bias, (column,)))
