"""compute_across: what is refused, the printed nest, the numbers, and that no order of the programs
shows in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st
from lowering import agrees, same_in_any_order
from refusals import refused

import tedsl as te
from tedsl.ir.nodes import Meet, Seq, Store
from tedsl.ir.visit import buffers_written, walk_stmts
from tedsl.lower.pipeline import lower
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace
from tedsl.target import Target

BLOCKS = Target.parse("triton-interpret")


def rows(m: Any = 7, n: int = 60, parts: int = 4, groups: int = 2) -> SimpleNamespace:
    """Rows less their maximum: a program for each part of a row, in groups that go over the rows;
    the parts of the maximum are not passed on yet."""
    A = te.placeholder((m, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    M = te.compute((m,), lambda i: te.max(A[i, k], axis=k), name="M")
    D = te.compute((m, n), lambda i, j: A[i, j] - M[i], name="D")
    s = te.create_schedule(D)
    R = s.rfactor(M, s[M].split(k, nparts=parts)[0])
    P = s.cache_read(R, "local", [M])
    i, j = s[D].op.axis
    t, g = s[D].split(i, factor=groups)
    p, lane = s[D].split(j, nparts=parts)
    s[D].reorder(g, p, t, lane)
    s[D].bind(g, "blockIdx.y")
    s[D].bind(p, "blockIdx.x")
    s[D].vectorize(lane)
    s[M].vectorize(s[M].op.reduce_axis[0])
    s[M].compute_at(s[D], t)
    return SimpleNamespace(s=s, A=A, M=M, D=D, R=R, P=P, t=t, g=g, p=p, i=i, lane=lane)


def passed(r: SimpleNamespace) -> SimpleNamespace:
    """The parts of the maximum are passed on, and folded by the programs that have them."""
    across(r)
    r.s[r.R].compute_at(r.s[r.D], r.t)
    r.s[r.R].vectorize(r.s[r.R].op.reduce_axis[0])
    return r


def across(r: SimpleNamespace) -> None:
    r.s[r.P].compute_across(r.s[r.D], r.t, r.s[r.P].op.axis[0], r.p)


def meetings(s: te.Schedule) -> list[Meet]:
    module = lower(s.plan, BLOCKS, check=True)
    return [x for func in module.funcs for x in walk_stmts(func.body) if isinstance(x, Meet)]


# --- the nest


def test_one_kernel(golden: Any) -> None:
    r = passed(rows())
    blocks, loops = te.lower(r.s, "triton-interpret"), te.lower(r.s, "cpu")
    assert [b.name for b in blocks.counters] == ["D_met"]
    assert (len(blocks.funcs), len(loops.funcs), loops.counters) == (1, 1, ())
    golden(f"{r.s}\n\n{blocks}")


def test_source(golden: Any) -> None:
    golden(te.build(passed(rows()).s, "triton-interpret").source)


def test_it_is_replayed_undone_and_taken_back() -> None:
    r = rows()
    r.s[r.P].compute_at(r.s[r.D], r.t)
    before = str(r.s)
    across(r)
    text, plan = str(r.s), r.s.plan
    assert "passed on by the programs D.j.outer" in text
    assert str(replay([r.D], Trace.from_json(r.s.trace.to_json()))) == text
    scope: dict[str, Any] = {"te": te, "D": r.D}
    exec(r.s.as_python(), scope)
    assert str(scope["s"]) == text
    r.s[r.P].compute_at(r.s[r.D], r.t)
    assert str(r.s) == before
    r.s.undo()
    assert r.s.plan is plan
    r.s.undo()
    assert str(r.s) == before


def test_results_that_need_each_other_wait_twice() -> None:
    """The second is a function of what the first ones of all programs passed on."""
    A = te.placeholder((3, 8), name="A")
    B = te.compute((3, 8), lambda i, p: A[i, p] + 1.0, name="B")
    C = te.compute((3, 8), lambda i, p: B[i, p] * B[i, 7 - p], name="C")
    D = te.compute((3, 8), lambda i, p: C[i, p] - C[i, 7 - p] + B[i, 0], name="D")
    s = te.create_schedule(D)
    i, p = s[D].op.axis
    s[D].reorder(p, i)
    s[D].bind(p, "blockIdx.x")
    for each in (C, B):
        s[each].compute_across(s[D], i, s[each].op.axis[1], p)
    assert len(meetings(s)) == 2
    assert agrees(s)
    assert same_in_any_order(s)


# --- the numbers


@pytest.mark.cpu
@pytest.mark.parametrize(
    "m, n, parts, groups", [(7, 60, 4, 2), (8, 64, 2, 3), (5, 61, 4, 1), (1, 33, 2, 1)]
)
def test_rows(m: int, n: int, parts: int, groups: int) -> None:
    r = passed(rows(m, n, parts, groups))
    assert len(meetings(r.s)) == 1
    assert agrees(r.s)
    assert same_in_any_order(r.s)
    a = np.random.default_rng(1).standard_normal((m, n)).astype(np.float32)
    want = a - a.max(1, keepdims=True)
    for target in ("cpu", "triton-interpret"):
        np.testing.assert_array_equal(te.build(r.s, target)(a), want)


def test_rows_without_a_known_number() -> None:
    r = passed(rows(te.var("m")))
    (var,) = r.s.plan.outputs[0].shape[:1]
    for m in (0, 1, 2, 9):
        assert agrees(r.s, {var: m})


@given(st.data())
def test_any_sizes(data: st.DataObject) -> None:
    m, n = data.draw(st.integers(1, 9)), data.draw(st.integers(4, 40))
    parts, groups = data.draw(st.sampled_from((2, 3, 4))), data.draw(st.sampled_from((1, 2, 4)))
    try:
        r = passed(rows(m, n, parts, groups))
    except te.ScheduleError:
        event("refused")
        return
    event("shared")
    note(r.s.as_python())
    assert agrees(r.s)
    assert same_in_any_order(r.s)


def test_another_kernel_may_read_all_of_it() -> None:
    A = te.placeholder((6, 4), name="A")
    B = te.compute((6, 4), lambda i, p: A[i, p] * 2.0, name="B")
    C = te.compute((6, 4), lambda i, p: B[i, p] - B[i, 3 - p], name="C")
    E = te.compute((6,), lambda i: B[i, 0] + B[i, 3], name="E")
    s = te.create_schedule([C, E])
    i, p = s[C].op.axis
    s[C].reorder(p, i)
    s[C].bind(p, "blockIdx.x")
    s[B].compute_across(s[C], i, s[B].op.axis[1], p)
    assert len(te.lower(s, "triton-interpret").funcs) == 2
    assert agrees(s)


def test_programs_meet_outside_their_threads() -> None:
    """What is computed at a loop that each thread runs by itself is computed for all of them."""
    A = te.placeholder((6, 4, 8), name="A")
    B = te.compute((4,), lambda p: p * 5 % 3, name="B")
    C = te.compute((4, 8, 6), lambda p, j, i: A[i, B[p], j] + A[i, B[3 - p], j], name="C")
    s = te.create_schedule(C)
    p, j, i = s[C].op.axis
    s[C].bind(p, "blockIdx.x")
    s[C].bind(j, "threadIdx.x")
    for loop in (i, j):
        s[B].compute_across(s[C], loop, s[B].op.axis[0], p)
        assert s[B].plan.placement.axis is p
        assert agrees(s)
    te.build(s, "cuda:sm_90")


def test_another_kernel_may_read_what_is_made_of_a_fold_inside() -> None:
    """On the CPU, where programs exchange nothing, the fold is computed again for that kernel."""
    A = te.placeholder((6, 4, 5), name="A")
    k = te.reduce_axis((0, 5), name="k")
    F = te.compute((6, 4), lambda i, p: te.max(A[i, p, k], axis=k), name="F")
    B = te.compute((6, 4), lambda i, p: F[i, p] * 2.0, name="B")
    C = te.compute((6, 4), lambda i, p: B[i, p] - B[i, 3 - p], name="C")
    E = te.compute((6,), lambda i: B[i, 0] + B[i, 3], name="E")
    s = te.create_schedule([C, E])
    i, p = s[C].op.axis
    s[C].reorder(p, i)
    s[C].bind(p, "blockIdx.x")
    s[B].compute_across(s[C], i, s[B].op.axis[1], p)
    s[F].compute_at(s[C], i)
    assert "F.again" in str(te.lower(s, "cpu")) and "again" not in str(te.lower(s, BLOCKS))
    assert agrees(s)


# --- refused


@pytest.mark.parametrize("last", ["reader", "place", "inlined"])
def test_no_kernel_needs_one_that_needs_it(last: str) -> None:
    """C reads B in a kernel of its own, and D, across whose programs B would be computed, reads C:
    whichever call would make it so."""
    A = te.placeholder((6, 4), name="A")
    B = te.compute((6, 4), lambda i, p: A[i, p] * 2.0, name="B")
    C = te.compute((6, 4), lambda i, p: B[i, 3 - p] + 1.0, name="C")
    D = te.compute((6, 4), lambda i, p: C[i, p] - B[i, p], name="D")
    s = te.create_schedule(D)
    i, p = s[D].op.axis
    s[D].reorder(p, i)
    s[D].bind(p, "blockIdx.x")
    text = "C reads B in a kernel of its own, whose result D needs"
    if last == "place":
        with refused(s, text, "compute C inside D"):
            s[B].compute_across(s[D], i, s[B].op.axis[1], p)
        return
    if last == "reader":
        s[C].compute_at(s[D], i)
    else:
        s[C].compute_inline()
    s[B].compute_across(s[D], i, s[B].op.axis[1], p)
    assert agrees(s)
    with refused(s, text):
        s[C].compute_root()


def test_what_is_no_place() -> None:
    r = rows()
    s, D, M, P = r.s, r.s[r.D], r.s[r.M], r.s[r.P]
    part = P.op.axis[0]
    with refused(s, "M is a reduction, whose accumulators are registers", "cache_read"):
        M.compute_across(D, r.t, M.op.axis[0], r.p)
    with refused(s, "D.j.inner is vectorized"):
        P.compute_across(D, r.lane, part, r.p)
    with refused(s, "i.outer is no loop of the grid of D", "bind one of the outermost loops"):
        P.compute_across(D, r.t, part, r.t)
    with refused(s, "j.outer of D has 4 iterations, and M.rf.local has 7 elements along"):
        P.compute_across(D, r.t, P.op.axis[1], r.p)
    with refused(s, "i.inner of D has 2 iterations, and M.rf.local has 4", "split by nparts"):
        P.compute_across(D, r.t, part, r.g)
    with refused(s, "cannot be computed inside itself"):
        P.compute_across(P, part, part, r.p)


def test_what_would_not_run_at_the_same_time() -> None:
    r = rows(8000, 60, 2, 4000)
    with refused(r.s, "D has 8000 programs, more than run at the same time (at most 4736)"):
        across(r)
    A = te.placeholder((te.var("m"), 4), name="A")
    B = te.compute(A.shape, lambda i, p: A[i, p] + 1.0, name="B")
    C = te.compute(A.shape, lambda i, p: B[i, 3 - p], name="C")
    s = te.create_schedule(C)
    i, p = s[C].op.axis
    s[C].bind(i, "blockIdx.y")
    s[C].bind(p, "blockIdx.x")
    with refused(s, "the grid of C has no constant size", "each with a loop"):
        s[B].compute_across(s[C], p, s[B].op.axis[1], p)


def test_later_calls_leave_the_programs_their_meeting() -> None:
    r = passed(rows())
    s, D = r.s, r.s[r.D]
    again = "first call s[M.rf.local].compute_root()"
    with refused(s, "i.outer of D is pipelined in 3 stages: its iterations overlap", again):
        D.pipeline(r.t, num_stages=3)
    with refused(s, "computed across programs: j.outer is no loop of the grid of D", again):
        D.serial(r.p)
    with refused(s, "a program of D is 2 blocks", again):
        D.launch(num_ctas=2)
    with refused(s, "M.rf.local", "no loop over a dimension"):
        s[r.P].split(s[r.P].op.axis[0], factor=2)


def ahead(r: SimpleNamespace) -> SimpleNamespace:
    """What a program holds of a row is copied into registers, of the next row while it waits."""
    passed(r)
    held = r.s[r.s.cache_read(r.A, "local", [r.R, r.D])]
    held.compute_at(r.s[r.D], r.t)
    held.double_buffer()
    return r


def test_the_next_iteration_is_fetched_while_programs_wait(golden: Any) -> None:
    r = ahead(rows(8))
    (meet,) = meetings(r.s)
    assert isinstance(meet.meanwhile, Store)
    assert meet.meanwhile.buffer.name == "A.local_next"
    golden(str(te.lower(r.s, "triton-interpret")), "ir")
    golden(te.build(r.s, "triton-interpret").source, "triton")
    assert agrees(r.s)
    assert same_in_any_order(r.s)


@pytest.mark.parametrize("m", [2, 4, 7, 8, 64])
def test_numbers_of_what_is_fetched_ahead(m: int) -> None:
    r = ahead(rows(m))
    assert agrees(r.s)
    kernel = te.build(r.s, "triton-interpret")
    a = np.random.default_rng(0).standard_normal((m, 60)).astype(np.float32)
    np.testing.assert_allclose(kernel(a), a - a.max(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("m", [1, 2, 7])
def test_a_loop_that_fetches_nothing_ahead_is_an_ordinary_one(m: int) -> None:
    """One iteration, or an end of the rows amid the programs that take them together."""
    (meet,) = meetings(ahead(rows(m)).s)
    assert meet.meanwhile is None
    again = rows(8)
    passed(again).s[again.D].pipeline(again.t, num_stages=2)
    (meet,) = meetings(again.s)
    assert meet.meanwhile is None, "nothing is copied into registers"
    assert agrees(again.s)


def test_what_the_kernel_stores_is_not_fetched_ahead() -> None:
    """The parts of others are there when all have come, not before."""
    r = ahead(rows(8))
    parts = r.s[r.P].op.output(0)
    copied = r.s[r.s.cache_read(parts, "local", [r.M])]
    copied.compute_at(r.s[r.D], r.t)
    (meet,) = meetings(r.s)
    assert [b.name for b in buffers_written(meet.meanwhile or Seq(()))] == ["A.local_next"]
    assert agrees(r.s)


def chain(m: int, n: int, shift: int) -> SimpleNamespace:
    A = te.placeholder((m + n, n), name="A")
    B = te.compute((m + n, n), lambda i, p: A[i, p] + 1.0, name="B")
    C = te.compute((m, n), lambda i, p: B[i + p * shift, n - 1 - p], name="C")
    s = te.create_schedule(C)
    return SimpleNamespace(s=s, B=B, C=C, i=s[C].op.axis[0], p=s[C].op.axis[1])


def test_what_others_read_is_what_the_group_stores() -> None:
    r = chain(6, 4, 1)
    C, B = r.s[r.C], r.s[r.B]
    C.reorder(r.p, r.i)
    C.bind(r.p, "blockIdx.x")
    with refused(r.s, "the programs of p do not read the same elements of B along i"):
        B.compute_across(C, r.i, B.op.axis[1], r.p)


def test_all_programs_of_a_group_come() -> None:
    """Seven columns for four programs of two: the last one has no second."""
    r = chain(6, 7, 0)
    C, B = r.s[r.C], r.s[r.B]
    p, q = C.split(r.p, nparts=4)
    C.reorder(p, q, r.i)
    C.bind(p, "blockIdx.x")
    half = te.compute((6, 4), lambda i, x: r.B[i, x] + 0.0, name="half")
    D = te.compute((6, 7), lambda i, j: half[i, j % 4] * 2.0, name="D")
    s = te.create_schedule(D)
    i, j = s[D].op.axis
    p, q = s[D].split(j, nparts=4)
    s[D].reorder(p, q, i)
    s[D].bind(p, "blockIdx.x")
    with refused(s, "some programs of j.outer have nothing to do where", "wait for them forever"):
        s[half].compute_across(s[D], i, s[half].op.axis[1], p)
    assert B.plan.placement.program is None


def test_groups_store_elements_of_their_own() -> None:
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda p: A[p] + 1.0, name="B")
    C = te.compute((6, 4), lambda g, p: B[3 - p] + B[p], name="C")
    s = te.create_schedule(C)
    g, p = s[C].op.axis
    s[C].bind(g, "blockIdx.y")
    s[C].bind(p, "blockIdx.x")
    with refused(s, "programs of g that do not wait for each other store the same elements of B"):
        s[B].compute_across(s[C], p, s[B].op.axis[0], p)


def test_other_kernels_read_no_part_of_it() -> None:
    A = te.placeholder((6, 4), name="A")
    B = te.compute((6, 4), lambda i, p: A[i, p] * 2.0, name="B")
    C = te.compute((3, 4), lambda i, p: B[i, p] - B[i, 3 - p], name="C")
    E = te.compute((6,), lambda i: B[i, 0] + B[i, 3], name="E")
    s = te.create_schedule([C, E])
    i, p = s[C].op.axis
    s[C].reorder(p, i)
    s[C].bind(p, "blockIdx.x")
    with refused(s, "E reads all of B in a kernel of its own", "not known to compute all of it"):
        s[B].compute_across(s[C], i, s[B].op.axis[1], p)


def test_other_programs_in_the_kernel() -> None:
    r = rows()
    A = r.A
    W = te.compute((64,), lambda i: A[0, i % 60] * 2.0, name="W")
    s = te.create_schedule([r.D, W])
    i, j = s[r.D].op.axis
    p, _ = s[r.D].split(j, nparts=4)
    C = s.cache_read(A, "local", [r.D])
    s[r.D].reorder(p, i)
    s[r.D].bind(p, "blockIdx.x")
    s[W].compute_with(r.D)
    with refused(s, "M", "is a reduction"):
        s[r.M].compute_across(s[r.D], i, s[r.M].op.axis[0], p)
    with refused(s, "other programs run, or go on, in the kernel of D"):
        s[C].compute_across(s[r.D], i, s[C].op.axis[1], p)
