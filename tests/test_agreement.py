"""Whatever is computed, and however it is scheduled, every way to run it gives the same numbers.

Drawn expressions under drawn schedules: the numpy reference, the IR interpreter (lowered for the
CPU and for Triton), machine code of the CPU and, for a sample, Triton's interpreter.  Integers
agree exactly; floats within `bound`.  Every Triton kernel goes through ptxas.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from drawn_schedules import schedules
from hypothesis import given, note, seed
from pairs import check_pair
from strategies import computes

SHARDS = 20
"""Parts that run side by side; each has the profile's number of examples: 2,000 pairs in `ci`,
100,000 in `deep`."""


@pytest.mark.cpu
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_way_to_run_agrees(shard: int) -> None:
    @seed(shard)
    @given(st.data())
    def pairs(data: st.DataObject) -> None:
        case = data.draw(computes(), label="case")
        schedule = data.draw(schedules(case.outputs, sizes=case.sizes), label="schedule")
        note(f"{schedule.as_python()}\n{schedule}")
        check_pair(case, schedule)

    pairs()
