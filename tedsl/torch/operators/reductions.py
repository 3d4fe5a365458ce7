"""Reductions: sums, means, variances, extremes and their places.  Imports `importer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.limits import min_value
from tedsl.expr.nodes import Axis, BinaryOp, Expr
from tedsl.nn.indexing import argmax as nn_argmax
from tedsl.nn.indexing import argmin as nn_argmin
from tedsl.nn.indexing import first
from tedsl.tensor import math as te
from tedsl.tensor import reduce
from tedsl.torch.elements.dtypes import Promotion, constant, is_number, promoted
from tedsl.torch.elements.unseen import raised, seen
from tedsl.torch.elements.value import (
    Index,
    Indices,
    Shape,
    Size,
    Value,
    cast_to,
    filled,
    is_one,
    number_of,
    product,
    viewed,
    whole,
)
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Converted, Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.refusals import NotTaken

Folded = Callable[[Expr, list[Axis]], Expr]


class Over:
    """The dimensions that a reduction is over, and whether they are kept with extent 1."""

    def __init__(self, x: Value, dims: Any, keep: bool = False) -> None:
        listed: Sequence[int] = [dims] if isinstance(dims, int) else list(dims or ())
        every = listed or range(x.rank)
        self.x = x
        self.dims = sorted({d + x.rank if d < 0 else d for d in every} if x.rank else set[int]())
        self.kept = [d for d in range(x.rank) if d not in self.dims]
        self.keep = keep
        self.count: Size = product([x.shape[d] for d in self.dims])

    @property
    def shape(self) -> Shape:
        """Without the dimensions."""
        return tuple(self.x.shape[d] for d in self.kept)

    def axes(self, context: Context) -> list[Axis]:
        """One for each dimension."""
        return [context.axis(self.x.shape[d], f"k{d}") for d in self.dims]

    def place(self, i: Indices, axes: Sequence[Index]) -> list[Index]:
        """Where in `x` an element is, by the index without the dimensions and their axes."""
        at: list[Index] = [0] * self.x.rank
        for d, each in zip((*self.kept, *self.dims), (*i, *axes), strict=True):
            at[d] = each
        return at

    def fold(
        self,
        context: Context,
        source: Value,
        folded: Folded,
        name: str = "",
        started: bool = False,
    ) -> Value:
        """`folded` of the elements of `source` and the axes, `started` from a value that is no
        identity; without the dimensions."""
        if not self.dims:
            return source
        axes, nowhere = self.axes(context), [0] * len(self.dims)
        if is_one(self.count) and not started:
            first = self.place((0,) * len(self.kept), axes)
            kind = folded(source[first], axes).dtype
            return cast_to(viewed(source, self.shape, lambda i: self.place(i, nowhere)), kind)
        return context.stage(self.shape, lambda i: folded(source[self.place(i, axes)], axes), name)

    def back(self, value: Value) -> Value:
        """A result at every index of what was reduced."""
        return viewed(value, self.x.shape, lambda i: [i[d] for d in self.kept])

    def shaped(self, value: Value) -> Value:
        """A result with the dimensions that are kept."""
        if not self.keep or not self.dims:
            return value
        shape = tuple(1 if d in self.dims else n for d, n in enumerate(self.x.shape))
        return viewed(value, shape, lambda i: [i[d] for d in self.kept])


def _accumulated(result: DType, source: DType) -> DType:
    """The type that a sum is taken in: float32 for 16-bit floats."""
    wide = result if result.is_float or not source.is_float else source
    return DType.float32 if wide.is_short_float else wide


def total(context: Context, over: Over, x: Value, result: DType, name: str = "") -> Value:
    """The sum in `result`, accumulated wide."""
    work = _accumulated(result, x.dtype)
    source = cast_to(cast_to(x, result) if result.is_integer else x, work)
    return over.fold(context, source, lambda e, axes: reduce.sum(e, axes, dtype=work), name)


@takes(Family.REDUCTION, aten.sum.default)
def sum_all(context: Context, x: Value, *_: Any) -> Value:
    """The sum of everything."""
    return cast_to(total(context, Over(x, None), x, context.dtype()), context.dtype())


@takes(Family.REDUCTION, aten.sum.dim_IntList)
def sum_dims(context: Context, x: Value, dims: Any, keep: bool, *_: Any) -> Value:
    """The sum over dimensions."""
    over = Over(x, dims, keep)
    return over.shaped(cast_to(total(context, over, x, context.dtype()), context.dtype()))


def _mean(context: Context, over: Over, x: Value, name: str = "") -> Value:
    added = total(context, over, x, x.dtype, name)
    count = over.count

    def element(i: Indices) -> Expr:
        return build.div(added[i], build.cast(build.as_expr(count), added.dtype))

    return Value(added.shape, added.dtype, element, None, 1)


@takes(Family.REDUCTION, aten.mean.default, limits="floats")
def mean_all(context: Context, x: Value, *_: Any) -> Value:
    """The mean of everything."""
    return cast_to(_mean(context, Over(x, None), cast_to(x, context.dtype())), context.dtype())


@takes(Family.REDUCTION, aten.mean.dim, limits="floats")
def mean_dims(context: Context, x: Value, dims: Any, keep: bool, *_: Any) -> Value:
    """The mean over dimensions."""
    over = Over(x, dims, keep)
    found = _mean(context, over, cast_to(x, context.dtype()))
    return over.shaped(cast_to(found, context.dtype()))


def _moments(context: Context, x: Value, dims: Any, correction: Any, keep: bool) -> list[Value]:
    """The variance and the mean, in two passes, as PyTorch's rounding wants it."""
    if not x.dtype.is_float:
        raise NotTaken("moments of what is not real")
    over = Over(x, dims, keep)
    given = 1 if correction is None else correction
    if not is_number(given):
        raise NotTaken("a correction that is known at the call only")
    middle = context.held(_mean(context, over, x, "sum"), "mean")
    around, work = over.back(middle), middle.dtype

    def square(i: Indices) -> Expr:
        apart = build.cast(x[i], work) - around[i]
        return apart * apart

    squares = Value(x.shape, work, square, None, x.work + 2)
    summed = over.fold(context, squares, lambda e, axes: reduce.sum(e, axes), "squares")
    count = number_of(over.count)
    if count is None:
        raise NotTaken("moments over a size that is known at the call only")
    divisor = constant(max(float(count) - float(given), 0.0), work)

    def variance(i: Indices) -> Expr:
        return build.div(summed[i], divisor)

    spread = Value(summed.shape, work, variance, None, 1)
    return [over.shaped(cast_to(each, x.dtype)) for each in (spread, middle)]


