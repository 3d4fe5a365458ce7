"""Normalisation by statistics of the input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.nn.arguments import (
    require_between,
    require_float,
    require_multiple,
    require_rank,
    require_shape,
    wide,
)
from tedsl.nn.moments import Indices, average
from tedsl.nn.operator import operator
from tedsl.nn.windows import Layout, require_layout
from tedsl.tensor import math as functions
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor, read


@operator
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
    require_float(x, name)
    require_rank(x, 1, name)
    affine = _Affine(weight, bias, -1).checked(x, name)
    mean, variance = _mean_and_variance(
        x.shape[:-1], x.shape[-1:], lambda i, k: wide(read(x, (*i, *k))), name
    )
    return _normalised(x, mean, variance, lambda i: i[:-1], affine, eps, name)


@operator
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
    require_float(x, name)
    require_rank(x, 1, name)
    require_between(eps, 0.0, math.inf, "eps", name)
    affine = _Affine(weight, None, -1).checked(x, name)

    def term(i: Indices, k: Indices) -> Expr:
        return _square(wide(read(x, (*i, *k))))

    square = average(x.shape[:-1], x.shape[-1:], term, f"{name}.ms")

    def element(*i: Axis) -> Expr:
        value = wide(read(x, i)) * functions.rsqrt(read(square, i[:-1]) + eps)
        return build.cast(affine.applied(value, i), x.dtype)

    return compute(x.shape, element, name=name)


@operator
def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    name: str = "add_rms_norm",
) -> tuple[Tensor, Tensor]:
    """The step between two blocks of a network: the sum of a block's result and what went past it,
    and its `rms_norm`.

    Args:
        x: floats, `[..., n]`.
        residual: floats of the same shape.
        weight: `[n]`, or None for 1.
        eps: keeps the division finite.
        name: what the operation prints as.

    Returns:
        `rms_norm(x + residual)` and `x + residual` (the stage `<name>.sum`), of the shape and dtype
        of `x`.  The sum is rounded to that dtype before it is normalised, as if each were called.

    Raises:
        ExprError: shapes that differ, a weight of another shape, or no floats.
    """
    for each in (x, residual):
        require_float(each, name)
        require_shape(each, x.shape, name)

    def element(*i: Axis) -> Expr:
        return build.cast(wide(read(x, i)) + wide(read(residual, i)), x.dtype)

    total = compute(x.shape, element, name=f"{name}.sum")
    return rms_norm(total, weight, eps, name), total


@operator
def batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    name: str = "batch_norm",
    *,
    layout: Layout = "channels_first",
) -> Tensor:
    """(x - running_mean) / sqrt(running_var + eps) * weight + bias for each channel: batch
    normalisation as a trained network uses it (arXiv:1502.03167).

    Args:
        x: floats, `[N, C]` or `[N, C, d1, ...]`.
        running_mean: `[C]`.
        running_var: `[C]`.
        weight: `[C]`, or None for 1.
        bias: `[C]`, or None for 0.
        eps: keeps the division finite.
        name: what the operation prints as.
        layout: "channels_last" for `[N, d1, ..., C]`, as the convolutions have it by default.

    Returns:
        The shape and dtype of `x`.

    Raises:
        ExprError: statistics, a weight or a bias of another shape, or no floats.
    """
    require_float(x, name)
    require_rank(x, 2, name)
    order = _Order.of(x, layout, name)
    affine = _Affine(weight, bias, order.channel).checked(x, name)
    for each in (running_mean, running_var):
        require_float(each, name)
        require_shape(each, (x.shape[order.channel],), name)
    return _normalised(
        x, running_mean, running_var, lambda i: (i[order.channel],), affine, eps, name
    )


@operator
def batch_norm_training(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    name: str = "batch_norm",
    *,
    layout: Layout = "channels_first",
) -> tuple[Tensor, Tensor, Tensor]:
    """`batch_norm` by the mean and variance of this batch: its form in training.

    Args:
        x: floats, `[N, C]` or `[N, C, d1, ...]`.
        weight: `[C]`, or None for 1.
        bias: `[C]`, or None for 0.
        eps: keeps the division finite.
        name: what the operation prints as.
        layout: "channels_last" for `[N, d1, ..., C]`, as the convolutions have it by default.

    Returns:
        The result, of the shape and dtype of `x`; the mean and the variance of each channel, `[C]`,
        in float32 at least: stages `<name>.mean` and `<name>.var`.  The variance is that by which
        the batch was normalised, over all n = N * d1 * ... elements.  Running statistics follow as
        `running + momentum * (batch - running)`; PyTorch takes n / (n - 1) times the variance
        there.

    Raises:
        ExprError: a weight or bias of another shape, or `x` is no float.
    """
    require_float(x, name)
    require_rank(x, 2, name)
    order = _Order.of(x, layout, name)
    affine = _Affine(weight, bias, order.channel).checked(x, name)
    shape = order.first(x.shape)

    def element(i: Indices, k: Indices) -> Expr:
        return wide(read(x, order.stored((k[0], *i, *k[1:]))))

    mean, variance = _mean_and_variance(shape[1:2], (shape[0], *shape[2:]), element, name)
    made = _normalised(x, mean, variance, lambda i: (i[order.channel],), affine, eps, name)
    return made, mean, variance


@operator
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    name: str = "group_norm",
    *,
    layout: Layout = "channels_first",
) -> Tensor:
    """Normalisation over groups of neighbouring channels of each example (arXiv:1803.08494).

    Args:
        x: floats, `[N, C]` or `[N, C, d1, ...]`.
        num_groups: how many groups; divides C.
        weight: `[C]`, or None for 1.
        bias: `[C]`, or None for 0.
        eps: keeps the division finite.
        name: what the operation prints as.
        layout: "channels_last" for `[N, d1, ..., C]`, as the convolutions have it by default.

    Returns:
        The shape and dtype of `x`.  Mean and variance, `[N, num_groups]`, are stages `<name>.mean`
        and `<name>.var`.

    Raises:
        ExprError: a number of groups that is not known to divide C, a weight or bias of another
            shape, or `x` is no float.
    """
    require_float(x, name)
    require_rank(x, 2, name)
    order = _Order.of(x, layout, name)
    affine = _Affine(weight, bias, order.channel).checked(x, name)
    shape = order.first(x.shape)
    channels = shape[1]
    require_multiple(channels, num_groups, "the number of channels", name)
    size = build.floordiv(channels, num_groups)

    def element(i: Indices, k: Indices) -> Expr:
        return wide(read(x, order.stored((i[0], i[1] * size + k[0], *k[1:]))))

    groups = (shape[0], build.const(num_groups, channels.dtype))
    mean, variance = _mean_and_variance(groups, (size, *shape[2:]), element, name)

    def group(i: Indices) -> Indices:
        return i[0], build.floordiv(i[order.channel], size)

    return _normalised(x, mean, variance, group, affine, eps, name)


@operator
def instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    name: str = "instance_norm",
    *,
    layout: Layout = "channels_first",
) -> Tensor:
    """Normalisation of each channel of each example by its own statistics (arXiv:1607.08022).

    Args:
        x: floats, `[N, C, d1, ...]`.
        weight: `[C]`, or None for 1.
        bias: `[C]`, or None for 0.
        eps: keeps the division finite.
        name: what the operation prints as.
        layout: "channels_last" for `[N, d1, ..., C]`, as the convolutions have it by default.

    Returns:
        The shape and dtype of `x`.  Mean and variance, `[N, C]`, are stages `<name>.mean` and
        `<name>.var`.

    Raises:
        ExprError: a weight or bias of another shape, or `x` is no float.
    """
    require_float(x, name)
    require_rank(x, 3, name)
    order = _Order.of(x, layout, name)
    affine = _Affine(weight, bias, order.channel).checked(x, name)
    shape = order.first(x.shape)
    mean, variance = _mean_and_variance(
        shape[:2], shape[2:], lambda i, k: wide(read(x, order.stored((*i, *k)))), name
    )
    return _normalised(x, mean, variance, lambda i: (i[0], i[order.channel]), affine, eps, name)


@dataclass(frozen=True, slots=True)
class _Order:
    """Where the channels of a tensor are: dimension 1, or the last."""

    channel: int

    @staticmethod
    def of(x: Tensor, layout: str, subject: str) -> _Order:
        """That of a layout.

        Raises:
            ExprError: no such layout.
        """
        require_layout(layout, subject)
        return _Order(1 if layout == "channels_first" else x.ndim - 1)

    def first(self, stored: Indices) -> Indices:
        """Extents or indices as they are stored, with the channels at 1."""
        channel = self.channel
        return (stored[0], stored[channel], *stored[1:channel], *stored[channel + 1 :])

    def stored(self, first: Indices) -> Indices:
        """Indices with the channels at 1 as they are stored."""
        rest = (first[0], *first[2:])
        return (*rest[: self.channel], first[1], *rest[self.channel :])


@dataclass(frozen=True, slots=True)
class _Affine:
    """A factor and a summand for each index of one dimension."""

    weight: Tensor | None
    bias: Tensor | None
    dimension: int

    def checked(self, x: Tensor, subject: str) -> _Affine:
        """This, for `x` of enough dimensions; refuses other shapes."""
        for each in (self.weight, self.bias):
            if each is not None:
                require_float(each, subject)
                require_shape(each, (x.shape[self.dimension],), subject, self.hint(x))
        return self

    def hint(self, x: Tensor) -> str:
        """What to do where a weight has another shape."""
        if self.dimension < 0 or x.ndim < 3:
            return "pass a tensor of that shape"
        other = "first" if self.dimension == x.ndim - 1 else "last"
        return (
            f"dimension {self.dimension} of {x.name} is taken for the channels: pass a tensor of "
            f'that shape, or give layout="channels_{other}"'
        )

    def applied(self, value: Expr, i: Indices) -> Expr:
        place = (i[self.dimension],)
        if self.weight is not None:
            value = value * wide(read(self.weight, place))
        return value if self.bias is None else value + wide(read(self.bias, place))


def _square(v: Expr) -> Expr:
    return v * v


def _mean_and_variance(
    shape: Indices, extents: Indices, element: Callable[[Indices, Indices], Expr], name: str
) -> tuple[Tensor, Tensor]:
    """The mean of `element(data indices, reduced indices)`, and of its squared distance from it."""
    mean = average(shape, extents, element, f"{name}.mean")

    def away(i: Indices, k: Indices) -> Expr:
        return _square(element(i, k) - read(mean, i))

    return mean, average(shape, extents, away, f"{name}.var")


def _normalised(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    place: Callable[[Indices], Indices],
    affine: _Affine,
    eps: float,
    name: str,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps), scaled and shifted; statistics are those at `place`."""
    require_between(eps, 0.0, math.inf, "eps", name)

    def element(*i: Axis) -> Expr:
        at = place(i)
        centred = wide(read(x, i)) - wide(read(mean, at))
        value = centred * functions.rsqrt(wide(read(variance, at)) + eps)
        return build.cast(affine.applied(value, i), x.dtype)

    return compute(x.shape, element, name=name)
