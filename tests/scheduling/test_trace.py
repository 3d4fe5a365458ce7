"""The trace: JSON, Python text, replay."""

from __future__ import annotations

from typing import Any

import pytest
from computations import argmax, chain, matmul

import tedsl as te
from tedsl.ir.printer import print_module
from tedsl.lower.pipeline import lower
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import AxisRef, Step, Trace
from tedsl.target import Target


def everything(n: Any = None) -> tuple[te.Schedule, te.Tensor]:
    """A schedule in which every primitive occurs."""
    size = te.size_var("n") if n is None else n
    m = matmul(size, 96, 100)
    E = te.compute((size, 96), lambda i, j: te.exp(m.D[i, j]), name="E")
    F = te.compute((size, 96), lambda i, j: E[i, j] + m.D[i, j], name="F")
    s = te.create_schedule(F)
    shared = s.cache_read(m.A, "shared", [m.C])
    local = s.cache_write(m.C, "local")
    _ko, ki = s[local].split(s[local].op.reduce_axis[0], factor=8)
    partial = s.rfactor(local, ki, factor_axis=-1)
    s[m.C].compute_inline()
    s[m.C].compute_root()
    s[m.C].compute_inline()
    s[E].compute_inline()
    i, j = s[F].op.axis
    io, jo, ii, ji = s[F].tile(i, j, 16, 32)
    part, io = s[F].split(io, nparts=size // 4 + 1)
    block = s[F].fuse(part, io, jo)
    s[F].bind(block, "blockIdx.x")
    s[F].vectorize(ji)
    s[F].unroll(ii)
    s[F].serial(ii)
    s[F].pragma(ii, "unroll")
    s[m.D].compute_at(s[F], block)
    s[local].compute_at(s[m.D], s[m.D].op.axis[0])
    s[partial].compute_at(s[m.D], s[m.D].op.axis[0])
    s[shared].compute_at(s[F], block)
    s[shared].set_scope("local")
    s[m.D].parallel(s[m.D].op.axis[0])
    s[partial].pipeline(s[partial].op.reduce_axis[0], 2)
    s[partial].dot(s[partial].op.reduce_axis[0], precision="tf32")
    s[partial].reorder(s[partial].op.reduce_axis[0], s[partial].op.axis[0])
    s[F].launch(num_warps=8, num_stages=2)
    return s, F


def test_as_python(golden):
    s, _ = everything()
    golden(s.as_python())


def test_python_text_makes_the_same_schedule():
    s, F = everything()
    names: dict[str, object] = {"te": te, "F": F}
    exec(s.as_python(), names)
    again = names["s"]
    assert isinstance(again, te.Schedule)
    assert again.trace == s.trace
    assert again.as_python() == s.as_python()
    assert str(again) == str(s)


def test_python_text_of_several_outputs():
    index, value = argmax()
    s = te.create_schedule([index, value])
    s.cache_write([index, value], "local")
    s.rfactor(s["M.local"], s["M.local"].op.reduce_axis[0])
    s.cache_read(s["M.local.rf"].op.outputs[1], "local", ["M.local"])
    assert s.as_python("a", "b").startswith("s = te.create_schedule([a, b])\n")
    names: dict[str, object] = {"te": te, "M_v0": index, "M_v1": value}
    exec(s.as_python(), names)
    assert getattr(names["s"], "trace", None) == s.trace


def test_every_primitive_is_replayed():
    s, F = everything()
    trace = Trace.from_json(s.trace.to_json())
    assert trace == s.trace
    again = replay(F, trace)
    assert again.trace == s.trace
    assert str(again) == str(s)


def test_replay_on_another_shape():
    s, _ = everything(256)
    _, other = everything(100)
    t = replay(other, s.trace)
    assert [step.primitive for step in t.trace.steps] == [p.primitive for p in s.trace.steps]


def test_sites_are_kept_but_do_not_count():
    c = chain(8)
    s, t = te.create_schedule(c.D), te.create_schedule(c.D)
    s[c.D].split(s[c.D].op.axis[0], 4)
    t[c.D].split(t[c.D].op.axis[0], 4)
    assert s.trace.steps[0].site.startswith("test_trace.py:")
    assert s.trace.steps[0].site != t.trace.steps[0].site
    assert s.trace == t.trace
    assert s.trace.steps[0] == Step(
        "split", "D", (AxisRef("D", "i0"),), (("factor", 4),), ("i0.outer", "i0.inner")
    )


def test_names_that_are_no_identifiers():
    A = te.placeholder((8, 8), name="A")
    B = te.compute((8, 8), lambda s, te_: A[s, te_] + 1.0, name="in put")
    s = te.create_schedule(B)
    i, j = s[B].op.axis
    s[B].fuse(i, j)
    names: dict[str, object] = {"te": te, "in_put": B}
    exec(s.as_python(), names)
    assert getattr(names["s"], "trace", None) == s.trace


def test_replay_says_which_step_does_not_apply():
    s, _ = everything(256)
    with pytest.raises(
        te.ScheduleError,
        match=r"step 1 of the trace, cache_read\(A, \"shared\", \[C\]\): does not apply: "
        r"C does not read A(.|\n)*name stages that read A",
    ):
        replay(chain(64).D, s.trace)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Step("split", "Q", (AxisRef("Q", "i"),)), "'Q' is not part of the schedule"),
        (Step("split", "D", (AxisRef("D", "z"),)), "D has no axis 'z'(.|\n)*axes listed"),
        (Step("explode", "D"), "unknown primitive 'explode'(.|\n)*another version"),
        (Step("copy", ""), "unknown primitive 'copy'"),
        (Step("unroll", "D"), "it has other arguments than unroll: missing(.|\n)*another version"),
        (
            Step("split", "D", (AxisRef("D", "i0"),), (("factor", 2),), ("a", "b")),
            "it made i0.outer, i0.inner where the trace has a, b(.|\n)*names of the trace",
        ),
    ],
)
def test_replay_of_bad_steps(step, message):
    with pytest.raises(te.ScheduleError, match=f"step 1 of the trace, (.|\n)*{message}"):
        replay(chain(64).D, Trace((step,)))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 0, "steps": []}', '{"version": 1, "steps": [{"primitive": 1}]}',
     '{"version": 1, "steps": [{"primitive": "split", "stage": "D", "args": [{"x": 1}], '
     '"kwargs": {}, "results": []}]}'],
)  # fmt: skip
def test_bad_json(text):
    with pytest.raises(te.ScheduleError, match=r"the text is no trace(.|\n)*s.trace.to_json"):
        Trace.from_json(text)


