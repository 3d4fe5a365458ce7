"""Writes at places that are data, said the other way round: each place asks which indices name it.

Folds are scheduled as updates of the places that the indices name, as many as there are indices
(`schedules/scatters`).  What cannot be takes as many tests as places times indices, and of that
only few are taken.  Imports `indexing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.nn.indexing import cumsum as nn_cumsum
from tedsl.tensor import reduce
from tedsl.torch.elements.dtypes import constant
from tedsl.torch.elements.reshape import linear, reshaped, unravelled
from tedsl.torch.elements.value import (
    Index,
    Indices,
    Shape,
    Size,
    Value,
    broadcast,
    cast_to,
    filled,
    is_one,
    number_of,
    numbers,
    product,
    same_size,
    whole,
)
from tedsl.torch.importer.context import Check, Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten, torch
from tedsl.torch.operators.indexing import check_places
from tedsl.torch.refusals import NotTaken

MOST_TESTS = 1 << 16
_LIMITS = (
    f"of what no device updates (puts, products on a GPU), constant sizes, places times indices at "
    f"most {MOST_TESTS}; on a GPU no sums of floats whose order is asked for, and indices outside "
    "are left out"
)


class How(StrEnum):
    """What happens where several values meet, in PyTorch's words."""

    PUT = "put"
    SUM = "sum"
    PROD = "prod"
    MEAN = "mean"
    AMAX = "amax"
    AMIN = "amin"


_FOLDS: dict[How, Callable[..., Expr]] = {
    How.SUM: reduce.sum,
    How.MEAN: reduce.sum,
    How.PROD: reduce.prod,
    How.AMAX: reduce.max,
    How.AMIN: reduce.min,
}
_PAIRS: dict[How, Callable[[Expr, Expr], Expr]] = {
    How.SUM: build.add,
    How.MEAN: build.add,
    How.PROD: build.mul,
    How.AMAX: build.maximum,
    How.AMIN: build.minimum,
}


@dataclass(frozen=True, slots=True, eq=False)
class Writes:
    """Values on their way to places of a tensor.

    Attributes:
        extents: what the values are numbered along, beyond the dimensions they share with it.
        named: from a place and a number to the tests that hold where the one gets the other.
        source: from the same to the value.
    """

    extents: Shape
    named: Callable[[Indices, Indices], list[Expr]]
    source: Callable[[Indices, Indices], Expr]


def written(
    context: Context, x: Value, writes: Writes, how: How, include_self: bool = True
) -> Value:
    """`x` after the writes; of several that only put, the last one holds."""
    sizes = numbers((*x.shape, *writes.extents))
    few = sizes is not None and math.prod(sizes) <= MOST_TESTS
    if not few and not _is_updated(context, x.dtype, how):
        raise NotTaken("more places and indices than are asked one by one")
    if _has_order(context, x.dtype, how):
        raise NotTaken("sums of floats whose order is asked for")
    if sizes is not None and 0 in sizes:
        return x
    if how is How.PUT:
        return _put(context, context.held(x, "self"), writes)
    if x.dtype.is_bool:
        raise NotTaken("bools that meet")
    return _folded(context, x, writes, how, include_self)


def _is_updated(context: Context, dtype: DType, how: How) -> bool:
    """Whether a device folds values into places in the order in which they come."""
    if how is How.PUT or dtype.is_bool:
        return False
    sums = how in (How.SUM, How.MEAN)
    return context.result.device.type == "cpu" or (
        how is not How.PROD and (sums or dtype.is_float or dtype.bits >= 32)
    )


def _has_order(context: Context, dtype: DType, how: How) -> bool:
    """True for sums whose last bits depend on the order of atomic updates, where nobody may."""
    rounded = dtype.is_float and how in (How.SUM, How.MEAN)
    asked = torch.are_deterministic_algorithms_enabled()
    return rounded and asked and context.result.device.type != "cpu"


def _asked(context: Context, writes: Writes) -> list[Axis]:
    return [context.axis(extent, f"t{d}") for d, extent in enumerate(writes.extents)]


