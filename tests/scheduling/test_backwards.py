"""reverse: loops that run from their last iteration to their first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import scans
from computations import chain, matmul
from lowering import after_passes, agrees
from refusals import refused

import tedsl as te
from tedsl.expr.nodes import Axis, Var
from tedsl.index.evaluate import evaluate_int
from tedsl.ir.nodes import For, Guard, Stmt, Store
from tedsl.ir.visit import sub_stmts
from tedsl.lower.pipeline import lower
from tedsl.target import Target

Golden = Callable[..., None]
TARGETS = [
    pytest.param("cpu", marks=pytest.mark.cpu),
    pytest.param("triton-interpret", marks=pytest.mark.ptxas),
]


def doubled(n: Any, m: int = 3) -> tuple[te.Schedule, te.Tensor]:
    """A matrix of `m` rows."""
    A = te.placeholder((m, n), name="A")
    B = te.compute((m, n), lambda i, j: A[i, j] * 2.0, name="B")
    return te.create_schedule(B), B


def order_of(s: te.Schedule, size: int = 0) -> list[int]:
    """Where in a row its pieces are stored, in the order in which the loops of Triton's IR run."""
    module = lower(s.plan, Target.parse("cuda:sm_90"))
    func = module.funcs[-1]
    places: list[int] = []

    def visit(stmt: Stmt, at: Mapping[Axis | Var, int]) -> None:
        if isinstance(stmt, For):
            for value in range(evaluate_int(stmt.start, at), evaluate_int(stmt.end, at)):
                visit(stmt.body, {**at, stmt.axis: value})
        elif isinstance(stmt, Store):
            first = {tile.axis: 0 for tile in stmt.tile}
            places.append(evaluate_int(stmt.indices[-1], {**at, **first}))
        elif not isinstance(stmt, Guard) or evaluate_int(stmt.condition, at):
            for child in sub_stmts(stmt):
                visit(child, at)

    visit(func.body, dict.fromkeys(func.sizes, size))
    return places


def test_the_nest_says_so(golden: Golden) -> None:
    s, B = doubled(100)
    _, j = s[B].op.axis
    outer, inner = s[B].split(j, 32)
    s[B].vectorize(inner)
    s[B].reverse(outer)
    assert s[B].plan.mark(outer).descending
    seen = after_passes(s, "cpu")
    names = ("build_nests", "partition_loops", "run_backwards", "simplify_tiles")
    golden("\n\n".join((str(s), *(f"{name}\n\n{seen[name]}" for name in names))))


def test_source(golden: Golden) -> None:
    s, B = doubled(100)
    i, j = s[B].op.axis
    outer, inner = s[B].split(j, 32)
    s[B].bind(i, "blockIdx.x")
    s[B].vectorize(inner)
    s[B].reverse(outer)
    s[B].pipeline(outer, num_stages=3)
    golden(te.build(s, "cuda:sm_90").source)


@pytest.mark.parametrize("way", ["plain", "unroll", "pipeline", "cut", "always", "never"])
def test_the_last_piece_comes_first(way: str) -> None:
    """A row of 100 in pieces of 16: the tail, then those before it."""
    s, B = doubled(100, 1)
    i, j = s[B].op.axis
    outer, inner = s[B].split(j, 16)
    s[B].bind(i, "blockIdx.x")
    s[B].vectorize(inner)
    changes: dict[str, Callable[[], None]] = {
        "plain": lambda: None,
        "unroll": lambda: s[B].unroll(outer),
        "pipeline": lambda: s[B].pipeline(outer, num_stages=2),
        "cut": lambda: s[B].cut(outer, 2, 5),
        "always": lambda: s[B].partition(outer, "always"),
        "never": lambda: s[B].partition(outer, "never"),
    }
    changes[way]()
    assert order_of(s) == [0, 16, 32, 48, 64, 80, 96]
    s[B].reverse(outer)
    assert order_of(s) == [96, 80, 64, 48, 32, 16, 0]
    assert agrees(s)
    s[B].serial(outer)
    assert order_of(s) == [0, 16, 32, 48, 64, 80, 96]


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 100])
@pytest.mark.parametrize("policy", ["auto", "always", "never"])
def test_symbolic_rows(size: int, policy: str) -> None:
    n = te.size_var("n")
    s, B = doubled(n, 1)
    i, j = s[B].op.axis
    outer, inner = s[B].split(j, 32)
    s[B].bind(i, "blockIdx.x")
    s[B].vectorize(inner)
    s[B].reverse(outer)
    s[B].partition(outer, policy)
    assert order_of(s, size) == [*range(0, size, 32)][::-1]
    assert agrees(s, {n: size})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", ["serial", "unroll", "pipeline", "attached", "double_buffer"])