@takes(Family.REDUCTION, aten.var.correction, limits="constant sizes of what is reduced")
def var(context: Context, x: Value, dims: Any, correction: Any, keep: bool) -> Value:
    """The variance."""
    return _moments(context, x, dims, correction, keep)[0]


@takes(Family.REDUCTION, aten.var_mean.correction, limits="constant sizes of what is reduced")
def var_mean(context: Context, x: Value, dims: Any, correction: Any, keep: bool) -> Converted:
    """The variance and the mean."""
    return tuple(_moments(context, x, dims, correction, keep))


def _extreme(largest: bool) -> Folded:
    return lambda e, axes: (reduce.max if largest else reduce.min)(e, axes)


def _among(over: Over) -> Over:
    """What an extreme is of: PyTorch says it where there is nothing."""
    if number_of(over.count) == 0:
        raise NotTaken("an extreme among no elements: an error of PyTorch's")
    return over


@takes(Family.REDUCTION, aten.amax.default)
def amax(context: Context, x: Value, dims: Any, keep: bool) -> Value:
    """The largest element; NaN of any NaN."""
    over = _among(Over(x, dims, keep))
    return over.shaped(over.fold(context, x, _extreme(True)))


@takes(Family.REDUCTION, aten.amin.default)
def amin(context: Context, x: Value, dims: Any, keep: bool) -> Value:
    """The smallest element; NaN of any NaN."""
    over = _among(Over(x, dims, keep))
    return over.shaped(over.fold(context, x, _extreme(False)))


