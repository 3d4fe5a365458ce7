"""What is put together of several tensors, or set into one: cat, stack, pad, roll, triangles.

Each chooses by index which read is made.  Imports `importer` and `elements`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Const, Expr
from tedsl.tensor import reduce
from tedsl.torch.elements.dtypes import constant, is_number
from tedsl.torch.elements.reshape import reshaped
from tedsl.torch.elements.value import (
    Index,
    Indices,
    Size,
    Value,
    cast_to,
    floor_parts,
    numbers,
    product,
)
from tedsl.torch.importer.context import Context
from tedsl.torch.importer.registry import Family, takes
from tedsl.torch.lib import aten
from tedsl.torch.refusals import NotTaken

MOST_PARTS = 48


@takes(Family.VIEW, aten.cat.default, limits=f"constant sizes, at most {MOST_PARTS} parts")
def cat(context: Context, parts: Sequence[Value], dim: int = 0) -> Value:
    """Parts one behind the other along a dimension."""
    shape, dtype = context.shape(), context.dtype()
    d = dim + len(shape) if dim < 0 else dim
    begin = 0
    placed: list[tuple[int, Value]] = []
    for part in parts:
        known = numbers(part.shape)
        if known is None:
            raise NotTaken("parts of sizes that are known at the call only")
        if known == (0,) or known[d] == 0:
            continue
        placed.append((begin, cast_to(part, dtype)))
        begin += known[d]
    if not placed:
        raise NotTaken("parts without an element")
    if len(placed) > MOST_PARTS:
        raise NotTaken(f"more than {MOST_PARTS} parts")

    def element(i: Indices) -> Expr:
        return _chosen(placed, i, d)

    return Value(shape, dtype, element, None, 1 + max(part.work for _, part in placed))


def _chosen(placed: Sequence[tuple[int, Value]], i: Indices, d: int) -> Expr:
    """The element of the part that index `i[d]` falls into: a balanced tree of choices."""
    if len(placed) == 1:
        begin, part = placed[0]
        return part[(*i[:d], build.sub(i[d], begin) if begin else i[d], *i[d + 1 :])]
    half = len(placed) // 2
    before, after = placed[:half], placed[half:]
    return build.if_then_else(
        build.lt(i[d], after[0][0]), _chosen(before, i, d), _chosen(after, i, d)
    )


@takes(Family.VIEW, aten.stack.default, limits=f"at most {MOST_PARTS} parts")
def stack(context: Context, parts: Sequence[Value], dim: int = 0) -> Value:
    """Parts one behind the other along a new dimension."""
    shape, dtype = context.shape(), context.dtype()
    d = dim + len(shape) if dim < 0 else dim
    if len(parts) > MOST_PARTS:
        raise NotTaken(f"more than {MOST_PARTS} parts")
    taken = [cast_to(part, dtype) for part in parts]

    def element(i: Indices) -> Expr:
        rest = (*i[:d], *i[d + 1 :])
        found = taken[-1][rest]
        for n in reversed(range(len(taken) - 1)):
            found = build.if_then_else(build.eq(i[d], n), taken[n][rest], found)
        return found

    return Value(shape, dtype, element, None, 1 + max(part.work for part in taken))


@takes(Family.VIEW, aten.constant_pad_nd.default)
def constant_pad_nd(context: Context, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    """A margin of one number; a negative one cuts."""
    number = constant(value, x.dtype)
    low: list[Size] = [0] * x.rank
    high: list[Size] = [0] * x.rank
    for n in range(len(pad) // 2):
        low[x.rank - 1 - n], high[x.rank - 1 - n] = pad[2 * n], pad[2 * n + 1]

    def element(i: Indices) -> Expr:
        tests: list[Expr] = []
        at: list[Index] = []
        for each, before, after, extent in zip(i, low, high, x.shape, strict=True):
            place = each if _is(before, 0) else build.sub(each, before)
            at.append(place)
            if not _is_below_1(before):
                tests.append(build.ge(place, 0))
            if not _is_below_1(after):
                tests.append(build.lt(place, extent))
        return build.if_then_else(build.conjunction(tests), x[at], number)

    return Value(context.shape(), x.dtype, element, None, x.work + 1)


def _is(size: Size, number: int) -> bool:
    return isinstance(size, int) and size == number


def _is_below_1(size: Size) -> bool:
    return isinstance(size, int) and size <= 0


@takes(Family.VIEW, aten.roll.default)
def roll(context: Context, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """Places moved around a dimension."""
    known = numbers(x.shape)
    if known is None or 0 in known:
        raise NotTaken("a roll of no element, or of sizes known at the call only")
    if x.rank == 0:
        return x
    if not dims:
        flat = reshaped(x, (product(known),))
        turned = roll(context, flat, shifts, (0,))
        assert isinstance(turned, Value)
        return reshaped(turned, x.shape)
    moved: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        d = dim + x.rank if dim < 0 else dim
        moved[d] = moved.get(d, 0) + shift

    def element(i: Indices) -> Expr:
        at = [
            floor_parts(build.as_expr(each) + (-moved[d]) % known[d], known[d])[1]
            if d in moved
            else each
            for d, each in enumerate(i)
        ]
        return x[at]

    return Value(x.shape, x.dtype, element, None, x.work + 1)


def _triangle(x: Value, keeps_upper: bool, diagonal: int) -> Value:
    zero = constant(0, x.dtype)

    def element(i: Indices) -> Expr:
        row, column = i[-2], i[-1]
        if keeps_upper:
            kept = build.ge(column, build.add(row, diagonal))
        else:
            kept = build.le(column, build.add(row, diagonal))
        match x[i]:
            case Const(value=True):
                return kept
            case inside:
                return build.if_then_else(kept, inside, zero)

    return Value(x.shape, x.dtype, element, None, x.work + 1)


@takes(Family.VIEW, aten.triu.default)
def triu(context: Context, x: Value, diagonal: int = 0) -> Value:
    """The upper triangle, 0 below."""
    return _triangle(x, True, diagonal)


@takes(Family.VIEW, aten.tril.default)
def tril(context: Context, x: Value, diagonal: int = 0) -> Value:
    """The lower triangle, 0 above."""
    return _triangle(x, False, diagonal)


@takes(Family.VIEW, aten.select_scatter.default, limits="a constant index")
def select_scatter(context: Context, x: Value, src: Value, dim: int, index: Any) -> Value:
    """`x` with one place of a dimension replaced."""
    d = dim + x.rank if dim < 0 else dim
    if not isinstance(index, int):
        raise NotTaken("a place that is known at the call only")
    place = index + x.shape[d] if index < 0 else index
    put = cast_to(src, x.dtype)

    def element(i: Indices) -> Expr:
        return build.if_then_else(build.eq(i[d], place), put[(*i[:d], *i[d + 1 :])], x[i])

    return Value(x.shape, x.dtype, element, None, 1 + x.work + src.work)


@takes(Family.VIEW, aten.slice_scatter.default, limits="constant sizes")
def slice_scatter(
    context: Context, x: Value, src: Value, dim: int, start: Any, end: Any, step: Any
) -> Value:
    """`x` with a part of a dimension replaced."""
    d = dim + x.rank if dim < 0 else dim
    extent, count = x.shape[d], src.shape[d]
    ends = (start if start is not None else 0, end if end is not None else 0, step)
    if not (isinstance(extent, int) and isinstance(count, int) and all(map(is_number, ends))):
        raise NotTaken("a part of a size that is known at the call only")
    if count == 0:
        return x
    first = 0 if start is None else min(max(start + extent if start < 0 else start, 0), extent)
    put = cast_to(src, x.dtype)

    def element(i: Indices) -> Expr:
        offset = build.sub(i[d], first) if first else build.as_expr(i[d])
        tests = [build.ge(offset, 0), build.lt(offset, (count - 1) * step + 1)]
        place: Index = offset
        if step != 1:
            place, rest = floor_parts(offset, step)
            tests.append(build.eq(rest, 0))
        read = put[(*i[:d], place, *i[d + 1 :])]
        return build.if_then_else(build.conjunction(tests), read, x[i])

    return Value(x.shape, x.dtype, element, None, 1 + x.work + src.work)


@takes(Family.VIEW, aten.diagonal_scatter.default)
def diagonal_scatter(
    context: Context, x: Value, src: Value, offset: int, dim1: int, dim2: int
) -> Value:
    """`x` with a diagonal replaced."""
    a, b = (d + x.rank if d < 0 else d for d in (dim1, dim2))
    put, row = cast_to(src, x.dtype), max(-offset, 0)

    def element(i: Indices) -> Expr:
        place = build.sub(i[a], row)
        tests = [build.eq(build.sub(i[b], i[a]), offset), build.ge(place, 0)]
        tests.append(build.lt(place, put.shape[-1]))
        rest = [each for d, each in enumerate(i) if d not in (a, b)]
        return build.if_then_else(build.conjunction(tests), put[(*rest, place)], x[i])

    return Value(x.shape, x.dtype, element, None, 1 + x.work + src.work)


def _replicated_backward(
    context: Context, gradient: Value, x: Value, padding: Sequence[Any]
) -> Value:
    """What a border that repeats the last place gives back to it."""
    spatial = len(padding) // 2
    lead, source = x.rank - spatial, context.held(gradient, "grad")
    known, padded = numbers(x.shape[lead:]), numbers(gradient.shape[lead:])
    if known is None or padded is None or 0 in known or 0 in padded:
        raise NotTaken("a border of no element, or of sizes known at the call only")
    margins = [(int(padding[2 * n]), int(padding[2 * n + 1])) for n in range(spatial)][::-1]
    longest = [
        wide if size == 1 else max(low, high, 0) + 1
        for size, wide, (low, high) in zip(known, padded, margins, strict=True)
    ]
    axes = [context.axis(extent, f"r{d}") for d, extent in enumerate(longest)]
    work = DType.float32 if gradient.dtype.is_short_float else gradient.dtype

    def element(i: Indices) -> Expr:
        at: list[Index] = list(i[:lead])
        tests: list[Expr] = []
        for d, axis in enumerate(axes):
            place, wide = i[lead + d], padded[d]
            begin = build.select(build.eq(place, 0), 0, build.add(place, margins[d][0]))
            last = build.eq(place, known[d] - 1)
            end = build.select(last, wide, build.add(place, margins[d][0] + 1))
            at.append(begin + axis)
            tests += [build.ge(begin + axis, 0), build.lt(begin + axis, wide)]
            tests.append(build.lt(begin + axis, end))
        terms = build.cast(source[at], work)
        return reduce.sum(terms, axes, where=build.conjunction(tests), dtype=work)

    return cast_to(context.stage(context.shape(), element, "sum"), context.dtype())


for _backward in (
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
):
    takes(Family.POOL, _backward, limits="constant sizes")(_replicated_backward)
