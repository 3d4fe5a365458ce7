"""Steps that many rules take: nested loops as one, a reduction inside a loop of another stage."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import in_memory_order, reduce_axes, same_axes
from tedsl.schedules.analysis.views import definitions
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage


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


def lay_in_order(stage: Stage, order: Sequence[int]) -> None:
    """Store a stage with those of its dimensions, in that order."""
    stage.transform_layout(lambda *i: tuple(i[n] for n in order))


def swap_axes(stage: Stage, one: int, other: int) -> None:
    """Store a stage with two dimensions in each other's places."""
    order = list(range(len(stage.op.axis)))
    order[one], order[other] = other, one
    lay_in_order(stage, order)
