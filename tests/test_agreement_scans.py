"""Drawn scans under drawn schedules: every way to run them gives the same numbers."""

from __future__ import annotations

from typing import Any

import every_kernel
import hypothesis.strategies as st
import numpy as np
import pytest
from drawn_schedules import schedules
from hypothesis import given, note, seed, settings
from pairs import check_replay, compiled, interpreted, lowered, sampled
from scan_strategies import recurrences
from strategies import Case

import tedsl as te
from tedsl.expr.numerics import Array
from tedsl.ir.printer import print_module
from tedsl.schedules import default_schedule
from tedsl.scheduling.schedule import Schedule

SHARDS = 6


def compare(schedule: Schedule, got: list[Array], want: list[Array], how: str) -> None:
    """Exact for integers; floats within the rounding of a few steps of small values."""
    for tensor, x, y in zip(schedule.outputs, got, want, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype, how
        if tensor.dtype.is_float:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=f"{how}: {tensor.name}")
        else:
            np.testing.assert_array_equal(x, y, err_msg=f"{how}: {tensor.name}")


def check_pair(case: Case, schedule: Schedule) -> None:
    """All the ways to run one scan under one schedule, and the trace of the schedule."""
    want = te.evaluate(case.outputs, case.inputs, case.sizes)
    check_replay(case, schedule)
    for target, runs in (("cpu", ["cpu"]), ("triton-interpret", sampled(case))):
        module = lowered(schedule, target)
        if module is None:
            continue
        note(f"{target}\n{print_module(module)}")
        compare(schedule, interpreted(module, case), want, f"interpreted for {target}")
        for each in runs:
            compare(schedule, compiled(schedule, case, each), want, each)
    if case.number % 10:
        every_kernel.forget()  # ptxas takes one pair in ten
    every_kernel.compile_noted()


@pytest.mark.cpu
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_way_to_run_agrees(shard: int) -> None:
    @seed(shard)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        case = data.draw(recurrences(), label="case")
        schedule = data.draw(schedules(case.outputs, sizes=case.sizes), label="schedule")
        note(f"{schedule.as_python()}\n{schedule}")
        check_pair(case, schedule)

    pairs()


@pytest.mark.cpu
def test_the_rules_agree() -> None:
    @settings(max_examples=25)
    @given(st.data())
    def rules(data: st.DataObject) -> None:
        case: Any = data.draw(recurrences(), label="case")
        want = te.evaluate(case.outputs, case.inputs, case.sizes)
        for target, how in (("cpu", "cpu"), ("cuda", "triton-interpret")):
            schedule = default_schedule(case.outputs, target)
            note(str(schedule))
            module = lowered(schedule, how)
            assert module is not None
            compare(schedule, interpreted(module, case), want, how)

    rules()
