"""A reshape as index arithmetic.

Extents are cut into the smallest runs of equal product, so that what a reshape leaves alone keeps
its index, and a split or a merge is one quotient and one remainder.  Imports `elements.value`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tedsl.expr.mixed_radix import put_together
from tedsl.expr.nodes import Expr
from tedsl.torch.elements.value import (
    Index,
    Indices,
    Shape,
    Size,
    Value,
    floor_parts,
    is_one,
    number_of,
    numbers,
    product,
    same_size,
    viewed,
)

Run = tuple[tuple[int, int], tuple[int, int]]
"""Dimensions `begin .. end` of the old shape and those of the new one, of equal product."""


def reshaped(value: Value, shape: Shape) -> Value:
    """The elements of `value`, in row-major order, under indices of `shape`."""
    return viewed(value, shape, index_map(value.shape, shape))


def index_map(old: Shape, new: Shape) -> Callable[[Indices], Sequence[Index]]:
    """From an index of `new` to the index of `old` with the same row-major place."""
    if any(number_of(extent) == 0 for extent in (*old, *new)):
        return lambda _: (0,) * len(old)
    runs = _runs(old, new)

    def at(i: Indices) -> Sequence[Index]:
        found: list[Index] = [0] * len(old)
        for (first, last), (begin, end) in runs:
            if last - first == end - begin == 1:
                found[first] = i[begin]
                continue
            place = linear(i[begin:end], new[begin:end])
            found[first:last] = map(_short, unravelled(place, old[first:last]))
        return found

    return at


def _short(index: Index) -> Index:
    """What views of views take apart and put together, without both."""
    return put_together(index) if isinstance(index, Expr) else index


def linear(i: Sequence[Index], extents: Sequence[Size]) -> Index:
    """The row-major place of an index."""
    place: Index = 0
    for each, extent in zip(i, extents, strict=True):
        if is_one(extent):
            continue
        place = each if isinstance(place, int) and place == 0 else place * extent + each
    return place


def unravelled(place: Index, extents: Sequence[Size]) -> list[Index]:
    """The index at a row-major place; the first one is what is left, without a remainder."""
    found: list[Index] = []
    wide = [d for d, extent in enumerate(extents) if not is_one(extent)]
    first = wide[0] if wide else -1
    for d in reversed(range(len(extents))):
        if is_one(extents[d]):
            found.append(0)
        elif d == first:
            found.append(place)
        else:
            place, rest = floor_parts(place, extents[d])
            found.append(rest)
    return found[::-1]


def _runs(old: Shape, new: Shape) -> list[Run]:
    if numbers(old) is None or numbers(new) is None:
        return _symbolic_runs(old, new)
    runs: list[Run] = []
    a = b = 0
    while a < len(old) or b < len(new):
        first, begin = a, b
        left: Size = 1
        right: Size = 1
        if a < len(old):
            left, a = old[a], a + 1
        if b < len(new):
            right, b = new[b], b + 1
        while not same_size(left, right):
            if (number_of(left) or 0) < (number_of(right) or 0):
                left, a = product((left, old[a])), a + 1
            else:
                right, b = product((right, new[b])), b + 1
        runs.append(((first, a), (begin, b)))
    return runs


def _symbolic_runs(old: Shape, new: Shape) -> list[Run]:
    """Equal extents in front and at the end by themselves, what is between as one run."""
    front = 0
    while front < min(len(old), len(new)) and same_size(old[front], new[front]):
        front += 1
    back = 0
    while back < min(len(old), len(new)) - front and same_size(old[-1 - back], new[-1 - back]):
        back += 1
    runs: list[Run] = [((d, d + 1), (d, d + 1)) for d in range(front)]
    runs.append(((front, len(old) - back), (front, len(new) - back)))
    for d in range(back, 0, -1):
        runs.append(((len(old) - d, len(old) - d + 1), (len(new) - d, len(new) - d + 1)))
    return runs
