"""Arrays of every framework as views."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.runtime.arguments.signature import ArraySpec
from tedsl.runtime.arrays import allocation as memory
from tedsl.runtime.arrays.views import CPU, NUMPY_DTYPES, numpy_pointer, view


class DLPackOnly:
    """An array of a framework that is known by its capsule alone."""

    def __init__(self, array: np.ndarray, legacy: bool = False) -> None:
        self.array = array
        self.legacy = legacy

    def __dlpack__(self, **options: Any) -> object:
        if self.legacy and "max_version" in options:
            raise TypeError("unknown argument max_version")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("dtype", list(DType))
def test_numpy_arrays_of_every_dtype(dtype: DType) -> None:
    array = np.zeros((3, 4), NUMPY_DTYPES[dtype])
    seen = view(array)
    assert (seen.shape, seen.dtype, seen.strides) == ((3, 4), dtype, (4, 1))
    assert seen.pointer == array.__array_interface__["data"][0] == numpy_pointer(array)
    assert seen.device == CPU
    assert seen.writable
    assert seen.contiguous
    assert seen.nbytes == 12 * dtype.nbytes


def test_strides_and_contiguity() -> None:
    base = np.zeros((4, 6), np.float32)
    assert view(base.T).strides == (1, 6)
    assert not view(base.T).contiguous
    assert not view(base[:, :3]).contiguous
    assert view(base[1:3]).contiguous
    assert view(base[:, :1][:1]).contiguous
    assert view(base[:0, ::2]).contiguous
    assert view(np.float32(3)).shape == ()


@pytest.mark.parametrize("legacy", [False, True])
def test_any_dlpack_array(legacy: bool) -> None:
    base = np.arange(24, dtype=np.int16).reshape(4, 6)
    seen = view(DLPackOnly(base[1:, ::2], legacy))
    assert (seen.shape, seen.strides, seen.dtype) == ((3, 3), (6, 2), DType.int16)
    assert seen.pointer == numpy_pointer(base[1:, ::2])


class CodedDLPack(DLPackOnly):
    """Bytes that the capsule says to be of another type, by DLPack's code of it."""

    code = 0

    def __dlpack__(self, **options: Any) -> object:
        capsule = super().__dlpack__(**options)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        data, device, rank = 8, 8, 4  # what stands before the type
        at = pointer(capsule, b"dltensor") + data + device + rank
        ctypes.c_uint8.from_address(at).value = self.code
        return capsule


@pytest.mark.parametrize(
    ("code", "dtype"), [(10, DType.float8_e4m3fn), (12, DType.float8_e5m2), (1, DType.uint8)]
)
def test_dlpack_has_codes_for_8_bit_floats(code: int, dtype: DType) -> None:
    array = CodedDLPack(np.zeros(4, np.uint8), legacy=True)
    array.code = code
    assert view(array).dtype is dtype


def test_read_only_is_seen() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    assert not view(array).writable
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":  # of DLPack 1.0, whose capsules can say so
        assert not view(DLPackOnly(array)).writable
    else:
        with pytest.raises(BackendError, match=r"does not export its memory: .*readonly"):
            view(DLPackOnly(array))


def test_a_capsule_keeps_its_memory() -> None:
    seen = view(DLPackOnly(np.full(1000, 7.0)))
    gc.collect()
    other = np.full(1000, 9.0)
    assert memory.numpy_at(seen.pointer, ArraySpec(seen.shape, DType.float64))[0] == 7.0
    assert other[0] == 9.0


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3, 4, dtype=torch.bfloat16)
    seen = view(tensor)
    assert (seen.shape, seen.dtype, seen.strides) == ((3, 4), DType.bfloat16, (4, 1))
    assert seen.pointer == tensor.data_ptr()
    assert seen.framework == "torch"
    assert not view(tensor.t()).contiguous
    with pytest.raises(BackendError, match=r"requires grad(.|\n)*x\.detach\(\).*tedsl\.torch\.op"):
        view(torch.zeros(3, requires_grad=True))
    with torch.no_grad():
        assert view(torch.zeros(3, requires_grad=True)).shape == (3,)
    with pytest.raises(BackendError, match=r"layout torch.sparse_coo(.|\n)*to_dense"):
        view(torch.zeros(3, 3).to_sparse())
    with pytest.raises(BackendError, match=r"negated(.|\n)*resolve_neg"):
        view(torch.zeros(3, dtype=torch.complex64).conj().imag)


def test_what_is_no_array() -> None:
    with pytest.raises(BackendError, match=r"list is not an array(.|\n)*numpy\.asarray"):
        view([1, 2, 3])
    with pytest.raises(BackendError, match=r"mask(.|\n)*filled"):
        view(np.ma.masked_equal(np.zeros(3), 0))
    fields = np.zeros(4, [("a", "i1"), ("b", "f4")])["b"]
    with pytest.raises(BackendError, match=r"no multiples of the element size"):
        view(fields)


def test_dtypes_without_a_counterpart_keep_their_name() -> None:
    assert view(np.zeros(2, np.complex64)).dtype == "complex64"
    assert view(np.zeros(2, ">f4")).dtype == ">f4"
    other = np.dtype(ml_dtypes.float8_e4m3b11fnuz)
    assert view(np.zeros(2, other)).dtype == other.name


def test_alignment_and_overlap() -> None:
    base = np.zeros(64, np.float32)
    low, high = view(base[:32]), view(base[32:])
    assert not low.overlaps(high)
    assert low.overlaps(view(base[31:40]))
    assert not low.overlaps(view(base[5:5]))
    assert view(base[1:]).alignment == 4


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (1000, 1000)])
@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16, DType.bool])
def test_outputs_are_aligned(shape: tuple[int, ...], dtype: DType) -> None:
    array = memory.numpy_allocator(ArraySpec(shape, dtype))()
    assert array.shape == shape
    assert array.dtype == NUMPY_DTYPES[dtype]
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert numpy_pointer(array) % memory.ALIGNMENT == 0


def test_large_memory_is_reused_only_when_no_array_is_left() -> None:
    memory.release_memory()
    make = memory.numpy_allocator(ArraySpec((1 << 20,), DType.float32))
    first = make()
    address = numpy_pointer(first)
    part = first[10:20]
    del first
    second = make()
    assert numpy_pointer(second) != address
    del part
    third = make()
    assert numpy_pointer(third) == address
    memory.release_memory()


def test_the_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.release_memory()
    monkeypatch.setattr(memory, "POOL_LIMIT", 10 << 20)
    make = memory.numpy_allocator(ArraySpec((1 << 20,), DType.float32))
    arrays = [make() for _ in range(5)]
    del arrays
    gc.collect()
    assert sum(size * len(blocks) for size, blocks in memory._free.items()) <= 10 << 20
    memory.release_memory()
