"""Scaled dot-product attention as products and a softmax.

Of 16-bit floats it is written as fused kernels compute it: products of 16-bit operands summed up in
float32, a softmax in float32, and its probabilities rounded to 16 bits; PyTorch's own decomposition
multiplies in float32, which tensor cores have not.  Imports `lib`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tedsl.torch.lib import torch

_FUNCTION: Any = torch.nn.functional.scaled_dot_product_attention
_SHORT = (torch.float16, torch.bfloat16)


class AsFused(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """Within it, attention without dropout is written as `fused` does.

    Args:
        wide: that of float32 on a GPU, where no derivative is asked for, which PyTorch computes on
            CUDA cores; else that of 16-bit floats, of which PyTorch has kernels of its own.
    """

    def __init__(self, wide: bool = False) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.chosen = _is_wide if wide else _is_short

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The call, or what stands for it."""
        given = dict(kwargs or {})
        if func is not _FUNCTION or not _taken(self.chosen, *args, **given):
            return func(*args, **given)
        return fused(*args, **given)


def _is_short(query: Any, key: Any, value: Any) -> bool:
    return query.dtype in _SHORT and key.dtype is query.dtype and value.dtype is query.dtype


def _is_wide(*given: Any) -> bool:
    alike = all(each.dtype is torch.float32 and each.device.type == "cuda" for each in given)
    return alike and not (torch.is_grad_enabled() and any(each.requires_grad for each in given))


def _taken(
    chosen: Callable[[Any, Any, Any], bool],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> bool:
    both = is_causal and attn_mask is not None  # PyTorch refuses that
    return chosen(query, key, value) and dropout_p == 0.0 and not both


def fused(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention` of floats of at most 32 bits, without
    dropout.

    Args:
        query: (..., L, E).
        key: (..., S, E).
        value: (..., S, V).
        attn_mask: bool, or added to the scores, broadcast to (..., L, S).
        dropout_p: 0.
        is_causal: query i sees keys 0 to i; of others nothing is computed, and what `value` holds
            of them must be finite.
        scale: of the scores; 1 / sqrt(E) without it.
        enable_gqa: heads of keys and values are shared by groups of heads of queries.

    Returns:
        (..., L, V), of the dtype of `query`.
    """
    wide, short = torch.float32, query.dtype
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = torch.matmul(query.to(wide), key.to(wide).transpose(-2, -1)) * factor
    if is_causal:
        shape = query.size(-2), key.size(-2)
        attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = torch.where(attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.ops.aten._safe_softmax(scores, -1)
    return torch.matmul(weights.to(short).to(wide), value.to(wide)).to(short)
