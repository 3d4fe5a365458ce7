"""Multithreading on the CPU: tasks for all threads, of enough rows that starting one costs little
beside its work."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.views import volume
from tedsl.schedules.devices import cpu_of
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

# Below this many elements a kernel runs on the calling thread.
SMALL = 32768
# Tasks for each thread, for load balance, and how many are enough of them unless there are more
# than half as many threads.
TASKS_EACH = 4
TASKS = 32


def tasks_wanted(s: Schedule) -> int:
    """How many tasks keep all threads busy to the end."""
    threads = cpu_of(s).cores
    return max(min(TASKS, TASKS_EACH * threads), 2 * threads)


def spread(s: Schedule, size: int, total: int | None, least: int) -> int:
    """The elements of a task: `size`, or by halves fewer, down to `least`, so that `total`, if they
    are shared at all, are tasks for all threads."""
    shared = total is not None and total > SMALL
    while shared and size > least and (total or 0) < size * tasks_wanted(s):
        size //= 2
    return size


def run_parallel(s: Schedule, stage: Stage, rows: Sequence[Axis], total: int | None) -> None:
    """Several rows to a task, so that the cost of scheduling tasks does not show."""
    if not rows or (total is not None and total <= SMALL):
        return
    flat = fused(stage, rows)
    count = volume(rows)
    each = 1
    if total is not None and count:
        each = max(1, min(SMALL // max(1, total // count), count // tasks_wanted(s)))
    factor = pick(s, f"{stage.name}.rows", (1, 4, 16, 64), each, count)
    outer, _ = stage.split(flat, factor=factor)
    stage.parallel(outer)