def test_numbers(target: str, way: str) -> None:
    c = chain(100)
    s = te.create_schedule(c.D)
    s[c.B].compute_inline()
    outer, inner = s[c.D].split(c.D.op.axis[0], 16)
    s[c.D].vectorize(inner)
    if way in ("attached", "double_buffer"):
        s[c.C].compute_at(s[c.D], outer)
    if way in ("unroll", "pipeline", "serial"):
        getattr(s[c.D], way)(outer)
    s[c.D].reverse(outer)
    if way == "double_buffer":
        s[c.C].double_buffer()
        assert "(backwards and pipelined in 2 stages)" in str(s)
    assert agrees(s)
    plain = te.build(te.create_schedule(c.D), "cpu")
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    np.testing.assert_allclose(te.build(s, target)(x), plain(x), rtol=1e-6)


def test_what_masks_shorten_runs_backwards_too() -> None:
    """A triangle: the pieces that no mask cuts, behind those that one does."""
    A = te.placeholder((64, 64), name="A")
    k = te.reduce_axis((0, 64), name="k")
    B = te.compute((64,), lambda i: te.sum(A[i, k], axis=k, where=k <= i), name="B")
    s = te.create_schedule(B)
    (i,) = s[B].op.axis
    outer, inner = s[B].split(i, 16)
    s[B].reorder(outer, k, inner)
    s[B].vectorize(inner)
    s[B].reverse(outer)
    assert agrees(s)


def test_stages_that_share_a_loop() -> None:
    A = te.placeholder((40, 8), name="A")
    B = te.compute(A.shape, lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute(A.shape, lambda i, j: A[i, j] * 2.0, name="C")
    s = te.create_schedule([B, C])
    s[B].reverse(s[B].op.axis[0])
    s[C].compute_with(s[B], s[B].op.axis[0])
    assert agrees(s)
    k = te.reduce_axis((0, 40), name="k")
    folded = te.compute((8,), lambda j: te.sum(A[k, j], axis=k), name="F")
    t = te.create_schedule([B, folded])
    t[folded].reorder(k, t[folded].op.axis[0])
    t[B].reverse(t[B].op.axis[0])
    with refused(t, "i of B is backwards, and F folds over k in its order", "s[B].serial"):
        t[folded].compute_with(t[B], t[B].op.axis[0])


def test_refused() -> None:
    m = matmul()
    s = te.create_schedule(m.D)
    i, j = s[m.D].op.axis
    with refused(s, "k is a reduce axis: its iterations fold into one", "legal   i, j"):
        s[m.C].reverse(s[m.C].op.reduce_axis[0])
    s[m.D].bind(i, "blockIdx.x")
    with refused(s, "i is bound to blockIdx.x, and its iterations run at once", "descending=True"):
        s[m.D].reverse(i)
    s[m.D].reverse(j)
    assert "(backwards)" in str(s)
    with refused(s, "j is already backwards", "s[D].serial(j)"):
        s[m.D].reverse(j)
    for way in (s[m.D].vectorize, s[m.D].parallel):
        with refused(s, "j is backwards, and its iterations would run", "s[D].serial(j)"):
            way(j)
    with refused(s, "j is backwards, and programs start in an order", "descending=True"):
        s[m.D].bind(j, "blockIdx.y")
    with refused(s, "j is already backwards"):
        s[m.D].split(j, 4)
    s[m.D].serial(j)
    s[m.D].vectorize(j)
    with refused(s, "j is vectorized, and its iterations run at once", "s[D].serial(j)"):
        s[m.D].reverse(j)


def test_refused_of_steps() -> None:
    (total,) = scans.running_sum()
    s = te.create_schedule(total)
    step = s[total].leaf_iter_vars[0]
    with refused(s, "run one after the other: they cannot run backwards"):
        s[total].reverse(step)


def test_refused_of_windows() -> None:
    """What an iteration computes anew is what the one before has not."""
    A = te.placeholder((34, 20), name="A")
    B = te.compute((34, 20), lambda i, j: A[i, j] * 2.0, name="B")
    C = te.compute((32, 20), lambda i, j: B[i, j] + B[i + 1, j] + B[i + 2, j], name="C")
    s = te.create_schedule(C)
    outer, inner = s[C].split(s[C].op.axis[0], 8)
    s[B].compute_at(s[C], inner)
    s[B].store_at(s[C], outer)
    with refused(s, "is backwards: an iteration computes what the one before it has not"):
        s[C].reverse(inner)
    s[C].reverse(outer)
    assert agrees(s, targets=("cpu",))


def test_a_choice() -> None:
    s, B = doubled(100)
    s[B].reverse(te.auto)
    (knob,) = s.knobs
    assert (knob.name, knob.choices) == ("B.reverse.axis", (None, "i", "j"))
    assert "reverse" not in s.as_python()
