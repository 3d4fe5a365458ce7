"""divide: two stages store one result, each by a schedule of its own; also in one launch, where
tiles of the tail are folded in parts by several programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lowering import agrees, same_in_any_order
from refusals import refused

import tedsl as te
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace


def product(
    m: int = 33, n: int = 50, k: int = 100, dtype: str = "float32"
) -> tuple[te.Tensor, te.Tensor]:
    """A matrix product and what follows it."""
    A = te.placeholder((m, k), dtype, name="A")
    B = te.placeholder((k, n), dtype, name="B")
    bias = te.placeholder((n,), name="bias")
    r = te.reduce_axis((0, k), name="k")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    D = te.compute((m, n), lambda i, j: C[i, j] * 2.0 + bias[j], name="D")
    return C, D


def tiled(stage: te.Stage, others: tuple[Any, ...] = (), size: int = 16) -> Any:
    """Tiles over the grid, and `others` as the innermost loop of it."""
    i, j = (axis for axis in stage.op.axis if all(axis is not other for other in others))
    io, ii = stage.split(i, size)
    jo, ji = stage.split(j, size)
    stage.reorder(io, jo, *others, ii, ji)
    place = stage.fuse(io, jo)
    stage.bind(place, "blockIdx.x")
    for other in others:
        place = other
        stage.bind(place, "blockIdx.y")
    stage.vectorize(ii)
    stage.vectorize(ji)
    return place


def folded(s: te.Schedule, fold: Any, host: te.Stage, place: Any) -> None:
    """A fold in steps of 16, at a tile."""
    _, inner = s[fold].split(s[fold].op.reduce_axis[0], 16)
    s[fold].vectorize(inner)
    s[fold].compute_at(host, place)


def with_tail(
    C: te.Tensor, D: te.Tensor, dim: int, at: int, parts: int, part: int, first: str = "head"
) -> te.Schedule:
    """Whole tiles by one program each; those from `at` on by several, of which the last one adds up
    what all have folded; all in one launch."""
    s = te.create_schedule(D)
    head, tail = s.divide(D, s[D].op.axis[dim], at)
    whole, some = s.divide(C, s[C].op.axis[dim], at)
    folded(s, whole, s[head], tiled(s[head]))
    P = s.rfactor(some, s[some].split(s[some].op.reduce_axis[0], part)[0])
    number = s[P].op.axis[0]
    own = s.cache_write(P, "local")
    folded(s, own, s[P], tiled(s[P], (number,)))
    place = tiled(s[tail])
    s[some].vectorize(s[some].op.reduce_axis[0])
    s[some].compute_at(s[tail], place)
    s[tail].compute_last(s[P])
    if first == "head":
        s[P].compute_with(s[head])
    else:
        s[head].compute_with(s[P])
    assert len(te.lower(s, "triton-interpret").funcs) == 1
    assert parts == int(str(s[P].op.shape[0]))
    return s


# --- the pieces


def test_a_result_in_two_pieces(golden: Any) -> None:
    C, D = product()
    s = te.create_schedule(D)
    head, tail = s.divide(D, s[D].op.axis[1], 32)
    before = str(s)
    assert [t.op.name for t in s.divide(C, s[C].op.axis[1], 32)] == ["C.head", "C.tail"]
    assert [stage.name for stage in s.stages if stage.name == "C"] == []
    golden(f"{before}\n\n{s}\n\n{te.lower(s, 'cpu')}")
    assert (head.op.name, tail.op.name) == ("D.head", "D.tail")
    assert agrees(s)


def test_it_is_replayed_and_undone() -> None:
    C, D = product()
    s = te.create_schedule(D)
    start, plan = str(s), s.plan
    s.divide(D, s[D].op.axis[0], 16)
    s.divide(C, s[C].op.axis[0], 16)
    text = str(s)
    assert str(replay([D], Trace.from_json(s.trace.to_json()))) == text
    scope: dict[str, Any] = {"te": te, "D": D}
    exec(s.as_python(), scope)
    assert str(scope["s"]) == text
    s.undo(2)
    assert s.plan is plan and str(s) == start


def test_what_reads_across_the_border_reads_the_whole() -> None:
    A = te.placeholder((20,), name="A")
    B = te.compute((20,), lambda i: A[i] * 2.0, name="B")
    C = te.compute((18,), lambda i: B[i] + B[i + 2], name="C")
    E = te.compute((4,), lambda i: B[i] + B[i + 16], name="E")
    s = te.create_schedule([C, E])
    s.divide(B, s[B].op.axis[0], 8)
    assert "B: float32[20] is stored by B.head, and from i = 8 on by B.tail" in str(s)
    assert "E[i] = B.head[i] + B.tail[i + 8]" in str(s)
    assert "C[i] = B[i] + B[i + 2]" in str(s)
    assert agrees(s)


def test_pieces_of_pieces_and_of_several_outputs() -> None:
    A = te.placeholder((20, 6), name="A")
    k = te.reduce_axis((0, 6), name="k")
    B = te.compute((20,), lambda i: te.sum(A[i, k], axis=k), name="B")
    C, D = te.compute((20,), lambda i: (B[i] + 1.0, B[i] * 2.0), name="C")
    s = te.create_schedule([C, D])
    _, tail = s.divide(D, s[D].op.axis[0], 9)
    assert tail.index == 1
    s.divide(tail, s[tail].op.axis[0], 4)
    s.divide(B, s[B].op.axis[0], 3)
    assert agrees(s)


def test_inlined_stages_are_divided_too() -> None:
    C, _ = product()
    D = te.compute((33, 50), lambda i, j: te.tanh(C[i, j]), name="D")
    E = te.compute((33, 50), lambda i, j: D[i, j] + 1.0, name="E")
    s = te.create_schedule(E)
    s[D].compute_inline()
    for tensor in (E, D, C):
        s.divide(tensor, s[tensor].op.axis[0], 32)
    assert "E.head[i, j] = tanh(C.head[i, j]) + 1.0" in str(s)
    assert agrees(s)


def test_symbolic_sizes() -> None:
    n = te.size_var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    s = te.create_schedule(B)
    with refused(s, "at is 8, and i has n positions: the tail could be empty", "s.assume"):
        s.divide(B, s[B].op.axis[0], 8)
    s.assume(n > 8)
    s.divide(B, s[B].op.axis[0], 8)
    assert agrees(s, {n: 9}) and agrees(s, {n: 30})
    s.undo()
    s.assume(n >= 4)
    s.divide(B, s[B].op.axis[0], n // 2)
    assert agrees(s, {n: 9}) and agrees(s, {n: 30})


# --- what is refused


def test_refused_at_the_call() -> None:
    C, D = product()
    s = te.create_schedule(D)
    i, j = s[D].op.axis
    with refused(s, "at is 50, and j has 50 positions", "allowed 1 .. 49"):
        s.divide(D, j, 50)
    with refused(s, "at is 0", "an int of at least 1"):
        s.divide(D, j, 0)
    with refused(s, "k is folded: every element of C needs all of it", "s.rfactor(C, ...)"):
        s.divide(C, s[C].op.reduce_axis[0], 16)
    with refused(s, "A is an input of the computation"):
        s.divide(s["A"], i, 16)
    s[C].compute_at(s[D], i)
    with refused(s, "C is attached at D.i", "compute_root"):
        s.divide(C, s[C].op.axis[0], 16)
    with refused(s, "C is attached at D.i, a loop that this call rebuilds"):
        s.divide(D, i, 16)
    s[C].compute_root()
    s[D].vectorize(j)
    with refused(s, "j is vectorized, and the loops of D are rebuilt"):
        s.divide(D, i, 16)
    s[D].serial(j)
    s[D].split(i, 16)
    with refused(s, "the loops of D have been split or fused"):
        s.divide(D, j, 16)


@pytest.mark.parametrize(
    "said, text",
    [
        (lambda s, D, E: s[D].launch(num_warps=4), "D has launch options"),
        (lambda s, D, E: s[D].compute_with(s[E]), "D runs together with E"),
        (lambda s, D, E: s[E].compute_with(s[D]), "D runs together with E"),
    ],
)
def test_refused_where_something_was_said(said: Any, text: str) -> None:
    _, D = product()
    A = te.placeholder((33, 50), name="X")
    E = te.compute((33, 50), lambda i, j: A[i, j] + 1.0, name="E")
    s = te.create_schedule([D, E])
    said(s, D, E)
    with refused(s, text, "divide"):
        s.divide(D, s[D].op.axis[0], 16)


def test_pieces_stay_where_they_are_stored() -> None:
    _, D = product()
    E = te.compute((33, 50), lambda i, j: D[i, j] + 1.0, name="E")
    s = te.create_schedule([D, E])
    head, tail = s.divide(D, s[D].op.axis[1], 32)
    with refused(s, "D is stored by D.head and D.tail (divide) and has no loops", "s[D.head]"):
        s[D].split(s[D].op.axis[0], 4)
    with refused(s, "D is stored by two stages (divide), and computes nothing itself"):
        s.cache_write(s["D"], "local")
    with refused(s, "D.tail stores a piece of D, and its dimensions are those of D"):
        s[tail].transform_layout(lambda i, j: (j, i))
    with refused(s, "D.tail stores a piece of D, and its dimensions are those of D"):
        s[tail].transform_layout(lambda i, j: (i, 17 - j))
    with refused(s, "D.head stores a piece of D, whose rows are as long as its shape says"):
        s[head].storage_align(s[head].op.axis[0], 64)
    with refused(s, "D.head stores a piece of D, and would be inlined", "leave D.head at root"):
        s[head].compute_inline()
    assert s[head].legal_places() == () and s["D"].legal_places() == ()
    te.schedule.AutoInlineInjective(s)
    assert agrees(s)


def test_pieces_of_a_result_that_nobody_reads_may_be_anywhere() -> None:
    C, D = product()
    s = te.create_schedule(D)
    head, _ = s.divide(D, s[D].op.axis[1], 32)
    first, _ = s.divide(C, s[C].op.axis[1], 32)
    s[first].transform_layout(lambda i, j: (j, i))
    s[first].compute_at(s[head], s[head].op.axis[0])
    assert agrees(s)


# --- a tail that several programs fold, in the launch of the others


def test_one_launch(golden: Any) -> None:
    C, D = product()
    s = with_tail(C, D, 1, 32, 2, 64)
    golden(f"{s}\n\n{te.lower(s, 'triton-interpret')}")


def test_source(golden: Any) -> None:
    C, D = product()
    golden(te.build(with_tail(C, D, 1, 32, 2, 64), "triton-interpret").source)


@pytest.mark.cpu
@pytest.mark.parametrize("first", ["head", "tail"])
@pytest.mark.parametrize(
    "m, n, k, dim, at, parts, part",
    [
        (17, 50, 100, 1, 32, 2, 64),
        (33, 18, 100, 0, 32, 4, 32),
        (17, 33, 48, 1, 32, 3, 16),
        (16, 48, 16, 1, 16, 1, 16),
        (40, 20, 37, 0, 16, 3, 16),
    ],
)
def test_numbers(m: int, n: int, k: int, dim: int, at: int, parts: int, part: int, first: str):
    C, D = product(m, n, k)
    s = with_tail(C, D, dim, at, parts, part, first)
    assert agrees(s, bound=1e-4)
    assert same_in_any_order(s)
    values = np.random.default_rng(3).standard_normal
    a, b, bias = (values(shape).astype(np.float32) for shape in ((m, k), (k, n), (n,)))
    for target in ("cpu", "triton-interpret"):
        found = te.build(s, target)(a, b, bias)
        np.testing.assert_allclose(found, a @ b * 2 + bias, rtol=1e-4, atol=1e-4)


def test_the_last_programs_read_nothing_of_the_others() -> None:
    """What the programs beside the parts compute may not be there yet."""
    A = te.placeholder((16, 6), name="A")
    P = te.compute((6, 16), lambda p, i: A[i, p] * 2.0, name="P")
    B = te.compute((16,), lambda i: A[i, 0] + 1.0, name="B")
    D = te.compute((16,), lambda i: P[0, i] + P[5, i] + B[i], name="D")
    s = te.create_schedule([D, B])
    s[P].bind(s[P].op.axis[0], "blockIdx.x")
    s[B].compute_with(s[P])
    with refused(s, "D reads B[i], which other programs of the kernel compute", "give B a kernel"):
        s[D].compute_last(s[P])
    s[B].compute_root()
    s[D].compute_last(s[P])
    with refused(s, "D reads B[i], which other programs of the kernel compute"):
        s[B].compute_with(s[P])


def test_parts_that_share_loops_with_others_have_last_programs() -> None:
    """Programs of two kinds in one grid, the second of which has a last one for each tile."""
    A = te.placeholder((16, 6), name="A")
    P = te.compute((16, 6), lambda i, p: A[i, p] * 2.0, name="P")
    D = te.compute((16,), lambda i: P[i, 0] + P[i, 5], name="D")
    B = te.compute((5,), lambda i: A[i, 0] + 1.0, name="B")
    s = te.create_schedule([D, B])
    i, p = s[P].op.axis
    s[P].bind(i, "blockIdx.x")
    s[P].bind(p, "blockIdx.y")
    s[D].bind(s[D].op.axis[0], "blockIdx.x")
    s[B].bind(s[B].op.axis[0], "blockIdx.x")
    s[P].compute_with(s[B])
    s[D].compute_last(s[P])
    assert len(te.lower(s, "triton-interpret").funcs) == 1
    assert "    by the last programs D: float32[16]" in str(s)
    assert agrees(s) and same_in_any_order(s)
    scope: dict[str, Any] = {"te": te, "D": D, "B": B}
    exec(s.as_python(), scope)
    assert str(scope["s"]) == str(s)
