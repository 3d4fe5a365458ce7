"""Machine code in this process: sections side by side, and calls that reach any distance.

LLVM's own memory manager takes each section from where there is room, and aborts the process when
two of them lie more than 2 GiB apart, as happens where libraries have reserved much of the address
space.  llvmlite's takes all sections in one piece.  It has no room for stubs of calls, so that
calls of other libraries go through the table of addresses instead (`prepare`).
"""

from __future__ import annotations

from typing import Any

from tedsl.processor import binding

# For calls that LLVM itself makes, of memset for example.
_TABLE = '!llvm.module.flags = !{!0}\n!0 = !{i32 7, !"RtLibUseGOT", i32 1}\n'


def prepare(module: Any) -> None:
    """Make calls of a module go through the table of addresses; comes after optimising."""
    llvm = binding()
    flags = llvm.parse_assembly(_TABLE)
    flags.triple, flags.data_layout = module.triple, module.data_layout
    module.link_in(flags)
    for function in module.functions:
        if function.is_declaration and not function.name.startswith("llvm."):
            function.add_function_attribute("nonlazybind")


def engine(module: Any, target_machine: Any) -> Any:
    """An engine whose modules and object files have their sections side by side."""
    return binding().create_mcjit_compiler(module, target_machine, use_lmm=True)
