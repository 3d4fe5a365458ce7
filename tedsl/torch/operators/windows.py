"""Windows of pools and convolutions seen from the input: which of them reach a place."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.torch.elements.value import Index, Size, floor_parts


def spread(given: Sequence[int], spatial: int) -> list[int]:
    """One number for each spatial dimension."""
    return list(given) * spatial if len(given) == 1 else list(given)


def reaching(
    place: Index, within: Index, stride: int, padding: int, dilation: int, count: Size
) -> tuple[Index, list[Expr]]:
    """The window that reads `place` at its element `within`, and what holds where there is one."""
    reach = build.as_expr(place) + padding - within * dilation
    window: Index = reach
    tests: list[Expr] = []
    if stride != 1:
        window, rest = floor_parts(reach, stride)
        tests.append(build.eq(rest, 0))
    return window, [*tests, build.ge(reach, 0), build.lt(window, count)]


def adapted(place: Index, extent: int, wanted: int) -> tuple[Expr, Expr]:
    """Where the window of an adaptive pool from `extent` to `wanted` begins and ends.

    With the two exchanged, the windows that read a place of the input.
    """
    if extent % wanted == 0:
        size = extent // wanted
        return build.mul(place, size), build.mul(place, size) + size
    low = build.floordiv(build.mul(place, extent), wanted)
    ahead = build.mul(build.add(place, 1), extent) + (wanted - 1)
    return low, build.floordiv(ahead, wanted)


def longest(extent: int, wanted: int) -> int:
    """The extent of the longest of these windows."""
    return max(-(-(o + 1) * extent // wanted) - o * extent // wanted for o in range(max(wanted, 1)))
