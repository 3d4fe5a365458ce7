"""Steps of the K loop of a contraction, and the axis that their lanes are along."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.ir.matrix_units import MIN_EDGE
from tedsl.schedules.analysis.nests import extent_of, reduce_axes
from tedsl.schedules.gpu.gemm.cost_model import STEP
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.stage import Stage

# The smallest extent that tensor cores multiply.
LEAST = MIN_EDGE
# Lanes of K steps along one axis that may be idle, so that other axes have one index in a step.
IDLE = 0.15


def stepped(fold: Stage, bk: int) -> Axis:
    """The K loop in steps of `bk`, each of them lanes.

    Of several axes the lanes are along one that is long enough, even if it is not the last, as the
    channels of an image are not: the others (the taps of a filter) are then the same in all lanes
    of a step, which makes their indices and masks cheap.
    """
    axes = reduce_axes(fold)
    long = _long(axes, bk)
    if len(axes) > 1 and long is not None and (extent_of(axes[-1]) or 0) % bk:
        outer, inner = fold.split(long, factor=bk)
        others = [axis for axis in axes if axis is not long]
        steps = [*others, outer] if long is axes[-1] else [outer, *others]
        fold.reorder(*steps, inner)
        outer = fused(fold, steps)
    else:
        outer, inner = fold.split(fused(fold, axes), factor=bk)
    fold.vectorize(inner)
    return outer


def along_one(axes: Sequence[Axis], bk: int) -> int:
    """A K step of up to `bk` whose lanes are along one of several axes, if there is one."""
    fitting = [bk >> n for n in range(bk.bit_length()) if bk >> n >= LEAST]
    return next((size for size in fitting if _long(axes, size) is not None), bk)


def lanes_of(axes: Sequence[Axis]) -> Axis | None:
    """The axis that the lanes of a K step are along; None where they are along several."""
    return _long(axes, along_one(axes, STEP))


def _long(axes: Sequence[Axis], bk: int) -> Axis | None:
    """The last of several axes along which K steps have few idle lanes."""
    sizes = {axis: extent_of(axis) or 0 for axis in axes}
    if len(axes) < 2 or sizes[axes[-1]] % bk == 0:
        return axes[-1]
    return next((axis for axis in reversed(axes) if idle(sizes[axis], bk) <= IDLE), None)


def idle(size: int, step: int) -> float:
    """The share of the lanes of all steps (or tiles) along an axis that are past its end."""
    return 1.0 if size < 1 else 1 - size / (-(-size // step) * step)
