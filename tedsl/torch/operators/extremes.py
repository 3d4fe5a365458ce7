"""Pools of largest elements with their places, and their gradients.  Imports `windows`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, BinaryOp, Expr
from tedsl.tensor import math as te
from tedsl.tensor import reduce
from tedsl.torch.elements.reshape import linear
from tedsl.torch.elements.value import Index, Indices, Value, cast_to, numbers
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Converted, Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.operators.windows import adapted, longest, reaching, spread
from tedsl.torch.refusals import NotTaken

At = Callable[[Indices], "tuple[list[Index], list[Expr]]"]


def _known(x: Value, spatial: int) -> tuple[int, ...]:
    known = numbers(x.shape[x.rank - spatial :])
    if known is None or 0 in known:
        raise NotTaken("a pool of no element, or of sizes known at the call only")
    return known


def _largest(
    context: Context,
    spatial: int,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Converted:
    """The largest element of each window and its place in the plane: the first of equal ones, the
    last NaN."""
    del ceil_mode
    lead, known = x.rank - spatial, _known(x, spatial)
    window = spread(kernel_size, spatial)
    steps = spread(stride, spatial) if stride else window
    margin, apart = spread(padding, spatial), spread(dilation, spatial)
    source = context.held(x)
    axes = [context.axis(extent, f"r{d}") for d, extent in enumerate(window)]

    def places(i: Indices) -> tuple[list[Index], list[Expr]]:
        at: list[Index] = list(i[:lead])
        tests: list[Expr] = []
        for d, axis in enumerate(axes):
            place = i[lead + d] * steps[d] + axis * apart[d] - margin[d]
            at.append(place)
            tests += [build.ge(place, 0), build.lt(place, known[d])]
        return at, tests

    return _pooled(context, source, axes, places)


def _pooled(context: Context, source: Value, axes: Sequence[Axis], places: At) -> Converted:
    """The largest element of each window, and where it is in the plane if somebody asks for that.

    Args:
        context: of the node.
        source: what the windows lie in.
        axes: of a window.
        places: from an index of the result to that of the source, and what holds inside.
    """
    spatial = len(axes)
    known = source.shape[source.rank - spatial :]

    def values(i: Indices) -> Expr:
        at, tests = places(i)
        return reduce.max(source[at], axes, where=build.conjunction(tests))

    def both(i: Indices) -> Sequence[Expr]:
        at, tests = places(i)
        flat = build.cast(build.as_expr(linear(at[-spatial:], known)), DType.int64)
        return LARGEST((source[at], flat), axis=axes, where=build.conjunction(tests))

    shape = context.shape(0)
    if 1 in context.read:
        value, place = context.stages(shape, both, "window")
        return value, place
    return context.stage(shape, values, "window"), context.unread(shape, DType.int64)


@takes(Family.POOL, aten.adaptive_max_pool2d.default, limits="constant sizes")
@takes(Family.POOL, aten.adaptive_max_pool3d.default, limits="constant sizes")
def adaptive_max_pool(context: Context, x: Value, output_size: Sequence[int]) -> Converted:
    """The largest element of windows that cover the input, and its place."""
    spatial = len(output_size)
    lead, known = x.rank - spatial, _known(x, spatial)
    shape = numbers(context.shape(0))
    if shape is None or 0 in shape:
        raise NotTaken("a pool of no element, or of sizes known at the call only")
    wanted, source = shape[lead:], context.held(x)
    axes = [
        context.axis(longest(n, m), f"r{d}")
        for d, (n, m) in enumerate(zip(known, wanted, strict=True))
    ]

    def places(i: Indices) -> tuple[list[Index], list[Expr]]:
        at: list[Index] = list(i[:lead])
        tests: list[Expr] = []
        for d, axis in enumerate(axes):
            low, high = adapted(i[lead + d], known[d], wanted[d])
            at.append(low + axis)
            tests += [build.lt(low + axis, high), build.lt(low + axis, known[d])]
        return at, tests

    return _pooled(context, source, axes, places)


def _given_back(
    context: Context, gradient: Value, indices: Value, extents: Sequence[int], windows: At
) -> Value:
    """What each place of the input gets from those windows around it whose largest it is.

    Args:
        context: of the node.
        gradient, indices: one for each window.
        extents: of the axes that number the windows around a place.
        windows: from a place and the axes to a window, and what holds where there is one.
    """
    source, chosen = context.held(gradient, "grad"), context.held(indices, "index")
    work = DType.float32 if gradient.dtype.is_short_float else gradient.dtype
    axes = [context.axis(extent, f"r{d}") for d, extent in enumerate(extents)]
    lead = gradient.rank - len(extents)
    known = context.shape()[lead:]

    def element(i: Indices) -> Expr:
        window, tests = windows((*i[lead:], *axes))
        at = (*i[:lead], *window)
        own = build.cast(build.as_expr(linear(i[lead:], known)), DType.int64)
        inside = build.conjunction(tests)
        zero = build.const(0, work)
        part = build.select(build.eq(chosen[at], own), build.cast(source[at], work), zero)
        return reduce.sum(part, axes, where=inside, dtype=work)

    return cast_to(context.stage(context.shape(), element, "sum"), context.dtype())


def _largest_backward(
    context: Context,
    spatial: int,
    gradient: Value,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    """The gradient of a pool of largest elements."""
    del ceil_mode
    _known(x, spatial)
    windows = gradient.shape[gradient.rank - spatial :]
    if 0 in (numbers(windows) or (0,)):
        raise NotTaken("a pool of no element, or of sizes known at the call only")
    size = spread(kernel_size, spatial)
    steps = spread(stride, spatial) if stride else size
    margin, apart = spread(padding, spatial), spread(dilation, spatial)

    def around(i: Indices) -> tuple[list[Index], list[Expr]]:
        at: list[Index] = []
        tests: list[Expr] = []
        for d in range(spatial):
            place, axis = i[d], i[spatial + d]
            each, holds = reaching(place, axis, steps[d], margin[d], apart[d], windows[d])
            at.append(each)
            tests += holds
        return at, tests

    return _given_back(context, gradient, indices, size, around)


def _register(spatial: int) -> None:
    name = f"max_pool{spatial}d_with_indices"

    @takes(Family.POOL, getattr(aten, name).default, limits="constant sizes")
    def largest(context: Context, x: Value, *arguments: Any) -> Converted:
        return _largest(context, spatial, x, *arguments)

    @takes(Family.POOL, getattr(aten, f"{name}_backward").default, limits="constant sizes")
    def backward(context: Context, gradient: Value, x: Value, *arguments: Any) -> Value:
        return _largest_backward(context, spatial, gradient, x, *arguments)

    del largest, backward


for _spatial in (2, 3):
    _register(_spatial)


def _adaptive_backward(
    context: Context, gradient: Value, x: Value, indices: Value, spatial: int
) -> Value:
    known = _known(x, spatial)
    windows = numbers(gradient.shape[gradient.rank - spatial :])
    if windows is None or 0 in windows:
        raise NotTaken("a pool of no element, or of sizes known at the call only")

    def around(i: Indices) -> tuple[list[Index], list[Expr]]:
        at: list[Index] = []
        tests: list[Expr] = []
        for d in range(spatial):
            low, high = adapted(i[d], windows[d], known[d])
            place = low + i[spatial + d]
            at.append(place)
            tests += [build.lt(place, high), build.lt(place, windows[d])]
        return at, tests

    extents = [longest(n, m) for n, m in zip(windows, known, strict=True)]
    return _given_back(context, gradient, indices, extents, around)


@takes(Family.POOL, aten.adaptive_max_pool2d_backward.default, limits="constant sizes")
def adaptive_max_pool2d_backward(
    context: Context, gradient: Value, x: Value, indices: Value
) -> Value:
    """The gradient of an adaptive pool of a plane."""
    return _adaptive_backward(context, gradient, x, indices, 2)


@takes(Family.POOL, aten.adaptive_max_pool3d_backward.default, limits="constant sizes")
def adaptive_max_pool3d_backward(
    context: Context, gradient: Value, x: Value, indices: Value
) -> Value:
    """The gradient of an adaptive pool of a volume."""
    return _adaptive_backward(context, gradient, x, indices, 3)


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
