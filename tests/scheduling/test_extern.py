"""Externs in schedules: at root, whole, and around them everything as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from externs import between, one, sort_rows
from lowering import agrees

import tedsl as te
from tedsl.errors import ScheduleError

N = te.size_var("n")


def axis(s: te.Schedule, name: str, place: int = 0) -> te.Axis:
    return s[name].op.axis[place]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s["E"].compute_inline(),
        lambda s: s["E"].compute_at(s["C"], axis(s, "C")),
        lambda s: s["E"].split(axis(s, "C"), 4),
        lambda s: s["E"].vectorize(axis(s, "C")),
        lambda s: s["E"].parallel(axis(s, "C")),
        lambda s: s["E"].reorder(axis(s, "C")),
        lambda s: s["E"].fuse(),
        lambda s: s["E"].set_scope("local"),
        lambda s: s["E"].launch(num_warps=4),
        lambda s: s["E"].compute_root(),
        lambda s: s["E"].transform_layout(lambda i, j: (j, i)),
        lambda s: s["B"].compute_at(s["E"], axis(s, "C")),
    ],
)
def test_an_extern_has_no_loops(call: Callable[[te.Schedule], Any]) -> None:
    s = te.create_schedule(between(sort_rows, N))
    before = str(s)
    with pytest.raises(ScheduleError, match=r"E is an extern|the extern E reads B") as caught:
        call(s)
    assert caught.value.hint and str(s) == before and not s.trace.steps


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s["B"].compute_inline(),
        lambda s: s["B"].compute_at(s["C"], axis(s, "C")),
        lambda s: s["B"].transform_layout(lambda i, j: (j, i)),
        lambda s: s.set_precision(s["B"].op.outputs[0], "float16"),
        lambda s: s["C"].reverse_compute_inline(),
        lambda s: s["C"].reverse_compute_at(s["B"], axis(s, "B")),
        lambda s: s.cache_read(s["B"].op.outputs[0], "local", [s["E"].op.outputs[0]]),
        lambda s: s.cache_write(s["E"].op.outputs[0], "local"),
        lambda s: s.rfactor(s["E"].op.outputs[0], axis(s, "C")),
    ],
)
def test_what_it_reads_stays_whole(call: Callable[[te.Schedule], Any]) -> None:
    s = te.create_schedule(between(sort_rows, N))
    before = str(s)
    with pytest.raises(ScheduleError, match=r"\bE\b") as caught:
        call(s)
    assert caught.value.hint and str(s) == before and not s.trace.steps


def test_the_advice() -> None:
    s = te.create_schedule(between(sort_rows, N))
    with pytest.raises(ScheduleError, match="the extern E reads B") as caught:
        s["B"].compute_inline()
    facts = dict(caught.value.facts)
    assert facts["readers"] == "the extern E; C with loops [i, j]"
    assert 's.cache_read(B, "global", readers)' in caught.value.hint


@pytest.mark.cpu
def test_rewrites_around_it() -> None:
    s = te.create_schedule(between(sort_rows, N))
    b, e = (s[name].op.outputs[0] for name in ("B", "E"))
    cached = s.cache_read(e, "local", [s["C"]])
    copy = s.cache_write(b, "local")
    s[cached].compute_at(s["C"], axis(s, "C"))
    s[copy].compute_at(s["B"], axis(s, "B"))
    assert agrees(s, {N: 5})
    again = te.replay(between(sort_rows, N), s.trace)
    assert str(again) == str(s)
    s.undo(4)
    assert agrees(s, {N: 3})


def test_the_trace_as_text() -> None:
    c = between(sort_rows, N)
    s = te.create_schedule(c)
    s.cache_read(s["E"].op.outputs[0], "global", [s["C"]])
    s["E.global"].split(s["E.global"].op.axis[0], 4)
    scope: dict[str, Any] = {"te": te, "C": c}
    exec(s.as_python(), scope)
    assert scope["s"].trace == s.trace and str(scope["s"]) == str(s)
    assert te.replay(c, type(s.trace).from_json(s.trace.to_json())).trace == s.trace


@pytest.mark.cpu
def test_inlined_and_shared_axes_below_it() -> None:
    a = te.placeholder((4, 6), name="A")
    k = te.reduce_axis((0, 6), name="k")
    first = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="P")
    second = te.compute((4,), lambda i: te.max(a[i, k], axis=k), name="Q")
    plain = te.compute((4, 6), lambda i, j: a[i, j] * 3, name="I")
    whole = te.compute((4, 6), lambda i, j: plain[i, j] + first[i] * second[i], name="W")
    e = one(te.extern((4, 6), [whole], sort_rows, name="E"))
    s = te.create_schedule([e, second])
    s["I"].compute_inline()
    assert agrees(s)


def test_it_is_shown() -> None:
    s = te.create_schedule(between(sort_rows, N))
    assert "extern E: float32[n, 5] calls sort_rows(B)" in str(s)
    assert s["E"].leaf_iter_vars == ()


def test_steps_of_a_scan_are_not_for_externs() -> None:
    x, state = te.placeholder((6, 3), name="A"), te.placeholder((6, 3), name="S")
    first = te.compute((1, 3), lambda t, i: x[0, i], name="first")
    update = te.compute((6, 3), lambda t, i: state[0, i] + x[t, i], name="U")
    total = one(te.scan(first, update, state, name="total"))
    e = one(te.extern((6, 3), [update], sort_rows, name="E"))
    d = te.compute((6, 3), lambda i, j: total[i, j] + e[i, j], name="D")
    with pytest.raises(ScheduleError, match="U belongs to the steps of the scan total"):
        te.create_schedule(d)
