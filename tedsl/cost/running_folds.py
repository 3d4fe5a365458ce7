"""How often Triton's scan of a tile combines each element.

A thread scans what it has side by side; the last of that goes through the lanes of a warp, by
doubling; then each thread combines what the warps before it came to, one after the other, and puts
the result in front of its own elements.  All that again for each piece of the axis that the threads
take at a time.  Imports the other files of `cost`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tedsl.cost.accesses import Move
from tedsl.cost.instruction_costs import Operations
from tedsl.cost.register_pressure import THREADS
from tedsl.ir.nodes import Accumulate
from tedsl.ir.visit import tile_axes

MOVED = 2.0
"""Instructions that bring 32 bits from another lane or warp, and choose whether they count."""


def count_combinations(
    stmt: Accumulate, found: Operations, moves: Sequence[Move], warps: int
) -> None:
    """Count in `found`, where each element is combined once, as often as the scan combines it.

    Args:
        stmt: a running fold.
        found: operations of one run of it.
        moves: its accesses to device memory, which say how threads have its elements.
        warps: of a program.
    """
    side, lanes, across = _threads(stmt, moves, warps)
    doubled = math.log2(lanes)
    others = across if across > 1 else 0
    combined = 2 * (side - 1) + doubled + others + 1
    words = sum(max(1.0, each.dtype.nbytes / 4) for each in stmt.reducer.combine)
    points = math.prod(t.extent for t in tile_axes(stmt))
    again = combined / side - 1
    once = found.combining
    found.plain += again * once.plain + MOVED * words * (doubled + others + 1) / side * points
    found.special += again * once.special
    found.wide += again * once.wide


def _threads(stmt: Accumulate, moves: Sequence[Move], warps: int) -> tuple[int, int, int]:
    """Elements that a thread has side by side along the axis of the scan, lanes and warps along it:
    Triton deals elements to lanes, then to warps, from the contiguous axis on."""
    tile = tile_axes(stmt)
    place = next(n for n, t in enumerate(tile) if t.axis is stmt.along)
    points = math.prod(t.extent for t in tile)
    loads = [move for move in moves if not move.writes and move.along >= 0]
    widest, first = 1, len(tile) - 1
    for move in loads:
        if move.at_once > widest:
            widest, first = move.at_once, move.along
    own = max(1, min(widest, points // (warps * THREADS), tile[first].extent))
    free, lanes, groups = warps * THREADS, THREADS, warps
    order = [first, *(n for n in reversed(range(len(tile))) if n != first)]
    for number in order:
        side = own if number == first else 1
        taken = min(free, max(1, tile[number].extent // side))
        here = min(taken, lanes)
        beside = min(max(1, taken // here), groups)
        if number == order[-1]:
            beside = groups
        if number == place:
            return side, min(here, max(1, tile[number].extent)), beside
        free, lanes, groups = free // taken, max(1, lanes // here), max(1, groups // beside)
    return 1, 1, 1
