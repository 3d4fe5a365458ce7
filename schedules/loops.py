"""Steps that many rules take: nested loops as one, tiles of some, a reduction inside a loop of
another stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import in_memory_order, reduce_axes, same_axes
from tedsl.schedules.analysis.views import definitions
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage


@dataclass(frozen=True, slots=True)
class Tiles:
    """Nested loops of so many axes each, the outermost first, and how many neighbours along some of
    these loops a tile has, the innermost lanes last."""

    runs: tuple[int, ...]
    sizes: Mapping[int, int]

    @property
    def elements(self) -> int:
        """Of one tile."""
        return prod(self.sizes.values())

    def along(self, place: int, extents: Sequence[int]) -> int:
        """How many neighbours a tile has along the axis of this number, of some of such extents."""
        loop, end = next((n, e) for n, e in enumerate(accumulate(self.runs)) if place < e)
        return self.sizes.get(loop, 1) // max(1, prod(extents[place + 1 : end]))


def tile_loops(
    stage: Stage, axes: Sequence[Axis], tiles: Tiles
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Such tiles of the axes; returns the loops around them and those inside."""
    first = [sum(tiles.runs[:n]) for n in range(len(tiles.runs))]
    loops = [fused(stage, axes[n : n + k]) for n, k in zip(first, tiles.runs, strict=True)]
    pieces = {n: stage.split(loops[n], factor=size) for n, size in tiles.sizes.items()}
    around = [axis for n, axis in enumerate(loops) if n not in pieces]
    around += [pieces[n][0] for n in sorted(pieces)]
    lanes = [inner for _, inner in pieces.values()]
    stage.reorder(*around, *lanes)
    return tuple(around), tuple(lanes)


def fused(stage: Stage, axes: Sequence[Axis]) -> Axis:
    """One loop of some that are nested directly inside each other."""
    return stage.fuse(*axes) if len(axes) > 1 else axes[0]


def fused_folds(s: Schedule, stage: Stage) -> Axis:
    """One loop of all that a stage reduces, along memory where the order is free."""
    axes = in_memory_order(definitions(s)[stage.name])
    if not same_axes(axes, reduce_axes(stage)):
        stage.reorder(*axes)
    return fused(stage, axes)


def fold_at_once(inner: Stage, stage: Stage, place: Axis) -> None:
    """Compute a stage in the loop `place` of another, all that it reduces as lanes."""
    for axis in reduce_axes(inner):
        inner.vectorize(axis)
    inner.compute_at(stage, place)


def lay_in_order(stage: Stage, order: Sequence[int]) -> Sequence[Axis]:
    """Store a stage with those of its dimensions, in that order; returns its new axes."""
    return stage.transform_layout(lambda *i: tuple(i[n] for n in order))


def swap_axes(stage: Stage, one: int, other: int) -> None:
    """Store a stage with two dimensions in each other's places."""
    order = list(range(len(stage.op.axis)))
    order[one], order[other] = other, one
    lay_in_order(stage, order)
