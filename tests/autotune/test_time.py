"""A budget of seconds holds, however long a candidate takes to think of, to compile or to run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_problems import N, chain
from toy_spaces import Recorder, tiles, toy

from tedsl.autotune import tune
from tedsl.autotune.frontend import settings
from tedsl.autotune.frontend.settings import Time
from tedsl.autotune.search.budget import Stop
from tedsl.autotune.search.candidate_table import FIRST_POOL, LEAST_POOL, Catalogue
from tedsl.autotune.search.portfolio import Search

STUCK = """
import time
from tedsl.autotune.workers.worker_main import serve

class Stuck:
    facts = {}

    def __init__(self, setup):
        pass

    def stay(self, request):
        time.sleep(600.0)

    compile = measure = compare = watch = stay

serve(Stuck)
"""


class Clock:
    """Goes on by a second whenever a schedule is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.made = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def slow(self, s: Recorder) -> None:
        self.made += 1
        self.now += 1.0
        tiles(s)


def test_a_search_thinks_no_longer_than_it_is_told(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    search = Search(toy(clock.slow), trials=64, seed=0)
    batch = search.ask(clock.now + 12.0)
    assert batch is not None
    assert batch.candidates[0].origin == "default"
    assert len(batch.candidates) > 1
    assert clock.made <= 12 + 3  # the last draw may take a few
    search.tell(batch, [None] * len(batch.candidates))
    assert search.ask(clock.now) is None
    assert search.stopped is Stop.TIME


def test_a_search_without_time_proposes_the_default(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    batch = Search(toy(clock.slow), trials=64, seed=0).ask(clock.now)
    assert batch is not None
    assert [candidate.origin for candidate in batch.candidates] == ["default"]


def test_of_schedules_with_many_knobs_fewer_are_drawn():
    def wide(s: Recorder) -> None:
        for number in range(60):
            s.knob(f"k{number}", (0, 1))

    few, many = (Catalogue(toy(function), None) for function in (tiles, wide))
    for catalogue in (few, many):
        catalogue.add(catalogue.space.default())
    assert few.pool(FIRST_POOL) == FIRST_POOL
    assert LEAST_POOL <= many.pool(FIRST_POOL) < FIRST_POOL // 2
    assert many.pool(4) == 4


def test_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    assert Time().thinking() is None
    assert (Time().left(3.0), Time().is_over) == (3.0, False)
    budget = Time.of(clock.now, 10.0)
    assert clock.now < (budget.thinking() or 0.0) < clock.now + 5.0
    clock.now += 9.5  # the rest is for comparing and building
    assert budget.is_over
    assert budget.left(3.0) == 1.5
    clock.now += 1.6
    assert budget.left(3.0) == 0.0
    long = Time.of(clock.now, 1000.0)
    assert (long.latest or 0.0) - clock.now == pytest.approx(1000.0 + settings.GRACE)


@pytest.mark.cpu
def test_what_compiles_for_ever_gives_the_default_unmeasured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "GRACE", 0.3)
    worker = tmp_path / "stuck.py"
    worker.write_text(STUCK)
    command = (sys.executable, "-P", str(worker))
    path = tmp_path / "r.sqlite"
    lock = tmp_path / "tedsl.lock"
    found = tune(chain(), "cpu", seconds=0.2, records=path, command=command, lock=lock)
    assert not lock.exists()
    assert found.winner.candidate.origin == "default"
    assert found.winner.outcome.seconds is None
    assert not found.replayed
    assert "nothing was measured" in found.summary
    assert "chosen without a measurement" in str(found.report)
    x = np.linspace(-2, 2, N, dtype=np.float32)
    np.testing.assert_allclose(found.kernel(x), np.tanh(x * 2 + 1) * np.exp(-x), rtol=1e-5)
    again = tune(chain(), "cpu", trials=1, records=path)  # nothing of it is taken for measured
    assert not again.replayed
    assert again.winner.outcome.seconds is not None
