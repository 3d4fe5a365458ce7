"""Tiles of pointwise kernels that transpose: a row of the tile is a row of the result, a column of
it one of what is read, and each runs through as many neighbours in memory as fill transactions.

    for b, h, i, j, k: y[b, h, i, j, k] = x[k, b, i, j, h]     with h in 0..23 and k in 0..7
    --> for b, i, jo: for h, ji, k (a tile): y[b, h, i, jo * 8 + ji, k] = x[k, b, i, jo * 8 + ji, h]

Axes that are neighbours everywhere are one; where a side is shorter than a run of memory should be,
the tile has neighbours along the axis that follows in memory, too.  Where many lanes along the last
axis of the result would be idle, it and the one before it are one axis, unless both lie side by
side in what is read across.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

from tedsl.devices import GpuDevice
from tedsl.expr.nodes import Axis, TensorRead
from tedsl.schedules.analysis.nests import among, memory_steps, neighbours, pow2_at_least
from tedsl.schedules.analysis.views import volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.launch import bind_all
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import Tiles, tile_loops
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import ComputeOp

Runs: TypeAlias = Sequence[tuple[Axis, ...]]

# Elements of a tile, and that its sides are a multiple of where rows are aligned.
PROGRAM = 1024
ACCESS = 16
# Bytes of a row of the tile, and tiles for each SM without which smaller ones keep more of the
# device busy.
RUN = 256
TILES = 8
# The share of the lanes along a short side that has to be busy.
BUSY = 3 / 4


def turn(
    s: Schedule,
    stage: Stage,
    op: ComputeOp,
    everything: Sequence[TensorRead],
    across: tuple[Axis, TensorRead],
) -> Tiles:
    """Tile a pointwise kernel that transposes, and bind it to the grid.

    Args:
        s: the schedule.
        stage: of the loops.
        op: what it computes.
        everything: that is read.
        across: an axis, not the last one, and the read that is contiguous along it.

    Returns:
        The tiles.
    """
    runs = neighbours(op.axes, everything)
    place, last = run_of(runs, across[0]), len(runs) - 1
    limits = [volume(run) for run in runs]
    side = _side(gpu_of(s), op, everything, (limits[place], limits[last]))
    down = taken(runs, in_memory(runs, across[1]) or [place], side)
    while _idle(limits[last], side) and last - 1 not in (place, *down):
        *others, (*beyond, axis), ends = runs
        runs = [*others, *([tuple(beyond)] if beyond else []), (axis, *ends)]
        last = len(runs) - 1
        limits = [volume(run) for run in runs]
        down = {min(n, last): size for n, size in down.items()}
    widest, most = (None if n is None else pow2_at_least(n) for n in (limits[last], limits[place]))
    # A tile is as long as another where one of its sides is short.
    wide = max(side, PROGRAM // prod(size for n, size in down.items() if n != last))
    wide = wide if widest is None else min(wide, widest)
    columns = pick(s, f"{stage.name}.columns", (16, 32, 64, 128, 256, 512, 1024), wide, widest)
    along = taken(runs, range(last, -1, -1), side)
    tall = max(side, PROGRAM // prod(size for n, size in along.items() if n != place))
    # Where rows are not aligned, a tile twice as large fetches half as much beside it.
    rows = pick(s, f"{stage.name}.rows", (16, 32, 64, 128), tall, most)
    tile = {n: max(down.get(n, 1), along.get(n, 1)) for n in (*down, *along)}
    # Threads are numbered along what lies innermost in the tile, behind what memory has so.
    short = len(down) > 1 and (limits[place] or side) < (limits[last] or side)
    inner = list(reversed(down if short else along))
    lanes = [*sorted(n for n in tile if n not in inner), *inner]
    sizes = {**{n: tile[n] for n in lanes}, place: rows, last: columns}
    return tiled(stage, runs, sizes)


def _idle(extent: int | None, side: int) -> bool:
    """True where an axis, in whole sides or in one as short as itself, has many idle lanes."""
    if extent is None:
        return False
    width = min(side, pow2_at_least(extent))
    return 0 < extent < BUSY * width * -(-extent // width)


def _side(
    gpu: GpuDevice, op: ComputeOp, everything: Sequence[TensorRead], sides: Sequence[int | None]
) -> int:
    """The side of a tile that transposes, of two axes with these extents: a row of it is a row of
    one tensor and a column of another, and memory is faster the longer the contiguous runs."""
    total = volume(op.axes)
    if total is None or any(n is None or n % ACCESS != 0 for n in sides):
        return 64  # unaligned rows: partial sectors beside the tile are loaded anyhow
    side = RUN // max(each.dtype.nbytes for each in (*op.bodies, *everything))
    side = max(64, min(128, side))
    return side if total >= gpu.sms * TILES * side * side else 64


def run_of(runs: Runs, axis: Axis) -> int:
    """The number of the run that an axis is in."""
    return next(n for n, run in enumerate(runs) if among(axis, run))


def in_memory(runs: Runs, read: TensorRead) -> list[int]:
    """The runs of which a tensor has the elements one after the other, the innermost first."""
    steps = memory_steps(read, [run[-1] for run in runs])
    found: list[int] = []
    step: int | None = 1
    while step is not None:
        near = [n for n, run in enumerate(runs) if steps.get(run[-1]) == step and n not in found]
        found += near[:1]
        size = volume(runs[near[0]]) if near else None
        step = None if size is None else step * size
    return found


def taken(runs: Runs, order: Sequence[int], side: int) -> dict[int, int]:
    """How many neighbours of each run, the innermost in memory first, make a side of a tile."""
    found, length = dict[int, int](), 1
    for place in order:
        limit, piece = volume(runs[place]), pow2_at_least(-(-side // length))
        found[place] = piece if limit is None else min(piece, pow2_at_least(limit))
        if limit is None or piece <= limit:
            break
        length *= max(1, limit)  # where there are no elements, none are neighbours
    return found


def tiled(stage: Stage, runs: Runs, sizes: Mapping[int, int]) -> Tiles:
    """Tiles with so many neighbours of some of the runs, the innermost lanes last, and the grid
    around them."""
    tiles = Tiles(tuple(map(len, runs)), sizes)
    around, lanes = tile_loops(stage, [axis for run in runs for axis in run], tiles)
    bind_all(stage, around)
    for lane in lanes:
        stage.vectorize(lane)
    return tiles
