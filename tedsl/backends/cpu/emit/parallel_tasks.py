"""What a parallel body uses from outside, and roughly how much work it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tedsl.backends.cpu.emit.frame import Frame, parameter, place
from tedsl.backends.cpu.emit.llvm_text import PTR, Value
from tedsl.backends.cpu.emit.tiling import UNROLL_POINTS
from tedsl.expr.nodes import Axis, Cast, Const, Expr, Unary, Var
from tedsl.expr.visit import walk
from tedsl.ir import nodes as ir
from tedsl.ir.visit import own_exprs, sub_stmts
from tedsl.processor import machine

REGISTER_TILE_VECTORS = 64
UNKNOWN_TRIPS = 16
SHORT = 8  # iterations that LLVM writes out by itself
SMALL = 512  # vector instructions of all iterations up to which it does so in any case
CHOICES = 128  # reads from one of two addresses in a block that LLVM takes no noticeable time over
LOOP = 8  # instructions that a loop takes beside its body
VERSIONS = 6  # of the body of a loop of scalars: vectors, several at a time, and what is left over
STREAM_FROM = 1 << 25  # bytes of an output from which keeping it in caches is hopeless


def innermost(buffer: ir.Buffer, body: ir.Stmt) -> int | None:
    """The dimension of a local buffer that is best contiguous, from how statements step through it.

    A statement's lanes run along the axis that its target's last index names; every access votes
    for the dimension that this axis moves in, with more weight the deeper its loop.
    """
    votes = [0] * len(buffer.shape)
    if len(votes) < 2 or buffer.scope is ir.Scope.GLOBAL:
        return None
    _vote(buffer, body, 1, votes)
    best = max(range(len(votes)), key=lambda d: (votes[d], d))
    return best if votes[best] > 0 else None


def _vote(buffer: ir.Buffer, stmt: ir.Stmt, weight: int, votes: list[int]) -> None:
    if isinstance(stmt, ir.For):
        weight *= 8
    if isinstance(stmt, (ir.Store, ir.Accumulate)) and stmt.indices:
        axes = {t.axis for t in stmt.tile if t.extent > 1}
        lanes = [n for n in walk(stmt.indices[len(stmt.indices) - 1]) if n in axes]
        written = (stmt.buffer,) if isinstance(stmt, ir.Store) else stmt.buffers
        for node in walk(*own_exprs(stmt)) if len(lanes) == 1 and buffer not in written else ():
            if isinstance(node, ir.Load) and node.buffer is buffer:
                for d, index in enumerate(node.indices):
                    votes[d] += weight if any(n is lanes[0] for n in walk(index)) else 0
    for child in sub_stmts(stmt):
        _vote(buffer, child, weight, votes)


def is_register_tile(buffer: ir.Buffer, body: ir.Stmt, looped: bool = False) -> bool:
    """Whether a loop accumulates into a local buffer small enough for unrolled statements.

    Such a tile stays in registers when every statement that touches it has constant addresses.
    """
    size = buffer.dtype.nbytes
    for extent in buffer.shape:
        size *= int(extent.value) if isinstance(extent, Const) else 1 << 20
    if 8 * size > REGISTER_TILE_VECTORS * machine().vector_bits:
        return False
    if isinstance(body, ir.Accumulate):
        return looped and buffer in body.buffers and len(buffer.shape) > 0
    inside = looped or isinstance(body, ir.For)
    return any(is_register_tile(buffer, child, inside) for child in sub_stmts(body))


def streamed_outputs(module: ir.Module) -> frozenset[ir.Buffer]:
    """Large outputs that no statement of the module reads or updates."""
    large: set[ir.Buffer] = set()
    for buffer in module.outputs:
        size = buffer.dtype.nbytes
        for extent in buffer.shape:
            size *= int(extent.value) if isinstance(extent, Const) else 0
        if size >= STREAM_FROM:
            large.add(buffer)
    stack = [func.body for func in module.funcs] if large else []
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, ir.HostCall):
            large -= {*stmt.inputs, *stmt.outputs}
        large -= {n.buffer for n in walk(*own_exprs(stmt)) if isinstance(n, ir.Load)}
        if isinstance(stmt, ir.Accumulate):
            large -= set(stmt.buffers)
        stack.extend(sub_stmts(stmt))
    return frozenset(large)


@dataclass(frozen=True, slots=True)
class Captures:
    """Buffers and variables of an enclosing function, in a fixed order."""

    buffers: tuple[ir.Buffer, ...]
    variables: tuple[Expr, ...]

    def values(self, frame: Frame) -> list[Value]:
        """What they are in the enclosing function."""
        return [frame.memory[b].ptr for b in self.buffers] + [frame.env[v] for v in self.variables]

    def bind(self, frame: Frame, outer: Frame) -> list[str]:
        """Make them parameters of `frame`'s function; returns the header's text."""
        header: list[str] = []
        for buffer in self.buffers:
            ptr = Value(frame.fn.name("p"), PTR)
            frame.memory[buffer] = place(buffer, ptr, outer.memory[buffer].inner)
            header.append(parameter(buffer, ptr))
        for variable in self.variables:
            value = Value(frame.fn.name("s"), outer.env[variable].type)
            frame.env[variable] = value
            frame.depth[variable] = 0
            header.append(str(value))
        return header


def captures(nest: Sequence[ir.For], body: ir.Stmt, frame: Frame) -> Captures:
    """The buffers and variables of `frame` that the loops of `nest` and `body` use."""
    buffers: dict[ir.Buffer, None] = {}
    roots: list[Expr] = [loop.end for loop in nest]
    stack = [body]
    while stack:
        stmt = stack.pop()
        roots.extend(own_exprs(stmt))
        if isinstance(stmt, ir.Store):
            buffers[stmt.buffer] = None
        elif isinstance(stmt, ir.Accumulate):
            buffers.update(dict.fromkeys(stmt.buffers))
            roots.extend(stmt.reducer.combine)
        elif isinstance(stmt, ir.Allocate):
            roots.extend(stmt.buffer.shape)
        stack.extend(sub_stmts(stmt))
    for node in walk(*roots):
        if isinstance(node, ir.Load):
            buffers[node.buffer] = None
    known = [b for b in buffers if b in frame.memory]
    for buffer in known:
        roots.extend(buffer.shape)
    variables = dict.fromkeys(n for n in walk(*roots) if isinstance(n, (Axis, Var)))
    return Captures(tuple(known), tuple(v for v in variables if v in frame.env))


def written_out(stmt: ir.Stmt) -> int:
    """About how many vector instructions are written for `stmt`: for each iteration of a loop that
    is unrolled, by us or, if it is short, by LLVM, and as often as LLVM does for any other."""
    if isinstance(stmt, ir.For):
        once = written_out(stmt.body)
        count = max(int(stmt.extent.value), 1) if isinstance(stmt.extent, Const) else SMALL + 1
        short = count <= SHORT or count * once <= SMALL
        if not short and stmt.kind is not ir.LoopKind.UNROLLED:
            count = VERSIONS if _is_left_to_llvm(stmt.body) else 1
        return count * once + LOOP
    if isinstance(stmt, (ir.Store, ir.Accumulate)):
        return _cost(stmt) * _points(stmt)
    return sum(written_out(each) for each in sub_stmts(stmt))


def _points(stmt: ir.Store | ir.Accumulate) -> int:
    """How many vectors of a statement are written one after the other."""
    return min(max(1, prod(t.extent for t in stmt.tile) // 8), UNROLL_POINTS)


def _is_left_to_llvm(body: ir.Stmt) -> bool:
    """Whether LLVM may make vectors of the iterations of a loop: of scalars, which has no loop
    inside it that stays one."""
    if isinstance(body, ir.For):
        short = body.kind is ir.LoopKind.UNROLLED or is_short(body)
        return short and _is_left_to_llvm(body.body)
    if isinstance(body, (ir.Store, ir.Accumulate)):
        return not body.tile
    return all(_is_left_to_llvm(each) for each in sub_stmts(body))


def is_short(loop: ir.For) -> bool:
    """Whether LLVM writes out the iterations of a loop that is left to it, whatever is around."""
    extent = loop.extent
    return isinstance(extent, Const) and int(extent.value) * written_out(loop.body) <= SMALL


def has_many_choices(body: ir.Stmt) -> bool:
    """Whether scalars that are read under a condition are so many, in what stands between one loop
    and the next, that each should have a branch of its own."""
    return _choices(body) > CHOICES


def _choices(stmt: ir.Stmt) -> int:
    """Loads under a condition in `stmt`, without those in loops that stay loops."""
    if isinstance(stmt, ir.For):
        written = stmt.kind is ir.LoopKind.UNROLLED or is_short(stmt)
        count = int(stmt.extent.value) if isinstance(stmt.extent, Const) else 0
        return count * _choices(stmt.body) if written else 0
    if isinstance(stmt, (ir.Store, ir.Accumulate)):
        loads = [n for n in walk(*own_exprs(stmt)) if isinstance(n, ir.Load)]
        return sum(n.mask is not None for n in loads) * _points(stmt)
    return sum(_choices(each) for each in sub_stmts(stmt))


def estimate(stmt: ir.Stmt) -> int:
    """About how many vector instructions running `stmt` once takes."""
    if isinstance(stmt, ir.For):
        trips = int(stmt.extent.value) if isinstance(stmt.extent, Const) else UNKNOWN_TRIPS
        return max(trips, 0) * estimate(stmt.body)
    if isinstance(stmt, (ir.Store, ir.Accumulate)):
        return _cost(stmt) * max(1, prod(t.extent for t in stmt.tile) // 8)
    return sum(estimate(s) for s in sub_stmts(stmt))


def _cost(stmt: ir.Stmt) -> int:
    """About how many instructions a statement is for one vector."""
    cost = 0
    for node in walk(*own_exprs(stmt)):
        if isinstance(node, Unary) or (isinstance(node, Cast) and _short(node)):
            cost += 8
        elif not isinstance(node, (Const, Axis)):
            cost += 1
    return cost


def _short(cast: Cast) -> bool:
    """Whether a cast is of floats for which many processors have no instruction."""
    return cast.dtype.is_short_float or cast.a.dtype.is_short_float
