"""TOPI's products, pools and norms, with TOPI's arguments.  What `te.nn` has is that.

Imports `convolutions` and `transform`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal

from tedsl.errors import ExprError
from tedsl.expr.limits import min_value
from tedsl.nn import norms
from tedsl.nn.matmul import matmul
from tedsl.nn.softmax import log_softmax, softmax
from tedsl.tensor import math, reduce
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor
from tedsl.tvm.topi import transform
from tedsl.tvm.topi.convolutions import pad
from tedsl.tvm.topi.shapes import Ints, get_const_int, get_pad_tuple, listed
from tedsl.tvm.topi.tag import ELEMWISE, INJECTIVE
from tedsl.tvm.topi.transform import flatten

__all__ = [
    "adaptive_pool",
    "batch_matmul",
    "batch_norm",
    "bias_add",
    "dense",
    "depth_to_space",
    "fast_softmax",
    "flatten",
    "global_pool",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "lrn",
    "pool1d",
    "pool2d",
    "pool3d",
    "prelu",
    "rms_norm",
    "scale_shift_nchw",
    "scale_shift_nhwc",
    "space_to_depth",
    "upsampling",
]
_OF_ANY: Any = math


def dense(
    data: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out_dtype: Any = None,
    auto_scheduler_rewritten_layout: str = "",
    **_: object,
) -> Tensor:
    """Data times the transpose of weight, and a bias."""
    made = matmul_of(data, weight, out_dtype, False, True)
    return made if bias is None else bias_add(made, bias)


def matmul_of(a: Tensor, b: Tensor, out_dtype: Any, transp_a: bool, transp_b: bool) -> Tensor:
    """The product of matrices, or of many, each transposed before if asked."""
    swapped = [*range(a.ndim - 2), a.ndim - 1, a.ndim - 2]
    left, right = (
        transform.transpose(each, swapped) if turn else each
        for each, turn in ((a, transp_a), (b, transp_b))
    )
    if out_dtype not in (None, ""):
        left, right = math.cast(left, out_dtype), math.cast(right, out_dtype)
    made = matmul(left, right)
    return made if out_dtype in (None, "") else math.cast(made, out_dtype)


def matmul_of_layers(
    tensor_a: Tensor,
    tensor_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: Any = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    auto_scheduler_rewritten_layout: str = "",
    **_: object,
) -> Tensor:
    """`topi.nn.matmul`: the product of matrices, each transposed before if asked, and a bias."""
    made = matmul_of(tensor_a, tensor_b, out_dtype, transpose_a, transpose_b)
    return made if bias is None else bias_add(made, bias)


def batch_matmul(
    tensor_a: Tensor,
    tensor_b: Tensor,
    oshape: object = None,
    out_dtype: Any = None,
    transpose_a: bool = False,
    transpose_b: bool = True,
    **_: object,
) -> Tensor:
    """The products of many matrices, the second ones transposed."""
    if getattr(tensor_a.shape[0], "value", 0) == 1 != getattr(tensor_b.shape[0], "value", 1):
        tensor_a = transform.broadcast_to(tensor_a, (tensor_b.shape[0], *tensor_a.shape[1:]))
    elif getattr(tensor_b.shape[0], "value", 0) == 1:
        tensor_b = transform.broadcast_to(tensor_b, (tensor_a.shape[0], *tensor_b.shape[1:]))
    return matmul_of(tensor_a, tensor_b, out_dtype, transpose_a, transpose_b)


def _along(x: Tensor, axis: int, element: Callable[[Any, Any], Any], name: str) -> Tensor:
    """Each element with its index along a dimension."""
    at = axis % x.ndim
    return compute(x.shape, lambda *i: element(x(*i), i[at]), name=name, tag=ELEMWISE)


def bias_add(data: Tensor, bias: Tensor, axis: int = 1) -> Tensor:
    """A number for each index along a dimension added."""
    return _along(data, axis, lambda v, c: v + bias(c), "T_add")


def prelu(x: Tensor, slope: Tensor, axis: int = 1) -> Tensor:
    """Negative elements times a number of their channel."""
    return _along(x, axis, lambda v, c: math.select(v > 0, v, v * slope(c)), "T_prelu")


def _scale_shift(axis: int) -> Any:
    def scale_shift(Input: Tensor, Scale: Tensor, Shift: Tensor) -> Tensor:
        """Each channel times a number, and another added."""
        return _along(Input, axis, lambda v, c: v * Scale(c) + Shift(c), "ScaleShift")

    return scale_shift


scale_shift_nchw, scale_shift_nhwc = _scale_shift(1), _scale_shift(-1)


def leaky_relu(t: Tensor, alpha: float) -> Tensor:
    """Negative elements times a number."""
    return _along(t, 0, lambda v, _: math.select(v > 0, v, v * alpha), "T_leaky_relu")


def _pool(
    data: Tensor,
    kernel: Ints,
    stride: Ints,
    dilation: Ints,
    padding: Ints,
    pool_type: str,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    count_include_pad: bool = True,
) -> Tensor:
    """The largest element, or the mean, of each window."""
    spots = [d for d in layout if d not in "NC"]
    rank = len(spots)
    sizes = dict(zip(layout, data.shape, strict=True))
    taps, step, wide = (listed(each, rank) for each in (kernel, stride, dilation))
    around = get_pad_tuple(padding, taps)
    count: list[Any] = []
    extra: list[int] = []
    for n, d in enumerate(spots):
        room = sizes[d] + around[n] + around[rank + n] - (taps[n] - 1) * wide[n] - 1
        extra.append(step[n] - 1 if ceil_mode else 0)
        count.append((room + extra[-1]) // step[n] + 1)
    largest = pool_type == "max"
    before = dict(zip(spots, around[:rank], strict=True))
    after = {d: around[rank + n] + extra[n] for n, d in enumerate(spots)}
    empty = min_value(data.dtype) if largest else 0
    each_of = ([before.get(d, 0) for d in layout], [after.get(d, 0) for d in layout])
    padded = pad(data, *each_of, empty, "pad_temp") if any(map(any, each_of)) else data
    axes = [reduce_axis((0, each), f"rv{n}") for n, each in enumerate(taps)]
    folded: Any = reduce.max if largest else reduce.sum

    def total(*i: Any) -> Any:
        at = dict(zip(layout, i, strict=True))
        at |= {d: at[d] * step[n] + axes[n] * wide[n] for n, d in enumerate(spots)}
        value = folded(padded(*(at[d] for d in layout)), axis=axes)
        return math.cast(value, data.dtype)

    shape = [dict(zip(spots, count, strict=True)).get(d, sizes[d]) for d in layout]
    made = compute(
        shape, total, name="pool_max" if largest else "pool_sum", tag=f"pool_{pool_type}"
    )
    if largest:
        return made

    def mean(*i: Any) -> Any:
        many: Any = prod(taps) if count_include_pad else 1
        counted = list[str]() if count_include_pad else spots
        for n, d in enumerate(counted):
            start = i[layout.index(d)] * step[n] - before[d]
            first = _OF_ANY.maximum(0, (-start + wide[n] - 1) // wide[n])
            last = _OF_ANY.minimum(taps[n], (sizes[d] - start + wide[n] - 1) // wide[n])
            many = many * _OF_ANY.maximum(last - first, 1)
        return made(*i) / math.cast(many, data.dtype)

    return compute(shape, mean, name="pool_avg", tag=ELEMWISE)


def _of_layout(usual: str) -> Any:
    """`_pool` with another usual layout."""

    def pool(
        data: Tensor,
        kernel: Ints,
        stride: Ints,
        dilation: Ints,
        padding: Ints,
        pool_type: str,
        ceil_mode: bool = False,
        layout: str = usual,
        count_include_pad: bool = True,
    ) -> Tensor:
        how = (pool_type, ceil_mode, layout, count_include_pad)
        return _pool(data, kernel, stride, dilation, padding, *how)

    pool.__doc__ = 'The largest element, `"max"`, or the mean, `"avg"`, of each window.'
    return pool


pool1d, pool2d, pool3d = _of_layout("NCW"), _pool, _of_layout("NCDHW")


def adaptive_pool(data: Tensor, output_size: Ints, pool_type: str, layout: str = "NCHW") -> Tensor:
    """As many windows as are asked for, which together have all elements."""
    spots = [layout.index(d) for d in layout if d not in "NC"]
    sizes = [get_const_int(data.shape[at]) for at in spots]
    counts = listed(output_size, len(spots))
    widths = [
        max(-(-(n + 1) * size // count) - n * size // count for n in range(count))
        for size, count in zip(sizes, counts, strict=True)
    ]
    axes = [reduce_axis((0, each), f"rv{n}") for n, each in enumerate(widths)]
    largest = pool_type == "max"
    folded: Any = reduce.max if largest else reduce.sum
    empty = min_value(data.dtype) if largest else 0

    def element(*i: Any) -> Any:
        at: list[Any] = list(i)
        inside: list[Any] = []
        many: Any = 1
        for place, size, count, axis in zip(spots, sizes, counts, axes, strict=True):
            begin = i[place] * size // count
            end = ((i[place] + 1) * size + count - 1) // count
            at[place], many = begin + axis, many * (end - begin)
            inside.append(begin + axis < end)
        value = math.if_then_else(reduce.all(*inside), data(*at), math.cast(empty, data.dtype))
        result = math.cast(folded(value, axis=axes), data.dtype)
        return result if largest else result / math.cast(many, data.dtype)

    shape: list[Any] = list(data.shape)
    for place, count in zip(spots, counts, strict=True):
        shape[place] = count
    return compute(shape, element, name="adaptive_pool", tag=f"adaptive_pool_{pool_type}")


def global_pool(data: Tensor, pool_type: str, layout: str = "NCHW") -> Tensor:
    """One window of all."""
    return adaptive_pool(data, [1] * sum(d not in "NC" for d in layout), pool_type, layout)


def batch_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    moving_mean: Tensor,
    moving_var: Tensor,
    axis: int | None = None,
    epsilon: float | None = None,
    center: bool | None = None,
    scale: bool | None = None,
    training: bool | None = None,
    momentum: float | None = None,
    **_: object,
) -> list[Tensor]:
    """The data, each channel normalised by its running mean and variance; and these.  In training
    by those of the batch, to which the running ones move by `momentum`."""
    at = (1 if axis is None else axis) % data.ndim
    eps = 1e-5 if epsilon is None else epsilon
    mean, var = moving_mean, moving_var
    if training:
        mean, var = _moments(data, [n for n in range(data.ndim) if n != at])

    def element(value: Any, c: Any) -> Any:
        found = (value - mean(c)) / math.sqrt(var(c) + eps)
        found = found if scale is False else found * gamma(c)
        return found if center is False else found + beta(c)

    made = _along(data, at, element, "T_batch_norm")
    if not training:
        return [made, moving_mean, moving_var]
    share = 0.1 if momentum is None else momentum

    def moved(old: Tensor, new: Tensor) -> Tensor:
        def element(c: Any) -> Any:
            return old(c) * (1 - share) + new(c) * share

        return compute(old.shape, element, name="T_moving")

    return [made, moved(moving_mean, mean), moved(moving_var, var)]


def rms_norm(data: Tensor, weight: Tensor, axis: Ints, epsilon: float = 1e-5) -> Tensor:
    """Divided by the root of the mean square over dimensions, times `weight` of these."""
    over = sorted({at % data.ndim for at in ([axis] if isinstance(axis, int) else axis)})
    square = _mean(data, over, lambda value, _: value * value, "square")
    kept = [n for n in range(data.ndim) if n not in over]

    def element(*i: Any) -> Any:
        found = data(*i) * _OF_ANY.rsqrt(square(*(i[n] for n in kept)) + epsilon)
        return math.cast(found * weight(*(i[n] for n in over)), data.dtype)

    return compute(data.shape, element, name="T_rms_norm", tag=INJECTIVE)


def layer_norm(
    data: Tensor, gamma: Tensor, beta: Tensor | None, axis: Ints, epsilon: float = 1e-5
) -> Tensor:
    """Normalised by mean and variance over dimensions."""
    over = sorted({at % data.ndim for at in ([axis] if isinstance(axis, int) else axis)})
    return _normalised(data, over, over, gamma, beta, epsilon)


def instance_norm(
    data: Tensor, gamma: Tensor, beta: Tensor, channel_axis: int, axis: Ints, epsilon: float = 1e-5
) -> Tensor:
    """Each channel of each image normalised by its mean and variance."""
    over = sorted({at % data.ndim for at in ([axis] if isinstance(axis, int) else axis)})
    return _normalised(data, over, [channel_axis % data.ndim], gamma, beta, epsilon)


def group_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    channel_axis: int = 1,
    axes: Sequence[int] = (2, 3),
    epsilon: float = 1e-5,
) -> Tensor:
    """`te.nn.group_norm`, of channels in the second dimension."""
    return norms.group_norm(data, num_groups, gamma, beta, epsilon, layout="channels_first")


def _mean(
    x: Tensor, over: Sequence[int], value: Callable[[Any, Sequence[Any]], Any], name: str
) -> Tensor:
    """The mean over dimensions of `value` of each element and its indices along the others."""
    kept = [n for n in range(x.ndim) if n not in over]
    size = prod(x.shape[n] for n in over)
    axes = {n: reduce_axis((0, x.shape[n]), f"k{n}") for n in over}

    def element(*i: Any) -> Any:
        at = dict(zip(kept, i, strict=True)) | axes
        total = reduce.sum(value(x(*(at[n] for n in range(x.ndim))), i), axis=list(axes.values()))
        return total / math.cast(size, total.dtype)

    return compute([x.shape[n] for n in kept], element, name=name)


def _moments(x: Tensor, over: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The mean and the variance over dimensions."""
    mean = _mean(x, over, lambda value, _: value, "mean")
    var = _mean(x, over, lambda value, i: (value - mean(*i)) * (value - mean(*i)), "var")
    return mean, var


