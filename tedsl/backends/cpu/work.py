"""What a parallel body uses from outside, and roughly how much work it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.backends.cpu.builder import PTR, Value
from tedsl.backends.cpu.frame import Frame, place
from tedsl.expr.nodes import Axis, Const, Expr, Unary, Var
from tedsl.expr.visit import walk
from tedsl.ir import nodes as ir
from tedsl.ir.visit import own_exprs, sub_stmts

UNKNOWN_TRIPS = 16


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
            frame.memory[buffer] = place(buffer, ptr)
            align = 16 if buffer.scope is ir.Scope.GLOBAL else 8
            header.append(f"ptr noalias nonnull align {align} {ptr.text}")
        for variable in self.variables:
            value = Value(frame.fn.name("s"), outer.env[variable].type)
            frame.env[variable] = value
            frame.depth[variable] = 0
            header.append(str(value))
        return header


def captures(nest: Sequence[ir.For], body: ir.Stmt, frame: Frame) -> Captures:
    """The buffers and variables of `frame` that the loops of `nest` and `body` use."""
    buffers: dict[ir.Buffer, None] = {}
    roots: list[Expr] = [loop.extent for loop in nest]
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


def estimate(stmt: ir.Stmt) -> int:
    """About how many vector instructions running `stmt` once takes."""
    if isinstance(stmt, ir.For):
        trips = int(stmt.extent.value) if isinstance(stmt.extent, Const) else UNKNOWN_TRIPS
        return max(trips, 0) * estimate(stmt.body)
    if isinstance(stmt, (ir.Store, ir.Accumulate)):
        points = 1
        for t in stmt.tile:
            points *= t.extent
        cost = 0
        for node in walk(*own_exprs(stmt)):
            if isinstance(node, Unary):
                cost += 8
            elif not isinstance(node, (Const, Axis)):
                cost += 1
        return cost * max(1, points // 8)
    return sum(estimate(s) for s in sub_stmts(stmt))
