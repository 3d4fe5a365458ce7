"""scatter: reductions run the other way round, their points folded where data say."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.expr.nodes import Axis
from tedsl.schedules import schedule_for

TARGETS = [
    pytest.param("cpu", marks=pytest.mark.cpu),
    pytest.param("triton-interpret", marks=pytest.mark.ptxas),
]
ELEMENTS = ("float32", "float16", "int64", "int8")
FOLDS = ("sum", "max", "min", "prod")


def by_group(
    rows: Any = 50,
    columns: int = 7,
    groups: Any = 5,
    fold: str = "sum",
    element: str = "float32",
    number: str = "int32",
    init: Any = None,
    **options: Any,
) -> tuple[te.Schedule, te.Tensor, Axis]:
    """Rows folded into groups, and the axis of the rows."""
    A = te.placeholder((rows, columns), element, name="A")
    X = te.placeholder((rows,), number, name="X")
    i = te.reduce_axis((0, rows), name="i")

    def element_of(g: Axis, j: Axis) -> Any:
        start = {} if init is None else {"init": init(g, j)}
        return getattr(te, fold)(A[i, j], axis=i, where=X[i] == g, **start, **options)

    C = te.compute((groups, columns), element_of, name="C")
    s = te.create_schedule(C)
    return s, C, i


def tiled(s: te.Schedule, C: te.Tensor, i: Axis, rows: int = 16, columns: int = 4) -> None:
    """Tiles of rows and columns, at the same time."""
    outer, inner = s[C].split(i, rows)
    right, lanes = s[C].split(s[C].op.axis[1], columns)
    s[C].reorder(outer, right, inner, lanes)
    s[C].atomic()
    s[C].bind(outer, "blockIdx.x")
    s[C].bind(right, "blockIdx.y")
    s[C].vectorize(inner)
    s[C].vectorize(lanes)


def given(
    rows: int, columns: int, groups: int, element: str, number: str, seed: int = 0
) -> tuple[Any, Any]:
    """Whole numbers, and groups of which some are none."""
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, (rows, columns)).astype(element)
    low = 0 if number.startswith("u") else -3
    return a, rng.integers(low, groups + 3, rows).astype(number)


def expected(a: Any, x: Any, groups: int, fold: str, start: Any = None) -> Any:
    best = np.finfo(a.dtype) if a.dtype.kind == "f" else np.iinfo(a.dtype)
    low = -np.inf if a.dtype.kind == "f" else best.min
    high = np.inf if a.dtype.kind == "f" else best.max
    first = {"sum": 0, "prod": 1, "max": low, "min": high}[fold]
    found = np.full((groups, a.shape[1]), first, a.dtype) if start is None else start.copy()
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[fold]
    inside = (x >= 0) & (x < groups)
    ufunc.at(found, x[inside].astype(int), a[inside])
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("fold", "element", "number"),
    [
        *((fold, element, "int32") for fold in FOLDS for element in ELEMENTS),
        *(("sum", "int32", number) for number in ("int64", "uint8", "int16")),
    ],
)
def test_folds_by_group(target: str, fold: str, element: str, number: str) -> None:
    options = {"dtype": element} if fold in ("sum", "prod") else {}
    s, C, i = by_group(33, 7, 5, fold, element, number, **options)
    s[C].scatter(s[C].op.axis[0])
    if fold != "prod":
        tiled(s, C, i, 8, 4)
    a, x = given(33, 7, 5, element, number)
    a = np.sign(a) if fold == "prod" else a
    np.testing.assert_array_equal(te.build(s, target=target)(a, x), expected(a, x, 5, fold))


@pytest.mark.parametrize("target", TARGETS)
def test_turned_choices_counts_and_starts(target: str) -> None:
    X = te.placeholder((70,), "int64", name="X")
    i = te.reduce_axis((0, 70), name="i")
    C = te.compute(
        (6,),
        lambda g: te.sum(te.if_then_else(g == X[i], te.const(1, "int32"), 0), axis=i),
        name="C",
    )
    D = te.compute((6,), lambda g: te.max(i, axis=i, where=X[i] == g, init=-1), name="D")
    s = te.create_schedule([C, D])
    for each in (C, D):
        s[each].scatter(s[each].op.axis[0])
        s[each].atomic()
        s[each].vectorize(s[each].split(s[each].op.reduce_axis[0], 32)[1])
    x = np.random.default_rng(1).integers(-2, 8, 70)
    counts, last = te.build(s, target=target)(x)
    np.testing.assert_array_equal(counts, [(x == g).sum() for g in range(6)])
    np.testing.assert_array_equal(last, [max(np.flatnonzero(x == g), default=-1) for g in range(6)])


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_that_are_alike_count_each(target: str) -> None:
    X = te.placeholder((3,), "int32", name="X")
    k, h = te.reduce_axis((0, 16), name="k"), te.reduce_axis((0, 3), name="h")
    C = te.compute((4,), lambda g: te.sum(h + 1, axis=[k, h], where=X[h] == g), name="C")
    s = te.create_schedule(C)
    s[C].scatter(s[C].op.axis[0])
    s[C].atomic()
    s[C].vectorize(k)
    x = np.array([1, 1, 2], "int32")
    np.testing.assert_array_equal(te.build(s, target=target)(x), [0, 48, 48, 0])


@pytest.mark.parametrize("target", TARGETS)
def test_places_of_two_dimensions_and_along_rows(target: str) -> None:
    A = te.placeholder((40, 6), "int32", name="A")
    X, Y = (te.placeholder((40, 6), "int32", name=name) for name in "XY")
    i, j = te.reduce_axis((0, 40), name="i"), te.reduce_axis((0, 6), name="j")

    def both(g: Any, h: Any) -> Any:
        where = te.all(X[i, j] == g, Y[i, j] == h, A[i, j] > 0)
        return te.sum(A[i, j], axis=[i, j], where=where)

    C = te.compute((4, 9), both, name="C")
    k = te.reduce_axis((0, 40), name="k")
    D = te.compute((4, 6), lambda g, r: te.sum(A[k, r], axis=k, where=X[k, r] == g), name="D")
    s = te.create_schedule([C, D])
    for axis in s[C].op.axis:
        s[C].scatter(axis)
    s[D].scatter(s[D].op.axis[0])
    for each in (C, D):
        s[each].atomic()
        outer, inner = s[each].split(s[each].op.reduce_axis[0], 8)
        s[each].bind(outer, "blockIdx.x")
        s[each].vectorize(inner)
    rng = np.random.default_rng(2)
    a, x, y = (rng.integers(-3, high, (40, 6)).astype("int32") for high in (9, 6, 12))
    c, d = te.build(s, target=target)(a, x, y)
    wanted, rows = np.zeros((4, 9), "int32"), np.zeros((4, 6), "int32")
    for n in range(40):
        for m in range(6):
            if 0 <= x[n, m] < 4:
                rows[x[n, m], m] += a[n, m]
                if 0 <= y[n, m] < 9 and a[n, m] > 0:
                    wanted[x[n, m], y[n, m]] += a[n, m]
    np.testing.assert_array_equal(c, wanted)
    np.testing.assert_array_equal(d, rows)


@pytest.mark.parametrize("target", TARGETS)
def test_producers_in_the_loops_and_sizes_of_the_call(target: str) -> None:
    n, groups = te.var("n"), te.var("groups")
    A = te.placeholder((n, 5), "int32", name="A")
    X = te.placeholder((n,), "int32", name="X")
    T = te.placeholder((groups, 5), "int32", name="T")
    B = te.compute((n, 5), lambda i, j: A[i, j] * 2, name="B")
    Y = te.compute((n,), lambda i: X[i] // 2, name="Y")
    i = te.reduce_axis((0, n), name="i")
    C = te.compute(
        (groups, 5),
        lambda g, j: te.sum(B[i, j] + T[g, j], axis=i, where=Y[i] == g),
        name="C",
    )
    s = te.create_schedule(C)
    s[B].compute_inline()
    s[C].scatter(s[C].op.axis[0])
    outer, inner = s[C].split(i, 8)
    s[C].reorder(outer, inner, s[C].op.axis[1])
    s[Y].compute_at(s[C], outer)
    rng = np.random.default_rng(3)
    a, t = (rng.integers(-9, 9, (m, 5)).astype("int32") for m in (37, 6))
    x = rng.integers(-4, 16, 37).astype("int32")
    got = te.build(s, target=target)(a, t, x)
    y = x // 2
    inside = (y >= 0) & (y < 6)
    wanted = np.zeros((6, 5), "int32")
    np.add.at(wanted, y[inside], 2 * a[inside] + t[y[inside]])
    np.testing.assert_array_equal(got, wanted)


def test_what_is_read_beyond_the_end_of_the_rows_is_masked() -> None:
    s, C, i = by_group()
    s[C].scatter(s[C].op.axis[0])
    tiled(s, C, i)
    source = te.build(s, target="cuda:sm_90").source
    assert source.count("tl.load(X + ") == 1 and "tl.load(X + i, mask=m_i" in source
    assert "tl.atomic_add(C + (x[:, None] * 7" in source


@pytest.mark.parametrize("scattered", [True, False])
def test_skewed_lanes_ask_data_only_where_they_fold(scattered: bool) -> None:
    """Lanes that are ahead of others stand before the first of the rows, which has no group."""
    n = te.size_var("n")
    a, x = te.placeholder((n, 16), "int32", name="A"), te.placeholder((n,), "int32", name="X")
    i = te.reduce_axis((0, n), name="i")
    c = te.compute((3, 16), lambda g, j: te.sum(a[i, j], axis=i, where=x[i] - 1 == g), name="C")
    s = te.create_schedule(c)
    g, j = s[c].op.axis
    if scattered:
        s[c].scatter(g)
    s[c].reorder(i, j)
    s[c].vectorize(j)
    skewed = s[c].skew(i, j, step=4, modulus=8)
    s[c].partition(s[c].split(skewed, 4)[0], policy="ends")
    assert agrees(s, {n: 17})


def test_the_printed_schedule_says_so() -> None:
    s, C, _ = by_group()
    s[C].scatter(s[C].op.axis[0])
    assert "kernel C: float32[5, 7]  (scattered along g)\n  for j in 0..7" in str(s)


# --- legality


def test_a_condition_says_the_value() -> None:
    s, C, _ = by_group()
    g, j = s[C].op.axis
    with refused(s, "no condition of C says which j a point is folded into", "allowed g"):
        s[C].scatter(j)
    outer, _ = s[C].split(g, 2)
    with refused(s, "g is no loop of C any more: it has been split"):
        s[C].scatter(g)
    with refused(s, "g.outer is no data axis of the definition of C"):
        s[C].scatter(outer)
    A = te.placeholder((50, 7), name="A")
    X = te.placeholder((50,), "uint32", name="X")
    Y = te.placeholder((50, 5), "int32", name="Y")
    i = te.reduce_axis((0, 50), name="i")
    conditions = (
        lambda g: X[i] == te.cast(g, "uint32"),
        lambda g: Y[i, g] == g,
        lambda g: X[i] <= 3,
        lambda g: te.cast(g, "float32") == A[i, 0],
    )
    for condition in conditions:
        given = partial(lambda c, g: te.sum(A[i, 0], axis=i, where=c(g)), condition)
        D = te.compute((5,), given, name="D")
        s = te.create_schedule(D)
        with refused(s, "no condition of D says which g a point is folded into"):
            s[D].scatter(s[D].op.axis[0])
    E = te.compute((5,), lambda g: A[g, 0] + 1, name="E")
    s = te.create_schedule(E)
    with refused(s, "no condition of E says which g a point is folded into"):
        s[E].scatter(s[E].op.axis[0])


def test_what_runs_at_once_is_atomic() -> None:
    s, C, i = by_group()
    s[C].scatter(s[C].op.axis[0])
    with refused(s, "iterations of i that run at once may be folded into one element", "atomic()"):
        s[C].vectorize(i)
    with refused(s, "i is a reduce axis: its iterations write the same elements of C"):
        s[C].bind(i, "blockIdx.x")
    s, D, k = by_group()
    s[D].vectorize(k)
    with refused(s, "iterations of i that run at once may be folded into one element", "atomic()"):
        s[D].scatter(s[D].op.axis[0])


def test_it_stays_as_it_is_and_by_itself() -> None:
    _, C, i = by_group()
    D = te.compute((5, 7), lambda g, j: C[g, j] + 1, name="D")
    s = te.create_schedule(D)
    s[C].scatter(s[C].op.axis[0])
    with refused(s, "C is scattered and computed inside D"):
        s[C].compute_at(s[D], s[D].op.axis[0])
    with refused(s, "C is scattered: data say which of its elements", "before scatter"):
        s.rfactor(C, i)
    with refused(s, "C is scattered: data say which of its elements", "before scatter"):
        s.cache_write(C, "local")
    s = te.create_schedule(D)
    s[C].compute_at(s[D], s[D].op.axis[0])
    with refused(s, "C is scattered and computed inside D"):
        s[C].scatter(s[C].op.axis[0])
    B = te.placeholder((5,), name="B")
    F = te.compute((5,), lambda g: B[g] * 2, name="F")
    A, X = te.placeholder((50,), name="A"), te.placeholder((50,), "int32", name="X")
    k = te.reduce_axis((0, 50), name="k")
    E = te.compute((5,), lambda g: te.sum(A[k], axis=k, where=X[k] == g, init=F[g]), name="E")
    s = te.create_schedule(E)
    s[F].compute_at(s[E], s[E].op.axis[0])
    with refused(s, "F is attached at E.g, which would be no loop any more", "before"):
        s[E].scatter(s[E].op.axis[0])


@pytest.mark.parametrize("target", TARGETS)
def test_what_it_starts_from_is_computed_before(target: str) -> None:
    B = te.placeholder((5, 7), "int32", name="B")
    D = te.compute((5, 7), lambda g, j: B[g, j] * 2, name="D")
    s, C, i = by_group(fold="sum", element="int32", init=lambda g, j: D[g, j])
    s[C].scatter(s[C].op.axis[0])
    tiled(s, C, i)
    a, x = given(50, 7, 5, "int32", "int32")
    b = np.arange(35, dtype="int32").reshape(5, 7)
    kernel = te.build(s, target=target)
    np.testing.assert_array_equal(kernel(A=a, X=x, B=b), expected(a, x, 5, "sum", start=2 * b))


def test_what_is_read_through_an_inlined_stage_is_stored() -> None:
    """A fold is not computed within the only kernel that seems to read it."""
    n, m = te.size_var("n"), 1
    x, ids = te.placeholder((m, m), name="x"), te.placeholder((m,), "int32", name="ids")
    k, r, q = (te.reduce_axis((0, m)) for _ in range(3))
    first = te.compute(
        (m, m), lambda i, j: te.sum(x[r, j], axis=r, where=te.equal(ids[r], i)), name="first"
    )
    most = te.compute((m,), lambda i: te.max(first[i, k], axis=k), name="most")
    off = te.compute((m, m), lambda i, j: first[i, j] - most[i], name="off")
    last = te.compute(
        (n, m), lambda i, j: te.sum(off[q, j], axis=q, where=te.equal(ids[q], i)), name="last"
    )
    s = schedule_for(last, "cuda:sm_90")
    assert [func.name for func in te.lower(s, "cuda:sm_90").funcs][-1] == "last"
