"""TOPI's module `testing`: schedules by target, and by NumPy what its tests compare with.

Images have channels first unless a name says otherwise; kernels are `[outputs, inputs, taps...]`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tedsl.slips import no_attribute
from tedsl.target import Target
from tedsl.tvm.topi import convolutions, shapes

__all__ = [
    "adaptive_pool",
    "batch_matmul",
    "batch_norm",
    "conv1d_ncw_python",
    "conv2d_hwcn_python",
    "conv2d_nchw_python",
    "conv2d_nhwc_python",
    "conv2d_transpose_nchw_python",
    "conv3d_ncdhw_python",
    "conv3d_ndhwc_python",
    "dense",
    "depth_to_space_python",
    "depthwise_conv2d_python_nchw",
    "depthwise_conv2d_python_nhwc",
    "dilate_python",
    "dispatch",
    "gather_nd_python",
    "gather_python",
    "get_conv2d_nchw_implement",
    "get_injective_schedule",
    "layer_norm_python",
    "log_softmax_python",
    "lrn_python",
    "matrix_set_diag",
    "one_hot",
    "poolnd_python",
    "sequence_mask",
    "softmax_python",
    "space_to_depth_python",
    "strided_set_python",
    "strided_slice_python",
    "upsampling_python",
]
Array = Any
_NUMPY: Any = np


def get_injective_schedule(target: Any) -> Callable[..., Any]:
    """The default rules of a target, as a function of what is to be computed."""

    def scheduled(outs: Any) -> Any:
        return importlib.import_module("tedsl.build").schedule_for(outs, target)

    return scheduled


def dispatch(target: Any, dispatch_map: Mapping[str, Any]) -> Any:
    """What a table has for a target, else for `"generic"`."""
    kind = str(Target.parse(target).kind)
    keys = ("cuda", "gpu") if kind == "cuda" else ("cpu", "x86", "llvm")
    return (
        next((dispatch_map[key] for key in keys if key in dispatch_map), None)
        or dispatch_map["generic"]
    )


def get_conv2d_nchw_implement(target: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The convolution with channels first, and its schedule."""
    return convolutions.conv2d_nchw, get_injective_schedule(target)


def _around(padding: Any, taps: Sequence[int]) -> list[tuple[int, int]]:
    flat = shapes.get_pad_tuple(padding, taps)
    return list(zip(flat[: len(taps)], flat[len(taps) :], strict=True))


def _windows(a: Array, taps: Sequence[int], step: Any, wide: Any = 1) -> Array:
    """Windows over the last dimensions, which follow as dimensions."""
    rank = len(taps)
    steps, gaps = shapes.listed(step, rank), shapes.listed(wide, rank)
    reach = tuple((k - 1) * gap + 1 for k, gap in zip(taps, gaps, strict=True))
    found = np.lib.stride_tricks.sliding_window_view(a, reach, tuple(range(-rank, 0)))
    outer = tuple(slice(None, None, each) for each in steps)
    return found[(..., *outer, *(slice(None, None, gap) for gap in gaps))]


def _conv(a: Array, w: Array, stride: Any, padding: Any, groups: int = 1, dilation: Any = 1) -> Any:
    taps, rank = w.shape[2:], w.ndim - 2
    gaps = shapes.listed(dilation, rank)
    reach = [(k - 1) * gap + 1 for k, gap in zip(taps, gaps, strict=True)]
    padded = np.pad(a, [(0, 0), (0, 0), *_around(padding, reach)])
    kind = np.result_type(a, w)
    axes = [1, *range(2 + rank, 2 + 2 * rank)]
    parts: list[Array] = []
    for x, k in zip(np.split(padded, groups, 1), np.split(w, groups), strict=True):
        made = np.tensordot(_windows(x, taps, stride, dilation), k, (axes, list(range(1, k.ndim))))
        parts.append(np.moveaxis(made, -1, 1))
    return np.concatenate(parts, 1).astype(kind)


def conv1d_ncw_python(a: Array, w: Array, stride: Any, padding: Any, dilation: Any = 1) -> Array:
    """A convolution over one dimension."""
    return _conv(a, w, stride, padding, 1, dilation)


