"""The launch of a kernel: the grid, persistent programs, `num_warps`, and register limits for
occupancy."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.devices import GpuDevice
from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import pow2_at_least
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.knobs import knobs_of, pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

# Elements of its largest tile that a thread may hold: more than its registers hold twice.
EACH = 256
PER_SM = (0, 1, 2, 4, 8)


def registers(gpu: GpuDevice, warps: int, programs: int) -> int | None:
    """`maxnreg` with which so many programs share an SM; None where none is asked for, or that is
    no limit."""
    most = gpu.registers_thread
    room = gpu.registers_sm // (32 * warps * programs) // 8 * 8 if programs else most
    return room if room < most else None


def bind_all(
    stage: Stage, axes: Sequence[Axis], descending: bool = False, apart: Axis | None = None
) -> Axis:
    """Fuse `axes` and make them the grid, whose last programs start first if it is `descending`.

    One of them may stay `apart` on a grid axis of its own, as the innermost loop of the grid: its
    programs start one after the other.
    """
    if apart is not None:
        others = [a for a in axes if a is not apart]
        if others:
            stage.reorder(*others, apart)
            stage.bind(fused(stage, others), "blockIdx.y")
        stage.bind(apart, "blockIdx.x", descending=descending)
        return apart
    grid = fused(stage, axes)
    stage.bind(grid, "blockIdx.x", descending=descending)
    return grid


def tile_grid(
    stage: Stage,
    others: Sequence[Axis],
    sides: Sequence[tuple[Axis, int]],
    apart: Axis | None = None,
) -> Axis:
    """A program for each tile, of so many elements along each of some axes, and for each point of
    the `others`, of which one may be `apart`; returns the loop around one tile."""
    split = [stage.split(axis, factor=size) for axis, size in sides]
    around = [*others, *(outer for outer, _ in split)]
    stage.reorder(*around, *(lane for _, lane in split))
    place = bind_all(stage, around, apart=apart)
    for _, lane in split:
        stage.vectorize(lane)
    return place


def staying(
    s: Schedule,
    stage: Stage,
    axes: Sequence[Axis],
    tiles: int | None,
    loaded: int = 0,
    *,
    alone: bool = False,
) -> Axis:
    """Fuse `axes` and make them the grid: a program for each tile, or persistent programs, some for
    each SM, that take every n-th tile (the knob `resident`).

    Args:
        s: the schedule.
        stage: whose outermost loops `axes` are.
        axes: over the tiles.
        tiles: how many there are; None when that is symbolic.
        loaded: bytes that one tile loads; 0 where a tile is a loop by itself.
        alone: an SM has room for one program only, so that nothing is loaded while that one
            computes and stores, unless it prefetches itself.

    Returns:
        The loop around one tile.
    """
    gpu = gpu_of(s)
    fitting = [n for n in PER_SM if tiles is None or n * gpu.sms * 2 <= tiles]
    usual = 1 if alone and loaded and 1 in fitting else 0
    each = pick(s, f"{stage.name}.resident", fitting, usual, max(fitting))
    grid = fused(stage, axes)
    if each == 0:
        stage.bind(grid, "blockIdx.x")
        return grid
    turn, program = stage.split(grid, factor=each * gpu.sms)
    leaves = [a for a in stage.leaf_iter_vars if a is not turn and a is not program]
    stage.reorder(program, turn, *leaves)
    stage.bind(program, "blockIdx.x")
    if loaded:
        turns = 4 if tiles is None else -(-tiles // (each * gpu.sms))
        most = min(turns, 1 + gpu.shared_block // (each * loaded))
        ahead = pick(s, f"{stage.name}.ahead", (1, 2, 3, 4), min(3, most) if alone else 1, most)
        if ahead > 1:
            stage.pipeline(turn, num_stages=ahead)
    return turn


def pick_warps(
    s: Schedule, stage: Stage, choices: Sequence[int], default: int, elements: int
) -> int:
    """`num_warps`, the knob `warps`: no fewer elements than threads, nor so few warps that a thread
    cannot hold its part."""
    least = min(max(choices), pow2_at_least(-(-elements // (32 * EACH))))
    most = 1 << (max(1, elements // 32).bit_length() - 1)
    kept = [n for n in choices if n >= least]
    return pick(s, f"{knobs_of(s, stage)}.warps", kept, max(default, least), most)
