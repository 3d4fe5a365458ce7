"""Reversed loops: from their last iteration to their first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.index_arith import add, sub, widened
from tedsl.expr.nodes import Axis
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import For, Func, Guard, LoopKind, Stmt
from tedsl.ir.visit import map_sub_stmts
from tedsl.ir.visit import substitute as substitute_stmt
from tedsl.lower.passes.simplify import func_facts


def run_backwards(func: Func) -> Func:
    """Count the iterations of a loop that runs backwards from its end.

    Before:  for i in a..b backwards: f(i)
    After:   for i in a..b: f(a + b - 1 - i)
    Requires: level NEST.   Ensures: no loop but those of the grid is `descending`.
    Order: after the passes that read from guards where a loop ends, and before the tiles of its
    statements get their masks.
    """
    body = _forwards(func.body, func_facts(func))
    return func if body is func.body else replace(func, body=body)


def in_order(loop: For, parts: Sequence[Stmt]) -> Sequence[Stmt]:
    """The parts of a loop, given from its start on, in the order in which they run."""
    return parts[::-1] if loop.descending else parts


def _forwards(stmt: Stmt, facts: Facts) -> Stmt:
    match stmt:
        case For():
            facts = facts.with_axis(stmt.axis, stmt.start, stmt.extent)
        case Guard(condition=condition):
            facts = facts.assume(condition)
        case _:
            pass
    stmt = map_sub_stmts(stmt, lambda child: _forwards(child, facts))
    if not isinstance(stmt, For) or not stmt.descending or stmt.kind is LoopKind.PROGRAM:
        return stmt
    axis = Axis(stmt.axis.name, stmt.axis.kind, None, stmt.axis.dtype)
    last = sub(add(stmt.start, stmt.end), 1)
    place = simplify(sub(widened(last, axis.dtype), axis), facts)
    body = substitute_stmt(stmt.body, {stmt.axis: widened(place, axis.dtype)})
    return replace(stmt, axis=axis, body=body, descending=False)
