"""Sums at places that only data say, for a GPU: PyTorch sorts the places first, so that its results
do not depend on what comes first; where nobody asked for that, atomic additions take a part of the
time.

The sums of 16-bit numbers are taken in 32 bits, as PyTorch takes them.  Imports `lib` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tedsl.torch.lib import aten, torch


def quicker(node: Any) -> Any:
    """What to call in place of a node's operator, with the same arguments; None where it stays."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or not fake.is_cuda or not fake.is_floating_point():
        return None
    return _CALLS.get(node.target)


def embedding_gradient(grad: Any, indices: Any, rows: int, padding: int, by_frequency: bool) -> Any:
    """`aten.embedding_dense_backward`: `grad`, of shape (*indices.shape, width), added up by row.

    Args:
        grad: of what was looked up.
        indices: the rows that were.
        rows: of the table.
        padding: a row that gets nothing, or -1.
        by_frequency: whether each row is divided by how often it was looked up.
    """
    if by_frequency or torch.are_deterministic_algorithms_enabled():
        return aten.embedding_dense_backward(grad, indices, rows, padding, by_frequency)
    places, given = indices.reshape(-1), _wide(grad.reshape(indices.numel(), -1))
    if padding >= 0:
        given = given.masked_fill((places == padding)[:, None], 0.0)
    found = torch.zeros((rows, given.shape[1]), dtype=given.dtype, device=given.device)
    return found.index_add_(0, places, given).to(grad.dtype)


def put(tensor: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """`aten.index_put`, of places that are added to and whose indices are of neighbouring
    dimensions."""
    dims = [d for d, each in enumerate(indices) if each is not None]
    whole = all(indices[d].dtype is torch.int64 for d in dims)
    beside = bool(dims) and dims[-1] - dims[0] + 1 == len(dims)
    if not (accumulate and whole and beside) or torch.are_deterministic_algorithms_enabled():
        return aten.index_put(tensor, indices, values, accumulate)
    first, sizes = dims[0], [tensor.shape[d] for d in dims]
    given = torch.broadcast_tensors(*(indices[d] for d in dims))
    place = given[0].new_zeros(())
    for each, size in zip(given, sizes, strict=True):
        place = place * size + torch.where(each < 0, each + size, each)
    before, behind = tensor.shape[:first], tensor.shape[first + len(dims) :]
    added = _wide(values.expand((*before, *given[0].shape, *behind)))
    added = added.reshape((*before, place.numel(), *behind))
    found = _wide(tensor).reshape((*before, math.prod(sizes), *behind))
    found = found.index_add(first, place.reshape(-1), added)
    return found.reshape(tensor.shape).to(tensor.dtype)


def _wide(tensor: Any) -> Any:
    """16-bit numbers in 32 bits."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


_CALLS: dict[Any, Any] = {
    aten.embedding_dense_backward.default: embedding_gradient,
    aten.index_put.default: put,
}
