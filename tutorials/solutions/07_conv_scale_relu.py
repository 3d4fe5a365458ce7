"""Solutions to the exercises of tutorial 7, on the CPU.

python tutorials/solutions/07_conv_scale_relu.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import tedsl as te
from tedsl.detect import cpu_here
from tedsl.runtime.timing import compare

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lesson import check, title

random = np.random.default_rng(0)
WIDE = 2 * cpu_here().lanes(4)
HIGH = max(4, 3 * cpu_here().vector_registers // 8)
SIDE = 3


def normal(*shape: int, scale: float = 1.0) -> Any:
    """Random float32."""
    return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def conv(
    x: te.Tensor, size: int, channels: int, filters: int, name: str, stride: int = 1
) -> te.Tensor:
    """A 3 x 3 convolution of an image (size x size x channels) that has its border already."""
    w = te.placeholder((SIDE, SIDE, channels, filters), "float32", name=f"w_{name}")
    di, dj = te.reduce_axis((0, SIDE), name="di"), te.reduce_axis((0, SIDE), name="dj")
    c = te.reduce_axis((0, channels), name="c")
    side = (size - SIDE) // stride + 1
    return te.compute(
        (side, side, filters),
        lambda i, j, f: te.sum(
            x[i * stride + di, j * stride + dj, c] * w[di, dj, c, f], axis=[di, dj, c]
        ),
        name=name,
    )


def conv_numpy(x: Any, w: Any, stride: int = 1) -> Any:
    """The same in NumPy."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (SIDE, SIDE), axis=(0, 1))
    return np.tensordot(windows[::stride, ::stride], w, axes=((2, 3, 4), (2, 0, 1)))


def blocks(out: te.Stage, sums: te.Stage) -> None:
    """Neighbouring pixels by filters, the sums in registers."""
    _, j, f = out.op.axis
    block, pixel = out.split(j, factor=HIGH)
    panel, lanes = out.split(f, factor=WIDE)
    out.reorder(panel, block, pixel, lanes)
    out.vectorize(pixel)
    out.vectorize(lanes)
    sums.compute_at(out, block)
    own = sums.op.axis
    sums.reorder(*sums.op.reduce_axis, *own)
    sums.vectorize(own[1])
    sums.vectorize(own[2])


# %% 1. Stride 2
# Only the definition says it: x[2 i + di, 2 j + dj].  The schedule speaks of pixels of the result,
# and its lanes are filters, so nothing in it changes.
title("exercise 1: stride 2")
SIZE, CHANNELS, FILTERS = 33, 16, 32
x = te.placeholder((SIZE, SIZE, CHANNELS), "float32", name="x")
image = normal(SIZE, SIZE, CHANNELS)
weight = normal(SIDE, SIDE, CHANNELS, FILTERS, scale=0.1)
for stride in (1, 2):
    y = conv(x, SIZE, CHANNELS, FILTERS, "y", stride)
    s = te.create_schedule(y)
    blocks(s[y], s[s.cache_write(y, "local")])
    kernel = te.build(s, "cpu")
    check(f"stride {stride}", kernel(image, weight), conv_numpy(image, weight, stride), 1e-4)
    print(f"stride {stride}: agrees with NumPy")

# %% 2. Depthwise: each channel by itself
# There is no sum over channels, so a number of x is used for one filter only, 9 times: little to do
# for each byte, and no block that shares operands.  Channels lie side by side, in x, in w and in
# the result: they are the lanes.  Lanes along j would be strided by CHANNELS in all three.
title("exercise 2: depthwise")
w = te.placeholder((SIDE, SIDE, CHANNELS), "float32", name="w")
di, dj = te.reduce_axis((0, SIDE), name="di"), te.reduce_axis((0, SIDE), name="dj")
side = SIZE - SIDE + 1
deep = te.compute(
    (side, side, CHANNELS),
    lambda i, j, c: te.sum(x[i + di, j + dj, c] * w[di, dj, c], axis=[di, dj]),
    name="deep",
)


