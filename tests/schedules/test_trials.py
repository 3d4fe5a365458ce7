"""What a trial came to is remembered for a state of a schedule, and for no other."""

from __future__ import annotations

import gc
import weakref

import pytest

import tedsl as te
from tedsl.schedules import trial as trials
from tedsl.schedules.trial import remembered, takes
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.memo import Memory


def rows() -> te.Tensor:
    x = te.placeholder((8, 64), name="x")
    return te.compute((8, 64), lambda i, j: x[i, j] * 2.0, name="y")


def split(s: Schedule, factor: int = 8) -> None:
    s["y"].split(s["y"].op.axis[1], factor=factor)


def test_equal_steps_are_tried_once_whatever_was_decided() -> None:
    made, tried = rows(), list[int]()

    def trial(s: Schedule) -> int:
        tried.append(len(s.trace))
        s["y"].split(s["y"].leaf_iter_vars[-1], factor=2)
        return s.knob("tile", (1, 2))

    first, second = te.create_schedule(made), te.create_schedule(made, {"tile": 2})
    assert [remembered(s, ("tile",), trial) for s in (first, second)] == [1, 1]
    assert tried == [0]
    assert not first.trace.steps
    for s in (first, second):
        split(s)
        assert remembered(s, ("tile",), trial) == 1
    assert tried == [0, 1]


def test_other_states_and_questions_have_answers_of_their_own() -> None:
    made = rows()
    before, after = te.create_schedule(made), te.create_schedule(made)
    split(after)
    other = te.create_schedule(made)
    split(other, 16)
    new = te.create_schedule(rows())

    def loops(s: Schedule) -> list[str]:
        return [axis.name for axis in s["y"].leaf_iter_vars]

    def steps(s: Schedule) -> object:
        return s.trace.steps

    for s in (before, after, other, new, before):
        assert remembered(s, (loops,), loops) == loops(s)
        assert remembered(s, (steps,), steps) == steps(s)


def test_a_refusal_is_remembered_and_other_errors_are_not() -> None:
    s, tried = te.create_schedule(rows()), list[str]()

    def refused(trial: Schedule) -> None:
        tried.append("refused")
        split(trial, 0)

    def broken(trial: Schedule) -> None:
        tried.append("broken")
        raise KeyError(str(trial))

    assert [takes(s, (refused,), refused) for _ in range(2)] == [False, False]
    for _ in range(2):
        with pytest.raises(KeyError, match="y"):
            takes(s, (broken,), broken)
    assert tried == ["refused", "broken", "broken"]


def test_no_schedule_is_kept_and_few_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Memory(4)
    monkeypatch.setattr(trials, "_ANSWERS", answers)
    s = te.create_schedule(rows())
    copies: list[weakref.ref[Schedule]] = []
    for number in range(9):
        remembered(s, ("nothing", number), lambda trial: copies.append(weakref.ref(trial)))
    assert len(answers._known) <= 4  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    assert len(copies) == 9
    assert all(each() is None for each in copies)


def test_stages_that_are_one_but_for_names_are_tried_once() -> None:
    x = te.placeholder((8, 64), name="x")

    def scaled(factor: float, name: str) -> te.Tensor:
        return te.compute((8, 64), lambda i, j: x[i, j] * factor, name=name)

    a, b, c = scaled(2.0, "a"), scaled(2.0, "b"), scaled(3.0, "c")
    s, tried = te.create_schedule([a, b, c]), list[str]()

    def asked(name: str) -> bool:
        def steps(trial: Schedule) -> None:
            tried.append(name)
            trial[name].split(trial[name].op.axis[1], factor=8)

        return takes(s, (asked,), steps, [name])

    assert asked("a") and asked("b") and tried == ["a"]
    assert asked("c") and tried == ["a", "c"]
    s["b"].vectorize(s["b"].op.axis[1])
    assert not asked("b") and asked("a") and tried == ["a", "c", "b"]
