"""Tutorial 7: convolution, scale, relu: a product in disguise, with a border.

    python tutorials/07_conv_scale_relu.py                   # CPU, under a minute
    python tutorials/07_conv_scale_relu.py --target cuda     # an NVIDIA GPU and PyTorch

The layer of every residual network: pad the image, convolve, scale and shift each channel (the
batch norm, at inference), cut off below zero.  Four stages.  Two questions decide its speed.  What
are the rows and columns of the product that is hidden in a convolution?  And where is the padding,
which is a stage of its own in the definition, but costs a copy of the image if it is one when run?
"""

# %% Setup
from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from lesson import Lesson, installed, title

import tedsl as te
from tedsl.detect import cpu_here

lesson = Lesson.begin(__doc__)
DTYPE, F32 = lesson.dtype, "float32"
IMAGES = lesson.size(8, 64, 1)
SIZE = lesson.size(28, 56, 8)
CHANNELS = lesson.size(64, 128, 16)
FILTERS = lesson.size(64, 128, 32)
SIDE, PAD = 3, 1
torch: Any = importlib.import_module("torch") if lesson.measured and installed("torch") else None

here = cpu_here()
WIDE = 2 * here.lanes(4)  # channels of the result side by side
HIGH = max(4, 3 * here.vector_registers // 8)  # pixels of a block in registers


# %% The definition, in the layout images, rows, columns, channels
def layer() -> te.Tensor:
    """relu(scale * conv(pad(x), w) + shift)."""
    x = te.placeholder((IMAGES, SIZE, SIZE, CHANNELS), DTYPE, name="x")
    w = te.placeholder((SIDE, SIDE, CHANNELS, FILTERS), DTYPE, name="w")
    scale = te.placeholder((FILTERS,), F32, name="scale")
    shift = te.placeholder((FILTERS,), F32, name="shift")
    outer = SIZE + 2 * PAD

    def bordered(n: te.Axis, i: te.Axis, j: te.Axis, c: te.Axis) -> te.Expr:
        inside = (i >= PAD) & (i < SIZE + PAD) & (j >= PAD) & (j < SIZE + PAD)
        return te.if_then_else(inside, x[n, i - PAD, j - PAD, c], te.const(0, DTYPE))

    padded = te.compute((IMAGES, outer, outer, CHANNELS), bordered, name="padded")
    di, dj = te.reduce_axis((0, SIDE), name="di"), te.reduce_axis((0, SIDE), name="dj")
    c = te.reduce_axis((0, CHANNELS), name="c")
    shape = (IMAGES, SIZE, SIZE, FILTERS)
    conv = te.compute(
        shape,
        lambda n, i, j, f: te.sum(
            padded[n, i + di, j + dj, c].astype(F32) * w[di, dj, c, f].astype(F32),
            axis=[di, dj, c],
        ),
        name="conv",
    )
    scaled = te.compute(
        shape, lambda n, i, j, f: conv[n, i, j, f] * scale[f] + shift[f], name="scaled"
    )
    return te.compute(
        shape, lambda n, i, j, f: te.max(scaled[n, i, j, f], 0.0).astype(DTYPE), name="relu"
    )


def layer_numpy(x: Any, w: Any, scale: Any, shift: Any) -> Any:
    """The same in NumPy: all windows side by side, and one product (BLAS) over them."""
    padded = np.pad(x, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (SIDE, SIDE), axis=(1, 2))
    conv = np.tensordot(windows, w, axes=((3, 4, 5), (2, 0, 1)))  # n i j c di dj . di dj c f
    return np.maximum(conv * scale + shift, 0)


def layer_torch(x: Any, w: Any, scale: Any, shift: Any) -> Any:
    """The same in PyTorch, with the layout that its libraries like: channels last."""
    kernel = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    conv = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), kernel, padding=PAD)
    return (conv.permute(0, 2, 3, 1) * scale + shift).relu().to(x.dtype)


# %% The product inside
# Each pixel of the result is a row: its window of 3 x 3 x CHANNELS numbers.  Each filter is a
# column.  So a block of the result is some pixels by some filters, and what tutorial 5 did with i,
# j and k is done here with pixels, f and (di, dj, c).  No window is ever copied: the block reads x.
# On the CPU the pixels of a block are neighbours in a row of the image.  On a GPU a block has 64
# pixels, more than a row of a small image: images, rows and columns are fused into one axis, and
# `transform_layout` gives the running sums that same shape, so that they are a block of two axes.
def blocks(s: te.Schedule, out: te.Stage, sums: te.Stage) -> te.Axis:
    """Pixels by filters, the sums of a block in registers.  Returns the loop over what a task or
    program has."""
    n, i, j, f = out.op.axis
    if lesson.gpu:
        tile, pixel = out.split(out.fuse(n, i, j), factor=64)
        group, filters = out.split(f, factor=min(128, FILTERS))
        out.reorder(group, tile, pixel, filters)
        out.bind(group, "blockIdx.y")
        out.bind(tile, "blockIdx.x")
        out.vectorize(pixel)
        out.vectorize(filters)
        sums.transform_layout(lambda n, i, j, f: ((n * SIZE + i) * SIZE + j, f))
        step, inner = sums.split(sums.fuse(*sums.op.reduce_axis), factor=min(64, CHANNELS))
        sums.vectorize(inner)
        sums.pipeline(step, num_stages=3)
        sums.compute_at(out, tile)
        out.launch(num_warps=4)
        return tile
    block, pixel = out.split(j, factor=HIGH)
    panel, lanes = out.split(f, factor=WIDE)
    out.reorder(n, i, panel, block, pixel, lanes)
    out.vectorize(pixel)
    out.vectorize(lanes)
    sums.compute_at(out, block)
    di, dj, c = sums.op.reduce_axis
    own = sums.op.axis
    step, few = sums.split(c, factor=4)
    sums.reorder(di, dj, step, few, *own)
    sums.unroll(few)
    sums.vectorize(own[2])
    sums.vectorize(own[3])
    out.parallel(out.fuse(n, i))
    return out.leaf_iter_vars[0]


