"""A module of loop IR to the text of an LLVM module: functions, loops, parallel bodies.

One LLVM function per kernel, one entry that calls them in order.  The body of a parallel loop
becomes a function of its own over a range of iterations, so that its buffers keep `noalias`, and a
worker that claims ranges until none is left.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tedsl.backends.cpu.emit.allocation import allocate, global_buffer, scratch
from tedsl.backends.cpu.emit.frame import Frame, parameter, place
from tedsl.backends.cpu.emit.llvm_text import (
    I1,
    I64,
    PTR,
    Function,
    Module,
    Type,
    Value,
    const,
    symbol,
)
from tedsl.backends.cpu.emit.memory import Accessor
from tedsl.backends.cpu.emit.parallel_tasks import (
    Captures,
    captures,
    estimate,
    has_many_choices,
    innermost,
    is_register_tile,
    is_short,
    streamed_outputs,
    written_out,
)
from tedsl.backends.cpu.emit.prefetch import fetch_ahead
from tedsl.backends.cpu.emit.statements import emit_accumulate, emit_store
from tedsl.backends.cpu.emit.types import register_type
from tedsl.errors import BackendError, InternalError, within
from tedsl.expr.index_arith import widened
from tedsl.expr.nodes import Axis, Binary, Cast, Const, Expr, Var
from tedsl.expr.visit import map_children
from tedsl.ir import nodes as ir
from tedsl.ir.alike import Form, form_of
from tedsl.processor import machine

ENTRY = "tedsl_entry"
PARALLEL_FOR = "tedsl_parallel_for"
SERIAL_WORK = 20000  # vector instructions below which waking other threads does not pay
WRITTEN = 8192  # vector instructions up to which loops are unrolled: LLVM takes some seconds
GRID = (ir.LoopKind.PARALLEL, ir.LoopKind.PROGRAM)


_Written = dict[tuple[str, ...], tuple[Form, tuple[ir.Buffer, ...], str, list[int]]]
"""By their keys, kernels that have a function, their parameters, its symbol, and its scratch."""


def size_type(var: Var) -> Type:
    """Integers travel as i64, floats in their own register type."""
    return register_type(var.dtype) if var.dtype.is_float else I64


def emit_module(module: ir.Module) -> str:
    """The LLVM assembly of `module`."""
    out = Module(machine().triple, machine().attributes)
    streamed = streamed_outputs(module) if machine().has_masks else frozenset[ir.Buffer]()
    runs = [run for run in module.runs() if isinstance(run, tuple)]
    written: _Written = {}
    for number, places in enumerate(runs):
        _emit_entry(out, module, entry_name(number), places, streamed, written)
    return out.text()


def entry_name(number: int) -> str:
    """The symbol that runs the kernels between one call of the host and the next."""
    return ENTRY if number == 0 else f"{ENTRY}.{number}"


def _emit_entry(
    out: Module,
    module: ir.Module,
    called: str,
    places: Sequence[int],
    streamed: frozenset[ir.Buffer],
    written: _Written,
) -> None:
    """The function that calls the kernels at `places` in order; `written` are those so far."""
    entry = Function(out, f"define void @{called}(ptr noalias nocapture readonly %args) #0")
    buffers = (*module.inputs, *module.outputs, *module.workspaces)
    pointers = {b: _argument(entry, i, PTR) for i, b in enumerate(buffers)}
    sizes = {
        v: _argument(entry, len(buffers) + i, size_type(v)) for i, v in enumerate(module.sizes)
    }
    for number in places:
        func = module.funcs[number]
        form = form_of(func, streamed)
        if form.key not in written:
            with within(func.name):
                name, needs = _emit_func(out, func, number, streamed)
            written[form.key] = form, func.params, name, needs
        first, params, name, needs = written[form.key]
        own = first.buffers_in(form)
        values = [pointers[own[b]] for b in params] + [sizes[v] for v in func.sizes]
        with _launched(entry, func, sizes), scratch(entry, needs) as extra:
            entry.call(name, None, [*values, *extra])
    entry.do("ret void")
    out.functions.append(entry)


@contextmanager
def _launched(entry: Function, func: ir.Func, sizes: Mapping[Var, Value]) -> Generator[None]:
    """Run the body where the kernel's condition on the sizes holds, counted in 64 bits."""
    if func.when is None:
        yield
        return
    frame = Frame(entry)
    for var, value in sizes.items():
        frame.env[var], frame.depth[var] = value, 0
    with entry.when(Accessor(frame, ()).eval(_wide(func.when))):
        yield


