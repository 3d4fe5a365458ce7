"""Views: the same elements under other indices.  Imports `importer` and `elements`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.torch.elements.reshape import linear, reshaped, unravelled
from tedsl.torch.elements.value import (
    Index,
    Indices,
    Size,
    Value,
    broadcast,
    floor_parts,
    numbers,
    viewed,
)
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Converted, Family, takes
from tedsl.torch.lib import aten, prims
from tedsl.torch.refusals import NotTaken


@takes(
    Family.VIEW,
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.alias_copy.default,
    aten.detach_copy.default,
)
def same(context: Context, x: Value, *_: Any) -> Value:
    """The same elements."""
    return x


@takes(
    Family.VIEW,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.view_copy.default,
    aten.flatten.using_ints,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
    aten.unsqueeze_copy.default,
    prims.collapse_view.default,
    prims.split_dim.default,
)
def view(context: Context, x: Value, *_: Any) -> Value:
    """Another shape of the same row-major order."""
    return reshaped(x, context.shape())


@takes(Family.VIEW, aten.expand.default, aten.expand_copy.default)
def expand(context: Context, x: Value, *_: Any) -> Value:
    """Repeated along extents of 1."""
    return broadcast(x, context.shape())


@takes(Family.VIEW, prims.broadcast_in_dim.default)
def broadcast_in_dim(context: Context, x: Value, _: Any, dims: Sequence[int]) -> Value:
    """Repeated along the dimensions that are not listed."""
    shape = context.shape()
    lead: list[Size] = [1] * len(shape)
    for d, place in enumerate(dims):
        lead[place] = x.shape[d]
    return broadcast(viewed(x, tuple(lead), lambda i: [i[place] for place in dims]), shape)


def _dimension(x: Value, d: int) -> int:
    return d + x.rank if d < 0 else d


def _permuted(x: Value, order: Sequence[int]) -> Value:
    dims = [_dimension(x, d) for d in order]
    inverse = [dims.index(d) for d in range(x.rank)]
    return viewed(x, tuple(x.shape[d] for d in dims), lambda i: [i[place] for place in inverse])


@takes(Family.VIEW, aten.permute.default, aten.permute_copy.default)
def permute(context: Context, x: Value, dims: Sequence[int]) -> Value:
    """Dimensions in another order."""
    return _permuted(x, dims)


@takes(Family.VIEW, aten.transpose.int, aten.transpose_copy.int)
def transpose(context: Context, x: Value, a: int, b: int) -> Value:
    """Two dimensions exchanged."""
    order = list(range(x.rank))
    if order:
        a, b = _dimension(x, a), _dimension(x, b)
        order[a], order[b] = order[b], order[a]
    return _permuted(x, order)


@takes(Family.VIEW, aten.t.default, aten.t_copy.default)
def t(context: Context, x: Value) -> Value:
    """A matrix transposed."""
    return _permuted(x, range(x.rank)[::-1])


@takes(Family.VIEW, aten.select.int, aten.select_copy.int, limits="a constant index")
def select(context: Context, x: Value, dim: int, index: Any) -> Value:
    """One place of a dimension."""
    d = _dimension(x, dim)
    if not isinstance(index, int):
        raise NotTaken("a place that is known at the call only")
    place = index + x.shape[d] if index < 0 else index
    return viewed(x, context.shape(), lambda i: (*i[:d], place, *i[d:]))


def _start(start: Any, extent: Size) -> Size:
    """Where a slice begins, as Python counts."""
    if start is None:
        return 0
    if isinstance(start, int) and isinstance(extent, int):
        return min(max(start + extent if start < 0 else start, 0), extent)
    if isinstance(start, int) and start == 0:
        return 0
    raise NotTaken("a slice that begins at a place known at the call only")


@takes(Family.VIEW, aten.slice.Tensor, aten.slice_copy.Tensor, limits="a constant beginning")
def slice_(context: Context, x: Value, dim: int, start: Any, end: Any, step: Any) -> Value:
    """A part of a dimension."""
    d = _dimension(x, dim)
    first = _start(start, x.shape[d])
    del end

    def at(i: Indices) -> Sequence[Index]:
        return (*i[:d], i[d] * step + first, *i[d + 1 :])

    return viewed(x, context.shape(), at)


@takes(Family.VIEW, aten.narrow.default, aten.narrow_copy.default, limits="a constant beginning")
def narrow(context: Context, x: Value, dim: int, start: Any, length: Any) -> Value:
    """A part of a dimension by its length."""
    del length
    found = slice_(context, x, dim, start, None, 1)
    assert isinstance(found, Value)
    return found


def _parts(context: Context, x: Value, dim: int, starts: Sequence[Size]) -> tuple[Value, ...]:
    d = _dimension(x, dim)

    def part(n: int) -> Value:
        first = starts[n]
        return viewed(x, context.shape(n), lambda i: (*i[:d], i[d] + first, *i[d + 1 :]))

    return tuple(part(n) for n in range(len(starts)))


@takes(
    Family.VIEW,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.split_copy.Tensor,
    aten.split_with_sizes_copy.default,
)
def split(context: Context, x: Value, size: Any, dim: int = 0) -> Converted:
    """A dimension in parts."""
    del size
    d, first = _dimension(x, dim), 0
    starts: list[int] = []
    for n in range(len(context.result)):
        known = numbers(context.shape(n))
        if known is None:
            raise NotTaken("parts of a size that is known at the call only")
        starts.append(first)
        first += known[d]
    return _parts(context, x, dim, starts)


@takes(Family.VIEW, aten.unbind.int, aten.unbind_copy.int)
def unbind(context: Context, x: Value, dim: int = 0) -> Converted:
    """Each place of a dimension by itself."""
    d = _dimension(x, dim)

    def part(n: int) -> Value:
        return viewed(x, context.shape(n), lambda i: (*i[:d], n, *i[d:]))

    return tuple(part(n) for n in range(len(context.result)))


@takes(Family.VIEW, aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(context: Context, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    """The places where two indices differ by `offset`."""
    a, b = _dimension(x, dim1), _dimension(x, dim2)
    rest = [d for d in range(x.rank) if d not in (a, b)]
    row, column = max(-offset, 0), max(offset, 0)

    def at(i: Indices) -> Sequence[Index]:
        found: list[Index] = [0] * x.rank
        for d, each in zip(rest, i, strict=False):
            found[d] = each
        found[a], found[b] = i[-1] + row, i[-1] + column
        return found

    return viewed(x, context.shape(), at)


@takes(Family.VIEW, aten.unfold.default, aten.unfold_copy.default)
def unfold(context: Context, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of a dimension, which lie in a new last one."""
    del size
    if x.rank == 0:
        raise NotTaken("a window of a single number")
    d = _dimension(x, dim)
    return viewed(x, context.shape(), lambda i: (*i[:d], i[d] * step + i[-1], *i[d + 1 : x.rank]))