def _put(context: Context, x: Value, writes: Writes) -> Value:
    axes = _asked(context, writes)

    def last(i: Indices) -> Expr:
        hit = build.conjunction(writes.named(i, tuple(axes)))
        place = build.as_expr(linear(axes, writes.extents))
        return reduce.max(place, axes, where=hit, init=-1)

    place = context.stage(x.shape, last, "place")

    def element(i: Indices) -> Expr:
        inside = build.minimum(build.maximum(place[i], 0), build.sub(product(writes.extents), 1))
        value = writes.source(i, tuple(unravelled(inside, writes.extents)))
        return build.if_then_else(build.ge(place[i], 0), value, x[i])

    return Value(x.shape, x.dtype, element, None, 4)


def _folded(context: Context, x: Value, writes: Writes, how: How, include_self: bool) -> Value:
    axes = _asked(context, writes)
    work = DType.float32 if x.dtype.is_short_float else x.dtype
    x, alone = context.held(x, "self"), include_self and how is not How.MEAN
    # NaN in what extremes start from is more than some devices update.
    starts = alone and how in (How.SUM, How.PROD)

    def hit(i: Indices) -> Expr:
        return build.conjunction(writes.named(i, tuple(axes)))

    def terms(i: Indices) -> Expr:
        term, own = build.cast(writes.source(i, tuple(axes)), work), build.cast(x[i], work)
        total = _FOLDS[how](term, axes, where=hit(i))
        if not starts or (how is How.SUM and isinstance(own, Const) and own.value == 0):
            return total
        return _FOLDS[how](term, axes, where=hit(i), init=build.cast(own, total.dtype))

    def counted(i: Indices) -> Expr:
        return reduce.sum(build.const(1), axes, where=hit(i))

    folded = context.stage(x.shape, terms, "terms")
    if starts and folded.dtype is x.dtype:
        return folded
    count = folded if alone else context.stage(x.shape, counted, "count")

    def element(i: Indices) -> Expr:
        own = build.cast(x[i], work)
        found = _PAIRS[how](own, folded[i]) if include_self and not starts else folded[i]
        if alone:
            return build.rounded(found, x.dtype)
        if how is How.MEAN:
            number = build.cast(count[i] + (1 if include_self else 0), work)
            mean = build.div if work.is_float else build.floordiv
            found = mean(found, build.maximum(number, constant(1, work)))
        return build.rounded(build.select(build.gt(count[i], 0), found, own), x.dtype)

    return Value(x.shape, x.dtype, element, None, 4)


def _along(
    context: Context, x: Value, dim: int, index: Value, how: How, source: Callable[[Indices], Expr]
) -> Writes:
    """Writes along one dimension: in the others, each value keeps its index."""
    if index.rank != x.rank:
        raise NotTaken("an index of another rank")
    known = index.shape
    d = dim + x.rank if dim < 0 else dim
    place = context.held(index, "index")
    _check(context, x, place, d, False, how)
    short = {e for e in range(x.rank) if e != d and not same_size(known[e], x.shape[e])}
    last = {e: build.sub(known[e], 1) for e in short}

    def at(i: Indices, t: Indices) -> Indices:
        inside = [build.minimum(j, last[e]) if e in short else j for e, j in enumerate(i)]
        return (*inside[:d], t[0], *inside[d + 1 :])

    def named(i: Indices, t: Indices) -> list[Expr]:
        tests = [build.lt(i[e], known[e]) for e in sorted(short)]
        chosen = place[at(i, t)]
        return [*tests, build.eq(chosen, build.cast(build.as_expr(i[d]), chosen.dtype))]

    return Writes((known[d],), named, lambda i, t: source(at(i, t)))


_REDUCE = {"add": How.SUM, "multiply": How.PROD}


@takes(Family.INDEXING, aten.scatter.src, limits=_LIMITS)
@takes(Family.INDEXING, aten.scatter.reduce, aten.scatter_reduce.two, limits=_LIMITS)
def scatter(
    context: Context,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str = "put",
    include_self: bool = True,
) -> Value:
    """`x` with elements of `src` put or folded into places of a dimension."""
    source, line = _line(context.held(src, "src")), _line(x)
    how = _REDUCE.get(reduce) or How(reduce)
    writes = _along(context, line, dim, _line(index), how, lambda at: source[at])
    return _point(written(context, line, writes, how, include_self), x)


