"""The exact shared memory of a kernel for a fraction of the cost of compiling: Triton is stopped
after its middle end, before LLVM and ptxas.

Triton's middle end decides what is staged and in how many stages; LLVM and ptxas, which take most
of the time, change nothing about it.  What is used of Triton is no public interface, so all of it
stands in `allocated`; where that does not fit the installed version the kernel is compiled whole.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tedsl.backends.triton.compile import offline
from tedsl.backends.triton.emit.program import TritonProgram
from tedsl.expr.nodes import Var


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a kernel asks for, in bytes of shared memory a program, and its warps."""

    name: str
    shared: int
    num_warps: int


def allocate(
    program: TritonProgram, arch: str = "sm_90", sizes_divisible: Collection[Var] = ()
) -> list[Allocation]:
    """The shared memory of each kernel of a program.

    Args:
        program: made by `emit`.
        arch: "sm_80", "sm_90" or "sm_100".
        sizes_divisible: runtime sizes to assume divisible by 16.

    Raises:
        BackendError: Triton refused a kernel.
    """
    requests = offline.requests_of(program, arch, sizes_divisible)
    found = {request["name"]: request for request in requests}
    made = {name: _one(request) for name, request in found.items()}
    return [replace(made[spec.name], name=spec.title) for spec in program.compiled]


def _one(request: Mapping[str, Any]) -> Allocation:
    try:
        shared, warps = allocated(request)
        return Allocation(request["name"], shared, warps)
    except (AttributeError, ImportError, KeyError, TypeError):
        info = offline.compile_request(request)
        return Allocation(request["name"], info.shared, info.num_warps)


def allocated(request: Mapping[str, Any]) -> tuple[int, int]:
    """(bytes of shared memory, warps) of a kernel, by the passes up to the allocation.

    Raises:
        BackendError: Triton refused the kernel.
        AttributeError, ImportError, KeyError, TypeError: this version of Triton is built otherwise.
    """
    compiler: Any = importlib.import_module("triton.compiler.compiler")
    library: Any = importlib.import_module("triton._C.libtriton")
    nvidia: Any = importlib.import_module("triton.backends.nvidia.compiler")
    source, target = offline.ast_source(request)
    backend = compiler.make_backend(target)
    options = backend.parse_options({**source.parse_options(), **request["options"]})
    context = library.ir.context()
    library.ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    before, after = stages["ttir"], stages["ttgir"]
    metadata: dict[str, Any] = {}
    manager = library.ir.pass_manager(context)
    library.passes.ttgpuir.add_allocate_warp_groups(manager, *_more(nvidia))
    library.passes.convert.add_scf_to_cf(manager)
    capability = target.arch
    ptx_version = nvidia.get_ptx_version_from_options(options, capability)
    allocation = library.nvidia.passes.ttgpuir.add_allocate_shared_memory_nv
    allocation(manager, capability, ptx_version)
    given = (
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    errors = offline.compile_errors()
    try:
        module = source.make_ir(target, options, *given)
        module = after(before(module, metadata), metadata)
        manager.run(module, "allocate")
    except errors as error:
        raise offline.refusal(request, error) from error
    warps = module.get_int_attr("ttg.total-num-warps") or options.num_warps
    return int(module.get_int_attr("ttg.shared")), int(warps)


def _more(nvidia: Any) -> tuple[bool, ...]:
    """The further arguments that the pass over warp groups takes since Triton 3.8."""
    return (False,) if hasattr(nvidia, "is_enabled") else ()