def _wide(expr: Expr) -> Expr:
    """A condition on sizes over 64-bit integers."""
    match expr:
        case Var() | Const() if expr.dtype.is_integer:
            return widened(expr)
        case Cast(a=a) if expr.dtype.is_integer:
            return _wide(a)
        case Binary(op=op, a=a, b=b):
            return Binary(op, _wide(a), _wide(b))
        case _:
            return map_children(expr, _wide)


def _argument(entry: Function, slot: int, type: Type) -> Value:
    """Slot `slot` of the argument array."""
    at = entry.op(f"getelementptr inbounds i64, ptr %args, i64 {slot}", PTR)
    if type.elem == "float":
        wide = entry.op(f"load double, ptr {at.text}", Type("double"))
        return entry.op(f"fptrunc {wide} to float", type)
    return entry.op(f"load {type}, ptr {at.text}", type)


def _emit_func(
    out: Module, func: ir.Func, number: int, streamed: frozenset[ir.Buffer]
) -> tuple[str, list[int]]:
    """One kernel; returns its symbol and the scratch it wants from its caller."""
    name = f"{symbol(func.name)}.{number}"
    fn = Function(out, "")
    frame = Frame(fn, streamed=streamed, branching=has_many_choices(func.body))
    header: list[str] = []
    for buffer in func.params:
        ptr = Value(fn.name("p"), PTR)
        frame.memory[buffer] = place(buffer, ptr)
        header.append(parameter(buffer, ptr))
    for var in func.sizes:
        frame.env[var] = Value(fn.name("s"), size_type(var))
        header.append(str(frame.env[var]))
    for remark in func.remarks:
        fn.comment(remark)
    Emitter(frame, name, parallel=True).stmt(func.body)
    fn.do("ret void")
    header += [f"ptr noalias align 64 {ptr.text}" for ptr, _ in frame.scratch]
    fn.header = f"define internal void @{name}({', '.join(header)}) noinline #0"
    out.functions.append(fn)
    return name, [size for _, size in frame.scratch]


