"""PyTorch's settings of the precision of float32 products on NVIDIA GPUs, and where they save time.
Imports `lib`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.target import Target
from tedsl.torch.lib import load, pytree, torch

SPLIT = 3
"""Products of TF32 for one of float32."""
REACHED = 0.05
"""The share of the peak that three products reach in convolutions of few channels, on an H100."""


def rounds(convolution: bool) -> bool:
    """True where the factors of float32 products may be rounded to TF32: of convolutions
    (`torch.backends.cudnn`, by default) or of other products (`torch.backends.cuda.matmul`,
    `torch.set_float32_matmul_precision`, not by default)."""
    holder = torch.backends.cudnn if convolution else torch.backends.cuda.matmul
    named: Any = getattr(holder, "conv", None) if convolution else holder
    precision = getattr(named, "fp32_precision", None)
    if precision is not None:  # the older name raises where both were set
        return bool(precision == "tf32")
    return bool(holder.allow_tf32)


def settings() -> str:
    """The settings, of which other kernels come."""
    return f"tf32 {rounds(True)} {rounds(False)}"


def operations(target: Any, arguments: Sequence[Any], result: Any) -> float | None:
    """Operations of a product or a convolution, two for each product; None of one that PyTorch does
    not count, or of sizes that are known at the call only.

    Args:
        target: the operator.
        arguments: as fake tensors and numbers.
        result: a fake tensor.
    """
    counted = load("torch.utils.flop_counter").flop_registry.get(target._overloadpacket)
    tensors = [e for e in pytree.tree_leaves([*arguments, result]) if isinstance(e, torch.Tensor)]
    if counted is None or not all(type(n) is int for each in tensors for n in each.shape):
        return None
    return float(counted(*arguments, out_val=result))


def nbytes(fakes: Sequence[Any]) -> int:
    """Bytes of fake tensors of known sizes."""
    tensors = (each for each in fakes if isinstance(each, torch.Tensor))
    return sum(math.prod(each.shape) * each.itemsize for each in tensors)


def rounding_saves(target: Any, arguments: Sequence[Any], result: Any) -> bool:
    """True where three products of TF32 for one of float32 take longer than memory does: kernels of
    windows, or of short folds, reach but a small share of the peak."""
    count = operations(target, arguments, result)
    if count is None:
        return True
    gpu = Target.parse("cuda").resolve_gpu()
    memory = nbytes([*arguments, result]) / gpu.bandwidth
    return SPLIT * count / (REACHED * gpu.tensor[DType.float32]) > memory
