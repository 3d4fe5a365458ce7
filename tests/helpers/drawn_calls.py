"""What all that draws calls of primitives has in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import choices as st
from choices import Draw

from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Axis
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

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
