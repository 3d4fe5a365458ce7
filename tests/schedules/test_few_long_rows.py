"""Few rows, long ones: one kernel with a program a row, or parts of rows, whichever is quicker by
the cost model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tedsl as te
from tedsl import nn
from tedsl.cost.estimate import estimate
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.fusion.vertical import NEAR
from tedsl.target import Target

CUDA = Target.parse("cuda:sm_90")


def two_sums(rows: int, columns: int) -> te.Tensor:
    """The sum of two sums of the same rows."""
    x, y = (te.placeholder((rows, columns), name=name) for name in "xy")
    k, r = te.reduce_axis((0, columns), name="k"), te.reduce_axis((0, columns), name="r")
    a = te.compute((rows,), lambda i: te.sum(x[i, k] * y[i, k], axis=k), name="a")
    b = te.compute((rows,), lambda i: te.sum(x[i, r] - y[i, r], axis=r), name="b")
    return te.compute((rows,), lambda i: a[i] + b[i], name="out")


def cosine(rows: int, columns: int) -> te.Tensor:
    """Products of rows over their norms, which leave the loop: parts of them follow no norm."""
    x, y = (te.placeholder((rows, columns), name=name) for name in "xy")
    k, r, q = (te.reduce_axis((0, columns), name=name) for name in "krq")
    a = te.compute((rows,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="a")
    b = te.compute((rows,), lambda i: te.sum(y[i, r] * y[i, r], axis=r), name="b")
    return te.compute(
        (rows,),
        lambda i: te.sum(x[i, q] / te.sqrt(a[i]) * (y[i, q] / te.sqrt(b[i])), axis=q),
        name="out",
    )


def divergence(rows: int, columns: int) -> te.Tensor:
    """How far one softmax of rows is from another: a cascade, whose parts need not be even."""
    p, q = (nn.log_softmax(te.placeholder((rows, columns), name=name)) for name in "xy")
    k = te.reduce_axis((0, columns), name="k")
    return te.compute(
        (rows,), lambda i: te.sum(te.exp(p[i, k]) * (p[i, k] - q[i, k]), axis=k), name="out"
    )


def seconds(out: te.Tensor, decisions: dict[str, object]) -> float:
    """What the model tells of all kernels."""
    s = schedule_for(out, CUDA, decisions)
    return estimate(lower(s.plan, CUDA), gpu_of(s)).seconds


@pytest.mark.parametrize("make", [two_sums, cosine])
@pytest.mark.parametrize("rows,columns", [(8, 300000), (32, 40000), (88, 115712)])
def test_the_quicker_is_taken(
    make: Callable[[int, int], te.Tensor], rows: int, columns: int
) -> None:
    out = make(rows, columns)
    each = [seconds(out, {"out.together": choice}) for choice in (True, False)]
    assert seconds(out, {}) <= min(each) * NEAR
    if rows == 8:  # most of the device would be idle
        assert each[0] > 1.5 * each[1]


@pytest.mark.parametrize("columns", [115712, 131071])
def test_every_choice_of_parts_can_be_carried_out(columns: int) -> None:
    """Uneven parts were refused: the last is shorter, and its sum was not known to be positive."""
    out = divergence(88, columns)
    (parts,) = (k for k in schedule_for(out, CUDA).knobs if k.name == "out.parts")
    assert len(parts.choices) > 3
    for count in parts.choices:
        lower(schedule_for(out, CUDA, {"out.parts": count}).plan, CUDA, check=True)
