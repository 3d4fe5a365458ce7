"""`te.auto`: an argument of a primitive that a search is to choose.  Imports nothing."""

from __future__ import annotations

from typing import Any

from tedsl.errors import ScheduleError
from tedsl.slips import suggests


@suggests(ScheduleError, owner="te.auto")
class Auto:
    """Stands for a value that follows from the loop it is for, and may be searched.

    The primitive that is given it offers choices by the axis and the target, as a knob with a name
    made of stage, primitive and axis; without a decision it takes the default.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "te.auto"


auto: Any = Auto()
