"""Arrays of any framework seen as a pointer, a shape and strides, without copying.

First file of the runtime; imports only `dtypes` and `errors`.  NumPy arrays (those of `ml_dtypes`
too, which DLPack cannot carry) and PyTorch tensors are read directly; everything else that speaks
DLPack (CuPy, JAX, ...) is read through its capsule.  No framework is imported here but NumPy: a
PyTorch tensor is known by the module of its type.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tedsl.dtypes import DType
from tedsl.errors import BackendError, InternalError
from tedsl.runtime.arrays import dlpack

AnyArray = NDArray[Any]

NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    dtype: np.dtype(getattr(ml_dtypes, dtype.value, dtype.value)) for dtype in DType
}
_FROM_NUMPY: dict[np.dtype[Any], DType] = {value: key for key, value in NUMPY_DTYPES.items()}
_FROM_TORCH: dict[str, DType] = {f"torch.{dtype.value}": dtype for dtype in DType}


@dataclass(frozen=True, slots=True)
class Device:
    """Where memory is: `cpu`, `cuda`, or a name that no target takes; `index` counts devices of one
    kind.
    """

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device("cpu")


@dataclass(frozen=True, slots=True)
class ArrayView:
    """Memory of someone else's array.  `strides` count elements; `owner` keeps the memory alive.

    `dtype` is the framework's name of the element type when no DType matches it.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: DType | str
    strides: tuple[int, ...]
    device: Device
    writable: bool
    framework: str
    owner: object

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element of a contiguous view."""
        return self.size * (self.dtype.nbytes if isinstance(self.dtype, DType) else 1)

    @property
    def contiguous(self) -> bool:
        """True for row-major memory without gaps; strides of extents of 1 do not count."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent > 1 and stride != expected:
                return self.size == 0
            expected *= extent
        return True

    @property
    def alignment(self) -> int:
        """The largest power of two, at most 128, that divides the address.

        At 16 a GPU kernel reads whole 16-byte vectors; below it, Triton compiles a slower variant.
        """
        return 128 if self.pointer == 0 else min(self.pointer & -self.pointer, 128)

    def overlaps(self, other: ArrayView) -> bool:
        """True when the address ranges of two contiguous views on one device share a byte."""
        return (
            self.device == other.device
            and self.pointer < other.pointer + other.nbytes
            and other.pointer < self.pointer + self.nbytes
        )

    def __str__(self) -> str:
        return (
            f"{self.dtype}[{', '.join(map(str, self.shape))}] on {self.device} ({self.framework})"
        )


def is_torch(array: object) -> bool:
    """True for a PyTorch tensor, without importing PyTorch."""
    return type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "data_ptr")


def view(array: object) -> ArrayView:
    """See any array as an `ArrayView`, zero copy.

    Raises:
        BackendError: not an array, or memory that no kernel can address.
    """
    if isinstance(array, np.ndarray):
        return _view_numpy(cast(AnyArray, array))
    if isinstance(array, np.generic):  # what numpy returns in place of an array of rank 0
        return replace(_view_numpy(np.asarray(cast(Any, array))), writable=False)
    if is_torch(array):
        return _view_torch(array)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _view_dlpack(array)
    raise BackendError(
        f"{type(array).__name__} is not an array",
        facts=[("allowed", "NumPy arrays, PyTorch tensors, anything with __dlpack__")],
        hint="convert it, e.g. numpy.asarray(x, dtype=...)",
    )


