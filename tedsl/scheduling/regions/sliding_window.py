"""Storage apart from computation (`store_at`): what an iteration still has to compute, and the
window of which memory is used again.

Of a box that moves along one loop, an iteration after the first computes only the part that the
one before did not:  start = low + (extent - step),  count = step.  Imports the plan and `index`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.expr.index_arith import add, as_index, constant
from tedsl.expr.nodes import Axis, Compare, CompareOp, Const, Expr, Range, Select
from tedsl.expr.visit import axes_of
from tedsl.index.affine import stride_of
from tedsl.index.bounds import monotone
from tedsl.index.facts import Facts
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.plan import StagePlan
from tedsl.scheduling.plan.relations import related
from tedsl.tensor.tensor import ComputeOp


@dataclass(frozen=True, slots=True, eq=False)
class Slide:
    """Dimension `dimension` of a box of `window` elements there moves by `step` with each
    iteration of `loop`, and nothing else of the box does."""

    loop: Axis
    dimension: int
    window: int
    step: int

    def remaining(self, region: Sequence[Range]) -> tuple[Range, ...]:
        """What an iteration computes: all of `region` in the first one, then what is new."""
        box = region[self.dimension]
        first = Compare(CompareOp.EQ, self.loop, Const(0, self.loop.dtype))
        known = self.window - self.step
        start = add(box.min, Select(first, as_index(0), as_index(known)))
        count = Select(first, as_index(self.window), as_index(self.step))
        return tuple(
            Range(start, count) if n == self.dimension else other for n, other in enumerate(region)
        )


def slide_of(
    stage: StagePlan,
    region: Sequence[Range],
    between: Sequence[Axis],
    guards: Sequence[Expr],
    facts: Facts,
) -> Slide | str:
    """How the region of a stage moves through the loops between where it is stored and where it is
    computed; or why it is computed as a whole each time.

    Args:
        stage: the stage.
        region: what is read in one iteration.
        between: the loops, outermost first.
        guards: the conditions under which iterations of them run.
        facts: ranges of the loops.
    """
    for loop in reversed(between):
        moved = [n for n, box in enumerate(region) if loop in axes_of(box.min, box.extent)]
        if moved:
            break
    else:
        return "the region does not move with a loop between the two"
    if len(moved) > 1:
        return f"dimensions {moved[0]} and {moved[1]} both move with {loop.name}"
    box, window = region[moved[0]], constant(region[moved[0]].extent)
    step = stride_of(box.min, loop, facts)
    size = step if isinstance(step, int) else None if step is None else constant(step)
    if window is None or size is None:
        return f"its region does not move by a constant with each iteration of {loop.name}"
    if size <= 0:
        return f"its region moves backwards along {loop.name}"
    if size >= window:
        return f"its regions of neighbouring iterations of {loop.name} have nothing in common"
    if not all(_holds_from_the_start(guard, loop, facts) for guard in guards):
        return f"the first iterations of {loop.name} may be left out"
    if _has_lanes(stage, moved[0]):
        return f"dimension {moved[0]} of it is vectorized, and lanes are not counted anew"
    return Slide(loop, moved[0], window, size)


def _holds_from_the_start(guard: Expr, loop: Axis, facts: Facts) -> bool:
    """True when a condition that fails in one iteration of `loop` fails in all later ones."""
    if loop not in axes_of(guard):
        return True
    match guard:
        case Compare(op=CompareOp.LT, a=low, b=high):
            return monotone(low, loop, facts) == 1 and loop not in axes_of(high)
        case _:
            return False


def _has_lanes(stage: StagePlan, dimension: int) -> bool:
    if not isinstance(stage.op, ComputeOp):
        return False
    joined = related(stage, stage.op.axes[dimension])
    return any(
        stage.mark(axis).kind is LoopKind.VECTORIZED for axis in stage.leaf_axes if axis in joined
    )
