"""Drawn scans under drawn schedules: every way to run them gives the same numbers."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from agreeing import Oracle, interpreted
from drawn_schedules import schedules
from hypothesis import given, note, seed, settings
from pairs import check_pair, lowered
from scan_strategies import recurrences

from tedsl.schedules import default_schedule

PARTS = [pytest.param(shard, marks=[pytest.mark.slow] * (shard > 1)) for shard in range(6)]


@pytest.mark.cpu
@pytest.mark.parametrize("shard", PARTS)
def test_every_way_to_run_agrees(shard: int) -> None:
    @seed(shard)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        case = data.draw(recurrences().strategy(), label="case")
        schedule = data.draw(schedules(case.outputs, sizes=case.sizes).strategy(), label="schedule")
        note(f"{schedule.as_python()}\n{schedule}")
        check_pair(case, schedule)

    pairs()


@pytest.mark.cpu
def test_the_rules_agree() -> None:
    @settings(max_examples=25)
    @given(st.data())
    def rules(data: st.DataObject) -> None:
        case: Any = data.draw(recurrences().strategy(), label="case")
        oracle = Oracle(case)
        for target, how in (("cpu", "cpu"), ("cuda", "triton-interpret")):
            schedule = default_schedule(case.outputs, target)
            note(str(schedule))
            module = lowered(schedule, how)
            assert module is not None
            oracle.compare(interpreted(module, case), how)

    rules()
