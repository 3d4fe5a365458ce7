"""Loads of fewer bytes by each thread than are copied to shared memory: no pipeline has them under
way while it computes."""

from __future__ import annotations

import tedsl as te
from tedsl.cost.estimate import estimate
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.devices import gpu_of
from tedsl.target import Target

CUDA = Target.parse("cuda:sm_90")
CHOSEN = {"out.parts": 4, "out.local.rf.bm": 128, "out.local.rf.bk": 64, "out.local.rf.warps": 4}


def seconds(k: int) -> float:
    """Of a skinny product of rows of `k` elements of two bytes."""
    x, y = te.placeholder((12288, k), "float16", "x"), te.placeholder((k, 2), "float16", "y")
    r = te.reduce_axis((0, k), "r")
    s = schedule_for(
        te.compute(
            (12288, 2),
            lambda i, j: te.sum(x[i, r].astype("float32") * y[r, j].astype("float32"), axis=r),
            name="out",
        ),
        CUDA,
        CHOSEN,
    )
    return estimate(lower(s.plan, CUDA), gpu_of(s)).seconds


def test_rows_that_start_at_odd_places_wait_in_each_step() -> None:
    """117.7 us of 3615 elements on an H200."""
    assert seconds(3615) > 1.4 * seconds(3614)
