"""Loop partitioning: split guarded loops into head, steady part and tail, so that the steady part
runs without its guard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import (
    ZERO,
    as_index,
    both,
    ceil_div,
    conjuncts,
    constant,
    maximum,
    minimum,
    same_width,
    sub,
)
from tedsl.expr.nodes import Axis, Compare, CompareOp, Expr
from tedsl.expr.visit import axes_of, substitute, walk
from tedsl.index.affine import stride_of
from tedsl.index.bounds import lower_bound, upper_bound
from tedsl.index.facts import Facts
from tedsl.index.interval import interval
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import Allocate, For, Func, Guard, Load, LoopKind, PartPolicy, Seq, Stmt
from tedsl.ir.visit import map_sub_stmts, walk_stmts
from tedsl.ir.visit import substitute as substitute_stmt
from tedsl.lower.fresh_copies import fresh_copy
from tedsl.lower.passes.run_backwards import in_order
from tedsl.lower.passes.simplify import func_facts, is_empty, sequence

# A loop nest is not copied more often than this on account of its guards.
MAX_COPIES = 8


def partition_loops(func: Func, *, symbolic: bool) -> Func:
    """Split a guarded serial loop into a steady part without the guard and a tail with it.

    Before:  for k in 0..n: if k*32 + j < m: A[k*32 + j] = ...
    After:   for k in 0..m//32: A[k*32 + j] = ...
             for k in m//32..n: if k*32 + j < m: ...
    The tail of a loop that runs backwards comes first.
    A parallel loop stays whole; inside it the two parts become two guarded bodies.
    A guard over the axis of one loop alone shortens that loop: there is no tail.  Unless
    `symbolic`, only loops whose steady part has a constant extent are split in two.  With the
    policy `ENDS` a serial loop whose first iterations need guards, too, has a head for them.
    Requires: level NEST.   Ensures: the same values stored, in the same order.
    Order: before vectorize_loops, which turns the guards that are left into masks.
    """
    body, _ = _Partition(symbolic).visit(func.body, func_facts(func), 1)
    return func if body is func.body else replace(func, body=body)


@dataclass(frozen=True, slots=True)
class _Partition:
    """Inner loops are split before the loops around them."""

    symbolic: bool

    def visit(self, stmt: Stmt, facts: Facts, copies: int) -> tuple[Stmt, int]:
        """`stmt` with its loops split, and how often its innermost body stands now."""
        if isinstance(stmt, For):
            inner = facts.with_axis(stmt.axis, stmt.start, stmt.extent)
            body, most = self.visit(stmt.body, inner, copies)
            loop = stmt if body is stmt.body else replace(stmt, body=body)
            wanted = stmt.kind in _SPLITTABLE and stmt.partition is not PartPolicy.NEVER
            if most * 2 <= MAX_COPIES and wanted:
                symbolic = self.symbolic or stmt.partition is PartPolicy.ALWAYS
                parted = _split_loop(loop, facts, symbolic)
                if parted is not None:
                    return parted, most * (3 if stmt.partition is PartPolicy.ENDS else 2)
            return loop, most
        found = [copies]

        def visit(child: Stmt) -> Stmt:
            under = facts.assume(stmt.condition) if isinstance(stmt, Guard) else facts
            new, count = self.visit(child, under, copies)
            found.append(count)
            return new

        return map_sub_stmts(stmt, visit), max(found)


_SPLITTABLE = (LoopKind.SERIAL, LoopKind.PARALLEL)


def _split_loop(loop: For, facts: Facts, symbolic: bool) -> Stmt | None:
    """The loop in two parts, or three, or None when no guard inside bounds its axis."""
    limits = _limits(loop, facts)
    if not limits:
        return _with_start(loop, facts)
    inside = facts.with_axis(loop.axis, loop.start, loop.extent)
    steady: Expr = loop.end
    for limit in limits:
        steady = minimum(steady, limit.end)
    steady = simplify(maximum(steady, loop.start), inside)
    if constant(simplify(sub(steady, loop.start), inside)) == 0:
        return None
    free = _without_guards(loop.body, {limit.condition for limit in limits}, frozenset())
    exact = (
        {limit.condition for limit in limits if limit.exact} if len(limits) == 1 else set[Expr]()
    )
    rest_body = fresh_copy(_without_guards(loop.body, set(), frozenset(exact)))
    if is_empty(rest_body):
        return replace(loop, end=steady, body=free)
    if constant(steady) is None and not symbolic:
        return None
    if loop.kind is LoopKind.PARALLEL:
        test = Compare(CompareOp.LT, *same_width(loop.axis, steady))
        rest = Compare(CompareOp.GE, *same_width(loop.axis, steady))
        return replace(loop, body=sequence([Guard(test, free), Guard(rest, rest_body)]))
    tail_axis = Axis(loop.axis.name, loop.axis.kind, None, loop.axis.dtype)
    moved = substitute_stmt(rest_body, {loop.axis: tail_axis})
    tail = replace(loop, axis=tail_axis, start=steady, body=moved)
    long = replace(loop, end=steady, body=free)
    return sequence(in_order(loop, (_with_start(long, facts) or long, tail)))


def _with_start(loop: For, facts: Facts) -> Stmt | None:
    """The loop in two parts, of which the second needs no guard that bounds its axis from below;
    None where that is not asked for, the loop is parallel, or the length of the first is no
    constant."""
    if loop.partition is not PartPolicy.ENDS or loop.kind is not LoopKind.SERIAL:
        return None
    known = {c: first for c, first in _firsts(loop, facts) if first is not None}
    inside = facts.with_axis(loop.axis, loop.start, loop.extent)
    begin = max((first for first in known.values()), default=0)
    start, end = constant(loop.start), constant(simplify(loop.end, inside))
    if start is None or end is None or not start < begin < end:
        return None
    head_axis = Axis(loop.axis.name, loop.axis.kind, None, loop.axis.dtype)
    body = substitute_stmt(fresh_copy(loop.body), {loop.axis: head_axis})
    head = replace(loop, axis=head_axis, end=as_index(begin), body=body)
    free = _without_guards(loop.body, set(known), frozenset())
    rest = replace(loop, start=as_index(begin), body=free)
    return sequence(in_order(loop, (head, rest)))


def _firsts(loop: For, facts: Facts) -> Iterator[tuple[Expr, int | None]]:
    """Guard conditions that bound the iterations of `loop` from below, and the first that surely
    satisfies each.

    0 <= c*axis + d for all inner axes   <=>   axis >= ceil(-(min d) / c),  c > 0
    """
    for condition, inner, inside in _guards(loop, facts):
        match condition:
            case Compare(op=CompareOp.LE | CompareOp.LT as op, a=low, b=high):
                room = simplify(sub(sub(high, low), 0 if op is CompareOp.LE else 1), inside)
            case _:
                continue
        step = stride_of(room, loop.axis)
        if not isinstance(step, int) or step <= 0 or any(isinstance(n, Load) for n in walk(room)):
            continue
        least = lower_bound(simplify(substitute(room, {loop.axis: ZERO}), inside), inner, inside)
        lowest = None if least is None else interval(least, inside).lo
        yield condition, None if lowest is None else max(0, -(lowest // step))


@dataclass(frozen=True, slots=True, eq=False)
class _Limit:
    """A guard condition, the iteration up to which all surely satisfy it, and whether no later one
    does."""

    condition: Expr
    end: Expr
    exact: bool


def _limits(loop: For, facts: Facts) -> list[_Limit]:
    """Guard conditions `f(axis, inner) < bound` that bound the iterations of `loop`."""
    found = (_limit(c, loop.axis, inner, inside) for c, inner, inside in _guards(loop, facts))
    return [limit for limit in found if limit is not None]


def _guards(loop: For, facts: Facts) -> Iterator[tuple[Expr, list[Axis], Facts]]:
    """The guard conditions in a loop, with the loops around each and what is known there."""
    inner: list[Axis] = []
    inside = facts.with_axis(loop.axis, loop.start, loop.extent)
    for node in walk_stmts(loop.body):
        if isinstance(node, For):
            inner.append(node.axis)
            inside = inside.with_axis(node.axis, node.start, node.extent)
        elif isinstance(node, Guard):
            for condition in conjuncts(node.condition):
                yield condition, inner, inside


def _limit(condition: Expr, axis: Axis, inner: list[Axis], facts: Facts) -> _Limit | None:
    """Where the iterations of `axis` that satisfy `low < high` whatever the inner axes do end, if
    that is it.

    c*axis + d < high for all inner axes   <=>   axis < ceil((high - max d) / c),  c > 0
    """
    match condition:
        case Compare(op=CompareOp.LT, a=low, b=high):
            pass
        case _:
            return None
    nodes = set(walk(low))
    if axis not in nodes or any(isinstance(n, Load) for n in walk(low, high)):
        return None
    if not set(walk(high)).isdisjoint((axis, *inner)):
        return None
    step = stride_of(low, axis)
    size = step if isinstance(step, int) else None if step is None else constant(step)
    if size is None or size <= 0:
        return None
    moving = any(a in nodes for a in inner)
    rest = upper_bound(simplify(substitute(low, {axis: ZERO}), facts), inner, facts)
    if rest is None or axis in axes_of(rest):
        return None
    return _Limit(condition, ceil_div(sub(high, rest), size), exact=not moving)


def _without_guards(stmt: Stmt, true: set[Expr], false: frozenset[Expr]) -> Stmt:
    """`stmt` where the guard conditions in `true` hold and those in `false` do not."""
    if isinstance(stmt, Guard) and any(c in false for c in conjuncts(stmt.condition)):
        return Seq(())
    stmt = map_sub_stmts(stmt, lambda s: _without_guards(s, true, false))
    match stmt:
        case Guard(condition=condition, body=body):
            kept = [c for c in conjuncts(condition) if c not in true]
            return Guard(both(*kept), body) if kept else body
        case Seq(stmts=stmts):
            kept_stmts = [s for s in stmts if not is_empty(s)]
            return stmt if len(kept_stmts) == len(stmts) else sequence(kept_stmts)
        case For(body=body) | Allocate(body=body) if is_empty(body):
            return body
        case _:
            return stmt