@dataclass(slots=True)
class Emitter:
    """Writes statements into one function.  `parallel` is false inside a parallel body."""

    frame: Frame
    name: str
    parallel: bool
    level: int = 0
    outlined: int = 0

    def stmt(self, stmt: ir.Stmt) -> None:
        """Emit one statement."""
        match stmt:
            case ir.Seq(stmts=stmts):
                for s in stmts:
                    self.stmt(s)
            case ir.For():
                self._loop(stmt)
            case ir.Guard(condition=condition, body=body):
                with self.frame.fn.when(Accessor(self.frame, ()).eval(condition)):
                    self.stmt(body)
            case ir.Allocate(buffer=buffer, body=body):
                if buffer.scope is ir.Scope.GLOBAL:
                    with global_buffer(self.frame, buffer):
                        self.stmt(body)
                    return
                allocate(self.frame, buffer, innermost(buffer, body))
                if is_register_tile(buffer, body):
                    self.frame.register_tiles.add(buffer)
                self.stmt(body)
            case ir.Store():
                self.frame.fn.comment(stmt.buffer.name)
                emit_store(self.frame, stmt)
            case ir.Accumulate():
                self.frame.fn.comment(stmt.buffers[0].name)
                emit_accumulate(self.frame, stmt)
            case ir.Dot() | ir.Finish() | ir.Meet():
                raise InternalError(f"a {type(stmt).__name__} statement reached the CPU backend")
            case _:
                raise InternalError(f"{type(stmt).__name__} is not a statement")

    def _loop(self, loop: ir.For) -> None:
        if loop.kind in GRID and self.parallel:
            self._parallel(loop)
        elif (count := self._copies(loop)) is not None:
            for i in range(count):
                self.frame.env[loop.axis] = const(i, I64)
                self.stmt(loop.body)
            self.frame.env.pop(loop.axis, None)
        elif loop.kind is ir.LoopKind.VECTORIZED:
            raise InternalError("a vectorized loop reached the CPU backend")
        else:
            self._serial(loop)

    def _copies(self, loop: ir.For) -> int | None:
        """How often the body of an unrolled loop is written; None where it stays a loop."""
        if loop.kind is not ir.LoopKind.UNROLLED or not isinstance(loop.end, Const):
            return None
        if (size := written_out(loop)) > WRITTEN:
            self.frame.fn.comment(f"{loop.axis.name} stays a loop: {size} instructions unrolled")
            return None
        return int(loop.end.value)

    def _extent(self, extent: Expr) -> Value:
        return Accessor(self.frame, ()).index(extent)

    def _serial(self, loop: ir.For) -> None:
        start, end = self._extent(loop.start), self._extent(loop.end)
        outside = self.frame.branching
        within = outside and is_short(loop)  # which LLVM makes part of what is around it
        self.frame.branching = within or has_many_choices(loop.body)
        with self.frame.fn.loop(end, start=start) as index:
            self.level += 1
            self.enter(loop.axis, index)
            fetch_ahead(self.frame, loop)
            self.stmt(loop.body)
            self.level -= 1
        self.frame.branching = outside

    def enter(self, axis: Axis, index: Value) -> None:
        """Let `axis` be `index`, a value of the innermost loop."""
        self.frame.env[axis] = index
        self.frame.depth[axis] = self.level

    # --- parallel loops

    def _parallel(self, loop: ir.For) -> None:
        """Run a nest of parallel loops, collapsed to one index space, on the thread pool."""
        fn = self.frame.fn
        nest, body = _collapse(loop)
        extents = [self._extent(f.extent) for f in nest]
        total = extents[0]
        for extent in extents[1:]:
            total = fn.op(f"mul nsw i64 {total.text}, {extent.text}", I64)
        total = _folded(total, extents)
        used = captures(nest, body, self.frame)
        name = f"{self.name}.par{self.outlined}"
        self.outlined += 1
        needs = _emit_body(fn.module, name, nest, body, used, self.frame)
        _emit_worker(fn.module, name, used, self.frame, needs, len(nest))
        values = [*used.values(self.frame), *extents]
        context = fn.alloca("i64", max(len(values), 1), 16)
        for i, value in enumerate(values):
            at = fn.op(f"getelementptr inbounds i64, ptr {context.text}, i64 {i}", PTR)
            fn.do(f"store {value}, ptr {at.text}")
        self._dispatch(f"{name}.worker", context, total, estimate(body))

    def _dispatch(self, worker: str, context: Value, total: Value, work: int) -> None:
        """Call the pool, or the worker itself where there is too little to share."""
        fn = self.frame.fn
        fn.module.declare(PARALLEL_FOR, None, [PTR, PTR, I64])
        pool = [Value(f"@{worker}", PTR), context, total]
        limit = max(1, SERIAL_WORK // max(work, 1))
        if isinstance(total.const, int) and total.const > limit:
            fn.call(PARALLEL_FOR, None, pool)
            return
        counter = fn.slot(I64)
        alone, shared, done = fn.label("alone"), fn.label("shared"), fn.label("joined")
        few = fn.op(f"icmp sle i64 {total.text}, {limit}", I1)
        fn.branch(few, alone, shared)
        fn.start(alone)
        fn.do(f"store i64 0, ptr {counter.text}")
        fn.call(worker, None, [context, counter, total, total])
        fn.jump(done)
        fn.start(shared)
        fn.call(PARALLEL_FOR, None, pool)
        fn.jump(done)
        fn.start(done)


def _folded(total: Value, extents: Sequence[Value]) -> Value:
    """The product as a constant when all extents are."""
    product = 1
    for extent in extents:
        if not isinstance(extent.const, int):
            return total
        product *= extent.const
    return const(product, I64)


def _collapse(loop: ir.For) -> tuple[list[ir.For], ir.Stmt]:
    """Parallel loops directly inside one another whose extents do not depend on each other.

    Stops when the outer loops alone have iterations enough, to save dividing the index.
    """
    nest, known = [loop], 1
    axes: set[Expr] = {loop.axis}
    while isinstance(nest[-1].body, ir.For) and nest[-1].body.kind in GRID:
        inner = nest[-1].body
        extent = nest[-1].extent
        known = known * int(extent.value) if isinstance(extent, Const) else 0
        if known >= 1024 or not isinstance(inner.extent, (Const, Var)):
            break
        nest.append(inner)
        axes.add(inner.axis)
    return nest, nest[-1].body


def _emit_body(
    out: Module, name: str, nest: Sequence[ir.For], body: ir.Stmt, used: Captures, outer: Frame
) -> list[int]:
    """The function that runs iterations `begin .. end` of a collapsed nest; returns its scratch
    needs."""
    fn = Function(out, "")
    frame = Frame(fn, streamed=outer.streamed, branching=has_many_choices(body))
    header = used.bind(frame, outer)
    extents = [Value(fn.name("e"), I64) for _ in nest]
    begin, end = Value("%begin", I64), Value("%end", I64)
    header += [str(v) for v in (*extents, begin, end)]
    emitter = Emitter(frame, name, parallel=False, level=1)
    with fn.loop(end, start=begin) as index:
        rest = index
        for level in range(len(nest) - 1, 0, -1):
            inner = extents[level]
            here = fn.op(f"urem i64 {rest.text}, {inner.text}", I64)
            rest = fn.op(f"udiv i64 {rest.text}, {inner.text}", I64)
            emitter.enter(nest[level].axis, here)
        emitter.enter(nest[0].axis, rest)
        emitter.stmt(body)
    fn.do("ret void")
    header += [f"ptr noalias align 64 {ptr.text}" for ptr, _ in frame.scratch]
    fn.header = f"define internal void @{name}({', '.join(header)}) noinline #0"
    out.functions.append(fn)
    return [size for _, size in frame.scratch]


def _emit_worker(
    out: Module, name: str, used: Captures, outer: Frame, needs: Sequence[int], depth: int
) -> None:
    """The function the pool calls: claims ranges from a shared counter until none is left."""
    params = "ptr %context, ptr %counter, i64 %total, i64 %step"
    fn = Function(out, f"define internal void @{name}.worker({params}) noinline #0")
    types = [*(v.type for v in used.values(outer)), *[I64] * depth]
    values: list[Value] = []
    for i, type in enumerate(types):
        at = fn.op(f"getelementptr inbounds i64, ptr %context, i64 {i}", PTR)
        values.append(fn.op(f"load {type}, ptr {at.text}", type))
    claim, run, done = fn.label("claim"), fn.label("run"), fn.label("done")
    with scratch(fn, needs) as extra:
        fn.jump(claim)
        fn.start(claim)
        begin = fn.op("atomicrmw add ptr %counter, i64 %step monotonic", I64)
        fn.branch(fn.op(f"icmp slt i64 {begin.text}, %total", I1), run, done)
        fn.start(run)
        stop = fn.op(f"add nsw i64 {begin.text}, %step", I64)
        end = fn.intrinsic("smin", I64, [stop, Value("%total", I64)])
        fn.call(name, None, [*values, begin, end, *extra])
        fn.jump(claim)
        fn.start(done)
        if outer.streamed:
            fn.do("fence seq_cst")  # stores past the caches are in no order of their own
    fn.do("ret void")
    out.functions.append(fn)


def check_module(module: ir.Module) -> None:
    """Refuse what the CPU cannot pass.

    Raises:
        BackendError: a runtime scalar of a type that has no place in the argument array.
    """
    for var in module.sizes:
        if not (var.dtype.is_integer or var.dtype.is_float):
            raise BackendError(
                f"runtime scalar {var.name} has dtype {var.dtype}",
                hint="use an integer or floating-point type for te.var",
            )
