"""Executors of the Triton targets: in Triton's interpreter, compiled only, or on the GPU.

Loaded when such a target is first used.  Imports `backends.triton` and `runtime.arrays.allocation`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

from tedsl.backends.call_fragments import Inlined
from tedsl.backends.triton.compile import offline
from tedsl.backends.triton.emit import module as emitter
from tedsl.backends.triton.emit.program import TritonProgram
from tedsl.backends.triton.interpret import client as interpret
from tedsl.backends.triton.launch import launcher
from tedsl.devices import GpuDevice, gpu_like
from tedsl.errors import BackendError, within
from tedsl.expr.nodes import Var
from tedsl.ir.nodes import Buffer, HostCall, Module
from tedsl.runtime.arguments.signature import ArraySpec, Binding
from tedsl.runtime.arrays.allocation import numpy_at
from tedsl.runtime.arrays.views import CPU, Device, is_torch
from tedsl.runtime.cache.fingerprint import fingerprint
from tedsl.runtime.kernel import Executor, Launch
from tedsl.target import Target, TargetKind
from tedsl.tensor.foreign import run_on_host


def compile_unseen(
    module: Module, arch: str, sizes: Mapping[str, int] | None = None
) -> OfflineExecutor:
    """Compile what `make_triton_executor` would for a device of `arch` that is there, without it.

    Args:
        module: lowered for the target `cuda`.
        arch: `sm_90`.
        sizes: values of symbolic sizes in a call, by name: Triton compiles anew where others are
            multiples of 16, or one.

    Raises:
        BackendError: Triton or ptxas refused a kernel.
    """
    target, gpu = Target(TargetKind.CUDA), gpu_like("", arch)
    return OfflineExecutor(module, target, gpu, _integers(module, sizes or {}))


def compile_calls(module: Module, arch: str, calls: Sequence[Mapping[str, int]]) -> None:
    """Compile what calls will launch on a device of `arch`, without it: they find it on disk.

    Args:
        module: lowered for the target `cuda`.
        arch: `sm_90`.
        calls: for each the values of symbolic sizes, by name.

    Raises:
        BackendError: Triton or ptxas refused a kernel, or no call has these sizes.
    """
    program = emitter.emit(module, Target(TargetKind.CUDA), gpu_like("", arch))
    for sizes in calls:
        offline.compile_launched(program, arch, _integers(module, sizes) or {})


def _integers(module: Module, sizes: Mapping[str, int]) -> dict[Var, int] | None:
    """The values of the sizes of a module; None where one of them is not known."""
    whole = [size for size in module.sizes if not size.dtype.is_float]
    if any(size.name not in sizes for size in whole):
        return None
    return {size: sizes[size.name] for size in whole}


def make_triton_executor(module: Module, target: Target) -> Executor:
    """Triton source for `module`, and what runs or compiles it.

    Raises:
        BackendError: Triton or ptxas refused a kernel.
    """
    if target.kind is TargetKind.TRITON_INTERPRET:
        return InterpretExecutor(module, target)
    if target.arch is not None:
        return OfflineExecutor(module, target, target.resolve_gpu())
    return CudaExecutor(module, target)


def check_fits(executor: Executor) -> None:
    """Refuse kernels that the device has no shared memory for.

    Where all sizes are known, the kernels of a device that is there are compiled now instead of by
    the first call.

    Raises:
        BackendError: Triton or ptxas refused a kernel, or it needs more than there is.
    """
    if isinstance(executor, (OfflineExecutor, CudaExecutor)):
        needs, limit = executor.shared()
    else:
        return
    for kernel, needed in needs:
        if needed > limit:
            with within(kernel):
                raise BackendError(
                    f"kernel {kernel} needs {needed} bytes of shared memory, the device has "
                    f"{limit}",
                    hint="use smaller tiles or fewer pipeline stages",
                )


class InterpretExecutor:
    """Triton's own interpreter over host memory: slow, exact, for tests without a GPU."""

    device = CPU
    from_cache = False

    def __init__(self, module: Module, target: Target) -> None:
        self._module = module
        self._program = emitter.emit(module, target)

    @property
    def source(self) -> str:
        """The Triton source."""
        return self._program.source

    @property
    def asm(self) -> str:
        """There is none.

        Raises:
            BackendError: always.
        """
        raise BackendError(
            "Triton's interpreter makes no machine code",
            hint='build with target="cuda:sm_90" to see PTX',
        )

    @property
    def resources(self) -> Mapping[str, Any]:
        """Nothing: no machine code."""
        return {}

    @property
    def code(self) -> str:
        """A digest of the program."""
        return fingerprint(self._module)

    def check_runnable(self) -> None:
        """It runs anywhere."""

    def adopt(self, array: Any) -> Any:
        """Only its address is used."""
        return array

    def workspaces(self, binding: Binding) -> tuple[ArraySpec, ...]:
        """All of them."""
        return binding.workspaces

    def prepare(self, binding: Binding) -> Launch:
        """Bind the sizes of one call."""
        module = self._module
        buffers = (*module.inputs, *module.outputs, *module.workspaces)
        specs = (*binding.inputs, *binding.outputs, *binding.workspaces)
        count = len(module.inputs)
        sizes = dict(zip(module.sizes, binding.sizes, strict=True))
        runs = module.runs()

        def host(call: HostCall, arrays: Mapping[Buffer, Any]) -> None:
            ins = [arrays[buffer] for buffer in call.inputs]
            run_on_host(call.function, call.name, ins, [arrays[b] for b in call.outputs])

        def launch(pointers: Sequence[int], arrays: Sequence[Any]) -> None:
            views = [numpy_at(p, spec) for p, spec in zip(pointers, specs, strict=True)]
            # The interpreter writes every array back, and an input may be read-only.
            views[:count] = [array.copy() for array in views[:count]]
            arrays_of = dict(zip(buffers, views, strict=True))
            for run in runs:
                if isinstance(run, HostCall):
                    host(run, arrays_of)
                else:
                    interpret.run(self._program, arrays_of, sizes, places=run)

        return launch

    def inlined(self, binding: Binding) -> None:
        """A call does more than a line says."""


