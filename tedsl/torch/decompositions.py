"""Which operators PyTorch writes in terms of others before the importer sees them.

The table is PyTorch's own for its core operators, and those of its norms, batch statistics and
losses, which are reductions and pointwise functions.  What draws random numbers stays: its bits
are those of PyTorch's generator.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tedsl.torch.importer.registry import REGISTRY
from tedsl.torch.lib import aten, load
from tedsl.torch.unrounded import RoundedOnce, has_kernel

_prims: Any = load("torch._prims_common")

_MORE = (
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update_functional",
    "batch_norm_backward",
    "cudnn_batch_norm",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "linear_backward",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_linear1d",
    "affine_grid_generator",
    "adaptive_max_pool2d",
    "count_nonzero",
    "dist",
    "ldexp",
    "trace",
    "isin",
    "logit",
    "linalg_cross",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "expand_copy",
    "log_sigmoid_forward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
)
_RANDOM = ("native_dropout", "dropout", "rrelu_with_noise", "bernoulli", "multinomial", "rand_like")
_KEPT = (
    "copysign",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def _polygamma_(x: Any, n: int) -> Any:
    return x.copy_(aten.polygamma(n, x))


def _bias_apart(x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """A convolution on a GPU, and its bias as an addition, which joins what follows: to cuDNN it is
    one more pass over the result."""
    if bias is None or x.device.type != "cuda":
        return NotImplemented
    sizes = [bias.shape[0], *[1] * (weight.dim() - 2)]
    return aten.convolution.default(x, weight, None, *rest) + bias.view(sizes)


def _bias_apart_backward(gradient: Any, *given: Any) -> Any:
    """The gradients of a convolution on a GPU, that of its bias as a sum, which joins what is
    before."""
    *rest, mask = given
    if not mask[2] or gradient.device.type != "cuda":
        return NotImplemented
    others = aten.convolution_backward.default(gradient, *rest, [*mask[:2], False])
    return *others[:2], gradient.sum([d for d in range(gradient.dim()) if d != 1])


def _channel_shuffle(x: Any, groups: int) -> Any:
    """Which lies as its argument does; PyTorch's own decomposition forgets that."""
    lead, channels, *rest = x.shape
    moved = x.reshape(lead, groups, channels // groups, *rest).transpose(1, 2).reshape(x.shape)
    return moved.contiguous(memory_format=_prims.suggest_memory_format(x))


def _within(x: Any, indices: Any) -> list[Any]:
    """Places within their dimensions, those that count from the end too."""
    return [
        None if each is None else each.clamp(-x.size(d), x.size(d) - 1)
        for d, each in enumerate(indices)
    ]


def _masked_index(x: Any, mask: Any, indices: Any, fill: Any) -> Any:
    """As the kernel says it: PyTorch's own decomposition takes the first place for every one that
    counts from the end."""
    if x.numel() == 0:
        return NotImplemented
    return aten._unsafe_index(x, _within(x, indices)).masked_fill(~mask, fill)


def _masked_index_put(x: Any, mask: Any, indices: Any, values: Any) -> Any:
    """As `_masked_index`; what is masked adds nothing."""
    if x.numel() == 0:
        return NotImplemented
    added = values.masked_fill(~mask, 0)
    return aten._unsafe_index_put(x, _within(x, indices), added, accumulate=True)


IN_PLACE: dict[Any, Any] = {
    aten.polygamma_.default: _polygamma_,
}
"""Changes in place that PyTorch's functionalisation does not know, nor takes apart."""


@cache
def table() -> dict[Any, Any]:
    """From overloads to the functions that PyTorch decomposes them with."""
    decompositions: Any = load("torch._decomp")
    found: dict[Any, Any] = dict(decompositions.core_aten_decompositions())
    packets = [getattr(aten, name) for name in _MORE if hasattr(aten, name)]
    found.update(decompositions.get_decompositions(packets))
    for name in (*_RANDOM, *_KEPT):
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            found.pop(getattr(packet, overload), None)
    for target in REGISTRY:  # a converter says it directly
        found.pop(target, None)
    for target, decomposition in found.items():
        if has_kernel(target) and not target._schema.is_mutable:
            found[target] = RoundedOnce(decomposition)
    for target in (aten.channel_shuffle.default, aten.native_channel_shuffle.default):
        found[target] = _channel_shuffle
    found[aten._unsafe_masked_index.default] = _masked_index
    found[aten._unsafe_masked_index_put_accumulate.default] = _masked_index_put
    found[aten.convolution.default] = _bias_apart
    found[aten.convolution_backward.default] = _bias_apart_backward
    return found
