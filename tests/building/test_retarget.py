"""`te.replay`: a trace on other sizes and for another target, and what is left of it there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from computations import chain, matmul

import tedsl as te
from tedsl.target import Target


def blocked(m: Any) -> te.Schedule:
    """A matrix product with an epilogue, as for a GPU."""
    s = te.create_schedule(m.D)
    io, jo, _, _ = s[m.D].tile(*s[m.D].op.axis, 16, 32)
    block = s[m.D].fuse(io, jo)
    s[m.D].bind(block, "blockIdx.x")
    s[m.C].compute_at(s[m.D], block)
    ko, _ = s[m.C].split(s[m.C].op.reduce_axis[0], 16)
    s[m.C].pipeline(ko, num_stages=2)
    s[m.D].launch(num_warps=4)
    return s


def run(s: te.Schedule, target: str) -> None:
    """Build and compare with the oracle."""
    rng = np.random.default_rng(0)
    kernel = te.build(s, target, cache=False)
    inputs = [s[buffer.name].op.outputs[0] for buffer in kernel.signature.inputs]
    arrays = [rng.standard_normal([int(str(e)) for e in t.shape]).astype("float32") for t in inputs]
    (want,) = te.evaluate(s.outputs, dict(zip(inputs, arrays, strict=True)))
    np.testing.assert_allclose(kernel(*arrays), want, rtol=1e-4, atol=1e-4)


def test_a_gpu_schedule_on_other_sizes_and_on_the_cpu():
    s = blocked(matmul(64, 96, 128))
    for sizes in ((64, 96, 128), (33, 20, 7)):
        other = matmul(*sizes)
        t = te.replay(other.D, s.trace)
        assert t.trace == s.trace
        t, report = te.replay(other.D, s.trace, on_refusal="skip", target="cpu")
        assert report.complete and str(report) == "7 of 7 steps apply"
        assert t.trace == s.trace


@pytest.mark.cpu
@pytest.mark.ptxas
def test_both_targets_compute_the_same():
    s = blocked(matmul(64, 96, 128))
    other = matmul(33, 20, 7)
    for target in ("cpu", "triton-interpret", "cuda:sm_90"):
        t, report = te.replay(other.D, s.trace, on_refusal="skip", target=target)
        assert report.complete and report.target == target
        if target == "cuda:sm_90":
            te.build(t, target, cache=False)
        else:
            run(t, target)


def test_steps_that_do_not_apply_and_those_that_need_them():
    c = chain(64)
    s = te.create_schedule(c.D)
    local = s.cache_write(c.D, "local")
    outer, inner = s[c.D].split(s[c.D].op.axis[0], 8)
    s[local].compute_at(s[c.D], outer)
    s[c.D].vectorize(inner)
    s[c.C].compute_inline()
    s[c.B].compute_inline()
    # The same names, but C is a reduction, which cannot be inlined.
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i0: A[i0] + 1.0, name="B")
    k = te.reduce_axis((0, 64), "k")
    C = te.compute((64,), lambda i0: te.sum(B[k] * i0.astype("float32"), axis=k), name="C")
    D = te.compute((64,), lambda i0: C[i0] * 2.0, name="D")
    with pytest.raises(te.ScheduleError, match=r"step 5 of the trace, compute_inline\(C\)"):
        te.replay(D, s.trace)
    t, report = te.replay(D, s.trace, on_refusal="skip")
    assert [(step.number, step.because) for step in report.skipped] == [(5, ())]
    assert "5 of 6 steps apply\nstep 5, compute_inline(C): C is a reduction" in str(report)
    assert [step.primitive for step in t.trace.steps] == [
        "cache_write", "split", "compute_at", "vectorize", "compute_inline",
    ]  # fmt: skip


def test_steps_that_use_what_was_left_out():
    m = matmul(64, 64, 64)
    s = te.create_schedule(m.D)
    ko, _ = s[m.C].split(s[m.C].op.reduce_axis[0], 8)
    partial = s.rfactor(m.C, ko)
    a, b = s[partial].split(s[partial].op.axis[1], 4)
    s[partial].reorder(b, a)
    s[m.D].parallel(s[m.D].op.axis[0])
    best = te.comm_reducer(lambda x, y: x * 0.5 + y, lambda dtype: te.const(0, dtype))
    A, B = m.A, te.placeholder((64, 64), name="B")
    k = te.reduce_axis((0, 64), "k")
    C = te.compute((64, 64), lambda i, j: best(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute((64, 64), lambda i, j: C[i, j] + 1.0, name="D")
    t, report = te.replay(D, s.trace, on_refusal="skip")
    assert [(step.number, step.because) for step in report.skipped] == [
        (2, ()), (3, (2,)), (4, (2, 3)),
    ]  # fmt: skip
    text = str(report)
    assert text.startswith("2 of 5 steps apply\nstep 2, rfactor(C, C.k.outer): the reducer")
    assert "step 3, split(C.rf.i, factor=4): it uses what step 2 would have made" in text
    assert "step 4, reorder(C.rf.i.inner, C.rf.i.outer): it uses what steps 2, 3 would" in text
    assert [step.primitive for step in t.trace.steps] == ["split", "parallel"]


def test_results_may_have_other_names():
    """What later steps name is what the trace means, whatever it is called here."""
    c = chain(8)
    s = te.create_schedule(c.D)
    s.cache_read(c.B, "local", [c.C])
    second = s.cache_read(c.B, "local", [c.D])
    assert s[second].name == "B.local_1"
    s[second].unroll(s[second].op.axis[0])
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i0: A[i0] + 1.0, name="B")
    C = te.compute((8,), lambda i0: A[i0] * 2.0, name="C")
    D = te.compute((8,), lambda i0: C[i0] - B[i0], name="D")
    with pytest.raises(te.ScheduleError, match=r"step 1 of the trace(.|\n)*C does not read B"):
        te.replay(D, s.trace)
    t, report = te.replay(D, s.trace, on_refusal="skip")
    assert [step.number for step in report.skipped] == [1]
    assert [(step.primitive, step.stage) for step in t.trace.steps] == [
        ("cache_read", "B"), ("unroll", "B.local"),
    ]  # fmt: skip


LANES = 1 << 21


def many_lanes() -> tuple[te.Schedule, te.Tensor]:
    """A tile of more elements than a value of Triton has."""
    A = te.placeholder((2, LANES), name="A")
    B = te.compute((2, LANES), lambda i, j: A[i, j] + 1.0, name="B")
    s = te.create_schedule(B)
    i, j = s[B].op.axis
    s[B].parallel(i)
    s[B].vectorize(j)
    s[B].launch(num_warps=4)
    return s, B


@pytest.mark.parametrize("target", ["cuda", "triton-interpret"])
def test_what_a_target_cannot_do_is_left_out(target):
    s, B = many_lanes()
    assert te.replay(B, s.trace, target="cpu").trace == s.trace
    with pytest.raises(te.LowerError, match=r"a tile of kernel B has 2097152 elements"):
        te.replay(B, s.trace, target=target)
    t, report = te.replay(B, s.trace, on_refusal="skip", target=target)
    assert [step.number for step in report.skipped] == [2]
    assert str(report) == (
        f"2 of 3 steps apply\nstep 2, vectorize(B.j): {target} cannot carry it out: "
        "a tile of kernel B has 2097152 elements"
    )
    assert te.lower(t, target)


def test_two_things_that_a_target_cannot_do():
    A = te.placeholder((2, LANES), name="A")
    B = te.compute((2, LANES), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((2, LANES), lambda i, j: B[i, j] * 2.0, name="C")
    s = te.create_schedule(C)
    s[B].vectorize(s[B].op.axis[1])
    s[B].unroll(s[B].op.axis[0])
    s[C].vectorize(s[C].op.axis[1])
    t, report = te.replay(C, s.trace, on_refusal="skip", target="triton-interpret")
    assert [step.number for step in report.skipped] == [1, 3]
    assert not report.refused and not report.complete
    assert te.lower(t, Target.parse("triton-interpret"))


def test_unknown_way_to_go_on():
    s, B = many_lanes()
    with pytest.raises(te.ScheduleError, match=r"unknown on_refusal 'ask'(.|\n)*leaves out"):
        te.replay(B, s.trace, on_refusal="ask")  # pyright: ignore[reportCallIssue, reportArgumentType]
