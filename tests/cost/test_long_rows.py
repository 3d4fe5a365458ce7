"""Long rows that a program folds in one loop: what several statements of an iteration read is
loaded once, and no thread waits for another before the loop ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tedsl as te
from tedsl import nn
from tedsl.cost.estimate import estimate
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.devices import gpu_of
from tedsl.target import Target

CUDA = Target.parse("cuda:sm_90")


def divergence(rows: int, columns: int) -> te.Tensor:
    """How far the softmax of the rows of one matrix is from that of another."""
    x, y = (te.placeholder((rows, columns), name=name) for name in "xy")
    p, q = nn.log_softmax(x), nn.log_softmax(y)
    k = te.reduce_axis((0, columns), name="k")
    return te.compute(
        (rows,), lambda i: te.sum(te.exp(p[i, k]) * (p[i, k] - q[i, k]), axis=k), name="out"
    )


def first_of_log_softmax(rows: int, columns: int) -> te.Tensor:
    """The first column of the logarithm of a softmax."""
    p = nn.log_softmax(te.placeholder((rows, columns), name="x"))
    return te.compute((rows,), lambda i: p[i, 0], name="out")


@pytest.mark.parametrize(
    ("make", "rows", "columns", "measured"),
    [
        (divergence, 88, 115712, 48.1),
        (divergence, 88, 50000, 19.5),
        (divergence, 88, 20000, 13.4),
        (first_of_log_softmax, 88, 115712, 20.4),
        (first_of_log_softmax, 88, 50000, 7.3),
    ],
)
def test_rows_take_what_was_measured(
    make: Callable[[int, int], te.Tensor], rows: int, columns: int, measured: float
) -> None:
    """Microseconds on an H100, a program a row; the model told 4 to 5 times as many."""
    s = schedule_for(make(rows, columns), CUDA, {"out.parts": 1})
    told = estimate(lower(s.plan, CUDA), gpu_of(s)).seconds * 1e6
    assert measured / 1.5 < told < 2.5 * measured
