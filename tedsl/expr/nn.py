"""Neural-network operators written only with the language; the compiler knows none of them.

Sixteen-bit floats are cast to float32 on reading, everything is computed there, and the result is
cast back to the dtype of the first input.  Each operator takes and returns whole tensors; what it
builds are ordinary computes, to be scheduled like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr import math as functions
from tedsl.expr.axis import reduce_axis
from tedsl.expr.broadcast import same_extent
from tedsl.expr.compute import compute
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.reduce import max as max_over
from tedsl.expr.reduce import sum as sum_over
from tedsl.expr.tensor import Tensor, read

Approximation = Literal["none", "tanh"]
_SQRT_2 = math.sqrt(2.0)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def _wide(element: Expr) -> Expr:
    """`element` in the dtype computed in: float32 for 16-bit floats, else its own."""
    dtype = element.dtype
    return build.cast(element, DType.float32) if dtype.is_float and dtype.bits == 16 else element


def _require_float(x: Tensor, subject: str) -> None:
    if not x.dtype.is_float:
        raise ExprError(
            f"{x.name} is {x.dtype}, not a float",
            subject=subject,
            hint=f"cast it first: {x.name}.astype('float32')",
        )


def _require_rank(x: Tensor, rank: int, subject: str) -> None:
    if x.ndim < rank:
        raise ExprError(
            f"{x.name} has {x.ndim} dimensions, at least {rank} are needed",
            subject=subject,
            hint="add dimensions of extent 1 with te.compute",
        )


def _require_equal(a: Expr, b: Expr, what: str, subject: str) -> None:
    if not same_extent(a, b):
        raise ExprError(
            f"{what} are {a} and {b}",
            subject=subject,
            hint="make them equal; use the same te.var for equal sizes",
        )


def _pointwise(function: Callable[[Expr], Expr], x: Tensor, name: str) -> Tensor:
    """`function` of each element, computed wide."""
    _require_float(x, name)

    def element(*i: Axis) -> Expr:
        return build.cast(function(_wide(read(x, i))), x.dtype)

    return compute(x.shape, element, name=name)


def relu(x: Tensor, name: str = "relu") -> Tensor:
    """max(x, 0), element by element; any shape and dtype but bool."""

    def element(*i: Axis) -> Expr:
        return build.maximum(read(x, i), 0)

    return compute(x.shape, element, name=name)


def gelu(x: Tensor, approximate: Approximation = "none", name: str = "gelu") -> Tensor:
    """The Gaussian error linear unit (Hendrycks and Gimpel, arXiv:1606.08415).

    Args:
        x: floats of any shape.
        approximate: "none" is x/2 * (1 + erf(x / sqrt(2))); "tanh" is
            x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), the form that GPT-2 uses.
        name: what the operation prints as.

    Raises:
        ExprError: another word for `approximate`, or `x` is no float.
    """

    def exact(v: Expr) -> Expr:
        return v * 0.5 * (1.0 + functions.erf(v * (1.0 / _SQRT_2)))

    def by_tanh(v: Expr) -> Expr:  # (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel
        return v * functions.sigmoid(2.0 * _SQRT_2_OVER_PI * (v + 0.044715 * (v * v * v)))

    forms = {"none": exact, "tanh": by_tanh}
    if approximate not in forms:
        raise ExprError(f"gelu has no approximation {approximate!r}", hint='give "none" or "tanh"')
    return _pointwise(forms[approximate], x, name)


def silu(x: Tensor, name: str = "silu") -> Tensor:
    """x * sigmoid(x), also called swish (Elfwing and others, arXiv:1702.03118); any shape."""
    return _pointwise(lambda v: v * functions.sigmoid(v), x, name)


def matmul(a: Tensor, b: Tensor, name: str = "matmul") -> Tensor:
    """The matrix product over the last two dimensions.

    Args:
        a: `[..., m, k]`.
        b: `[..., k, n]`; the dimensions before the last two are those of `a`, or there are none
            in one of the two.
        name: what the operation prints as.

    Returns:
        `[..., m, n]` in the dtype in which `a` and `b` meet.  Sixteen-bit floats are multiplied
        and added up in float32 (in `<name>.red`) and rounded once; other dtypes accumulate in
        their own.

    Raises:
        ExprError: fewer than two dimensions, or extents that do not match.
    """
    for each in (a, b):
        _require_rank(each, 2, name)
    _require_equal(a.shape[-1], b.shape[-2], "the inner extents", name)
    batch = a.shape[:-2] or b.shape[:-2]
    for x, y in zip(batch, b.shape[:-2], strict=False):
        _require_equal(x, y, "batch extents", name)
    if a.shape[:-2] and b.shape[:-2] and a.ndim != b.ndim:
        raise ExprError(
            f"{a.name} has {a.ndim - 2} batch dimensions and {b.name} has {b.ndim - 2}",
            subject=name,
            hint="give both the same batch dimensions, or one of them none",
        )
    k = reduce_axis((0, a.shape[-1]), name="k")
    left_rank, right_rank = a.ndim - 2, b.ndim - 2

    def element(*i: Axis) -> Expr:
        lead, row, column = i[:-2], i[-2], i[-1]
        left = read(a, (*lead[:left_rank], row, k))
        right = read(b, (*lead[:right_rank], k, column))
        x, y = build.promote(left, right)
        return build.cast(sum_over(_wide(x) * _wide(y), axis=k), x.dtype)

    return compute((*batch, a.shape[-2], b.shape[-1]), element, name=name)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, name: str = "linear") -> Tensor:
    """x @ weight.T + bias.

    Args:
        x: `[..., in]`, floats.
        weight: `[out, in]`, as PyTorch stores it.
        bias: `[out]`, or None.
        name: what the operation prints as.

    Returns:
        `[..., out]` in the dtype of `x`.  Accumulated, and the bias added, in float32 (float64 for
        float64 inputs), then rounded once.

    Raises:
        ExprError: ranks or extents that do not match, or no floats.
    """
    _require_float(x, name)
    _require_rank(x, 1, name)
    _require_shape(weight, (None, x.shape[-1]), name)
    if bias is not None:
        _require_shape(bias, (weight.shape[0],), name)
    k = reduce_axis((0, x.shape[-1]), name="k")

    def element(*i: Axis) -> Expr:
        left, right = _wide(read(x, (*i[:-1], k))), _wide(read(weight, (i[-1], k)))
        total: Expr = sum_over(left * right, axis=k)
        if bias is not None:
            total = total + _wide(read(bias, (i[-1],)))
        return build.cast(total, x.dtype)

    return compute((*x.shape[:-1], weight.shape[0]), element, name=name)


def _require_shape(x: Tensor, shape: Sequence[Expr | None], subject: str) -> None:
    """Refuse another rank, or an extent other than a wanted one (None: any)."""
    wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
    matches = x.ndim == len(shape) and all(
        extent is None or same_extent(extent, own)
        for extent, own in zip(shape, x.shape, strict=True)
    )
    if not matches:
        raise ExprError(
            f"{x.name} has the shape {list(x.shape)}, not [{wanted}]",
            subject=subject,
            hint="pass a tensor of that shape",
        )


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
    _require_float(x, name)
    _require_rank(x, 1, name)
    d = _dimension(x, axis, name)
    others = x.shape[:d] + x.shape[d + 1 :]

    def at(i: Sequence[Expr], along: Expr) -> Expr:
        return _wide(read(x, (*i[:d], along, *i[d:])))

    def largest(*i: Axis) -> Expr:
        return max_over(at(i, k), axis=k)

    def total(*i: Axis) -> Expr:
        return sum_over(functions.exp(at(i, r) - read(top, i)), axis=r)

    def element(*i: Axis) -> Expr:
        rest = (*i[:d], *i[d + 1 :])
        value = functions.exp(_wide(read(x, i)) - read(top, rest)) / read(norm, rest)
        return build.cast(value, x.dtype)

    k = reduce_axis((0, x.shape[d]), name="k")
    r = reduce_axis((0, x.shape[d]), name="k")
    top = compute(others, largest, name=f"{name}.max")
    norm = compute(others, total, name=f"{name}.sum")
    return compute(x.shape, element, name=name)


def _dimension(x: Tensor, axis: int, subject: str) -> int:
    """`axis` counted from the front."""
    if not -x.ndim <= axis < x.ndim:
        raise ExprError(
            f"{x.name} has {x.ndim} dimensions, there is no axis {axis}",
            subject=subject,
            facts=[("allowed", f"{-x.ndim} .. {x.ndim - 1}")],
            hint="give a dimension of the input",
        )
    return axis % x.ndim


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
        value = (_wide(read(x, i)) - read(mean, rows)) * functions.rsqrt(read(variance, rows) + eps)
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
        value = _wide(read(x, i)) * functions.rsqrt(read(square, i[:-1]) + eps)
        return build.cast(_scale_and_shift(value, weight, None, i[-1]), x.dtype)

    return compute(x.shape, element, name=name)


def _square(v: Expr) -> Expr:
    return v * v


def _check_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, subject: str) -> None:
    _require_float(x, subject)
    _require_rank(x, 1, subject)
    for each in (weight, bias):
        if each is not None:
            _require_shape(each, (x.shape[-1],), subject)


def _row_mean(x: Tensor, function: Callable[[Expr, Sequence[Expr]], Expr], name: str) -> Tensor:
    """The mean of `function(element, row indices)` over the last dimension."""
    count = x.shape[-1]
    k = reduce_axis((0, count), name="k")

    def element(*i: Axis) -> Expr:
        total = sum_over(function(_wide(read(x, (*i, k))), i), axis=k)
        return total / build.cast(count, total.dtype)

    return compute(x.shape[:-1], element, name=name)


def _scale_and_shift(value: Expr, weight: Tensor | None, bias: Tensor | None, column: Expr) -> Expr:
    if weight is not None:
        value = value * _wide(read(weight, (column,)))
    return value if bias is None else value + _wide(read(bias, (column,)))
