"""The tensors that a row is called with, and whether results are right.  Imports `grammar`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from grammar import Input, Row

torch: Any = importlib.import_module("torch")
pytree: Any = importlib.import_module("torch.utils._pytree")
ROUNDINGS = 64
"""Of the largest element: what may differ beside what eager itself is off."""
WORSE = 4.0
"""How much farther than eager's our results may be from the same text in float64."""
AT_THE_END = 2.0**-6
"""Of the largest number of a type: so near to it a sum may overflow in one order of its terms."""


def made(row: Row, device: str) -> list[Any]:
    """The inputs of a row, equal for equal rows whatever the device."""
    source = torch.Generator().manual_seed(len(row.name) + 977 * len(row.inputs))
    return [_tensor(each, source).to(device) for each in row.inputs]


def _tensor(each: Input, source: Any) -> Any:
    dtype: Any = getattr(torch, each.dtype)
    order = each.order or tuple(range(len(each.shape)))
    stored = [each.shape[n] for n in order]
    if each.step > 1:
        stored[-1] *= each.step
    if each.content == "below":
        found = torch.randint(0, max(1, each.below), stored, generator=source).to(dtype)
    elif each.content == "positive":
        found = (torch.rand(stored, generator=source) + 0.5).to(dtype)
    else:
        found = torch.randn(stored, generator=source).to(dtype)
    found = found[..., :: each.step] if each.step > 1 else found
    return found.permute([order.index(n) for n in range(len(order))])


def on_device(tensors: Sequence[Any], device: str) -> list[Any]:
    """The same tensors there, laid out as they are: a copy to a device keeps strides only of
    memory without gaps."""
    found = list[Any]()
    for tensor in tensors:
        room = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        there = torch.empty(max(room, 1), dtype=tensor.dtype, device=device)
        laid = there.as_strided(tensor.shape, tensor.stride())
        found.append(laid.copy_(tensor))
    return found


def in_double(tensors: Sequence[Any]) -> list[Any]:
    """The same numbers in float64."""
    return [each.double() if each.is_floating_point() else each for each in tensors]


def rounded(tensors: Sequence[Any]) -> list[Any]:
    """The same numbers in float64, those of float32 rounded to the 11 bits of a factor in TF32."""

    def each(tensor: Any) -> Any:
        if tensor.dtype is not torch.float32:
            return tensor
        bits = tensor.contiguous().view(torch.int32)
        return ((bits + (1 << 12)) >> 13 << 13).view(torch.float32)

    return in_double([each(tensor) for tensor in tensors])


def coarsest(row: Row, device: str) -> float:
    """Spacing of the numbers to which factors may be rounded: PyTorch's setting allows TF32 for
    convolutions of float32, whether or not the kernel that eager chose uses it; 0 otherwise."""
    rounds = device == "cuda" and torch.backends.cudnn.allow_tf32
    return 2.0**-10 if rounds and "conv" in row.source() else 0.0


def wrong(ours: Any, eager: Any, exact: Any, rounding: float = 0.0, moved: Any = None) -> str:
    """What is wrong with our results; nothing where they are right.

    Args:
        ours: our results.
        eager: those of PyTorch.
        exact: those of the same text in float64.
        rounding: spacing of the numbers to which factors may be rounded.
        moved: what the same text gives for inputs that are rounded so.
    """
    leaves = [pytree.tree_leaves(each) for each in (ours, eager, exact)]
    others = leaves[2] if moved is None else pytree.tree_leaves(moved)
    if len({len(each) for each in leaves}) != 1:
        return f"{len(leaves[0])} results of {len(leaves[1])}"
    for place, (mine, theirs, true) in enumerate(zip(*leaves, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"result {place} is {mine.dtype} {tuple(mine.shape)}, not {theirs.dtype}"
        if not theirs.is_floating_point():
            count = int((mine != theirs).sum())
            if count:
                return f"{count} of {mine.numel()} integers of result {place} differ"
            continue
        free = 0.0
        if moved is not None and true.numel():
            free = WORSE * float((others[place] - true).abs().nan_to_num().max())
        told = apart(
            mine.double(), theirs.double(), true.double(), theirs.dtype, WORSE, rounding, free
        )
        if told:
            return f"result {place}: {told}"
    return ""


def apart(
    mine: Any,
    theirs: Any,
    true: Any,
    dtype: Any,
    worse: float = WORSE,
    rounding: float = 0.0,
    free: float = 0.0,
) -> str:
    """How far a result is off, where that is more than eager's allows.

    Args:
        mine, theirs, true: our result, eager's, and the exact one, in float64.
        dtype: of the first two, a floating-point one.
        worse: how much farther than eager's ours may be.
        rounding: spacing of the numbers to which factors may be rounded.
        free: what may differ beside that.
    """
    # Sums of float16 may overflow in eager's order where they do not in ours, and near the end of
    # the range the other way round.
    mine_is, rounded = torch.isfinite(mine), torch.isfinite(true.to(dtype))
    at_the_end = (true.abs() / torch.finfo(dtype).max - 1).abs() < AT_THE_END
    differ = (mine_is != torch.isfinite(theirs)) & (mine_is != rounded) & ~at_the_end
    differ |= torch.isnan(mine) & ~torch.isnan(theirs) & ~torch.isnan(true)
    count = int(differ.sum())
    if count:
        return f"{count} elements are finite in one and not in the other"
    there = mine_is & torch.isfinite(theirs) & torch.isfinite(true)
    mine, theirs, true = (torch.where(there, each, 0.0) for each in (mine, theirs, true))
    if mine.numel() == 0:
        return ""
    largest = float(true.abs().max())
    allowed = free + worse * float((theirs - true).abs().max())
    allowed += max(ROUNDINGS * float(torch.finfo(dtype).eps), 4 * rounding) * max(largest, 1e-6)
    off = float((mine - true).abs().max())
    return f"off by {off:.3g}, of {largest:.3g}; {allowed:.3g} allowed" if off > allowed else ""
