"""Which convolutions of the library get images and weights with channels last, decided in one
place, with the reason where not.

cuDNN's kernels on tensor cores read channels last: of images with channels first it makes a copy,
call by call, and of the result another one.  Where the whole of a graph is laid out so, no copies
are left but those of its inputs.  The conditions are those that PyTorch's own compiler found with
some hundred models (`GraphLowering.decide_layout_opt`).  Imports the registry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import Any

from tedsl.torch.importer.walk import arguments
from tedsl.torch.lib import aten, changes, pytree, torch

IMAGES: dict[Any, tuple[int, ...]] = {
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
}
"""Which arguments of a convolution are images and weights."""

FEW = 300
"""Operators for one convolution from which on the graph is not one of images."""
GROUPED, SHRINKING, SMALL, OTHERS = 1.358, 0.725, 0.783, 0.823
"""Times with channels last by those with channels first, in inference, that PyTorch measured: of
several channels in each of several groups, of half as many channels out as in, of at most 64."""


def chosen(
    nodes: Sequence[Any], taken: Collection[Any], training: bool, asked: bool | None
) -> tuple[list[Any], Counter[tuple[str, str]]]:
    """The convolutions that get channels last, and what to say of each operator.

    Args:
        nodes: of the graph, with fake values.
        taken: those that tensor expressions compute.
        training: the graph is the forward or backward pass of training.
        asked: True for all that can be, False for none, None for those for which it pays.
    """
    told = Counter[tuple[str, str]]()
    library = [node for node in nodes if node.target in IMAGES and node not in taken]
    if asked is False or not library:
        return [], told
    fit: list[Any] = []
    reason = _closed(nodes)
    for node in library:
        unfit = reason or _unfit(node, asked is True)
        if unfit:
            told[str(node.target), unfit] += 1
        else:
            fit.append(node)
    if fit and not asked:
        reason = _slower(fit, len(nodes), training)
    told.update((str(node.target), reason or "channels last") for node in fit)
    return [] if reason else fit, told


def changes_results(nodes: Sequence[Any]) -> bool:
    """True where a call changes something else than an argument of the graph, of which there may
    then be no copy.  Arguments are changed at the end, when all has been computed."""
    for node in filter(changes, nodes):
        given = zip(arguments(node), node.target._schema.arguments, strict=True)
        if any(
            argument.alias_info is not None
            and argument.alias_info.is_write
            and getattr(value, "op", "") != "placeholder"
            for value, argument in given
        ):
            return True
    return False


def _closed(nodes: Sequence[Any]) -> str:
    """Why strides of this graph are not to be changed."""
    if changes_results(nodes):
        return "a call changes what was computed"
    for fake in pytree.tree_leaves([node.meta.get("val") for node in nodes]):
        sizes = fake.shape if isinstance(fake, torch.Tensor) else (fake,)
        if any(isinstance(size, torch.SymInt) for size in sizes):
            return "sizes that are known at the call only"
    return ""


def _unfit(node: Any, asked: bool) -> str:
    """Why one convolution keeps what it has."""
    image, weight = _operands(node)
    if image.device.type != "cuda" and not asked:
        return "not on a GPU"
    if image.dim() not in (4, 5) or image.dim() != weight.dim():
        return "images of 2 and 3 dimensions have channels last"
    if image.dtype is torch.float64 and image.device.type == "cuda":
        return "cuDNN takes 64-bit floats with channels first"
    return "nothing to compute" if 0 in (*image.shape, *weight.shape) else ""


def _slower(nodes: Sequence[Any], count: int, training: bool) -> str:
    """Why channels last would cost more in the whole graph than they save."""
    if count >= FEW * len(nodes):
        return "few convolutions among many operators"
    if not training:
        work = [(_work(node), _ratio(node)) for node in nodes]
        if sum(each * ratio for each, ratio in work) > sum(each for each, _ in work):
            return "most of the work is in groups of several channels"
        return ""
    ratios = {_ratio(node) for node in nodes}
    if GROUPED in ratios:
        return "training, with groups of several channels"
    if any(_shrinks(node) for node in nodes):
        return "training, with half as many channels out as in"
    return "training, with at most 64 channels" if ratios == {SMALL} else ""


def _given(node: Any) -> list[Any]:
    """The arguments of a convolution from the image and the weight on, in either pass the same."""
    return arguments(node)[IMAGES[node.target][-2] :]


def _operands(node: Any) -> Iterator[Any]:
    """The image and the weight."""
    return (each.meta["val"] for each in _given(node)[:2])


def _ratio(node: Any) -> float:
    _, weight = _operands(node)
    *_, groups = _given(node)[:9]
    if groups > 1 and weight.shape[1] > 1:
        return GROUPED
    if max(weight.shape[:2]) <= 64:
        return SMALL
    return SHRINKING if _shrinks(node) else OTHERS


def _shrinks(node: Any) -> bool:
    _, weight = _operands(node)
    return weight.shape[0] * 2 <= weight.shape[1] and weight.shape[2] > 1


def _work(node: Any) -> int:
    """Products: each weight meets each place of the result, or of the image if transposed."""
    image, weight = _operands(node)
    transposed = _given(node)[6]
    backward = node.target is aten.convolution_backward.default
    result = arguments(node)[0].meta["val"] if backward else node.meta["val"]
    return prod(weight.shape) * image.shape[0] * prod((image if transposed else result).shape[2:])