def conv2d_nchw_python(a: Array, w: Array, stride: Any, padding: Any, groups: int = 1) -> Array:
    """A convolution over two."""
    return _conv(a, w, stride, padding, groups)


conv3d_ncdhw_python = conv2d_nchw_python


def conv2d_nhwc_python(a: Array, w: Array, stride: Any, padding: Any, groups: int = 1) -> Array:
    """A convolution of `[n, h, w, c]` with `[h, w, inputs, outputs]`."""
    made = _conv(a.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), stride, padding, groups)
    return made.transpose(0, 2, 3, 1)


def conv2d_hwcn_python(a: Array, w: Array, stride: Any, padding: Any) -> Array:
    """A convolution of `[h, w, c, n]` with `[h, w, inputs, outputs]`."""
    made = _conv(a.transpose(3, 2, 0, 1), w.transpose(3, 2, 0, 1), stride, padding)
    return made.transpose(2, 3, 1, 0)


def conv3d_ndhwc_python(a: Array, w: Array, stride: Any, padding: Any, groups: int = 1) -> Array:
    """A convolution of `[n, d, h, w, c]` with `[d, h, w, inputs, outputs]`."""
    made = _conv(np.moveaxis(a, -1, 1), w.transpose(4, 3, 0, 1, 2), stride, padding, groups)
    return np.moveaxis(made, 1, -1)


def depthwise_conv2d_python_nchw(a: Array, w: Array, stride: Any, padding: Any) -> Array:
    """Each channel by itself, with kernels `[channels, each, h, w]`."""
    return _conv(a, w.reshape(-1, 1, *w.shape[2:]), stride, padding, a.shape[1])


def depthwise_conv2d_python_nhwc(a: Array, w: Array, stride: Any, padding: Any) -> Array:
    """Each channel of `[n, h, w, c]` by itself, with kernels `[h, w, channels, each]`."""
    kernel = w.transpose(2, 3, 0, 1)
    made = depthwise_conv2d_python_nchw(a.transpose(0, 3, 1, 2), kernel, stride, padding)
    return made.transpose(0, 2, 3, 1)


def conv2d_transpose_nchw_python(
    a: Array, w: Array, stride: Any, padding: Any, output_padding: Any = 0
) -> Array:
    """The transpose of a convolution, with kernels `[inputs, outputs, h, w]`."""
    rank = w.ndim - 2
    more = shapes.listed(output_padding, rank)
    around = _around(padding, w.shape[2:])
    wide = dilate_python(a, [1, 1, *shapes.listed(stride, rank)])
    sides = [
        (k - 1 - p, k - 1 - q + m) for k, (p, q), m in zip(w.shape[2:], around, more, strict=True)
    ]
    flipped = np.flip(w, tuple(range(2, w.ndim))).swapaxes(0, 1)
    return _conv(np.pad(wide, [(0, 0), (0, 0), *sides]), flipped, 1, 0)


def dilate_python(
    input_np: Array, strides: Sequence[int], dilation_value: Any = 0.0, out_dtype: Any = None
) -> Array:
    """The elements with a constant between them."""
    shape = [(n - 1) * step + 1 for n, step in zip(input_np.shape, strides, strict=True)]
    made = np.full(shape, dilation_value, out_dtype or input_np.dtype)
    made[tuple(slice(None, None, step) for step in strides)] = input_np
    return made


