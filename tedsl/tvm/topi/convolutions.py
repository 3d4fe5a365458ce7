"""TOPI's convolutions, what pads them, and their transposes.

Layouts are texts of letters, of which capitals are dimensions: N images, C channels, O and I those
of a kernel, the others positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tedsl.errors import ExprError
from tedsl.tensor import math, reduce
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor
from tedsl.tvm.topi.shapes import Ints, Pads, get_const_int, get_pad_tuple, listed
from tedsl.tvm.topi.tag import INJECTIVE

__all__ = [
    "conv1d",
    "conv1d_ncw",
    "conv1d_nwc",
    "conv1d_transpose_ncw",
    "conv2d",
    "conv2d_hwcn",
    "conv2d_nchw",
    "conv2d_nhwc",
    "conv2d_transpose_nchw",
    "conv3d_ncdhw",
    "conv3d_ndhwc",
    "conv3d_transpose_ncdhw",
    "depthwise_conv2d_nchw",
    "depthwise_conv2d_nhwc",
    "dilate",
    "group_conv2d_nchw",
    "group_conv2d_nhwc",
    "group_conv2d_transpose_nchw",
    "mirror_pad",
    "pad",
]


def pad(
    data: Tensor,
    pad_before: Sequence[Any],
    pad_after: Sequence[Any] | None = None,
    pad_value: Any = 0.0,
    name: str = "PadInput",
) -> Tensor:
    """A constant around the elements: so many before and after, in each dimension."""
    after = pad_before if pad_after is None else pad_after
    shape = [a + n + b for a, n, b in zip(pad_before, data.shape, after, strict=True)]

    def element(*indices: Any) -> Any:
        at = [i - a for i, a in zip(indices, pad_before, strict=True)]
        inside = [
            condition
            for i, n, a, b in zip(at, data.shape, pad_before, after, strict=True)
            for condition in ((i >= 0,) if a != 0 else ()) + ((i < n,) if b != 0 else ())
        ]
        value = data(*at)
        empty = math.cast(pad_value, data.dtype)
        return math.if_then_else(reduce.all(*inside), value, empty) if inside else value

    return compute(shape, element, name=name, tag=f"{INJECTIVE},pad")


def mirror_pad(
    data: Tensor,
    pad_before: Sequence[int],
    pad_after: Sequence[int] | None = None,
    mode: str = "SYMMETRIC",
    name: str = "MirrorPadInput",
) -> Tensor:
    """The elements at the borders around, as in a mirror: twice at its edge, or by `"REFLECT"`
    once."""
    after = pad_before if pad_after is None else pad_after
    shape = [a + n + b for a, n, b in zip(pad_before, data.shape, after, strict=True)]
    edge = int(mode == "SYMMETRIC")

    def mirrored(i: Any, n: Any) -> Any:
        i = math.select(i < 0, -i - edge, i)
        return math.select(i >= n, 2 * n - i - 2 + edge, i)

    def element(*i: Any) -> Any:
        rows = zip(i, pad_before, data.shape, strict=True)
        return data(*(mirrored(each - before, n) for each, before, n in rows))

    return compute(shape, element, name=name, tag=INJECTIVE)


def dilate(
    data: Tensor, strides: Sequence[int], dilation_value: Any = 0.0, name: str = "DilatedInput"
) -> Tensor:
    """The elements with constants between them, so that neighbours are `strides` apart."""
    shape = [(n - 1) * stride + 1 for n, stride in zip(data.shape, strides, strict=True)]

    def element(*i: Any) -> Any:
        pairs = [(at, stride) for at, stride in zip(i, strides, strict=True) if stride != 1]
        value = data(*(at // stride for at, stride in zip(i, strides, strict=True)))
        hit = [at % stride == 0 for at, stride in pairs]
        empty = math.cast(dilation_value, data.dtype)
        return math.if_then_else(reduce.all(*hit), value, empty) if hit else value

    return compute(shape, element, name=name, tag=f"{INJECTIVE},dilate")


def _conv(
    data: Tensor,
    kernel: Tensor,
    strides: Ints,
    padding: Pads,
    dilation: Ints,
    groups: Any,
    layouts: tuple[str, str],
    out_dtype: Any,
) -> Tensor:
    """A convolution of layouts like `("NCHW", "OIHW")`.  The output channels of a depthwise one are
    dimensions `C` and `M` of its kernel."""
    places, taps_of = layouts
    spots = [each for each in places if each not in "NC"]
    size = dict(zip(taps_of, kernel.shape, strict=True))
    step = dict(zip(spots, listed(strides, len(spots)), strict=True))
    wide = dict(zip(spots, listed(dilation, len(spots)), strict=True))
    reach = [(size[d] - 1) * wide[d] + 1 for d in spots]
    around = get_pad_tuple(padding, reach)
    before = dict(zip(spots, around, strict=False))
    after = dict(zip(spots, around[len(spots) :], strict=True))
    each_of = ([before.get(d, 0) for d in places], [after.get(d, 0) for d in places])
    padded = pad(data, *each_of, name="pad_temp") if any(around) else data
    inputs = dict(zip(places, padded.shape, strict=True))
    depthwise = "M" in taps_of
    channels = size["C"] * size["M"] if depthwise else size["O"]
    count = {d: (inputs[d] - size[d] * wide[d] + wide[d] - 1) // step[d] + 1 for d in spots}
    taps = {d: reduce_axis((0, size[d]), f"r{d.lower()}") for d in spots}
    inner = None if depthwise else reduce_axis((0, size["I"]), "rc")
    wanted = data.dtype if out_dtype in (None, "") else out_dtype

    def element(*i: Any) -> Any:
        at = dict(zip(places, i, strict=True))
        read = {d: at[d] * step[d] + taps[d] * wide[d] for d in spots} | {"N": at["N"]}
        weight: dict[str, Any] = dict(taps)
        if depthwise:
            weight |= {"C": at["C"] // size["M"], "M": at["C"] % size["M"]}
            read["C"] = weight["C"]
        else:
            first = 0 if groups == 1 else at["C"] // (channels // groups) * size["I"]
            weight |= {"O": at["C"], "I": inner}
            read["C"] = first + cast("Any", inner)
        value = math.cast(padded(*(read[d] for d in places)), wanted)
        factor = math.cast(kernel(*(weight[d] for d in taps_of)), wanted)
        axes = [*([] if inner is None else [inner]), *taps.values()]
        return math.cast(reduce.sum(value * factor, axis=axes), wanted)

    shape = [{**inputs, "C": channels, **count}[d] for d in places]
    kind = "depthwise_conv" if depthwise else "group_conv" if groups != 1 else "conv"
    tag = f"{kind}{len(spots)}d_{places.lower()}"
    names = [{"N": "nn", "C": "ff"}.get(d, d.lower() * 2) for d in places]
    return compute(shape, element, name=f"{kind}{len(spots)}d", tag=tag, varargs_names=names)


def _of_layouts(data_layout: str, kernel_layout: str) -> Any:
    """A convolution with these layouts, as TOPI names it."""

    def conv(
        data: Tensor,
        kernel: Tensor,
        stride: Ints = 1,
        padding: Pads = 0,
        dilation: Ints = 1,
        out_dtype: Any = None,
        groups: Any = 1,
        **_: object,
    ) -> Tensor:
        layouts = (data_layout, kernel_layout)
        return _conv(data, kernel, stride, padding, dilation, groups, layouts, out_dtype)

    conv.__doc__ = f"A convolution of `{data_layout}` with kernels of `{kernel_layout}`."
    return conv


conv1d_ncw, conv1d_nwc = _of_layouts("NCW", "OIW"), _of_layouts("NWC", "WIO")
conv2d_nchw, conv2d_nhwc = _of_layouts("NCHW", "OIHW"), _of_layouts("NHWC", "HWIO")
conv2d_hwcn = _of_layouts("HWCN", "HWIO")
depthwise_conv2d_nchw = _of_layouts("NCHW", "CMHW")
depthwise_conv2d_nhwc = _of_layouts("NHWC", "HWCM")


def _grouped(data_layout: str, kernel_layout: str) -> Any:
    """The same with the groups before the type, as TOPI has them there."""
    conv = _of_layouts(data_layout, kernel_layout)

    def grouped(
        data: Tensor,
        kernel: Tensor,
        stride: Ints = 1,
        padding: Pads = 0,
        dilation: Ints = 1,
        groups: Any = 1,
        out_dtype: Any = None,
        **_: object,
    ) -> Any:
        return conv(data, kernel, stride, padding, dilation, out_dtype, groups)

    grouped.__doc__ = conv.__doc__
    return grouped


group_conv2d_nchw, group_conv2d_nhwc = _grouped("NCHW", "OIHW"), _grouped("NHWC", "HWIO")
conv3d_ncdhw, conv3d_ndhwc = _grouped("NCDHW", "OIDHW"), _grouped("NDHWC", "DHWIO")
_KERNELS = {"NCW": "OIW", "NWC": "WIO", "NCHW": "OIHW", "NHWC": "HWIO", "HWCN": "HWIO"}


def _by_layout(rank: int, default: str) -> Any:
    def conv(
        data: Tensor,
        kernel: Tensor,
        strides: Ints = 1,
        padding: Pads = "VALID",
        dilation: Ints = 1,
        data_layout: str = default,
        kernel_layout: str = "",
        out_dtype: Any = None,
    ) -> Tensor:
        """A convolution of the layout `data_layout`."""
        if data_layout not in _KERNELS or len(data_layout) != rank + 2:
            raise ExprError(
                f"the layout is {data_layout!r}",
                subject=f"topi.nn.conv{rank}d",
                facts=[("allowed", ", ".join(x for x in _KERNELS if len(x) == rank + 2))],
                hint="transpose before, or write te.compute",
            )
        chosen = (data_layout, kernel_layout or _KERNELS[data_layout])
        return _conv(data, kernel, strides, padding, dilation, 1, chosen, out_dtype)

    return conv


conv1d, conv2d = _by_layout(1, "NCW"), _by_layout(2, "NCHW")


def _transposed(
    data: Tensor,
    kernel: Tensor,
    strides: Ints,
    padding: Pads,
    out_dtype: Any,
    output_padding: Ints = 0,
    groups: int = 1,
) -> Tensor:
    """The transpose of a convolution, of channels first and a kernel of inputs, outputs, taps: the
    input with zeros between its elements, convolved with the kernel turned around."""
    rank = data.ndim - 2
    step, more = listed(strides, rank), listed(output_padding, rank)
    taps = [get_const_int(n) for n in kernel.shape[2:]]
    around = get_pad_tuple(padding, taps)
    wide = dilate(data, [1, 1, *step])
    before = [k - 1 - p for k, p in zip(taps, around[:rank], strict=True)]
    after = [k - 1 - p + m for k, p, m in zip(taps, around[rank:], more, strict=True)]
    inner = kernel.shape[0] // groups
    outputs = kernel.shape[1]

    def turned(o: Any, i: Any, *at: Any) -> Any:
        back = [k - 1 - a for k, a in zip(taps, at, strict=True)]
        return kernel(i + o // outputs * inner, o % outputs, *back)

    weight = compute([outputs * groups, inner, *taps], turned, name="kernel", tag=INJECTIVE)
    layouts = ("NC" + "DHW"[-rank:], "OI" + "DHW"[-rank:])
    return _conv(wide, weight, 1, [*before, *after], 1, groups, layouts, out_dtype)


conv1d_transpose_ncw = conv2d_transpose_nchw = conv3d_transpose_ncdhw = _transposed


def group_conv2d_transpose_nchw(
    data: Tensor,
    kernel: Tensor,
    stride: Ints,
    padding: Pads,
    out_dtype: Any,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    """The transpose of a convolution in groups."""
    return _transposed(data, kernel, stride, padding, out_dtype, output_padding, groups)
