"""Statements of the loop IR to lines of source, inside one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from tedsl.backends.triton.compile import compile_time
from tedsl.backends.triton.emit import address, dots, intrinsics, reduction
from tedsl.backends.triton.emit.descriptors import Descriptors
from tedsl.backends.triton.emit.masks import conjuncts, guard_loads
from tedsl.backends.triton.emit.reduction import updated_again, whole
from tedsl.backends.triton.emit.values import Printer
from tedsl.backends.triton.emit.writer import INDENT, Local, Writer, block_shape
from tedsl.backends.triton.math.functions import UNARY
from tedsl.dtypes import DType
from tedsl.errors import InternalError, LowerError
from tedsl.expr.index_arith import less, sub
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.expr.visit import axes_of, substitute, walk
from tedsl.index.prove import equal, prove
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Finish,
    For,
    Guard,
    HostCall,
    Load,
    LoopKind,
    Meet,
    Scope,
    Seq,
    Stmt,
    Store,
    TensorCall,
)
from tedsl.ir.visit import buffers_read, buffers_written, closed, own_exprs, walk_stmts


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A grid barrier: the counter, the programs of a group, and the variable for the arrivals to
    wait for."""

    place: str
    count: str
    wanted: str


class Statements:
    """Prints statements in order.

    Args:
        writer: the kernel's text.
        descriptors: the tensor descriptors of the kernel.
        programs: the axes that are program ids; each element that is updated in memory must
            belong to one program.
    """

    def __init__(
        self, writer: Writer, descriptors: Descriptors, programs: tuple[Axis, ...]
    ) -> None:
        self.writer = writer
        self.descriptors = descriptors
        self.programs = programs
        self._commented: set[Buffer] = set()
        self._meetings: dict[Buffer, _Meeting] = {}
        self._guards: tuple[Expr, ...] = ()

    def kernel(self, body: Stmt) -> None:
        """Print a whole kernel inside its grid: with the variables of its grid barriers, and with
        the counters reset to 0 at its end."""
        writer = self.writer
        for meet in (stmt for stmt in walk_stmts(body) if isinstance(stmt, Meet)):
            if meet.counter not in self._meetings:
                self._meetings[meet.counter] = self._meeting(meet)
        self.emit(body)
        for each in self._meetings.values():
            writer.comment("the last program of a group to leave clears its count")
            leaving = f'tl.atomic_add({each.place}, 1, sem="relaxed")'
            before = writer.define(leaving, writer.depth, None, "before")
            writer.line(f"if {before} == {each.wanted} + ({each.count} - 1):")
            writer.line(f"{INDENT}tl.store({each.place}, 0)")

    def _meeting(self, meet: Meet) -> _Meeting:
        """The variables of the grid barriers that share a counter."""
        writer = self.writer
        printer = Printer(writer, (), (*meet.indices, meet.count))
        place = address.pointer(printer, meet.counter, meet.indices).text.text
        count = printer.value(meet.count).text.at(UNARY)
        met, wanted = writer.names.fresh("met"), writer.names.fresh("wanted")
        writer.comment("programs of a group that have come to a meeting, and have to have come")
        writer.line(f"{met} = {place}")
        writer.line(f"{wanted} = 0")
        return _Meeting(met, count, wanted)

    def _meet(self, meet: Meet) -> None:
        """A grid barrier: arrive, and spin until the others have arrived.

        One thread counts, after a barrier behind the stores of all; `release` orders these before
        the count, and `acquire` orders later loads after it.  Prefetches (`meanwhile`) come after
        the arrival, since its `release` would wait for loads in flight.
        """
        writer, each = self.writer, self._meetings[meet.counter]
        waits = "wait for the other programs of the group"
        writer.comment(waits if meet.meanwhile is None else "come to the meeting of the group")
        writer.barrier()
        writer.line(f"{each.wanted} += {each.count}")
        writer.line(f'tl.atomic_add({each.place}, 1, sem="release")')
        if meet.meanwhile is not None:
            self.emit(meet.meanwhile)
            writer.comment(waits)
        writer.line(f'while tl.atomic_add({each.place}, 0, sem="acquire") < {each.wanted}:')
        writer.line(f"{INDENT}pass")
        writer.assigned(writer.passed_on)

    def emit(self, stmt: Stmt) -> None:
        """Print one statement and all inside it."""
        match closed(stmt):
            case Seq(stmts=stmts):
                for child in stmts:
                    self.emit(child)
            case For() as loop:
                self._loop(loop)
            case Guard() as guard:
                self._guard(guard)
            case Finish() as finish:
                self._finish(finish)
            case Meet() as meet:
                self._meet(meet)
            case Allocate() as node:
                self._allocate(node)
            case Store() as store:
                self._comment(store.buffer, "")
                self._store(store)
            case Accumulate(call=TensorCall() as call) as update:
                self._comment(update.buffers[0], call.intrin.name)
                intrinsics.call(self.writer, update, call)
            case Accumulate() as update:
                self._check_owned(update)
                self._comment(update.buffers[0], _folds(update))
                reduction.accumulate(self.writer, update)
            case Dot() as dot:
                self._comment(dot.buffer, f"sum over {dot.contract.axis.name}")
                dots.dot(self.writer, dot)
            case HostCall(name=name):
                raise InternalError(f"the call of {name} stands inside a kernel")
            case _ as never:
                assert_never(never)

    def _comment(self, buffer: Buffer, what: str) -> None:
        """Say what the next lines compute, once per buffer and kind of statement."""
        if buffer in self._commented:
            return
        if what or not self._is_start(buffer):
            self._commented.add(buffer)
            self.writer.comment(f"{buffer.name}: {what}" if what else buffer.name)

    def _is_start(self, buffer: Buffer) -> bool:
        local = self.writer.locals.get(buffer)
        return local is not None and local.accumulates

    def _open(self, body: Stmt, in_loop: bool, rare: bool = False) -> tuple[Buffer, ...]:
        """Start a block; variables it changes are written out before it and new inside it."""
        writer = self.writer
        written, read = buffers_written(body), buffers_read(body)
        for buffer in (*written, *read):
            if buffer in writer.locals:
                Printer(writer, (), ()).flush(buffer)
        if in_loop:
            writer.settle(written, read)
        writer.open(in_loop, rare)
        if in_loop:
            writer.touched(written, read)
            writer.assigned(written)
        return written

    def _close(
        self, header: str, written: Sequence[Buffer], defined: set[Buffer], *, runs: bool = False
    ) -> None:
        self.writer.close(header, runs=runs)
        self.writer.assigned(written)
        for buffer, local in self.writer.locals.items():
            local.defined = buffer in defined

    def _defined(self) -> set[Buffer]:
        return {buffer for buffer, local in self.writer.locals.items() if local.defined}

    def _loop(self, loop: For) -> None:
        writer = self.writer
        if loop.kind in (LoopKind.VECTORIZED, LoopKind.PROGRAM):
            raise LowerError(
                f"a {loop.kind.value} loop over {loop.axis.name!r} stands beside other statements",
                hint="reorder bound axes to the outside of the kernel",
            )
        # Its number has the type of its ends, and statements take it for one of its own type.
        ends = [address.to(each, loop.axis.dtype) for each in (loop.start, loop.end)]
        printer = Printer(writer, (), ends)
        start, end = (printer.value(each) for each in ends)
        static = loop.kind is LoopKind.UNROLLED and end.literal
        if static and not compile_time.unrolls(loop, writer.threads):
            writer.comment(f"{loop.axis.name} stays a loop: its iterations would take too long")
            static = False
        name = counter = writer.names.fresh(loop.axis.name)
        writer.symbols[loop.axis] = name
        options = ""
        if static:
            writer.static.add(loop.axis)
        else:
            if loop.axis.dtype is DType.int64:  # else of 32 bits, as both ends are
                if address.fits(loop.start) and address.fits(loop.end):
                    counter = writer.names.fresh(f"{name}_32")
                else:
                    end = printer.typed(end)
            options += f", num_stages={loop.num_stages}" if loop.num_stages else ""
            options += ", flatten=True" if loop.flatten else ""
        defined = self._defined()
        written = self._open(loop.body, in_loop=True)
        if counter != name:
            writer.line(f"{name} = {counter}.to(tl.int64)")
        writer.symbol_depth[loop.axis] = writer.depth
        around = writer.updated_again
        if not static:
            writer.updated_again = updated_again(loop.body)
        self.emit(loop.body)
        writer.updated_again = around
        call = "tl.static_range" if static else "tl.range"
        bounds = f"{start.text.text}, {end.text.text}"
        header = f"for {counter} in {call}({bounds}{options}):"
        runs = prove(less(loop.start, loop.end), writer.facts)
        self._close(header, written, defined, runs=runs)

    def _guard(self, guard: Guard) -> None:
        condition = guard_loads(guard.condition)
        text = Printer(self.writer, (), (condition,)).value(condition).text.text
        defined = self._defined()
        rare = any(isinstance(node, Load) for node in walk(condition))
        written = self._open(guard.body, in_loop=False, rare=rare)
        around = self._guards
        self._guards = (*around, *conjuncts(guard.condition))
        self.emit(guard.body)
        self._guards = around
        self._close(f"if {text}:", written, defined)

    def _finish(self, finish: Finish) -> None:
        """Last-block reduction: count the program, and run the body in the last one.

        One thread counts, after a barrier behind the stores of all; `acq_rel` orders these before
        the loads of the last program, whose other threads wait for that thread.
        """
        writer = self.writer
        writer.comment("the last program to come here finishes the tile")
        writer.barrier()
        last = simplify(sub(finish.count, 1), writer.facts)
        printer = Printer(writer, (), (*finish.indices, last))
        place = address.pointer(printer, finish.counter, finish.indices).text.text
        wanted = printer.value(last).text.text
        ticket = f'tl.atomic_add({place}, 1, sem="acq_rel")'
        before = writer.define(ticket, writer.depth, None, "before")
        writer.assigned(buffers_read(finish.body))
        defined = self._defined()
        written = self._open(finish.body, in_loop=False, rare=True)
        # One program of all that have a counter together runs the body.
        everyone, counted = self.programs, set(walk(*finish.indices))
        self.programs = tuple(axis for axis in everyone if axis in counted)
        self.emit(finish.body)
        self.programs = everyone
        writer.line(f"tl.store({place}, 0)")
        self._close(f"if {before} == {wanted}:", written, defined)

    def _allocate(self, node: Allocate) -> None:
        writer, buffer = self.writer, node.buffer
        if buffer.scope is Scope.GLOBAL:
            raise LowerError(
                f"buffer {buffer.name!r} in device memory is allocated inside a kernel",
                hint="make it a workspace of the module",
            )
        for extent in buffer.shape:
            if not isinstance(extent, Const) or int(extent.value) & (int(extent.value) - 1):
                raise LowerError(
                    f"tile value {buffer.name!r} has an extent that is no constant power of two",
                    hint="split the axis by a power of two",
                )
        local = Local(writer.names.fresh(buffer.name), accumulates=_accumulates(node))
        writer.locals[buffer] = local
        if needs_definition(node.body, buffer):
            text = writer.full(block_shape(buffer), 0, buffer.dtype)
            writer.line(f"{local.name} = {text}")
            local.defined = True
            writer.assigned((buffer,))
        self.emit(node.body)

    def _store(self, store: Store) -> None:
        if self.descriptors.transfer(store):
            return
        if store.buffer.scope is Scope.GLOBAL:
            self._store_memory(store)
        else:
            self._store_local(store)

    def _store_memory(self, store: Store) -> None:
        value = guard_loads(store.value)
        parts = conjuncts(store.mask)
        printer = Printer(self.writer, store.tile, (*store.indices, value, *parts), parts)
        found = printer.value(value)
        where = address.pointer(printer, store.buffer, store.indices)
        missing = set(range(len(printer.tiles))).difference(where.dims)
        if missing:
            raise InternalError(
                f"store to {store.buffer.name!r} writes one element from many points",
                facts=[("axes", ", ".join(printer.names(sorted(missing))))],
            )
        mask = f", mask={printer.mask(parts, where.dims).text}" if parts else ""
        self.writer.before_store(store.buffer)
        text = printer.expand(found, where.dims).text
        wish = address.eviction(store.buffer)
        self.writer.line(f"tl.store({where.text.text}, {text}{mask}{wish})")
        self.writer.assigned((store.buffer,))

    def _store_local(self, store: Store) -> None:
        writer, buffer = self.writer, store.buffer
        local = writer.local(buffer)
        parts = conjuncts(store.mask) if local.defined else []
        value = guard_loads(store.value)
        if isinstance(value, Const) and not parts:
            local.pending, local.defined = value, True
            writer.assigned((buffer,))
            return
        roots = (value, *parts)
        first = Printer(writer, store.tile, ())
        axes = first.block_axes(buffer, store.indices)
        units = tuple(t for t in store.tile if t.extent == 1)
        rest = tuple(t for n, t in enumerate(first.tiles) if n not in axes)
        order = (*(first.tiles[place] for place in axes), *rest, *units)
        printer = Printer(writer, order, roots, parts)
        dims = tuple(range(len(axes)))
        found = printer.value(value)
        if set(found.dims) - set(dims):
            raise InternalError(f"value stored to {buffer.name!r} has more axes than it")
        text = whole(printer, found, dims, block_shape(buffer))
        if parts:
            printer.flush(buffer)
            mask = printer.mask(parts, dims).text
            text = f"tl.where({mask}, {text}, {local.name})"
        writer.line(f"{local.name} = {text}")
        local.pending, local.defined = None, True
        writer.assigned((buffer,))

    def _check_owned(self, update: Accumulate) -> None:
        """An element updated in memory must be touched by one program only: an index says which,
        or guards that let only one through."""
        if update.buffers[0].scope is not Scope.GLOBAL or update.atomic:
            return
        used = set(walk(*update.indices))
        named = frozenset(index for index in update.indices if isinstance(index, Axis))
        unnamed = [axis for axis in self.programs if axis not in used]
        shared = [axis.name for axis in unnamed if not self._one_passes(axis, named)]
        if shared:
            raise LowerError(
                f"several programs would update one element of {update.buffers[0].name!r}",
                facts=[("axes", ", ".join(shared))],
                hint="keep the reduction inside one program (serial or block axes), or split it "
                "with rfactor",
            )

    def _one_passes(self, program: Axis, named: frozenset[Axis]) -> bool:
        """Whether guards let one program of an axis through, at most, for each element: any two for
        which they hold, at the same value of each axis that `named` an element, are the same."""
        guards = [g for g in self._guards if not any(isinstance(node, Load) for node in walk(g))]
        others = {a: Axis(a.name, a.kind, None, a.dtype) for a in axes_of(program, *guards) - named}
        renamed: dict[Expr, Expr] = {**others}
        facts = self.writer.ranges
        for axis, other in others.items():
            known = facts.range_of(axis)
            if known is not None:
                low, extent = (substitute(each, renamed) for each in (known.min, known.extent))
                facts = facts.with_axis(other, low, extent)
        for guard in guards:
            facts = facts.assume(guard).assume(substitute(guard, renamed))
        return equal(program, others[program], facts)