@takes(Family.REDUCTION, aten.max.default)
def max_all(context: Context, x: Value) -> Value:
    """The largest of all."""
    return _among(Over(x, None)).fold(context, x, _extreme(True))


@takes(Family.REDUCTION, aten.min.default)
def min_all(context: Context, x: Value) -> Value:
    """The smallest of all."""
    return _among(Over(x, None)).fold(context, x, _extreme(False))


def _place(context: Context, x: Value, dim: int | None, keep: bool, largest: bool) -> Value:
    """The first place of an extreme, or of the first NaN."""
    _among(Over(x, dim))
    if x.rank == 0:
        return Value((), DType.int64, lambda _: constant(0, DType.int64))
    if dim is not None and dim < 0:
        dim += x.rank
    if dim is not None and is_one(x.shape[dim]):
        shape = tuple(1 if d == dim else n for d, n in enumerate(x.shape) if keep or d != dim)
        return Value(shape, DType.int64, lambda _: constant(0, DType.int64))
    source = context.tensor(x)
    search = nn_argmax if largest else nn_argmin
    return whole(search(source, axis=dim, keepdims=keep, name=f"{context.name}.place"))


def _ordered(x: Value) -> None:
    if x.dtype.is_bool:
        raise NotTaken("the place of an extreme among bools: an error of PyTorch's")


@takes(Family.REDUCTION, aten.argmax.default)
def argmax(context: Context, x: Value, dim: int | None, keep: bool) -> Value:
    """The place of the largest element."""
    _ordered(x)
    return _place(context, x, dim, keep, True)


@takes(Family.REDUCTION, aten.argmin.default)
def argmin(context: Context, x: Value, dim: int | None, keep: bool) -> Value:
    """The place of the smallest element."""
    _ordered(x)
    return _place(context, x, dim, keep, False)


def _with_place(context: Context, x: Value, dim: int, keep: bool, largest: bool) -> Converted:
    """The extreme along a dimension and its place: one search, where both are read."""
    source = context.held(x)
    over = _among(Over(source, dim, keep))
    single = not over.dims or is_one(over.count) or x.dtype.is_bool
    if single or not context.read >= {0, 1}:
        found = over.shaped(over.fold(context, source, _extreme(largest), "value"))
        return found, _place(context, source, dim, keep, largest)
    (axis,) = over.axes(context)
    search = first(BinaryOp.MAX if largest else BinaryOp.MIN)
    work = DType.float32 if x.dtype.is_short_float else x.dtype

    def both(i: Indices) -> Sequence[Expr]:
        value = build.cast(source[over.place(i, [axis])], work)
        return search((value, axis), axis=[axis])

    value, place = context.stages(over.shape, both, "search")

    def stored(i: Indices) -> Sequence[Expr]:  # one stage, so that one kernel stores both
        at = [i[d] for d in over.kept] if keep else i
        return build.cast(value[at], x.dtype), build.cast(place[at], DType.int64)

    return context.stages(context.shape(0), stored, "found")


@takes(Family.REDUCTION, aten.max.dim)
def max_dim(context: Context, x: Value, dim: int, keep: bool = False) -> Converted:
    """The largest element along a dimension, and its place."""
    return _with_place(context, x, dim, keep, True)


@takes(Family.REDUCTION, aten.min.dim)
def min_dim(context: Context, x: Value, dim: int, keep: bool = False) -> Converted:
    """The smallest element along a dimension, and its place."""
    return _with_place(context, x, dim, keep, False)


FIRST_OF_EQUAL = 64
"""From this extent on, PyTorch's choice of one among equal elements is the first."""


@takes(
    Family.REDUCTION,
    aten.topk.default,
    limits=f"the largest one of at least {FIRST_OF_EQUAL}; of integers the smallest one too",
)
def topk(context: Context, x: Value, k: Any, dim: int, largest: bool, ordered: bool) -> Converted:
    """The best element along a dimension, and its place."""
    del ordered
    if x.rank == 0 or not isinstance(k, int) or k != 1:
        raise NotTaken("several of the best: no tensor expression has the order of data")
    if (number_of(x.shape[dim]) or 0) < FIRST_OF_EQUAL or not (largest or x.dtype.is_integer):
        raise NotTaken("which of equal elements is chosen, PyTorch's order of search decides")
    return _with_place(context, x, dim, True, largest)


