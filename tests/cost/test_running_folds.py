"""Triton's scan of a tile combines each element several times: how often depends on the threads
that have it."""

from __future__ import annotations

import tedsl as te
from tedsl.cost.estimate import Estimate, estimate
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.devices import gpu_of
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

CUDA = Target.parse("cuda:sm_90")
ROWS, STEPS = 15360, 186


def kernel(warps: int, costly: bool) -> Estimate:
    """Logarithms of running sums, or running maxima, along rows."""
    state = te.placeholder((STEPS, ROWS), name="S")

    def joined(a: te.Expr, b: te.Expr) -> te.Expr:
        if not costly:
            return te.maximum(a, b)
        high, low = te.maximum(a, b), te.minimum(a, b)
        return high + te.log1p(te.exp(low - high))

    source = te.placeholder((ROWS, STEPS), name="source")
    x = te.compute((STEPS, ROWS), lambda t, i: source[i, t], name="x")
    first = te.compute((1, ROWS), lambda t, i: x[0, i], name="first")
    step = te.compute((STEPS, ROWS), lambda t, i: joined(state[t - 1, i], x[t, i]), name="step")
    run = te.scan(first, step, state, name="run")
    assert isinstance(run, Tensor)
    y = te.compute((ROWS, STEPS), lambda i, t: run[t, i], name="y")
    s = schedule_for(y, CUDA, {"y.warps": warps})
    return estimate(lower(s.plan, CUDA), gpu_of(s))


def test_a_costly_combination_takes_longer_than_memory() -> None:
    """37 us of 11.4 million elements on an H200, with a logarithm in each combination, where memory
    takes 6."""
    assert kernel(8, costly=True).seconds > 1.8 * kernel(8, costly=False).seconds


def test_warps_side_by_side_combine_what_those_before_came_to() -> None:
    """The tile is the same."""
    many, one = kernel(8, costly=True), kernel(1, costly=True)
    assert many.features["instructions"] > one.features["instructions"] + 0.1
