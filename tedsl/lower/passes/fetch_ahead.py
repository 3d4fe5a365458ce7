"""Prefetch across a grid barrier: load what the next iteration of a loop reads while its programs
wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import add, as_index, constant, minimum, widened
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.visit import substitute as in_expr
from tedsl.expr.visit import walk
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    Allocate,
    Buffer,
    For,
    Func,
    Load,
    Meet,
    Scope,
    Seq,
    Stmt,
    Store,
)
from tedsl.ir.visit import (
    buffers_written,
    own_exprs,
    rewrite_stmts,
    sub_stmts,
    walk_stmts,
)
from tedsl.lower.fresh_copies import fresh_tile
from tedsl.lower.passes.simplify import func_facts, sequence


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """A tile that a loop fills from memory once an iteration, and the one that it is taken from."""

    store: Store
    next: Buffer


def fetch_ahead(func: Func) -> Func:
    """Load the tiles of the next iteration between arriving at a grid barrier and waiting there.

    Before:  for t (in 2 stages): tile (i:32): a[i] = X[t, i];  ...;  meet;  ...
    After:   tile (i:32): a[i] = X[0, i]
             for t: ...;  meet, meanwhile: tile (i:32): next[i] = X[min(t + 1, T - 1), i]
                    ...;  tile (i:32): a[i] = next[i]
    Only tiles that are copies of memory which the kernel does not store; a loop with a grid barrier
    that has none, or of which it is not known that it runs, has one stage.
    Requires: level TILE.   Ensures: no loop with a grid barrier has several stages.
    Order: after what rewrites single statements (find_dots, widen_accumulators).
    """
    stored, facts = frozenset(buffers_written(func.body)), func_facts(func)
    body = rewrite_stmts(
        func.body, lambda s: _ahead(s, stored, facts) if isinstance(s, For) and _meets(s) else None
    )
    return func if body is func.body else replace(func, body=body)


def _meets(loop: For) -> bool:
    return loop.num_stages > 0 and any(isinstance(s, Meet) for s in walk_stmts(loop.body))


def _ahead(loop: For, stored: frozenset[Buffer], facts: Facts) -> Stmt:
    plain = replace(loop, num_stages=0)
    first, end = constant(loop.start), constant(loop.end)
    if loop.num_stages < 2 or first is None or end is None or end - first < 2:
        return plain
    straight = tuple(_straight(loop.body))
    meeting = next((n for n, stmt in enumerate(straight) if isinstance(stmt, Meet)), 0)
    copies = {copy.store.buffer: copy for copy in _copies(loop, straight[:meeting], stored)}
    if not copies:
        return plain
    following = minimum(add(loop.axis, 1), as_index(end - 1))
    dtype = loop.axis.dtype
    later, now = ({loop.axis: widened(each, dtype)} for each in (following, loop.start))
    fetched = [_filled(copy.store, copy.next, later, facts) for copy in copies.values()]
    body = _without(loop.body, copies, straight[meeting], sequence(fetched))
    turns = [_moved(copy) for copy in copies.values()]
    body = sequence([body, *turns])
    for copy in copies.values():
        body = Allocate(copy.next, body)
    starts = [_filled(copy.store, buffer, now, facts) for buffer, copy in copies.items()]
    result = sequence([*starts, replace(plain, body=body)])
    for buffer in copies:
        result = Allocate(buffer, result)
    return result


def _straight(stmt: Stmt) -> Iterator[Stmt]:
    """What runs in every iteration of a loop with this body, in order."""
    match stmt:
        case Seq(stmts=stmts):
            for child in stmts:
                yield from _straight(child)
        case Allocate(body=body):
            yield stmt
            yield from _straight(body)
        case _:
            yield stmt


def _copies(loop: For, before: Sequence[Stmt], stored: frozenset[Buffer]) -> Iterator[_Copy]:
    """The tiles that are loaded from memory `before` the grid barrier, and by nothing else."""
    own = {stmt.buffer for stmt in before if isinstance(stmt, Allocate)}
    leaves = (stmt for stmt in walk_stmts(loop.body) if not sub_stmts(stmt))
    times = [buffer for stmt in leaves for buffer in buffers_written(stmt)]
    for stmt in before:
        if isinstance(stmt, Store) and stmt.buffer in own and times.count(stmt.buffer) == 1:
            loads = [node for node in walk(*own_exprs(stmt)) if isinstance(node, Load)]
            known = all(b.buffer.scope is Scope.GLOBAL and b.buffer not in stored for b in loads)
            if isinstance(stmt.value, Load) and known and stmt.buffer.scope is Scope.LOCAL:
                yield _Copy(stmt, replace(stmt.buffer, name=f"{stmt.buffer.name}_next"))


def _without(stmt: Stmt, copies: Mapping[Buffer, _Copy], meet: Stmt, meanwhile: Stmt) -> Stmt:
    """The body of a loop without the copies, those of the next iteration made at the barrier."""
    match stmt:
        case Allocate(buffer=buffer, body=body) if buffer in copies:
            return _without(body, copies, meet, meanwhile)
        case Store(buffer=buffer) if buffer in copies:
            return Seq(())
        case Meet() if stmt is meet:
            return replace(stmt, meanwhile=meanwhile)
        case Seq(stmts=stmts):
            return sequence([_without(child, copies, meet, meanwhile) for child in stmts])
        case Allocate(body=body):
            return replace(stmt, body=_without(body, copies, meet, meanwhile))
        case _:
            return stmt


def _filled(store: Store, buffer: Buffer, place: Mapping[Axis, Expr], facts: Facts) -> Store:
    """A copy into `buffer` of what is read where the loop is at `place`."""
    tile, axes = fresh_tile(store.tile)

    def there(expr: Expr) -> Expr:
        return simplify(in_expr(expr, {**axes, **place}), facts)

    return replace(
        store,
        buffer=buffer,
        indices=tuple(map(there, store.indices)),
        value=there(store.value),
        mask=None if store.mask is None else there(store.mask),
        tile=tile,
    )


def _moved(copy: _Copy) -> Store:
    """The tile of the next iteration becomes that of this one."""
    tile, axes = fresh_tile(copy.store.tile)
    indices = tuple(in_expr(index, axes) for index in copy.store.indices)
    return replace(
        copy.store, indices=indices, value=Load(copy.next, indices), mask=None, tile=tile
    )
