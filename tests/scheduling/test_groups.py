"""Groups, tag scopes and TVM's `te.schedule`: bounds by axis, inlining by access pattern."""

from __future__ import annotations

from typing import Any

import pytest
from computations import chain, matmul
from lowering import agrees
from refusals import refused
from replays import replays

import tedsl as te


def test_group_moves_together(golden):
    A = te.placeholder((16, 8), name="A")
    B = te.compute((16, 8), lambda i, j: A[i, j] + 1, name="B")
    C = te.compute((16, 8), lambda i, j: B[i, j] * 2, name="C")
    D = te.compute((16, 8), lambda i, j: C[i, j] - B[i, j], name="D")
    E = te.compute((16, 8), lambda i, j: D[i, j] + D[15 - i, j], name="E")
    s = te.create_schedule(E)
    group = s.create_group(outputs=D, inputs=A)
    assert [stage.name for stage in group.members] == ["B", "C", "D"]
    group.compute_at(s[E], s[E].op.axis[0])
    assert [step.stage for step in s.trace.steps] == ["D", "C", "B"]
    golden(str(s))
    assert agrees(s, targets=("cpu",))
    assert replays(s, E)
    group.compute_root()
    assert all(stage.plan.placement.at_root for stage in s.stages)


def test_members_of_groups():
    c = chain(16)
    s = te.create_schedule(c.D)

    def names(*args: Any, **kwargs: Any) -> list[str]:
        return [stage.name for stage in s.create_group(*args, **kwargs).members]

    assert names(c.D, c.B) == ["C", "D"]
    assert names(c.D, c.B, include_inputs=True) == ["B", "C", "D"]
    assert names([c.C]) == ["B", "C"]
    assert names([c.C], [c.A], include_inputs=True) == ["B", "C"]
    with refused(s, "no stage lies between D and B", "stages  A, B, C, D"):
        s.create_group(c.B, c.D)


def test_a_refused_group_moves_nothing():
    c = chain(16)
    s = te.create_schedule(c.D)
    group = s.create_group([c.C, c.B], [c.A])
    (i,) = s[c.D].op.axis
    s[c.D].vectorize(i)
    with refused(s, "compute_at(group [B, C], at=D.i0): D.i0 is vectorized", "legal   root"):
        group.compute_at(s[c.D], i)
    outputs = s.create_group(c.D, c.C)
    with refused(s, "D is an output of the schedule"):
        outputs.compute_at(s[c.D], i)


def test_a_group_moves_outward_too():
    """Inward the readers go first; outward what they read: one way round is not enough."""
    c = chain(16, 4)
    s = te.create_schedule(te.compute((16, 4), lambda i, j: c.D[i, j] * 2, name="E"))
    group = s.create_group(c.D, c.A)
    outer, inner = s["E"].op.axis
    group.compute_at("E", inner)
    group.compute_at("E", outer)
    group.compute_at("E", inner)
    assert [s[x].plan.placement.axis for x in ("B", "C", "D")] == [inner] * 3
    assert replays(s, s.outputs[0])
    assert agrees(s, targets=("cpu",))
    group.compute_root()
    assert all(stage.plan.placement.at_root for stage in s.stages)


def test_members_inside_members_stay():
    c = chain(16, 4)
    s = te.create_schedule(c.D)
    s2 = te.create_schedule(te.compute((16, 4), lambda i, j: c.D[i, j] * 2, name="E"))
    s[c.C].compute_inline()
    group = s2.create_group(c.D, c.A)
    s2[c.C].compute_at(s2[c.D], s2[c.D].op.axis[1])
    group.compute_at("E", s2["E"].op.axis[0])
    assert s2[c.C].plan.placement.host == "D"
    assert s2[c.B].plan.placement.host == "E"
    assert agrees(s2, targets=("cpu",))


def test_normalize():
    s = te.create_schedule(chain(16).D)
    assert s.normalize() is s


def test_infer_bound():
    m = matmul(64, 48, 32)
    s = te.create_schedule(m.D)
    io, _jo, _ii, ji = s[m.D].tile(*s[m.D].op.axis, 16, 8)
    s[m.C].compute_at(s[m.D], _jo)
    bounds = te.schedule.InferBound(s)
    i, j = s[m.C].op.axis
    (k,) = s[m.C].op.reduce_axis
    assert [str(bounds[a].extent) for a in (io, ji, i, j, k)] == ["4", "8", "16", "8", "32"]
    assert str(bounds[i].min) == "i.outer * 16"
    assert str(bounds[j].min) == "j.outer * 8"


def test_infer_bound_of_shared_axes():
    X = te.placeholder((4, 9), name="X")
    k = te.reduce_axis((2, 9), name="k")
    M = te.compute((4,), lambda i: te.max(X[i, k], axis=k), name="M")
    S = te.compute((4,), lambda i: te.sum(X[i, k] - M[i], axis=k), name="S")
    bounds = te.schedule.InferBound(te.create_schedule(S))
    assert (str(bounds[k].min), str(bounds[k].extent)) == ("2", "7")


def inlined(s: te.Schedule) -> list[str]:
    return [stage.name for stage in s.stages if stage.plan.placement.inlined]


def test_inlining_by_access_pattern():
    A = te.placeholder((16, 8), name="A")
    row = te.placeholder((8,), name="row")
    B = te.compute((16, 8), lambda i, j: A[i, j] + 1, name="B")
    C = te.compute((16, 8), lambda i, j: B[i, j] * row[j], name="C")
    D = te.compute((8, 16), lambda i, j: C[j, i], name="D")
    k = te.reduce_axis((0, 16), name="k")
    E = te.compute((8,), lambda i: te.sum(D[i, k], axis=k), name="E")
    F = te.compute((8,), lambda i: E[i] + 1, name="F")
    passes = te.schedule
    for run, names in (
        (passes.AutoInlineElemWise, ["B"]),
        (passes.AutoInlineBroadcast, ["B", "C"]),
        (passes.AutoInlineInjective, ["B", "C", "D"]),
    ):
        s = te.create_schedule(F)
        run(s)
        assert inlined(s) == names
        assert agrees(s)
        assert replays(s, F)
    s = te.create_schedule([F, B])
    passes.AutoInlineInjective(s)
    assert inlined(s) == ["C", "D"]


def test_a_group_of_which_a_stage_is_gone():
    A = te.placeholder((4, 3), name="A")
    B = te.compute((4, 3), lambda i, j: A[i, j] * 2.0, name="B")
    C = te.compute((4, 3), lambda i, j: B[i, j] + 1.0, name="C")
    s = te.create_schedule(C)
    s.cache_write(B, "local")
    group = s.create_group(B, A)
    s.undo()
    for move in (group.compute_root, lambda: group.compute_at(s[C], s[C].op.axis[0])):
        with pytest.raises(te.ScheduleError, match=r"'B.local' is not part of the schedule"):
            move()


def test_tag_scope():
    A = te.placeholder((4,), name="A")
    with te.tag_scope("outer"):
        B = te.compute((4,), lambda i: A[i] + 1, name="B")
        with te.tag_scope(tag="inner"):
            C = B * 2
        D = te.compute((4,), lambda i: C[i], name="D", tag="own")

    @te.tag_scope(tag="function")
    def f(x: te.Tensor) -> te.Tensor:
        return x + 1.0

    tags = [t.op.tag for t in (B, C, D, f(A), A + 1.0)]  # pyright: ignore[reportAttributeAccessIssue]
    assert tags == ["outer", "inner", "own", "function", "elemwise"]
