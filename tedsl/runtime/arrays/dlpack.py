"""Reading a DLPack capsule: the C structs of the protocol, and one function.  Imports `dtypes` and
`errors`.

The capsule is looked at but not consumed, so its own destructor frees it when the reader drops it.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from typing import Any

from tedsl.dtypes import DType
from tedsl.errors import BackendError

_DEVICES = {
    1: "cpu",
    2: "cuda",
    3: "cpu",
    4: "opencl",
    7: "vulkan",
    8: "metal",
    10: "rocm",
    13: "cuda",
}
_DTYPES: dict[tuple[int, int], DType] = {
    **{(0, bits): DType(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{(1, bits): DType(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{(2, bits): DType(f"float{bits}") for bits in (16, 32, 64)},
    (4, 16): DType.bfloat16,
    (6, 8): DType.bool,
    (10, 8): DType.float8_e4m3fn,
    (12, 8): DType.float8_e5m2,
}
_READ_ONLY = 1


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)


@dataclass(frozen=True, slots=True)
class RawArray:
    """What a capsule says.  `strides` count elements; the memory lives as long as `capsule`."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | str
    device: str
    device_index: int
    writable: bool
    capsule: object


def read(array: Any) -> RawArray:
    """Ask `array` for a capsule and read it.

    Raises:
        BackendError: the array refuses to export, or speaks an unknown major version of DLPack.
    """
    kind, _ = array.__dlpack_device__()
    try:
        capsule = _export(array, _DEVICES.get(int(kind), ""))
    except (BufferError, ValueError, RuntimeError) as error:
        raise BackendError(
            f"{type(array).__name__} does not export its memory: {error}",
            hint="pass a plain, dense copy of it",
        ) from error
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise BackendError(
                f"{type(array).__name__} exports DLPack {managed.major}.{managed.minor}",
                facts=[("allowed", "DLPack 0.x and 1.x")],
            )
        return _read(managed.tensor, not managed.flags & _READ_ONLY, capsule)
    return _read(_Tensor.from_address(_get_pointer(capsule, b"dltensor")), True, capsule)


def _export(array: Any, device: str) -> object:
    """The capsule; a GPU array is made ready for PyTorch's current stream, on which kernels are
    launched.
    """
    options: dict[str, Any] = {}
    if device == "cuda":
        stream = importlib.import_module("torch").cuda.current_stream().cuda_stream
        options["stream"] = (
            stream or 1
        )  # DLPack: 1 is CUDA's legacy default stream, 0 is not allowed
    try:
        return array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a producer older than DLPack 1.0
        return array.__dlpack__(**options)


def _read(tensor: _Tensor, writable: bool, capsule: object) -> RawArray:
    ndim = int(tensor.ndim)
    shape = tuple(int(tensor.shape[d]) for d in range(ndim))
    if tensor.strides:
        strides = tuple(int(tensor.strides[d]) for d in range(ndim))
    else:
        dense = [1]
        for extent in reversed(shape[1:]):
            dense.append(dense[-1] * extent)
        strides = tuple(reversed(dense))[:ndim] if ndim else ()
    code = (int(tensor.dtype.code), int(tensor.dtype.bits))
    dtype = _DTYPES.get(code) if tensor.dtype.lanes == 1 else None
    return RawArray(
        pointer=int(tensor.data or 0) + int(tensor.byte_offset),
        shape=shape,
        strides=strides,
        dtype=dtype or f"dlpack type {code} x {tensor.dtype.lanes}",
        device=_DEVICES.get(int(tensor.device.kind), f"dlpack device {tensor.device.kind}"),
        device_index=int(tensor.device.index),
        writable=writable,
        capsule=capsule,
    )
