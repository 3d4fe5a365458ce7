"""The process's thread pool: compiled once, shared by every kernel, quiet at exit and after a
fork."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tedsl.backends.cpu.run import linking
from tedsl.backends.cpu.run.thread_pool_ir import RUNTIME
from tedsl.detect import MOST_THREADS
from tedsl.errors import BackendError
from tedsl.processor import Machine, binding, machine, usable_cores

SPINS = 800  # pauses (about 50 ns each) before a worker sleeps


@dataclass(frozen=True, slots=True)
class Pool:
    """The compiled runtime.  `engine` is never freed: sleeping workers return into its code."""

    engine: Any
    resize: Any
    stop: Any
    forked: Any


def available() -> int:
    """Threads that a parallel loop may have here."""
    return min(usable_cores(), MOST_THREADS)


def runtime_text(here: Machine) -> str:
    """The pool's LLVM assembly for a machine."""
    name, argument = "llvm.x86.sse2.pause", ""
    if here.triple.startswith(("aarch64", "arm64")):
        name, argument = "llvm.aarch64.hint", "i32 1"  # yield
    text = RUNTIME.replace("$TRIPLE", here.triple)
    if here.is_x86 or argument:
        text += f"\ndeclare void @{name}({argument[:3]})\n"
        text = text.replace("$PAUSE", f"call void @{name}({argument})")
    text = text.replace("$PAUSE", "")
    text = text.replace("$SPINS", str(SPINS))
    return text.replace("$SETMASK", "3" if platform.system() == "Darwin" else "2")


def compile_pool() -> bytes:
    """The pool's object code for this machine."""
    llvm = binding()
    module = llvm.parse_assembly(runtime_text(machine()))
    module.verify()
    linking.prepare(module)
    return bytes(_target_machine().emit_object(module))


def ensure(code: Callable[[], bytes] = compile_pool) -> Pool:
    """The pool, linked into this process at the first call from what `code` gives; generated code
    finds it as `tedsl_parallel_for`."""
    with _STARTING:
        if not _POOL:
            _POOL.append(_start(code()))
        return _POOL[0]


_STARTING = threading.Lock()
_POOL: list[Pool] = []


def _target_machine() -> Any:
    here = machine()
    return (
        binding()
        .Target.from_triple(here.triple)
        .create_target_machine(cpu=here.cpu, features=here.features, opt=2, reloc="pic", jit=True)
    )


def _start(code: bytes) -> Pool:
    """Link the pool's object code and start as many workers as there are processors."""
    llvm = binding()
    empty = llvm.parse_assembly("")
    empty.triple = machine().triple
    engine = linking.engine(empty, _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()

    def symbol(name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(engine.get_function_address(name))

    llvm.add_symbol("tedsl_parallel_for", engine.get_function_address("tedsl_parallel_for"))
    pool = Pool(
        engine,
        symbol("tedsl_pool_size", None, ctypes.c_int64),
        symbol("tedsl_pool_stop", ctypes.c_int64),
        symbol("tedsl_pool_forked", None),
    )
    pool.resize(available())
    _SIZE[0] = available()
    engine.detach()
    atexit.register(_at_exit, pool)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=pool.forked)
    return pool


_SIZE = [0]


def _at_exit(pool: Pool) -> None:
    """Let no worker run while the interpreter goes away; later kernels run alone."""
    pool.resize(1)
    pool.stop()


def num_threads() -> int:
    """How many threads a parallel loop may use, the caller included."""
    ensure()
    return _SIZE[0]


def set_num_threads(count: int) -> None:
    """Set how many threads parallel loops use, the caller included.

    Raises:
        BackendError: the count is not between 1 and 256, or a kernel is running in another thread.
    """
    if not 1 <= count <= MOST_THREADS:
        raise BackendError(
            f"the number of threads is {count}", hint=f"give a number from 1 to {MOST_THREADS}"
        )
    pool = ensure()
    if not pool.stop():
        raise BackendError(
            "the number of threads cannot change while a kernel runs", hint="wait for it to return"
        )
    pool.resize(count)
    _SIZE[0] = count
