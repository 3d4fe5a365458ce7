"""Bytes that a kernel moves from and to device memory, buffer by buffer.

What the programs of one wave touch together is fetched once.  What a later wave touches again is
fetched again as far as the second-level cache has lost it meanwhile:

    read = first + near * lost(bytes of a wave) + far * lost(bytes of all)

`first` is every byte that is touched at all, `near` what the wave before touched too, `far` other
repetitions.  A wave is what runs at one time: as many programs as the device holds, or one
iteration of all of them where they stay and loop over tiles.  Masked points move nothing.
Imports the other files of `static`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tedsl.cost.accesses import Move, Mover
from tedsl.cost.sampled_indices import Points, Values
from tedsl.cost.statement_list import Loop
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.numerics import distinct
from tedsl.ir.nodes import Buffer
from tedsl.ir.visit import tile_axes

FETCHED = 64
"""Bytes that device memory gives at least."""
KEPT = 0.6
"""Of the second-level cache, what may be counted on: data that both its halves read is in both."""
QUICK, THOROUGH = 1 << 11, 1 << 19
"""Runs of programs that are looked at: for one of thousands of candidates, and for one kernel."""
MASKED = 2048
"""Points at which a mask is looked at."""
COUNTED = 1 << 16
"""Points of a tile that are looked at one by one."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one buffer that all programs of a launch read from and write to device memory."""

    read: float = 0.0
    written: float = 0.0


@dataclass(frozen=True, slots=True)
class Stream:
    """What the accesses of one pattern touch, in bytes: `first` different ones, `wave` of them at
    one time, `near` and `far` repetitions by later waves, `again` by the same programs; `where`
    are the first addresses of the programs that were looked at."""

    buffer: Buffer
    writes: bool
    first: float
    wave: float
    near: float
    far: float
    again: float
    scattered: bool
    where: NDArray[np.int64]


def traffic_of(
    moves: Sequence[Move],
    mover: Mover,
    resident: frozenset[Buffer],
    *,
    wave: int,
    cache: int,
    slots: int = QUICK,
) -> dict[Buffer, Traffic]:
    """The bytes of each buffer that a launch moves.

    Args:
        moves: all accesses of the kernel.
        mover: that found them.
        resident: buffers that are in the cache already.
        wave: programs that the device runs at one time.
        cache: bytes of its second-level cache.
        slots: how many runs of programs to look at.
    """
    loop = _persistent(moves, mover, wave)
    streams = [_stream(group, mover, loop, wave, slots) for group in _patterns(moves).values()]
    capacity = KEPT * cache
    shares = _shares(streams, mover)
    lost_next = _lost(sum(s.wave * shares[s.buffer] for s in streams), capacity)
    lost_later = _lost(sum(s.first * shares[s.buffer] for s in streams), capacity)
    found: dict[Buffer, Traffic] = {}
    for place, stream in enumerate(streams):
        before = found.get(stream.buffer, Traffic())
        whole = _bytes(mover, stream.buffer)
        if stream.writes:
            written = min(whole, before.written + stream.first)
            found[stream.buffer] = Traffic(before.read, written)
            continue
        first = 0.0 if stream.buffer in resident else stream.first
        far = stream.far * (
            max(0.0, 1 - capacity / max(stream.first, 1.0)) if stream.scattered else lost_later
        )
        repeated = (stream.near + stream.again) * lost_next + far
        # What two patterns both touch for the first time is fetched for the first of them, and
        # again for the other where it is lost until then.
        same = any(_together(stream, other) for other in streams[:place])
        shared = max(0.0, before.read + first - whole) * (1 - (lost_next if same else lost_later))
        found[stream.buffer] = Traffic(
            before.read + max(0.0, first - shared) + repeated, before.written
        )
    return found


def _together(one: Stream, other: Stream) -> bool:
    """True when the same programs read the same bytes."""
    return one.buffer is other.buffer and np.array_equal(one.where, other.where)


def _shares(streams: Sequence[Stream], mover: Mover) -> dict[Buffer, float]:
    """Of what the patterns of a buffer touch, the part that is not the same bytes again: a row that
    is read once more in another order is in the cache once."""
    touched: dict[Buffer, float] = {}
    for stream in streams:
        touched[stream.buffer] = touched.get(stream.buffer, 0.0) + stream.first
    return {b: min(1.0, _bytes(mover, b) / max(most, 1.0)) for b, most in touched.items()}


def _patterns(moves: Sequence[Move]) -> dict[tuple[object, ...], list[Move]]:
    """The accesses that step through a buffer alike, at most at a shift, together."""
    found: dict[tuple[object, ...], list[Move]] = {}
    for move in moves:
        found.setdefault((move.buffer, move.writes, move.pattern), []).append(move)
    return found


