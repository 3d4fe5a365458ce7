"""Means and variances along dimensions, and the mean that the normalisations are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.nn.arguments import dimensions, require_float, wide
from tedsl.nn.operator import operator
from tedsl.tensor import math as functions
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.tensor import Tensor, read

Indices = Sequence[Expr]
Along = int | Sequence[int] | None
"""One dimension, several, or None for all of them."""


@operator
def mean(x: Tensor, axis: Along = None, keepdims: bool = False, name: str = "mean") -> Tensor:
    """The mean along dimensions.

    Args:
        x: floats of any shape.
        axis: the dimensions to average over; negative counts from the end, None takes all.
        keepdims: keep these dimensions, with extent 1.
        name: what the operation prints as.

    Returns:
        `x.shape` without these dimensions, in the dtype of `x`; NaN where there is nothing to
        average.  The sum, of 16-bit floats in float32, is the stage `<name>.red`.

    Raises:
        ExprError: no such dimension, one that is given twice, or `x` is no float.
    """
    return _Folded(x, axis, keepdims, name).result(lambda v, _: v, name)


@operator
def var(
    x: Tensor,
    axis: Along = None,
    correction: float = 1,
    keepdims: bool = False,
    name: str = "var",
) -> Tensor:
    """The variance along dimensions: the sum of (x - mean)^2 over max(count - correction, 0).

    The squares are taken in a second pass, so that a large mean costs no accuracy.

    Args:
        x: floats of any shape.
        axis: the dimensions to go along; negative counts from the end, None takes all.
        correction: 1 for the unbiased estimate from a sample (Bessel), 0 for the mean square.
        keepdims: keep these dimensions, with extent 1.
        name: what the operation prints as.

    Returns:
        `x.shape` without these dimensions, in the dtype of `x`; NaN where one element leaves
        nothing after the correction.  The mean is the stage `<name>.mean`.

    Raises:
        ExprError: no such dimension, one that is given twice, or `x` is no float.
    """
    return _variance(x, axis, correction, keepdims, name, lambda v: v)


@operator
def std(
    x: Tensor,
    axis: Along = None,
    correction: float = 1,
    keepdims: bool = False,
    name: str = "std",
) -> Tensor:
    """The square root of the variance; arguments, stages and errors as for `var`."""
    return _variance(x, axis, correction, keepdims, name, functions.sqrt)


def average(
    shape: Indices,
    extents: Indices,
    element: Callable[[Indices, Indices], Expr],
    name: str,
    correction: float = 0,
    finish: Callable[[Expr], Expr] = lambda v: v,
) -> Tensor:
    """`finish` of the mean of `element(data indices, reduced indices)` over `extents`.

    The building block of the normalisations: what is averaged may be read from anywhere.
    """
    names = ["k"] if len(extents) == 1 else [f"k{n}" for n in range(len(extents))]
    along = [reduce_axis((0, extent), name=k) for k, extent in zip(names, extents, strict=True)]

    def body(*i: Axis) -> Expr:
        term = element(i, along)
        total: Expr = sum_over(term, axis=along) if along else term
        count: Expr = Const(1.0, total.dtype)
        for extent in extents:  # in floats: a product of sizes may be too large for an int32
            count = count * build.cast(extent, total.dtype)
        if correction:
            count = build.maximum(count - correction, 0.0)
        return finish(total / count)

    return compute(tuple(shape), body, name=name)


def _variance(
    x: Tensor,
    axis: Along,
    correction: float,
    keepdims: bool,
    name: str,
    finish: Callable[[Expr], Expr],
) -> Tensor:
    folded = _Folded(x, axis, keepdims, name)
    middle = average(folded.kept, folded.extents, folded.element, f"{name}.mean")

    def square(value: Expr, kept: Indices) -> Expr:
        away = value - read(middle, kept)
        return away * away

    return folded.result(square, name, correction, finish)


class _Folded:
    """A tensor of which some dimensions are folded."""

    def __init__(self, x: Tensor, axis: Along, keepdims: bool, subject: str) -> None:
        require_float(x, subject)
        self.x = x
        self.dims = dimensions(x, axis, subject)
        self.keepdims = keepdims
        self.kept = [extent for d, extent in enumerate(x.shape) if d not in self.dims]
        self.extents = [x.shape[d] for d in self.dims]

    def element(self, kept: Indices, along: Indices) -> Expr:
        """One element, wide, from the indices of the dimensions kept and of those folded."""
        rest, folded = iter(kept), iter(along)
        index = [next(folded) if d in self.dims else next(rest) for d in range(self.x.ndim)]
        return wide(read(self.x, index))

    def result(
        self,
        function: Callable[[Expr, Indices], Expr],
        name: str,
        correction: float = 0,
        finish: Callable[[Expr], Expr] = lambda v: v,
    ) -> Tensor:
        """The mean of `function(element, indices kept)`, in the dtype of the tensor."""
        shape: list[Expr] = self.kept
        if self.keepdims:
            one = build.const(1)
            shape = [one if d in self.dims else n for d, n in enumerate(self.x.shape)]

        def inner(i: Indices) -> Indices:
            if not self.keepdims:
                return i
            return [each for d, each in enumerate(i) if d not in self.dims]

        return average(
            shape,
            self.extents,
            lambda i, k: function(self.element(inner(i), k), inner(i)),
            name,
            correction,
            lambda v: build.cast(finish(v), self.x.dtype),
        )