@takes(Family.INDEXING, aten.scatter_add.default, limits=_LIMITS)
def scatter_add(context: Context, x: Value, dim: int, index: Value, src: Value) -> Value:
    """`x` with elements of `src` added to places of a dimension."""
    return scatter(context, x, dim, index, src, "sum")  # pyright: ignore[reportReturnType]


@takes(Family.INDEXING, aten.scatter.value, aten.scatter.value_reduce, limits=_LIMITS)
def scatter_value(
    context: Context, x: Value, dim: int, index: Value, value: Any, reduce: str = "put"
) -> Value:
    """`x` with one number put or folded into places of a dimension."""
    fixed, how = constant(value, x.dtype), _REDUCE.get(reduce) or How(reduce)
    writes = _along(context, _line(x), dim, _line(index), how, lambda _: fixed)
    return _point(written(context, _line(x), writes, how), x)


@takes(Family.INDEXING, aten.index_reduce.default, limits=_LIMITS)
def index_reduce(
    context: Context,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool,
) -> Value:
    """`x` with slices of `src` folded into those that `index` numbers."""
    line = _line(x)
    given = {dim + line.rank if dim < 0 else dim: _line(index)}
    return _point(_slices(context, line, given, _line(src), How(reduce), include_self), x)


def _check(context: Context, x: Value, index: Value, d: int, negative: bool, how: How) -> None:
    """What PyTorch asks of `index`.  Nobody looks for indices outside, which name no place, where a
    GPU folds: that would take as long as a small fold itself."""
    if 0 in map(number_of, index.shape):
        return
    looked = how is How.PUT or context.result.device.type == "cpu"
    check_places(context, x, index, d, negative, looked)


def _line(value: Value) -> Value:
    """A single number as a line of one."""
    return value if value.rank else broadcast(value, (1,))


def _point(line: Value, like: Value) -> Value:
    """A line of one as the single number that it was."""
    return line if like.rank else reshaped(line, ())


def _slices(
    context: Context,
    x: Value,
    given: dict[int, Value],
    src: Value,
    how: How,
    include_self: bool = True,
    negative: bool = False,
) -> Value:
    """Writes of slices: `given` numbers places of dimensions, laid out as by `index`."""
    dims = sorted(given)
    together = dims[-1] - dims[0] + 1 == len(dims)
    places = {d: context.held(each, f"index{d}") for d, each in given.items()}
    rank = max(each.rank for each in places.values())
    shape = _joined([each.shape for each in places.values()], rank)
    if 0 not in map(number_of, shape):
        for d, each in places.items():
            _check(context, x, each, d, negative, how)
    begin = dims[0] if together else 0
    rest = [d for d in range(x.rank) if d not in given]
    free = tuple(x.shape[d] for d in rest)
    spread = {d: broadcast(each, shape) for d, each in places.items()}
    whole_shape = (*free[:begin], *shape, *free[begin:])
    source = broadcast(context.held(src, "values"), whole_shape)

    def named(i: Indices, t: Indices) -> list[Expr]:
        tests: list[Expr] = []
        for d, each in spread.items():
            chosen = build.cast(each[t], DType.int64)
            if negative:
                chosen = build.select(build.lt(chosen, 0), chosen + x.shape[d], chosen)
            tests.append(build.eq(chosen, build.cast(build.as_expr(i[d]), DType.int64)))
        return tests

    def value(i: Indices, t: Indices) -> Expr:
        others: list[Index] = [i[d] for d in rest]
        return source[(*others[:begin], *t, *others[begin:])]

    return written(context, x, Writes(shape, named, value), how, include_self)


def _joined(shapes: Sequence[Shape], rank: int) -> Shape:
    """The shape that shapes broadcast to."""
    found: list[Size] = [1] * rank
    for shape in shapes:
        for d, extent in enumerate(shape):
            place = rank - len(shape) + d
            if not is_one(extent):
                found[place] = extent
    return tuple(found)


@takes(Family.INDEXING, aten.index_add.default, limits=_LIMITS)
def index_add(
    context: Context, x: Value, dim: int, index: Value, src: Value, alpha: Any = 1
) -> Value:
    """`x` with slices of `src` added to those that `index` numbers."""
    line, scale = _line(x), constant(alpha, x.dtype)
    given = {dim + line.rank if dim < 0 else dim: _line(index)}
    terms = Value(src.shape, src.dtype, lambda i: src[i] * scale, None, src.work + 1)
    return _point(_slices(context, line, given, _line(src if alpha == 1 else terms), How.SUM), x)


