"""Means of windows, and their gradients.  Imports `importer` and `windows`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.tensor import reduce
from tedsl.torch.elements.dtypes import is_number
from tedsl.torch.elements.value import Index, Indices, Value, cast_to, numbers
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.operators.windows import adapted, longest, reaching, spread
from tedsl.torch.refusals import NotTaken


def _quotient(total: Expr, count: Expr) -> Expr:
    """A mean in the type of the sum; of integers cut, as PyTorch does."""
    found = build.cast(count, total.dtype)
    return build.div(total, found) if total.dtype.is_float else build.truncdiv(total, found)


@dataclass(frozen=True, slots=True)
class Mean:
    """A pool of means.

    Attributes:
        known: the extents of the plane of the input.
        window, stride, padding: one number for each of them.
        ceil_mode: windows may reach beyond the padding.
        counts_padding: the padding counts in the mean.
        divisor: in the place of the count.
    """

    known: tuple[int, ...]
    window: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    ceil_mode: bool
    counts_padding: bool
    divisor: int | None

    def count(self, o: Sequence[Index]) -> Expr:
        """How many elements window `o` has."""
        if self.divisor is not None:
            return build.const(self.divisor)
        number: Expr = build.const(1)
        whole = not self.ceil_mode and (self.counts_padding or not any(self.padding))
        for each, size, extent, step, margin in zip(
            o, self.window, self.known, self.stride, self.padding, strict=True
        ):
            if whole:
                number = number * size
                continue
            begin = build.sub(build.mul(each, step), margin)
            low = begin if self.counts_padding else build.maximum(begin, 0)
            high = build.minimum(begin + size, extent + (margin if self.counts_padding else 0))
            number = number * (high - low)
        return number


def _mean_of(
    spatial: int,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *rest: Any,
) -> Mean:
    """What the arguments of a pool of `x` say."""
    known = numbers(x.shape[x.rank - spatial :])
    ceil_mode, counts, divisor = rest if len(rest) == 3 else (*rest, None)
    if known is None or 0 in known or not (divisor is None or is_number(divisor)):
        raise NotTaken("a pool of no element, or of sizes known at the call only")
    window = spread(kernel_size, spatial)
    steps = spread(stride, spatial) if stride else window
    return Mean(known, window, steps, spread(padding, spatial), ceil_mode, counts, divisor)


def _sum_type(dtype: DType) -> DType:
    return DType.float32 if dtype.is_short_float else dtype


def _pooled(context: Context, x: Value, pool: Mean) -> Value:
    """The means of all windows."""
    source, work = context.held(x), _sum_type(x.dtype)
    lead = x.rank - len(pool.window)
    axes = [context.axis(extent, f"r{d}") for d, extent in enumerate(pool.window)]

    def element(i: Indices) -> Expr:
        at: list[Index] = list(i[:lead])
        tests: list[Expr] = []
        for d, axis in enumerate(axes):
            place = i[lead + d] * pool.stride[d] + axis - pool.padding[d]
            at.append(place)
            if pool.padding[d] or pool.ceil_mode:
                tests += [build.ge(place, 0), build.lt(place, pool.known[d])]
        where = build.conjunction(tests) if tests else None
        return reduce.sum(build.cast(source[at], work), axes, where=where, dtype=work)

    shape = context.shape()
    added = context.stage(shape, element, "sum")

    def mean(i: Indices) -> Expr:
        return _quotient(added[i], pool.count(i[lead:]))

    return cast_to(Value(shape, work, mean, None, 3), context.dtype())


def _given_back(context: Context, gradient: Value, pool: Mean) -> Value:
    """What each place of the input gets from the windows that read it."""
    source, work = context.held(gradient), _sum_type(gradient.dtype)
    lead = gradient.rank - len(pool.window)
    axes = [context.axis(extent, f"r{d}") for d, extent in enumerate(pool.window)]

    def element(i: Indices) -> Expr:
        at: list[Index] = list(i[:lead])
        tests: list[Expr] = []
        for d, axis in enumerate(axes):
            steps = pool.stride[d], pool.padding[d], 1
            window, holds = reaching(i[lead + d], axis, *steps, source.shape[lead + d])
            at.append(window)
            tests += holds
        part = _quotient(build.cast(source[at], work), pool.count(at[lead:]))
        return reduce.sum(part, axes, where=build.conjunction(tests), dtype=work)

    return cast_to(context.stage(context.shape(), element, "sum"), context.dtype())


def _register(spatial: int) -> None:
    @takes(Family.POOL, getattr(aten, f"avg_pool{spatial}d").default, limits="constant sizes")
    def average(context: Context, x: Value, *arguments: Any) -> Value:
        return _pooled(context, x, _mean_of(spatial, x, *arguments))

    del average
    if spatial == 1:  # which PyTorch writes as one of a plane
        return
    backward = getattr(aten, f"avg_pool{spatial}d_backward").default

    @takes(Family.POOL, backward, limits="constant sizes")
    def average_backward(context: Context, gradient: Value, x: Value, *arguments: Any) -> Value:
        return _given_back(context, gradient, _mean_of(spatial, x, *arguments))

    del average_backward


for _spatial in (1, 2, 3):
    _register(_spatial)


def _windows(
    context: Context,
    source: Value,
    result: Sequence[int],
    spatial: Sequence[int],
    term: Callable[[Sequence[Index]], Expr],
) -> Value:
    """Sums of `term` over adaptive windows: of a place of `result`, those of `source`."""
    extents = numbers(source.shape) or ()
    axes = {d: context.axis(longest(extents[d], result[d]), f"r{d}") for d in spatial}

    def element(i: Indices) -> Expr:
        at: list[Index] = list(i)
        tests: list[Expr] = []
        for d, axis in axes.items():
            low, high = adapted(i[d], extents[d], result[d])
            at[d] = low + axis
            if extents[d] % result[d]:
                tests += [build.lt(low + axis, high), build.lt(low + axis, extents[d])]
        where = build.conjunction(tests) if tests else None
        found = term(at)
        return reduce.sum(found, list(axes.values()), where=where, dtype=found.dtype)

    return context.stage(tuple(result), element, "sum")


def _area(i: Sequence[Index], known: Sequence[int], wanted: Sequence[int]) -> Expr:
    """The number of elements of an adaptive window, over the dimensions that differ."""
    count: Expr = build.const(1)
    for each, extent, size in zip(i, known, wanted, strict=True):
        low, high = adapted(each, extent, size)
        count = count * (high - low)
    return count


def _plane(context: Context, x: Value, other: Value | None) -> tuple[Any, Any]:
    """The extents of the input of an adaptive pool, and of its result.

    Raises:
        NotTaken: no element, or open sizes.
    """
    known = numbers(x.shape)
    wanted = numbers(context.shape() if other is None else other.shape)
    if known is None or wanted is None or 0 in known or 0 in wanted or not x.dtype.is_float:
        raise NotTaken("an adaptive pool of no element, or of sizes known at the call only")
    return known, wanted


@takes(Family.POOL, aten._adaptive_avg_pool2d.default, limits="floats, constant sizes")
@takes(Family.POOL, aten.adaptive_avg_pool1d.default, limits="floats, constant sizes")
@takes(Family.POOL, aten._adaptive_avg_pool3d.default, limits="floats, constant sizes")
def adaptive_avg_pool(context: Context, x: Value, output_size: Sequence[Any]) -> Value:
    """Means of windows that cover the input and differ by one in extent."""
    lead = x.rank - len(output_size)
    known, wanted = _plane(context, x, None)
    source, work = context.held(x), _sum_type(x.dtype)
    added = _windows(
        context, source, wanted, range(lead, x.rank), lambda at: build.cast(source[at], work)
    )

    def mean(i: Indices) -> Expr:
        return _quotient(added[i], _area(i[lead:], known[lead:], wanted[lead:]))

    return cast_to(Value(added.shape, work, mean, None, 3), context.dtype())


def _adaptive_backward(context: Context, gradient: Value, x: Value, spatial: int) -> Value:
    lead = x.rank - spatial
    known, wanted = _plane(context, x, gradient)
    source, work = context.held(gradient), _sum_type(x.dtype)

    def part(at: Sequence[Index]) -> Expr:
        area = _area(at[lead:], known[lead:], wanted[lead:])
        return _quotient(build.cast(source[at], work), area)

    found = _windows(context, source, known, range(lead, x.rank), part)
    return cast_to(found, context.dtype())


@takes(Family.POOL, aten._adaptive_avg_pool2d_backward.default, limits="floats, constant sizes")
def adaptive_avg_pool2d_backward(context: Context, gradient: Value, x: Value) -> Value:
    """The gradient of an adaptive pool of a plane."""
    return _adaptive_backward(context, gradient, x, 2)


@takes(Family.POOL, aten._adaptive_avg_pool3d_backward.default, limits="floats, constant sizes")
def adaptive_avg_pool3d_backward(context: Context, gradient: Value, x: Value) -> Value:
    """The gradient of an adaptive pool of a volume."""
    return _adaptive_backward(context, gradient, x, 3)
