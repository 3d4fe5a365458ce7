"""The process's thread pool: compiled once, shared by every kernel, quiet at exit and after a
fork.  Beside PyTorch it is PyTorch's."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tedsl.backends.cpu.run import linking
from tedsl.backends.cpu.run.thread_pool_ir import RUNTIME
from tedsl.detect import MOST_THREADS
from tedsl.errors import BackendError
from tedsl.processor import Machine, binding, machine, usable_cores

# Pauses of about 50 ns before a worker sleeps.  To wake 15 others takes 100 us and more; OpenMP's
# threads look for work for milliseconds.
SPINS = 8000
# Nanoseconds that the caller waits for the others of a team, from which their processors are taken
# to be busy with something else.
PATIENCE = 1_000_000


@dataclass(frozen=True, slots=True)
class Pool:
    """The compiled runtime.  `engine` is never freed: sleeping workers return into its code."""

    engine: Any
    resize: Any
    join: Any
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
    text = text.replace("$SPINS", str(SPINS)).replace("$MOST", str(MOST_THREADS))
    text = text.replace("$PATIENCE", str(PATIENCE))
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
        pool = _POOL[0]
        if not _CHOSEN and not _TEAM and (torch := sys.modules.get("torch")) is not None:
            _TEAM.append(openmp_of(torch))
            if _TEAM[0] is not None:
                pool.join(*(ctypes.cast(each, ctypes.c_void_p) for each in _TEAM[0]))
        return pool


def openmp_of(torch: Any) -> tuple[Any, Any, Any] | None:
    """`GOMP_parallel`, `omp_get_thread_num` and `omp_get_max_threads` of the OpenMP library that
    PyTorch's kernels run in; None where it has another one."""
    path = Path(getattr(torch, "__file__", None) or "").parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_max_threads
    except (OSError, AttributeError):  # not loaded, or without OpenMP or with LLVM's
        return None


_STARTING = threading.Lock()
_POOL: list[Pool] = []
_TEAM: list[tuple[Any, Any, Any] | None] = []  # once PyTorch was asked
_CHOSEN: list[int] = []  # the number of threads that was asked for


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
        symbol("tedsl_pool_team", None, *[ctypes.c_void_p] * 3),
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
    pool.join(None, None, None)
    pool.resize(1)
    pool.stop()


def num_threads() -> int:
    """How many threads a parallel loop may use, the caller included: PyTorch's, once that is
    imported and until `set_num_threads` is called."""
    ensure()
    team = None if _CHOSEN or not _TEAM else _TEAM[0]
    return _SIZE[0] if team is None else min(int(team[2]()), MOST_THREADS)


def set_num_threads(count: int) -> None:
    """Set how many threads parallel loops use, the caller included; they are no longer PyTorch's.

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
    pool.join(None, None, None)
    pool.resize(count)
    _SIZE[0] = count
    _CHOSEN[:] = [count]
