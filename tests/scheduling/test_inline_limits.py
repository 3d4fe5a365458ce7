"""How large definitions may grow by compute_inline, and that what is equal is written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.expr.visit import walk
from tedsl.scheduling.plan.inline import LARGEST_DEPTH, LARGEST_TERMS, body_size, inline_stages


def stages(count: int, body: Callable[[Any, Any], Any]) -> te.Schedule:
    y = te.placeholder((8,), "float32", name="x")
    for number in range(count):
        y = te.compute((8,), partial(body, y), name=f"s{number}")
    return te.create_schedule(y)


def inline_all(s: te.Schedule) -> None:
    for stage in s.stages[1:-1]:
        stage.compute_inline()


@pytest.mark.cpu
def test_three_hundred_stages() -> None:
    s = stages(300, lambda y, i: y[i] + 1.0)
    inline_all(s)
    x = np.arange(8, dtype="f4")
    np.testing.assert_allclose(te.build(s, target="cpu")(x), x + 300)


def test_more_terms_than_can_be_built_are_refused_with_their_number() -> None:
    s = stages(20, lambda y, i: (y[i] + y[7 - i]) * 0.5)
    with pytest.raises(te.ScheduleError, match=r"the definition of s\d+ would have [\d,]+ terms"):
        inline_all(s)
    inlined = [stage.name for stage in s.stages if stage.plan.placement.inlined]
    assert 8 <= len(inlined) < 18
    text = str(refusal(s))
    assert f"{LARGEST_TERMS:,} terms, nested {LARGEST_DEPTH:,} deep" in text


def refusal(s: te.Schedule) -> te.ScheduleError:
    for stage in s.stages[1:-1]:
        before = (str(s), len(s.trace))
        try:
            stage.compute_inline()
        except te.ScheduleError as error:
            assert (str(s), len(s.trace)) == before
            return error
    raise AssertionError("nothing is refused")


def test_deeper_than_can_be_built_is_refused_with_the_depth() -> None:
    s = stages(LARGEST_DEPTH // 2 + 20, lambda y, i: y[i] + 1.0)
    with pytest.raises(te.ScheduleError, match=r"nested 1,\d+ deep"):
        for stage in s.stages[-2:0:-1]:
            stage.compute_inline()


@pytest.mark.cpu
def test_what_is_read_at_one_place_twice_is_written_once() -> None:
    s = stages(60, lambda y, i: y[i] * 0.5 + y[i] * 0.5)
    inline_all(s)
    last: Any = inline_stages(s.plan).stages[-1].op
    assert sum(1 for _ in walk(*last.bodies)) < 1000
    x = np.arange(8, dtype="f4")
    np.testing.assert_allclose(te.build(s, target="cpu")(x), x)


def test_terms_are_counted_as_they_are_written() -> None:
    s = stages(4, lambda y, i: (y[i] + y[7 - i]) * 0.5)
    inline_all(s)
    whole: Any = inline_stages(s.plan).stages[-1].op
    found = body_size(whole)
    assert found.depth < 40
    assert sum(1 for _ in walk(*whole.bodies)) >= found.terms > 30


def test_auto_inline_stops_at_the_limit() -> None:
    s = stages(20, lambda y, i: (y[i] + y[7 - i]) * 0.5)
    te.schedule.AutoInlineInjective(s)
    assert any(stage.plan.placement.at_root for stage in s.stages[1:-1])
