"""Knobs that fit the loops they are for: no choice is offered that the extents make pointless."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.scheduling.graph import whole_of
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.stage import Stage


def pick(
    s: Schedule, name: str, choices: Sequence[int], default: int, most: int | None = None
) -> int:
    """The knob `name`: `default` or one of `choices`, none above `most`.

    Where one number is left there is nothing to choose, and no knob.
    """
    limit = default if most is None else max(1, most)
    default = default if most is None else min(default, limit)
    fitting = {c for c in choices if most is None or c <= limit}
    kept = sorted({*fitting, default})
    if len(kept) == 1:
        return default
    return s.knob(name, kept, default)


def knobs_of(s: Schedule, stage: Stage) -> str:
    """What names of a kernel's knobs begin with: its root, or what that is a piece of."""
    whole = whole_of(s.plan, stage.name)
    return stage.name if whole is None else whole.name


def flip(s: Schedule, name: str, default: bool) -> bool:
    """The knob `name` that says yes or no."""
    return s.knob(name, (default, not default), default)
