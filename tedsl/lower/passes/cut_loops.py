"""Split loops at the positions that the schedule asks for (`cut`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.index_arith import (
    ZERO,
    add,
    at_most,
    both,
    less,
    maximum,
    minimum,
    sub,
    widened,
)
from tedsl.expr.nodes import Axis, Expr
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import Finish, For, Func, Guard, LoopKind, Seq, Stmt
from tedsl.ir.visit import map_sub_stmts
from tedsl.ir.visit import substitute as substitute_stmt
from tedsl.lower.fresh_copies import fresh_copy
from tedsl.lower.passes.run_backwards import in_order
from tedsl.lower.passes.simplify import func_facts, sequence

_GRID = (LoopKind.PARALLEL, LoopKind.PROGRAM)


def cut_loops(func: Func) -> Func:
    """Make several loops, or several bodies, of a loop with cuts.

    Before:  for i in 0..n (cut at 4): f(i)
    After:   for i in 0..min(4, n): f(i)
             for i in min(4, n)..n: f(i)
    A loop of the grid, or one that runs in parallel, stays whole; its body, inside the loops of
    that kind directly in it, stands once for each part behind a guard, but for what the last of
    its programs does.
    Requires: level NEST.   Ensures: no cuts.
    Order: first, so that every pass sees the parts' ranges.
    """
    body = _visited(func.body, func_facts(func))
    return func if body is func.body else replace(func, body=body)


def _visited(stmt: Stmt, facts: Facts) -> Stmt:
    stmt = map_sub_stmts(stmt, lambda s: _visited(s, facts))
    if not isinstance(stmt, For) or not stmt.cuts:
        return stmt
    ends = [*_ends(stmt, facts), stmt.end]
    whole = replace(stmt, cuts=())
    if stmt.kind in _GRID:
        return replace(whole, body=_guarded(whole.body, whole.axis, ends))
    return _in_turn(whole, ends, facts)


def _ends(loop: For, facts: Facts) -> list[Expr]:
    """The points, brought into the loop and into order."""
    found: list[Expr] = []
    last: Expr = ZERO
    for point in loop.cuts:
        last = simplify(minimum(maximum(point, last), loop.end), facts)
        found.append(last)
    return found


def _in_turn(loop: For, ends: Sequence[Expr], facts: Facts) -> Stmt:
    parts: list[Stmt] = []
    begin: Expr = ZERO
    for place, end in enumerate(ends):
        if place == 0:
            parts.append(replace(loop, end=end))
        else:
            axis = Axis(loop.axis.name, loop.axis.kind, None, loop.axis.dtype)
            serial = loop.kind is LoopKind.SERIAL
            position = axis if serial else widened(add(axis, begin), axis.dtype)
            body = substitute_stmt(fresh_copy(loop.body), {loop.axis: position})
            length = end if serial else simplify(sub(end, begin), facts)
            start = begin if serial else ZERO
            parts.append(replace(loop, axis=axis, start=start, end=length, body=body))
        begin = end
    return sequence(in_order(loop, parts))


def _guarded(body: Stmt, axis: Axis, ends: Sequence[Expr]) -> Stmt:
    if isinstance(body, For) and body.kind in _GRID:
        return replace(body, body=_guarded(body.body, axis, ends))
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    last = [s for s in stmts if isinstance(s, Finish)]
    if last:
        first = sequence([s for s in stmts if not isinstance(s, Finish)])
        return sequence([_guarded(first, axis, ends), *last])
    parts: list[Stmt] = []
    for place, end in enumerate(ends):
        own = body if place == 0 else fresh_copy(body)
        tests: list[Expr] = [at_most(ends[place - 1], axis)] if place else []
        if place < len(ends) - 1:
            tests.append(less(axis, end))
        parts.append(Guard(both(*tests), own))
    return sequence(parts)
