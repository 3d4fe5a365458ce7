"""Convolutions and their transposes, of one to three spatial dimensions, written once.

    conv:            y[o, f] = sum(t, q) x[o * stride + t * dilation - padding, q] * w[t, q, f]
    conv_transpose:  y[o, f] = sum(t, q) x[(o + padding - t * dilation) / stride, q] * w[t, q, f],
                     over the taps t for which that is a whole number

Both gather.  What lies in the padding is a choice, `if_then_else(inside, x, 0)`, and no `where=` of
the sum: a sum of products without a condition is a contraction for the rules of both targets, which
tile it.  A `where=` leaves a term out even where the weight is infinite, which no multiplier of
matrices does; such a sum is folded element by element.  The padded input of a convolution is a
stage of its own: a schedule inlines it (on a GPU: one `tl.dot` for all taps, with the condition as
the mask of a load), or stores it and reads it without a condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.nn.arguments import require_equal, require_float, require_shape, wide
from tedsl.nn.operator import of_ranks
from tedsl.nn.windows import (
    Ints,
    Layout,
    Padding,
    Place,
    Space,
    axes_among,
    guards,
    is_one,
    numbers,
    positions_of,
    reduced,
    space_of,
    tap_axes,
    window,
)
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.reduce import sum as sum_over
from tedsl.tensor.tensor import Tensor, read

Pad = Ints | Literal["same", "valid"]


class _Kernel(NamedTuple):
    """A weight and how it is applied.

    `inputs` and `outputs` are its extents of channels: a convolution has the inputs of one group
    and all outputs, a transpose all inputs and the outputs of one group.
    """

    space: Space
    weight: Tensor
    transposed: bool
    taps: tuple[Expr, ...]
    inputs: Expr
    outputs: Expr
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def at(self, taps: Sequence[Expr], inner: Expr, outer: Expr) -> Expr:
        """The weight of a tap from the channel `inner` of the input to `outer` of the result."""
        if self.space.layout == "channels_last":
            return wide(read(self.weight, (*taps, inner, outer)))
        pair = (inner, outer) if self.transposed else (outer, inner)
        return wide(read(self.weight, (*pair, *taps)))


def _conv(
    rank: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Pad = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "channels_last",
    name: str = "",
) -> Tensor:
    """The convolution over two spatial dimensions, as `torch.nn.functional.conv2d`: the kernel is
    not flipped.

    Args:
        x: floats; "channels_last": `[n, h, w, c]`, "channels_first": `[n, c, h, w]`; `n` may be
            missing.
        weight: "channels_last": `[kh, kw, c / groups, f]`; "channels_first": PyTorch's
            `[f, c / groups, kh, kw]`.
        bias: `[f]`, or None.
        stride: from one window to the next.
        padding: zeros before and after each dimension; "valid" is 0, "same" as many as give a
            result of the size of `x` (the odd one after; the stride must be 1).
        dilation: from one tap to the next.
        groups: parts of the channels that are convolved by themselves; `groups = c` is the
            depthwise convolution.
        layout: where the channels are, in `x`, `weight` and the result.
        name: what the operation prints as.

    Returns:
        The layout and dtype of `x`, with `f` channels and for each spatial dimension
        `(size + 2 * padding - dilation * (k - 1) - 1) // stride + 1` elements.  Accumulated (in
        `<name>.red`), and the bias added, in float32 (float64 for float64), then rounded once.

    Raises:
        ExprError: ranks or extents that do not match, a kernel larger than the padded input, no
            floats, or numbers out of their range.
    """
    space = space_of(x, rank, layout, name)
    kernel = _kernel(x, weight, space, False, (stride, dilation), groups, name)
    return _convolve(x, kernel, bias, padding, name)


conv1d, conv2d, conv3d = of_ranks(_conv, "The convolution")


def _conv_transpose(
    rank: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    layout: Layout = "channels_last",
    name: str = "",
) -> Tensor:
    """The transposed convolution over two spatial dimensions, as
    `torch.nn.functional.conv_transpose2d`: what the gradient of `conv2d` by its input computes.

    Args:
        x: floats; `[n, h, w, c]` or `[n, c, h, w]`, by `layout`; `n` may be missing.
        weight: "channels_last": `[kh, kw, c, f / groups]`; "channels_first": PyTorch's
            `[c, f / groups, kh, kw]`.
        bias: `[f]`, or None.
        stride: from the window of one element of `x` to that of the next.
        padding: how many elements are cut off before and after each dimension of the result.
        output_padding: how many more are kept after; less than the stride or the dilation.
        groups: parts of the channels that are convolved by themselves.
        dilation: from one tap to the next.
        layout: where the channels are, in `x`, `weight` and the result.
        name: what the operation prints as.

    Returns:
        The layout and dtype of `x`, with `f` channels and for each spatial dimension
        `(size - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1` elements;
        accumulated as by `conv2d`.

    Raises:
        ExprError: ranks or extents that do not match, a result of negative size, no floats, or
            numbers out of their range.
    """
    space = space_of(x, rank, layout, name)
    kernel = _kernel(x, weight, space, True, (stride, dilation), groups, name)
    return _convolve_transposed(x, kernel, bias, padding, output_padding, name)


conv_transpose1d, conv_transpose2d, conv_transpose3d = of_ranks(
    _conv_transpose, "The transposed convolution"
)


def _kernel(
    x: Tensor,
    weight: Tensor,
    space: Space,
    transposed: bool,
    steps: tuple[Ints, Ints],
    groups: int,
    name: str,
) -> _Kernel:
    """The kernel, with what does not depend on the padding checked; `steps` are the stride and the
    dilation."""
    require_float(x, name)
    require_float(weight, name)
    require_shape(weight, (None,) * (space.rank + 2), name)
    (count,) = numbers(groups, 1, 1, "groups", name)
    if space.layout == "channels_last":
        *taps, inputs, outputs = weight.shape
    elif transposed:
        inputs, outputs, *taps = weight.shape
    else:
        outputs, inputs, *taps = weight.shape
    stride = numbers(steps[0], space.rank, 1, "stride", name)
    dilation = numbers(steps[1], space.rank, 1, "dilation", name)
    channels, wanted = space.parts(x.shape).channel, inputs
    if not transposed:
        wanted = build.mul(inputs, count)
    require_equal(
        channels, wanted, f"channels of {x.name}, and those that {weight.name} takes,", name
    )
    _require_whole(channels if transposed else outputs, count, name)
    return _Kernel(space, weight, transposed, tuple(taps), inputs, outputs, stride, dilation, count)


def _require_whole(channels: Expr, groups: int, subject: str) -> None:
    """Refuse channels that are not known to be a multiple of `groups`."""
    if groups > 1 and not (isinstance(channels, Const) and int(channels.value) % groups == 0):
        raise ExprError(
            f"{channels} channels are not known to be {groups} groups of equal size",
            subject=subject,
            hint="groups must divide the channels, which must be a known number then",
        )


def _same_padding(kernel: _Kernel, name: str) -> list[Padding]:
    if any(each != 1 for each in kernel.stride):
        raise ExprError(
            f'padding is "same" and the stride {kernel.stride}',
            subject=name,
            hint="give the padding in numbers; a result of the same size has the stride 1",
        )
    totals = [
        build.mul(build.sub(taps, 1), step)
        for taps, step in zip(kernel.taps, kernel.dilation, strict=True)
    ]
    halves = [build.floordiv(total, 2) for total in totals]
    return [Padding(half, build.sub(t, half)) for t, half in zip(totals, halves, strict=True)]


def _paddings(kernel: _Kernel, padding: Pad, name: str) -> list[Padding]:
    rank = kernel.space.rank
    if padding == "same":
        return _same_padding(kernel, name)
    if isinstance(padding, str):
        if padding != "valid":
            raise ExprError(
                f"there is no padding {padding!r}",
                subject=name,
                hint='give "same", "valid", an int, or one int for each spatial dimension',
            )
        padding = 0
    return [Padding(each, each) for each in numbers(padding, rank, 0, "padding", name)]


def _guarded(x: Tensor, place: Place, space: Space, conditions: Sequence[Expr]) -> Expr:
    """The element at `place`, and 0 without reading it where a condition does not hold."""
    value = read(x, space.join(place))
    inside = build.conjunction(conditions)
    return wide(build.if_then_else(inside, value, Const(0.0, value.dtype)))


def _total(terms: Expr, axes: list[Axis], bias: Tensor | None, channel: Expr, x: Tensor) -> Expr:
    total: Expr = sum_over(terms, axis=axes) if axes else terms
    if bias is not None:
        total = total + wide(read(bias, (channel,)))
    return build.cast(total, x.dtype)


def _channel_axis(extent: Expr) -> Expr:
    """The axis over the input channels of a group; 0 for a single one."""
    return Const(0, extent.dtype) if is_one(extent) else reduce_axis((0, extent), name="ci")


def _in_group(kernel: _Kernel, channel: Expr, each: Expr, inner: Expr, inputs: Expr) -> Expr:
    """The channel of the input that is `inner` of the group to which the output `channel` belongs,
    when a group has `each` outputs and `inputs` inputs."""
    if kernel.groups == 1:
        return inner
    return build.add(build.mul(build.floordiv(channel, each), inputs), inner)


def _convolve(x: Tensor, kernel: _Kernel, bias: Tensor | None, padding: Pad, name: str) -> Tensor:
    space = kernel.space
    if bias is not None:
        require_shape(bias, (kernel.outputs,), name)
    sizes, paddings = space.parts(x.shape).spots, _paddings(kernel, padding, name)
    dimensions = zip(sizes, kernel.taps, kernel.stride, paddings, kernel.dilation, strict=True)
    none = build.as_expr(0)
    windows = [replace(window(*each, name), before=none) for each in dimensions]
    source = _padded(x, space, paddings, name)
    taps, inner = tap_axes(kernel.taps), _channel_axis(kernel.inputs)
    each = build.floordiv(kernel.outputs, kernel.groups)

    def element(at: Place) -> Expr:
        batch, channel, spots = at
        positions = positions_of(windows, spots, taps)
        group = _in_group(kernel, channel, each, inner, kernel.inputs)
        value = wide(read(source, space.join(Place(batch, group, positions))))
        # The taps outside and the channels inside: a piece of the folded axes then lies in one
        # piece of memory, at an offset that does not depend on where in the piece it is.
        axes = axes_among((*taps, inner))
        return _total(value * kernel.at(taps, inner, channel), axes, bias, channel, x)

    return space.compute(x, kernel.outputs, [each.count for each in windows], element, name)


def _padded(x: Tensor, space: Space, paddings: Sequence[Padding], name: str) -> Tensor:
    """`x` with zeros around it; itself where there are none."""
    ends = [build.as_expr(end) for pair in paddings for end in pair]
    if all(isinstance(end, Const) and end.value == 0 for end in ends):
        return x
    place = space.parts(x.shape)
    pairs = list(zip(place.spots, paddings, strict=True))
    counts = [reduced(build.add(build.add(n, pad.before), pad.after)) for n, pad in pairs]

    def element(at: Place) -> Expr:
        spots = zip(at.spots, paddings, strict=True)
        positions = tuple(build.sub(spot, pad.before) for spot, pad in spots)
        inside = build.conjunction(guards(positions, place.spots))
        value = read(x, space.join(Place(at.batch, at.channel, positions)))
        return build.if_then_else(inside, value, Const(0.0, value.dtype))

    return space.compute(x, place.channel, counts, element, f"{name}.padded")


def _transposed_sizes(
    kernel: _Kernel, sizes: Sequence[Expr], paddings: Sequence[int], more: Sequence[int], name: str
) -> tuple[Expr, ...]:
    """The extents of the result of a transpose."""
    found: list[Expr] = []
    for size, taps, stride, step, padding, extra in zip(
        sizes, kernel.taps, kernel.stride, kernel.dilation, paddings, more, strict=True
    ):
        if extra >= max(stride, step):
            raise ExprError(
                f"output_padding is {extra} for a stride of {stride} and a dilation of {step}",
                subject=name,
                hint="output_padding must be less than the larger of the two",
            )
        spread = build.mul(build.sub(size, 1), stride)
        reach = build.mul(build.sub(taps, 1), step)
        total = reduced(build.add(build.add(spread, reach), extra + 1 - 2 * padding))
        if isinstance(total, Const) and total.value < 0:
            raise ExprError(
                f"padding of {padding} leaves {total} of the elements that {size} make",
                subject=name,
                hint="make the padding smaller",
            )
        found.append(total)
    return tuple(found)


def _convolve_transposed(
    x: Tensor,
    kernel: _Kernel,
    bias: Tensor | None,
    padding: Ints,
    output_padding: Ints,
    name: str,
) -> Tensor:
    space, rank, each = kernel.space, kernel.space.rank, kernel.outputs
    outputs = build.mul(each, kernel.groups)
    if bias is not None:
        require_shape(bias, (outputs,), name)
    place = space.parts(x.shape)
    paddings = numbers(padding, rank, 0, "padding", name)
    more = numbers(output_padding, rank, 0, "output_padding", name)
    counts = _transposed_sizes(kernel, place.spots, paddings, more, name)
    inputs = build.floordiv(kernel.inputs, kernel.groups)
    taps, inner = tap_axes(kernel.taps), _channel_axis(inputs)

    def element(at: Place) -> Expr:
        batch, channel, spots = at
        spread = [
            build.sub(build.add(spot, before), build.mul(tap, step))
            for spot, before, tap, step in zip(spots, paddings, taps, kernel.dilation, strict=True)
        ]
        positions, conditions = _sources(spread, kernel.stride, place.spots)
        source = _in_group(kernel, channel, each, inner, inputs)
        value = _guarded(x, Place(batch, source, positions), space, conditions)
        target = channel if kernel.groups == 1 else build.floormod(channel, each)
        axes = axes_among((*taps, inner))
        return _total(value * kernel.at(taps, source, target), axes, bias, channel, x)

    return space.compute(x, outputs, counts, element, name)


def _sources(
    spread: Sequence[Expr], strides: Sequence[int], sizes: Sequence[Expr]
) -> tuple[tuple[Expr, ...], list[Expr]]:
    """The elements of the input that lie at `spread` positions `stride` apart, and the conditions
    under which there is one."""
    ends = [build.mul(size, stride) for size, stride in zip(sizes, strides, strict=True)]
    conditions = guards(spread, ends)
    conditions += [
        build.eq(build.floormod(at, stride), 0)
        for at, stride in zip(spread, strides, strict=True)
        if stride > 1
    ]
    positions = tuple(
        build.floordiv(at, stride) for at, stride in zip(spread, strides, strict=True)
    )
    return positions, conditions
