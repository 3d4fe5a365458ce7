"""A module of the loop IR, at TILE level, to one Triton source file.

Each function becomes a `@triton.jit` kernel: outermost PROGRAM loops are its grid, other loops are
`tl.range` loops, LOCAL buffers are variables that hold tiles.  Knows nothing of Triton but its
text; `offline`, `client` and `launcher` run it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tedsl.backends.triton.emit.address import times, to
from tedsl.backends.triton.emit.descriptors import Descriptors
from tedsl.backends.triton.emit.dividends import ranges_of, shift_dividends
from tedsl.backends.triton.emit.divisibility import size_hint
from tedsl.backends.triton.emit.names import Names, sanitise, shown
from tedsl.backends.triton.emit.program import (
    GRID_LIMITS,
    KernelSpec,
    Param,
    ParamKind,
    TritonProgram,
)
from tedsl.backends.triton.emit.statements import Statements
from tedsl.backends.triton.emit.user_kernels import emit_call, foreign_texts
from tedsl.backends.triton.emit.values import Printer
from tedsl.backends.triton.emit.wide_clamps import widen_clamps
from tedsl.backends.triton.emit.writer import INDENT, Writer, complete
from tedsl.backends.triton.math.accuracy import analyse
from tedsl.backends.triton.math.functions import SUM, UNARY, triton_type
from tedsl.devices import GpuDevice
from tedsl.dtypes import DType
from tedsl.errors import LowerError, within
from tedsl.expr.index_arith import sub
from tedsl.expr.nodes import Const, Expr, Var
from tedsl.expr.visit import axes_of
from tedsl.index.simplify import simplify
from tedsl.ir.alike import Form, form_of
from tedsl.ir.nodes import Dot, Finish, For, Func, Guard, LoopKind, Meet, Module, Scope, Stmt
from tedsl.ir.thread_neighbours import neighbours_of_thread
from tedsl.ir.visit import buffers_read, buffers_written, walk_stmts
from tedsl.lower.passes.simplify import func_facts
from tedsl.target import Target

HEADER = '''"""{title}"""

import triton
import triton.language as tl
'''
LIBDEVICE = "from triton.language.extra import libdevice\n"


def emit(module: Module, target: Target | str, gpu: GpuDevice | None = None) -> TritonProgram:
    """The Triton source of a module.

    Args:
        module: functions at TILE level, tile extents powers of two, masks in place.
        target: "cuda", "cuda:sm_80" ... or "triton-interpret"; the text is the same for all but
            for tensor descriptors, clusters and 8-bit floats, which older devices lack, and
            reductions beside products where tensor cores accumulate in tensor memory.
        gpu: what it is for, where that is not the device of the target here.

    Raises:
        LowerError: the module asks for something that a Triton tile cannot do.
    """
    parsed = Target.parse(target)
    gpu = gpu or parsed.resolve_gpu()
    helpers: dict[str, str] = {}
    foreign = foreign_texts(module)
    names = Names(foreign.names)
    parts: list[str] = list(foreign.texts)
    kernels: list[KernelSpec] = []
    written: dict[tuple[str, ...], tuple[Form, KernelSpec, int]] = {}
    steps = frozenset(repeat.step for repeat in module.repeats)
    for func in module.funcs:
        params = {sanitise(buffer.name) for buffer in func.params}
        name = f"{func.name}_kernel" if sanitise(func.name) in params else func.name
        if func.host_call is not None:
            text, spec = emit_call(func, func.host_call, names)
            parts.append(text)
            kernels.append(spec)
            continue
        form = form_of(func) if len(module.funcs) > 1 else Form((), (), ())
        title = names.fresh(name)
        if form.key in written:
            first, spec, place = written[form.key]
            kernels.append(spec.on(first.buffers_in(form), func.name, title))
            parts[place] = f"\n# Also for {shown(func.name)}.{parts[place]}"
            continue
        kernel = _Kernel(func, title, helpers, gpu, steps)
        with within(func.name):
            parts.append(kernel.text())
            kernels.append(kernel.spec())
        written[form.key] = form, kernels[-1], len(parts) - 1
    body = "\n".join((*helpers.values(), *parts))
    head = HEADER.format(title=f"Kernels of {sanitise(module.name)}.")
    if "libdevice." in body:
        head += LIBDEVICE
    return TritonProgram(f"{head}\n{body}", tuple(kernels), module, parsed)


class _Kernel:
    """One function on its way to text.  `steps` are scalars that count launches: one compiled
    kernel serves all their values."""

    def __init__(
        self,
        func: Func,
        name: str,
        helpers: dict[str, str],
        gpu: GpuDevice,
        steps: frozenset[Var] = frozenset(),
    ) -> None:
        facts = func_facts(func)
        ranges = ranges_of(func, facts)
        self.func = func = widen_clamps(shift_dividends(func, ranges))
        self.launch = func.launch
        if not gpu.has_clusters:
            self.launch = replace(func.launch, num_ctas=None)
        self.steps = steps
        self.name = name
        self.names = Names(frozenset((name, *helpers)))
        self.writer = Writer(self.names, facts, ranges)
        self.writer.helpers = helpers
        written = set(buffers_written(func.body))
        self.writer.shared_memory = written.intersection(buffers_read(func.body))
        self.writer.passed_on |= {buffer for buffer in func.params if buffer.private}
        for stmt in walk_stmts(func.body):
            if isinstance(stmt, Finish):
                self.writer.passed_on |= written.intersection(buffers_read(stmt.body))
        self.cooperative = any(isinstance(stmt, Meet) for stmt in walk_stmts(func.body))
        if self.cooperative:
            self.writer.passed_on |= self.writer.shared_memory
        self.descriptors = Descriptors(self.writer, gpu.has_tma)
        contracts = any(isinstance(stmt, Dot) for stmt in walk_stmts(func.body))
        self.writer.has_float8 = gpu.has_float8
        self.writer.has_tensor_memory = contracts and gpu.has_tcgen05
        self.writer.accuracy = analyse(func)
        self.writer.threads = 32 * func.launch.warps
        self.writer.neighbours = neighbours_of_thread(func, facts, self.writer.threads)
        self.params: list[Param] = []
        self.grid: tuple[Expr, ...] = ()

    def text(self) -> str:
        """The source of the kernel, from its decorator on."""
        writer, func = self.writer, self.func
        for buffer in func.params:
            if buffer.scope is not Scope.GLOBAL:
                raise LowerError(f"parameter {buffer.name!r} of {func.name} is not in memory")
            name = self.names.fresh(buffer.name)
            writer.pointers[buffer] = name
            as_bytes = buffer.dtype.is_float8 and not writer.has_float8
            self.params.append(Param(ParamKind.POINTER, name, buffer=buffer, as_bytes=as_bytes))
        for var in func.sizes:
            name = self.names.fresh(var.name)
            writer.symbols[var], writer.symbol_depth[var] = name, 0
            self.params.append(Param(ParamKind.SIZE, name, var=var))
        loops, body = _peel(func.body)
        self._programs(loops)
        statements = Statements(writer, self.descriptors, tuple(loop.axis for loop in loops))
        statements.kernel(body)
        lines = complete(writer.blocks[-1].lines, INDENT)
        used = set(re.findall(r"\w+", re.sub(r"#.*", "", "\n".join(lines))))
        self._finish_params(used)
        lines = [*self._wide_sizes(used), *self._size_hints(used), *lines]
        counters = [p.name for p in self.params if p.var is not None and p.var in self.steps]
        options = f"(do_not_specialize={counters})" if counters else ""
        lines = [*(f"{INDENT}# {shown(remark)}" for remark in func.remarks), *lines]
        head = f"\n@triton.jit{options}\ndef {self.name}({', '.join(p.name for p in self.params)}):"
        return "\n".join((head, *lines)) + "\n"

    def spec(self) -> KernelSpec:
        """How to call it."""
        spans, assumptions = tuple(self.writer.spans), self.func.assumptions
        params = tuple(self.params)
        launch, when = self.launch, self.func.when
        spec = KernelSpec(self.name, params, self.grid, launch, spans, assumptions, when)
        func = self.func.name
        return replace(spec, cooperative=self.cooperative, func=func, title=self.name)

    def _wide_sizes(self, used: set[str]) -> list[str]:
        """64-bit sizes as such: Triton types a size by its value, and products of small ones need
        not be small."""
        wide = [p.name for p in self.params if p.var is not None and p.var.dtype is DType.int64]
        lines = [f"{INDENT}{n} = tl.cast({n}, tl.int64)" for n in wide if n in used]
        return [f"{INDENT}# counted in 64 bits", *lines] if lines else []

    def _size_hints(self, used: set[str]) -> list[str]:
        """What the assumptions say of the sizes in the text."""
        sizes = [(param.name, param.var) for param in self.params if param.name in used]
        found = [size_hint(name, var, self.writer.facts) for name, var in sizes if var is not None]
        lines = [f"{INDENT}{text}" for text in found if text is not None]
        return [f"{INDENT}# multiples, as assumed", *lines] if lines else []

    def _finish_params(self, used: set[str]) -> None:
        """Drop pointers that only descriptors stand for, and add the descriptors."""
        described = {buffer for buffer, _ in self.descriptors.params}
        self.params = [
            param for param in self.params if param.buffer not in described or param.name in used
        ]
        sizes = [param for param in self.params if param.kind is ParamKind.SIZE]
        pointers = [param for param in self.params if param.kind is ParamKind.POINTER]
        self.params = [*pointers, *self.descriptors.params.values(), *sizes]

    def _programs(self, loops: list[For]) -> None:
        """Define the program axes from program ids.

        Loops on one grid axis are fused, the inner one fastest.  All are fused into the first
        grid axis when an extent on another one is not known to be within the device's limit.
        """
        axes: dict[int, list[For]] = {}
        for loop in loops:
            axes.setdefault(loop.program, []).append(loop)
        extents = [_product([loop.extent for loop in axes[n]]) for n in sorted(axes)]
        fits = all(
            isinstance(extent, Const) and int(extent.value) <= limit
            for extent, limit in zip(extents[1:], GRID_LIMITS[1:], strict=False)
        )
        if fits:
            for place, number in enumerate(sorted(axes)):
                self._unfuse(axes[number], f"tl.program_id({place})")
            self.grid = tuple(extents) or (Const(1, DType.int32),)
            return
        order = [loop for number in sorted(axes, reverse=True) for loop in axes[number]]
        self.grid = (_product([loop.extent for loop in order]),)
        self._unfuse(order, "tl.program_id(0)")

    def _unfuse(self, loops: list[For], source: str) -> None:
        """Axes of fused loops, outermost first: id = (a * extent(b) + b) * extent(c) + c."""
        writer = self.writer
        if len(loops) > 1:
            source = writer.define(source, writer.depth, None, "pid")
        for place, loop in enumerate(reversed(loops)):
            name = self.names.fresh(loop.axis.name if len(loop.axis.name) < 24 else "pid")
            if place == len(loops) - 1:
                value = source
            else:
                count = Printer(writer, (), ()).value(
                    loop.extent, f"{loop.axis.name}_count", name=True
                )
                extent = count.text.at(UNARY)
                value = f"{source} % {extent}"
                rest = f"{source} // {extent}"
                if place < len(loops) - 2:
                    source = writer.define(rest, writer.depth, None, "pid")
                else:
                    source = rest
            wide = loop.axis.dtype is not DType.int32
            if wide:
                value = f"({value}).to({triton_type(loop.axis.dtype)})"
            if loop.descending:
                last = (
                    Printer(writer, (), ()).value(simplify(sub(loop.extent, 1), writer.facts)).text
                )
                value = f"{last.at(SUM)} - {value if wide or len(loops) == 1 else f'({value})'}"
            writer.line(f"{name} = {value}")
            writer.symbols[loop.axis] = name
            writer.symbol_depth[loop.axis] = writer.depth


def _peel(stmt: Stmt) -> tuple[list[For], Stmt]:
    """The PROGRAM loops of a body, outermost first, and the body without them.

    A PROGRAM loop may stand inside other loops and guards when nothing stands beside it: its
    iterations are independent, so  for k: for p in programs: body  =  for p in programs: for k:
    body.
    """
    loops: list[For] = []
    between: list[For | Guard] = []
    rest = stmt
    while isinstance(rest, (For, Guard)):
        if isinstance(rest, Guard):
            between.append(rest)
        elif rest.kind is LoopKind.PROGRAM:
            _check_extent(rest, between)
            loops.append(rest)
        else:
            between.append(rest)
        rest = rest.body
    if not loops:
        return [], stmt
    for outer in reversed(between):
        rest = replace(outer, body=rest)
    return loops, rest


def _check_extent(loop: For, around: list[For | Guard]) -> None:
    changing = {outer.axis for outer in around if isinstance(outer, For)}
    if changing.intersection(axes_of(loop.end)):
        raise LowerError(
            f"the grid extent of {loop.axis.name!r} changes inside a loop around it",
            hint="reorder the bound axis to the outside",
        )


def _product(extents: list[Expr]) -> Expr:
    result: Expr = Const(1, DType.int64)
    for extent in extents:
        result = times(result, to(extent, DType.int64))
    return result
