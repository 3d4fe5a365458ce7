"""What all that draws calls of primitives has in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import choices as st
from choices import Draw

from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Expr, Reduce
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.scattered import may_scatter
from tedsl.tensor.tensor import ComputeOp

FACTORS = (1, 2, 3, 4, 4, 8, 8, 16)
PRINTED = 8
"""Steps of a schedule that is printed at each: most of the time would go there in longer ones."""
_PRINTED: WeakKeyDictionary[Schedule, tuple[object, str]] = WeakKeyDictionary()
"""The text of a schedule before a call that was refused is that before the next one."""


def steps(draw: Draw, most: int) -> Iterator[int]:
    """At most so many, each behind a number of its own: one that is left out moves no other."""
    for number in range(most):
        if draw(st.integers(0, most)) == 0:
            return
        yield number


def call(schedule: Schedule, primitive: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a primitive; a refusal gives advice and leaves the schedule as it was."""
    known = _PRINTED.get(schedule)
    if known is None or known[0] is not schedule.plan:
        text = str(schedule) if len(schedule.trace) <= PRINTED else ""
        known = _PRINTED[schedule] = (schedule.plan, text)
    before = (*known, len(schedule.trace))
    try:
        return primitive(*args, **kwargs)
    except ScheduleError as error:
        after = (schedule.plan, known[1] and str(schedule), len(schedule.trace))
        assert after == before, "a refusal changed it"
        assert str(error).strip() and error.hint, f"a refusal without advice: {error}"
        raise


def axis_of(draw: Draw, stage: Stage) -> Axis:
    """A loop of the stage; when it has none, its root axis or an axis that belongs nowhere."""
    candidates = [*stage.leaf_iter_vars, *stage.leaf_iter_vars, *stage.plan.root_axes]
    return draw(st.sampled_from(candidates)) if candidates else Axis("nowhere")


def lay_out(draw: Draw, s: Schedule) -> None:
    """Outputs over other axes than their arrays have."""
    for tensor in s.outputs:
        stage = s[tensor]
        if isinstance(stage.op, ComputeOp) and stage.op.axes and draw(st.booleans()):
            with contextlib.suppress(ScheduleError):
                call(s, stage.transform_layout, _layout(draw, stage.op.shape))


def _layout(draw: Draw, sizes: Sequence[Expr]) -> Callable[..., list[Any]]:
    """Parts of an axis, shifted or not, several axes as one, or another order: parts have padding
    where the extent is no multiple of their size."""
    order = draw(st.permutations(list(range(len(sizes)))))
    which, way = draw(st.integers(0, len(sizes) - 1)), draw(st.integers(0, 3))
    size = constant(sizes[which]) or 1
    whole = [n for n in range(1, min(size, 64) + 1) if size % n == 0]
    padded = draw(st.integers(0, 2)) == 0
    step = draw(st.integers(2, 9) if padded else st.sampled_from(whole))
    shift = draw(st.integers(0, step - 1)) if padded else 0

    def layout(*axes: Axis) -> list[Any]:
        own = axes[which] + shift
        match way:
            case 0 | 1:
                parts = (own // step, own % step) if way else (own % step, own // step)
                return [*axes[:which], *parts, *axes[which + 1 :]]
            case 2 if len(axes) > 1:
                return [axes[0] * sizes[1] + axes[1], *axes[2:]]
            case _:
                return [axes[n] for n in order]

    return layout


def scatter(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Mostly along an axis of which a condition says the value."""
    able = [each for each in s.stages if scatters_along(each)]
    stage = draw(st.sampled_from([stage, *able, *able, *able]))
    axes = scatters_along(stage)
    call(s, stage.scatter, axes[0] if axes and draw(st.integers(0, 4)) else axis_of(draw, stage))
    if draw(st.booleans()):
        call(s, stage.atomic)


def scatters_along(stage: Stage) -> tuple[Axis, ...]:
    """The data axes along which a stage can be scattered."""
    body = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    return may_scatter(body, stage.op.axis) if isinstance(body, Reduce) else ()