@takes(Family.VIEW, aten.flip.default)
def flip(context: Context, x: Value, dims: Sequence[int]) -> Value:
    """Dimensions read from their end."""
    turned = {_dimension(x, d) for d in dims} if x.rank else set[int]()

    def at(i: Indices) -> Sequence[Index]:
        return [
            build.sub(build.sub(x.shape[d], 1), each) if d in turned else each
            for d, each in enumerate(i)
        ]

    return viewed(x, x.shape, at)


@takes(Family.VIEW, aten.repeat.default)
def repeat(context: Context, x: Value, repeats: Sequence[Any]) -> Value:
    """Laid side by side."""
    lead = len(repeats) - x.rank

    def at(i: Indices) -> Sequence[Index]:
        return [
            floor_parts(each, extent)[1] if count != 1 else each
            for each, extent, count in zip(i[lead:], x.shape, repeats[lead:], strict=True)
        ]

    if numbers(x.shape) is not None and 0 in x.shape:
        return viewed(x, context.shape(), lambda i: (0,) * x.rank)
    return viewed(x, context.shape(), at)


@takes(
    Family.VIEW,
    aten.as_strided.default,
    aten.as_strided_copy.default,
    limits="of contiguous tensors, of constant sizes",
)
def as_strided(
    context: Context, x: Value, size: Any, stride: Sequence[Any], offset: Any = None
) -> Value:
    """Any affine view of a contiguous tensor."""
    known, base, extents = _affine(context, x, size, stride, offset)
    if 0 in extents:
        return viewed(x, extents, lambda _: (0,) * x.rank)

    def at(i: Indices) -> Sequence[Index]:
        place: Index = base
        for each, step, extent in zip(i, stride, extents, strict=True):
            if step and extent != 1:
                place = place + each * step
        return unravelled(place, known)

    return viewed(x, extents, at)


def _affine(
    context: Context, x: Value, size: Sequence[Any], stride: Sequence[Any], offset: Any
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """The extents of a contiguous tensor, where a strided view of it begins, and its extents."""
    fake = context.fakes[0]
    known, extents = numbers(x.shape), numbers(context.sizes.shape(size))
    if known is None or not fake.is_contiguous() or 0 in known:
        raise NotTaken("a strided view of what is not contiguous")
    given = [*stride, 0 if offset is None else offset]
    if not all(isinstance(each, int) for each in given):
        raise NotTaken("strides that are known at the call only")
    base = int(given[-1]) - int(fake.storage_offset() if offset is not None else 0)
    if extents is None or base < 0:
        raise NotTaken("a strided view of other memory")
    end = base + sum((n - 1) * s for n, s in zip(extents, stride, strict=True))
    if 0 not in extents and end >= math.prod(known):
        raise NotTaken("a strided view beyond its tensor")
    return known, base, extents


@takes(
    Family.VIEW,
    aten.as_strided_scatter.default,
    limits="contiguous tensors, constant sizes, no place twice",
)
def as_strided_scatter(
    context: Context, x: Value, src: Value, size: Any, stride: Sequence[Any], offset: Any
) -> Value:
    """A tensor with other elements in a strided view of it: the digits of a place by the strides,
    from the largest, are its index in the view."""
    known, base, extents = _affine(context, x, size, stride, offset)
    if 0 in extents:
        return x
    wide = sorted((d for d, n in enumerate(extents) if n != 1), key=lambda d: -stride[d])
    reach = 0
    for d in reversed(wide):
        if stride[d] <= reach:
            raise NotTaken("a strided view that has a place twice")
        reach += (extents[d] - 1) * stride[d]
    source, given = context.held(x), context.held(src, "src")

    def element(i: Indices) -> Expr:
        rest: Index = build.as_expr(linear(i, known)) - base
        tests = [build.ge(rest, 0)]
        at: list[Index] = [0] * len(extents)
        for d in wide:
            place, rest = floor_parts(rest, stride[d])
            tests.append(build.lt(place, extents[d]))
            at[d] = build.minimum(build.maximum(place, 0), extents[d] - 1)
        tests.append(build.eq(rest, 0))
        return build.select(build.conjunction(tests), given[at], source[i])

    return context.stage(context.shape(), element)
