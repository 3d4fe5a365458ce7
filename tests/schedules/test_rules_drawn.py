"""The rules schedule whatever is drawn, under any decisions: nothing is refused, and the numbers
are the oracle's."""

from __future__ import annotations

import every_kernel
import hypothesis.strategies as st
import pytest
from agreeing import Oracle, interpreted
from choices import drawing
from drawn_pairs import by_rules, cases
from hypothesis import given, note, seed
from pairs import compiled

from tedsl.ir.nodes import Module
from tedsl.ir.printer import print_module
from tedsl.lower.pipeline import lower
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target

PARTS = [0, 1, pytest.param(2, marks=pytest.mark.slow)]


def lowered(schedule: Schedule, target: str) -> Module:
    return lower(schedule.plan, Target.parse(target), check=True)


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("shard", PARTS)
def test_the_rules_agree_on_what_is_drawn(shard: int, target: str) -> None:
    @seed(shard)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        draw = drawing(data.draw)
        case = draw(cases(False))
        decided: dict[str, object] = {}
        schedule = by_rules(draw, case, target, decided)
        note(f"{case}\n{decided}\n{schedule.as_python()}\n{schedule}")
        module = lowered(schedule, target)
        note(print_module(module))
        oracle = Oracle(case)
        oracle.compare(interpreted(module, case), f"interpreted for {target}")
        if target == "cpu" and case.number % 3 == 0:
            oracle.compare(compiled(schedule, case, "cpu"), "cpu")
        if case.number % 10:
            every_kernel.forget()  # ptxas takes one in ten
        every_kernel.compile_noted()

    pairs()
