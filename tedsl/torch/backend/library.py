"""Whether PyTorch's libraries compute a product or a convolution faster than a kernel of ours, by a
roofline of each.  Imports nothing of the folder.

What memory bounds takes both as long, and ours computes what is before and behind it on the way.
What arithmetic bounds is the library's, but for float32 products of full precision: cuBLAS has
them on CUDA cores, ours in three products of TF32 on tensor cores.  cuDNN computes images with
channels last, and copies others there and back; ours copies them there.  Ours computes a transposed
convolution with strides as one of each phase, with as many terms each, and then puts the phases
between each other.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tedsl.dtypes import DType
from tedsl.target import Target
from tedsl.torch import precision
from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.importer.registry import Family, entry_of
from tedsl.torch.lib import aten, fx, pytree

THEIRS = {Family.PRODUCT: 0.75, Family.CONVOLUTION: 0.7}
OURS = {Family.PRODUCT: 0.7, Family.CONVOLUTION: 0.5}
"""The shares of the peak that kernels reach, fitted on an H100 and an H200."""


def is_faster(node: Any, family: Family) -> bool:
    """True when a GPU keeps the library's call: of sizes known at the call only, of types that
    tensor cores do not take, and where its roofline is lower.

    Args:
        node: a product or a convolution of a graph with fake values.
        family: which of both.
    """
    result = node.meta["val"]
    values = pytree.tree_map_only(fx.Node, _value, node.args)
    dtype, operations = dtype_of(result.dtype), precision.operations(node.target, values, result)
    if operations is None or not dtype.is_float or dtype.bits > 32:
        return True
    gpu, convolution = Target.parse("cuda").resolve_gpu(), family is Family.CONVOLUTION
    memory = precision.nbytes([*pytree.tree_leaves(values), result]) / gpu.bandwidth
    rounded = dtype is not DType.float32 or precision.rounds(convolution)
    theirs = operations / (THEIRS[family] * (gpu.tensor if rounded else gpu.fma)[dtype])
    ours = operations / (OURS[family] * gpu.tensor[dtype]) * (1 if rounded else precision.SPLIT)
    phased = _phased(node) if convolution else 0.0
    if phased:
        ours *= phased
    theirs, ours = max(theirs, memory), max(ours, memory)
    if phased:
        ours += 2 * precision.nbytes([result]) / gpu.bandwidth
    if convolution and _is_copied(node):
        image = values[0]
        theirs += 2 * precision.nbytes([image, result]) / gpu.bandwidth
        ours += 2 * precision.nbytes([image]) / gpu.bandwidth
    return theirs < ours


def _value(node: Any) -> Any:
    return node.meta["val"]


def _phased(node: Any) -> float:
    """How many terms the phases of a transposed convolution have for each of its own; 0 of others,
    and without strides."""
    if node.target is not aten.convolution.default or not node.args[6]:
        return 0.0
    window, strides = node.args[1].meta["val"].shape[2:], node.args[3]
    steps = [*strides, *strides * len(window)][: len(window)]
    if all(step == 1 for step in steps):
        return 0.0
    return prod(-(-size // step) * step / size for size, step in zip(window, steps, strict=True))


def _is_copied(node: Any) -> bool:
    """True for a convolution whose image has channels first, alone in its graph: others pass on
    images as they compute them."""
    image = node.args[0].meta["val"]
    entries = (entry_of(each.target) for each in node.graph.nodes)
    alone = sum(e is not None and e.family is Family.CONVOLUTION for e in entries) == 1
    return alone and image.stride(1) != 1
