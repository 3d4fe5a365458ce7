"""Functions of one element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr import math as functions
from tedsl.expr.compute import compute
from tedsl.expr.nn.checks import require_float, wide
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.tensor import Tensor, read

Approximation = Literal["none", "tanh"]
_SQRT_2 = math.sqrt(2.0)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def pointwise(function: Callable[[Expr], Expr], x: Tensor, name: str) -> Tensor:
    """`function` of each element, computed wide."""
    require_float(x, name)

    def element(*i: Axis) -> Expr:
        return build.cast(function(wide(read(x, i))), x.dtype)

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
    return pointwise(forms[approximate], x, name)


def silu(x: Tensor, name: str = "silu") -> Tensor:
    """x * sigmoid(x), also called swish (Elfwing and others, arXiv:1702.03118); any shape."""
    return pointwise(lambda v: v * functions.sigmoid(v), x, name)
