"""What the loads of one program ask of the second-level cache, where they touch the same again.

A load of what the processor's own cache holds does not leave the processor.  An index is a sum of
steps along axes, so what it names while they run through their extents is a range per dimension,
and a box of all of them:

    x[i + a, j + b], i < 16, j < 128, a < 3, b < 3     touches 18 x 130, of 9 * 16 * 128 loaded

What is no such sum, as where the axes of a tile are quotients of a flat one, is gone through point
by point.  It has to fit into the program's part of that cache; where all iterations do not, those
of the inner loops may.  Imports `expr`, `index`, `ir`, numpy and the other files of `static`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tedsl.cost.accesses import Move, Mover
from tedsl.cost.sampled_indices import Points, Values
from tedsl.expr.nodes import Expr
from tedsl.expr.visit import walk
from tedsl.index.linear import Linear, linear
from tedsl.ir.visit import tile_axes

SECTOR = 32
GONE_THROUGH = 1 << 16
"""Points of a tile and iterations that are gone through one by one."""


@dataclass(frozen=True, slots=True)
class Range:
    """The indices of one dimension that are touched: how many, first to last, and how many of them
    are different."""

    span: int
    count: int

    def sectors(self, itemsize: int) -> int:
        """Pieces of 32 bytes along a dimension whose elements lie side by side."""
        return min(self.count, -(-self.span * itemsize // SECTOR))


def range_of(steps: Sequence[tuple[int, int]], shifts: Sequence[int] = (0,)) -> Range:
    """The range of `shift + sum(step * x)` over all x below their extents and all shifts.

    Args:
        steps: pairs of a step and an extent.
        shifts: of several accesses that step alike.
    """
    span = count = 1
    for step, extent in sorted((abs(step), extent) for step, extent in steps if step):
        wider = step * (extent - 1) + span
        count = count * extent if step >= span else min(count * extent, wider)
        span = wider
    apart = max(shifts) - min(shifts)
    return Range(span + apart, min(count * len(set(shifts)), span + apart))


def asked(
    moves: Sequence[Move], mover: Mover, room: float, ahead: Callable[[Move], bool]
) -> dict[Move, float]:
    """Bytes that each access moves from or to the second-level cache in the mean program.

    Args:
        moves: all accesses of a kernel.
        mover: has found them.
        room: bytes of the processor's own cache that one program may count on.
        ahead: true of accesses that are made ahead of time, past that cache.
    """
    found = {move: move.moved * move.times for move in moves}
    groups: dict[tuple[object, ...], list[Move]] = {}
    for move in moves:
        if not (move.writes or move.staged or move.scattered or ahead(move)):
            key = (move.leaf.place, move.buffer, move.pattern)
            groups.setdefault(key, []).append(move)
    for group in groups.values():
        loaded = sum(found[move] for move in group)
        if len(group) > 1 or group[0].moving:
            touched = _touched(group, mover, room)
            if touched is not None and touched < loaded:
                found.update((move, found[move] * touched / loaded) for move in group)
    return found


def _touched(group: Sequence[Move], mover: Mover, room: float) -> float | None:
    """Bytes that accesses of one statement, at shifts of each other, ask for while what they touch
    stays; None where that is not known."""
    move = group[0]
    tile = {t.axis: t.extent for t in tile_axes(move.leaf.stmt)}
    loops = move.leaf.loops[: move.moving]
    moving: set[Expr] = {*tile, *(loop.loop.axis for loop in loops)}
    forms = [[linear(index) for index in each.indices] for each in group]
    sums = all(_is_sum(form, moving) for each in forms for form in each)
    times = move.times
    best = math.inf
    for kept in range(len(loops), -1, -1):
        inner = loops[kept:]
        if inner:
            times /= max(inner[0].trips, 1e-9)
        extents: dict[Expr, int] = {**tile}
        extents |= {loop.loop.axis: max(1, round(loop.trips)) for loop in inner}
        item = move.buffer.dtype.nbytes
        nbytes = _box(forms, extents, item) if sums else _met(group, mover, extents)
        if nbytes is not None and nbytes <= room:
            best = min(best, nbytes * times)
    return None if math.isinf(best) else best


def _is_sum(form: Linear, moving: set[Expr]) -> bool:
    """True when the axes that move an index stand in it by themselves alone."""
    return all(atom in moving or moving.isdisjoint(walk(atom)) for atom in form.terms)


def _box(forms: Sequence[Sequence[Linear]], extents: Mapping[Expr, int], itemsize: int) -> int:
    """Bytes of what accesses touch together, whole sectors."""
    ranges = [
        range_of(
            [(step, extents[atom]) for atom, step in same[0].terms.items() if atom in extents],
            [form.constant for form in same],
        )
        for same in zip(*forms, strict=True)
    ]
    rows = math.prod(each.count for each in ranges[:-1])
    return rows * ranges[-1].sectors(itemsize) * SECTOR


def _met(group: Sequence[Move], mover: Mover, extents: Mapping[Expr, int]) -> int | None:
    """The same of one program, point by point; None where they are too many."""
    buffer, count = group[0].buffer, math.prod(extents.values())
    if count * len(group) > GONE_THROUGH:
        return None
    env: dict[Expr, Values] = {**mover.nest.values}
    env.update(mover.nest.coordinates(mover.wave[:1]))
    for axis, at in zip(extents, np.indices(tuple(extents.values()), sparse=True), strict=True):
        env[axis] = at.astype(np.int64)
    points = Points(env)
    found = [
        np.unique(np.asarray(points.address(mover.row_major(buffer), move.indices)))
        for move in group
    ]
    return len(np.unique(np.concatenate(found) * buffer.dtype.nbytes // SECTOR)) * SECTOR
