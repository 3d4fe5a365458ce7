"""Images read between their elements: volumes made larger or smaller, and samples at a grid.

Imports `importer`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.tensor import math as te
from tedsl.torch.elements.value import Index, Indices, Size, Value, cast_to, number_of
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.refusals import NotTaken


def _kept_inside(place: Expr, extent: Size) -> Expr:
    return build.minimum(build.maximum(place, 0), build.sub(extent, 1))


def _source(place: Index, ratio: float, corners: bool, work: DType) -> Expr:
    """Where an element of the result lies in the input, in elements of that."""
    number = build.cast(build.as_expr(place), work)
    if corners:
        return number * build.const(ratio, work)
    half = build.const(0.5, work)
    return build.maximum((number + half) * build.const(ratio, work) - half, build.const(0, work))


def _ratio(extent: int, wanted: int, corners: bool, scale: float | None) -> float:
    """Elements of the input for one of the result."""
    if corners:
        return (extent - 1) / (wanted - 1) if wanted > 1 else 0.0
    return 1.0 / scale if scale else extent / wanted


@takes(Family.POOL, aten.upsample_trilinear3d.default, limits="floats, constant sizes")
def upsample(context: Context, x: Value, _: Any, corners: bool, *scales: float | None) -> Value:
    """Between neighbours in proportion to the distance, along one dimension after the other."""
    lead, shape = x.rank - len(scales), context.shape()
    work = DType.float32 if x.dtype.is_short_float else x.dtype
    value = context.held(x)
    for n, d in reversed(list(enumerate(range(lead, x.rank)))):
        extent, wanted = number_of(x.shape[d]), number_of(shape[d])
        if not extent or not wanted:
            raise NotTaken("an image of no element, or of sizes known at the call only")
        ratio = _ratio(extent, wanted, corners, scales[n])
        before, begin = value, (*value.shape[:d], wanted, *value.shape[d + 1 :])
        at = _between(before, d, extent, lambda o, r=ratio: _source(o, r, corners, work), work)
        value = context.stage(begin, at, f"along{d}")
    return cast_to(value, context.dtype())


def _between(
    x: Value, d: int, extent: int, source: Callable[[Index], Expr], work: DType
) -> Callable[[Indices], Expr]:
    """The elements around `source`, weighed."""

    def element(i: Indices) -> Expr:
        place = source(i[d])
        low = _kept_inside(build.cast(place, DType.int32), extent)
        part = place - build.cast(low, work)
        both = (low, _kept_inside(low + 1, extent))
        first, second = (build.cast(x[(*i[:d], each, *i[d + 1 :])], work) for each in both)
        return first * (build.const(1, work) - part) + second * part

    return element


ZEROS, BORDER, REFLECTION = range(3)
LINEAR, NEAREST = range(2)


def _clipped(place: Expr, low: float, high: float) -> Expr:
    """Between two numbers; NaN is the lower one."""
    ends = (build.const(end, place.dtype) for end in (low, high))
    least, most = ends
    return build.select(build.ge(place, least), build.minimum(place, most), least)


def _reflected(place: Expr, low: float, high: float) -> Expr:
    """Mirrored at two ends until it is between them."""
    span = high - low
    if span <= 0:
        return build.const(0, place.dtype)
    least, width = build.const(low, place.dtype), build.const(span, place.dtype)
    away = te.abs(place - least)
    turns = te.floor(away / width)
    rest = away - turns * width
    half = turns * build.const(0.5, place.dtype)
    even = build.eq(te.floor(half), half)
    return build.select(even, rest, width - rest) + least


def _unnormalised(number: Expr, extent: int, padding: int, corners: bool) -> Expr:
    """A coordinate from -1 to 1 as a place along a dimension, kept where padding keeps it."""
    one, half = build.const(1, number.dtype), build.const(0.5, number.dtype)
    if corners:
        place = (number + one) * half * build.const(extent - 1, number.dtype)
    else:
        place = ((number + one) * build.const(extent, number.dtype) - one) * half
    if padding == ZEROS:
        return _clipped(place, -2.0, extent + 1.0)
    if padding == REFLECTION:
        place = _reflected(place, 0.0 if corners else -0.5, extent - (1.0 if corners else 0.5))
    return _clipped(place, 0.0, extent - 1.0)


@takes(
    Family.INDEXING,
    aten.grid_sampler_2d.default,
    aten.grid_sampler_3d.default,
    limits="float32 and float64, constant sizes, linear and nearest",
)
def grid_sampler(
    context: Context, x: Value, grid: Value, mode: int, padding: int, corners: bool
) -> Value:
    """An image at given places, between its elements or the nearest one."""
    extents = [number_of(extent) for extent in x.shape[2:]]
    known = [extent for extent in extents if extent]
    if len(known) < len(extents):
        raise NotTaken("an image of no element, or of sizes known at the call only")
    if mode not in (LINEAR, NEAREST):
        raise NotTaken("a cubic sample reads sixteen places, each with a padding of its own")
    if x.dtype.is_short_float or grid.dtype is not x.dtype:
        raise NotTaken("coordinates of 16-bit floats")
    image, given = context.held(x), context.held(grid, "grid")
    shape = context.shape()

    def placed(d: int) -> Value:
        def element(i: Indices) -> Expr:
            number = given[(*i, len(known) - 1 - d)]
            place = _unnormalised(number, known[d], padding, corners)
            return te.round(place) if mode == NEAREST else place

        return context.stage((shape[0], *shape[2:]), element, f"place{d}")

    places = [placed(d) for d in range(len(known))]

    def element(i: Indices) -> Expr:
        at = [place[(i[0], *i[2:])] for place in places]
        low = [te.floor(each) for each in at]
        corner = [build.cast(each, DType.int32) for each in low]
        if mode == NEAREST:
            return _inside(image, i[:2], corner, known)
        parts = [each - start for each, start in zip(at, low, strict=True)]
        total: Expr = build.const(0, x.dtype)
        for steps in itertools.product((0, 1), repeat=len(known)):
            read = _inside(image, i[:2], [c + s for c, s in zip(corner, steps, strict=True)], known)
            weights = [
                part if step else build.const(1, x.dtype) - part
                for part, step in zip(parts, steps, strict=True)
            ]
            total = total + read * math.prod(weights[1:], start=weights[0])
        return total

    return context.stage(shape, element)


def _inside(image: Value, lead: Indices, at: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """An element of the image, 0 outside."""
    tests: list[Expr] = []
    kept: list[Index] = []
    for place, extent in zip(at, extents, strict=True):
        tests += [build.ge(place, 0), build.lt(place, extent)]
        kept.append(_kept_inside(place, extent))
    read = image[(*lead, *kept)]
    return build.select(build.conjunction(tests), read, build.const(0, image.dtype))
