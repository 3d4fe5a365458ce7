"""What is judged again after a call is all that the call can have made illegal."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from choices import drawing
from drawn_schedules import attempt
from hypothesis import given, settings
from strategies import computes

import tedsl as te
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.primitives.kernel_fusion import horizontal as together
from tedsl.scheduling.primitives.placement import legality as places
from tedsl.scheduling.primitives.stage_facts import Problem

Found = tuple[StagePlan, Problem] | None


def compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on each judgement is made both ways."""
    judge = places.first_problem

    def both(plan: Plan, before: Plan | None = None) -> Found:
        found = judge(plan, before)
        assert found == judge(plan), "the whole plan judged otherwise"
        return found

    joins, extents = together.join_problem, together.extent_problem

    def both_joins(plan: Plan, before: Plan | None = None) -> Found:
        found = joins(plan, before)
        assert found == joins(plan), "all groups judged otherwise"
        return found

    def both_extents(plan: Plan, called: str = "", before: Plan | None = None) -> Found:
        found = extents(plan, called, before)
        assert (found is None) == (extents(plan, called) is None), "all lengths judged otherwise"
        return found

    monkeypatch.setattr(places, "first_problem", both)
    monkeypatch.setattr(together, "join_problem", both_joins)
    monkeypatch.setattr(together, "extent_problem", both_extents)


@settings(max_examples=100)
@given(st.data())
def test_the_same_is_found_as_in_the_whole_plan(data: st.DataObject) -> None:
    case = data.draw(computes().strategy(), label="case")
    s = te.create_schedule(list(case.outputs))
    with pytest.MonkeyPatch.context() as monkeypatch:
        compared(monkeypatch)
        for _ in range(data.draw(st.integers(1, 12))):
            attempt(drawing(data.draw), s)
    assert places.first_problem(s.plan) is None
