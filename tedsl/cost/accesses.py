"""What a program moves to and from device memory, and which of it its neighbours move as well.

Imports `expr`, `ir` and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tedsl.cost.instruction_costs import Operations, divisions, is_division
from tedsl.cost.sampled_indices import Layout, Points, Values, layout, row_major
from tedsl.cost.split_products import THREADS
from tedsl.cost.statement_list import Leaf, Nest
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.visit import axes_of, walk
from tedsl.ir.layout import collapse
from tedsl.ir.nodes import Accumulate, Buffer, Dot, Load, Scope, Store, TileAxis
from tedsl.ir.visit import tile_axes

Digits: TypeAlias = tuple[tuple[int, int], ...]
"""How a loop steps through memory: elements between iterations, and how many follow at that
distance; then the same of the next larger step."""
WAVE = 1024
"""Programs that are looked at to see what neighbours share."""
FIRST_LINE = 128
"""Bytes of a line of a processor's own cache, which gives one in a cycle on sm_80, sm_90 and
sm_100."""
WALKED = 4096
"""Iterations of a loop that are looked at where it does not step evenly."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One access to device memory.

    Attributes:
        leaf: the statement.
        layout: of the elements that one run touches.
        times: runs in the mean program; loops inside which the address stands still do not count.
        steps: runs that touch other elements than each other.
        staged: True when the copy engine moves it, not the threads.
        along: the tile axis that steps least, as a number of axes from outside; -1 for none.
        moving: the innermost loop that changes the address, as a number of loops from outside.
        indices, mask: of the access.
        first: the address of the first element, in elements.
        pattern: equal for accesses whose addresses differ by a constant.
        scattered: True when an index was read from memory.
        crossed: lines that a warp asks for at once where the only axis of a tile steps unevenly;
            0 for others.
    """

    buffer: Buffer
    leaf: Leaf
    layout: Layout
    writes: bool
    times: float
    steps: float
    staged: bool
    along: int
    moving: int
    indices: tuple[Expr, ...]
    mask: Expr | None
    first: int
    pattern: bytes
    scattered: bool
    crossed: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of one run."""
        return self.layout.elements * self.buffer.dtype.nbytes

    @property
    def moved(self) -> int:
        """Bytes of one run, whole sectors of 32."""
        return self.layout.sectors(self.buffer.dtype.nbytes) * 32

    @property
    def at_once(self) -> int:
        """Elements that one thread moves at once."""
        return self.layout.vector(self.buffer.dtype.nbytes) // self.buffer.dtype.nbytes

    def divisions(self, seen: set[Expr]) -> float:
        """Instructions of one run for the divisions in the indices, but for those that were `seen`;
        those that stay the same in each turn of the innermost loops are computed before them."""
        axes = tile_axes(self.leaf.stmt)
        lanes = 1
        if self.along >= 0:
            lanes = min(THREADS, max(1, axes[self.along].extent // self.at_once))
        _, places = collapse(self.buffer.shape, self.indices)
        turns = [loop.loop.axis for loop in self.leaf.turns]
        return divisions(places, axes, self.along, turns, seen, lanes)


class Mover:
    """Finds the accesses of the statements of one kernel.

    Args:
        nest: the kernel.
        shapes: of the buffers.
        wave: how many programs run at a time.
    """

    def __init__(self, nest: Nest, wave: int) -> None:
        self.nest = nest
        self.points = Points(nest.values)
        count = max(1, min(wave, nest.programs, WAVE))
        first = max(0, nest.programs // 2 // count * count)
        first = min(first, max(0, nest.programs - count))
        self.wave = np.arange(first, first + count, dtype=np.int64)
        self.strides: dict[Buffer, tuple[int, ...]] = {}
        self.shares: dict[tuple[int, Expr, int], float] = {}

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        """The extents of a buffer."""
        return tuple(int(np.max(np.asarray(self.points.value(n)))) for n in buffer.shape)

    def moves(self, leaf: Leaf, found: Operations) -> list[Move]:
        """The accesses of one statement to device memory."""
        stmt = leaf.stmt
        loads = [load for load, _ in found.loads if load.buffer.scope is Scope.GLOBAL]
        inside = [n for load in loads for n in walk(*load.indices) if isinstance(n, Load)]
        loads += [n for n in dict.fromkeys(inside) if n.buffer.scope is Scope.GLOBAL]
        target = _written(stmt)
        if not loads and target is None:
            return []
        probe = Probe(self, leaf)
        pure = isinstance(stmt, Store) and isinstance(stmt.value, Load)
        staged = pure and isinstance(stmt, Store) and stmt.buffer.scope is Scope.SHARED
        result = [
            probe.move(n.buffer, n.indices, n.mask, writes=False, staged=staged) for n in loads
        ]
        if target is not None:
            held = pure and _from_shared(stmt)
            mask = None if isinstance(stmt, Dot) else stmt.mask
            result.append(probe.move(target, stmt.indices, mask, writes=True, staged=held))
            if isinstance(stmt, Accumulate):
                result.append(probe.move(target, stmt.indices, mask, writes=False, staged=False))
        return result

    def share(self, move: Move, count: int) -> float:
        """The share of the points of a tile that the mask of an access lets through, in the mean
        over programs and iterations: masked points move nothing.

        Args:
            move: the access.
            count: points to look at.
        """
        if move.mask is None:
            return 1.0
        key = (move.leaf.place, move.mask, count)
        if key not in self.shares:
            self.shares[key] = self._share(move.leaf, move.mask, count)
        return self.shares[key]

    def _share(self, leaf: Leaf, mask: Expr, count: int) -> float:
        if any(isinstance(node, Load) for node in walk(mask)):
            return 1.0
        rng = np.random.default_rng(0)
        env: dict[Expr, Values] = dict(self.nest.values)
        programs = rng.integers(0, max(1, self.nest.programs), count)
        env.update(self.nest.coordinates(programs))
        points = Points(env)
        for loop in leaf.loops:
            start = np.asarray(points.value(loop.loop.start))
            trips = np.maximum(np.asarray(points.value(loop.loop.end)) - start, 1)
            points.memo[loop.loop.axis] = start + rng.integers(0, trips, count)
        for tile in tile_axes(leaf.stmt):
            points.memo[tile.axis] = rng.integers(0, tile.extent, count)
        if any(isinstance(n, Axis) and n not in points.memo for n in walk(mask)):
            return 1.0
        return float(np.mean(np.broadcast_to(np.asarray(points.value(mask)) != 0, count)))

    def row_major(self, buffer: Buffer) -> tuple[int, ...]:
        """Its strides in elements, remembered."""
        known = self.strides.get(buffer)
        if known is None:
            known = self.strides[buffer] = row_major(buffer, self.shape(buffer))
        return known


def _written(stmt: object) -> Buffer | None:
    match stmt:
        case Store(buffer=buffer) if buffer.scope is Scope.GLOBAL:
            return buffer
        case Accumulate(buffers=(buffer, *_)) if buffer.scope is Scope.GLOBAL:
            return buffer
        case _:
            return None


def _from_shared(stmt: object) -> bool:
    return (
        isinstance(stmt, Store)
        and isinstance(stmt.value, Load)
        and stmt.value.buffer.scope is Scope.SHARED
    )


class Probe:
    """Addresses of one statement at its first point, one step along each axis, in each program of
    a wave."""

    def __init__(self, mover: Mover, leaf: Leaf) -> None:
        self.mover = mover
        self.leaf = leaf
        self.tile: Sequence[TileAxis] = tile_axes(leaf.stmt)
        env: dict[Expr, Values] = dict(mover.nest.values)
        axes: list[tuple[Axis, int]] = [(t.axis, 1) for t in self.tile]
        for loop in leaf.loops:
            axes.append((loop.loop.axis, 1))
            axes.append((loop.loop.axis, max(1, int(loop.trips) - 1)))
        self.axes = axes
        rows = 1 + len(axes)
        size = rows + len(mover.wave)
        numbers = np.full(size, mover.wave[0], dtype=np.int64)
        numbers[rows:] = mover.wave
        env.update(mover.nest.coordinates(numbers))
        for axis in {axis: None for axis, _ in axes}:
            env[axis] = np.zeros(size, dtype=np.int64)
        for row, (axis, step) in enumerate(axes, 1):
            at = env[axis]
            if isinstance(at, np.ndarray):
                at[row] = step
        self.rows, self.size = rows, size
        self.points = Points(env)

    def move(
        self,
        buffer: Buffer,
        indices: Sequence[Expr],
        mask: Expr | None,
        *,
        writes: bool,
        staged: bool,
    ) -> Move:
        """The access to `buffer[indices]` where `mask` holds."""
        at = self._addresses(buffer, indices)
        base = int(at[0])
        steps = [int(a) - base for a in at[1 : self.rows]]
        divided = any(is_division(node) for node in walk(*indices))
        tiles: list[Digits] = []
        crossed, single = 0, sum(tile.extent > 1 for tile in self.tile) == 1
        for tile, step in zip(self.tile, steps, strict=False):
            if divided and tile.extent > 2 and any(tile.axis in axes_of(i) for i in indices):
                walked = self._walked(buffer, indices, tile.axis, tile.extent)
                tiles.append(digits(walked, tile.extent))
                if single and len(tiles[-1]) > 1:
                    near = walked[:THREADS] * buffer.dtype.nbytes // FIRST_LINE
                    crossed = len(np.unique(near))
            else:
                tiles.append(((step, tile.extent),))
        moving, times, different = self._along_loops(steps[len(self.tile) :])
        return Move(
            buffer,
            self.leaf,
            layout(chain(*tiles), math.gcd(base, int(np.gcd.reduce(at[self.rows :])))),
            writes,
            times,
            different,
            staged,
            _along(steps[: len(self.tile)]),
            moving,
            tuple(indices),
            mask,
            base,
            (at - base).tobytes(),
            any(isinstance(node, Load) for node in walk(*indices)),
            crossed,
        )

    def steps(self, buffer: Buffer, indices: Sequence[Expr]) -> tuple[int, list[int], list[Digits]]:
        """The first element, how far apart elements are along each tile axis, and how each loop
        steps through them."""
        at = self._addresses(buffer, indices)
        base = int(at[0])
        moved = [int(a) - base for a in at[1 : self.rows]]
        first = len(self.tile)
        loops: list[Digits] = []
        for n, loop in enumerate(self.leaf.loops):
            step, last = moved[first + 2 * n : first + 2 * n + 2]
            trips = max(1, round(loop.trips))
            if last == step * max(1, int(loop.trips) - 1):
                loops.append(((step, trips),))
            else:
                count = min(max(2, trips), WALKED)
                walked = self._walked(buffer, indices, loop.loop.axis, count)
                loops.append(digits(walked, trips))
        return base, moved[:first], loops

    def _walked(
        self, buffer: Buffer, indices: Sequence[Expr], axis: Axis, count: int
    ) -> NDArray[np.int64]:
        """The addresses of the first points along one axis; the others stand."""
        env: dict[Expr, Values] = {**self.mover.nest.values}
        env.update(self.mover.nest.coordinates(self.mover.wave[:1]))
        env.update({axis: 0 for axis, _ in self.axes})
        env[axis] = np.arange(count, dtype=np.int64)
        found = Points(env).address(self.mover.row_major(buffer), indices)
        return np.broadcast_to(np.asarray(found, dtype=np.int64), (count,))

    def _addresses(self, buffer: Buffer, indices: Sequence[Expr]) -> NDArray[np.int64]:
        found = self.points.address(self.mover.row_major(buffer), indices)
        return np.broadcast_to(np.asarray(found, dtype=np.int64), (self.size,))

    def _along_loops(self, steps: Sequence[int]) -> tuple[int, float, float]:
        """How many loops, from outside, the address is inside of; runs; runs that differ."""
        loops = self.leaf.loops
        changes = [steps[2 * n] != 0 or steps[2 * n + 1] != 0 for n in range(len(loops))]
        moving = max((n + 1 for n, changed in enumerate(changes) if changed), default=0)
        times = self.leaf.times
        for loop in loops[moving:]:
            times /= max(loop.trips, 1e-9)
        different = times * self.leaf.group
        for loop, changed in zip(loops[:moving], changes[:moving], strict=True):
            if not changed:
                different /= max(loop.trips, 1e-9)
        return moving, times, different


def digits(addresses: NDArray[np.int64], trips: int) -> Digits:
    """Steps and their counts, innermost first, by which a loop comes to its addresses: of a loop
    that was fused from several, those of each, as digits of a number are.

    Args:
        addresses: of the first iterations; what comes after them goes on alike.
        trips: how many iterations there are.
    """
    found: list[tuple[int, int]] = []
    left = trips
    while left > 1 and len(addresses) > 1:
        steps = np.diff(addresses)
        step = int(steps[0])
        others = np.flatnonzero(steps != step)
        run = int(others[0]) + 1 if len(others) else left
        found.append((step, min(run, left)))
        addresses, left = addresses[::run], -(-left // run)
    return tuple(found) or ((0, trips),)


def _along(steps: Sequence[int]) -> int:
    """Where the least step is that is one."""
    moved = [(abs(step), place) for place, step in enumerate(steps) if step]
    return min(moved, default=(0, -1))[1]
