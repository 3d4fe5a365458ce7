"""One executor per target: how a module becomes code, and how a call runs it.

Backends are loaded when their target is first used.  Imports `backends` (lazily) and
`runtime.cache`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tedsl.detect import is_told
from tedsl.errors import BackendError
from tedsl.ir.nodes import HostCall, Module
from tedsl.packages import install
from tedsl.runtime.arguments.signature import ArraySpec, Binding
from tedsl.runtime.arrays.views import CPU
from tedsl.runtime.cache.disk import DiskCache, disk_cache
from tedsl.runtime.cache.fingerprint import code_version, fingerprint, tool_versions
from tedsl.runtime.calls.host_steps import HostSteps
from tedsl.runtime.kernel import Executor, Launch
from tedsl.target import Target, TargetKind

_SIGNATURE = re.compile(rb"(\d{1,9}) ([if]*) (\d{1,9})")
"""Of a program in the cache: how many pointers, the types of the sizes, how many entries."""


def check_target(target: Target) -> None:
    """Refuse a target that this machine cannot serve, before any work is done for it.

    Raises:
        BackendError: a missing package or device.
    """
    needs: dict[TargetKind, tuple[str, ...]] = {
        TargetKind.CPU: ("llvmlite",),
        TargetKind.CUDA: ("triton",) if target.arch else ("triton", "torch"),
        TargetKind.TRITON_INTERPRET: ("triton",),
    }
    for package in needs[target.kind]:
        if importlib.util.find_spec(package) is None:
            raise BackendError(
                f"target {target} needs the package {package}",
                hint=f"{install(package)}, or use another target",
            )
    if target.kind is TargetKind.CUDA and target.arch is None and not is_told():
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise BackendError(
                "target cuda: PyTorch finds no NVIDIA GPU",
                facts=[("torch", str(torch.__version__))],
                hint='use target="cpu"; or "cuda:sm_90" to compile without running',
            )


def make_executor(
    module: Module, target: Target, *, cache: bool = True, digest: str | None = None
) -> Executor:
    """Compile `module` for `target`.

    Args:
        module: lowered for the same target.
        target: where it is to run.
        cache: read and write the on-disk cache.
        digest: the module's fingerprint, where that is known.

    Raises:
        BackendError: the target's compiler or device refused, or there is no such device.
    """
    if target.kind is TargetKind.CPU:
        return CpuExecutor(module, target, cache, digest)
    triton = importlib.import_module("tedsl.runtime.executors.triton")
    executor: Executor = triton.make_triton_executor(module, target)
    return executor


def check_fits(executor: Executor, target: Target) -> None:
    """Refuse a program that the device has no room for.

    Raises:
        BackendError: which kernel, what it needs, and what there is.
    """
    if target.kind is TargetKind.CUDA:
        triton = importlib.import_module("tedsl.runtime.executors.triton")
        triton.check_fits(executor)


class CpuExecutor:
    """Machine code of this process's CPU, from the cache or from LLVM."""

    device = CPU

    def __init__(
        self, module: Module, target: Target, cache: bool, digest: str | None = None
    ) -> None:
        self._module = module
        self._digest = digest
        self._target = target
        self._backend: Any = importlib.import_module("tedsl.backends.cpu")
        self.from_cache = False
        self._compiled: Any = None
        self._program: Any = self._load() if cache else self._compile()

    def _compile(self) -> Any:
        if self._compiled is None:
            self._compiled = self._backend.compile_module(self._module, self._target)
        return self._compiled

    def _load(self) -> Any:
        """The program of the cache, else a fresh one, which is then kept there."""
        disk = disk_cache()
        if disk is None:
            return self._compile()
        self._backend.ensure_pool(lambda: _pool_code(disk))
        key = cpu_key(self._module, self._target, self._digest)
        parts = disk.get(key, "object", "signature")
        found = None if parts is None else _SIGNATURE.fullmatch(parts["signature"])
        if parts is not None and found is not None:
            self.from_cache = True
            pointers, sizes, entries = found.groups()
            signature = self._backend.Signature(int(pointers), sizes.decode(), int(entries))
            self._backend.link(self._module)
            return self._backend.load_object(parts["object"], signature)
        program = self._compile()
        made = program.signature
        text = f"{made.pointers} {made.sizes} {made.entries}"
        disk.put(key, {"object": program.object_code, "signature": text.encode()})
        return program

    @property
    def source(self) -> str:
        """The LLVM IR, made again when the machine code came from the cache."""
        return self._compile().llvm_ir

    @property
    def asm(self) -> str:
        """The assembly."""
        return self._compile().asm

    @property
    def resources(self) -> Mapping[str, Any]:
        """Of the whole program: instructions, vectors, spills and stack, from the assembly; nothing
        when the machine code came from the cache."""
        if self._compiled is None:
            return {}
        return {self._module.name: self._backend.read_listing(self._compiled.asm)}

    @property
    def code(self) -> str:
        """A digest of the machine code and of how it is called."""
        module = self._module
        if any(func.host_call is not None for func in module.funcs):
            return fingerprint(module)
        digest = hashlib.sha256(self._program.object_code)
        given = (module.inputs, module.outputs, module.workspaces, module.sizes)
        return fingerprint(*given, object=digest.hexdigest())

    def check_runnable(self) -> None:
        """It was made for this machine."""

    def adopt(self, array: Any) -> Any:
        """Only its address is used."""
        return array

    def workspaces(self, binding: Binding) -> tuple[ArraySpec, ...]:
        """All of them."""
        return binding.workspaces

    def prepare(self, binding: Binding) -> Launch:
        """Bind the sizes of one call."""
        sizes = binding.sizes
        if any(isinstance(run, HostCall) for run in self._module.runs()):
            return self._with_host(binding)
        call = self._program.call

        def launch(pointers: Sequence[int], arrays: Sequence[Any]) -> None:
            call(*pointers, *sizes)

        return launch

    def inlined(self, binding: Binding) -> None:
        """Calls are made through `prepare`'s function."""

    def _with_host(self, binding: Binding) -> Launch:
        """The parts of the program, with calls of the host between them."""
        host, sizes = HostSteps(self._module, binding), binding.sizes
        parts = iter(self._program.calls)
        steps = [
            host.step(run) if isinstance(run, HostCall) else _part(next(parts), sizes)
            for run in self._module.runs()
        ]

        def launch(pointers: Sequence[int], arrays: Sequence[Any]) -> None:
            for step in steps:
                step(pointers)

        return launch


def _pool_code(disk: DiskCache) -> bytes:
    """The object code of the pool of threads, from the cache or compiled and kept there."""
    backend = importlib.import_module("tedsl.backends.cpu")
    key = fingerprint(pool="threads", **_cpu_facts())
    parts = disk.get(key, "object")
    if parts is None:
        parts = {"object": backend.compile_pool()}
        disk.put(key, parts)
    return parts["object"]


def _part(call: Callable[..., None], sizes: Sequence[Any]) -> Callable[[Sequence[int]], None]:
    return lambda pointers: call(*pointers, *sizes)


def cpu_key(module: Module, target: Target, digest: str | None = None) -> str:
    """What machine code depends on: program, target, this CPU, this compiler and its tools."""
    program = fingerprint(module) if digest is None else digest
    return fingerprint(program=program, target=str(target), **_cpu_facts())


def _cpu_facts() -> dict[str, str]:
    """This CPU, this compiler and its tools."""
    machine = importlib.import_module("tedsl.processor").machine()
    return {
        "machine": repr(machine),
        "code": code_version(),
        "tools": tool_versions("llvmlite", "numpy"),
    }
