"""Local memory in device memory: what a program of tiles cannot hold in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tedsl.errors import LowerError
from tedsl.expr.index_arith import MAX_ELEMENTS, constant
from tedsl.expr.nodes import Axis, Var
from tedsl.expr.visit import axes_of, variables
from tedsl.index.facts import Facts
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Finish,
    For,
    Func,
    LoopKind,
    Module,
    Scope,
    Stmt,
)
from tedsl.ir.visit import (
    buffers_read,
    buffers_written,
    map_places,
    map_sub_stmts,
    rewrite_stmts,
    sub_stmts,
    walk_stmts,
)
from tedsl.lower.passes.check_registers import accesses, misfits
from tedsl.lower.passes.simplify import func_facts, simplify_func
from tedsl.lower.passes.vectorize_loops import tiles
from tedsl.scheduling.regions.infer import at_least_none

Programs = tuple[For, ...]


def through_memory(func: Func) -> Func:
    """Move buffers that are no tiles into device memory, where each program has a part of its own.

    A tile of a program is one value: what is read or written at a shift, in part or element by
    element is none.
    Before:  for io (program): alloc B: local[10]: (tile i: B[i] = ...);  C[io, i] = B[i] + B[i + 2]
    After:   for io (program): (tile i: B_memory[io, i] = ...);
             C[io, i] = B_memory[io, i] + B_memory[io, i + 2]
    Requires: level NEST.   Ensures: the LOCAL buffers that are left are accessed as whole tiles; no
    loop that stores and loads such memory runs in stages.
    Order: before vectorize_loops, which leaves out the masks of what is stored in registers.
    Raises:
        LowerError: more memory than has addresses.
    """
    while True:
        found = _unfit(func)
        if not found:
            return func
        func = _moved(func, found)


def with_private(module: Module) -> Module:
    """The module with what its kernels keep in memory among its workspaces."""
    known = {*module.inputs, *module.outputs, *module.workspaces, *module.counters}
    own = [b for func in module.funcs for b in func.params if b.private and b not in known]
    if not own:
        return module
    steps = {repeat.step for repeat in module.repeats}
    for buffer in own:
        if not steps.isdisjoint(variables(*buffer.shape)):
            raise LowerError(
                f"how much memory {buffer.told} takes changes from step to step",
                hint="bind loops of a constant extent, or compute the stage at root",
            )
    return replace(module, workspaces=(*module.workspaces, *dict.fromkeys(own)))


def _unfit(func: Func) -> set[Buffer]:
    """The buffers that are no tiles, and those that are accumulated together with them: first those
    that are in memory anyway."""
    held = {s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)}
    known = {buffer for buffer in held if buffer.scope is Scope.GLOBAL}
    if not held or known or _fits(func.body, {}):
        return known
    trial = simplify_func(replace(func, body=tiles(func, padded=True)))
    found = {buffer for buffer, _ in misfits(trial.body)} & held
    together = [s.buffers for s in walk_stmts(func.body) if isinstance(s, Accumulate)]
    return found.union(*(each for each in together if not found.isdisjoint(each)))


def _fits(stmt: Stmt, lanes: Mapping[Axis, int | None]) -> bool:
    """True when all accesses below `stmt` are of whole tiles as they stand: most are."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED:
        lanes = {**lanes, stmt.axis: constant(stmt.extent)}
    for buffer, indices in accesses(stmt):
        if buffer.scope is Scope.GLOBAL:
            continue
        named = [i for i, size in zip(indices, buffer.shape, strict=True) if constant(size) != 1]
        sizes = [constant(size) for size in buffer.shape if constant(size) != 1]
        whole = [lanes.get(i) if isinstance(i, Axis) else None for i in named] == sizes
        units = all(
            constant(i) == 0
            for i, size in zip(indices, buffer.shape, strict=True)
            if constant(size) == 1
        )
        if not (whole and units and len(set(named)) == len(named)):
            return False
    return all(_fits(child, lanes) for child in sub_stmts(stmt))


