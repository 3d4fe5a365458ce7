"""Compile a program to cubins without a GPU, and read what the hardware would be asked for.

Uses the ptxas and cuobjdump that come in Triton's wheel.  Many kernels are compiled in processes
beside this one.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from tedsl.backends.parallel import in_parallel
from tedsl.backends.processes.beside import beside, made_beside
from tedsl.backends.triton.compile.assembler import assembled
from tedsl.backends.triton.compile.source_files import source_file
from tedsl.backends.triton.emit.program import (
    ALIGNMENT,
    KernelSpec,
    Param,
    ParamKind,
    Sort,
    TritonProgram,
    sort_of,
)
from tedsl.detect import has_driver
from tedsl.dtypes import DType
from tedsl.errors import BackendError, within
from tedsl.expr.nodes import Var
from tedsl.once import same
from tedsl.packages import install

_POINTERS: dict[DType, str] = {
    DType.float16: "fp16",
    DType.bfloat16: "bf16",
    DType.float32: "fp32",
    DType.float64: "fp64",
    DType.float8_e4m3fn: "fp8e4nv",
    DType.float8_e5m2: "fp8e5",
    DType.bool: "i1",
    **{DType(f"int{n}"): f"i{n}" for n in (8, 16, 32, 64)},
    **{DType(f"uint{n}"): f"u{n}" for n in (8, 16, 32, 64)},
}
SECONDS = 0.25
"""About how long it takes to compile a kernel."""
_INFO, _SHARED = f"{__name__}:info_of", f"{__name__}:shared_of"
_ENTRY = re.compile(r"\.entry\s+([\w$.]+)")
_UNSEEN = re.compile(r"\s*(//|\.loc\b|\.file\b|\$L__(func|info|tmp|debug)\w*:)")
_USAGE = re.compile(r"REG:(\d+)\s+STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class CompiledInfo:
    """One compiled kernel.  `registers` per thread and `stack` bytes (spills and local arrays) are
    None when the wheel has no cuobjdump; `shared` is in bytes per program.  `function` is its name
    in the text, which kernels that are one but for names share."""

    name: str
    arch: str
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    registers: int | None
    stack: int | None
    shared: int
    num_warps: int
    function: str

    @property
    def code(self) -> str:
        """32 hex digits that two kernels share when the device would run the same instructions
        with the same resources.

        Names of kernels, places in files and comments do not count.
        """
        return hashlib.sha256(
            f"{self.arch} {self.num_warps} {self.shared}\n{plain_ptx(self.ptx)}".encode()
        ).hexdigest()[:32]


def plain_ptx(ptx: str) -> str:
    """PTX without what the hardware never sees: debug sections, places, comments, the names of
    entries and of their parameters."""
    text = ptx.partition("\t.section\t.debug")[0].partition(".section .debug")[0]
    kept = [line for line in text.splitlines() if line.strip() and not _UNSEEN.match(line)]
    text = re.sub(r"\s*//.*", "", "\n".join(kept))
    for place, name in enumerate(dict.fromkeys(_ENTRY.findall(text))):
        text = re.sub(rf"\b{re.escape(name)}(?=\b|_param_)", f"entry{place}", text)
    return text


def load_source(source: str) -> ModuleType:
    """Import generated source from its file.

    Raises:
        BackendError: Triton is missing or runs as an interpreter in this process.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise BackendError(
            "TRITON_INTERPRET=1 is set, which turns every kernel into an interpreted one",
            hint='unset it; target="triton-interpret" uses a process of its own',
        )
    path = source_file(source)
    name = f"tedsl_generated_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BackendError(f"cannot import generated source {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BackendError(
            f"generated source does not import: {error}",
            hint=f'{install("triton")} (Linux), or use target="cpu"',
        ) from error
    sys.modules[name] = module
    return module


def signature(param: Param) -> str:
    """The type of a parameter in Triton's notation."""
    if param.buffer is not None:
        element = _POINTERS[param.element]
        if param.kind is ParamKind.DESCRIPTOR:
            return f"tensordesc<{element}[{', '.join(map(str, param.block))}]>"
        return f"*{element}"
    if param.var is None:
        raise BackendError(f"parameter {param.name!r} is neither a buffer nor a size")
    return "fp32" if param.var.dtype.is_float else _POINTERS[param.var.dtype]


def compile_offline(
    program: TritonProgram,
    arch: str = "sm_90",
    sizes_divisible: Collection[Var] = (),
    sizes: Mapping[Var, int] | None = None,
) -> list[CompiledInfo]:
    """Compile every kernel of a program for `arch`, without a GPU.

    Args:
        program: made by `emit`.
        arch: "sm_80", "sm_90" or "sm_100".
        sizes_divisible: runtime sizes to assume divisible by 16 (pointers always are, to bytes).
        sizes: of a call; the kernels are those that Triton would compile for it.

    Raises:
        BackendError: Triton or ptxas refused the kernel.
    """
    requests = requests_of(program, arch, sizes_divisible, sizes)
    distinct: dict[str, tuple[str, dict[str, Any]]] = {}
    for spec, request in zip(program.compiled, requests, strict=True):
        distinct.setdefault(spec.name, (spec.func, request))

    where = beside(_INFO, len(distinct), SECONDS)

    def info(each: tuple[str, dict[str, Any]]) -> CompiledInfo:
        name, request = each
        with within(name):
            made = made_beside(where, _INFO, request)
            return compile_request(request) if made is None else _unpack(made)

    found = in_parallel(info, list(distinct.values()))
    made = dict(zip(distinct, found, strict=True))
    return [replace(made[spec.name], name=spec.title) for spec in program.compiled]


def compile_launched(
    program: TritonProgram, arch: str, sizes: Mapping[Var, int]
) -> list[tuple[str, int]]:
    """Compile the kernels that a call with these sizes launches, and no others, as the call would:
    it finds them on disk.

    Returns:
        What the module calls each, and the bytes of shared memory of a program.

    Raises:
        BackendError: Triton or ptxas refused a kernel, or no call has these sizes.
    """
    launched = [
        spec
        for _, known, specs in program.launches(sizes)
        for spec in specs
        if spec.call is None and 0 not in spec.grid_for(known)
    ]

    distinct = {spec.name: spec for spec in reversed(launched)}
    where = beside(_SHARED, len(distinct), SECONDS)

    def shared(spec: KernelSpec) -> int:
        request = _request(spec, program.source, arch, (), sizes)
        with within(spec.func):
            made = made_beside(where, _SHARED, request) or shared_of(request)
        return int(made["shared"])

    needed = dict(zip(distinct, in_parallel(shared, list(distinct.values())), strict=True))
    return [(spec.func, needed[spec.name]) for spec in launched]


def requests_of(
    program: TritonProgram,
    arch: str,
    sizes_divisible: Collection[Var] = (),
    sizes: Mapping[Var, int] | None = None,
) -> list[dict[str, Any]]:
    """What is to be compiled for each kernel of a program, as JSON."""
    return [
        _request(spec, program.source, arch, sizes_divisible, sizes) for spec in program.compiled
    ]


def _request(
    spec: KernelSpec,
    source: str,
    arch: str,
    divisible: Collection[Var],
    sizes: Mapping[Var, int] | None,
) -> dict[str, Any]:
    """A kernel as JSON: `aligned`, `plain` and `ones` are places of parameters of which Triton is
    told that they divide by 16, that nothing is known of them, and that they are 1."""
    wide = {var.name for var in divisible}
    types = {param.name: signature(param) for param in spec.params}
    aligned: list[int] = []
    plain: list[int] = []
    ones: list[int] = []
    for place, param in enumerate(spec.params):
        var = param.var
        if param.kind is ParamKind.POINTER or (var is not None and var.name in wide):
            aligned.append(place)
        elif sizes is not None and var is not None and not var.dtype.is_float:
            # A size that is not among those given counts repetitions, which are left out of this.
            sort = sort_of(sizes[var]) if var in sizes else Sort.COUNTED
            types[param.name] = "constexpr" if sort is Sort.ONE else _integer(sizes.get(var, 0))
            if sort is Sort.ONE:
                ones.append(place)
            if sort is Sort.DIVISIBLE:
                aligned.append(place)
            elif sort is not Sort.COUNTED:
                plain.append(place)
    return {
        "source": source,
        "name": spec.name,
        "arch": arch,
        "signature": types,
        "aligned": aligned,
        "plain": plain,
        "ones": ones,
        "options": spec.options(),
    }


def _integer(value: int) -> str:
    """The type that the launcher gives an integer."""
    if -(2**31) <= value < 2**31:
        return "i32"
    return "i64" if value < 2**63 else "u64"


def ast_source(request: Mapping[str, Any]) -> tuple[Any, Any]:
    """The kernel of a request as Triton's compiler takes it, and the target."""
    module = load_source(request["source"])
    compiler = importlib.import_module("triton.compiler")
    targets = importlib.import_module("triton.backends.compiler")
    function = getattr(module, request["name"])
    # The same as the launcher makes, in the same order: what is compiled is named after its text.
    known: dict[int, list[list[Any]]] = {place: [] for place in request["plain"]}
    known |= {place: [["tt.divisibility", ALIGNMENT]] for place in request["aligned"]}
    target = targets.GPUTarget("cuda", int(request["arch"].removeprefix("sm_")), 32)
    backend = compiler.make_backend(target)
    if request["ones"] and not _lists_ones(function, backend, request["options"]):
        known = {place: said for place, said in known.items() if place not in request["ones"]}
    attributes = {(place,): known[place] for place in sorted(known)}
    constants = {(place,): 1 for place in request["ones"]}
    source = compiler.ASTSource(function, dict(request["signature"]), constants, attributes)
    return source, target


def _lists_ones(function: Any, backend: Any, options: Mapping[str, Any]) -> bool:
    """True when the launcher of this Triton lists parameters that are 1 among those with
    attributes, as 3.9 does and 3.6 does not: it is asked."""
    name = function.params[0].name
    return bool(function._pack_args(backend, dict(options), {name: 1}, [("constexpr", 1)], None)[3])


def refusal(request: Mapping[str, Any], error: Exception) -> BackendError:
    """What Triton raised, as an error of this backend."""
    return BackendError(
        f"Triton cannot compile {request['name']} for {request['arch']}: {_first_line(error)}",
        facts=[
            ("options", str(request["options"])),
            ("file", str(load_source(request["source"]).__file__)),
        ],
        hint="try smaller tiles, fewer stages or other num_warps",
    )


@same
def parses_apart() -> type[Any]:
    """Let one thread at a time parse what Triton compiles, and return the class that does.

    Python counts how deep the trees are that it parses for the whole process: where a collection of
    garbage lets another thread parse in between, one of them ends in a SystemError ("AST
    constructor recursion depth mismatch", CPython issue 106905, seen with 3.11.7).
    """
    jit = importlib.import_module("triton.runtime.jit")
    owner = getattr(jit, "JITCallable", jit.JITFunction)
    parse, lock = owner.parse, RLock()

    def parse_alone(function: Any) -> Any:
        with lock:
            return parse(function)

    owner.parse = parse_alone
    return owner


def _compiled(request: Mapping[str, Any]) -> Any:
    """What Triton makes of a request."""
    triton = importlib.import_module("triton")
    parses_apart()
    source, target = ast_source(request)
    try:
        kernel, _ = assembled(partial(_compile, triton, source, target), request["options"])
    except compile_errors() as error:
        raise refusal(request, error) from error
    return kernel


def compile_request(request: Mapping[str, Any]) -> CompiledInfo:
    kernel = _compiled(request)
    cubin = bytes(kernel.asm["cubin"])
    registers, stack = resource_usage(cubin)
    return CompiledInfo(
        name=request["name"],
        arch=request["arch"],
        ptx=str(kernel.asm["ptx"]),
        cubin=cubin,
        registers=registers,
        stack=stack,
        shared=int(kernel.metadata.shared),
        num_warps=int(kernel.metadata.num_warps),
        function=request["name"],
    )


def shared_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a kernel, and what it is entered by, to be found on disk; the bytes of shared memory
    of a program."""
    kernel = _compiled(request)
    driver = importlib.import_module("triton.backends.nvidia.driver")
    # Until 3.6 each signature has a launcher in C of its own, over which gcc takes half a second.
    # It keeps the type of descriptors that the driver's module has when it is loaded.
    if hasattr(driver, "make_launcher") and has_driver():
        if getattr(driver, "PyCUtensorMap", True) is None:
            driver.CudaUtils()
        driver.CudaLauncher(kernel.src, kernel.metadata)
    return {"shared": int(kernel.metadata.shared)}


def _compile(triton: Any, source: Any, target: Any, options: dict[str, Any]) -> Any:
    return triton.compile(source, target=target, options=options)


def compile_errors() -> tuple[type[Exception], ...]:
    """What Triton raises when a kernel cannot be compiled."""
    errors = importlib.import_module("triton.compiler.errors")
    runtime = importlib.import_module("triton.runtime.errors")
    found = [errors.CompilationError, RuntimeError, ValueError, AssertionError, TypeError]
    found += [getattr(runtime, name) for name in ("PTXASError",) if hasattr(runtime, name)]
    return tuple(found)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def tool(name: str) -> Path | None:
    """A CUDA tool of Triton's wheel; None when it has none."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
    return path if path.exists() else None


def resource_usage(cubin: bytes) -> tuple[int | None, int | None]:
    """(registers per thread, stack bytes) of a cubin; (None, None) without cuobjdump."""
    cuobjdump = tool("cuobjdump")
    if cuobjdump is None:
        return None, None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run(
            [str(cuobjdump), "-res-usage", str(path)], capture_output=True, text=True, check=False
        )
    found = _USAGE.search(done.stdout)
    return (int(found[1]), int(found[2])) if found else (None, None)


def info_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """`compile_request` as JSON."""
    return _pack(compile_request(request))


def _unpack(found: dict[str, Any]) -> CompiledInfo:
    cubin: Any = base64.b64decode(found["cubin"])
    return CompiledInfo(**{**found, "cubin": cubin})


def _pack(info: CompiledInfo) -> dict[str, Any]:
    found = {field.name: getattr(info, field.name) for field in fields(info)}
    return {**found, "cubin": base64.b64encode(info.cubin).decode()}
