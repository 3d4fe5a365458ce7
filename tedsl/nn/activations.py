"""Functions of one element, and the gates that multiply two halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.nn.arguments import (
    dimension,
    require_float,
    require_multiple,
    require_number,
    require_rank,
    require_shape,
    wide,
)
from tedsl.nn.operator import operator
from tedsl.tensor import math as functions
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor, read

Approximation = Literal["none", "tanh"]
_SQRT_2 = math.sqrt(2.0)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def pointwise(function: Callable[[Expr], Expr], x: Tensor, name: str) -> Tensor:
    """`function` of each element, computed wide."""
    require_float(x, name)

    def element(*i: Axis) -> Expr:
        return build.cast(function(wide(read(x, i))), x.dtype)

    return compute(x.shape, element, name=name)


@operator
def relu(x: Tensor, name: str = "relu") -> Tensor:
    """max(x, 0), element by element; any shape and dtype but bool."""
    require_number(x, name)

    def element(*i: Axis) -> Expr:
        return build.maximum(read(x, i), 0)

    return compute(x.shape, element, name=name)


@operator
def relu6(x: Tensor, name: str = "relu6") -> Tensor:
    """min(max(x, 0), 6), element by element; any shape and dtype but bool.  Other limits are
    `te.clip`'s."""
    require_number(x, name)

    def element(*i: Axis) -> Expr:
        return build.minimum(build.maximum(read(x, i), 0), 6)

    return compute(x.shape, element, name=name)


@operator
def sigmoid(x: Tensor, name: str = "sigmoid") -> Tensor:
    """1 / (1 + exp(-x)) of floats of any shape; 16-bit ones are computed in float32."""
    return pointwise(functions.sigmoid, x, name)


@operator
def tanh(x: Tensor, name: str = "tanh") -> Tensor:
    """The hyperbolic tangent of floats of any shape; 16-bit ones are computed in float32."""
    return pointwise(functions.tanh, x, name)


@operator
def leaky_relu(x: Tensor, negative_slope: float | Expr = 0.01, name: str = "leaky_relu") -> Tensor:
    """x above 0, elsewhere `negative_slope` * x; floats of any shape."""
    return pointwise(lambda v: build.select(build.gt(v, 0.0), v, v * negative_slope), x, name)


@operator
def elu(x: Tensor, alpha: float | Expr = 1.0, name: str = "elu") -> Tensor:
    """x above 0, elsewhere `alpha` * (exp(x) - 1) (Clevert and others, arXiv:1511.07289); floats of
    any shape."""
    return pointwise(lambda v: _elu(v, alpha), x, name)


@operator
def selu(x: Tensor, name: str = "selu") -> Tensor:
    """`elu` with the alpha and the factor that keep mean 0 and variance 1 from layer to layer
    (Klambauer and others, arXiv:1706.02515); floats of any shape."""
    return pointwise(lambda v: _elu(v, _SELU_ALPHA) * _SELU_SCALE, x, name)


def _elu(v: Expr, alpha: float | Expr) -> Expr:
    return build.select(build.gt(v, 0.0), v, functions.expm1(v) * alpha)


def softplus_of(v: Expr) -> Expr:
    """log(1 + exp(v)) of an element.

    The exponent is never positive, so nothing overflows.  A choice of sign instead of |v| and
    max(v, 0), because the derivatives of these at 0 do not add up to the right one, 1/2.
    """
    positive = build.gt(v, 0.0)
    tail = functions.log1p(functions.exp(build.select(positive, -v, v)))
    return tail + build.select(positive, v, 0.0)


@operator
def softplus(x: Tensor, beta: float = 1.0, name: str = "softplus") -> Tensor:
    """log(1 + exp(beta * x)) / beta of floats of any shape.

    It needs no threshold beyond which it is x, as PyTorch's does: no exponent overflows.

    Raises:
        ExprError: `beta` is 0, or `x` is no float.
    """
    if beta == 0:
        raise ExprError("beta is 0", subject=name, hint="give another number; 1 is usual")
    return pointwise(lambda v: softplus_of(v * beta) * (1.0 / beta), x, name)


@operator
def mish(x: Tensor, name: str = "mish") -> Tensor:
    """x * tanh(softplus(x)) (Misra, arXiv:1908.08681); floats of any shape."""
    return pointwise(lambda v: v * functions.tanh(softplus_of(v)), x, name)


@operator
def hardsigmoid(x: Tensor, name: str = "hardsigmoid") -> Tensor:
    """min(max(x + 3, 0), 6) / 6: the sigmoid in three straight pieces; floats of any shape."""
    return pointwise(_hardsigmoid, x, name)


@operator
def hardswish(x: Tensor, name: str = "hardswish") -> Tensor:
    """x * hardsigmoid(x) (Howard and others, arXiv:1905.02244); floats of any shape."""
    return pointwise(lambda v: v * _hardsigmoid(v), x, name)


def _hardsigmoid(v: Expr) -> Expr:
    return build.minimum(build.maximum(v + 3.0, 0.0), 6.0) * (1.0 / 6.0)


@operator
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
    return pointwise(forms[approximate], x, name)


@operator
def silu(x: Tensor, name: str = "silu") -> Tensor:
    """x * sigmoid(x), also called swish (Elfwing and others, arXiv:1702.03118); any shape."""
    return pointwise(lambda v: v * functions.sigmoid(v), x, name)


@operator
def glu(x: Tensor, axis: int = -1, name: str = "glu") -> Tensor:
    """a * sigmoid(b), where a and b are the first and the second half of `x` along `axis` (Dauphin
    and others, arXiv:1612.08083).

    Args:
        x: floats, with an even extent along `axis`.
        axis: the dimension that is cut in half; negative counts from the end.
        name: what the operation prints as.

    Returns:
        `x.shape` with half that extent, in the dtype of `x`.

    Raises:
        ExprError: an extent that is not known to be even, no such dimension, or `x` is no float.
    """
    require_float(x, name)
    require_rank(x, 1, name)
    d = dimension(x, axis, name)
    require_multiple(x.shape[d], 2, f"the extent of {x.name} along axis {axis}", name)
    half = build.floordiv(x.shape[d], 2)

    def element(*i: Axis) -> Expr:
        gate = wide(read(x, (*i[:d], i[d] + half, *i[d + 1 :])))
        return build.cast(wide(read(x, i)) * functions.sigmoid(gate), x.dtype)

    return compute((*x.shape[:d], half, *x.shape[d + 1 :]), element, name=name)


@operator
def swiglu(gate: Tensor, up: Tensor, name: str = "swiglu") -> Tensor:
    """silu(gate) * up, element by element (Shazeer, arXiv:2002.05202).

    Args:
        gate: floats of any shape.
        up: floats of the same shape.
        name: what the operation prints as.

    Returns:
        The shape and dtype of `gate`.

    Raises:
        ExprError: shapes that differ, or no floats.
    """
    for each in (gate, up):
        require_float(each, name)
        require_shape(each, gate.shape, name)

    def element(*i: Axis) -> Expr:
        v = wide(read(gate, i))
        return build.cast(v * functions.sigmoid(v) * wide(read(up, i)), gate.dtype)

    return compute(gate.shape, element, name=name)
