"""Steps that many rules take: nested loops as one, a reduction inside a loop of another stage."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import reduce_axes
from tedsl.scheduling.handles.stage import Stage


def fused(stage: Stage, axes: Sequence[Axis]) -> Axis:
    """One loop of some that are nested directly inside each other."""
    return stage.fuse(*axes) if len(axes) > 1 else axes[0]


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
