"""Stages behind a rewrite are made when they are looked at, and are then what they would have been
made to at once."""

from __future__ import annotations

from typing import Any

import pytest

import tedsl as te
from tedsl.scheduling.plan.following import Row
from tedsl.scheduling.plan.links import places, tensors_read


def chain(n: int) -> tuple[Any, list[Any]]:
    """Products one behind the other, and their second operands."""
    y, weights = te.placeholder((8, 8), name="x"), list[Any]()
    for k in range(n):
        w = te.placeholder((8, 8), name=f"w{k}")
        y = te.nn.matmul(y, w, name=f"m{k}")
        weights.append(w)
    return y, weights


def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that rows make from here on."""
    now, found = Row._now, list[str]()

    def counted(row: Row, stage: Any) -> Any:
        found.append(stage.name)
        return now(row, stage)

    monkeypatch.setattr(Row, "_now", counted)
    return found


def consistent(plan: Any) -> bool:
    """True when all stages read tensors of the plan, and are found by their operations."""
    known = {stage.op: stage.name for stage in plan.stages}
    return all(
        tensor.op in known and plan.stage_of(tensor.op).name == known[tensor.op]
        for stage in plan.stages
        for tensor in tensors_read(stage.op)
    )


def test_copies_touch_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    for n in (10, 40):
        output, weights = chain(n)
        s = te.create_schedule(output)
        found = made(monkeypatch)
        for k, w in enumerate(weights[:8]):
            copy = s.cache_read(w, "local", [s[f"m{k}"]])
            s[copy].compute_at(s[f"m{k}"], s[f"m{k}"].op.axis[0])
        counts.append(len(found))
    assert counts[0] == counts[1]


def test_what_follows_is_made_once_and_found_by_its_operation() -> None:
    output, weights = chain(6)
    s = te.create_schedule(output)
    before = s.plan
    for k in (0, 3, 1):
        s.cache_read(weights[k], "local", [s[f"m{k}"]])
    stage = s.plan.stage("m4")
    assert stage is s.plan.stage("m4") is s.plan.stage_at(places(s.plan).by_name["m4"])
    assert s[stage.op].name == "m4"
    assert s.plan.stage_of(stage.op) is stage
    assert s[before.stage("m4").op].name == "m4"
    assert consistent(s.plan) and consistent(before)
    assert s.plan.outputs[0].op is s.plan.stages[-1].op is s[output].op


def test_copies_of_a_schedule_go_their_own_ways() -> None:
    output, weights = chain(5)
    s = te.create_schedule(output)
    s.cache_read(weights[0], "local", [s["m0"]])
    other = s.copy()
    s.cache_read(weights[1], "local", [s["m1"]])
    other.cache_read(weights[2], "local", [other["m2"]])
    other["m4"].split(other["m4"].op.axis[0], 2)
    assert consistent(s.plan) and consistent(other.plan)
    assert {"w1.local"} == {stage.name for stage in s.stages} - {
        stage.name for stage in other.stages
    }
    s.undo()
    assert consistent(s.plan) and "w1.local" not in {stage.name for stage in s.stages}


def test_other_rewrites_behind_a_copy_see_what_it_made() -> None:
    output, weights = chain(5)
    s = te.create_schedule(output)
    s.cache_read(weights[0], "local", [s["m0"]])
    s.cache_write(s["m2"].op.output(), "local")
    s.cache_read(weights[1], "local", [s["m1"]])
    part = s.rfactor(s["m3"].op.output(), s["m3"].op.reduce_axis[0])
    assert part is not None and consistent(s.plan)
    assert te.lower(s, "cpu").funcs


def test_a_stage_that_reads_two_copies_follows_both() -> None:
    x = te.placeholder((8,), name="x")
    a = te.compute((8,), lambda i: x[i] + 1.0, name="a")
    b = te.compute((8,), lambda i: x[i] * a[i], name="b")
    c = te.compute((8,), lambda i: a[i] + b[i], name="c")
    s = te.create_schedule(c)
    copy = s.cache_read(x, "local", [s["a"], s["b"]])
    assert [t.op.name for t in tensors_read(s["b"].op)] == [copy.op.name, "a"]
    assert consistent(s.plan)


def test_what_is_far_behind_is_made_without_a_deep_stack() -> None:
    output, weights = chain(400)
    s = te.create_schedule(output)
    s.cache_read(weights[0], "local", [s["m0"]])
    assert s[output].name == "m399" and s["m399"].op is s[output].op is s.outputs[0].op
    s.cache_read(weights[1], "local", [s["m1"]])
    assert consistent(s.plan) and s[output].op is s.outputs[0].op
