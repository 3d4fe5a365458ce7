"""`te.checked`: a primitive that changes a result is caught when it is called."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from computations import chain, matmul

import tedsl as te
from tedsl.expr.nodes import Reduce
from tedsl.ir.nodes import Guard, Module, Stmt
from tedsl.ir.visit import rewrite_stmts
from tedsl.lower import pipeline
from tedsl.scheduling.handles.observers import watched
from tedsl.scheduling.primitives.marks import rewrite as marks
from tedsl.tensor.tensor import ComputeOp


@pytest.fixture
def broken_unroll(monkeypatch: pytest.MonkeyPatch) -> None:
    """`unroll` that adds 1 to what the stage computes."""
    real = marks.unroll

    def unroll(plan: Any, call: Any, axis: Any) -> Any:
        plan = real(plan, call, axis)
        stage = plan.stage(call.stage)
        assert isinstance(stage.op, ComputeOp) and not isinstance(stage.op.bodies[0], Reduce)
        op = replace(stage.op, bodies=(stage.op.bodies[0] + 1.0,))
        return replace(plan.with_stage(replace(stage, op=op)), outputs=op.outputs)

    monkeypatch.setattr(marks, "unroll", unroll)


def test_what_is_checked():
    m = matmul(te.size_var("n"), 12, te.size_var("m"))
    s = te.create_schedule(m.D)
    with te.checked(sizes={"m": [3, 5]}) as checks:
        io, _, _, ji = s[m.D].tile(*s[m.D].op.axis, 4, 8)
        s[m.C].compute_at(s[m.D], io)
        s[m.D].vectorize(ji)
    s[m.D].parallel(io)
    assert [step.text for step in checks.steps] == [
        "tile(D.i, D.j, 4, 8)",
        "compute_at(C, D, D.i.outer)",
        "vectorize(D.j.inner)",
    ]
    assert [len(step.targets) for step in checks.steps] == [2, 2, 2]
    for step in checks.steps:
        drawn = [dict(part.split("=") for part in text.split(", ")) for text in step.sizes]
        assert all(each["m"] in ("3", "5") for each in drawn)
        assert "0" in [each["n"] for each in drawn]
        assert any(int(each["n"]) % 2 and each["n"] != "1" for each in drawn)
    assert "step 1, tile(D.i, D.j, 4, 8): cpu, triton-interpret at n=" in str(checks)


@pytest.mark.usefixtures("broken_unroll")
def test_a_broken_primitive_is_caught():
    c = chain(te.size_var("n"))
    s = te.create_schedule(c.D)
    s[c.D].split(s[c.D].op.axis[0], 4)
    before = s.plan, s.trace
    message = (
        r"bug in tedsl(.|\n)*unroll\(D.i0.inner\): step 2 made the result wrong: "
        r"D\[0\] is .*, not .*; \d+ of \d+ are wrong\n"
        r"  target  cpu\n  seed    3\n  sizes   n=\d+\n"
        r"  trace   s = te.create_schedule\(D\)(.|\n)*unroll\(i0_inner\)"
    )
    with te.checked(seed=3), pytest.raises(te.InternalError, match=message):
        s[c.D].unroll(s[c.D].leaf_iter_vars[1])
    assert (s.plan, s.trace) == before
    s[c.D].unroll(s[c.D].leaf_iter_vars[1])
    assert len(s.trace) == 2


def without_guards(module: Module) -> Module:
    """Every guarded statement runs."""

    def bare(stmt: Stmt) -> Stmt | None:
        return stmt.body if isinstance(stmt, Guard) else None

    funcs = (replace(func, body=rewrite_stmts(func.body, bare)) for func in module.funcs)
    return replace(module, funcs=tuple(funcs))


def test_a_broken_lowering_is_caught(monkeypatch):
    real = pipeline.build_nests
    monkeypatch.setattr(pipeline, "build_nests", lambda *args: without_guards(real(*args)))
    c = chain(te.size_var("n"))
    s = te.create_schedule(c.D)
    with te.checked(), pytest.raises(te.InternalError, match=r"loop IR fails(.|\n)*sizes   n="):
        s[c.D].split(s[c.D].op.axis[0], 4)
    assert not len(s.trace)


@pytest.mark.usefixtures("broken_unroll")
def test_large_constant_sizes_stand_for_smaller_ones():
    m = matmul(1024, 1000, 512)
    s = te.create_schedule(m.D)
    with te.checked() as checks:
        s[m.D].tile(*s[m.D].op.axis, 4, 8)
        with pytest.raises(te.InternalError, match=r"(?s)copy    with smaller constant extents"):
            s[m.D].unroll(s[m.D].leaf_iter_vars[0])
    assert [step.smaller for step in checks.steps] == [True]
    assert str(checks).endswith("(a smaller copy)")


def test_halos_stay_in_smaller_copies():
    A = te.placeholder((130, 130), name="A")
    x, y = te.reduce_axis((0, 3), "x"), te.reduce_axis((0, 3), "y")
    B = te.compute((128, 128), lambda i, j: te.sum(A[i + x, j + y], axis=[x, y]), name="B")
    s = te.create_schedule(B)
    with te.checked() as checks:
        s[B].tile(*s[B].op.axis, 5, 7)
    assert checks.steps[0].smaller and checks.steps[0].targets


def test_too_large():
    A = te.placeholder((1 << 20,), name="A")
    B = te.compute((1 << 20,), lambda i: A[(1 << 20) - 1 - i], name="B")
    s = te.create_schedule(B)
    with te.checked(), pytest.raises(te.ScheduleError, match=r"too large to be(.|\n)*te.size_var"):
        s[B].split(s[B].op.axis[0], 8)
    assert not len(s.trace)


def test_unknown_sizes():
    c = chain(te.size_var("n"))
    s = te.create_schedule(c.D)
    with (
        te.checked(sizes={"m": 3}),
        pytest.raises(te.ScheduleError, match=r"has no size 'm'\n  sizes   n\n(.|\n)*name sizes"),
    ):
        s[c.D].split(s[c.D].op.axis[0], 4)


def test_a_fused_pass_over_dependent_reductions():
    n = te.size_var("n")
    X = te.placeholder((n, 40), name="X")
    k, r = te.reduce_axis((0, 40), "k"), te.reduce_axis((0, 40), "r")
    top = te.compute((n,), lambda i: te.max(X[i, k], axis=k), name="top")
    total = te.compute((n,), lambda i: te.sum(te.exp(X[i, r] - top[i]), axis=r), name="total")
    s = te.create_schedule(total)
    with te.checked() as checks:
        outer, _ = s[total].split(s[total].op.reduce_axis[0], 8)
        s[total].online(outer)
    assert len(checks.steps) == 2 and checks.steps[1].targets


@pytest.mark.usefixtures("broken_unroll")
def test_only_the_thread_of_the_block_is_checked():
    c = chain(16)
    s, t = te.create_schedule(c.D), te.create_schedule(c.D)
    caught: list[te.TedslError] = []

    def elsewhere() -> None:
        try:
            t[c.D].unroll(t[c.D].op.axis[0])
        except te.TedslError as error:
            caught.append(error)

    with te.checked() as checks:
        worker = threading.Thread(target=elsewhere)
        worker.start()
        worker.join()
        s[c.D].split(s[c.D].op.axis[0], 4)
    assert not caught and len(t.trace) == 1 and len(checks.steps) == 1
    t[c.C].unroll(t[c.C].op.axis[0])
    assert len(checks.steps) == 1


def test_blocks_inside_blocks():
    c = chain(16)
    s = te.create_schedule(c.D)
    seen: list[int] = []
    with watched(lambda schedule: seen.append(len(schedule.trace))):
        with te.checked() as checks:
            s[c.D].split(s[c.D].op.axis[0], 4)
        s[c.D].unroll(s[c.D].leaf_iter_vars[0])
    assert seen == [1, 2] and len(checks.steps) == 1


def in_a_row(*shape: Any) -> te.Tensor:
    a = te.placeholder(shape, name="A")
    b = te.compute(shape, lambda *i: a(*i) + 1, name="B")
    c = te.compute(shape, lambda *i: b(*i) * 2, name="C")
    d = te.compute(shape, lambda *i: c(*i) - b(*i), name="D")
    return te.compute(shape, lambda *i: d(*i) + c(*i), name="E")


@pytest.mark.parametrize(
    ("shape", "smaller"),
    [((16, 8), False), ((4096, 1024), True), ((te.size_var("n"), 8), False)],
    ids=["small", "large", "symbolic"],
)
def test_groups_are_checked_stage_by_stage(shape, smaller):
    e = in_a_row(*shape)
    s = te.create_schedule(e)
    with te.checked() as checks:
        outer, inner = s[e].split(e.op.axis[0], 5)
        group = s.create_group("D", "A")
        group.compute_at(e, outer)
        group.compute_at(e, inner)
        group.compute_at(e, outer)
        s["C"].compute_inline()
        group.compute_root()
    assert [step.number for step in checks.steps] == list(range(1, len(s.trace) + 1))
    assert [step.text.split("(")[0] for step in checks.steps] == [
        step.primitive for step in s.trace.steps
    ]
    assert all(step.targets and step.smaller is smaller for step in checks.steps)


def test_groups_of_the_steps_of_a_scan():
    m, n = te.size_var("m"), te.size_var("n")
    x, state = te.placeholder((m, n), name="X"), te.placeholder((m, n), name="state")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    half = te.compute((m, n), lambda t, i: state[t - 1, i] * 0.5, name="half")
    more = te.compute((m, n), lambda t, i: half[t, i] + x[t, i], name="more")
    scan = te.scan(first, more, state, inputs=[x], name="S")
    assert isinstance(scan, te.Tensor)
    s = te.create_schedule(scan)
    with te.checked() as checks:
        _, inner = s[scan].split(scan.op.axis[1], 4)
        s.create_group(more, half, include_inputs=True).compute_at(scan, inner)
    assert len(checks.steps) == 3 and all(step.targets for step in checks.steps)


def test_a_group_moves_whole_or_not_at_all():
    """The second of its three steps goes wrong: the first is taken back too."""
    e = in_a_row(16, 8)
    s = te.create_schedule(e)
    group = s.create_group("D", "A")
    before = (str(s), s.trace)
    told: list[int] = []

    def refuse(schedule: te.Schedule) -> None:
        told.append(len(schedule.trace))
        if len(schedule.trace) == 2:
            raise te.InternalError("the second step is wrong")

    with watched(refuse), pytest.raises(te.InternalError, match="the second step is wrong"):
        group.compute_at(e, e.op.axis[0])
    assert told == [1, 2]
    assert (str(s), s.trace) == before
    group.compute_at(e, e.op.axis[0])
    assert len(s.trace) == 3
