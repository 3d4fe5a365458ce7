"""Loop-carried rows in registers (scalar replacement): a loop keeps the row that its next iteration
needs, instead of loading what it has stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.expr import build
from tedsl.expr.index_arith import add, as_index, both, constant, less, sub, widened
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.visit import axes_of, rewrite, substitute, walk
from tedsl.index.facts import Facts
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    For,
    Func,
    Guard,
    Load,
    LoopKind,
    Scope,
    Stmt,
    Store,
    TileAxis,
)
from tedsl.ir.visit import (
    buffers_read,
    buffers_written,
    map_own_exprs,
    map_sub_stmts,
    own_exprs,
    rewrite_stmts,
    sub_stmts,
    tile_axes,
    walk_stmts,
)
from tedsl.lower.fresh_copies import fresh_tile
from tedsl.lower.passes.simplify import func_facts, sequence

# `num_stages` of a loop that loads nothing that it stores.
PREFETCH = 8


def carry_states(func: Func) -> Func:
    """Carry a row that a loop stores, and reads in the next iteration, in a tile.

    Before:  for t: tile (i:32): R[t + 1, i] = R[t, i] + X[t + 1, i]
    After:   tile (i:32): last[i] = R[0, i]
             for t: tile (i:32): next[i] = last[i] + X[t + 1, i];
                    tile (i:32): R[t + 1, i] = next[i];  tile (i:32): last[i] = next[i]
    Only where each iteration stores one row, and reads it or the one before, as the same tile.
    Requires: level TILE, padded tiles.   Ensures: such a loop reads no element that it stores,
    and its other loads are pipelined.
    Order: after check_registers, whose rules the new tiles obey.
    """
    facts = func_facts(func)
    body = rewrite_stmts(func.body, lambda s: _carried(s, facts) if isinstance(s, For) else None)
    return func if body is func.body else replace(func, body=body)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The one store of a buffer in a loop: which dimension moves with the loop, and the tile."""

    store: Store
    moving: int
    last: Buffer
    next: Buffer


def _carried(loop: For, facts: Facts) -> Stmt | None:
    """The loop with all rows carried that can be; None when there are none."""
    if loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
        return None
    rows: dict[Buffer, _Row] = {}
    leaves = list(_straight(loop.body))
    elsewhere = _used_deeper(loop.body)
    for leaf in leaves:
        if isinstance(leaf, Store) and leaf.buffer.scope is Scope.GLOBAL:
            row = _row(loop, leaf, leaves, facts)
            if row is not None and leaf.buffer not in elsewhere:
                rows[leaf.buffer] = row
    return _rewritten(loop, rows, facts) if rows else None


def _straight(stmt: Stmt) -> Iterator[Stmt]:
    """The leaves that every iteration runs once, in order."""
    if isinstance(stmt, (For, Guard)):
        return
    children = sub_stmts(stmt)
    if not children and not isinstance(stmt, Allocate):
        yield stmt
    for child in children:
        yield from _straight(child)


def _used_deeper(stmt: Stmt) -> frozenset[Buffer]:
    """The buffers that loops and guards inside the body touch."""
    found: set[Buffer] = set()
    inner = [s for s in walk_stmts(stmt) if isinstance(s, (For, Guard))]
    for node in (each for outer in inner for each in walk_stmts(outer)):
        found |= {e.buffer for e in walk(*own_exprs(node)) if isinstance(e, Load)}
        if isinstance(node, Store):
            found.add(node.buffer)
        elif isinstance(node, Accumulate):
            found |= set(node.buffers)
    return frozenset(found)


def _row(loop: For, store: Store, leaves: Sequence[Stmt], facts: Facts) -> _Row | None:
    """The row, when every access of its buffer in the loop is of the same tile, one row back or
    after the store."""
    dims = [n for n, index in enumerate(store.indices) if loop.axis in axes_of(index)]
    if len(dims) != 1 or not _is_tile(store, dims[0]):
        return None
    (moving,) = dims
    step = substitute(store.indices[moving], {loop.axis: add(loop.axis, 1)})
    if _difference(step, store.indices[moving], facts) != 1:
        return None
    seen, read_back = False, False
    for leaf in leaves:
        for load in (e for e in walk(*own_exprs(leaf)) if isinstance(e, Load)):
            if load.buffer is not store.buffer:
                continue
            back = _difference(store.indices[moving], load.indices[moving], facts)
            if back not in ((0, 1) if seen else (1,)) or not isinstance(leaf, Store):
                return None
            if not _same_tile(store, leaf, load, moving, facts):
                return None
            read_back = read_back or back == 1
        if leaf is store:
            seen = True
        elif (isinstance(leaf, Store) and leaf.buffer is store.buffer) or (
            isinstance(leaf, Accumulate) and store.buffer in leaf.buffers
        ):
            return None
    if not read_back or (store.mask is not None and loop.axis in axes_of(store.mask)):
        return None
    name, dtype = store.buffer.name, store.buffer.dtype
    shape = tuple(as_index(t.extent) for t in store.tile)
    last = Buffer(f"{name}_last", dtype, shape, Scope.LOCAL)
    return _Row(store, moving, last, Buffer(f"{name}_next", dtype, shape, Scope.LOCAL))


def _difference(a: Expr, b: Expr, facts: Facts) -> int | None:
    return constant(simplify(sub(a, b), facts))