@dataclass(slots=True)
class _Uses:
    """The loops of the grid around all accesses of a buffer."""

    programs: dict[Buffer, Programs] = field(default_factory=dict[Buffer, Programs])

    def visit(self, stmt: Stmt, around: Programs) -> None:
        """Note what `stmt` and all inside it access."""
        match stmt:
            case For(kind=LoopKind.PROGRAM):
                around = (*around, stmt)
            case Finish(indices=indices):
                named = axes_of(*indices)
                around = tuple(loop for loop in around if loop.axis in named)
            case _:
                pass
        for buffer, _ in accesses(stmt):
            known = self.programs.get(buffer, around)
            self.programs[buffer] = tuple(loop for loop in known if loop in around)
        for child in sub_stmts(stmt):
            self.visit(child, around)


def _moved(func: Func, buffers: set[Buffer]) -> Func:
    """The kernel with `buffers` in memory."""
    uses = _Uses()
    uses.visit(func.body, ())
    places = {b: uses.programs.get(b, ()) for b in buffers}
    made = {b: _memory(func, b, programs) for b, programs in places.items()}
    axes = {b: tuple(loop.axis for loop in programs) for b, programs in places.items()}
    body = _plain(_replaced(func.body, made, axes), frozenset(made.values()))
    ordered = [made[b] for b in dict.fromkeys(_allocated(func.body)) if b in made]
    known = (n for b in ordered for n in variables(*b.shape) if isinstance(n, Var))
    sizes = tuple(dict.fromkeys((*func.sizes, *known)))
    # The blocks of a cluster cannot pass it on to each other in memory: one for each program.
    launch = replace(func.launch, num_ctas=None)
    params = (*func.params, *ordered)
    return replace(func, params=params, sizes=sizes, body=body, launch=launch)


def _allocated(body: Stmt) -> Iterator[Buffer]:
    return (s.buffer for s in walk_stmts(body) if isinstance(s, Allocate))


def _memory(func: Func, buffer: Buffer, programs: Programs) -> Buffer:
    """Memory for a part of `buffer` for each program."""
    facts = func_facts(func) if programs else Facts.EMPTY
    counts = tuple(at_least_none(loop.extent, facts) for loop in programs)
    known = [constant(e) for e in (*counts, *buffer.shape)]
    if axes_of(*buffer.shape):
        raise LowerError(
            f"how much memory {buffer.told} takes changes inside the kernel",
            hint="split its loops by constants",
        )
    total = prod(n for n in known if n is not None)
    if total > MAX_ELEMENTS:
        raise LowerError(
            f"{buffer.told} is no tile in registers, and a part for each program would take "
            f"{total} elements of memory",
            facts=[("allowed", str(MAX_ELEMENTS))],
            hint=f"bind fewer programs, attach {buffer.part_of or buffer.name} at an inner loop, "
            "inline it, or leave it at root",
        )
    held = None if buffer.held is None else (*counts, *buffer.held)
    return replace(
        buffer,
        name=f"{buffer.name}_memory",
        shape=(*counts, *buffer.shape),
        scope=Scope.GLOBAL,
        held=held,
        private=True,
    )


def _replaced(
    stmt: Stmt, made: Mapping[Buffer, Buffer], axes: Mapping[Buffer, tuple[Axis, ...]]
) -> Stmt:
    """`stmt` that accesses memory for what it held in registers."""

    def unheld(node: Stmt) -> Stmt | None:
        return node.body if isinstance(node, Allocate) and node.buffer in made else None

    moved = map_places(stmt, made, lambda buffer, indices: (*axes[buffer], *indices))
    return rewrite_stmts(moved, unheld)


def _plain(stmt: Stmt, memory: frozenset[Buffer]) -> Stmt:
    """`stmt` without software pipelining of loops that load what they store: a prefetch would load
    too early."""
    stmt = map_sub_stmts(stmt, lambda child: _plain(child, memory))
    if not isinstance(stmt, For) or stmt.kind is LoopKind.PROGRAM:
        return stmt
    both = memory.intersection(buffers_read(stmt.body)).intersection(buffers_written(stmt.body))
    return replace(stmt, num_stages=1, flatten=False) if both else stmt