class OfflineExecutor:
    """Compiled for an architecture, without a device: to be looked at, not to be run."""

    device = Device("cuda")
    from_cache = False

    def __init__(
        self,
        module: Module,
        target: Target,
        gpu: GpuDevice,
        sizes: Mapping[Var, int] | None = None,
    ) -> None:
        self._program = emitter.emit(module, target, gpu)
        self._name = module.name
        self._gpu = gpu
        self._compiled = offline.compile_offline(self._program, gpu.arch, sizes=sizes)

    def shared(self) -> tuple[list[tuple[str, int]], int]:
        """The bytes of shared memory of each kernel, and what there is of it."""
        specs = zip(self._program.compiled, self._compiled, strict=True)
        return [(spec.func, info.shared) for spec, info in specs], self._gpu.shared_block

    @property
    def source(self) -> str:
        """The Triton source."""
        return self._program.source

    @property
    def asm(self) -> str:
        """The PTX of all kernels."""
        return "\n".join(dict.fromkeys(info.ptx for info in self._compiled))

    @property
    def resources(self) -> Mapping[str, offline.CompiledInfo]:
        """Per kernel: registers, stack (spills), shared memory, PTX and cubin."""
        return {info.name: info for info in self._compiled}

    @property
    def code(self) -> str:
        """A digest of the machine code and of how it is launched."""
        return _code(self._program, self._compiled)

    def check_runnable(self) -> NoReturn:
        """Refuse every call.

        Raises:
            BackendError: always.
        """
        raise BackendError(
            f"the kernel was compiled for {self._gpu.arch} only, it cannot be called",
            subject=self._name,
            hint='build with target="cuda" on a machine with a GPU, or with "triton-interpret"',
        )

    def adopt(self, array: Any) -> Any:
        """As it is."""
        return array

    def workspaces(self, binding: Binding) -> tuple[ArraySpec, ...]:
        """All of them."""
        return binding.workspaces

    def prepare(self, binding: Binding) -> Launch:
        """Refuse, as `check_runnable`."""
        self.check_runnable()

    def inlined(self, binding: Binding) -> None:
        """There are no calls."""


class CudaExecutor:
    """Launches on NVIDIA GPUs, with PyTorch's memory and current stream."""

    from_cache = False

    def __init__(self, module: Module, target: Target) -> None:
        self._gpu = target.resolve_gpu()
        self._program = emitter.emit(module, target, self._gpu)
        self._launcher = launcher.CudaProgram(self._program)
        self._compiled: list[offline.CompiledInfo] | None = None

    @cached_property
    def _torch(self) -> Any:
        return importlib.import_module("torch")

    def shared(self) -> tuple[list[tuple[str, int]], int]:
        """As of `OfflineExecutor`; nothing for a program of runtime sizes."""
        limit = self._gpu.shared_block
        if self._program.module.sizes:
            return [], limit
        return offline.compile_launched(self._program, self._gpu.arch, {}), limit

    @property
    def device(self) -> Device:
        """PyTorch's current device."""
        return Device("cuda", int(self._torch.cuda.current_device()))

    @property
    def source(self) -> str:
        """The Triton source."""
        return self._program.source

    @property
    def asm(self) -> str:
        """The PTX of all kernels, compiled for this device with no size known to divide by 16."""
        return "\n".join(dict.fromkeys(info.ptx for info in self._offline()))

    @property
    def resources(self) -> Mapping[str, offline.CompiledInfo]:
        """Per kernel: registers, stack (spills), shared memory, PTX and cubin; as for `asm`."""
        return {info.name: info for info in self._offline()}

    @property
    def code(self) -> str:
        """A digest of the machine code and of how it is launched; as for `asm`."""
        return _code(self._program, self._offline())

    def _offline(self) -> list[offline.CompiledInfo]:
        if self._compiled is None:
            self._compiled = offline.compile_offline(self._program, self._gpu.arch)
        return self._compiled

    def check_runnable(self) -> None:
        """The device was there when the kernel was built."""

    def adopt(self, array: Any) -> Any:
        """A PyTorch tensor over the same memory."""
        return array if is_torch(array) else self._torch.from_dlpack(array)

    def workspaces(self, binding: Binding) -> tuple[ArraySpec, ...]:
        """None: the launcher has its own."""
        return ()

    def prepare(self, binding: Binding) -> Launch:
        """Bind the sizes of one call."""
        return self._launcher.bound(binding.sizes, binding.device.index)

    def inlined(self, binding: Binding) -> Inlined | None:
        """The C launcher's calls, after a call with every address aligned."""
        return self._launcher.inlined(binding.sizes, binding.device.index)


def _code(program: TritonProgram, compiled: Sequence[offline.CompiledInfo]) -> str:
    """Equal for programs that launch the same machine code in the same way on the same buffers."""
    module = program.module
    if any(spec.call is not None for spec in program.kernels):
        return fingerprint(module)
    launches = tuple(
        (
            tuple((param.kind, param.buffer, param.var, param.block) for param in spec.params),
            spec.grid,
            spec.launch.num_ctas,
            spec.when,
            spec.assumptions,
            spec.spans,
        )
        for spec in program.kernels
    )
    spaces = (module.workspaces, module.counters)
    buffers = (module.inputs, module.outputs, *spaces, module.sizes, module.repeats)
    return fingerprint(*buffers, launches, tuple(info.code for info in compiled))
