"""Chains of reductions over several axes, which are fused into the one that the chain shares."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lowering import agrees
from online_cases import axis
from refusals import refused

import tedsl as te
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace
from tedsl.tensor.tensor import Tensor

N, C, H, W = 3, 2, 5, 7


def statistics(where: bool = False) -> tuple[Tensor, Tensor]:
    """The mean and the squared deviations of channels, of which some elements may be left out."""
    x = te.placeholder((N, C, H, W), name="x")

    def fold(name: str, value: Any) -> Tensor:
        n, h, w = axis(N, f"{name}n"), axis(H, f"{name}h"), axis(W, f"{name}w")
        inside = (h + w > 2) if where else None
        return te.compute(
            (C,), lambda c: te.sum(value(x[n, c, h, w], c), axis=[n, h, w], where=inside), name=name
        )

    total = fold("total", lambda value, _: value)
    mean = te.compute((C,), lambda c: total[c] / float(N * H * W), name="mean")
    return total, fold("squares", lambda value, c: (value - mean[c]) * (value - mean[c]))


def fused(s: te.Schedule, name: str, factor: int) -> Any:
    stage = s[name]
    return stage.split(stage.fuse(*stage.op.reduce_axis), factor=factor)[0]


@pytest.mark.parametrize("where", [False, True])
@pytest.mark.parametrize("parts", [False, True])
def test_fused_axes_are_one(where: bool, parts: bool) -> None:
    """Planes are crossed inside a piece, at the end of one, and the last piece is short."""
    outputs = [*statistics(where)]
    for factor in (1, 9, 35, 64):
        s = te.create_schedule(outputs)
        s["mean"].compute_inline()
        loop = fused(s, "squares", factor)
        if parts:
            s.split_online(outputs[1], loop)
        else:
            s["squares"].online(loop)
        assert all(len(s[name].op.reduce_axis) == 1 for name in ("total", "squares"))
        assert agrees(s)
        again = replay(outputs, Trace.from_json(s.trace.to_json()))
        assert str(again) == str(s)


def test_each_member_has_the_same_axes_in_the_same_order() -> None:
    x = te.placeholder((4, 6), name="x")
    a, b, c, d = axis(4, "a"), axis(6, "b"), axis(4, "c"), axis(6, "d")
    most = te.compute((), lambda: te.max(x[a, b], axis=[b, a]), name="most")
    total = te.compute((), lambda: te.sum(te.exp(x[c, d] - most[()]), axis=[c, d]), name="total")
    s = te.create_schedule(total)
    loop = fused(s, "total", 4)
    with refused(s, "most"):
        s["total"].online(loop)


@pytest.mark.parametrize("parts", [False, True])
def test_fused_in_another_order(parts: bool) -> None:
    """The others of the chain then have theirs in that order."""
    outputs = [*statistics(where=True)]
    for order in ((1, 0, 2), (2, 1, 0)):
        s = te.create_schedule(outputs)
        s["mean"].compute_inline()
        axes = [s["squares"].op.reduce_axis[n] for n in order]
        s["squares"].reorder(*axes)
        loop, piece = s["squares"].split(s["squares"].fuse(*axes), factor=9)
        if parts:
            s.split_online(outputs[1], piece)
        else:
            s["squares"].online(loop)
        names = ["total.rf", "squares.rf"] if parts else ["total", "squares"]
        found = [re.search(rf"{name}[^ ]*\[.*x\[(.*?)\]", str(s)) for name in names]
        read = {each and re.sub("total|squares", "", each[1]) for each in found}
        assert len(read) == 1 and None not in read
        assert agrees(s)


def test_fused_in_another_order_than_counts() -> None:
    """Others whose order counts keep theirs."""
    x = te.placeholder((4, 6), name="x")
    a, b, c, d = axis(4, "a"), axis(6, "b"), axis(4, "c"), axis(6, "d")
    last = te.comm_reducer(lambda p, q: q, lambda dtype: te.const(0, dtype), name="last")
    end = te.compute((), lambda: last(x[a, b], axis=[a, b]), name="end")
    total = te.compute((), lambda: te.sum(x[c, d] * end[()], axis=[c, d]), name="total")
    s = te.create_schedule(total)
    c, d = s["total"].op.reduce_axis
    s["total"].reorder(d, c)
    s["total"].online(s["total"].fuse(d, c))
    assert agrees(s)


def test_proof_of_several_axes() -> None:
    total, squares = statistics()
    s = te.create_schedule([total, squares])
    assert "squares" in s["squares"].proof()
