"""Modules with no kernels in them, and an executor that computes with a Python function."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tedsl.dtypes import DType
from tedsl.expr.nodes import Const, Expr, Var
from tedsl.ir.nodes import Buffer, Module
from tedsl.runtime.arguments import Binding
from tedsl.runtime.arrays import NUMPY_DTYPES
from tedsl.runtime.kernel import Kernel, Launch
from tedsl.target import Target


def buffer(name: str, *shape: int | Expr, dtype: DType = DType.float32) -> Buffer:
    extents = tuple(Const(n, DType.int32) if isinstance(n, int) else n for n in shape)
    return Buffer(name, dtype, extents)


def module(
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    sizes: Sequence[Var] = (),
    workspaces: Sequence[Buffer] = (),
) -> Module:
    return Module("f", tuple(inputs), tuple(outputs), tuple(workspaces), tuple(sizes), ())


class FakeExecutor:
    """Runs `fn(inputs..., outputs..., workspaces..., *sizes)` on NumPy views of the pointers."""

    source = "the source"
    asm = "the assembly"
    resources: Mapping[str, object] = {}

    def __init__(self, module: Module, fn: Callable[..., None], device_kind: str = "cpu") -> None:
        self.module = module
        self.fn = fn
        self.device_kind = device_kind
        self.prepared = 0
        self.launched = 0

    def prepare(self, binding: Binding) -> Launch:
        self.prepared += 1
        buffers = (*self.module.inputs, *self.module.outputs, *self.module.workspaces)

        def launch(pointers: Sequence[int], arrays: Sequence[Any]) -> None:
            self.launched += 1
            assert len(pointers) == len(arrays) == len(buffers)
            views = [
                memory(p, tuple(a.shape), b.dtype)
                for p, a, b in zip(pointers, arrays, buffers, strict=True)
            ]
            self.fn(*views, *binding.sizes)

        return launch


def memory(pointer: int, shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    """The array at an address."""
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, NUMPY_DTYPES[dtype])
    raw = (ctypes.c_char * (count * dtype.nbytes)).from_address(pointer)
    return np.frombuffer(raw, dtype=NUMPY_DTYPES[dtype]).reshape(shape)


def kernel(module: Module, fn: Callable[..., None], device_kind: str = "cpu") -> Kernel:
    return Kernel(module, Target.parse("cpu"), FakeExecutor(module, fn, device_kind))