MOST_BOUNDS = 1024


@takes(
    Family.REDUCTION,
    aten.bucketize.Tensor,
    aten.searchsorted.Tensor,
    limits=f"at most {MOST_BOUNDS} bounds, of which NaN is the highest",
)
def bucketize(context: Context, *arguments: Any) -> Value:
    """How many bounds lie below each element; the same number as PyTorch's search among them."""
    searched = context.target is aten.searchsorted.Tensor
    bounds, x = arguments[:2] if searched else arguments[1::-1]
    right = bool(arguments[3])
    if searched:
        right = right or arguments[4] == "right"
    order = context.held(arguments[5]) if searched and arguments[5] is not None else None
    count = number_of(bounds.shape[-1]) if bounds.rank else None
    if count is None or count > MOST_BOUNDS or bounds.rank not in (1, x.rank):
        raise NotTaken(f"more than {MOST_BOUNDS} bounds, or as many as the call says")
    result, axis = context.dtype(), context.axis(count)
    lines, given = context.held(bounds, "bounds"), context.held(x)
    if count == 0:
        return filled(0, x.shape, result)
    kind = promoted(Promotion.DEFAULT, context.fakes[:2]).computed
    if order is not None:
        context.checked(order, count, negative=False)

    def element(i: Indices) -> Expr:
        row = i[:-1] if bounds.rank > 1 else ()
        place = axis if order is None else context.index(order, (*row, axis), count)
        bound = lines[(*row, place)]
        pair = build.cast(bound, kind), build.cast(given[i], kind)
        below = build.le(*pair) if right else build.lt(*pair)
        if kind.is_float:  # the order of a sort, in which NaN is last; an element that is NaN is
            below = build.logical_or(below, build.ne(pair[1], pair[1]))  # beyond NaN, too
        return reduce.sum(build.const(1, result), axis, where=below)

    return context.stage(x.shape, element)


@takes(Family.REDUCTION, aten.prod.default)
def prod_all(context: Context, x: Value, *_: Any) -> Value:
    """The product of everything."""
    return _prod(context, Over(x, None), x)


@takes(Family.REDUCTION, aten.prod.dim_int)
def prod_dim(context: Context, x: Value, dim: int, keep: bool, *_: Any) -> Value:
    """The product along a dimension."""
    return _prod(context, Over(x, dim, keep), x)


def _prod(context: Context, over: Over, x: Value) -> Value:
    result = context.dtype()
    work = DType.float32 if result.is_short_float else result
    source = cast_to(cast_to(x, result), work)
    found = over.fold(context, source, lambda e, axes: reduce.prod(e, axes, dtype=work))
    return over.shaped(cast_to(found, result))


def _truth(x: Value) -> Value:
    return cast_to(x, DType.bool)


def _logical(context: Context, x: Value, dims: Any, keep: bool, every: bool) -> Value:
    over = Over(x, dims, keep)
    fold = reduce.all if every else reduce.any
    found = over.shaped(over.fold(context, _truth(x), lambda e, axes: fold(e, axis=axes)))
    return cast_to(found, context.dtype())


@takes(Family.REDUCTION, aten.any.default)
def any_all(context: Context, x: Value) -> Value:
    """Whether any element is not 0."""
    return _logical(context, x, None, False, False)


@takes(Family.REDUCTION, aten.any.dim, aten.any.dims)
def any_dims(context: Context, x: Value, dims: Any, keep: bool) -> Value:
    """Whether any element is not 0."""
    return _logical(context, x, dims, keep, False)


@takes(Family.REDUCTION, aten.all.default)
def all_all(context: Context, x: Value) -> Value:
    """Whether no element is 0."""
    return _logical(context, x, None, False, True)


@takes(Family.REDUCTION, aten.all.dim, aten.all.dims)
def all_dims(context: Context, x: Value, dims: Any, keep: bool) -> Value:
    """Whether no element is 0."""
    return _logical(context, x, dims, keep, True)


