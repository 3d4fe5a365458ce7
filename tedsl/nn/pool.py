"""Pooling: the largest element or the mean of each window, of one to three spatial dimensions,
written once.

What lies in the padding is left out by the `where=` of the reduction, so that it needs no value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.nn.arguments import require_float, wide
from tedsl.nn.operator import of_ranks
from tedsl.nn.windows import (
    Ints,
    Layout,
    Padding,
    Place,
    Window,
    axes_among,
    guards,
    numbers,
    positions_of,
    reduced,
    space_of,
    tap_axes,
    window,
)
from tedsl.tensor.reduce import max as max_over
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.tensor import Tensor, read

Sizes = int | None | Sequence[int | None]
"""Extents of a result; None keeps that of the input."""


How = tuple[Ints, Ints | None, Ints, Ints]
"""Kernel, stride, padding and dilation."""


def _windows(
    rank: int, sizes: Sequence[Expr], how: How, ceil_mode: bool, subject: str
) -> list[Window]:
    kernel, stride, padding, dilation = how
    taps = numbers(kernel, rank, 1, "kernel_size", subject)
    strides = numbers(taps if stride is None else stride, rank, 1, "stride", subject)
    paddings = numbers(padding, rank, 0, "padding", subject)
    steps = numbers(dilation, rank, 1, "dilation", subject)
    for width, pad, step in zip(taps, paddings, steps, strict=True):
        reach = (width - 1) * step + 1
        if pad > reach // 2:
            raise ExprError(
                f"padding of {pad} for windows that reach over {reach} elements",
                subject=subject,
                facts=[("allowed", f"0 .. {reach // 2}")],
                hint="windows would lie in the padding; make the padding smaller",
            )
    return [
        window(size, width, stride, Padding(pad, pad), step, subject, ceil_mode)
        for size, width, stride, pad, step in zip(
            sizes, taps, strides, paddings, steps, strict=True
        )
    ]


def _max_pool(
    rank: int,
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_last",
    name: str = "",
) -> Tensor:
    """The largest element of each window, as `torch.nn.functional.max_pool2d`.

    Args:
        x: `[n, h, w, c]`, or `[n, c, h, w]` for "channels_first", of any dtype; `n` may be missing.
        kernel_size: how many elements a window has.
        stride: from one window to the next; without it, `kernel_size`.
        padding: elements, taken to be -inf (the lowest value of integers), before and after each
            dimension; at most half of what a window reaches over.
        dilation: from one element of a window to the next.
        ceil_mode: whether windows at the end may be cut off; they start before the padding there.
        layout: where the channels are.
        name: what the operation prints as.

    Returns:
        The layout and dtype of `x`, for each spatial dimension
        `(size + 2 * padding - dilation * (kernel_size - 1) - 1) / stride + 1` elements, rounded
        down (up with `ceil_mode`).  NaN in a window gives NaN.

    Raises:
        ExprError: another rank, a window larger than the padded input, or numbers out of their
            range.
    """
    how = (kernel_size, stride, padding, dilation)
    space = space_of(x, rank, layout, name)
    sizes = space.parts(x.shape).spots
    windows = _windows(rank, sizes, how, ceil_mode, name)
    taps = tap_axes([each.taps for each in windows])

    def element(at: Place) -> Expr:
        positions = positions_of(windows, at.spots, taps)
        value = read(x, space.join(at._replace(spots=positions)))
        return _folded(max_over, value, taps, guards(positions, sizes))

    return space.compute(
        x, space.parts(x.shape).channel, [each.count for each in windows], element, name
    )


max_pool1d, max_pool2d, max_pool3d = of_ranks(_max_pool, "The largest element of each window")


def _avg_pool(
    rank: int,
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: Layout = "channels_last",
    name: str = "",
) -> Tensor:
    """The mean of each window, as `torch.nn.functional.avg_pool2d`.

    Args:
        x: floats; `[n, h, w, c]`, or `[n, c, h, w]` for "channels_first"; `n` may be missing.
        kernel_size: how many elements a window has.
        stride: from one window to the next; without it, `kernel_size`.
        padding: zeros before and after each dimension; at most half of the kernel.
        ceil_mode: whether windows at the end may be cut off; they start before the padding there.
        count_include_pad: whether the mean counts the padding.  What lies even past that, which
            happens with `ceil_mode`, is never counted.
        layout: where the channels are.
        name: what the operation prints as.

    Returns:
        The layout and dtype of `x`, of sizes as by `max_pool2d`.  Added up in float32 for 16-bit
        floats, and rounded once.

    Raises:
        ExprError: no floats, another rank, a window larger than the padded input, or numbers out of
            their range.
    """
    how = (kernel_size, stride, padding, 1)
    require_float(x, name)
    space = space_of(x, rank, layout, name)
    sizes = space.parts(x.shape).spots
    windows = _windows(rank, sizes, how, ceil_mode, name)
    taps = tap_axes([each.taps for each in windows])

    def element(at: Place) -> Expr:
        positions = positions_of(windows, at.spots, taps)
        value = wide(read(x, space.join(at._replace(spots=positions))))
        total = _folded(sum_over, value, taps, guards(positions, sizes))
        counts = [
            _counted(each, spot, count_include_pad)
            for each, spot in zip(windows, at.spots, strict=True)
        ]
        return build.cast(total / build.cast(_product(counts), total.dtype), x.dtype)

    return space.compute(
        x, space.parts(x.shape).channel, [each.count for each in windows], element, name
    )


avg_pool1d, avg_pool2d, avg_pool3d = of_ranks(_avg_pool, "The mean of each window")


def _folded(
    fold: Callable[..., Expr], value: Expr, taps: Sequence[Expr], conditions: Sequence[Expr]
) -> Expr:
    """`value` folded over those of `taps` that are axes, where the conditions hold."""
    axes: list[Axis] = axes_among(taps)
    if axes:
        return fold(value, axis=axes, where=build.conjunction(conditions) if conditions else None)
    return value


def _counted(along: Window, spot: Expr, with_padding: bool) -> Expr:
    """How many elements of a window along one dimension the mean counts."""
    start = along.position(spot, Const(0, spot.dtype))
    end, size = build.add(start, along.taps), along.size
    if with_padding:
        size = build.add(size, along.before)
    else:
        start = build.maximum(start, 0)
    return reduced(build.sub(build.minimum(end, size), start))


def _product(factors: Sequence[Expr]) -> Expr:
    return list(itertools.accumulate(factors, build.mul))[-1]


def _adaptive_max_pool(
    rank: int,
    x: Tensor,
    output_size: Sizes,
    layout: Layout = "channels_last",
    name: str = "",
) -> Tensor:
    """The largest element of each part, as `torch.nn.functional.adaptive_max_pool2d`.

    Args:
        x: `[n, h, w, c]`, or `[n, c, h, w]` for "channels_first", of any dtype; `n` may be missing.
        output_size: how many parts each dimension has; None keeps its extent.  Part `o` of `p`
            holds the elements `floor(o * extent / p) .. ceil((o + 1) * extent / p) - 1`: neighbours
            share elements where `p` does not divide the extent.
        layout: where the channels are.
        name: what the operation prints as.

    Returns:
        The layout and dtype of `x`, of the given sizes.

    Raises:
        ExprError: another rank, or sizes that are no ints of at least 1.
    """

    def element(value: Expr, taps: Sequence[Expr], where: list[Expr], _: Sequence[Expr]) -> Expr:
        return _folded(max_over, value, taps, where)

    return _adaptive(rank, x, output_size, element, layout, name)


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = of_ranks(
    _adaptive_max_pool, "The largest element of each part"
)


def _adaptive_avg_pool(
    rank: int,
    x: Tensor,
    output_size: Sizes,
    layout: Layout = "channels_last",
    name: str = "",
) -> Tensor:
    """The mean of each part, as `torch.nn.functional.adaptive_avg_pool2d`; with `output_size = 1`
    the mean over all of a channel.

    Arguments, parts and result as for `adaptive_max_pool2d`, but of floats; added up in float32 for
    16-bit floats, and rounded once.

    Raises:
        ExprError: no floats, another rank, or sizes that are no ints of at least 1.
    """
    require_float(x, name)

    def element(value: Expr, taps: Sequence[Expr], where: list[Expr], n: Sequence[Expr]) -> Expr:
        total = _folded(sum_over, wide(value), taps, where)
        return build.cast(total / build.cast(_product(n), total.dtype), x.dtype)

    return _adaptive(rank, x, output_size, element, layout, name)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = of_ranks(
    _adaptive_avg_pool, "The mean of each part"
)


@dataclass(frozen=True, slots=True)
class _Parts:
    """`count` parts of a dimension of `whole * count + rest` elements.

    Part `o` starts at `o * whole + o * rest // count`, which is `o * size // count` without the
    product that might overflow, and ends at the start of the next one, rounded up.
    """

    count: Expr
    whole: Expr
    rest: Expr

    @property
    def even(self) -> bool:
        return isinstance(self.rest, Const) and self.rest.value == 0

    def start(self, part: Expr) -> Expr:
        more = build.floordiv(build.mul(part, self.rest), self.count)
        return build.add(build.mul(part, self.whole), more)

    def length(self, part: Expr) -> Expr:
        if self.even:
            return self.whole
        after = build.add(part, 1)
        more = build.add(build.mul(after, self.rest), build.sub(self.count, 1))
        end = build.add(build.mul(after, self.whole), build.floordiv(more, self.count))
        return build.sub(end, self.start(part))

    def longest(self) -> Expr:
        """The most elements that a part has, or a bound: with a rest, one more and the end of the
        one before."""
        return self.whole if self.even else build.add(self.whole, 2)


def _parts(size: Expr, count: int | None) -> _Parts:
    whole = size if count is None else build.const(count, size.dtype)
    if count is None:
        return _Parts(whole, build.const(1, size.dtype), build.const(0, size.dtype))
    return _Parts(whole, reduced(build.floordiv(size, count)), reduced(build.floormod(size, count)))


def _adaptive(
    rank: int,
    x: Tensor,
    size: Sizes,
    element: Callable[[Expr, Sequence[Expr], list[Expr], Sequence[Expr]], Expr],
    layout: Layout,
    name: str,
) -> Tensor:
    """`element(value, taps, where, counts)` for each part of the spatial dimensions."""
    space = space_of(x, rank, layout, name)
    place = space.parts(x.shape)
    given = [size] * rank if size is None or isinstance(size, int) else list(size)
    kept = numbers([1 if each is None else each for each in given], rank, 1, "output_size", name)
    wanted = [None if each is None else n for each, n in zip(given, kept, strict=True)]
    parts = [_parts(extent, n) for extent, n in zip(place.spots, wanted, strict=True)]
    taps = tap_axes([each.longest() for each in parts])

    def part(at: Place) -> Expr:
        counts = [each.length(spot) for each, spot in zip(parts, at.spots, strict=True)]
        positions = tuple(
            build.add(each.start(spot), tap)
            for each, spot, tap in zip(parts, at.spots, taps, strict=True)
        )
        where = [
            build.lt(tap, count)
            for each, tap, count in zip(parts, taps, counts, strict=True)
            if not each.even
        ]
        return element(read(x, space.join(at._replace(spots=positions))), taps, where, counts)

    return space.compute(x, place.channel, [each.count for each in parts], part, name)
