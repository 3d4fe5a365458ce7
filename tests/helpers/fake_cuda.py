"""A GPU that does nothing: kernels built for it are launched into a Python function, on tensors of
PyTorch in host memory.  What a call costs the host, and what it launches, need no device."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import tedsl as te
from tedsl.backends.triton.launch import launcher as launching
from tedsl.runtime.arrays.views import CPU
from tedsl.runtime.executors import triton as triton_executors

Launched = Callable[..., object]


class Launcher:
    """A C launcher in the form of Triton 3.6, arguments in a row, that launches nothing."""

    global_scratch_size = 0
    profile_scratch_size = 0
    launch_cooperative_grid = False
    launch_pdl = False

    def __init__(self, launched: Launched) -> None:
        self.launch = launched

    def __call__(
        self, gridX: int, gridY: int, gridZ: int, stream: int, function: int, *args: Any
    ) -> None:
        raise AssertionError("the slow entry was used")


@contextmanager
def fake_cuda(launched: Launched) -> Generator[Callable[..., te.Kernel]]:
    """Inside, what is given builds for "cuda", on tensors in host memory; each launch calls
    `launched` as Triton 3.6 calls its launcher: (x, y, z, stream, ..., *arguments of the kernel).
    """
    torch = pytest.importorskip("torch")

    def compiled(function: Any, *_: object) -> Any:
        kernel = SimpleNamespace(
            run=Launcher(launched), function=function.__name__, packed_metadata=(), metadata=None
        )
        return kernel, {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        patch.setattr(torch.cuda, "current_device", int)
        patch.setattr(torch._C, "_cuda_getDevice", int, raising=False)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
        patch.setattr(triton_executors.CudaExecutor, "device", CPU)
        patch.setattr(launching, "_compiled", compiled)
        patch.setattr(launching, "_descriptor", lambda tensor, buffer, block: (buffer.name, block))
        empty = torch.empty

        def on_host(*args: Any, **options: Any) -> Any:
            return empty(*args, **{**options, "device": None})

        patch.setattr(torch, "empty", on_host)
        yield lambda tensors: te.build(tensors, "cuda")
