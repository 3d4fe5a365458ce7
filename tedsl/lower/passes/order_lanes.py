"""Neighbours in memory as neighbours in a warp, where addresses do not show which they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.expr.visit import axes_of, walk
from tedsl.index.affine import stride_of
from tedsl.index.evaluate import EvaluationError, Evaluator
from tedsl.index.facts import Facts
from tedsl.ir.layout import flat_index
from tedsl.ir.nodes import Accumulate, Func, Load, Scope, Stmt, Store, TensorCall, TileAxis
from tedsl.ir.visit import rewrite_stmts
from tedsl.packages import release

LANES, SECTOR = 32, 32
"""Threads of a warp, and bytes that are moved together."""
LAST_AXIS = (3, 7)
"""The release of Triton from which threads of a warp have the last axis of a block."""
SIZE = 4099
"""What an unknown size is taken to be."""
WORSE = 2.0
"""How many times the sectors of the other order are worth another one."""


def order_lanes(func: Func) -> Func:
    """Reduce along the outer axes of a tile where elements along the inner ones are closer.

    Before:  tile (i:128, k:16): acc[i] += A[(i + 1) % 2, k, (i + 1) // 2]
    After:   tile (k:16, i:128): acc[i] += A[(i + 1) % 2, k, (i + 1) // 2]
    Triton gives the last axis of a block to the threads of a warp, where it sees none along which
    elements follow each other in memory: of steps of two, or of quotients.  Before release 3.7 it
    gave them the first one: the axis with the closest elements, of what is stored, too.
    Requires: level TILE.   Order: before widen_accumulators, whose values have the order of the
    tile.
    """
    known = release("triton")
    first = known is not None and known < LAST_AXIS
    body = rewrite_stmts(func.body, _closest_first if first else _reordered)
    return func if body is func.body else replace(func, body=body)


def _closest_first(stmt: Stmt) -> Stmt | None:
    match stmt:
        case Accumulate(call=TensorCall()) | Accumulate(along=Axis()) | Store(call=TensorCall()):
            return None
        case Accumulate(buffers=buffers, values=values, tile=tile):
            if any(buffer.scope is Scope.GLOBAL for buffer in buffers):
                return None
        case Store(value=value, tile=tile):
            values = (value,)
        case _:
            return None
    wide = [t for t in tile if t.extent > 1]
    if len(wide) < 2:
        return None
    nearer = [t for t in wide[1:] if _closer(values, t, wide[0], tile)]
    best = next((t for t in reversed(nearer) if not _beaten(values, t, nearer, tile)), None)
    if best is None:
        return None
    return replace(stmt, tile=(best, *(t for t in tile if t is not best)))


def _beaten(
    values: Sequence[Expr], axis: TileAxis, others: Sequence[TileAxis], tile: Sequence[TileAxis]
) -> bool:
    """Whether elements along one of the other axes are closer still."""
    return any(each is not axis and _closer(values, each, axis, tile) for each in others)


def _reordered(stmt: Stmt) -> Stmt | None:
    match stmt:
        case Accumulate(call=TensorCall()) | Accumulate(along=Axis()):
            return None
        case Accumulate(buffers=buffers, tile=tile):
            kept = axes_of(*stmt.indices)
            folded = [t for t in tile if t.axis not in kept]
            others = [t for t in tile if t.axis in kept]
            small = all(t.extent == 1 for t in folded) or all(t.extent == 1 for t in others)
            if small or any(buffer.scope is Scope.GLOBAL for buffer in buffers):
                return None
            last, inner = _innermost(tile), _innermost(others)
            if last is inner or not _closer(stmt.values, inner, last, tile):
                return None
            return replace(stmt, tile=(*folded, *others))
        case _:
            return None


def _innermost(tile: Sequence[TileAxis]) -> TileAxis:
    return next(t for t in reversed(tile) if t.extent > 1)


def _closer(
    values: Sequence[Expr], inner: TileAxis, last: TileAxis, tile: Sequence[TileAxis]
) -> bool:
    """Whether elements along `inner` are closer than along `last`, and along no axis next to each
    other."""
    facts, found = Facts(), list[tuple[float, float]]()
    for load in walk(*values):
        if not (isinstance(load, Load) and load.buffer.scope is Scope.GLOBAL):
            continue
        used = axes_of(*load.indices)
        if inner.axis not in used or last.axis not in used:
            continue
        flat = flat_index(load.buffer, load.indices)
        steps = [stride_of(flat, t.axis, facts) for t in tile if t.axis in used]
        if any(isinstance(step, int) and step == 1 for step in steps):
            return False
        size = load.buffer.dtype.nbytes
        sides = [_sectors(flat, each, size) for each in (inner, last)]
        if None in sides:
            return False
        found.append((sides[0] or 0.0, sides[1] or 0.0))
    return sum(b for _, b in found) > WORSE * sum(a for a, _ in found) > 0.0


class _AtFirst(Evaluator):
    """Values where all other axes are at their first place."""

    def variable(self, axis: Axis | Var) -> int:
        return SIZE if isinstance(axis, Var) else 0


def _sectors(flat: Expr, along: TileAxis, size: int) -> float | None:
    """Sectors for each of the elements that a warp has along an axis."""
    count = min(LANES, along.extent)
    try:
        places = {_AtFirst({along.axis: n}).value(flat) * size // SECTOR for n in range(count)}
    except EvaluationError:
        return None
    return len(places) / count
