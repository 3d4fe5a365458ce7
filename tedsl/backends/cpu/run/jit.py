"""LLVM text to machine code, and machine code to something that can be called."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tedsl.backends.cpu.emit.intrinsics import check_texts, link
from tedsl.backends.cpu.emit.module import check_module, emit_module, entry_name
from tedsl.backends.cpu.run import linking, thread_pool
from tedsl.backends.cpu.run.single_lanes import store_single_lanes
from tedsl.errors import InternalError
from tedsl.ir.nodes import Module
from tedsl.processor import Machine, binding, machine
from tedsl.target import Target


@dataclass(frozen=True, slots=True)
class Signature:
    """What a program takes: a number of pointers, then one letter per size, `i` for integers and
    `f` for floats; and how many entries it has, all with these arguments."""

    pointers: int
    sizes: str = ""
    entries: int = 1

    @property
    def format(self) -> str:
        """The `struct` format of the argument array."""
        return "=" + "Q" * self.pointers + self.sizes.replace("i", "q").replace("f", "d")


class CpuProgram:
    """Machine code of one module, loaded into this process.

    `call(*pointers, *sizes)` runs it; pointers are addresses of inputs, outputs and workspaces in
    module order.  Where the host is called between kernels, `calls` are the parts before, between
    and after, and `call` is the first of them.
    """

    def __init__(
        self,
        object_code: bytes,
        signature: Signature,
        llvm_ir: str = "",
        optimised: bytes = b"",
    ) -> None:
        self._optimised = optimised  # LLVM's bitcode
        self.object_code = object_code
        self.signature = signature
        self.llvm_ir = llvm_ir
        self._engine = _load(object_code)
        self._pack = struct.Struct(signature.format).pack
        self._asm: str | None = None
        self.calls = tuple(self._caller(entry_name(n)) for n in range(signature.entries))

    @property
    def call(self) -> Callable[..., None]:
        """The first part, which is all of it unless the host is called between kernels."""
        return self.calls[0]

    def _caller(self, name: str) -> Callable[..., None]:
        address = self._engine.get_function_address(name)
        pack, function = self._pack, ctypes.CFUNCTYPE(None, ctypes.c_char_p)(address)

        def call(*arguments: int | float) -> None:
            function(pack(*arguments))

        return call

    def entry(self, pointers: Sequence[int], sizes: Sequence[int | float] = ()) -> None:
        """Run the program on addresses of buffers and values of runtime scalars."""
        for call in self.calls:
            call(*pointers, *sizes)

    @property
    def asm(self) -> str:
        """The assembly, made on first use; empty for a program loaded from object code."""
        if self._asm is None:
            made = binding().parse_bitcode(self._optimised) if self._optimised else None
            self._asm = "" if made is None else str(_target_machine().emit_assembly(made))
        return self._asm


def compile_module(module: Module, target: Target) -> CpuProgram:
    """Compile a module at TILE level for this machine.

    Raises:
        BackendError: something in it cannot run on the CPU.
    """
    del target  # there is one CPU target: the machine itself
    check_module(module)
    check_texts(module)
    link(module)
    text = emit_module(module)
    count = len(module.inputs) + len(module.outputs) + len(module.workspaces)
    sizes = "".join("f" if v.dtype.is_float else "i" for v in module.sizes)
    entries = sum(isinstance(run, tuple) for run in module.runs())
    optimised = _optimised(text)
    bitcode = bytes(optimised.as_bitcode())  # before code generation, which rewrites the module
    code = bytes(_target_machine().emit_object(optimised))
    return CpuProgram(code, Signature(count, sizes, entries), text, bitcode)


def load_object(object_code: bytes, signature: Signature) -> CpuProgram:
    """A program from object code that `compile_module` made on this machine; `link` comes before
    where that calls C functions."""
    return CpuProgram(object_code, signature)


def _target_machine() -> Any:
    return _machine_for(machine())


@lru_cache(maxsize=4)
def _machine_for(here: Machine) -> Any:
    llvm = binding()
    target = llvm.Target.from_triple(here.triple)
    return target.create_target_machine(
        cpu=here.cpu, features=here.features, opt=3, reloc="pic", codemodel="default", jit=True
    )


def _optimised(text: str) -> Any:
    """Parse, verify and run the optimiser once."""
    llvm = binding()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(
            f"LLVM refused generated code: {error}", facts=[("code", text)]
        ) from error
    options = llvm.PipelineTuningOptions(speed_level=3)
    options.slp_vectorization = False
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(_target_machine(), options)
    builder.getModulePassManager().run(module, builder)
    module = store_single_lanes(module)
    linking.prepare(module)
    return module


def _load(object_code: bytes) -> Any:
    """Link object code into this process."""
    llvm = binding()
    thread_pool.ensure()
    empty = llvm.parse_assembly("")
    empty.triple = machine().triple
    tm = llvm.Target.from_triple(machine().triple).create_target_machine(
        cpu=machine().cpu, features=machine().features, opt=3, reloc="pic", jit=True
    )
    engine = linking.engine(empty, tm)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    return engine
