"""Per-lane accumulators: reduce element-wise through a loop and across lanes once after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.index_arith import as_index
from tedsl.expr.nodes import Axis
from tedsl.expr.visit import axes_of, substitute
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    For,
    Func,
    Load,
    Scope,
    Stmt,
    Store,
    TensorCall,
    TileAxis,
)
from tedsl.ir.visit import buffers_read, buffers_written, map_sub_stmts, rewrite_stmts, walk_stmts
from tedsl.lower.fresh_copies import fresh_tile
from tedsl.lower.passes.simplify import sequence


def widen_accumulators(func: Func, *, limit: int) -> Func:
    """Give an accumulator that is reduced over tile axes in a loop one element per lane.

    Before:  for ko: tile (i:4, k:64): acc[i] += A[i, ko*64 + k]
    After:   tile (i:4, k:64): wide[i, k] = 0
             for ko: tile (i:4, k:64): wide[i, k] += A[i, ko*64 + k]
             tile (i:4, k:64): acc[i] += wide[i, k]
    Only accumulators of at most `limit` elements are widened.
    Requires: level TILE.   Ensures: no reduction over tile axes inside the loop.
    """
    body = _widened(func.body, limit)
    return func if body is func.body else replace(func, body=body)


def _widened(stmt: Stmt, limit: int) -> Stmt:
    """Handle the outermost loops around a reduction: the one whose parts share no accumulator
    use."""
    stmt = map_sub_stmts(stmt, lambda s: s if isinstance(stmt, For) else _widened(s, limit))
    if isinstance(stmt, For):
        found = _narrow_folds(stmt, limit)
        if found:
            return _widen_loop(stmt, found)
        return map_sub_stmts(stmt, lambda s: _widened(s, limit))
    return stmt


def _narrow_folds(loop: For, limit: int) -> list[Accumulate]:
    """Reductions over tile axes into LOCAL accumulators that the loop uses for nothing else."""
    found: list[Accumulate] = []
    inside: set[Axis] = set()
    private: set[Buffer] = set()
    for node in walk_stmts(loop):
        match node:
            case For(axis=axis):
                inside.add(axis)
            case Allocate(buffer=buffer):
                private.add(buffer)
            case Accumulate(call=TensorCall()):
                continue
            case Accumulate(buffers=buffers, tile=tile):
                if any(b in private or b.scope is Scope.GLOBAL for b in buffers):
                    continue
                kept = axes_of(*node.indices)
                if not kept.isdisjoint(inside) or all(t.axis in kept for t in tile):
                    continue
                if _size(tile) <= limit and _only_use(loop, node):
                    found.append(node)
            case _:
                pass
    return found


def _size(tile: Sequence[TileAxis]) -> int:
    total = 1
    for dim in tile:
        total *= dim.extent
    return total


def _only_use(loop: For, fold: Accumulate) -> bool:
    """True when no other statement of the loop reads or writes these accumulators."""
    users = [s for s in walk_stmts(loop) if isinstance(s, (Store, Accumulate))]
    mine = set(fold.buffers)
    others = (s for s in users if s is not fold)
    return all(mine.isdisjoint((*buffers_read(s), *buffers_written(s))) for s in others)


def _widen_loop(loop: For, folds: Sequence[Accumulate]) -> Stmt:
    before: list[Stmt] = []
    after: list[Stmt] = []
    spaces: list[Buffer] = []
    new: dict[Stmt, Stmt] = {}
    for fold in folds:
        shape = tuple(as_index(t.extent) for t in fold.tile)
        wide = tuple(Buffer(f"{b.name}_wide", b.dtype, shape, Scope.LOCAL) for b in fold.buffers)
        spaces.extend(wide)
        new[fold] = replace(fold, buffers=wide, indices=tuple(t.axis for t in fold.tile))
        for buffer, identity in zip(wide, fold.reducer.identity, strict=True):
            tile, axes = fresh_tile(fold.tile)
            before.append(
                Store(buffer, tuple(axes[t.axis] for t in fold.tile), identity, None, tile)
            )
        tile, axes = fresh_tile(fold.tile)
        where = tuple(axes[t.axis] for t in fold.tile)
        after.append(
            Accumulate(
                fold.buffers,
                tuple(substitute(i, axes) for i in fold.indices),
                fold.reducer,
                tuple(Load(b, where) for b in wide),
                None,
                tile,
            )
        )
    body = rewrite_stmts(loop, lambda s: new.get(s))
    result = sequence([*before, body, *after])
    for space in reversed(spaces):
        result = Allocate(space, result)
    return result