@takes(Family.REDUCTION, aten._softmax.default)
def softmax(context: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    """Exponentials that add up to 1 along a dimension."""
    del half_to_float
    over, spread, summed = _exponentials(context, x, dim)
    added = over.back(summed)

    def element(i: Indices) -> Expr:
        return build.div(te.exp(spread[i]), added[i])

    return cast_to(Value(x.shape, spread.dtype, element, None, 3), context.dtype())


@takes(Family.REDUCTION, aten._safe_softmax.default)
def safe_softmax(context: Context, x: Value, dim: int, dtype: Any = None) -> Value:
    """Exponentials that add up to 1, or to 0 where every element is minus infinity.

        exp(x - max(m, lowest)) / max(sum, 1)    with m = max(x)

    The largest element adds 1 to the sum, if it is finite: the sum is less where there is none.
    """
    del dtype
    over, spread, summed = _exponentials(context, x, dim, finite=True)
    added = over.back(summed)

    def element(i: Indices) -> Expr:
        return build.div(te.exp(spread[i]), build.maximum(added[i], 1.0))

    return cast_to(Value(x.shape, spread.dtype, element, None, 3), context.dtype())


@takes(Family.REDUCTION, aten._log_softmax.default)
def log_softmax(context: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    """The logarithm of the softmax."""
    del half_to_float
    over, spread, summed = _exponentials(context, x, dim)
    added = over.back(summed)

    def element(i: Indices) -> Expr:
        return spread[i] - te.log(added[i])

    return cast_to(Value(x.shape, spread.dtype, element, None, 3), context.dtype())


def _exponentials(
    context: Context, x: Value, dim: int, finite: bool = False
) -> tuple[Over, Value, Value]:
    """The distance from the largest element, or with `finite` from the lowest number where there is
    no larger one, and the sum of its exponentials."""
    work = DType.float32 if x.dtype.is_short_float else x.dtype
    source = context.held(cast_to(x, work))
    over = Over(source, dim)
    start = min_value(work) if finite else None
    greatest = over.fold(
        context,
        source,
        lambda e, a: reduce.max(e, a, seen(e) if finite else None, start),
        "max",
        started=finite,
    )
    largest = over.back(greatest)

    def apart(i: Indices) -> Expr:
        return source[i] - largest[i]

    spread = Value(x.shape, work, apart, None, 1)
    powers = Value(x.shape, work, lambda i: te.exp(apart(i)), None, 2)
    if not over.dims:
        return over, spread, powers

    summed = over.fold(
        context, powers, lambda e, a: reduce.sum(e, a, raised(e) if finite else None), "sum"
    )
    return over, spread, summed


_INFINITE = (float("inf"), float("-inf"))


@takes(Family.REDUCTION, aten.linalg_vector_norm.default, limits="floats")
def vector_norm(context: Context, x: Value, order: Any, dims: Any, keep: bool, *_: Any) -> Value:
    """The root of the sum of powers, an extreme, or a count."""
    if not (is_number(order) and x.dtype.is_float):
        raise NotTaken("a norm of what is not real")
    result, power = context.dtype(), float(order)
    work = DType.float32 if result.is_short_float else result
    over = Over(x, dims, keep)
    if power < 0 or power in _INFINITE:
        _among(over)

    def term(i: Indices) -> Expr:
        size = te.abs(build.cast(x[i], work))
        if power == 0:
            return build.cast(build.ne(size, 0.0), work)
        if power in (1.0, *_INFINITE):
            return size
        return size * size if power == 2 else build.power(size, constant(power, work))

    terms = Value(x.shape, work, term, None, x.work + 2)
    if power in _INFINITE:
        return over.shaped(cast_to(over.fold(context, terms, _extreme(power > 0)), result))
    summed = over.fold(context, terms, lambda e, axes: reduce.sum(e, axes), "sum")

    def root(i: Indices) -> Expr:
        if power in (0.0, 1.0):
            return summed[i]
        if power == 2:
            return te.sqrt(summed[i])
        return build.power(summed[i], constant(1.0 / power, work))

    return over.shaped(cast_to(Value(summed.shape, work, root, None, summed.work + 1), result))
