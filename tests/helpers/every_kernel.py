"""Every Triton kernel that a test generates goes through ptxas, on no GPU.

`watch` notes each module that is lowered for Triton or printed as Triton; `compile_noted` prints
it and compiles what is new.  Two kernels are the same when their text differs in names and
comments only.  The processes of a run share what is done through a folder, whose path its workers
inherit.

A kernel with something in it that Triton compiles in another way on each architecture (`DIFFERENT`)
is compiled for one of the three of data centres; one in `SHARE` for two of these, one for one of
these and one of the others.  One that was made for an architecture (`cuda:sm_80`) runs on no other:
it is compiled for that, and every other one for one of the rest.  Loads, arithmetic, folds and
stores take the same way everywhere: of the kernels of nothing else, which are most, one in `PLAIN`
is compiled, for one architecture.  Its text decides whether and for which, so that each gets its
share of them, the same in every run.  Of the kernels of one test, which are variants of each other,
the first `MOST` are compiled.  `everywhere` leaves out none.

Left out, and counted, is a kernel that holds or stores more than `VALUES` elements of one tile
in each thread: ptxas takes minutes over it, and a thread has 255 registers.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tedsl.backends.triton.compile.offline import (
    ast_source,
    compile_errors,
    refusal,
    requests_of,
    signature,
)
from tedsl.backends.triton.emit import module as emitter
from tedsl.backends.triton.emit.program import KernelSpec, TritonProgram
from tedsl.devices import ARCHITECTURES as KNOWN
from tedsl.devices import DEFAULT, GpuDevice
from tedsl.errors import BackendError, LowerError
from tedsl.expr.index_arith import constant
from tedsl.ir.nodes import Allocate, Func, Module, Store
from tedsl.ir.visit import walk_stmts
from tedsl.lower import pipeline
from tedsl.target import Target

FORMS = (DEFAULT, "sm_80", "sm_100")
"""The first has all that a kernel may use, so its text tells what is used."""
ALIKE = tuple(arch for arch in KNOWN if arch not in FORMS)
ARCHITECTURES = (*FORMS, *ALIKE)
LEFT_OUT = "left_out"
DIFFERENT = re.compile(
    r"\b(dot|dot_scaled|atomic_\w+|float8\w*|fp8\w*|tensordesc|num_ctas|maxnreg)\b"
)
"""Matrix units, atomic updates, 8-bit floats, the copy engine, clusters and limits of registers."""
SHARE = 8
PLAIN = 8
MOST = 3
VALUES = 256
FOLDER = "TEDSL_TESTS_COMPILED"
_emit = emitter.emit
_noted: dict[int, tuple[Module, str | None]] = {}
"""Modules by identity, and the architectures that they were made for."""
_everywhere = [False]


def watch(everywhere: bool = False) -> Callable[[], None]:
    """Note what is generated from now on.  Call it before tests import `emit` and `lower`.

    Args:
        everywhere: compile every kernel for all architectures, several times the work.

    Returns:
        What to call at the end of the run.
    """
    folder = None
    if FOLDER not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="tedsl-kernels-")
        os.environ[FOLDER] = folder.name

    def emit(module: Module, target: Target | str, gpu: GpuDevice | None = None) -> TritonProgram:
        program = _emit(module, target, gpu)
        _noted.setdefault(id(module), (module, Target.parse(target).arch))
        return program

    def lower(plan: Any, target: Target, **options: Any) -> Module:
        module = lowering(plan, target, **options)
        if target.is_triton:
            _noted[id(module)] = module, target.arch
        return module

    def stop() -> None:
        if folder is not None:
            del os.environ[FOLDER]
            folder.cleanup()

    _everywhere[:] = [everywhere]
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


def compile_one_in(share: int, number: int) -> None:
    """Of the examples of a drawn test that have numbers, compile each `share`th."""
    if number % share:
        forget()
    compile_noted()


def compile_noted() -> None:
    """Compile the kernels that were noted and that no test of this run has compiled.

    Raises:
        BackendError: a kernel that Triton or ptxas refuses; its source is in the message.
    """
    modules = list(_noted.values())
    _noted.clear()
    if FOLDER not in os.environ:
        return
    left: float = math.inf if _everywhere[0] else MOST
    for module, made_for in modules:
        if left <= 0:
            return
        wanted: dict[str, frozenset[str]] = {}
        for arch in ARCHITECTURES:
            if wanted and arch not in frozenset[str]().union(*wanted.values()):
                continue
            try:
                program = _emit(module, f"cuda:{arch}")
            except LowerError:  # the test sees the same refusal when it builds
                continue
            left -= _compile_new(program, arch, made_for, wanted, Path(os.environ[FOLDER]))


def _wanted(number: int, different: bool, made_for: str | None) -> frozenset[str]:
    """What a kernel is compiled for, by the number that its text has."""
    if _everywhere[0]:
        return frozenset(ARCHITECTURES)
    if not different:
        turn, one = divmod(number, len(ARCHITECTURES))
        return frozenset() if turn % PLAIN else frozenset((ARCHITECTURES[one],))
    if made_for is not None:
        rest = [arch for arch in ARCHITECTURES if arch != made_for]
        turn, other = divmod(number, len(rest))
        return frozenset((made_for, rest[other] if turn % 2 else made_for))
    turn, first = divmod(number, len(FORMS))
    turn, other = divmod(turn, len(ALIKE))
    second = {0: ALIKE[other], 1: FORMS[first - 1]}.get(turn % SHARE, FORMS[first])
    return frozenset((FORMS[first], second))


def _compile_new(
    program: TritonProgram,
    arch: str,
    made_for: str | None,
    wanted: dict[str, frozenset[str]],
    done: Path,
) -> int:
    """Compile what is new of the kernels that are wanted for `arch`; `wanted` is by their names,
    filled in for those that are not in it.  Returns how many were compiled."""
    new: list[tuple[KernelSpec, Path]] = []
    funcs = [
        func
        for func, spec in zip(program.module.funcs, program.kernels, strict=True)
        if spec.call is None
    ]
    pairs = zip(_digests(program.source, program.compiled), funcs, strict=True)
    for (digest, different, spec), func in pairs:
        wanted.setdefault(spec.name, _wanted(int(digest, 16), different, made_for))
        if arch not in wanted[spec.name]:
            continue
        path = done / f"{digest}.{arch}"
        if _largest_tile(func) > VALUES * 32 * spec.num_warps:
            path.with_suffix(f".{LEFT_OUT}").touch()
        elif not path.exists():
            new.append((spec, path))
    for spec, path in new:
        _compile(replace(program, kernels=(spec,)), arch)
        path.touch()
    return len(new)


def _compile(program: TritonProgram, arch: str) -> None:
    """One kernel to a cubin, of which nothing is asked."""
    triton = importlib.import_module("triton")
    (request,) = requests_of(program, arch)
    source, target = ast_source(request)
    try:
        triton.compile(source, target=target, options=dict(request["options"]))
    except compile_errors() as error:
        refused = refusal(request, error)
        raise BackendError(
            f"a generated kernel does not compile: {refused.reason}",
            facts=[*refused.facts, ("source", program.source)],
            hint=refused.hint,
        ) from error


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
def _digests(
    source: str, kernels: tuple[KernelSpec, ...]
) -> tuple[tuple[str, bool, KernelSpec], ...]:
    functions = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    return tuple((*_digest(spec, functions), spec) for spec in kernels)


def _digest(spec: KernelSpec, functions: dict[str, ast.FunctionDef]) -> tuple[str, bool]:
    """Equal for kernels that are one but for names: its form, its helpers, its signature; and
    whether architectures differ in what is in it."""
    parts = [_form(functions[spec.name]), *map(_form, _helpers(spec.name, functions))]
    parts += [signature(param) for param in spec.params]
    parts += [f"{name}={value}" for name, value in sorted(spec.options().items())]
    text = "\n".join(parts)
    return hashlib.sha256(text.encode()).hexdigest()[:32], bool(DIFFERENT.search(text))


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