@takes(
    Family.INDEXING,
    aten.index_put.default,
    aten._unsafe_index_put.default,
    limits=f"{_LIMITS}; of bools one alone, and one number",
)
def index_put(
    context: Context,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    """`x` with values put at, or added to, places by number."""
    given = {d: each for d, each in enumerate(indices) if each is not None}
    if any(each.dtype.bits == 8 for each in given.values()):
        return _masked(x, given, values, accumulate)
    how = How.SUM if accumulate else How.PUT
    return _slices(context, x, given, cast_to(values, x.dtype), how, negative=True)


def _masked(x: Value, given: dict[int, Value], values: Value, accumulate: bool) -> Value:
    """One number where a mask is true."""
    d, mask = next(iter(given.items()))
    if len(given) != 1 or not mask.dtype.is_bool or not is_one(product(values.shape)):
        raise NotTaken("several masks, or several values behind a mask: the places depend on data")
    if accumulate and x.dtype.is_bool:
        raise NotTaken("bools that meet")

    def element(i: Indices) -> Expr:
        put = build.cast(values[(0,) * values.rank], x.dtype)
        put = x[i] + put if accumulate else put
        return build.select(mask[i[d : d + mask.rank]], put, x[i])

    return Value(x.shape, x.dtype, element, None, 2 + x.work + mask.work + values.work)


@takes(Family.INDEXING, aten.put.default, limits=_LIMITS)
def put(context: Context, x: Value, index: Value, src: Value, accumulate: bool) -> Value:
    """`x`, seen as one line, with values put at or added to places by number."""
    count = product(x.shape)
    line = {0: reshaped(context.held(index), (product(index.shape),))}
    how = How.SUM if accumulate else How.PUT
    terms = reshaped(context.held(src), (product(src.shape),))
    found = _slices(context, reshaped(x, (count,)), line, terms, how, negative=True)
    return reshaped(found, x.shape)


@takes(Family.INDEXING, aten.embedding_dense_backward.default, limits=_LIMITS)
def embedding_dense_backward(
    context: Context,
    grad: Value,
    indices: Value,
    num_weights: Any,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    """For each row of a table, the sum of what reaches the places that read it."""
    del num_weights
    if scale_grad_by_freq:
        raise NotTaken("gradients by frequency")
    given, place = context.held(grad, "grad"), context.held(indices, "index")

    def named(i: Indices, t: Indices) -> list[Expr]:
        chosen = place[t]
        found = build.eq(chosen, build.cast(build.as_expr(i[0]), chosen.dtype))
        return [found, build.ne(i[0], padding_idx)] if padding_idx >= 0 else [found]

    writes = Writes(indices.shape, named, lambda i, t: given[(*t, i[1])])
    return written(context, filled(0, context.shape(), grad.dtype), writes, How.SUM)


@takes(Family.INDEXING, aten.masked_scatter.default, limits="constant sizes")
def masked_scatter(context: Context, x: Value, mask: Value, source: Value) -> Value:
    """Elements of a line, one after the other, where a mask is true."""
    shape = context.shape()
    count, length = product(shape), product(source.shape)
    known = numbers((count, length))
    if known is None or 0 in known:
        raise NotTaken("no element, or sizes that are known at the call only")
    spread, own = broadcast(context.held(mask), shape), broadcast(x, shape)
    line = context.tensor(cast_to(reshaped(spread, (count,)), DType.int64), "mask")
    sums = whole(nn_cumsum(line, axis=0, name=f"{context.name}.count"))
    last = Value((), DType.int64, lambda _: sums[(build.sub(count, 1),)], None, 1)
    context.checks.append(Check(last, 0, build.add(length, 1)))
    number, given = reshaped(sums, shape), reshaped(context.held(source), (length,))

    def element(i: Indices) -> Expr:
        place = build.maximum(build.minimum(number[i] - 1, build.sub(length, 1)), 0)
        return build.if_then_else(spread[i], given[(place,)], own[i])

    return Value(shape, x.dtype, element, None, 4 + x.work)