def poolnd_python(
    np_data: Array,
    kernel: Any,
    strides: Any,
    dilation: Any,
    padding_before: Any,
    padding_after: Any,
    pool_type: str,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Array:
    """The largest element, or the mean, of each window over all dimensions but two."""
    last = layout.endswith("C")
    a = np.moveaxis(np_data, -1, 1) if last else np_data
    rank = a.ndim - 2
    step = shapes.listed(strides, rank)
    sides = [
        (p, q + (n - 1 if ceil_mode else 0))
        for p, q, n in zip(padding_before, padding_after, step, strict=True)
    ]
    around, taps = [(0, 0), (0, 0), *sides], shapes.listed(kernel, rank)
    over = tuple(range(-rank, 0))
    if pool_type == "max":
        low = np.finfo(a.dtype).min if a.dtype.kind == "f" else np.iinfo(a.dtype).min
        padded = np.pad(a, around, constant_values=low)
        made = _windows(padded, taps, strides, dilation).max(over)
    else:
        total = _windows(np.pad(a, around), taps, strides, dilation).sum(over)
        inside = _windows(np.pad(np.ones_like(a), around), taps, strides, dilation).sum(over)
        made = total / (np.prod(taps) if count_include_pad else np.maximum(inside, 1))
    return (np.moveaxis(made, 1, -1) if last else made).astype(dtype)


def adaptive_pool(np_data: Array, out_size: Any, pool_type: str, layout: str = "NCHW") -> Array:
    """As many windows as are asked for, which together have all elements."""
    last = layout.endswith("C")
    a = np.moveaxis(np_data, -1, 1) if last else np_data
    sizes, folded = a.shape[2:], {"max": np.max, "avg": np.mean}[pool_type]
    counts = shapes.listed(out_size, len(sizes))
    made = np.empty((*a.shape[:2], *counts), a.dtype)
    for at in product(*map(range, counts)):
        rows = zip(at, sizes, counts, strict=True)
        part = tuple(slice(i * n // c, -(-(i + 1) * n // c)) for i, n, c in rows)
        over: Any = tuple(range(2, a.ndim))
        made[(slice(None), slice(None), *at)] = folded(a[(..., *part)], over)
    return np.moveaxis(made, 1, -1) if last else made


def softmax_python(a_np: Array, axis: int = 1) -> Array:
    """The softmax along a dimension."""
    e = np.exp(a_np - a_np.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax_python(a_np: Array, axis: int = 1) -> Array:
    """Its logarithm."""
    shifted = a_np - a_np.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def lrn_python(a_np: Array, size: int, axis: int, bias: float, alpha: float, beta: float) -> Array:
    """Each element divided by a power of the squares of its neighbours."""
    half = [(size // 2,) * 2 if n == axis else (0, 0) for n in range(a_np.ndim)]
    squares = np.moveaxis(np.pad(a_np**2, half), axis, -1)
    total = np.moveaxis(_windows(squares, [size], 1).sum(-1), -1, axis)
    return a_np / (bias + alpha * total / size) ** beta


def batch_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    moving_mean: Array,
    moving_var: Array,
    axis: int,
    epsilon: float,
    center: bool,
    scale: bool,
    *_: object,
) -> list[Array]:
    """Each channel normalised by its running mean and variance; and these."""
    shape = [-1 if n == axis % x.ndim else 1 for n in range(x.ndim)]
    mean, var = moving_mean.reshape(shape), moving_var.reshape(shape)
    made = (x - mean) / np.sqrt(var + epsilon)
    made = made * gamma.reshape(shape) if scale else made
    return [made + beta.reshape(shape) if center else made, moving_mean, moving_var]


def layer_norm_python(
    data: Array, gamma: Array, beta: Array, axis: Any, epsilon: float = 1e-5
) -> Array:
    """Normalised by mean and variance over dimensions."""
    over: Any = axis if isinstance(axis, int) else tuple(axis)
    mean = data.mean(over, keepdims=True)
    made = (data - mean) / np.sqrt(data.var(over, keepdims=True) + epsilon)
    return made * gamma + (0 if beta is None else beta)


def batch_matmul(
    x: Array, y: Array, out_dtype: Any = None, trans_x: bool = False, trans_y: bool = True
) -> Array:
    """The products of many matrices, the second ones transposed."""
    left, right = (np.swapaxes(a, 1, 2) if t else a for a, t in ((x, trans_x), (y, trans_y)))
    kind = out_dtype or x.dtype
    return np.matmul(left.astype(kind), right.astype(kind))


def dense(
    x: Array,
    y: Array,
    bias: Array = None,
    use_bias: bool = False,
    use_relu: bool = False,
    out_dtype: Any = None,
) -> Array:
    """Data times the transpose of weight."""
    kind = out_dtype or x.dtype
    made = x.astype(kind) @ y.T.astype(kind) + (bias if use_bias else 0)
    return np.maximum(made, 0) if use_relu else made


def strided_slice_python(
    data: Array,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] = (),
    slice_mode: str = "end",
    axes: Sequence[int] | None = None,
) -> Array:
    """Elements from `begin` to before `end`, in steps."""
    parts = [slice(None)] * data.ndim
    steps = [1] * len(begin) if slice_mode == "size" else [*strides, *[1] * len(begin)]
    for n, at in enumerate(axes or range(len(begin))):
        low, high = begin[n], end[n] if n < len(end) else None
        if slice_mode == "size" and high is not None:
            high = None if high < 0 else low + high
        parts[at] = slice(low, high, steps[n])
    return data[tuple(parts)]


def strided_set_python(
    data: Array, v: Array, begin: Sequence[int], end: Sequence[int], strides: Any = None
) -> Array:
    """With `v` in place of what lies from `begin` to before `end`, in steps."""
    steps = list(strides or [])
    steps += [1] * (len(begin) - len(steps))
    made = data.copy()
    made[tuple(map(slice, begin, end, steps))] = v
    return made


def matrix_set_diag(
    input_np: Array, diagonal: Array, k: int | Sequence[int] = 0, align: str = "RIGHT_LEFT"
) -> Array:
    """A matrix, or many, with other diagonals: one, or from the lowest to the highest."""
    low, high = (k, k) if isinstance(k, int) else (k[0], k[-1])
    above, below = (word == "RIGHT" for word in align.split("_"))
    made = input_np.copy()
    rows, columns = made.shape[-2:]
    for number in range(low, high + 1):
        count = min(rows + min(number, 0), columns - max(number, 0))
        own = diagonal if low == high else diagonal[..., high - number, :]
        gap = own.shape[-1] - count if low < high and (above if number >= 0 else below) else 0
        for n in range(count):
            made[..., n - min(number, 0), n + max(number, 0)] = own[..., gap + n]
    return made


def gather_python(data: Array, axis: int, indices: Array) -> Array:
    """The elements that indices number along a dimension."""
    return np.take_along_axis(data, indices, axis)


def gather_nd_python(a_np: Array, indices_np: Array) -> Array:
    """The elements that columns of indices number."""
    return a_np[tuple(indices_np.astype(int))]


def sequence_mask(data: Array, valid_length: Array, mask_value: Any, axis: int) -> Array:
    """Another value from a length on that each column has."""
    places = _NUMPY.arange(data.shape[axis]).reshape(-1, 1)
    inside = places < valid_length if axis == 0 else (places < valid_length).T
    return _NUMPY.where(_NUMPY.expand_dims(inside, tuple(range(2, data.ndim))), data, mask_value)


def one_hot(
    indices: Array, on_value: Any, off_value: Any, depth: int, axis: int, dtype: Any
) -> Array:
    """One value at the place along a new dimension that each index numbers."""
    made = _NUMPY.where(_NUMPY.equal.outer(indices, _NUMPY.arange(depth)), on_value, off_value)
    return _NUMPY.moveaxis(made, -1, axis).astype(dtype)


def upsampling_python(data: Array, scale: Sequence[int], layout: str = "NCHW") -> Array:
    """Each element so often in both directions."""
    tall = data.repeat(scale[0], layout.index("H"))
    return tall.repeat(scale[1], layout.index("W"))


def depth_to_space_python(data: Array, block_size: int, mode: str = "DCR") -> Array:
    """Channels moved into blocks of positions."""
    n, c, h, w = data.shape
    b, own = block_size, c // block_size**2
    if mode == "DCR":
        moved = data.reshape(n, b, b, own, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = data.reshape(n, own, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return moved.reshape(n, own, h * b, w * b)


def space_to_depth_python(data: Array, block_size: int) -> Array:
    """Blocks of positions moved into channels."""
    n, c, h, w = data.shape
    b = block_size
    moved = data.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return moved.reshape(n, c * b * b, h // b, w // b)


def __getattr__(name: str) -> Any:
    """`get_elemwise_schedule`, `get_reduce_schedule` and their like are one."""
    if name.startswith("get_") and name.endswith("_schedule"):
        return get_injective_schedule
    if name.startswith("_"):
        raise AttributeError(f"module 'tedsl.tvm.topi.testing' has no attribute {name!r}")
    raise no_attribute("topi.testing", name, lambda: __all__, otherwise="write it with NumPy")
