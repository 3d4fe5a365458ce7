"""Folds over a triangle of a tile are running folds on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lowering import after_passes, agrees

import tedsl as te
from tedsl.ir.nodes import Accumulate
from tedsl.ir.visit import walk_stmts

ROWS, COLUMNS = 6, 50
Fold = Callable[..., te.Expr]
Test = Callable[[te.Expr, te.Expr], te.Expr]


def folded(
    where: Test, fold: Fold = te.sum, offset: bool = False, dtype: str = "float32"
) -> te.Schedule:
    """Rows of folds over those k that a test lets pass, one row for each of four programs."""
    x = te.placeholder((ROWS, COLUMNS), dtype, name="x")
    k = te.reduce_axis((0, COLUMNS), name="k")

    def value(i: te.Axis, j: te.Axis) -> te.Expr:
        term = x[i, k] * j if offset else x[i, k]
        return fold(term, axis=k, where=where(k, j))

    p = te.compute((ROWS, COLUMNS), value, name="P")
    y = te.compute(p.shape, lambda i, j: p[i, j] + 1, name="y")
    s = te.create_schedule(y)
    outer, inner = s[y].split(y.op.axis[0], factor=4)
    s[y].reorder(outer, inner, y.op.axis[1])
    s[y].bind(outer, "blockIdx.x")
    s[p].compute_at(s[y], outer)
    for axis in (inner, y.op.axis[1]):
        s[y].vectorize(axis)
    for axis in (*p.op.axis, k):
        s[p].vectorize(axis)
    return s


def running(s: te.Schedule) -> list[Accumulate]:
    module = te.lower(s, target="cuda:sm_90", check=True)
    found = (stmt for func in module.funcs for stmt in walk_stmts(func.body))
    return [stmt for stmt in found if isinstance(stmt, Accumulate) and stmt.along is not None]


TRIANGLES: dict[str, Test] = {
    "k <= j": lambda k, j: k <= j,
    "j >= k": lambda k, j: j >= k,
    "k < j + 1": lambda k, j: k < j + 1,
    "and another test of k": lambda k, j: te.all(k <= j, k > 3),
}


@pytest.mark.parametrize("name", TRIANGLES)
def test_triangles(name: str) -> None:
    s = folded(TRIANGLES[name])
    assert len(running(s)) == 1
    assert agrees(s)


@pytest.mark.parametrize(
    ("fold", "dtype"),
    [
        (te.sum, "float16"),
        (te.sum, "int8"),
        (te.prod, "float64"),
        (te.max, "float32"),
        (te.min, "int32"),
        (te.max, "int8"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_reducers(fold: Fold, dtype: str) -> None:
    s = folded(lambda k, j: k <= j, fold, dtype=dtype)
    assert len(running(s)) == 1
    assert agrees(s)


def test_a_tuple_is_combined_in_order() -> None:
    x = te.placeholder((COLUMNS,), name="x")
    k = te.reduce_axis((0, COLUMNS), name="k")
    best = te.comm_reducer(
        lambda a, b: (
            te.select(te.any(b[0] > a[0], te.all(b[0].equal(a[0]), b[1] > a[1])), b[0], a[0]),
            te.select(te.any(b[0] > a[0], te.all(b[0].equal(a[0]), b[1] > a[1])), b[1], a[1]),
        ),
        lambda t0, t1: (te.min_value(t0), te.const(-1, t1)),
        name="best",
    )
    outs = te.compute(
        (COLUMNS,), lambda j: best((x[k], te.cast(k, "int32")), axis=k, where=k <= j), name="P"
    )
    s = te.create_schedule(list(outs))
    c = s.cache_write(list(outs), "local")[0]
    (j,) = s["P"].op.axis
    outer, inner = s["P"].split(j, factor=64)
    s["P"].bind(outer, "blockIdx.x")
    s["P"].vectorize(inner)
    s[c].compute_at(s["P"], outer)
    for axis in (*s[c].op.axis, *s[c].op.reduce_axis):
        s[c].vectorize(axis)
    assert len(running(s)) == 1
    assert "tl.associative_scan" in te.build(s, target="triton-interpret").source
    assert agrees(s)


@pytest.mark.parametrize(
    "where",
    [lambda k, j: k < j, lambda k, j: k >= j, lambda k, j: k <= 2 * j],
    ids=["without itself", "the other triangle", "steeper"],
)
def test_what_is_none(where: Test) -> None:
    assert not running(folded(where))
    assert agrees(folded(where))


def test_a_term_that_depends_on_both_is_none() -> None:
    s = folded(lambda k, j: k <= j, offset=True, dtype="float64")
    assert not running(s)
    assert agrees(s)


def test_printed() -> None:
    shown = after_passes(folded(lambda k, j: k <= j), "cuda:sm_90")["find_prefixes"]
    assert "running along j" in shown and "k <= " not in shown
