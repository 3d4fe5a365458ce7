"""Multithreading on the CPU: tasks of enough rows that starting one costs little beside its
work."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.views import volume
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

# Below this many elements a kernel runs on the calling thread.
SMALL = 32768


def run_parallel(s: Schedule, stage: Stage, rows: Sequence[Axis], total: int | None) -> None:
    """Several rows to a task, so that the cost of scheduling tasks does not show."""
    if not rows or (total is not None and total <= SMALL):
        return
    flat = fused(stage, rows)
    count = volume(rows)
    each = 1 if total is None or count is None else max(1, SMALL // max(1, total // max(1, count)))
    factor = pick(s, f"{stage.name}.rows", (1, 4, 16, 64), each, count)
    outer, _ = stage.split(flat, factor=factor)
    stage.parallel(outer)
