"""TVM's arrays: `tvm.nd.array(x, dev)`, `.numpy()`.

On a processor they are NumPy arrays, on a GPU they hold a PyTorch tensor.  Kernels take both, and
NumPy arrays and tensors themselves: nothing has to be wrapped.  Imports `devices`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr.numerics import numpy_dtype
from tedsl.expr.promote import DTypeLike, as_dtype
from tedsl.slips import is_same
from tedsl.tvm.devices import Device, cpu
from tedsl.tvm.modules import of_te


class NDArray(np.ndarray[Any, Any]):
    """A NumPy array with TVM's methods."""

    @property
    def device(self) -> Any:
        """Where it is."""
        return cpu()

    def numpy(self) -> Any:
        """A copy that is a plain array."""
        return np.array(self)

    asnumpy = numpy
    same_as = is_same

    def copyfrom(self, source: Any) -> NDArray:
        """Take the values of another array of the same shape."""
        self[...] = np.asarray(source)
        return self

    def copyto(self, target: Any) -> Any:
        """Give the values to another array, or to a new one on a device."""
        return array(self, target) if isinstance(target, Device) else target.copyfrom(self)


class GpuArray:
    """An array on a GPU, seen by kernels through DLPack.

    Attributes:
        tensor: the PyTorch tensor that it is.
    """

    def __init__(self, tensor: Any, device: Device) -> None:
        self.tensor, self.device = tensor, device

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """The type of its elements."""
        return str(self.tensor.dtype).rpartition(".")[2]

    def numpy(self) -> Any:
        """A copy that is a NumPy array."""
        return self.tensor.cpu().numpy()

    asnumpy = numpy

    def copyfrom(self, source: Any) -> GpuArray:
        """Take the values of another array of the same shape."""
        torch: Any = importlib.import_module("torch")
        values = source.numpy() if isinstance(source, GpuArray) else np.ascontiguousarray(source)
        self.tensor.copy_(torch.from_numpy(np.asarray(values)))
        return self

    def copyto(self, target: Any) -> Any:
        """Give the values to another array, or to a new one on a device."""
        if isinstance(target, Device):
            return array(self.numpy(), target)
        return target.copyfrom(self.numpy())

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def array(arr: Any, device: Device | None = None, ctx: Device | None = None) -> NDArray | GpuArray:
    """A copy of an array, a number or nested lists, on a device.

    Args:
        arr: the values; lists are float32, as TVM's are.
        device: by default the processor.
        ctx: what `device` was called before.
    """
    known = arr if hasattr(arr, "dtype") else np.asarray(arr, "float32")
    values = known.numpy() if isinstance(known, GpuArray) else known
    made = empty(values.shape, values.dtype, device or ctx)
    made.copyfrom(values)
    return made


def empty(
    shape: Sequence[int] | int,
    dtype: DTypeLike = DType.float32,
    device: Device | None = None,
    ctx: Device | None = None,
) -> NDArray | GpuArray:
    """An array of no particular values.

    Args:
        shape: its extents.
        dtype: the type of its elements.
        device: by default the processor.
        ctx: what `device` was called before.

    Raises:
        ExprError: there is no such dtype.
        BackendError: there is no such device here.
    """
    device = device or ctx
    if device is not None and not device.exist:
        raise BackendError(
            f"there is no device {device} here",
            hint="tvm.cpu(0), or tvm.cuda(0) where there is an NVIDIA GPU; device.exist tells",
        )
    extents = (shape,) if isinstance(shape, int) else tuple(int(extent) for extent in shape)
    kind = as_dtype(dtype)
    if device is None or device.device_type == "cpu":
        return np.empty(extents, numpy_dtype(kind)).view(NDArray)
    torch: Any = importlib.import_module("torch")
    where = f"{device.device_type}:{device.index}"
    return GpuArray(torch.empty(extents, dtype=getattr(torch, kind.value), device=where), device)


__getattr__ = of_te
