"""Checking that the trace of a schedule makes it again."""

from __future__ import annotations

from typing import Any

import tedsl as te
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace


def replays(s: te.Schedule, *outputs: Any) -> bool:
    """The trace makes the same schedule, from JSON and as Python."""
    again = replay(list(outputs), Trace.from_json(s.trace.to_json()))
    scope: dict[str, Any] = {"te": te, **{f"o{n}": t for n, t in enumerate(outputs)}}
    exec(s.as_python(*(f"o{n}" for n in range(len(outputs)))), scope)
    return str(again) == str(scope["s"]) == str(s) and scope["s"].trace == s.trace == again.trace
