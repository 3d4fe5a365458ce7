"""Whether PyTorch's libraries compute a product or a convolution faster than a kernel of ours, by a
roofline of each.  Imports nothing of the folder.

What memory bounds takes both as long, and ours computes what is before and behind it on the way.
What arithmetic bounds is the library's, but for float32 products of full precision: cuBLAS has
them on CUDA cores, ours in three products of TF32 on tensor cores.  cuDNN computes images with
channels last, and copies others there and back; ours copies them there.
"""

from __future__ import annotations

import math
from typing import Any

from tedsl.dtypes import DType
from tedsl.target import Target
from tedsl.torch import precision
from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.importer.registry import Family, entry_of
from tedsl.torch.lib import fx, load, pytree

THEIRS = {Family.PRODUCT: 0.75, Family.CONVOLUTION: 0.7}
OURS = {Family.PRODUCT: 0.7, Family.CONVOLUTION: 0.5}
"""The shares of the peak that kernels reach, fitted on an H100 and an H200."""
SPLIT = 3
"""Products of TF32 for one of float32."""


def is_faster(node: Any, family: Family) -> bool:
    """True when a GPU keeps the library's call: of sizes known at the call only, of types that
    tensor cores do not take, and where its roofline is lower.

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
    values = pytree.tree_map_only(fx.Node, lambda each: each.meta["val"], node.args)
    operations = counted(*values, out_val=result)
    gpu = Target.parse("cuda").resolve_gpu()
    memory = sum(map(_nbytes, (*tensors, result)))
    rounded = dtype is not DType.float32 or precision.rounds(family is Family.CONVOLUTION)
    theirs = operations / (THEIRS[family] * (gpu.tensor if rounded else gpu.fma)[dtype])
    ours = operations / (OURS[family] * gpu.tensor[dtype]) * (1 if rounded else SPLIT)
    theirs, ours = (max(each, memory / gpu.bandwidth) for each in (theirs, ours))
    if family is Family.CONVOLUTION and _is_copied(node):
        image = _nbytes(tensors[0])
        theirs += 2 * (image + _nbytes(result)) / gpu.bandwidth
        ours += 2 * image / gpu.bandwidth
    return theirs < ours


def _nbytes(fake: Any) -> int:
    return math.prod(fake.shape) * fake.itemsize


def _is_copied(node: Any) -> bool:
    """True for a convolution whose image has channels first, alone in its graph: others pass on
    images as they compute them."""
    image = node.args[0].meta["val"]
    entries = (entry_of(each.target) for each in node.graph.nodes)
    alone = sum(e is not None and e.family is Family.CONVOLUTION for e in entries) == 1
    return alone and image.stride(1) != 1
