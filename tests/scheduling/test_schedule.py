"""create_schedule, looking up stages, knobs, copies."""

from __future__ import annotations

import pytest
from computations import chain, matmul

import tedsl as te


def test_stages_are_producers_first_and_outputs_as_given():
    m = matmul()
    s = te.create_schedule(m.D)
    assert [stage.name for stage in s.stages] == ["A", "B", "C", "bias", "D"]
    assert s.outputs == (m.D,)
    assert s[m.C].op is m.C.op
    assert [axis.name for axis in s[m.C].leaf_iter_vars] == ["i", "j", "k"]
    assert s[m.C.op] == s[m.C] == s["C"]


def test_stage_names_are_unique():
    A = te.placeholder((4,), name="A")
    first = te.compute((4,), lambda i: A[i] + 1.0, name="T")
    second = te.compute((4,), lambda i: first[i] + 1.0, name="T")
    s = te.create_schedule(second)
    assert [stage.name for stage in s.stages] == ["A", "T", "T_1"]
    assert s[first].name == "T"
    assert s[second].name == "T_1"


def test_axis_labels_are_unique():
    A = te.placeholder((4, 4), name="A")
    k = te.reduce_axis((0, 4), name="i")
    C = te.compute((4,), lambda i: te.sum(A[i, k], axis=k), name="C")
    s = te.create_schedule(C)
    assert s["C"].axis("i") is s["C"].op.axis[0]
    assert s["C"].axis("i_1") is s["C"].op.reduce_axis[0]


def test_all_outputs_of_an_operation():
    A = te.placeholder((4,), name="A")
    P, Q = te.compute((4,), lambda i: (A[i] + 1.0, A[i] * 2.0), name="P")
    assert te.create_schedule(P.op).outputs == (P, Q)


def test_deep_chains_do_not_recurse():
    x = te.placeholder((4,), name="x")
    for _ in range(1500):
        x = x + 1.0
    assert len(te.create_schedule(x).stages) == 1501


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda c: [], "no output is given(.|\n)*pass at least one tensor"),
        (lambda c: c.A, "A is an input: there is nothing to compute(.|\n)*te.compute returned"),
        (lambda c: [c.D, 3], "expected a tensor or an operation, got 3 of type int(.|\n)*pass the"),
    ],
)
def test_bad_outputs(outputs, message):
    with pytest.raises(te.ScheduleError, match=message):
        te.create_schedule(outputs(chain(4)))


def test_foreign_tensor():
    s = te.create_schedule(chain(4).D)
    other = te.placeholder((4,), name="other")
    with pytest.raises(
        te.ScheduleError,
        match=r"s\[...\]: other is not part of the schedule\n  stages  A, B, C, D\n"
        r"  called  test_schedule.py:\d+\n  do      pass a tensor that the outputs",
    ):
        s[other]
    with pytest.raises(te.ScheduleError, match="'X' is not part of the schedule"):
        s["X"]
    with pytest.raises(te.ScheduleError, match="3 of type int is not part of the schedule"):
        s.resolve(3, "s[...]", (__file__, 1))


def test_stage_of_another_schedule():
    c = chain(4)
    s, t = te.create_schedule(c.D), te.create_schedule(c.D)
    with pytest.raises(te.ScheduleError, match="stage D of another schedule is not part of"):
        s[c.C].compute_at(t[c.D], t[c.D].op.axis[0])


def test_copy_is_independent():
    c = chain(8)
    s = te.create_schedule(c.D)
    s[c.D].split(s[c.D].op.axis[0], 4)
    t = s.copy()
    t[c.D].vectorize(t[c.D].leaf_iter_vars[1])
    assert len(s.trace) == 1
    assert len(t.trace) == 2
    assert t.trace.steps[:1] == s.trace.steps


def test_unknown_axis_label():
    s = te.create_schedule(chain(8).D)
    with pytest.raises(te.ScheduleError, match=r"D has no axis 'q'\n  axes    i(.|\n)*listed"):
        s["D"].axis("q")


def test_knobs():
    c = chain(8)
    s = te.create_schedule(c.D, {"tile": [8, 4], "vector": 2})
    assert s.knob("tile", [(4, 4), (8, 4)]) == (8, 4)
    assert s.knob("vector", [1, 2, 4], default=4) == 2
    assert s.knob("free", [1, 2, 4], default=4) == 4
    assert s.knob("first", ["a", "b"]) == "a"
    assert [(k.name, k.chosen) for k in s.knobs] == [
        ("tile", (8, 4)),
        ("vector", 2),
        ("free", 4),
        ("first", "a"),
    ]
    assert s.knob("free", [1, 2, 4], default=4) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.knob("k", []), "the knob 'k' has no choices(.|\n)*at least one choice"),
        (
            lambda s: s.knob("k", [1, 2], default=3),
            "has the default 3\n  choices 1, 2(.|\n)*use one",
        ),
        (lambda s: s.knob("bad", [1, 2]), "knob 'bad' has the decision 7\n  choices 1, 2"),
        (
            lambda s: (s.knob("k", [1, 2]), s.knob("k", [1, 3])),
            "the knob 'k' was asked for before with other choices(.|\n)*another name",
        ),
    ],
)
def test_bad_knobs(call, message):
    with pytest.raises(te.ScheduleError, match=message):
        call(te.create_schedule(chain(8).D, {"bad": 7}))


def test_runtime_sizes():
    n = te.size_var("n")
    s = te.create_schedule(chain(n).D)
    assert s.size("n") is n
    with pytest.raises(te.ScheduleError, match=r"no size 'm'\n  sizes   n\n(.|\n)*sizes listed"):
        s.size("m")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: te.thread_axis("warp"), "unknown thread tag 'warp'(.|\n)*use one of these"),
        (
            lambda: te.thread_axis((2, 8), "threadIdx.x"),
            r"2 .. 8 of threadIdx.x(.|\n)*give \(0, 6\)",
        ),
        (
            lambda: te.program_id(3),
            "the grid has no dimension 3\n  allowed 0, 1, 2(.|\n)*fuse loops",
        ),
    ],
)
def test_bad_threads(make, message):
    with pytest.raises(te.ScheduleError, match=message):
        make()
