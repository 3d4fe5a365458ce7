"""Several problems in one worker: which of them stay open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tedsl.autotune.session import TuneSession
from tedsl.autotune.sessions import FEWEST, MOST, Sessions

CROWDS = [
    (FEWEST - 1, True, True),
    (FEWEST, True, False),
    (FEWEST, False, True),
    (MOST - 1, False, True),
    (MOST, False, False),
]


@pytest.mark.parametrize(("count", "crowded", "room"), CROWDS)
def test_problems_stay_open_while_there_is_memory(count: int, crowded: bool, room: bool) -> None:
    arena = SimpleNamespace(is_crowded=lambda: crowded)
    session = cast("TuneSession", SimpleNamespace(bench=SimpleNamespace(arena=arena)))
    worker = Sessions({})
    worker.opened = {str(number): session for number in range(count)}
    assert worker.has_room() is room


def test_problems_that_only_compile_take_no_memory() -> None:
    worker = Sessions({})
    session = cast("TuneSession", SimpleNamespace(bench=None))
    worker.opened = {str(number): session for number in range(FEWEST + 1)}
    assert worker.has_room()
