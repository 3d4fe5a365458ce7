"""Several problems in one worker: which of them stay open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tedsl.autotune.workers.session import TuneSession
from tedsl.autotune.workers.session_server import FEWEST, MOST, Sessions

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


@pytest.mark.parametrize(
    ("best", "bound", "asked"),
    [(None, None, None), (2.0, None, 2.0), (None, 3.0, 3.0), (2.0, 3.0, 2.0), (3.0, 2.0, 2.0)],
)
def test_the_least_time_known_is_the_bound(
    best: float | None, bound: float | None, asked: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks knows what was found before, and elsewhere; the device what it has found since."""
    bounds: list[float | None] = []

    def measure(_: object, request: dict[str, float | None]) -> dict[str, str]:
        bounds.append(request["bound"])
        return {"status": "ok"}

    monkeypatch.setattr(TuneSession, "measure", measure)
    worker = Sessions({})
    worker.opened = {"p": cast("TuneSession", SimpleNamespace(bench=None))}
    worker.measure({"problem": "p", "key": "p:k", "best": best, "bound": bound})
    assert bounds == [asked]