def alone(stage: te.Stage) -> None:
    """A pointwise stage in a kernel of its own."""
    axes = stage.op.axis
    if lesson.gpu:
        block, lanes = stage.split(stage.fuse(*axes), factor=1024)
        stage.bind(block, "blockIdx.x")
    else:
        lanes = axes[-1]
        stage.parallel(stage.fuse(axes[0], axes[1]))
    stage.vectorize(lanes)


# %% Four schedules: the same blocks, other places for the padding and the epilogue
def unfused(output: te.Tensor) -> te.Schedule:
    """Four passes over images in memory."""
    s = te.create_schedule(output)
    for name in ("relu", "scaled", "padded"):
        alone(s[name])
    blocks(s, s["conv"], s[s.cache_write(s["conv"], "local")])
    return s


def by_hand(output: te.Tensor, padding: str) -> te.Schedule:
    """Scale and relu behind the sums; the padding at root, inlined, or for a row of the image."""
    s = te.create_schedule(output)
    s["scaled"].compute_inline()
    if padding == "inlined":
        s["padded"].compute_inline()
    task = blocks(s, s["relu"], s["conv"])
    if padding == "at root":
        alone(s["padded"])
    elif padding == "at a row":
        s["padded"].compute_at(s["relu"], task)  # the three rows that a row of the result reads
        s["padded"].vectorize(s["padded"].op.axis[3])
    return s


# %% Inlined, the padding is a mask on every load.  Its own buffer is plain loads, and a copy.
# A GPU masks loads anyway, at the edge of a tile; and a tile in registers cannot be read at a
# shift, so there the padding is at root or inlined.  On the CPU a branch or mask in the inner loop
# is dear, but the compiler knows where the border is: rows that touch it, and rows that do not.
relu = layer()
PLACES = ("at root", "inlined") if lesson.gpu else ("at root", "inlined", "at a row")
title("the loop nest")
print(by_hand(relu, PLACES[-1]))
kernels = {"unfused": lesson.build(unfused(relu))}
for place in PLACES:
    kernels[f"padded {place}"] = lesson.build(by_hand(relu, place))
kernels["default rules"] = lesson.build(relu)
kernels |= lesson.search(relu)

# %% Measured
title("measured")
arrays = [
    lesson.normal(IMAGES, SIZE, SIZE, CHANNELS, dtype=DTYPE),
    lesson.normal(SIDE, SIDE, CHANNELS, FILTERS, dtype=DTYPE, scale=(9 * CHANNELS) ** -0.5),
    1 + lesson.normal(FILTERS, scale=0.1),
    lesson.normal(FILTERS, scale=0.1),
]
heading = f"conv 3x3, {IMAGES}x{SIZE}x{SIZE}x{CHANNELS} -> {FILTERS} {DTYPE}"
result = lesson.compare(heading, kernels, arrays, layer_numpy, layer_torch)
result.print(rates="Gflop/s")
result.draw("07_conv")
if result:
    places = {place: result.speedup(f"padded {place}") for place in PLACES}
    first = max(places, key=lambda place: places[place])
    print(f"Fused, and the padding {first}, it is {places[first]:.2f}x as fast as unfused.")
    saved = kernels["unfused"].explain().nbytes / kernels[f"padded {first}"].explain().nbytes
    density = result.least_flops / result.least_bytes
    print(f"The bytes went down {saved:.2f}x.  The time follows them only in part: with "
          f"{density:.0f} operations")  # fmt: skip
    print("for each byte of input and output most of it is arithmetic, as in tutorial 5.")
    print("NumPy copies every window before its product: "
          f"{SIDE * SIDE} times the image.")  # fmt: skip

# %% What the rules did
# They look at the loop nest, find a multiply-accumulate whose rows are pixels, and write the same
# kind of schedule.  `as_python` prints it as code to start from.
title("the rules' schedule")
print(kernels["default rules"].schedule.as_python())

# %% Exercises (solutions/07_conv_scale_relu.py)
# 1. Stride 2: write it in the definition.  Do the schedules above still work?
# 2. A depthwise convolution: no sum over channels, so no product.  What should the lanes be?
# 3. Two layers: relu(conv(relu(conv(x)))).  What does it cost to compute the first inside the
#    second, at a block of rows, and does it pay?
lesson.done()