def _stream(
    group: Sequence[Move], mover: Mover, loop: Loop | None, wave: int, slots: int
) -> Stream:
    """What accesses of one pattern touch: the widest stands for all."""
    by_leaf: dict[int, Move] = {}
    for move in group:
        place = move.leaf.place
        if place not in by_leaf or move.steps > by_leaf[place].steps:
            by_leaf[place] = move
    move = max(by_leaf.values(), key=lambda each: each.steps)
    inside = 1.0 if loop is None or not move.moving else max(loop.trips, 1e-9)
    size = _size(move, mover, exact=slots > QUICK)
    each = size * mover.share(move, min(slots // 8, MASKED)) / inside
    counted = _count(move, mover, loop, wave, slots)
    whole = _bytes(mover, move.buffer)
    repeats = sum(m.times for m in by_leaf.values()) / max(move.steps, 1e-9) - 1
    first, demand = counted.distinct * each, counted.touched * each
    near = counted.near * each
    if move.scattered:
        first = whole * -math.expm1(-demand / whole) if whole else 0.0
        return Stream(
            move.buffer, move.writes, first, counted.wave * each, 0.0,
            max(0.0, demand - first), demand * max(repeats, 0.0), True, counted.where,
        )  # fmt: skip
    # Tiles that overlap touch more than there is: the rest are repetitions by neighbours, of which
    # a wave has its part.
    excess = max(0.0, first - whole)
    at_once = counted.wave * each * min(1.0, whole / max(first, 1.0))
    first -= excess
    return Stream(
        move.buffer, move.writes, first, at_once, near + excess,
        max(0.0, demand - first - near - excess), demand * max(repeats, 0.0), False,
        counted.where,
    )  # fmt: skip


def _size(move: Move, mover: Mover, exact: bool) -> float:
    """Bytes that all steps of one run touch: of its layout, or counted one by one, since steps over
    a window touch the same again."""
    size = FETCHED if not move.writes else 32
    tile, item = tile_axes(move.leaf.stmt), move.buffer.dtype.nbytes
    extents = {each.axis: each.extent for each in tile}
    steps = {each.loop.axis: round(each.trips) for each in move.leaf.loops}
    points = math.prod(extents.values()) * math.prod(steps.values())
    whole = all(each.trips == round(each.trips) for each in move.leaf.loops)
    if exact and whole and points > COUNTED and 1 < math.prod(extents.values()) <= COUNTED:
        return _counted_bytes(move, mover, extents, size) * move.steps
    if not exact or not whole or not 1 < points <= COUNTED:
        return move.layout.sectors(item, size) * size * move.steps
    return _counted_bytes(move, mover, {**steps, **extents}, size)


def _counted_bytes(move: Move, mover: Mover, extents: Mapping[Axis, int], size: int) -> int:
    """Bytes of the pieces of `size` that are touched while axes run through their extents."""
    env: dict[Expr, Values] = dict(mover.nest.values)
    env.update(mover.nest.coordinates(mover.wave[:1]))
    for inner in move.leaf.loops:
        env[inner.loop.axis] = 0
    grid = np.indices(tuple(extents.values())).reshape(len(extents), -1)
    env.update(zip(extents, grid, strict=True))
    at = Points(env).address(mover.row_major(move.buffer), move.indices)
    at = np.asarray(at, dtype=np.int64) * move.buffer.dtype.nbytes // size
    return len(distinct(at)) * size


@dataclass(frozen=True, slots=True)
class _Counted:
    """Runs of programs: how many touch something else than each other, all waves together; how
    many within their wave; how many of these in one wave; how many do what the wave before did."""

    distinct: float
    touched: float
    wave: float
    near: float
    where: NDArray[np.int64]


def _persistent(moves: Sequence[Move], mover: Mover, wave: int) -> Loop | None:
    """The loop over tiles around all that a kernel does, whose programs all run at one time."""
    outer = [move.leaf.loops[0] if move.leaf.loops else None for move in moves]
    loop = outer[0] if outer else None
    if loop is None or mover.nest.programs > wave or loop.trips < 2:
        return None
    return loop if all(each is loop for each in outer) else None


def _count(move: Move, mover: Mover, loop: Loop | None, wave: int, slots: int) -> _Counted:
    """Look at the first address of each run of a program."""
    programs = mover.nest.programs
    rounds = 1 if loop is None else max(1, round(loop.trips))
    total = programs * rounds
    width = max(1, min(programs, wave))
    some = min(total, max(slots // width, 2) * width)
    numbers = np.arange(some, dtype=np.int64) + (total - some) // 2 // width * width
    at = _addresses(move, mover, loop, numbers, programs)
    waves = -(-some // width)
    # One number for what is touched and when: equal in the first part, they touch the same.
    seen = np.sort((at - at.min(initial=0)) * waves + np.arange(some) // width)
    seen = seen[np.concatenate(([True], seen[1:] != seen[:-1]))] if some else seen
    what = seen // waves
    same = what[1:] == what[:-1]
    near = int(np.count_nonzero(same & (seen[1:] - seen[:-1] == 1)))
    scale = total / max(some, 1)
    return _Counted(
        distinct=(len(seen) - int(np.count_nonzero(same))) * scale,
        touched=len(seen) * scale,
        wave=len(seen) / max(waves, 1),
        near=near * scale,
        where=at,
    )


def _addresses(
    move: Move, mover: Mover, loop: Loop | None, numbers: NDArray[np.int64], programs: int
) -> NDArray[np.int64]:
    env: dict[Expr, Values] = {**mover.nest.values, **mover.nest.coordinates(numbers % programs)}
    for tile in tile_axes(move.leaf.stmt):
        env[tile.axis] = 0
    for inner in move.leaf.loops:
        env[inner.loop.axis] = 0
    if loop is not None:
        env[loop.loop.axis] = numbers // programs
    found = Points(env).address(mover.row_major(move.buffer), move.indices)
    return np.broadcast_to(np.asarray(found, dtype=np.int64), (len(numbers),))


def _bytes(mover: Mover, buffer: Buffer) -> float:
    return float(math.prod(mover.shape(buffer)) * buffer.dtype.nbytes)


def _lost(wanted: float, capacity: float) -> float:
    """Which part of what was used before is gone from a cache of this capacity."""
    return min(1.0, max(0.0, (wanted - capacity) / capacity))


def total(traffic: Mapping[Buffer, Traffic]) -> float:
    """Bytes in both directions."""
    return sum(each.read + each.written for each in traffic.values())
