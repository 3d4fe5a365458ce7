"""Windows whose operand lies along another axis than the results."""

from __future__ import annotations

from typing import Any

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.expr.nodes import Axis, Expr
from tedsl.schedules import schedule_for
from tedsl.schedules.gpu import select
from tedsl.schedules.gpu.columns import columns
from tedsl.tensor.tensor import Tensor


def windows(channels: int, size: int, stride: int, taps: int = 5) -> Tensor:
    """Depthwise, of channels first, with the channels last."""
    side = stride * size + taps - 1
    x, w = c.p(channels, side, side), c.p(channels, taps, taps, name="w")
    q, r = te.reduce_axis((0, taps), name="q"), te.reduce_axis((0, taps), name="r")

    def window(i: Axis, j: Axis, k: Axis) -> Expr:
        product = x[k, i * stride + q, j * stride + r] * w[k, q, r]
        return te.sum(product, axis=[q, r])

    return te.compute((size, size, channels), window, name="windows")


def norm(found: Tensor) -> Tensor:
    """Less the largest of all channels; the channels first again."""
    size, _, channels = map(int, found.shape)
    k = te.reduce_axis((0, channels), name="k")
    top = te.compute((size, size), lambda i, j: te.max(found[i, j, k], axis=k), name="top")
    return te.compute(
        (channels, size, size), lambda k, i, j: found[i, j, k] - top[i, j], name="shifted"
    )


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("rule", ["fold_few", "as_operand", "in_both_orders"])
def test_each_rule_agrees(rule: str, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LEAST_WINDOWS", 0)
    asked: list[str] = []

    def quickest(*given: Any) -> object:
        asked.extend(each.__name__ for each in given[2])
        return getattr(columns, rule if rule in asked else "fold_few")

    monkeypatch.setattr(select, "quickest", quickest)
    found = windows(6, 9, stride, 3)
    for output in (found, te.nn.relu(found), norm(found)):
        interpreted(RuleCase("windows", lambda output=output: [output]), "cuda")
    compiled(RuleCase("windows", lambda: [found]), "triton-interpret", {})
    assert ("as_operand" in asked) is (stride > 1)
    assert "in_both_orders" in asked


def lanes(s: te.Schedule) -> str:
    """The innermost axis of the windows while they are summed."""
    return s["windows.local"].op.axis[-1].name


@pytest.mark.parametrize(
    ("channels", "size", "stride", "last"), [(30, 1444, 2, "l0"), (768, 28, 2, "l0")]
)
def test_the_quickest_is_taken(channels: int, size: int, stride: int, last: str) -> None:
    """7.2 ms of channels last in float32 [1, 30, 3840, 2893] on an H200; of these, as the results
    lie, in tiles of both, and along the operand: 3604, 1641 and 1087 us; 53, 32 and 14 us."""
    s = schedule_for(windows(channels, size, stride), "cuda:sm_90")
    assert lanes(s) == last


def test_results_along_the_operand_have_one_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        select, "quickest", lambda *given: asked.append(len(given[2])) or given[2][0]
    )
    x, q = c.p(514, 64, 96), te.reduce_axis((0, 3), name="q")
    schedule_for(
        te.compute((512, 64, 96), lambda i, j, k: te.sum(x[i + q, j, k], axis=q)), "cuda:sm_90"
    )
    assert set(asked) == {1}