def _view_numpy(array: AnyArray) -> ArrayView:
    if isinstance(array, np.ma.MaskedArray):
        raise BackendError("the mask of a masked array would be lost", hint="pass x.filled(...)")
    item = array.dtype.itemsize
    if any(stride % item for stride in array.strides) if item else True:
        raise BackendError(
            f"strides {array.strides} are no multiples of the element size {item}",
            hint="pass numpy.ascontiguousarray(x)",
        )
    return ArrayView(
        pointer=numpy_pointer(array),
        shape=array.shape,
        dtype=_FROM_NUMPY.get(array.dtype, str(array.dtype)),
        strides=tuple(stride // item for stride in array.strides),
        device=CPU,
        writable=array.flags.writeable,
        framework="numpy",
        owner=array,
    )


OPERATOR = "register the definition as an operator of PyTorch's: tedsl.torch.op"
"""What knows gradients, `torch.compile` and `vmap`."""


def _view_torch(tensor: Any) -> ArrayView:
    if str(tensor.layout) != "torch.strided":
        raise BackendError(
            f"a PyTorch tensor of layout {tensor.layout} has no plain memory",
            hint="pass x.to_dense()",
        )
    if tensor.requires_grad and importlib.import_module("torch").is_grad_enabled():
        raise BackendError(
            "the PyTorch tensor requires grad, and kernels record no gradient",
            hint=f"pass x.detach(), call inside torch.no_grad(), or {OPERATOR}",
        )
    if tensor.is_neg() or tensor.is_conj():
        raise BackendError(
            "the PyTorch tensor is a lazily negated or conjugated view",
            hint="pass x.resolve_neg().resolve_conj()",
        )
    if hasattr(tensor, "fake_mode"):
        raise BackendError(
            f"a {type(tensor).__name__} has no memory", hint="pass a plain PyTorch tensor"
        )
    try:
        pointer = int(tensor.data_ptr())
    except RuntimeError as error:  # it stands for others, as in torch.vmap
        raise BackendError(
            "the PyTorch tensor has no memory: a transformation such as torch.vmap passes it",
            hint=OPERATOR,
        ) from error
    name = str(tensor.dtype)
    return ArrayView(
        pointer=pointer,
        shape=tuple(tensor.shape),
        dtype=_FROM_TORCH.get(name, name.removeprefix("torch.")),
        strides=tuple(tensor.stride()),
        device=Device(str(tensor.device.type), tensor.device.index or 0),
        writable=True,
        framework="torch",
        owner=tensor,
    )


def _view_dlpack(array: object) -> ArrayView:
    framework = type(array).__module__.partition(".")[0]
    raw = dlpack.read(array)
    return ArrayView(
        pointer=raw.pointer,
        shape=raw.shape,
        dtype=raw.dtype,
        strides=raw.strides,
        device=Device(raw.device, raw.device_index if raw.device != "cpu" else 0),
        # JAX arrays are immutable by contract, also where an old JAX cannot say so in the capsule.
        writable=raw.writable and framework not in ("jax", "jaxlib"),
        framework=framework,
        owner=(array, raw.capsule),
    )


def is_packable(seen: ArrayView) -> bool:
    """True for arrays of NumPy and PyTorch, of which `packed` makes copies without gaps."""
    return seen.framework in ("numpy", "torch")


def packed(array: Any) -> Any:
    """The same elements in row-major memory without gaps."""
    return array.contiguous() if is_torch(array) else np.ascontiguousarray(array)


def _pointer_by_interface(array: AnyArray) -> int:
    """The address of the first element, as NumPy's Python interface gives it (about 1.5 us)."""
    return int(array.__array_interface__["data"][0])


_READ_WORD = ctypes.c_size_t.from_address
_HEADER = object.__basicsize__


def _pointer_by_struct(array: AnyArray) -> int:
    """The same from the C struct: `data` follows the object header in every NumPy ABI (about 0.2
    us).
    """
    return _READ_WORD(id(array) + _HEADER).value


def _choose_pointer_reader() -> Callable[[AnyArray], int]:
    """The fast reader where it agrees with the slow one on a few probes, else the slow one."""
    base = np.arange(24, dtype=np.int32)
    probes = (base, base[3:], base.reshape(2, 3, 4)[:, 1:], np.zeros(()))
    same = all(_pointer_by_struct(p) == _pointer_by_interface(p) for p in probes)
    return _pointer_by_struct if same else _pointer_by_interface


numpy_pointer: Callable[[AnyArray], int] = _choose_pointer_reader()


def dtype_of_numpy(array: AnyArray) -> DType:
    """The DType of a NumPy array that came from `NUMPY_DTYPES`."""
    try:
        return _FROM_NUMPY[array.dtype]
    except KeyError:
        raise InternalError(f"numpy dtype {array.dtype} has no DType") from None
