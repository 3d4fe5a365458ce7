"""Checking that a refused call raises what it should and changes nothing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

import tedsl as te


@contextmanager
def refused(s: te.Schedule, *texts: str) -> Generator[None, None, None]:
    """The block raises a ScheduleError with all of `texts`; the schedule stays as it was."""
    plan, trace = s.plan, s.trace
    with pytest.raises(te.ScheduleError, match=r".") as caught:
        yield
    text = str(caught.value)
    for part in texts:
        assert part in text, f"{part!r} is not in:\n{text}"
    assert s.plan is plan
    assert s.trace == trace
    assert caught.value.hint, text
    assert caught.value.called, text
