"""Triton kernels that users gave as text (extern operations), in the generated source file.

The text stands as it was given; a kernel of ours calls its function, so that it is compiled and
launched like all others.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tedsl.backends.triton.emit.names import Names, sanitise
from tedsl.backends.triton.emit.program import KernelSpec, Param, ParamKind
from tedsl.errors import LowerError
from tedsl.ir.nodes import Func, HostCall, Launch, Module
from tedsl.tensor.foreign import TritonKernel


@dataclass(frozen=True, slots=True)
class ForeignTexts:
    """The texts, each once, and the names that they define."""

    texts: tuple[str, ...]
    names: frozenset[str]


def foreign_texts(module: Module) -> ForeignTexts:
    """The users' texts in `module`.

    Raises:
        LowerError: two texts define one name differently.
    """
    texts: dict[str, None] = {}
    owner: dict[str, str] = {}
    for func in module.funcs:
        kernel = None if func.host_call is None else func.host_call.function
        if not isinstance(kernel, TritonKernel):
            continue
        texts[kernel.source] = None
        for name in _defined(kernel.source):
            if owner.setdefault(name, kernel.source) != kernel.source:
                raise LowerError(
                    f"two Triton kernels given as text define {name!r} differently",
                    subject=f"extern {func.name}",
                    hint=f"give {name} of one of them another name",
                )
    return ForeignTexts(tuple(f"\n{text}" for text in texts), frozenset(owner))


def _defined(source: str) -> tuple[str, ...]:
    """The functions and variables that a text defines."""
    found: list[str] = []
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name):
                found.append(name)
            case ast.Assign(targets=targets):
                found += [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.append(name)
            case _:
                pass
    return tuple(found)


def emit_call(func: Func, call: HostCall, names: Names) -> tuple[str, KernelSpec]:
    """The kernel that calls a user's function, or what stands for a call of the host: no text."""
    kernel = call.function
    if not isinstance(kernel, TritonKernel):
        return "", KernelSpec(func.name, (), (), func.launch, call=call)
    name = names.fresh(f"{func.name}_kernel" if sanitise(func.name) == kernel.name else func.name)
    own = Names(frozenset((name, kernel.name)))
    params = [
        Param(ParamKind.POINTER, own.fresh(buffer.name), buffer=buffer) for buffer in func.params
    ]
    places = {param.buffer: param.name for param in params}
    given = [places[buffer] for buffer in (*call.inputs, *call.outputs)]
    sizes = {var.name: var for var in func.sizes}
    for size in kernel.params[len(given) :]:
        param = Param(ParamKind.SIZE, own.fresh(size), var=sizes[size])
        params.append(param)
        given.append(param.name)
    head = f"\n@triton.jit\ndef {name}({', '.join(param.name for param in params)}):"
    text = f"{head}\n    {kernel.name}({', '.join(given)})\n"
    launch = Launch(num_warps=kernel.num_warps, num_stages=kernel.num_stages)
    spec = KernelSpec(name, tuple(params), kernel.grid, launch, func=func.name, title=func.name)
    return text, spec
