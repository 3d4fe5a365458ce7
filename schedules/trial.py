"""Trials: whether the primitives accept a sequence of steps is found out on a copy of the schedule,
and remembered.

A search runs the rules for very many decisions, and most of them ask the same of the same state: of
equal outputs after equal steps, for one device.  A graph of equal layers asks the same of each of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tedsl.errors import ScheduleError
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.memo import Memory
from tedsl.scheduling.plan.alike import form_of_part

Answer = TypeVar("Answer")

_ANSWERS = Memory(256)


def remembered(
    s: Schedule,
    question: tuple[object, ...],
    find: Callable[[Schedule], Answer],
    about: Sequence[str] = (),
) -> Answer:
    """What `find` makes, now or before, of a copy of the schedule in which knobs take their
    defaults; not to be changed.

    Args:
        s: the schedule; it stays as it is.
        question: what is asked, equal for equal answers of schedules after the same steps.
        find: gives the answer, and changes the copy as it likes.
        about: the stages that it is about, if nothing else counts than these and what is around
            them: the answer is that for stages which are one with them but for names, and of
            those `question` says nothing.
    """
    part = form_of_part(s.plan, about, s.settled) if about else None
    if part is None:
        key = (question, *about, s.lineage, s.settled, s.device)
    else:
        key = (question, part, s.in_registers, s.device)
    return _ANSWERS.get(key, lambda: find(s.copy(decided=False)))


def takes(
    s: Schedule,
    question: tuple[object, ...],
    steps: Callable[[Schedule], object],
    about: Sequence[str] = (),
) -> bool:
    """True when the primitives accept `steps` on a copy of the schedule (see `remembered`)."""
    return remembered(s, question, lambda trial: _accepted(trial, steps), about)


def accepts(s: Schedule, steps: Callable[[Schedule], object]) -> bool:
    """The same, found out each time."""
    return _accepted(s.copy(decided=False), steps)


def _accepted(trial: Schedule, steps: Callable[[Schedule], object]) -> bool:
    try:
        steps(trial)
    except ScheduleError:
        return False
    return True