def _folds(update: Accumulate) -> str:
    axes = {axis for index in update.indices for axis in walk(index) if isinstance(axis, Axis)}
    names = [t.axis.name for t in update.tile if t.axis not in axes and t.extent > 1]
    return f"{update.reducer.name} over {', '.join(names)}" if names else update.reducer.name


def _accumulates(node: Allocate) -> bool:
    """True when the buffer is the target of an `Accumulate` or a `Dot`."""

    def visit(stmt: Stmt) -> bool:
        match closed(stmt):
            case Seq(stmts=stmts):
                return any(visit(child) for child in stmts)
            case For(body=body) | Guard(body=body) | Allocate(body=body) | Finish(body=body):
                return visit(body)
            case Accumulate(buffers=buffers):
                return node.buffer in buffers
            case Dot(buffer=buffer):
                return buffer is node.buffer
            case Meet(meanwhile=meanwhile):
                return meanwhile is not None and visit(meanwhile)
            case Store() | HostCall():
                return False
            case _ as never:
                assert_never(never)

    return visit(node.body)


def needs_definition(body: Stmt, buffer: Buffer) -> bool:
    """True when a variable must exist before `body`: it is read where no assignment is in scope."""
    missing = False

    def reads(stmt: Stmt) -> bool:
        if isinstance(stmt, Accumulate) and buffer in stmt.buffers:
            return True
        if isinstance(stmt, Dot) and stmt.buffer is buffer:
            return True
        loads = (e for e in walk(*own_exprs(stmt)) if isinstance(e, Load))
        return any(load.buffer is buffer for load in loads)

    def visit(stmt: Stmt, defined: bool) -> bool:
        nonlocal missing
        match closed(stmt):
            case Seq(stmts=stmts):
                for child in stmts:
                    defined = visit(child, defined)
                return defined
            case Allocate(body=inner):
                return visit(inner, defined)
            case For(body=inner) | Guard(body=inner) | Finish(body=inner):
                missing |= not defined and reads(stmt)
                visit(inner, defined)
                return defined
            case Meet(meanwhile=meanwhile):
                missing |= not defined and reads(stmt)
                return defined if meanwhile is None else visit(meanwhile, defined)
            case Store() | Accumulate() | Dot() | HostCall():
                missing |= not defined and reads(stmt)
                return defined or (isinstance(stmt, Store) and stmt.buffer is buffer)
            case _ as never:
                assert_never(never)

    visit(body, False)
    return missing
