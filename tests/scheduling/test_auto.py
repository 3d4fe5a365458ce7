"""`te.auto` as an argument of primitives: what is offered, what is taken, how it is named."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import rule_cases as c

import tedsl as te
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import Candidate
from tedsl.errors import ScheduleError


def product(m: int = 48, n: int = 40, k: int = 24) -> tuple[te.Tensor, te.Tensor]:
    a, b = c.p(m, k, name="A"), c.p(k, n, name="B")
    r = te.reduce_axis((0, k), name="k")
    made = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return made, te.compute((m, n), lambda i, j: made[i, j] + 1.0, name="D")


def blocked(s: te.Schedule) -> None:
    """A user's schedule with everything open."""
    stage, fold = s["D"], s["C"]
    io, jo, _, ji = stage.tile(*stage.op.axis, te.auto, te.auto)
    stage.reorder(io, jo, te.auto)
    stage.vectorize(ji)
    fold.compute_at(stage, te.auto)
    outer, _ = fold.split(fold.op.reduce_axis[0], factor=te.auto)
    fold.reorder(te.auto)
    fold.pipeline(outer, num_stages=te.auto)
    fold.unroll(te.auto)
    stage.parallel(te.auto)


def knobs(s: te.Schedule) -> dict[str, tuple[Any, ...]]:
    return {knob.name: knob.choices for knob in s.knobs}


def test_defaults_build() -> None:
    _, out = product()
    s = te.create_schedule(out)
    blocked(s)
    text = s.as_python()
    assert "auto" not in text
    kernel = te.build(s, target="cpu", cache=False)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((48, 24), (24, 40)))
    np.testing.assert_allclose(kernel(a, b), a @ b + 1, rtol=1e-4, atol=1e-5)
    assert str(te.replay(out, s.trace)) == str(s)


def test_choices_follow_the_loop_and_the_target() -> None:
    _, out = product()
    s = te.create_schedule(out, target="cuda")
    s["C"].split(s["C"].op.reduce_axis[0], factor=te.auto)
    s["D"].split(s["D"].op.axis[1], nparts=te.auto)
    s["D"].launch(num_warps=te.auto)
    assert knobs(s) == {
        "C.split.k.factor": (1, 2, 4, 8, 16, 32),
        "D.split.j.nparts": (1, 2, 4, 8, 16, 32, 64),
        "D.launch.num_warps": (1, 2, 4, 8, 16, 32),
    }
    s = te.create_schedule(out, target="cpu")
    s["C"].split(s["C"].op.reduce_axis[0], factor=te.auto)
    s["C"].pipeline(s["C"].leaf_iter_vars[2], num_stages=te.auto)
    s["D"].launch(num_warps=te.auto)
    assert knobs(s) == {"C.split.k.factor": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}


def test_decisions_are_taken_and_stored_as_values() -> None:
    _, out = product()
    s = te.create_schedule(
        out, {"C.split.k.factor": 6, "C.reorder": ["j", "k.inner", "k.outer", "i"]}
    )
    s["C"].split(s["C"].op.reduce_axis[0], factor=te.auto)
    s["C"].reorder(te.auto)
    assert [axis.name for axis in s["C"].leaf_iter_vars] == ["j", "k.inner", "k.outer", "i"]
    assert "factor=6" in s.as_python()


def test_only_legal_places_are_offered() -> None:
    made, out = product()
    s = te.create_schedule(out)
    s[out].vectorize(out.op.axis[1])
    s[made].compute_at(s[out], te.auto)
    assert knobs(s) == {}  # one place is left
    with pytest.raises(ScheduleError, match="no loop of C is a legal place for D"):
        s[out].compute_at(s[made], te.auto)


def test_what_changes_the_result_is_not_chosen() -> None:
    _, out = product()
    s = te.create_schedule(out)
    before = str(s)
    with pytest.raises(ScheduleError, match="dot does not choose precision by itself"):
        s["C"].dot(s["C"].op.reduce_axis[0], precision=te.auto)
    assert str(s) == before


def test_errors_name_the_users_line() -> None:
    _, out = product()
    s = te.create_schedule(out)
    with pytest.raises(ScheduleError, match=r"called  test_auto\.py"):
        s["C"].split(s["D"].op.axis[0], factor=te.auto)


def test_a_function_with_everything_open_is_a_space() -> None:
    _, out = product()
    problem = Problem([out], "cpu", blocked)
    space, rng = problem.space(), random.Random(0)
    assert len(space.default().knobs) >= 7
    found = [space.sample(rng) for _ in range(60)]
    legal = [x for x in found if isinstance(x, Candidate)]
    assert len(legal) == len(found)
    assert len({x.identity for x in legal}) > 55
