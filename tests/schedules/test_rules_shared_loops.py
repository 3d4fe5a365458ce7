"""What reads the same runs in one loop: folds of long rows, broadcasts, values with positions."""

from __future__ import annotations

import numpy as np
import pytest
from rule_cases import RuleCase, p
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor


def divergence(n: int, m: int) -> list[Tensor]:
    """Two folds that read two inputs and what is known of both of them."""
    x, y = p(n, m), p(n, m, name="y")
    a, b, c = (te.reduce_axis((0, m), name) for name in "abc")
    top = te.compute((n,), lambda i: te.max(x[i, a] + y[i, a], axis=a), name="top")
    one = te.compute((n,), lambda i: te.sum(x[i, b] * y[i, b] - top[i], axis=b), name="one")
    two = te.compute((n,), lambda i: te.sum(te.abs(x[i, c] - y[i, c]) * top[i], axis=c), name="two")
    return [te.compute((n,), lambda i: one[i] * two[i], name="both")]


def broadcast(first: bool) -> list[Tensor]:
    """Of a matrix alone, and of it and what is the same for all of its first axis."""
    x, y = p(6, 32, 64), p(32, 64, name="y")
    flat = te.compute((6, 32, 64), lambda i, j, k: te.abs(x[i, j, k]), name="flat")
    mixed = te.compute((6, 32, 64), lambda i, j, k: x[i, j, k] + y[j, k], name="mixed")
    return [flat, mixed] if first else [mixed, flat]


def permuted(other: str) -> list[Tensor]:
    """Of a tensor and one that is permuted; and of the first `other`wise."""
    x, y = p(35, 20, 24), p(20, 24, 35, name="y")
    z = p(35, 24, 20, name="z")
    mixed = te.compute((35, 20, 24), lambda i, j, k: x[i, j, k] - y[j, k, i], name="mixed")

    def second(*i: te.Axis) -> te.Expr:
        match other:
            case "so":
                return te.exp(x[i] * y[i[1], i[2], i[0]])
            case "in step":
                return te.abs(x[i])
            case _:
                return x[i] + z[i[0], i[2], i[1]]

    return [mixed, te.compute((35, 20, 24), second, name="other")]


def kernels(s: Schedule) -> list[str]:
    return [line.split()[1].rstrip(":") for line in str(s).splitlines() if line[:7] == "kernel "]


@pytest.mark.parametrize("shared", [True, False])
def test_folds_of_long_rows_share_a_loop(shared: bool) -> None:
    case = RuleCase("folds", lambda: divergence(300, 16384))
    s = schedule_for(case.make(), "cuda:sm_90", {"both.online": False, "two.beside": shared})
    assert kernels(s) == ["both"]
    assert ("with two" in str(s)) is shared
    source = te.build(s, target="cuda:sm_90").source
    assert source.count("tl.load(") == (4 if shared else 6)


@pytest.mark.parametrize("shared", [True, False])
def test_folds_in_one_loop_are_right(shared: bool) -> None:
    case = RuleCase("folds", lambda: divergence(3, 1500))
    decisions = {"both.whole_row": False, "both.online": False, "two.beside": shared}
    assert ("with two" in str(interpreted(case, "cuda", decisions))) is shared


@pytest.mark.parametrize("first", [True, False])
def test_what_is_broadcast_joins_a_loop_that_reads_the_same(first: bool) -> None:
    case = RuleCase("broadcast", lambda: broadcast(first))
    assert len(kernels(interpreted(case, "cuda"))) == 1
    compiled(case, "triton-interpret", {})


@pytest.mark.parametrize("length", [75, 128, 130])
def test_extremes_of_columns_are_combined_after_the_loop(length: int) -> None:
    x = p(length, 40)
    found = te.argmax(x, axis=0)
    s = schedule_for(found, "cuda:sm_90")
    assert "rfactor" in {step.primitive for step in s.trace.steps}
    run = te.build(te.replay(found, s.trace), "triton-interpret")
    data = np.round(np.random.default_rng(0).standard_normal((length, 40), np.float32) * 2)
    np.testing.assert_array_equal(run(data), data.argmax(axis=0))


@pytest.mark.parametrize(("other", "made"), [("so", 1), ("in step", 1), ("along another axis", 2)])
def test_what_reads_the_same_joins_tiles_that_transpose(other: str, made: int) -> None:
    """Two results of 80 MB that read a permuted tensor: 168 us predicted, and 112 of one loop."""
    case = RuleCase("permuted", lambda: permuted(other))
    assert len(kernels(interpreted(case, "cuda"))) == made
    compiled(case, "triton-interpret", {})
