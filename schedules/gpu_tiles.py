"""What all rules for programs of tiles do: bind the grid, and choose warps for a tile."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.choices import pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage

# Multiprocessors of the device that the defaults are made for (H100, H200).
PROCESSORS = 132


def bind_all(stage: Stage, axes: Sequence[Axis]) -> Axis:
    """Fuse `axes` and make them the grid."""
    grid = fused(stage, axes)
    stage.bind(grid, "blockIdx.x")
    return grid


def pick_warps(
    s: Schedule, stage: Stage, choices: Sequence[int], default: int, elements: int
) -> int:
    """Warps of a program, none of which has less than one element for each thread."""
    return pick(s, f"{stage.name}.warps", choices, default, max(1, elements // 32))