def lanes_along(which: int) -> te.Schedule:
    """Lanes along one axis of the result; the window is unrolled, sums in registers."""
    s = te.create_schedule(deep)
    sums = s[s.cache_write(deep, "local")]
    axes = s[deep].op.axis
    lane = axes[which]
    s[deep].reorder(*(a for a in axes if a is not lane), lane)
    s[deep].vectorize(lane)
    at = s[deep].leaf_iter_vars[1]
    sums.compute_at(s[deep], at)
    own = sums.op.axis
    sums.reorder(*sums.op.reduce_axis, *(a for a in own if a is not own[which]), own[which])
    for axis in sums.op.reduce_axis:
        sums.unroll(axis)
    sums.vectorize(own[which])
    return s


filters = normal(SIDE, SIDE, CHANNELS)
windows = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE), axis=(0, 1))
wanted = np.einsum("ijcab,abc->ijc", windows, filters)
kernels = {
    "lanes along j": te.build(lanes_along(1), "cpu"),
    "lanes along channels": te.build(lanes_along(2), "cpu"),
}
for name, kernel in kernels.items():
    check(name, kernel(image, filters), wanted, 1e-4)
for name, stats in compare(
    {n: (lambda k=k: k(image, filters)) for n, k in kernels.items()}, repeats=10
).items():
    print(f"{name}: {stats}")

# %% 3. Two layers, the first inside the second
# A block of TALL rows of the second layer reads TALL + 2 rows of the first: 2 rows are computed
# again by the next block.  With one row to a block the first layer is computed three times; with
# many, hardly more than once, but its buffer grows.  Against it: the first layer, written to memory
# and read back.  Convolutions do much work for each byte, so that is cheap, and repeating is dear.
title("exercise 3: two layers")
LARGE = 64
x = te.placeholder((LARGE, LARGE, CHANNELS), "float32", name="x")
c1 = conv(x, LARGE, CHANNELS, CHANNELS, "c1")
first = te.compute(c1.shape, lambda i, j, f: te.max(c1[i, j, f], 0.0), name="first")
c2 = conv(first, LARGE - 2, CHANNELS, CHANNELS, "c2")
second = te.compute(c2.shape, lambda i, j, f: te.max(c2[i, j, f], 0.0), name="second")


def two_layers(tall: int | None) -> te.Schedule:
    """The first layer at root, or at blocks of `tall` rows of the second."""
    s = te.create_schedule(second)
    blocks(s[first], s[c1])
    blocks(s[second], s[c2])  # c2 is inside `second` now, and so are its reads of `first`
    if tall is None:
        s[second].parallel(s[second].op.axis[0])
        s[first].parallel(s[first].op.axis[0])
        return s
    block, _ = s[second].split(s[second].op.axis[0], factor=tall)
    s[first].compute_at(s[second], block)
    s[second].parallel(block)
    return s


image = normal(LARGE, LARGE, CHANNELS)
w1, w2 = (normal(SIDE, SIDE, CHANNELS, CHANNELS, scale=0.1) for _ in range(2))
wanted = np.maximum(conv_numpy(np.maximum(conv_numpy(image, w1), 0), w2), 0)
kernels = {"first at root": te.build(two_layers(None), "cpu")}
for tall in (1, 4, 15):
    kernels[f"at blocks of {tall} rows"] = te.build(two_layers(tall), "cpu")
for name, kernel in kernels.items():
    check(name, kernel(image, w1, w2), wanted, 1e-4)
least = kernels["first at root"].explain().flops
times = compare({n: (lambda k=k: k(image, w1, w2)) for n, k in kernels.items()}, repeats=7)
for name, stats in times.items():
    work = kernels[name].explain().flops / least
    print(f"{name}: {stats}, {work:.2f}x the operations")
