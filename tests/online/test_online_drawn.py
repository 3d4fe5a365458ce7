"""Drawn chains of dependent reductions, fused, give the numbers of their definitions.

Where a definition gives NaN or an infinity (a maximum of nothing) the fused form may give a finite
number: maxima start from the lowest finite value there.
"""

from __future__ import annotations

import pytest
from drawn_chains import chain_schedules, chains, part_schedules
from hypothesis import given, note, seed
from hypothesis import strategies as st
from pairs import check_pair

PARTS = [pytest.param(shard, marks=[pytest.mark.slow] * (shard > 1)) for shard in range(4)]


@pytest.mark.cpu
@pytest.mark.parametrize("shard", PARTS)
def test_fused_chains_agree(shard: int) -> None:
    @seed(shard)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        case = data.draw(chains().strategy(), label="case")
        schedule = data.draw(chain_schedules(case).strategy(), label="schedule")
        note(f"{schedule.as_python()}\n{schedule}")
        check_pair(case, schedule)

    pairs()


@pytest.mark.cpu
def test_parts_scheduled_again_agree() -> None:
    @seed(0)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        case = data.draw(chains().strategy(), label="case")
        schedule = data.draw(part_schedules(case).strategy(), label="schedule")
        note(f"{schedule.as_python()}\n{schedule}")
        check_pair(case, schedule)

    pairs()
