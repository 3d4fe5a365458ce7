"""The CPU backend: loop IR at TILE level to LLVM IR to machine code.

Part of the sixth room; imports the expression, index and IR layers.  llvmlite is loaded on first
use.

- `emit`: loop IR to the text of an LLVM module
- `math`: mathematical functions in that text
- `run`: the text to machine code, and what runs it: JIT, thread pool
"""

from tedsl.backends.cpu.emit.intrinsics import link
from tedsl.backends.cpu.run.asm_stats import read_listing
from tedsl.backends.cpu.run.jit import CpuProgram, Signature, compile_module, load_object
from tedsl.backends.cpu.run.thread_pool import compile_pool, num_threads, set_num_threads
from tedsl.backends.cpu.run.thread_pool import ensure as ensure_pool

__all__ = [
    "CpuProgram",
    "Signature",
    "compile_module",
    "compile_pool",
    "ensure_pool",
    "link",
    "load_object",
    "num_threads",
    "read_listing",
    "set_num_threads",
]