def test_a_missing_size():
    n = te.size_var("n")
    s = te.create_schedule(chain(n).D)
    s["D"].split(s["D"].op.axis[0], nparts=n + 1)
    with pytest.raises(
        te.ScheduleError, match=r"no size 'n'\n  sizes   none\n(.|\n)*with the sizes"
    ):
        replay(chain(64).D, s.trace)


def test_equal_traces_make_equal_plans():
    first, F = everything()
    second = replay(F, first.trace)
    for a, b in zip(first.plan.stages, second.plan.stages, strict=True):
        assert a.name == b.name
        assert [x.name for x in a.leaf_axes] == [x.name for x in b.leaf_axes]
        assert [a.mark(x) for x in a.leaf_axes] == [b.mark(x) for x in b.leaf_axes]
        assert [x.name for x in a.marks] == [x.name for x in b.marks]


def test_equal_traces_lower_to_equal_ir():
    m = matmul(10, 12, 11)
    s = te.create_schedule(m.D)
    local = s.cache_write(m.C, "local")
    io, jo, _ii, ji = s[m.D].tile(*s[m.D].op.axis, 4, 5)
    s[m.D].parallel(s[m.D].fuse(io, jo))
    s[m.D].vectorize(ji)
    s[m.C].compute_inline()
    ko, _ki = s[local].split(s[local].op.reduce_axis[0], 4)
    s[local].compute_at(s[m.D], s[m.D].leaf_iter_vars[0])
    s[local].unroll(ko)
    again = replay(m.D, Trace.from_json(s.trace.to_json()))
    texts = [print_module(lower(x.plan, Target.parse("cpu"))) for x in (s, again)]
    assert texts[0] == texts[1]


def test_a_script_written_for_tvm():
    n = 1024
    k = te.reduce_axis((0, n), "k")
    A = te.placeholder((n, n), name="A")
    B = te.placeholder((n, n), name="B")
    C = te.compute((n, n), lambda x, y: te.sum(A[x, k] * B[k, y], axis=k), name="C")
    s = te.create_schedule(C.op)
    CC = s.cache_write(C, "global")
    mo, no, _mi, ni = s[C].tile(C.op.axis[0], C.op.axis[1], 32, 32)
    s[CC].compute_at(s[C], no)
    mc, nc = s[CC].op.axis
    (kaxis,) = s[CC].op.reduce_axis
    ko, ki = s[CC].split(kaxis, factor=4)
    s[CC].reorder(ko, mc, ki, nc)
    s[CC].vectorize(nc)
    s[CC].unroll(ki)
    s[C].parallel(mo)
    thread = te.thread_axis((0, 32), "threadIdx.x")
    s[C].bind(ni, thread)
    assert [axis.name for axis in s[CC].leaf_iter_vars] == ["k.outer", "x.c", "k.inner", "y.c"]