def _normalised(
    x: Tensor, over: list[int], own: list[int], gamma: Any, beta: Any, epsilon: float
) -> Tensor:
    kept = [n for n in range(x.ndim) if n not in over]
    mean, var = _moments(x, over)

    def at_kept(tensor: Tensor, i: Any) -> Any:
        return tensor(*(i[n] for n in kept))

    def element(*i: Any) -> Any:
        found = (x(*i) - at_kept(mean, i)) * _OF_ANY.rsqrt(at_kept(var, i) + epsilon)
        found = found * gamma(*(i[n] for n in own))
        found = found if beta is None else found + beta(*(i[n] for n in own))
        return math.cast(found, x.dtype)

    return compute(x.shape, element, name="T_norm", tag=INJECTIVE)


def lrn(
    data: Tensor,
    size: int,
    axis: int = 1,
    alpha: float = 0.0001,
    beta: float = 0.75,
    bias: float = 2,
) -> Tensor:
    """Each element divided by a power of the squares of its neighbours along a dimension."""
    k = reduce_axis((0, size), "rxs")
    around = [size // 2 if n == axis % data.ndim else 0 for n in range(data.ndim)]
    padded = pad(data, around, name="pad_data")

    def squares(*i: Any) -> Any:
        value = padded(*(at + k if n else at for at, n in zip(i, around, strict=True)))
        return reduce.sum(value * value, axis=k)

    total = compute(data.shape, squares, name="sqr_sum")
    return compute(
        data.shape, lambda *i: data(*i) / math.power(bias + alpha * total(*i) / size, beta), "T_lrn"
    )


def upsampling(
    data: Tensor,
    scale_h: int,
    scale_w: int,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
    output_shape: object = None,
) -> Tensor:
    """Each element so often in both directions."""
    if method != "nearest_neighbor":
        raise ExprError(
            f"the method is {method!r}",
            subject="topi.nn.upsampling",
            facts=[("allowed", "'nearest_neighbor'")],
            hint="write te.compute over the four neighbours",
        )
    tall = transform.repeat(data, scale_h, layout.index("H"))
    return transform.repeat(tall, scale_w, layout.index("W"))


def _blocks(layout: str, data: Tensor) -> list[Any]:
    if sorted(layout) != sorted("NCHW"):
        raise ExprError(
            f"the layout is {layout!r}", subject="topi.nn", hint="it is 'NCHW' or 'NHWC'"
        )
    order = [layout.index(d) for d in "NCHW"]
    return [data.shape[n] for n in order]


def depth_to_space(
    data: Tensor, block_size: int, layout: str = "NCHW", mode: Literal["DCR", "CDR"] = "DCR"
) -> Tensor:
    """Channels moved into blocks of positions."""
    n, c, h, w = _blocks(layout, data)
    b, own = block_size, c // (block_size * block_size)

    def element(*i: Any) -> Any:
        at = dict(zip(layout, i, strict=True))
        part = at["H"] % b * b + at["W"] % b
        channel = part * own + at["C"] if mode == "DCR" else at["C"] * b * b + part
        read = {"N": at["N"], "C": channel, "H": at["H"] // b, "W": at["W"] // b}
        return data(*(read[d] for d in layout))

    sizes = {"N": n, "C": own, "H": h * b, "W": w * b}
    return compute([sizes[d] for d in layout], element, name="depth_to_space", tag=INJECTIVE)


def space_to_depth(data: Tensor, block_size: int, layout: str = "NCHW") -> Tensor:
    """Blocks of positions moved into channels."""
    n, c, h, w = _blocks(layout, data)
    b = block_size

    def element(*i: Any) -> Any:
        at = dict(zip(layout, i, strict=True))
        part = at["C"] // c
        read = {"C": at["C"] % c, "H": at["H"] * b + part // b, "W": at["W"] * b + part % b}
        return data(*({"N": at["N"], **read}[d] for d in layout))

    sizes = {"N": n, "C": c * b * b, "H": h // b, "W": w // b}
    return compute([sizes[d] for d in layout], element, name="space_to_depth", tag=INJECTIVE)


fast_softmax = softmax


def softmax_of(x: Tensor, axis: int = -1) -> Tensor:
    """`te.nn.softmax`."""
    return softmax(x, axis)
