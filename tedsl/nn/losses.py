"""Losses of predictions against targets: names, arguments and reductions as PyTorch has them.

A `reduction` of "none" keeps the loss of each element, "sum" adds them up and "mean" divides that
by their number (weighted losses of classes: by the weight of the targets that count).  Sums run in
float32 at least and are rounded once.  A mean over nothing is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr
from tedsl.nn.activations import softplus_of
from tedsl.nn.arguments import (
    require_between,
    require_choice,
    require_float,
    require_integer,
    require_rank,
    require_shape,
    wide,
    wide_dtype,
)
from tedsl.nn.moments import average
from tedsl.nn.operator import operator
from tedsl.nn.softmax import max_and_sum
from tedsl.tensor import math as functions
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.tensor import Tensor, read

Reduction = Literal["none", "mean", "sum"]
_REDUCTIONS = ("none", "mean", "sum")
_LOWEST_LOG = -100.0
Indices = Sequence[Expr]


# Classes ----------------------------------------------------------------------------------------


@operator
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    name: str = "cross_entropy",
) -> Tensor:
    """-log of the softmax at the class that is the target, from logits.

    With smoothing s over C classes it is (1 - s) times that, plus s / C times the sum over all
    classes (Szegedy and others, arXiv:1512.00567).  Each class counts with its weight.

    Args:
        input: logits: `[C]`, `[N, C]` or `[N, C, d1, ...]`.
        target: integers in 0 .. C - 1, or `ignore_index`: `[]`, `[N]` or `[N, d1, ...]`.
        weight: `[C]`, the weight of each class, or None for 1.
        ignore_index: a target whose loss is 0, which neither "mean" counts nor a gradient reaches.
        reduction: "none", "mean" or "sum"; "mean" divides by the weight of the targets that count.
        label_smoothing: from 0 to 1.
        name: what the operation prints as.

    Returns:
        The shape of `target`, or `[]`, in the dtype of `input`.  Maximum and sum along the classes
        are stages `<name>.max` and `<name>.sum`.  NaN for "mean" where no target counts.

    Raises:
        ExprError: shapes that do not fit, targets that are no integers, an unknown reduction.
    """
    require_between(label_smoothing, 0.0, 1.0, "label_smoothing", name)
    classes = _Classes(input, target, weight, ignore_index, reduction, name)
    top, norm = max_and_sum(input, classes.dim, name)

    def negative(i: Indices, c: Expr) -> Expr:
        """-log of the softmax at class `c`; the maximum goes first, so that large logits cost no
        digits."""
        return functions.log(read(norm, i)) - (classes.element(i, c) - read(top, i))

    def element(i: Indices, chosen: Expr) -> Expr:
        hard = negative(i, chosen) * classes.weight_of(chosen)
        if not label_smoothing:
            return hard
        c = reduce_axis((0, classes.count), name="c")
        whole = sum_over(negative(i, c) * classes.weight_of(c), axis=c)
        share = label_smoothing / build.cast(classes.count, whole.dtype)
        return hard * (1.0 - label_smoothing) + whole * share

    return classes.loss(element)


@operator
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    name: str = "nll_loss",
) -> Tensor:
    """-input at the class that is the target, where `input` holds logarithms of probabilities.

    Args, shapes, result and errors are those of `cross_entropy`, of which this is the second half.
    """
    classes = _Classes(input, target, weight, ignore_index, reduction, name)

    def element(i: Indices, chosen: Expr) -> Expr:
        return -(classes.element(i, chosen) * classes.weight_of(chosen))

    return classes.loss(element)


class _Classes:
    """What the losses of integer targets share: shapes, targets that do not count, weights."""

    def __init__(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None,
        ignore_index: int,
        reduction: Reduction,
        name: str,
    ) -> None:
        require_float(x, name)
        require_rank(x, 1, name)
        require_integer(target, name)
        require_choice(reduction, _REDUCTIONS, "reduction", name)
        self.dim = min(x.ndim - 1, 1)
        self.count = x.shape[self.dim]
        require_shape(target, x.shape[: self.dim] + x.shape[self.dim + 1 :], name)
        if weight is not None:
            require_float(weight, name)
            require_shape(weight, (self.count,), name)
        self.x, self.target, self.weight = x, target, weight
        self.ignore_index, self.reduction, self.name = ignore_index, reduction, name

    def element(self, i: Indices, c: Expr) -> Expr:
        return wide(read(self.x, (*i[: self.dim], c, *i[self.dim :])))

    def weight_of(self, c: Expr) -> Expr:
        if self.weight is None:
            return build.const(1.0, wide_dtype(self.x.dtype))
        return wide(read(self.weight, (c,)))

    def counts(self, chosen: Expr) -> Expr:
        """Whether a target counts: all do when its dtype cannot hold `ignore_index`."""
        info = chosen.dtype.info
        if not info.lowest <= self.ignore_index <= info.highest:
            return build.TRUE
        return build.ne(chosen, build.const(self.ignore_index, chosen.dtype))

    def loss(self, element: Callable[[Indices, Expr], Expr]) -> Tensor:
        """The reduced loss, from that of one target that counts."""

        def each(*i: Axis) -> Expr:
            chosen = read(self.target, i)
            return build.if_then_else(self.counts(chosen), element(i, chosen), 0.0)

        if self.reduction == "none":
            return compute(
                self.target.shape, lambda *i: build.cast(each(*i), self.x.dtype), name=self.name
            )
        losses = compute(self.target.shape, each, name=f"{self.name}.each")
        divisor = self._divisor() if self.reduction == "mean" else None

        def finish(total: Expr) -> Expr:
            if divisor is not None:
                total = total / build.cast(read(divisor, ()), total.dtype)
            return build.cast(total, self.x.dtype)

        return _sum_all(self.target.shape, lambda i: read(losses, i), self.name, finish)

    def _divisor(self) -> Tensor:
        """The number, or the weight, of the targets that count: the stage `<name>.count`."""

        def each(i: Indices) -> Expr:
            chosen = read(self.target, i)
            if self.weight is None:  # counted in integers: float32 ends at 2^24
                return build.cast(self.counts(chosen), DType.int32)
            return build.if_then_else(self.counts(chosen), self.weight_of(chosen), 0.0)

        return _sum_all(self.target.shape, each, f"{self.name}.count")


def _sum_all(
    shape: Indices,
    element: Callable[[Indices], Expr],
    name: str,
    finish: Callable[[Expr], Expr] = lambda v: v,
) -> Tensor:
    """`finish` of the sum of `element` over a whole shape."""
    along = [reduce_axis((0, extent), name=f"k{n}") for n, extent in enumerate(shape)]

    def body() -> Expr:
        return finish(sum_over(element(along), axis=along) if along else element(()))

    return compute((), body, name=name)


# Elements ---------------------------------------------------------------------------------------


@operator
def mse_loss(
    input: Tensor, target: Tensor, reduction: Reduction = "mean", name: str = "mse_loss"
) -> Tensor:
    """(input - target)^2.

    Args:
        input: floats of any shape.
        target: floats of the same shape.
        reduction: "none", "mean" or "sum".
        name: what the operation prints as.

    Returns:
        The shape of `input`, or `[]`, in the dtype of `input`.

    Raises:
        ExprError: shapes that differ, no floats, an unknown reduction.
    """
    return _of_pairs(lambda x, y: (x - y) * (x - y), input, target, reduction, name)


@operator
def l1_loss(
    input: Tensor, target: Tensor, reduction: Reduction = "mean", name: str = "l1_loss"
) -> Tensor:
    """|input - target|; arguments, result and errors as for `mse_loss`."""
    return _of_pairs(lambda x, y: functions.abs(x - y), input, target, reduction, name)


@operator
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: Reduction = "mean",
    delta: float = 1.0,
    name: str = "huber_loss",
) -> Tensor:
    """d^2 / 2 up to |d| = `delta`, beyond it delta * (|d| - delta / 2), for d = input - target
    (Huber, 1964); arguments, result and errors as for `mse_loss`.

    Raises:
        ExprError: also a `delta` that is not above 0.
    """
    _require_positive(delta, "delta", name)

    def element(x: Expr, y: Expr) -> Expr:
        away = functions.abs(x - y)
        return build.select(build.le(away, delta), away * away * 0.5, (away - 0.5 * delta) * delta)

    return _of_pairs(element, input, target, reduction, name)


@operator
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    reduction: Reduction = "mean",
    beta: float = 1.0,
    name: str = "smooth_l1_loss",
) -> Tensor:
    """d^2 / (2 beta) below |d| = `beta`, from there on |d| - beta / 2, for d = input - target
    (Girshick, arXiv:1504.08083): the loss of Huber over beta.  With `beta` 0 it is `l1_loss`.
    Arguments, result and errors as for `mse_loss`.

    Raises:
        ExprError: also a `beta` below 0.
    """
    if beta == 0:
        return l1_loss(input, target, reduction, name)
    _require_positive(beta, "beta", name)

    def element(x: Expr, y: Expr) -> Expr:
        away = functions.abs(x - y)
        return build.select(build.lt(away, beta), away * away * (0.5 / beta), away - 0.5 * beta)

    return _of_pairs(element, input, target, reduction, name)


@operator
def bce_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
    name: str = "bce_loss",
) -> Tensor:
    """-(y log x + (1 - y) log(1 - x)) of probabilities x and targets y: binary cross-entropy.

    A logarithm below -100 counts as -100, which keeps the loss finite at 0 and 1; its derivative
    is 0 there.  From logits, `bce_with_logits` is more accurate.

    Args:
        input: probabilities from 0 to 1, floats of any shape.
        target: floats of the same shape, from 0 to 1.
        weight: factors of the same shape, or None.
        reduction: "none", "mean" or "sum"; "mean" divides by the number of elements.
        name: what the operation prints as.

    Returns:
        The shape of `input`, or `[]`, in the dtype of `input`.

    Raises:
        ExprError: shapes that differ, no floats, an unknown reduction.
    """

    def element(x: Expr, y: Expr) -> Expr:
        yes = build.maximum(functions.log(x), _LOWEST_LOG)
        no = build.maximum(functions.log1p(-x), _LOWEST_LOG)
        return -(y * yes + (1.0 - y) * no)

    return _of_pairs(element, input, target, reduction, name, weight)


@operator
def bce_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
    pos_weight: Tensor | None = None,
    name: str = "bce_with_logits",
) -> Tensor:
    """(1 - y) x + (1 + (p - 1) y) log(1 + exp(-x)) of logits x and targets y, with weights p of the
    positive targets: binary cross-entropy of sigmoid(x), without overflow.

    Args:
        input: logits, floats of any shape.
        target: floats of the same shape, from 0 to 1.
        weight: factors of the same shape, or None.
        reduction: "none", "mean" or "sum"; "mean" divides by the number of elements.
        pos_weight: `[c]` for inputs `[..., c]`, or None for 1.
        name: what the operation prints as.

    Returns:
        The shape of `input`, or `[]`, in the dtype of `input`.

    Raises:
        ExprError: shapes that do not fit, no floats, an unknown reduction.
    """
    if pos_weight is not None:
        require_rank(input, 1, name)
        require_shape(pos_weight, (input.shape[-1],), name)

    def element(x: Expr, y: Expr, i: Indices) -> Expr:
        below = softplus_of(-x)
        if pos_weight is not None:
            below = below * ((wide(read(pos_weight, (i[-1],))) - 1.0) * y + 1.0)
        return (1.0 - y) * x + below

    return _reduced(element, input, target, reduction, name, weight)


@operator
def kl_div(
    input: Tensor,
    target: Tensor,
    reduction: Reduction | Literal["batchmean"] = "mean",
    log_target: bool = False,
    name: str = "kl_div",
) -> Tensor:
    """y (log y - x) for logarithms x of probabilities and probabilities y, and 0 where y is 0:
    the terms of the divergence of Kullback and Leibler of x from y.

    Args:
        input: logarithms of probabilities, floats of any shape.
        target: probabilities of the same shape, or their logarithms.
        reduction: "none", "sum", "mean" (over the elements), or "batchmean", the sum over the
            first extent, which is the mean divergence of rows.
        log_target: whether `target` holds logarithms.
        name: what the operation prints as.

    Returns:
        The shape of `input`, or `[]`, in the dtype of `input`.

    Raises:
        ExprError: shapes that differ, no floats, an unknown reduction.
    """
    require_choice(reduction, (*_REDUCTIONS, "batchmean"), "reduction", name)
    if reduction == "batchmean":
        require_rank(input, 1, name)

    def of_logarithms(x: Expr, y: Expr) -> Expr:
        return functions.exp(y) * (y - x)

    def of_probabilities(x: Expr, y: Expr) -> Expr:
        none = build.eq(y, 0.0)
        return build.select(none, 0.0, y * (functions.log(y) - x))

    element = of_logarithms if log_target else of_probabilities
    return _of_pairs(element, input, target, reduction, name)


def _require_positive(given: float, what: str, subject: str) -> None:
    if not given > 0:
        raise ExprError(f"{what} is {given}", subject=subject, hint="give a number above 0")


def _of_pairs(
    function: Callable[[Expr, Expr], Expr],
    x: Tensor,
    target: Tensor,
    reduction: Reduction | Literal["batchmean"],
    name: str,
    weight: Tensor | None = None,
) -> Tensor:
    return _reduced(lambda a, b, _: function(a, b), x, target, reduction, name, weight)


def _reduced(
    function: Callable[[Expr, Expr, Indices], Expr],
    x: Tensor,
    target: Tensor,
    reduction: Reduction | Literal["batchmean"],
    name: str,
    weight: Tensor | None = None,
) -> Tensor:
    """`function` of each pair of elements and its place, times its weight, reduced."""
    if reduction != "batchmean":
        require_choice(reduction, _REDUCTIONS, "reduction", name)
    given = [x, target] if weight is None else [x, target, weight]
    for each in given:
        require_float(each, name)
        require_shape(each, x.shape, name)

    def element(i: Indices) -> Expr:
        value = function(wide(read(x, i)), wide(read(target, i)), i)
        return value if weight is None else value * wide(read(weight, i))

    def rounded(value: Expr) -> Expr:
        return build.cast(value, x.dtype)

    def per_row(value: Expr) -> Expr:
        return rounded(value / build.cast(x.shape[0], value.dtype))

    if reduction == "none":
        return compute(x.shape, lambda *i: rounded(element(i)), name=name)
    if reduction == "mean":
        return average((), x.shape, lambda _, k: element(k), name, finish=rounded)
    return _sum_all(x.shape, element, name, rounded if reduction == "sum" else per_row)
