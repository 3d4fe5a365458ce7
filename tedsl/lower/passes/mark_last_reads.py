"""L2 eviction priority of the last read: what a kernel reads again, and for the last time, may be
evicted first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tedsl.expr.nodes import Expr
from tedsl.expr.visit import rewrite, walk
from tedsl.ir.nodes import Allocate, Buffer, For, Func, Guard, Load, LoopKind, Seq, Stmt
from tedsl.ir.visit import map_exprs, map_sub_stmts, own_exprs, sub_stmts, walk_stmts

_GRID = (LoopKind.PARALLEL, LoopKind.PROGRAM)
_TURNS = (LoopKind.SERIAL, LoopKind.UNROLLED)


def mark_last_reads(func: Func) -> Func:
    """Give the loads in the last loop nest that reads a buffer, and those after it, the eviction
    priority `Buffer.evict_then`, where a nest before it has read the buffer.

    Before:  for i in program: (for k: acc += X[i, k];  for j: Y[i, j] = X[i, j] / acc)
    After:   for i in program: (for k: acc += X[i, k];
                                for j: Y[i, j] = X[i, j; evicted first] / acc)
    Where one serial loop encloses all of it and each iteration reads elsewhere, its iterations are
    looked at.  Requires: level NEST.   Ensures: the same values.
    Order: before cut_loops and partition_loops, whose parts of a loop belong together.
    """
    body = func.body
    for buffer in func.params:
        if buffer.evict_then is not None:
            body = _marked(body, buffer)
    return func if body is func.body else replace(func, body=body)


def _marked(body: Stmt, buffer: Buffer) -> Stmt:
    """What runs once, or once in each program, with its last reads marked."""
    units = list(_units(body))
    reading = [unit for unit in units if _reads(unit, buffer)]
    nests = [place for place, unit in enumerate(reading) if _reads_in_turns(unit, buffer)]
    if len(nests) > 1:
        return _with_last(body, reading[nests[-1] :], buffer)
    if nests and nests[0] < len(reading) - 1:
        return _with_last(body, reading[nests[0] + 1 :], buffer)
    if len(reading) != 1 or not isinstance(reading[0], For):
        return body
    loop = reading[0]
    if loop.kind not in _GRID and not _moves(loop, buffer):
        return body
    parts = _programs_apart(loop)
    if parts is None:
        inside = _marked(loop.body, buffer)
    else:
        inside = Seq(tuple(_marked(part, buffer) for part in parts))
    return _replaced(body, loop, replace(loop, body=inside))


def _units(stmt: Stmt) -> Iterator[Stmt]:
    """Statements and loops that run one after the other."""
    match stmt:
        case Seq() | Allocate() | Guard():
            for child in sub_stmts(stmt):
                yield from _units(child)
        case _:
            yield stmt


def _programs_apart(loop: For) -> Sequence[Stmt] | None:
    """What different programs of a grid do, one for each kind of program."""
    body = loop.body
    if loop.kind in _GRID and isinstance(body, Seq):
        return body.stmts if all(isinstance(part, Guard) for part in body.stmts) else None
    return None


def _loads(stmt: Stmt, buffer: Buffer) -> Iterator[Load]:
    for node in walk_stmts(stmt):
        for expr in walk(*own_exprs(node)):
            if isinstance(expr, Load) and expr.buffer is buffer:
                yield expr


def _reads(stmt: Stmt, buffer: Buffer) -> bool:
    return any(True for _ in _loads(stmt, buffer))


def _reads_in_turns(stmt: Stmt, buffer: Buffer) -> bool:
    """True when a loop with one iteration after the other reads the buffer."""
    if isinstance(stmt, For) and stmt.kind in _TURNS and _reads(stmt.body, buffer):
        return True
    return any(_reads_in_turns(child, buffer) for child in sub_stmts(stmt))


def _moves(loop: For, buffer: Buffer) -> bool:
    """True when each iteration reads elements of its own."""
    return loop.kind in _TURNS and all(
        loop.axis in set(walk(*load.indices)) for load in _loads(loop.body, buffer)
    )


def _with_last(body: Stmt, last: Sequence[Stmt], buffer: Buffer) -> Stmt:
    def marked(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer is buffer:
            return replace(node, evict=buffer.evict_then)
        return None

    for unit in last:
        body = _replaced(body, unit, map_exprs(unit, lambda e: rewrite(e, marked)))
    return body


def _replaced(body: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """`body` with one of its units replaced."""
    if body is old:
        return new
    if not isinstance(body, (Seq, Allocate, Guard)):
        return body
    return map_sub_stmts(body, lambda child: _replaced(child, old, new))
