"""Knobs: tunables of a rule, offered only with choices that the extents leave room for."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.graph import whole_of


def pick(
    s: Schedule, name: str, choices: Sequence[int], default: int, most: int | None = None
) -> int:
    """The knob `name`: `default` or one of `choices`, none above `most`.

    Where one number is left there is no knob.
    """
    limit = default if most is None else max(1, most)
    default = default if most is None else min(default, limit)
    fitting = {c for c in choices if most is None or c <= limit}
    kept = sorted({*fitting, default})
    if len(kept) == 1:
        return default
    return s.knob(name, kept, default)


def asked(s: Schedule, name: str) -> bool:
    """Whether the knob `name` has been asked for already."""
    return any(knob.name == name for knob in s.knobs)


def knobs_of(s: Schedule, stage: Stage) -> str:
    """The stage that a kernel's knobs are named after: its root, or the stage that its root was
    divided from."""
    whole = whole_of(s.plan, stage.name)
    return stage.name if whole is None else whole.name


def flip(s: Schedule, name: str, default: bool) -> bool:
    """The boolean knob `name`."""
    return s.knob(name, (default, not default), default)
