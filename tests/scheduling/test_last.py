"""compute_last: what is refused, the printed nest, the numbers, and that no order of arrival shows
in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lowering import agrees, same_in_any_order
from refusals import refused

import tedsl as te
from tedsl.ir.nodes import Finish, Level
from tedsl.ir.verify import verify
from tedsl.ir.visit import walk_stmts
from tedsl.lower.pipeline import lower
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace
from tedsl.target import Target

BLOCKS = Target.parse("triton-interpret")


def parts(rows: Any = 33, columns: Any = 100, part: int = 16, tile: int = 8) -> SimpleNamespace:
    """Sums of rows in parts, and what follows: tiles of rows, and in the first kernel parts, over
    the grid."""
    A = te.placeholder((rows, columns), name="A")
    k = te.reduce_axis((0, columns), name="k")
    C = te.compute((rows,), lambda i: te.sum(A[i, k], axis=k), name="C")
    D = te.compute((rows,), lambda i: C[i] * 2.0 + 1.0, name="D")
    s = te.create_schedule(D)
    P = s.rfactor(C, s[C].split(k, part)[0])
    p, i = s[P].op.axis
    io, ii = s[P].split(i, tile)
    s[P].reorder(io, p, ii)
    s[P].bind(io, "blockIdx.x")
    s[P].bind(p, "blockIdx.y")
    s[P].vectorize(ii)
    jo, ji = s[D].split(s[D].op.axis[0], tile)
    s[D].bind(jo, "blockIdx.x")
    s[D].vectorize(ji)
    s[C].compute_at(s[D], jo)
    return SimpleNamespace(s=s, A=A, C=C, D=D, P=P, p=p, io=io, ii=ii, jo=jo, ji=ji)


def whole(n: int = 1000, count: int = 7, **bound: bool) -> tuple[te.Schedule, str]:
    """The mean of the squares of all elements, and the stage of its parts."""
    A = te.placeholder((n,), name="A")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((), lambda: te.sum(A[k] * A[k], axis=k), name="C")
    D = te.compute((), lambda: C() / float(n), name="D")
    s = te.create_schedule(D)
    P = s.rfactor(C, s[C].split(k, nparts=count)[0])
    s[P].bind(s[P].op.axis[0], "blockIdx.x", **bound)
    _, lanes = s[P].split(s[P].op.reduce_axis[0], 64)
    s[P].vectorize(lanes)
    s[C].vectorize(s[C].op.reduce_axis[0])
    s[C].compute_at(s[D], s[D].fuse())
    s[D].compute_last(s[P])
    return s, P.op.name


def finishes(s: te.Schedule) -> list[Finish]:
    module = lower(s.plan, BLOCKS, check=True)
    verify(module, Level.TILE)
    return [x for func in module.funcs for x in walk_stmts(func.body) if isinstance(x, Finish)]


# --- the nest


def test_one_kernel(golden: Any) -> None:
    r = parts()
    assert len(te.lower(r.s, "triton-interpret").funcs) == 2
    r.s[r.D].compute_last(r.s[r.P])
    blocks, loops = te.lower(r.s, "triton-interpret"), te.lower(r.s, "cpu")
    assert len(blocks.funcs) == 1
    assert [b.name for b in blocks.counters] == ["D_count"]
    assert (len(loops.funcs), loops.counters) == (2, ())
    golden(f"{r.s}\n\n{blocks}")


def test_source(golden: Any) -> None:
    r = parts()
    r.s[r.D].compute_last(r.s[r.P])
    golden(te.build(r.s, "triton-interpret").source)


def test_it_is_replayed_undone_and_taken_back() -> None:
    r = parts()
    before = str(r.s)
    r.s[r.D].compute_last(r.s[r.P])
    text, plan = str(r.s), r.s.plan
    assert "by the last programs D: float32[33]" in text
    assert str(replay([r.D], Trace.from_json(r.s.trace.to_json()))) == text
    scope: dict[str, Any] = {"te": te, "D": r.D}
    exec(r.s.as_python(), scope)
    assert str(scope["s"]) == text
    r.s[r.D].compute_root()
    assert str(r.s) == before
    assert "by the last programs of C.rf" in str(te.diff(r.s, scope["s"]))
    r.s.undo()
    assert r.s.plan is plan
    r.s.undo()
    assert str(r.s) == before


# --- the numbers


@pytest.mark.cpu
@pytest.mark.parametrize("rows, columns", [(33, 100), (1, 17), (8, 16), (64, 1)])
def test_rows(rows: int, columns: int) -> None:
    r = parts(rows, columns)
    r.s[r.D].compute_last(r.s[r.P])
    assert agrees(r.s, bound=1e-5)
    assert same_in_any_order(r.s)


def called(s: te.Schedule, *arrays: Any, target: str = "triton-interpret") -> Any:
    return te.build(s, target)(*arrays)


def test_no_order_of_arrival_shows_in_the_numbers() -> None:
    """The last program is another one, and the parts are folded in the same order."""
    a = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    found = [called(whole(descending=order)[0], a).tobytes() for order in (False, True)]
    assert found[0] == found[1]
    s, parted = whole()
    s["D"].compute_root()
    assert called(s, a).tobytes() == found[0]
    assert parted == "C.rf"


def test_counters_are_zero_again_after_each_call() -> None:
    r = parts()
    r.s[r.D].compute_last(r.s[r.P])
    kernel = te.build(r.s, "triton-interpret")
    for scale in (1.0, 2.0):
        a = np.full((33, 100), scale, np.float32)
        np.testing.assert_array_equal(kernel(a), np.full(33, 200 * scale + 1))


def test_symbolic_sizes_and_versions() -> None:
    n = te.var("n")
    r = parts(rows=n)
    r.s[r.D].compute_last(r.s[r.P])
    assert len(finishes(r.s)) == 3, "n a multiple of the tile, of 16 bytes, and all others"
    for rows in (0, 5, 12, 16):
        assert agrees(r.s, {n: rows}, ("triton-interpret",))


def test_a_part_that_is_cut() -> None:
    """The grid has another body in its last program; all of them are counted in one place."""
    s, parted = whole()
    s["D"].compute_root()
    s[parted].cut(s[parted].op.axis[0], 6)
    s["D"].compute_last(parted)
    assert len(finishes(s)) == 1
    assert agrees(s)


def test_parts_of_dependent_reductions() -> None:
    """All results of the first kernel are there: those that go along with the last one as well."""
    X = te.placeholder((5, 200), name="X")
    k, r = te.reduce_axis((0, 200), name="k"), te.reduce_axis((0, 200), name="r")
    M = te.compute((5,), lambda i: te.max(X[i, k], axis=k), name="M")
    Z = te.compute((5,), lambda i: te.sum(te.exp(X[i, r] - M[i]), axis=r), name="Z")
    L = te.compute((5,), lambda i: M[i] + te.log(Z[i]), name="L")
    s = te.create_schedule(L)
    part, _ = s[Z].split(r, 64)
    s.split_online(Z, part)
    p, i = s["Z.rf"].op.axis
    step, lanes = s["Z.rf"].split(s["Z.rf"].op.reduce_axis[0], 16)
    s["Z.rf"].reorder(i, p, step, lanes)
    s["Z.rf"].bind(i, "blockIdx.x")
    s["Z.rf"].bind(p, "blockIdx.y")
    s["Z.rf"].vectorize(lanes)
    s["Z.rf"].online(step)
    s[L].bind(s[L].op.axis[0], "blockIdx.x")
    for name in ("Z", "M"):
        s[name].compute_at(s[L], s[L].op.axis[0])
    s[L].compute_last("Z.rf")
    assert len(te.lower(s, "triton-interpret").funcs) == 1
    assert agrees(s, bound=1e-4)
    assert same_in_any_order(s)


def test_an_atomic_sum_and_what_follows() -> None:
    """The last program reads what all have added up."""
    A = te.placeholder((20, 64), "int32", name="A")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute((20,), lambda i: te.sum(A[i, k], axis=k), name="C")
    D = te.compute((20,), lambda i: C[i] * C[i], name="D")
    s = te.create_schedule(D)
    io, ii = s[C].split(s[C].op.axis[0], 8)
    ko, ki = s[C].split(k, 16)
    s[C].reorder(io, ko, ii, ki)
    s[C].atomic()
    s[C].bind(io, "blockIdx.x")
    s[C].bind(ko, "blockIdx.y")
    s[C].vectorize(ii)
    jo, ji = s[D].split(s[D].op.axis[0], 8)
    s[D].bind(jo, "blockIdx.x")
    s[D].vectorize(ji)
    s[D].compute_last(s[C])
    assert agrees(s)
    a = np.arange(20 * 64, dtype=np.int32).reshape(20, 64)
    np.testing.assert_array_equal(called(s, a), a.sum(1, dtype=np.int32) ** 2)


def test_two_results_of_the_same_parts() -> None:
    """Each has a count of its own."""
    A = te.placeholder((16, 6), name="A")
    P = te.compute((6, 16), lambda p, i: A[i, p] * 2.0, name="P")
    D = te.compute((16,), lambda i: P[0, i] + P[5, i], name="D")
    E = te.compute((16,), lambda i: P[1, i] - P[4, i], name="E")
    s = te.create_schedule([D, E])
    s[P].reorder(*reversed(s[P].op.axis))
    s[P].bind(s[P].op.axis[1], "blockIdx.x")
    s[P].bind(s[P].op.axis[0], "blockIdx.y")
    for t in (D, E):
        s[t].bind(s[t].op.axis[0], "blockIdx.x")
        s[t].compute_last(P)
    assert [f.counter.name for f in finishes(s)] == ["D_count", "E_count"]
    assert agrees(s)
    assert same_in_any_order(s)


# --- legality


def test_tiles_of_other_programs() -> None:
    """As many tiles as programs, which take every eleventh row."""
    A = te.placeholder((33, 100), name="A")
    P = te.compute((33, 100), lambda i, j: A[i, j] * 2.0, name="P")
    D = te.compute((33,), lambda i: P[i, 0] + P[i, 99], name="D")
    s = te.create_schedule(D)
    turn, program = s[P].split(s[P].op.axis[0], 11)
    s[P].reorder(program, s[P].op.axis[1], turn)
    s[P].bind(program, "blockIdx.x")
    s[P].bind(s[P].op.axis[1], "blockIdx.y")
    tile, _ = s[D].split(s[D].op.axis[0], nparts=11)
    s[D].bind(tile, "blockIdx.x")
    texts = ("D reads P[i, 0]", "the tile i.outer of D", "counterexample: i.", "alike")
    with refused(s, *texts):
        s[D].compute_last(P)


def test_a_grid_of_another_size() -> None:
    r = parts()
    s = te.create_schedule(r.D)
    P = s.rfactor(r.C, s[r.C].split(r.C.op.reduce_axis[0], 16)[0])
    p, i = s[P].op.axis
    s[P].reorder(i, p)
    s[P].bind(i, "blockIdx.x")
    s[P].bind(p, "blockIdx.y")
    tile, _ = s[r.D].split(s[r.D].op.axis[0], 8)
    s[r.D].bind(tile, "blockIdx.x")
    s[r.C].compute_at(s[r.D], tile)
    with refused(s, "i of C.rf has 33 iterations and i.outer of D has 5", "alike"):
        s[r.D].compute_last(P)


def test_a_stage_that_reads_nothing_there() -> None:
    r = parts()
    s = te.create_schedule(r.D)
    P = s.rfactor(r.C, s[r.C].split(r.C.op.reduce_axis[0], 16)[0])
    s[P].bind(s[P].op.axis[0], "blockIdx.x")
    with refused(s, "D reads nothing that the kernel of C.rf stores", "waits for"):
        s[r.D].compute_last(P)


def test_programs_that_may_not_be_there() -> None:
    n = te.var("n")
    r = parts(columns=n)
    with refused(r.s, "(n + 15) // 16 iterations, which may be none", "s.assume"):
        r.s[r.D].compute_last(r.s[r.P])
    r.s.assume(n > 0)
    r.s[r.D].compute_last(r.s[r.P])
    assert agrees(r.s, {n: 20}, ("triton-interpret",))


def test_loops_that_are_not_the_grid() -> None:
    r = parts()
    r.s[r.P].serial(r.p)
    with refused(r.s, "D has 1 loops in the grid and C.rf has 1", "bind one more loop of C.rf"):
        r.s[r.D].compute_last(r.s[r.P])
    r.s[r.D].serial(r.jo)
    r.s[r.P].serial(r.io)
    with refused(r.s, "no loop of C.rf is bound to the grid", "attach C.rf in D"):
        r.s[r.D].compute_last(r.s[r.P])


def test_what_has_no_programs_of_its_own() -> None:
    r = parts()
    with refused(r.s, "C is attached at D.i.outer", "s[C].compute_root()"):
        r.s[r.C].compute_last(r.s[r.P])
    with refused(r.s, "D is the stage itself"):
        r.s[r.D].compute_last(r.s[r.D])
    with refused(r.s, "A is an input"):
        r.s[r.D].compute_last("A")
    with refused(r.s, "C is attached at D.i.outer, and has no programs", "at root"):
        r.s[r.D].compute_last(r.s[r.C])


def test_options_are_the_leaders() -> None:
    r = parts()
    r.s[r.D].launch(num_warps=2)
    with refused(r.s, "D has launch options", "call launch on the leader"):
        r.s[r.D].compute_last(r.s[r.P])
    r = parts()
    r.s[r.P].launch(num_ctas=2)
    with refused(r.s, "a program of C.rf is 2 blocks", "num_ctas=1"):
        r.s[r.D].compute_last(r.s[r.P])
    r = parts(rows=te.var("n"))
    r.s[r.D].compute_last(r.s[r.P])
    with refused(r.s, "D runs together with C.rf, in one kernel", "specialize on s[C.rf]"):
        r.s[r.D].specialize(r.s.size("n") > 100)


def test_what_is_made_illegal_later() -> None:
    r = parts()
    r.s[r.D].compute_last(r.s[r.P])
    start = "D is computed by the last programs of C.rf: "
    again = "first call s[D].compute_root(), and compute_last again afterwards"
    with refused(r.s, start, "none is left over the programs", again):
        r.s[r.P].serial(r.p)
    with refused(r.s, "D runs together with C.rf, in one kernel", "call launch on s[C.rf]"):
        r.s[r.D].launch(num_warps=8)
    with refused(r.s, start, "k.outer of C.rf has 7 iterations and i.outer of D has 5", again):
        r.s[r.P].reorder(r.p, r.io)


def test_a_kernel_in_between() -> None:
    """B reads the parts and D reads B: neither before nor after the one kernel."""
    A = te.placeholder((32, 64), name="A")
    P = te.compute((32, 64), lambda i, j: A[i, j] * 2.0, name="P")
    B = te.compute((32,), lambda i: P[i, 0] + 1.0, name="B")
    D = te.compute((32,), lambda i: P[i, 1] + B[i], name="D")
    s = te.create_schedule(D)
    s[P].bind(s[P].op.axis[0], "blockIdx.x")
    s[P].bind(s[P].op.axis[1], "blockIdx.y")
    s[D].bind(s[D].op.axis[0], "blockIdx.x")
    with refused(s, "a kernel in between reads a result of P", "what is in between inside it"):
        s[D].compute_last(P)
    s[B].compute_inline()
    s[D].compute_last(P)
    assert agrees(s)


def test_the_last_of_the_last() -> None:
    A = te.placeholder((32, 64), name="A")
    P = te.compute((32, 64), lambda i, j: A[i, j] * 2.0, name="P")
    B = te.compute((32, 4), lambda i, j: P[i, j] + 1.0, name="B")
    D = te.compute((32,), lambda i: B[i, 0] + B[i, 3], name="D")
    s = te.create_schedule(D)
    for t in (P, B):
        s[t].bind(s[t].op.axis[0], "blockIdx.x")
    s[P].bind(s[P].op.axis[1], "blockIdx.y")
    s[D].bind(s[D].op.axis[0], "blockIdx.x")
    s[B].compute_last(P)
    with refused(s, "B itself is computed by the last programs of P", "compute_at"):
        s[D].compute_last(B)
    E = te.compute((32,), lambda i: P[i, 7] * 3.0 + B[i, 1], name="E")
    s = te.create_schedule(E)
    for t in (P, B, E):
        s[t].bind(s[t].op.axis[0], "blockIdx.x")
    s[P].bind(s[P].op.axis[1], "blockIdx.y")
    s[B].compute_last(P)
    with refused(s, "E in the kernel of P reads B", "may run before it"):
        s[E].compute_last(P)


def test_with_stages_beside() -> None:
    """Programs of others in the grid feed no tile, and are not waited for."""
    A = te.placeholder((16, 6), name="A")
    P = te.compute((6, 16), lambda p, i: A[i, p] * 2.0, name="P")
    D = te.compute((16,), lambda i: P[0, i] + P[5, i], name="D")
    B = te.compute((16,), lambda i: A[i, 0] + 1.0, name="B")
    s = te.create_schedule([D, B])
    s[P].bind(s[P].op.axis[0], "blockIdx.x")
    s[B].compute_with(s[P])
    s[D].compute_last(s[P])
    assert agrees(s) and same_in_any_order(s)
    s[B].compute_root()
    with refused(s, "D runs together with B", "s[D].compute_root()"):
        s[B].compute_with(s[D])
    s[B].compute_with(s[P])
    assert len(te.lower(s, "triton-interpret").funcs) == 1
    assert agrees(s) and same_in_any_order(s)


def test_with_stages_in_the_same_loops() -> None:
    """What a follower of the leader stores is there as well."""
    A = te.placeholder((16, 6), name="A")
    P = te.compute((16, 6), lambda i, p: A[i, p] * 2.0, name="P")
    Q = te.compute((16, 6), lambda i, p: A[i, p] + 1.0, name="Q")
    D = te.compute((16,), lambda i: P[i, 0] + Q[i, 5], name="D")
    s = te.create_schedule(D)
    i, p = s[P].op.axis
    s[P].bind(i, "blockIdx.x")
    s[P].bind(p, "blockIdx.y")
    s[Q].compute_with(s[P], p)
    s[D].bind(s[D].op.axis[0], "blockIdx.x")
    s[D].compute_last(P)
    assert len(te.lower(s, "triton-interpret").funcs) == 1
    assert agrees(s)
    s[D].compute_root()
    with refused(s, "Q runs together with P", "name P"):
        s[D].compute_last(Q)
    s = te.create_schedule(D)
    for axis in s[P].op.axis:
        s[P].parallel(axis)
    s[Q].compute_with(s[P], s[P].op.axis[0])
    s[D].parallel(s[D].op.axis[0])
    with refused(s, "Q runs in the kernel of P without sharing all loops", "share the grid"):
        s[D].compute_last(P)


def test_what_belongs_to_a_scan() -> None:
    state = te.placeholder((8, 4), name="state")
    X = te.placeholder((8, 4), name="X")
    first = te.compute((1, 4), lambda _, i: X[0, i], name="first")
    step = te.compute((8, 4), lambda t, i: state[t - 1, i] + X[t, i], name="step")
    R = te.scan(first, step, state, inputs=[X], name="R")
    assert isinstance(R, te.Tensor)
    D = te.compute((4,), lambda i: R[7, i], name="D")
    s = te.create_schedule(D)
    with refused(s, "scan"):
        s[D].compute_last(R)


def test_last_programs_of_a_part_of_its_own_grid():
    """No end of leaders: the parts run in the grid of a stage that their last programs would
    compute."""
    A = te.placeholder((8, 8), name="A")
    P = te.compute((8, 8), lambda i, j: A[i, j] + 1, name="P")
    k = te.reduce_axis((0, 8), name="k")
    S = te.compute((8,), lambda i: te.sum(P[i, k], axis=k), name="S")
    B = te.compute((8, 8), lambda i, j: A[i, j] * 2, name="B")
    s = te.create_schedule([S, B])
    for stage, tags in ((P, "xy"), (B, "xy"), (S, "x")):
        for axis, tag in zip(s[stage].op.axis, tags, strict=True):
            s[stage].bind(axis, f"blockIdx.{tag}")
    s[P].compute_with(s[B])
    s[S].compute_last(s[P])
    for other in (P, S):
        with refused(s, f"{other.name} runs together with B", "compute_root()"):
            s[B].compute_last(s[other])
    with refused(s, "B runs together with P", "compute_root"):
        s[B].compute_last(s[B])
