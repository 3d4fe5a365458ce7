"""Pools: largest elements and means of windows.  Imports `importer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import BinaryOp, Expr
from tedsl.tensor import math as te
from tedsl.tensor import reduce
from tedsl.torch.elements.dtypes import is_number
from tedsl.torch.elements.reshape import linear
from tedsl.torch.elements.value import Index, Indices, Value, cast_to, numbers
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Converted, Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.refusals import NotTaken


def _spread(given: Sequence[int], spatial: int) -> list[int]:
    """One number for each spatial dimension."""
    return list(given) * spatial if len(given) == 1 else list(given)


def _average(
    context: Context,
    x: Value,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Value:
    spatial = len(window)
    shape, lead = context.shape(), x.rank - spatial
    known = numbers(x.shape[lead:])
    if known is None or 0 in known:
        raise NotTaken("a pool of no element, or of sizes known at the call only")
    source = context.held(x)
    work = DType.float32 if x.dtype.is_short_float else x.dtype
    axes = [context.axis(extent, f"r{d}") for d, extent in enumerate(window)]
    area = 1
    for extent in window:
        area *= extent

    def bounds(i: Indices, d: int) -> tuple[Expr, Expr]:
        """Where the window ends: in the input, or in its padding where that counts."""
        margin = padding[d] if count_include_pad else 0
        begin = build.sub(i[lead + d] * stride[d], padding[d])
        low = begin if count_include_pad else build.maximum(begin, 0)
        return low, build.minimum(begin + window[d], known[d] + margin)

    def element(i: Indices) -> Expr:
        at: list[Index] = list(i[:lead])
        tests: list[Expr] = []
        for d, axis in enumerate(axes):
            place = i[lead + d] * stride[d] + axis - padding[d]
            at.append(place)
            if padding[d] or ceil_mode:
                tests += [build.ge(place, 0), build.lt(place, known[d])]
        where = build.conjunction(tests) if tests else None
        return reduce.sum(build.cast(source[at], work), axes, where=where, dtype=work)

    added = context.stage(shape, element, "sum")

    def mean(i: Indices) -> Expr:
        whole = not ceil_mode and (count_include_pad or not any(padding))
        if divisor is not None or whole:
            return build.div(added[i], float(divisor if divisor is not None else area))
        count: Expr = build.const(1)
        for d in range(spatial):
            low, high = bounds(i, d)
            count = count * (high - low)
        return build.div(added[i], build.cast(count, work))

    return cast_to(Value(shape, work, mean, None, 3), context.dtype())


def _register(name: str, spatial: int) -> None:
    @takes(
        Family.POOL,
        getattr(aten, name).default,
        limits="floats, constant sizes",
    )
    def convert(
        context: Context,
        x: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None = None,
    ) -> Value:
        if not x.dtype.is_float or not (divisor is None or is_number(divisor)):
            raise NotTaken("a mean of integers")
        window = _spread(kernel_size, spatial)
        steps = _spread(stride, spatial) if stride else window
        return _average(
            context,
            x,
            window,
            steps,
            _spread(padding, spatial),
            ceil_mode,
            count_include_pad,
            divisor,
        )

    del convert


for _spatial in (1, 2, 3):
    _register(f"avg_pool{_spatial}d", _spatial)


def _adapted(
    context: Context,
    source: Value,
    spatial: Sequence[int],
    known: Sequence[int],
    wanted: Sequence[int],
    work: DType,
) -> Value:
    longest = {
        d: max(
            -(-(o + 1) * known[d] // wanted[d]) - o * known[d] // wanted[d]
            for o in range(max(wanted[d], 1))
        )
        for d in spatial
    }
    axes = {d: context.axis(longest[d], f"r{d}") for d in spatial}

    def bounds(i: Indices, d: int) -> tuple[Expr, Expr]:
        if known[d] % wanted[d] == 0:
            size = known[d] // wanted[d]
            return build.mul(i[d], size), build.mul(i[d], size) + size
        low = build.floordiv(build.mul(i[d], known[d]), wanted[d])
        ahead = build.mul(build.add(i[d], 1), known[d]) + (wanted[d] - 1)
        return low, build.floordiv(ahead, wanted[d])

    def element(i: Indices) -> Expr:
        at: list[Index] = list(i)
        tests: list[Expr] = []
        for d, axis in axes.items():
            low, high = bounds(i, d)
            at[d] = low + axis
            if known[d] % wanted[d]:
                tests += [build.lt(low + axis, high), build.lt(low + axis, known[d])]
        where = build.conjunction(tests) if tests else None
        terms = build.cast(source[at], work)
        return reduce.sum(terms, list(axes.values()), where=where, dtype=work)

    added = context.stage(context.shape(), element, "sum")

    def mean(i: Indices) -> Expr:
        count: Expr = build.const(1)
        for d in spatial:
            low, high = bounds(i, d)
            count = count * (high - low)
        return build.div(added[i], build.cast(count, work))

    return cast_to(Value(context.shape(), work, mean, None, 3), context.dtype())


@takes(Family.POOL, aten._adaptive_avg_pool2d.default, limits="floats, constant sizes")
@takes(Family.POOL, aten.adaptive_avg_pool1d.default, limits="floats, constant sizes")
@takes(Family.POOL, aten._adaptive_avg_pool3d.default, limits="floats, constant sizes")
def adaptive_avg_pool(context: Context, x: Value, output_size: Sequence[Any]) -> Value:
    """Means of windows that cover the input and differ by one in extent."""
    known, wanted = numbers(x.shape), numbers(context.shape())
    if known is None or wanted is None or 0 in known or 0 in wanted or not x.dtype.is_float:
        raise NotTaken("an adaptive pool of no element, or of sizes known at the call only")
    work = DType.float32 if x.dtype.is_short_float else x.dtype
    spatial = range(x.rank - len(output_size), x.rank)
    return _adapted(context, context.held(x), spatial, known, wanted, work)


@takes(Family.POOL, aten.max_pool2d_with_indices.default, limits="constant sizes")
@takes(Family.POOL, aten.max_pool3d_with_indices.default, limits="constant sizes")
def max_pool_with_indices(
    context: Context,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Converted:
    """The largest element of each window and its place in the plane: the first of equal ones, the
    last NaN."""
    spatial = len(kernel_size)
    lead = x.rank - spatial
    known = numbers(x.shape[lead:])
    if known is None or 0 in known or spatial == 1:
        raise NotTaken("a pool of no element, of one number for all dimensions, or of open sizes")
    del ceil_mode
    window = _spread(kernel_size, spatial)
    steps = _spread(stride, spatial) if stride else window
    margin, apart = _spread(padding, spatial), _spread(dilation, spatial)
    source = context.held(x)
    axes = [context.axis(extent, f"r{d}") for d, extent in enumerate(window)]

    def elements(i: Indices) -> Sequence[Expr]:
        at: list[Index] = list(i[:lead])
        tests: list[Expr] = []
        for d, axis in enumerate(axes):
            place = i[lead + d] * steps[d] + axis * apart[d] - margin[d]
            at.append(place)
            tests += [build.ge(place, 0), build.lt(place, known[d])]
        flat = build.cast(build.as_expr(linear(at[lead:], known)), DType.int64)
        return LARGEST((source[at], flat), axis=axes, where=build.conjunction(tests))

    value, place = context.stages(context.shape(0), elements, "window")
    return value, place


def _combined(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, Expr]:
    greater = build.gt(a[0], b[0])
    tie = build.logical_and(build.eq(a[0], b[0]), build.lt(a[1], b[1]))
    first = build.logical_or(greater, tie)
    if a[0].dtype.is_float:
        numberless, other = te.isnan(a[0]), te.isnan(b[0])
        later = build.logical_or(build.logical_not(other), build.gt(a[1], b[1]))
        first = build.logical_or(first, build.logical_and(numberless, later))
        first = build.logical_and(first, build.logical_or(build.logical_not(other), numberless))
    return build.select(first, a[0], b[0]), build.select(first, a[1], b[1])


def _identity(value: DType, place: DType) -> tuple[Expr, Expr]:
    last = build.const(int(place.info.highest), place)
    return reduce.simple_reducer(BinaryOp.MAX, value).identity[0], last


LARGEST = reduce.comm_reducer(_combined, _identity, name="largest")
