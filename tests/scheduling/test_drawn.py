"""Any schedule prints, replays from its trace and runs again as Python."""

from __future__ import annotations

import hypothesis.strategies as st
from drawn_schedules import schedules
from hypothesis import given, settings
from strategies import computes

import tedsl as te
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace


@settings(max_examples=60)
@given(st.data())
def test_traces_make_the_same_schedule(data: st.DataObject) -> None:
    case = data.draw(computes().strategy(), label="case")
    s = data.draw(schedules(case.outputs, 10).strategy(), label="schedule")
    again = replay(list(case.outputs), Trace.from_json(s.trace.to_json()))
    assert again.trace == s.trace
    assert str(again) == str(s)
    names = [f"output{n}" for n in range(len(case.outputs))]
    scope: dict[str, object] = {"te": te, **dict(zip(names, case.outputs, strict=True))}
    exec(s.as_python(*names), scope)
    made = scope["s"]
    assert isinstance(made, te.Schedule)
    assert made.trace == s.trace
    assert str(made) == str(s)


@settings(max_examples=40)
@given(st.data())
def test_legal_places_are_those_accepted(data: st.DataObject) -> None:
    case = data.draw(computes().strategy(), label="case")
    s = data.draw(schedules(case.outputs, 6).strategy(), label="schedule")
    stage = data.draw(st.sampled_from(s.stages))
    legal = {(place.name, axis) for place, axis in stage.legal_places()}
    for target in s.stages:
        for axis in target.leaf_iter_vars:
            attempt = s.copy()
            try:
                attempt[stage.name].compute_at(target.name, axis)
            except te.ScheduleError:
                assert (target.name, axis) not in legal
            else:
                assert (target.name, axis) in legal
