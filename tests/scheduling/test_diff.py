"""How two schedules differ."""

from __future__ import annotations

from dataclasses import fields

from computations import chain, matmul

import tedsl as te
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.diff import Change, Difference, StageChange, _Told


def test_equal_schedules_by_other_calls():
    m = matmul(30, 40, 20)
    s, t = te.create_schedule(m.D), te.create_schedule(m.D)
    i, j = s[m.D].op.axis
    io, ii = s[m.D].split(i, 4)
    s[m.D].split(j, 8)
    s[m.D].vectorize(ii)
    s[m.C].compute_at(s[m.D], io)
    local = t.cache_write(m.C, "local")
    t[local].unroll(t[local].op.axis[0])
    t.undo(2)
    t[m.D].split(j, 8)
    io, ii = t[m.D].split(i, 4)
    t[m.D].reorder(*reversed(t[m.D].leaf_iter_vars))
    t[m.D].reorder(*reversed(t[m.D].leaf_iter_vars))
    t[m.D].parallel(io)
    t[m.D].serial(io)
    t[m.D].vectorize(ii)
    t[m.C].compute_at(t[m.D], io)
    assert s.trace != t.trace
    assert not s.diff(t) and te.diff(t, s) == Difference() and str(s.diff(t)) == ""


def test_equal_definitions_made_twice():
    s, t = te.create_schedule(matmul(3, 4, 5).D), te.create_schedule(matmul(3, 4, 5).D)
    for each in (s, t):
        each.rfactor(each["C"], each["C"].op.reduce_axis[0])
    assert not te.diff(s, t)
    other = te.create_schedule(matmul(3, 4, 6).D)
    assert {change.stage for change in s.diff(other).stages} == {"A", "B", "C"}


def test_all_that_differs(golden):
    m = matmul(30, 40, 20)
    s, t = te.create_schedule(m.D), te.create_schedule(m.D)
    io, jo, ii, ji = s[m.D].tile(*s[m.D].op.axis, 4, 8)
    s[m.D].bind(s[m.D].fuse(io, jo), "blockIdx.x")
    s[m.D].vectorize(ji)
    s[m.C].compute_at(s[m.D], ii)
    s[m.D].launch(num_warps=8)
    t.cache_read(m.A, "shared", [m.C])
    t.cache_write(m.C, "local")
    t[m.C].compute_inline()
    golden(str(s.diff(t)))


def test_as_data():
    c = chain(8)
    s, t = te.create_schedule(c.D), te.create_schedule(c.D)
    t[c.D].unroll(t[c.D].op.axis[0])
    t[c.C].compute_inline()
    assert te.diff(s, t) == Difference(
        stages=(
            StageChange("C", (Change("place", "root", "inline"),)),
            StageChange("D", (Change("mark of i0", "-", "kind=unrolled"),)),
        )
    )
    local = t.cache_write(c.D, "local")
    found = s.diff(t)
    assert found.only_right == (t[local].name,) and not found.only_left
    assert t.diff(s).only_left == (t[local].name,)


def test_outputs():
    c = chain(8)
    s, t = te.create_schedule([c.C, c.D]), te.create_schedule([c.D, c.C])
    assert s.diff(t).whole == (Change("outputs", "C.v0, D.v0", "D.v0, C.v0"),)


def test_every_field_of_a_plan_is_told():
    """A field that a plan gains is compared without further ado; the others by these words."""
    s = te.create_schedule(chain(8).D)
    told = _Told(s.plan)
    shown = {what for what, _ in (*told.whole(), *told.stage(s.plan.stages[-1]))}
    known = {each.name for kind in (Plan, StagePlan) for each in fields(kind)}
    assert known - shown == {"stages", "retired", "name", "op", "leaf_axes", "marks", "placement"}
    assert {"computes", "loops", "place"} <= shown
