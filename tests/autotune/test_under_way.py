"""Batches under way: what is bounded by time goes on without the last of a batch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from small_problems import chain
from toy_spaces import judge, tiles, toy

from tedsl.autotune.frontend.settings import Options
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.machine import context_of
from tedsl.autotune.search.portfolio import UNDER_WAY, Batch, Search
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate
from tedsl.autotune.tuner import Tuner, finished
from tedsl.autotune.under_way import STRAGGLERS, Flight, UnderWay
from tedsl.autotune.workers.protocol import Done, Verified
from tedsl.autotune.workers.utilization import Timeline
from tedsl.workload.workload import Workload

STUCK = 1, 0
"""A batch and a position in it."""


class Trying:
    """Gives every outcome at once but one, which comes when there is nothing else to wait for, or
    when so many batches have begun."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.timeline = Timeline(time.monotonic())
        self.begun = self.begun_without = 0
        self.done: deque[Done] = deque()
        self.stuck: Done | None = None

    def begin(self, number: int, candidates: Sequence[Candidate], **_: Any) -> None:
        self.begun = number
        for place in range(len(candidates)):
            seconds = 1.0 + number + place / 10
            done = Done(number, place, Outcome(Status.OK, seconds, (seconds,) * 3))
            if (number, place) == STUCK:
                self.stuck = done
            else:
                self.done.append(done)

    def wait_until(self, until: float | None) -> Done | None:
        if self.stuck is not None and (self.begun >= self.batches or not self.done):
            found, self.stuck = self.stuck, None
            self.begun_without = self.begun
        else:
            found = self.done.popleft() if self.done else None
        return found

    def describe(self, candidates: Sequence[Candidate], until: float | None = None) -> list[None]:
        return [None] * len(candidates)

    def compare(
        self, candidates: Sequence[Candidate], rounds: int, seconds: float
    ) -> list[list[float]]:
        return [[1.0] * rounds for _ in candidates]

    def verify(self, candidate: Candidate, calls: int, seconds: float) -> Verified:
        return Verified(calls)


def twice_split(s: Any) -> None:
    """A schedule of many choices."""
    output = s.outputs[0]
    _, inner = s[output].split(output.op.axis[0], s.knob("outer", tuple(range(8, 40))))
    s[output].split(inner, s.knob("inner", tuple(range(1, 8))))


def searched(engine: Trying, **budget: Any) -> tuple[Tuner, Any]:
    """A search in which three batches are under way."""
    workload = Workload.of(chain())
    problem = Problem(workload.outputs, "cpu", twice_split)
    options = Options(records=False, progress=False, **budget)
    context = context_of(workload, "cpu", problem.name, "{}")
    tuner = Tuner(
        *(problem, problem.space(), workload, context, Records(None), options, {}),
        time.monotonic(),
    )
    tuner.search = Search(tuner.space, depth=3, trials=options.trials or 60, seed=1)
    return tuner, finished(tuner.steps(engine))


@pytest.mark.cpu
def test_a_search_bounded_by_time_does_not_wait_for_the_last_of_a_batch():
    engine = Trying(batches=5)
    tuner, found = searched(engine, seconds=60.0)
    assert engine.begun_without == 5
    numbers = [trial.number for trial in found.trials]
    assert numbers == list(range(len(numbers)))  # the late one is in its place
    assert tuner.search.exhausted or len(numbers) == 60


@pytest.mark.cpu
def test_a_search_bounded_by_trials_proposes_the_same_whatever_is_late():
    engine = Trying(batches=5)
    _, found = searched(engine, trials=40)
    assert engine.begun_without == 3  # the batch after it, and the one after that
    assert [trial.number for trial in found.trials] == list(range(40))


def test_what_comes_late_is_learnt():
    search = Search(toy(tiles), trials=60, seed=0, depth=3)
    batches = [search.ask() for _ in range(3)]
    for batch in batches:
        assert batch is not None
        outcomes = [judge(each) for each in batch.candidates]
        known: list[Outcome | None] = list(outcomes)
        known[0] = None
        search.tell(batch, known)
    first = batches[0]
    assert first is not None
    assert search.best is None or search.best.number != first.first
    search.tell_late(first, 0, Outcome(Status.OK, 1e-9, (1e-9,)))
    assert search.best is not None
    assert search.best.number == first.first
    assert [trial.number for trial in search.done] == sorted(trial.number for trial in search.done)
    following = search.ask()
    assert following is not None
    proposed = {each.key for batch in batches if batch for each in batch.candidates}
    assert not proposed & {each.key for each in following.candidates}


def test_few_are_waited_for_no_more_while_few_are_under_way():
    def flight(number: int, missing: int) -> Flight:
        return Flight(Batch(number, 0, ()), [], missing, [])

    under_way = UnderWay()
    under_way.flights.extend([flight(0, STRAGGLERS + 1), flight(1, 6)])
    assert not under_way.has_few(6)
    under_way.flights[0].missing = STRAGGLERS
    assert under_way.has_few(UNDER_WAY - STRAGGLERS - 6)
    assert not under_way.has_few(UNDER_WAY - STRAGGLERS - 5)
    landed = under_way.land()
    assert under_way.late == [landed]
    assert under_way.of(0) is landed
    assert under_way.missing == STRAGGLERS + 6
    assert under_way.land().batch.number == 1
    under_way.flights.append(flight(2, 0))
    assert under_way.land() not in under_way.late
