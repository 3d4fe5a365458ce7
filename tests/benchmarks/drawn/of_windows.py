"""Rows of windows: convolutions of one to three dimensions, pools, upsampling, stencils, pipelines
of images.  Imports `grammar` and `pieces`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grammar import Draw, Value, kind
from pieces import chain

EDGES = {1: 1.0, 2: 0.5, 3: 1 / 3}


def _places(d: Draw, rank: int, work: float, least: int) -> list[int]:
    """Sizes of the image, of which the product is about `work`."""
    side = max(float(least), work ** EDGES[rank])
    return [max(least, d.near(side * d.one_of((0.8, 1.0, 1.25)))) for _ in range(rank)]


def _around(d: Draw, value: Value, channels: int) -> object:
    """What follows a convolution: scale, shift, activation, residual, a pool of everything or of
    windows, statistics of channels, a norm."""
    rank = len(value.shape) - 2
    what = d.whole(0, 9)
    each = f"[:, {', '.join(['None'] * rank)}]"
    if what == 0:
        scale, shift = d.input((channels,)), d.input((channels,))
        value = d.let(f"{value} * {scale}{each} + {shift}{each}", value.shape)
        return f"F.relu({value})"
    if what == 1:
        return f"F.relu({value} + {d.input(value.shape)})"
    if what == 2:
        return f"{value}.mean(dim={tuple(range(2, rank + 2))})"
    if what == 3:
        name = d.one_of(("F.softmax({}, 1)", "torch.tanh({}.amin(1, True))"))
        return name.format(value)
    if what == 4:
        groups = d.one_of([n for n in range(1, 17) if channels % n == 0])
        return f"F.silu(F.group_norm({value}, {groups}))"
    if what == 5 and min(value.shape[2:]) > 1:
        return f"F.relu(F.{d.one_of(('max', 'avg'))}_pool{rank}d({value}, 2))"
    return chain(d, value, 0, 2)


def _convolved(
    d: Draw, rank: int, groups: int = 1, depthwise: bool = False, transposed: bool = False
) -> object:
    """A convolution whose channels, window, stride, dilation and padding are drawn."""
    batch = d.one_of((1, 1, 2, 4, 8))
    window = [d.one_of((1, 2, 3, 3, 3, 5, 7)[: 5 if rank == 3 else 7]) for _ in range(rank)]
    window = [window[0]] * rank if d.chance(0.7) else window
    within, each = (1, d.one_of((1, 1, 2))) if depthwise else _channels(d, groups)
    taps = within * each * groups * math.prod(window)
    stride = d.one_of((1, 1, 1, 2)) if not transposed else d.one_of((1, 2, 2, 3))
    dilation = d.one_of((1, 1, 1, 2))
    places = d.part(d.scale.products) / (batch * taps)
    places = min(places, d.scale.elements / (batch * groups * max(within, each)))
    places *= 1 if transposed else stride**rank
    image = _places(d, rank, places, dilation * (max(window) - 1) + 1)
    padding = d.one_of((0, dilation * (min(window) - 1) // 2))
    weight = (within * groups, each) if transposed else (each * groups, within)
    x, w = d.input((batch, within * groups, *image)), d.input((*weight, *window))
    if rank > 1 and d.chance(0.25):
        fmt = "channels_last" if rank == 2 else "channels_last_3d"
        x = d.let(f"{x}.contiguous(memory_format=torch.{fmt})", x.shape)
    bias = d.input((each * groups,)) if d.chance(0.5) else None
    named = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    name = f"F.conv_transpose{rank}d" if transposed else f"F.conv{rank}d"
    shape = _after(image, window, stride, padding, dilation, transposed)
    value = d.let(f"{name}({x}, {w}, {bias}, {named})", (batch, each * groups, *shape))
    return _around(d, value, each * groups)


def _channels(d: Draw, groups: int) -> tuple[int, int]:
    most = 16 if d.scale.elements < 1 << 12 else 256
    most = max(2, most // groups)
    return d.size(2, most), d.size(2, most)


def _after(
    image: Sequence[int],
    window: Sequence[int],
    stride: int,
    padding: int,
    dilation: int,
    transposed: bool,
) -> list[int]:
    reach = [dilation * (each - 1) for each in window]
    if transposed:
        return [(n - 1) * stride - 2 * padding + r + 1 for n, r in zip(image, reach, strict=True)]
    return [(n + 2 * padding - r - 1) // stride + 1 for n, r in zip(image, reach, strict=True)]


@kind
def convolution(d: Draw) -> object:
    """Of one or two dimensions."""
    return _convolved(d, d.one_of((1, 2, 2)))


@kind
def convolution_3d(d: Draw) -> object:
    """Of three dimensions."""
    return _convolved(d, 3)


@kind
def convolution_grouped(d: Draw) -> object:
    """In groups of channels."""
    return _convolved(d, d.one_of((1, 2, 2, 3)), groups=d.one_of((2, 4, 8, 16)))


@kind
def convolution_depthwise(d: Draw) -> object:
    """Each channel by itself."""
    return _convolved(d, d.one_of((1, 2, 2)), groups=d.size(4, 128), depthwise=True)


@kind
def convolution_transposed(d: Draw) -> object:
    """What reaches each place of a larger image."""
    groups = d.one_of((1, 1, 1, 2, 4))
    return _convolved(d, d.one_of((1, 2, 2, 3)), groups=groups, transposed=True)


@kind
def pool(d: Draw) -> object:
    """Extremes and means of windows."""
    rank = d.whole(1, 3)
    batch, channels = d.one_of((1, 2, 4)), d.size(2, 64)
    places = max(8.0, d.part(d.scale.elements) / (batch * channels))
    window, stride = d.one_of((2, 3, 5)), d.one_of((1, 2, 3))
    x = d.input((batch, channels, *_places(d, rank, places, window + 1)))
    name = d.one_of(("max_pool", "avg_pool"))
    if d.chance(0.2):
        return f"F.adaptive_avg_pool{rank}d({chain(d, x, 0, 1)}, {d.one_of((1, 2, 4))})"
    padding = d.one_of((0, window // 2))
    return f"F.{name}{rank}d({chain(d, x, 0, 1)}, {window}, {stride}, {padding})"


@kind
def upsampling(d: Draw) -> object:
    """An image of more places, of the nearest or between them."""
    batch, channels = d.one_of((1, 2, 4)), d.size(2, 32)
    factor = d.one_of((2, 2, 3))
    places = max(8.0, d.part(d.scale.elements) / (batch * channels * factor**2))
    x = d.input((batch, channels, *_places(d, 2, places, 4)))
    mode = d.one_of(("mode='nearest'", "mode='bilinear', align_corners=False"))
    return f"F.interpolate({chain(d, x, 0, 1)}, scale_factor={factor}, {mode})"


@kind
def stencil(d: Draw) -> object:
    """Neighbours with weights, in any number of dimensions."""
    rank = d.whole(1, 3)
    shape = [max(5, size) for size in d.shape(rank)]
    x = d.input(shape)
    inner = ", ".join(["1:-1"] * rank)
    terms = [f"{x}[{inner}] * 0.5"]
    for axis in range(rank):
        for part in (":-2", "2:"):
            index = ", ".join(part if n == axis else "1:-1" for n in range(rank))
            terms.append(f"{x}[{index}] * {d.one_of(('0.1', '0.15', '-0.25'))}")
    return chain(d, d.let(" + ".join(terms), [size - 2 for size in shape]), 0, 2)


@kind
def image_pipeline(d: Draw) -> object:
    """Blurs, differences and a curve, one after the other."""
    height, width = (max(16, size) for size in d.shape(2))
    d.line(f"y = {d.input((height, width))}")
    for _ in range(d.whole(2, 4)):
        step = d.whole(0, 3)
        if step == 0:
            d.line("y = (y[:-2] + 2 * y[1:-1] + y[2:]) * 0.25")
            d.line("y = (y[:, :-2] + 2 * y[:, 1:-1] + y[:, 2:]) * 0.25")
        elif step == 1:
            d.line("y = torch.abs(y[1:, :-1] - y[:-1, :-1]) + torch.abs(y[:-1, 1:] - y[:-1, :-1])")
        elif step == 2:
            d.line("y = F.avg_pool2d(y[None, None], 3, 1, 1)[0, 0]")
        else:
            d.line("y = torch.clamp(y * 1.5 - 0.25, 0.0, 1.0) ** 2")
    return "y"
