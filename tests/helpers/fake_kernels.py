"""Modules with no kernels in them, and an executor that computes with a Python function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr.nodes import Const, Expr, Var
from tedsl.ir.nodes import Buffer, Module
from tedsl.runtime.arguments.signature import ArraySpec, Binding
from tedsl.runtime.arrays.allocation import numpy_at
from tedsl.runtime.arrays.views import Device
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
    from_cache = False
    resources: Mapping[str, Any] = {}
    code = ""

    def __init__(self, module: Module, fn: Callable[..., object], device_kind: str = "cpu") -> None:
        self.module = module
        self.fn = fn
        self.device = Device(device_kind)
        self.prepared = 0
        self.launched = 0

    def check_runnable(self) -> None:
        pass

    def adopt(self, array: Any) -> Any:
        return array

    def workspaces(self, binding: Binding) -> tuple[ArraySpec, ...]:
        return binding.workspaces

    def prepare(self, binding: Binding) -> Launch:
        self.prepared += 1
        specs = (*binding.inputs, *binding.outputs, *binding.workspaces)

        def launch(pointers: Sequence[int], arrays: Sequence[Any]) -> None:
            self.launched += 1
            assert len(pointers) == len(arrays)
            views = [numpy_at(p, spec) for p, spec in zip(pointers, specs, strict=True)]
            self.fn(*views, *binding.sizes)

        return launch

    def inlined(self, binding: Binding) -> None:
        pass


def kernel(module: Module, fn: Callable[..., object], device_kind: str = "cpu") -> Kernel:
    return Kernel(module, Target.parse("cpu"), FakeExecutor(module, fn, device_kind))
