"""Memory for outputs and workspaces: aligned host arrays, large ones recycled, and PyTorch tensors.

A large fresh array costs more than many kernels: the system clears each of its pages when it is
first touched.  So the memory of a large output goes back to a pool when the last array over it is
gone, as PyTorch does on the GPU.  Imports `runtime.arrays`.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from tedsl.runtime.arrays import NUMPY_DTYPES, AnyArray, Device, numpy_pointer
from tedsl.runtime.arguments import ArraySpec

ALIGNMENT = 64
POOL_FROM = 1 << 20  # bytes; smaller arrays come from NumPy's own allocator
POOL_LIMIT = 512 << 20
_BYTE = np.dtype(np.uint8)

_free: dict[int, list[AnyArray]] = {}


def empty_numpy(spec: ArraySpec) -> AnyArray:
    """An uninitialised array whose address is a multiple of 64."""
    nbytes = spec.nbytes
    dtype = NUMPY_DTYPES[spec.dtype]
    if nbytes >= POOL_FROM:
        return np.asarray(_Block(nbytes)).view(dtype).reshape(spec.shape)
    raw = np.empty(nbytes + ALIGNMENT, _BYTE)
    return np.ndarray(spec.shape, dtype, raw, -numpy_pointer(raw) % ALIGNMENT)


def empty_torch(spec: ArraySpec, device: Device) -> Any:
    """An uninitialised PyTorch tensor."""
    torch = importlib.import_module("torch")
    return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype.value), device=str(device))


def release_memory() -> None:
    """Give pooled host memory back to the system."""
    _free.clear()


class _Block:
    """Memory lent by the pool: an array over it is its owner, and the last one gives it back."""

    __slots__ = ("__array_interface__", "_raw")

    def __init__(self, nbytes: int) -> None:
        self._raw = _take(nbytes)
        self.__array_interface__ = {
            "data": (-(-numpy_pointer(self._raw) // ALIGNMENT) * ALIGNMENT, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        _give(self._raw)


def _take(nbytes: int) -> AnyArray:
    # Lists are popped and appended without a lock: both are atomic, and `_give` may run at any
    # allocation, also inside `_take`, where a lock would wait for itself.
    try:
        return _free[nbytes].pop()
    except (KeyError, IndexError):
        return np.empty(nbytes + ALIGNMENT, _BYTE)


def _give(raw: AnyArray) -> None:
    size = raw.nbytes - ALIGNMENT
    held = sum(nbytes * len(blocks) for nbytes, blocks in list(_free.items()))
    if held + size > POOL_LIMIT:
        _free.clear()
    if size <= POOL_LIMIT:
        _free.setdefault(size, []).append(raw)
