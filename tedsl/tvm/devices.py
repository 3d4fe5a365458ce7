"""TVM's devices: `tvm.cpu(0)`, `tvm.cuda(0)`, `tvm.device("llvm", 0)`.

A kernel here runs where its arrays are; a device says where `nd.array` puts one.  Imports
`like_module`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

from tedsl.runtime.like_module import Device
from tedsl.target import Target, TargetKind

_ELSEWHERE = ("aocl", "hexagon", "metal", "opencl", "rocm", "sdaccel", "vulkan", "webgpu")
"""Kinds of devices that there are in TVM alone."""


def device(dev_type: str, dev_id: int = 0) -> Device:
    """The device of a target.

    Args:
        dev_type: `"cpu"`, `"cuda"` or a target's text, `"llvm"`; of a kind that only TVM has, as
            `"vulkan"` is, it is a device that does not exist.
        dev_id: its number, of several.

    Raises:
        BackendError: there is no such target.
    """
    elsewhere = str(dev_type).split(" ")[0]
    if elsewhere in _ELSEWHERE:
        return Device(elsewhere, dev_id)
    kind = Target.parse(dev_type).kind
    return Device("cuda" if kind is TargetKind.CUDA else "cpu", dev_id)


def cpu(dev_id: int = 0) -> Device:
    """The processor."""
    return Device("cpu", dev_id)


def cuda(dev_id: int = 0) -> Device:
    """A GPU."""
    return Device("cuda", dev_id)


gpu = cuda
context = device


def generic_func(fdefault: Callable[..., Any]) -> Any:
    """A function of which `register("cuda")` decorates another for a target: it is called within
    the block of such a target."""
    others: dict[str, Any] = {}

    @wraps(fdefault)
    def chosen(*args: Any, **options: Any) -> Any:
        around = Target.current()
        keys = around.keys if around is not None else ()
        found = next((others[key] for key in keys if key in others), fdefault)
        return found(*args, **options)

    def register(keys: str | list[str], func: Any = None, override: bool = True) -> Any:
        if func is None:
            return partial(register, keys)
        for key in [keys] if isinstance(keys, str) else keys:
            others[key] = func
        return func

    vars(chosen)["register"] = register
    return chosen


def target_of_cuda(model: str = "", options: str = "", arch: str | None = None) -> Target:
    """TVM's `tvm.target.cuda()`: an NVIDIA GPU.

    Args:
        model: a name, of which nothing follows here.
        options: `"-arch=sm_80"`, and others that are not needed.
        arch: the architecture.
    """
    return Target(f"cuda {options}".strip(), arch)


def llvm_version_major(allow_none: bool = False) -> int:
    """The version of LLVM that code for the processor is made by."""
    return int(importlib.import_module("llvmlite.binding").llvm_version_info[0])


codegen = SimpleNamespace(llvm_version_major=llvm_version_major)
