"""Every Triton kernel that a test generates goes through ptxas, for each architecture, on no GPU.

`watch` notes each module that is lowered for Triton or printed as Triton; `compile_noted` prints
it for the three architectures and compiles what is new.  Two kernels are the same when their text
differs in names and comments only.  The processes of a run share what is done through a folder,
whose path its workers inherit.

Left out, and counted, is a kernel that holds or stores more than `VALUES` elements of one tile
in each thread: ptxas takes minutes over it, and a thread has 255 registers.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tedsl.backends.triton import emit as emitter
from tedsl.backends.triton.offline import compile_offline, signature
from tedsl.backends.triton.program import KernelSpec, TritonProgram
from tedsl.errors import BackendError, LowerError
from tedsl.expr.integers import constant
from tedsl.ir.nodes import Allocate, Func, Module, Store
from tedsl.ir.visit import walk_stmts
from tedsl.lower import pipeline
from tedsl.target import Target

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
LEFT_OUT = "left_out"
VALUES = 256
FOLDER = "TEDSL_TESTS_COMPILED"
_emit = emitter.emit
_noted: dict[int, Module] = {}


def watch() -> Callable[[], None]:
    """Note what is generated from now on.  Call it before tests import `emit` and `lower`.

    Returns:
        What to call at the end of the run.
    """
    folder = None
    if FOLDER not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="tedsl-kernels-")
        os.environ[FOLDER] = folder.name

    def emit(module: Module, target: Target | str) -> TritonProgram:
        program = _emit(module, target)
        _noted[id(module)] = module
        return program

    def lower(plan: Any, target: Target, **options: Any) -> Module:
        module = lowering(plan, target, **options)
        if target.is_triton:
            _noted[id(module)] = module
        return module

    def stop() -> None:
        if folder is not None:
            del os.environ[FOLDER]
            folder.cleanup()

    lowering = pipeline.lower
    emitter.emit = functools.wraps(_emit)(emit)
    pipeline.lower = functools.wraps(lowering)(lower)
    return stop


def counts() -> dict[str, int]:
    """Different kernels compiled so far in this run, by architecture."""
    if FOLDER not in os.environ:
        return {}
    return Counter(path.suffix[1:] for path in Path(os.environ[FOLDER]).iterdir())


def forget() -> None:
    """Drop what was noted."""
    _noted.clear()


def compile_noted() -> None:
    """Compile the kernels that were noted and that no test of this run has compiled.

    Raises:
        BackendError: a kernel that Triton or ptxas refuses; its source is in the message.
    """
    modules = list(_noted.values())
    _noted.clear()
    if FOLDER not in os.environ:
        return
    for module in modules:
        for arch in ARCHITECTURES:
            try:
                program = _emit(module, f"cuda:{arch}")
            except LowerError:  # the test sees the same refusal when it builds
                continue
            _compile_new(program, arch, Path(os.environ[FOLDER]))


def _compile_new(program: TritonProgram, arch: str, done: Path) -> None:
    new: dict[Path, KernelSpec] = {}
    funcs = [
        func
        for func, spec in zip(program.module.funcs, program.kernels, strict=True)
        if spec.call is None
    ]
    pairs = zip(_digests(program.source, program.compiled), funcs, strict=True)
    for (digest, spec), func in pairs:
        path = done / f"{digest}.{arch}"
        if _largest_tile(func) > VALUES * 32 * spec.num_warps:
            path.with_suffix(f".{LEFT_OUT}").touch()
        elif not path.exists():
            new[path] = spec
    if not new:
        return
    try:
        compile_offline(replace(program, kernels=tuple(new.values())), arch)
    except BackendError as error:
        raise BackendError(
            f"a generated kernel does not compile: {error.reason}",
            facts=[*error.facts, ("source", program.source)],
            hint=error.hint,
        ) from error
    for path in new:
        path.touch()


def _largest_tile(func: Func) -> int:
    """Elements of the largest tile that a program holds in registers or stores."""
    sizes = [1]
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, Store):
            sizes.append(math.prod(axis.extent for axis in stmt.tile))
        elif isinstance(stmt, Allocate):
            sizes.append(math.prod(constant(extent) or 1 for extent in stmt.buffer.shape))
    return max(sizes)


@functools.lru_cache(maxsize=64)
def _digests(source: str, kernels: tuple[KernelSpec, ...]) -> tuple[tuple[str, KernelSpec], ...]:
    functions = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    return tuple((_digest(spec, functions), spec) for spec in kernels)


def _digest(spec: KernelSpec, functions: dict[str, ast.FunctionDef]) -> str:
    """Equal for kernels that are one but for names: its form, its helpers, its signature."""
    parts = [_form(functions[spec.name]), *map(_form, _helpers(spec.name, functions))]
    parts += [signature(param) for param in spec.params]
    parts += [f"{name}={value}" for name, value in sorted(spec.options().items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _helpers(name: str, functions: dict[str, ast.FunctionDef]) -> Iterator[ast.FunctionDef]:
    used = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
    for other in sorted(used & functions.keys()):
        yield functions[other]
        yield from _helpers(other, functions)


def _form(function: ast.FunctionDef) -> str:
    """The syntax of a function, with its own names replaced in the order of their appearance."""
    names: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            names.setdefault(node.arg, f"v{len(names)}")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, f"v{len(names)}")
    body = [_Renamed(names).visit(ast.parse(ast.unparse(stmt))) for stmt in function.body]
    return "\n".join([str(len(function.args.args)), *map(ast.unparse, body)])


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)
