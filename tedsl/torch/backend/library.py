"""Whether PyTorch's libraries compute a product or a convolution faster than a kernel of ours, by a
roofline of each.  Imports nothing of the folder.

What memory bounds takes both as long, and ours computes what is before and behind it on the way.
What arithmetic bounds is the library's, but for float32 products of full precision: cuBLAS has
them on CUDA cores, ours in three products of TF32 on tensor cores.
"""

from __future__ import annotations

import math
from typing import Any

from tedsl.dtypes import DType
from tedsl.target import Target
from tedsl.torch import precision
from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.importer.registry import Family
from tedsl.torch.lib import load, pytree, torch

OURS = {Family.PRODUCT: 0.9, Family.CONVOLUTION: 0.5}
"""The share of the library's arithmetic that our kernels reach, fitted on an H200."""
SPLIT = 3
"""Products of TF32 for one of float32."""


def is_faster(node: Any, family: Family) -> bool:
    """True when a GPU keeps the library's call: of sizes known at the call only, of types
    that tensor cores do not take, and where its roofline is lower.

    Args:
        node: a product or a convolution of a graph with fake values.
        family: which of both.
    """
    result = node.meta["val"]
    tensors = [each.meta["val"] for each in node.all_input_nodes]
    counted = load("torch.utils.flop_counter").flop_registry.get(node.target._overloadpacket)
    whole = all(type(n) is int for each in (*tensors, result) for n in each.shape)
    dtype = dtype_of(result.dtype)
    if counted is None or not whole or not dtype.is_float or dtype.bits > 32:
        return True
    values = pytree.tree_map_only(torch.fx.Node, lambda each: each.meta["val"], node.args)
    operations = counted(*values, out_val=result)
    gpu = Target.parse("cuda").resolve_gpu()
    loaded = sum(math.prod(each.shape) * each.itemsize for each in (*tensors, result))
    memory = loaded / gpu.bandwidth
    rounded = dtype is not DType.float32 or precision.rounds(family is Family.CONVOLUTION)
    theirs = (gpu.tensor if rounded else gpu.fma)[dtype]
    ours = OURS[family] * gpu.tensor[dtype] / (1 if rounded else SPLIT)
    return max(operations / theirs, memory) < max(operations / ours, memory)
