"""Steps of the K loop of a contraction, and the axis that their lanes are along."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.ir.matrix_units import MIN_EDGE
from tedsl.schedules.analysis.nests import reduce_axes
from tedsl.schedules.analysis.views import extent_of
from tedsl.schedules.gpu.gemm.cost_model import STEP
from tedsl.schedules.loops import fused
from tedsl.scheduling.handles.stage import Stage

# The smallest extent that tensor cores multiply.
LEAST = MIN_EDGE
# Lanes of K steps along one axis that may be idle, so that other axes have one index in a step: few
# in long steps, more in the steps that have the fewest.  On an H200 float32 convolutions of 36, 49
# and 52 channels take 2.6 to 3 times as long with lanes along channels and taps as with 19 to 25%
# of the lanes idle, and one of 18 channels of 16 bits 580 us where its bytes take 14.
IDLE, MOST_IDLE = 0.15, 0.45


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


def along_one(axes: Sequence[Axis], bk: int, short: bool = False) -> int:
    """A K step of up to `bk` whose lanes are along one of several axes, if there is one: a long one
    with more idle lanes where tiles are so `short` that multiplying takes less time than loading.
    """
    fitting = [bk >> n for n in range(bk.bit_length()) if bk >> n >= LEAST]
    found = {size: _idle_along(axes, size)[0] for size in fitting}
    few = next((n for n in fitting if found[n] <= (MOST_IDLE if short else IDLE)), None)
    some = [size for size in fitting if found[size] <= MOST_IDLE]
    return few or min(some, key=lambda size: found[size], default=bk)


def lanes_of(axes: Sequence[Axis]) -> Axis | None:
    """The axis that the lanes of a K step are along; None where they are along several."""
    return _long(axes, along_one(axes, STEP))


def _long(axes: Sequence[Axis], bk: int) -> Axis | None:
    """The last of several axes along which K steps have few idle lanes."""
    share, axis = _idle_along(axes, bk)
    return axis if share <= MOST_IDLE else None


def _idle_along(axes: Sequence[Axis], bk: int) -> tuple[float, Axis]:
    """The share of idle lanes of K steps along one axis, and the axis with the fewest."""
    sizes = [(extent_of(axis) or 0, axis) for axis in reversed(axes)]
    if len(axes) < 2 or sizes[0][0] % bk == 0:
        return 0.0, axes[-1]
    return min(((idle(size, bk), axis) for size, axis in sizes), key=lambda found: found[0])


def idle(size: int, step: int) -> float:
    """The share of the lanes of all steps (or tiles) along an axis that are past its end."""
    return 1.0 if size < 1 else 1 - size / (-(-size // step) * step)