def _is_tile(store: Store, moving: int) -> bool:
    """True when the store names each tile axis in one dimension."""
    tile = frozenset(t.axis for t in store.tile)
    used = [axis for index in store.indices for axis in axes_of(index) if axis in tile]
    fixed = axes_of(store.indices[moving]).isdisjoint(tile)
    return fixed and len(used) == len(tile) == len(set(used))


def _along(stmt: Stmt, index: Expr) -> TileAxis | None:
    """The one tile axis of `index`."""
    mine = axes_of(index)
    found = [t for t in tile_axes(stmt) if t.axis in mine]
    return found[0] if len(found) == 1 else None


def _same_tile(store: Store, reader: Stmt, load: Load, moving: int, facts: Facts) -> bool:
    """True when `load` reads, in its dimensions but `moving`, the places that `store` writes."""
    for n, (mine, theirs) in enumerate(zip(store.indices, load.indices, strict=True)):
        if n == moving:
            continue
        a, b = _along(store, mine), _along(reader, theirs)
        if (a is None) != (b is None):
            return False
        if a is not None and b is not None:
            if a.extent != b.extent:
                return False
            theirs = substitute(theirs, {b.axis: a.axis})
        if _difference(mine, theirs, facts) != 0:
            return False
    return True


def _rewritten(loop: For, rows: Mapping[Buffer, _Row], facts: Facts) -> Stmt:
    def changed(stmt: Stmt) -> Stmt:
        def load(node: Expr) -> Expr | None:
            row = rows.get(node.buffer) if isinstance(node, Load) else None
            if row is None or not isinstance(node, Load):
                return None
            back = _difference(row.store.indices[row.moving], node.indices[row.moving], facts)
            return Load(row.last if back == 1 else row.next, _places(row, stmt, node))

        done = map_own_exprs(stmt, lambda e: rewrite(e, load))
        row = rows.get(stmt.buffer) if isinstance(stmt, Store) else None
        if row is None or not isinstance(done, Store) or stmt is not row.store:
            return done
        tile, axes = fresh_tile(done.tile)
        where = tuple(t.axis for t in done.tile)
        stored = replace(
            done,
            indices=tuple(substitute(i, axes) for i in done.indices),
            value=Load(row.next, tuple(t.axis for t in tile)),
            mask=None if done.mask is None else substitute(done.mask, axes),
            tile=tile,
        )
        return sequence([Store(row.next, where, done.value, None, done.tile), stored])

    body = _map_straight(loop.body, changed)
    turns: list[Stmt] = []
    starts: list[Stmt] = []
    for row in rows.values():
        tile, _ = fresh_tile(row.store.tile)
        where = tuple(t.axis for t in tile)
        turns.append(Store(row.last, where, Load(row.next, where), None, tile))
        starts.append(_start(loop, row, facts))
    body = sequence([body, *turns])
    for row in rows.values():
        body = Allocate(row.next, body)
    stages = loop.num_stages
    if stages == 1 and not set(buffers_read(body)) & set(buffers_written(body)) - {*_tiles(body)}:
        stages = PREFETCH
    result = sequence([*starts, replace(loop, body=body, num_stages=stages)])
    for row in rows.values():
        result = Allocate(row.last, result)
    return result


def _tiles(body: Stmt) -> Iterator[Buffer]:
    """The buffers of `body` that are no memory."""
    for buffer in (*buffers_read(body), *buffers_written(body)):
        if buffer.scope is not Scope.GLOBAL:
            yield buffer


def _map_straight(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """`stmt` with its `_straight` leaves changed."""
    if isinstance(stmt, (For, Guard)):
        return stmt
    if not sub_stmts(stmt):
        return change(stmt)
    return map_sub_stmts(stmt, lambda s: _map_straight(s, change))


def _places(row: _Row, reader: Stmt, load: Load) -> tuple[Expr, ...]:
    """The indices of a carried tile at which `reader` finds what `load` reads."""
    own = {t.axis: n for n, t in enumerate(row.store.tile)}
    found: dict[int, Axis] = {}
    for mine, theirs in zip(row.store.indices, load.indices, strict=True):
        a, b = _along(row.store, mine), _along(reader, theirs)
        if a is not None and b is not None:
            found[own[a.axis]] = b.axis
        else:  # several in one dimension are those of the store itself
            found.update((own[axis], axis) for axis in axes_of(mine) if axis in own)
    return tuple(found[n] for n in range(len(own)))


def _start(loop: For, row: _Row, facts: Facts) -> Stmt:
    """The row before the first, where there is an iteration at all, and such a row: a loop that
    starts at row 0 reads none."""
    tile, axes = fresh_tile(row.store.tile)
    at: dict[Expr, Expr] = {**axes, loop.axis: widened(loop.start, loop.axis.dtype)}
    indices = [substitute(i, at) for i in row.store.indices]
    indices[row.moving] = simplify(sub(indices[row.moving], 1), facts)
    masks = [] if row.store.mask is None else [substitute(row.store.mask, axes)]
    if constant(loop.extent) is None:
        masks.append(less(loop.start, loop.end))
    if not prove(build.ge(indices[row.moving], 0), facts):
        masks.append(build.ge(indices[row.moving], 0))
    load = Load(row.store.buffer, tuple(indices), both(*masks) if masks else None)
    return Store(row.last, tuple(t.axis for t in tile), load, None, tile)
