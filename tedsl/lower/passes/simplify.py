"""Simplify every expression of a kernel under the ranges of its loops, and drop what became
idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.index_arith import conjuncts, constant, sub, widened
from tedsl.expr.nodes import Axis, Const, Expr
from tedsl.expr.visit import axes_of
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Finish,
    For,
    Func,
    Guard,
    LoopKind,
    Seq,
    Stmt,
    Store,
)
from tedsl.ir.visit import map_own_exprs, tile_axes
from tedsl.ir.visit import substitute as substitute_stmt
from tedsl.scheduling.regions.infer import shape_facts


def simplify_func(func: Func) -> Func:
    """Simplify with the facts in force at each place: loop and tile ranges, guards.

    Before:  for i in 0..32: if i < 40: for j in 0..1: A[(i*4 + j)//4] = 0
    After:   for i in 0..32: A[i] = 0
    Ensures: no loop of constant extent 0 or 1, no guard or mask that is a constant, no nested Seq.
    """
    body = _simplified(func.body, func_facts(func))
    return func if body is func.body else replace(func, body=body)


def func_facts(func: Func) -> Facts:
    """What holds at a call that runs the kernel: no dimension of a parameter is negative, the
    assumptions, and the condition of a version."""
    facts = shape_facts(buffer.shape for buffer in func.params)
    for condition in (*func.assumptions, *(() if func.when is None else (func.when,))):
        facts = facts.assume(condition)
    return facts


def sequence(stmts: Sequence[Stmt]) -> Stmt:
    """The statements in order, without nesting or empty parts; one alone stands for itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.stmts if isinstance(stmt, Seq) else (stmt,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def is_empty(stmt: Stmt) -> bool:
    """True for the statement that does nothing."""
    return isinstance(stmt, Seq) and not stmt.stmts


def _assumed(facts: Facts, condition: Expr, lanes: frozenset[Axis]) -> Facts:
    """The facts inside a guard; a condition on lanes will be a mask, so lanes keep their range."""
    for part in conjuncts(condition):
        if axes_of(part).isdisjoint(lanes):
            facts = facts.assume(part)
    return facts


def _simplified(stmt: Stmt, facts: Facts, lanes: frozenset[Axis] = frozenset()) -> Stmt:
    match stmt:
        case Seq(stmts=stmts):
            new = [_simplified(s, facts, lanes) for s in stmts]
            if all(a is b for a, b in zip(new, stmts, strict=True)) and len(stmts) > 1:
                return stmt if not any(isinstance(s, Seq) for s in stmts) else sequence(new)
            return sequence(new)
        case Allocate(body=body):
            inner = _simplified(body, facts, lanes)
            if is_empty(inner):
                return inner
            return stmt if inner is body else replace(stmt, body=inner)
        case For():
            return _simplified_loop(stmt, facts, lanes)
        case Finish(body=body):
            inner = _simplified(body, facts, lanes)
            if is_empty(inner):
                return inner
            done = stmt if inner is body else replace(stmt, body=inner)
            return map_own_exprs(done, lambda e: simplify(e, facts))
        case Guard():
            return _simplified_guard(stmt, facts, lanes)
        case _:
            for tile in tile_axes(stmt):
                facts = facts.with_axis(tile.axis, 0, tile.extent)
            done = map_own_exprs(stmt, lambda e: simplify(e, facts))
            return _without_true_mask(done)


def _simplified_loop(loop: For, facts: Facts, lanes: frozenset[Axis]) -> Stmt:
    start, end = simplify(loop.start, facts), simplify(loop.end, facts)
    size = constant(simplify(sub(end, start), facts))
    if size is not None and size <= 0:
        return Seq(())
    if size == 1:
        first = widened(start, loop.axis.dtype)
        return _simplified(substitute_stmt(loop.body, {loop.axis: first}), facts, lanes)
    if loop.kind is LoopKind.VECTORIZED:
        lanes = lanes | {loop.axis}
    body = _simplified(loop.body, facts.with_axis(loop.axis, start, sub(end, start)), lanes)
    if is_empty(body):
        return body
    if body is loop.body and end is loop.end and start is loop.start:
        return loop
    return replace(loop, start=start, end=end, body=body)


def _simplified_guard(guard: Guard, facts: Facts, lanes: frozenset[Axis]) -> Stmt:
    condition = simplify(guard.condition, facts)
    if isinstance(condition, Const):
        return _simplified(guard.body, facts, lanes) if condition.value else Seq(())
    body = _simplified(guard.body, _assumed(facts, condition, lanes))
    if is_empty(body):
        return body
    if body is guard.body and condition is guard.condition:
        return guard
    return Guard(condition, body)


def _without_true_mask(stmt: Stmt) -> Stmt:
    if isinstance(stmt, (Store, Accumulate)) and isinstance(stmt.mask, Const):
        return replace(stmt, mask=None) if stmt.mask.value else Seq(())
    return stmt
