"""Whatever is computed, and however it is scheduled, every way to run it gives the same numbers.

Drawn expressions under drawn schedules: the numpy reference, the IR interpreter (lowered for the
CPU and for Triton), machine code of the CPU and, for a sample, Triton's interpreter.  Integers
agree exactly; floats within
`agreeing.Oracle.bound`.  Every Triton kernel goes through ptxas.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from choices import drawing
from drawn_calls import scatter
from drawn_schedules import attempt, schedules, tensorize
from hypothesis import event, given, note, seed, settings
from pairs import check_pair
from strategies import by_group, computes, products

from tedsl.errors import ScheduleError

SHARDS = 20 if settings().max_examples <= 100 else 60
QUICK = 5
"""Parts that run side by side, and how many of them always do; each has the profile's number of
examples: 200 pairs in `ci`, 800 with `-m 'slow or not slow'`, 102,000 in `deep`."""
PARTS = [
    pytest.param(shard, marks=[pytest.mark.slow] * (SHARDS == 20 and shard >= QUICK))
    for shard in range(SHARDS)
]


@pytest.mark.cpu
@pytest.mark.parametrize("shard", PARTS)
def test_every_way_to_run_agrees(shard: int) -> None:
    @seed(shard)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        case = data.draw(computes(externs=True).strategy(), label="case")
        schedule = data.draw(schedules(case.outputs, sizes=case.sizes).strategy(), label="schedule")
        note(f"{schedule.as_python()}\n{schedule}")
        check_pair(case, schedule)

    pairs()


@pytest.mark.cpu
@pytest.mark.parametrize("shard", range(2))
def test_scattered_reductions_agree(shard: int) -> None:
    """Folds by group, run the other way round among other primitives."""

    @seed(shard)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        case = data.draw(by_group().strategy(), label="case")
        schedule = data.draw(schedules(case.outputs, 2, sizes=case.sizes).strategy(), label="first")
        for primitive in (scatter, *[None] * data.draw(st.integers(0, 5))):
            attempt(drawing(data.draw), schedule, primitive)
        note(f"{schedule.as_python()}\n{schedule}")
        check_pair(case, schedule)

    pairs()


@pytest.mark.cpu
@pytest.mark.parametrize("shard", range(2))
def test_micro_kernels_agree(shard: int) -> None:
    """Products whose inner loops a declared intrinsic carries out, among other primitives."""

    @seed(shard)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        case = data.draw(products().strategy(), label="case")
        schedule = data.draw(schedules(case.outputs, 2).strategy(), label="schedule")
        stages = [s for s in schedule.stages if s.op.reduce_axis]
        try:
            tensorize(drawing(data.draw), schedule, stages[-1])
            event("accepted tensorize")
        except ScheduleError as error:
            event(f"refused {error.primitive}")
        for _ in range(data.draw(st.integers(0, 3))):
            attempt(drawing(data.draw), schedule)
        note(f"{schedule.as_python()}\n{schedule}")
        check_pair(case, schedule)

    pairs()
