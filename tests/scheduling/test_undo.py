"""Taking steps back."""

from __future__ import annotations

import pytest
from computations import chain, matmul
from refusals import refused

import tedsl as te


def state(s: te.Schedule) -> tuple[object, ...]:
    """All that can be seen of a schedule."""
    return s.plan, s.trace.to_json(), s.as_python(), str(s), s.knobs, s.outputs


def test_each_step_is_taken_back_exactly():
    m = matmul(12, 20, 16)
    s = te.create_schedule(m.D)
    seen = [state(s)]
    factor = s.knob("factor", [4, 8])
    seen.append(state(s))
    local = s.cache_write(m.C, "local")
    seen.append(state(s))
    io, _, _, _ = s[m.D].tile(*s[m.D].op.axis, factor, 5)
    s.knob("unused", [True, False])
    seen.append(state(s))
    s[m.C].compute_inline()
    seen.append(state(s))
    s[local].compute_at(s[m.D], io)
    for expected in reversed(seen[1:]):
        s.undo()
        assert state(s) == expected
    assert [knob.name for knob in s.knobs] == ["factor"]


def test_knobs_asked_for_after_the_step_are_taken_back():
    c = chain(8)
    s = te.create_schedule(c.D)
    s.knob("first", [1, 2])
    s[c.D].split(s[c.D].op.axis[0], 4)
    s.knob("second", [1, 2])
    s.undo()
    assert [knob.name for knob in s.knobs] == ["first"]


def test_several_steps():
    c = chain(8)
    s = te.create_schedule(c.D)
    before = state(s)
    outer, inner = s[c.D].split(s[c.D].op.axis[0], 4)
    s[c.D].parallel(outer)
    s[c.D].unroll(inner)
    s.undo(3)
    assert state(s) == before


def test_consumed_axes_are_loops_again():
    c = chain(8)
    s = te.create_schedule(c.D)
    (i,) = s[c.D].op.axis
    outer, _ = s[c.D].split(i, 4)
    s.undo()
    with refused(s, "D has no axis i0.outer", "the step that made it was taken back", "[i0]"):
        s[c.D].parallel(outer)
    s[c.D].parallel(i)


def test_stages_that_are_gone():
    c = chain(8)
    s = te.create_schedule(c.D)
    local = s.cache_write(c.D, "local")
    stage = s[local]
    axis = stage.op.axis[0]
    s.undo()
    with refused(s, "D.local is no stage of the schedule any more", "taken back", "fetch the"):
        stage.unroll(axis)
    with pytest.raises(te.ScheduleError, match=r"D.local is not part of the schedule"):
        repr(s[local].op)
    with pytest.raises(te.ScheduleError, match=r"stage D.local that is gone is not part"):
        repr(stage.leaf_iter_vars)
    with refused(s, "stage D.local that is gone is not part of the schedule"):
        s[c.C].compute_at(stage, axis)
    assert s[c.D].op is s[c.D.op].op


def test_a_copy_keeps_its_steps():
    c = chain(8)
    s = te.create_schedule(c.D)
    s[c.D].split(s[c.D].op.axis[0], 4)
    t = s.copy()
    s.undo()
    assert len(t.trace) == 1 and not len(s.trace)
    t.undo()
    assert str(t) == str(s)


@pytest.mark.parametrize("n", [0, -1, 2, True, "all"])
def test_more_steps_than_there_are(n):
    c = chain(8)
    s = te.create_schedule(c.D)
    s[c.D].split(s[c.D].op.axis[0], 4)
    with refused(s, "the schedule has 1 step to take back", "split(D.i0, factor=4)", "from 1 to 1"):
        s.undo(n)


def test_nothing_to_take_back():
    s = te.create_schedule(chain(8).D)
    with refused(s, "the schedule has 0 steps to take back", "call a primitive first"):
        s.undo()
