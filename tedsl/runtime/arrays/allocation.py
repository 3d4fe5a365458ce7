"""Memory for outputs and workspaces: aligned host arrays, large ones recycled, and PyTorch tensors.

A large fresh array costs more than many kernels: the system clears each of its pages when it is
first touched.  So the memory of a large output goes back to a pool when the last array over it is
gone, as PyTorch does on the GPU.  Imports `runtime.arrays.views`.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tedsl.runtime.arguments.signature import ArraySpec
from tedsl.runtime.arrays.views import NUMPY_DTYPES, AnyArray, Device, numpy_pointer

ALIGNMENT = 64
POOL_FROM = 1 << 20  # bytes; smaller arrays come from NumPy's own allocator
POOL_LIMIT = 512 << 20
_BYTE = np.dtype(np.uint8)

_free: dict[int, list[AnyArray]] = {}


def numpy_allocator(spec: ArraySpec) -> Callable[[], AnyArray]:
    """A function that makes uninitialised arrays whose addresses are multiples of 64."""
    nbytes, shape = spec.nbytes, spec.shape
    dtype = NUMPY_DTYPES[spec.dtype]
    padded = nbytes + ALIGNMENT

    def small() -> AnyArray:
        raw = np.empty(padded, _BYTE)
        return np.ndarray(shape, dtype, raw, -numpy_pointer(raw) % ALIGNMENT)

    def large() -> AnyArray:
        return np.asarray(_Block(nbytes)).view(dtype).reshape(shape)

    return large if nbytes >= POOL_FROM else small


def torch_allocator(spec: ArraySpec, device: Device) -> Callable[[], Any]:
    """A function that makes uninitialised PyTorch tensors."""
    torch = importlib.import_module("torch")
    dtype, shape = getattr(torch, spec.dtype.value), spec.shape
    place = torch.device(str(device))

    def own() -> Any:
        return torch.empty(shape, dtype=dtype, device=place)

    def pooled() -> Any:
        return torch.from_numpy(np.asarray(_Block(spec.nbytes))).view(dtype).reshape(shape)

    if device.kind == "cpu":
        return pooled if spec.nbytes >= POOL_FROM else own
    quick = _quick_cuda(torch) if device.kind == "cuda" else None
    if quick is None:
        return own
    return QuickCuda(quick, shape, _row_major(shape), dtype, device.index, _device_of(torch), own)


@dataclass(frozen=True, slots=True)
class QuickCuda:
    """Makes tensors by `empty` of (shape, strides, dtype), which takes the current device; by `own`
    where that is another."""

    empty: Callable[..., Any]
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    dtype: Any
    index: int
    current: Callable[[], int]
    own: Callable[[], Any]

    def __call__(self) -> Any:
        """A tensor that holds anything."""
        if self.current() != self.index:
            return self.own()
        return self.empty(self.shape, self.steps, self.dtype)


def _device_of(torch: Any) -> Callable[[], int]:
    """What tells the current device."""
    found: Callable[[], int] = torch._C._cuda_getDevice
    return found


def _quick_cuda(torch: Any) -> Callable[..., Any] | None:
    """What code of `torch.compile` allocates with, a third of the time of `torch.empty`: a function
    of (shape, strides, dtype) for the current device.  None where this PyTorch has it not, or not
    in this form.
    """
    private = getattr(torch, "_C", None)
    guards = getattr(getattr(private, "_dynamo", None), "guards", None)
    quick: Callable[..., Any] | None = getattr(guards, "_empty_strided_cuda", None)
    if quick is None or not hasattr(private, "_cuda_getDevice"):
        return None
    try:
        made = quick((2, 3), (3, 1), torch.float32)
    except (TypeError, RuntimeError):
        return None
    fits = made.is_cuda and tuple(made.shape) == (2, 3) and made.dtype is torch.float32
    return quick if fits and made.is_contiguous() else None


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    steps: list[int] = []
    step = 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(extent, 1)
    return tuple(reversed(steps))


def numpy_at(pointer: int, spec: ArraySpec) -> AnyArray:
    """The array at an address; the caller keeps the memory alive."""
    dtype = NUMPY_DTYPES[spec.dtype]
    if spec.size == 0:
        return np.empty(spec.shape, dtype)
    memory = (ctypes.c_char * spec.nbytes).from_address(pointer)
    return np.frombuffer(memoryview(memory), dtype).reshape(spec.shape)


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
