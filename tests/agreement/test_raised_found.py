"""What schedules that raised when they were made, or went on for ever, were made smaller to."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.ir.interp import run
from tedsl.reference.reference import evaluate
from tedsl.schedules import schedule_for

Arrays = dict[te.Tensor, np.ndarray]


def _agrees(s: te.Schedule, data: Arrays, sizes: dict[te.Var, int] | None = None) -> None:
    """As the definitions say, in loops and in programs of tiles, of which there is a text."""
    want = evaluate(s.outputs, data, sizes or {})
    for target in ("cpu", "triton-interpret"):
        module = te.lower(s, target, check=True)
        by_name = {tensor.name: array for tensor, array in data.items()}
        given = {buffer: by_name[buffer.name] for buffer in module.inputs}
        found = run(module, given, sizes or {})
        for got, wanted in zip(found.values(), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")


@pytest.mark.parametrize("again", ["inline", "root"])
@pytest.mark.parametrize("order", list(permutations("ypt")), ids="".join)
def test_kernels_run_together_where_no_third_stands_between(order: str, again: str) -> None:
    """The maximum of a row is stored by the kernel of `t`, which reads `p`, whichever of the three
    is scheduled first: `y`, which reads the maximum, is in no kernel with `p`."""
    x, b = (te.placeholder((4, 56), name=name) for name in "xb")
    k = te.reduce_axis((0, 56), name="k")
    m = te.compute((4,), lambda i: te.max(x[i, k], axis=k), name="m")
    y = te.compute((4, 56), lambda i, j: b[i, j] + m[i], name="y")
    p = te.compute((4, 56), lambda i, j: te.exp(b[j // 14, j] * b[i, j]), name="p")
    k = te.reduce_axis((0, 56), name="k")
    t = te.compute((4,), lambda i: te.sum(te.exp(x[i, k] - m[i]) * p[i, k], axis=k), name="t")
    outputs = [{"y": y, "p": p, "t": t}[name] for name in order]
    s = schedule_for(outputs, "cuda:sm_90", {"m.again.place": again})
    assert "with m: float32[4]" in str(s), "stored by the kernel of t"
    rng = np.random.default_rng(1)
    _agrees(s, {tensor: rng.normal(size=(4, 56)).astype("f4") for tensor in (x, b)})


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("online", [False, True])
def test_rows_of_one_column_are_those_of_what_is_stored_beside(columns: int, online: bool) -> None:
    """A loop fused with one of a single turn is that loop: the results of rows that both read are
    of one row then, where rows are taken by persistent programs."""
    n = te.size_var("n", "int32")
    x, w = te.placeholder((n, 56), name="x"), te.placeholder((56, columns), name="w")
    folds = [te.reduce_axis((0, 56), name="k") for _ in range(3)]
    a, b, c = folds
    q = te.compute((n,), lambda i: te.sum(x[i, a] * x[i, a], axis=a), name="q")
    y = te.compute((n, columns), lambda i, j: te.sum(x[i, b] * q[i] * w[b, j], axis=b), name="y")
    z = te.compute((n,), lambda i: te.max(x[i, c] * q[i], axis=c), name="z")
    decisions = {"y.whole_row": False, "y.online": online, "y.resident": 1}
    s = schedule_for([y, z], "cuda:sm_90", decisions if columns == 1 else {})
    rng = np.random.default_rng(1)
    data = {x: rng.integers(-2, 3, (140, 56)), w: rng.integers(-2, 3, (56, columns))}
    _agrees(s, {tensor: array.astype("f4") for tensor, array in data.items()}, {n: 140})


@pytest.mark.parametrize("how", ["split", "fused", "as it is"])
def test_cached_loops_are_skewed_along_what_is_split(how: str) -> None:
    """Where a loop of the definition starts is then told by the loops that the other became."""
    x = te.placeholder((3, 8, 4), "int32", name="x")
    y = te.compute((3, 8, 4), lambda i, j, k: x[i, j, k] * 2 + 1, name="y")
    s = te.create_schedule(y)
    i, j, k = y.op.axis
    if how == "split":
        s[y].split(j, factor=3)
    elif how == "fused":
        s[y].fuse(j, k)
    s[y].skew(i, j, step=2, modulus=5)
    s.cache_write(y, "local")
    _agrees(s, {x: np.arange(96, dtype="i4").reshape(3, 8, 4)})


def test_a_reduction_of_one_loop_along_with_one_of_two() -> None:
    """There is nothing to be flattened in the first, and the chain is refused."""
    x = te.placeholder((4, 6, 8), name="x")
    k, h = te.reduce_axis((0, 6), name="k"), te.reduce_axis((0, 8), name="h")
    y = te.compute((4,), lambda i: te.sum(x[i, k, h], axis=[k, h]), name="y")
    k = te.reduce_axis((0, 4), name="k")
    z = te.compute((1,), lambda i: te.sum(y[k], axis=k), name="z")
    s = te.create_schedule(z)
    outer, _ = s[y].split(y.op.reduce_axis[0], nparts=2)
    with pytest.raises(te.ScheduleError, match=r"y.*a chain shares exactly one"):
        s.split_online(s[y], outer, along=[s[z]])
    _agrees(s, {x: np.arange(192, dtype="f4").reshape(4, 6, 8)})


def test_stages_in_each_other_are_refused_where_others_read_them() -> None:
    """What they read is judged by the loops around its readers, which have no end."""
    x = te.placeholder((4, 8), name="x")
    a = te.compute((4, 8), lambda i, j: x[i, j] * 2.0, name="a")
    u = te.compute((4, 8), lambda i, j: a[i, j] + 1.0, name="u")
    v = te.compute((4, 8), lambda i, j: u[i, j] + 1.0, name="v")
    y = te.compute((4, 8), lambda i, j: v[i, j] + 3.0, name="y")
    s = te.create_schedule(y)
    s[v].compute_at(s[y], y.op.axis[0])
    s[u].compute_at(s[v], v.op.axis[0])
    s[a].compute_at(s[y], y.op.axis[0])
    with pytest.raises(te.ScheduleError, match="v is itself computed inside u"):
        s[v].compute_at(s[u], u.op.axis[0])
    _agrees(s, {x: np.arange(32, dtype="f4").reshape(4, 8)})


def _fold(x: te.Tensor, name: str, body: Callable[[te.Expr, te.Expr], te.Expr]) -> te.Tensor:
    rows, length = x.shape
    k = te.reduce_axis((0, length), name="k")
    return te.compute((rows,), lambda i: te.sum(body(i, k), axis=k), name=name)


def _columns(x: te.Tensor, name: str, body: Callable[[te.Expr, te.Expr], te.Expr]) -> te.Tensor:
    rows, length = x.shape
    r = te.reduce_axis((0, rows), name="r")
    return te.compute((length,), lambda j: te.sum(body(r, j), axis=r), name=name)


def _data(*inputs: te.Tensor) -> Arrays:
    rng = np.random.default_rng(1)
    shapes = {t: tuple(int(str(size)) for size in t.shape) for t in inputs}
    return {t: rng.integers(-2, 3, shape).astype("f4") for t, shape in shapes.items()}


@pytest.mark.parametrize("first", [0, 1])
def test_kernels_of_rows_store_what_others_need_first_in_one_of_them_only(first: int) -> None:
    """Each of two kernels folds the rows of the one's matrix, and reads what the other stores."""
    x, y = (te.placeholder((20, 12), name=name) for name in "xy")
    a, b = _fold(x, "a", lambda i, k: x[i, k]), _fold(y, "b", lambda i, k: y[i, k])
    t = _fold(x, "t", lambda i, k: (x[i, k] - a[i]) * b[i])
    u = _fold(y, "u", lambda i, k: (y[i, k] - b[i]) * a[i])
    s = schedule_for([t, u, a, b] if first else [u, t], "cuda:sm_90")
    kernels = str(s).split("\nkernel ")
    assert len([each for each in kernels if re.search(r"with [ab]: float32\[20\]", each)]) == 1
    _agrees(s, _data(x, y))


@pytest.mark.parametrize("outputs", ["zdw", "ndw", "zndw", "dnv", "zndwv"])
def test_column_sums_along_with_rows_that_store_more(outputs: str) -> None:
    """What a kernel of rows stores beside its results is stored by programs of many rows too."""
    x, y = (te.placeholder((520, 8), name=name) for name in "xy")
    z = te.compute((520, 8), lambda i, j: x[i, j] + y[i, j], name="z")
    m = _fold(z, "m", lambda i, k: z[i, k] * x[i, k])
    n = te.compute((520,), lambda i: m[i] * 2.0, name="n")
    d = te.compute((520, 8), lambda i, j: z[i, j] * m[i], name="d")
    w = _columns(x, "w", lambda r, j: x[r, j] * y[r, j])
    v = _columns(z, "v", lambda r, j: z[r, j] * x[r, j])
    named = {"z": z, "n": n, "d": d, "w": w, "v": v}
    s = schedule_for([named[name] for name in outputs], "cuda:sm_90", {"d.columns_along": True})
    if outputs != "zndwv":
        assert "rf: float32" in str(s), "parts of columns"
        assert all(f"with {name}: float32[520" in str(s) for name in outputs if name in "zn")
    _agrees(s, _data(x, y))


def test_column_sums_that_need_each_other_are_no_launch() -> None:
    x, y = (te.placeholder((520, 8), name=name) for name in "xy")
    m = _fold(x, "m", lambda i, k: x[i, k] * y[i, k])
    d = te.compute((520, 8), lambda i, j: x[i, j] - y[i, j] * m[i], name="d")
    w = _columns(x, "w", lambda r, j: x[r, j] * y[r, j])
    v = _columns(x, "v", lambda r, j: x[r, j])
    e = te.compute((8,), lambda j: v[j] * w[j], name="e")
    s = schedule_for([d, w, e], "cuda:sm_90", {"d.columns_along": True})
    assert "rf: float32" in str(s), "one of them goes along"
    _agrees(s, _data(x, y))


@pytest.mark.parametrize("kept", [False, True])
def test_one_row_beside_which_its_elements_are_stored(kept: bool) -> None:
    """They have no axis of the row."""
    x, b = te.placeholder((30, 1), name="x"), te.placeholder((30,), name="b")
    a = te.compute((30,), lambda i: b[i] * 2.0, name="a")
    c = _fold(x, "c", lambda i, k: x[i, k] + b[i])
    d = te.compute((30, 1), lambda i, j: c[i] * b[i], name="d")
    k, h = te.reduce_axis((0, 30), name="k"), te.reduce_axis((0, 1), name="h")
    t = te.compute((1,), lambda i: te.sum(x[k, h] - a[k] + d[k, h], axis=[k, h]), name="t")
    s = schedule_for([a, t, d] if kept else [a, t], "cuda:sm_90")
    assert "with a: float32[30]" in str(s)
    _agrees(s, _data(x, b))


@pytest.mark.cpu
def test_parts_of_columns_that_do_not_follow_each_other() -> None:
    """The parts of what is shifted by another result are sums of their own: no cascade."""
    x, w = te.placeholder((4096, 16), name="x"), te.placeholder((16,), name="w")
    a = _columns(x, "a", lambda r, j: w[j] * x[r, j])
    b = _columns(x, "b", lambda r, j: x[r, j] - a[j] - x[r, j])
    s = schedule_for([a, b], "cuda:sm_90")
    emit(te.lower(s, "cuda:sm_90", check=True), "cuda:sm_90")
    data = _data(x, w)
    for got, want in zip(
        te.build(s, "cpu", cache=False)(data[w], data[x]), evaluate([a, b], data), strict=True
    ):
        np.testing.assert_allclose(got, want)


def test_what_stores_more_is_stored_by_no_other() -> None:
    """The kernel of `a` stores `z`, which it folds, and so is a kernel of its own."""
    x, y, h = (te.placeholder((20, 12), name=name) for name in "xyh")
    p = te.compute((20, 12), lambda i, j: x[i, j] + y[i, j], name="p")
    z = te.compute((20, 12), lambda i, j: h[i, j] + p[i, j], name="z")
    q = te.compute((20, 12), lambda i, j: p[i, j] * h[i, j], name="q")
    a = _fold(x, "a", lambda i, k: z[i, k])
    c = te.compute((20,), lambda i: a[i] * 2.0, name="c")
    d = _fold(x, "d", lambda i, k: q[i, k] - a[i])
    s = schedule_for([q, c, a, z, d], "cuda:sm_90")
    _agrees(s, _data(x, y, h))


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_starts_of_tuples_are_copied_each(target: str) -> None:
    """A copy of several results, which a tile does without, was the first of them twice."""
    x, k = te.placeholder((6, 4), "int32", name="x"), te.reduce_axis((0, 4), name="k")
    paired = te.comm_reducer(
        lambda a, b: (te.minimum(a[0], b[0]), te.maximum(a[1], b[1])),
        lambda *_: (2147483647, -2147483648),
        name="paired",
    )
    results = te.compute((6,), lambda i: paired((x[i, k], x[i, k]), axis=k), name="ends")
    s = te.create_schedule(results[1])
    ends = s["ends"]
    local = s.cache_write([ends.op.output(0), ends.op.output(1)], "local")[0]
    outer, inner = ends.split(ends.op.axis[0], factor=2)
    ends.bind(outer, "blockIdx.x")
    ends.bind(inner, "threadIdx.x")
    s[local].compute_at(ends, inner)
    s.decompose_reduction(s[local].op.output(0), s[local].op.axis[0])
    s.decompose_reduction(s[local].op.output(0), s[local].op.reduce_axis[0])
    data = np.random.default_rng(0).integers(-9, 9, (6, 4)).astype(np.int32)
    got = te.build(s, target, cache=False)(data)
    np.testing.assert_array_equal(got, data.max(1))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("form", ["plain", "minus", "plus"])
def test_regions_of_places_that_data_say_beside_others(form: str, dtype: str) -> None:
    """The range of a type beside another place was the size of memory, which ran over: numbers
    were stored outside of it."""
    n, m = te.size_var("n", dtype), te.size_var("m", "int32")
    x, places = te.placeholder((n, m), name="x"), te.placeholder((n,), "int32", name="places")
    y = te.compute((n, m), lambda i, j: x[i, j] * 2, name="y")

    def place(i: te.Expr) -> te.Expr:
        found = te.cast(places[i], dtype)
        return {"plain": found, "minus": found - i, "plus": found + i}[form] % n

    z = te.compute((n, m), lambda i, j: te.minimum(y[place(i), j], y[i, j]), name="z")
    s = te.create_schedule(z)
    s[y].compute_at(s[z], z.op.axis[0])
    assert "y: float32[n, m], local" in str(s)
    rng = np.random.default_rng(0)
    data = {
        x: rng.integers(-9, 9, (7, 5)).astype(np.float32),
        places: np.array([1, 4, 1, 2, 4, 3, 5], np.int32),
    }
    (want,) = te.evaluate([z], data, {n: 7, m: 5})
    by_name = {tensor.name: array for tensor, array in data.items()}
    for target in ("cpu", "triton-interpret"):
        kernel = te.build(s, target, cache=False)
        got = kernel(*(by_name[buffer.name] for buffer in kernel.module.inputs))
        np.testing.assert_array_equal(got, want)


def test_pieces_of_online_stages_stay_in_order() -> None:
    """A loop around that of an online stage indexes a tile, and became a dimension of one: pieces
    of the statistic were what lies between the lanes, too."""
    x, (k, r) = te.placeholder((2, 5), "int8", name="x"), (te.reduce_axis((0, 5)) for _ in "kr")
    p = te.compute((2, 5), lambda i, j: x[i, j], name="p")
    wide = te.cast
    m = te.compute((2,), lambda i: te.sum(wide(p[i, k], "int32"), axis=k), name="m")
    t = te.compute(
        (2,),
        lambda i: te.sum(
            (wide(p[i, r], "int32") - m[i] * 3) * (wide(p[i, r], "int32") - m[i] * 3), axis=r
        ),
        name="t",
    )
    s = te.create_schedule(t)
    _, inner = s[t].split(t.op.reduce_axis[0], factor=2)
    s[t].online(inner)
    s[p].compute_at(s[t], t.op.axis[0])
    data = np.array([[127, 5, -128, 1, -128], [126, 0, 5, 126, -128]], np.int8)
    _agrees(s, {x: data})


def test_leaders_of_loops_go_into_no_chain() -> None:
    """What is between the reductions of a chain is computed where it is read, and what shared its
    loops ran in none."""
    x, b = te.placeholder((8, 16), name="x"), te.placeholder((8,), name="b")
    m = _fold(x, "m", lambda i, k: x[i, k])
    p = te.compute((8,), lambda i: m[i] * b[i], name="p")
    t = _fold(x, "t", lambda i, k: p[i] * b[i] + x[i, k])
    u = te.compute((8, 16), lambda i, j: b[i] + x[i, j], name="u")
    s = te.create_schedule([t, u])
    s[u].compute_with(s[p], p.op.axis[0])
    with pytest.raises(te.ScheduleError, match="u runs in its loops, which are then gone"):
        s[t].online(t.op.reduce_axis[0])
    s[u].compute_root()
    s[t].online(t.op.reduce_axis[0])
    rng = np.random.default_rng(0)
    _agrees(s, {x: rng.standard_normal((8, 16), np.float32), b: np.ones(8, np.float32)})


def test_refusals_of_circles_have_a_text() -> None:
    """Stages that would wait for each other have no regions, by which legal places were told."""
    x = te.placeholder((8,), name="x")
    p = te.compute((8,), lambda i: x[i] * 2.0, name="p")
    q = te.compute((8,), lambda i: p[i] + 1.0, name="q")
    r = te.compute((8,), lambda i: q[i] * 3.0, name="r")
    t = te.compute((8,), lambda i: r[i] - 1.0, name="t")
    s = te.create_schedule([t, p])
    for each in (r, q):
        s[each].compute_at(s[t], t.op.axis[0])
    with pytest.raises(te.ScheduleError, match="nowhere, as stages would wait for each other"):
        s[r].compute_at(s[p], p.op.axis[0])


def test_kernels_are_printed_in_the_order_in_which_they_run() -> None:
    x = te.placeholder((8,), name="x")
    t = te.compute((8,), lambda i: x[i] + 1.0, name="t")
    q = te.compute((8,), lambda i: x[i] * 2.0, name="q")
    u = te.compute((8,), lambda i: q[i] - 3.0, name="u")
    s = te.create_schedule([t, u])
    s[u].compute_with(s[t], t.op.axis[0])
    text = str(s)
    assert text.index("kernel q") < text.index("kernel t")


def test_constants_are_values_of_their_type_in_wider_ones() -> None:
    """A float32 constant within float64 was the number as written, on a GPU."""
    x = te.placeholder((8,), "float64", name="x")
    tenth = te.cast(te.const(0.1, "float32"), "float64")
    y = te.compute((8,), lambda i: x[i] + tenth, name="y")
    for target in ("cpu", "triton-interpret"):
        got = te.build(y, target, cache=False)(np.zeros(8))
        np.testing.assert_array_equal(got, float(np.float32(0.1)))


def test_guards_of_skewed_lanes_are_no_guards_of_results() -> None:
    """The last iteration of a skewed loop, by itself, had only a condition of lanes: taken for one
    of results, it left products of what no lane may read (NaN in memory) in the sum."""
    a, b = te.placeholder((16, 18), name="a"), te.placeholder((18, 8), name="b")
    k = te.reduce_axis((0, 18), name="k")
    c = te.compute((16, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c)
    local = s.cache_write(c, "local")
    i, j = c.op.axis
    outer, inner = s[c].split(i, factor=8)
    s[c].bind(outer, "blockIdx.x")
    s[c].vectorize(inner)
    s[c].vectorize(j)
    s[local].compute_at(s[c], outer)
    row, column = s[local].op.axis
    (fold,) = s[local].op.reduce_axis
    s[local].reorder(fold, row, column)
    s[local].vectorize(row)
    s[local].vectorize(column)
    skewed = s[local].skew(fold, row, step=3, modulus=2)
    copy = s.cache_read(b, "local", [local])
    s[copy].compute_at(s[local], skewed)
    s[copy].cut(s[copy].op.axis[1], 2, 7)
    rng = np.random.default_rng(0)
    data = {t: rng.standard_normal(t.shape, np.float32) for t in (a, b)}
    _agrees(s, data)


@pytest.mark.parametrize("parts", [1, 2])
def test_cascades_of_columns_are_left_whole(parts: int) -> None:
    """One in one part was split by another rule, with a knob of the same name: a refusal."""
    x, r = te.placeholder((1000, 64), name="x"), te.reduce_axis((0, 1000), name="r")
    m = te.compute((64,), lambda i: te.max(x[r, i], axis=r), name="m")
    t = _columns(x, "t", lambda k, i: x[k, i] * 2.0 - m[i])
    s = schedule_for([m, t], "cuda:sm_90", {"t.parts": parts})
    assert not s.fallbacks
    _agrees(s, {x: np.random.default_rng(0).integers(-3, 4, (1000, 64)).astype("f4")})


def test_pairs_are_read_by_other_results_too() -> None:
    """A result that lies across the other runs beside it, which a tile of pairs knew nothing of."""
    n, k = te.size_var("n", "int64"), te.reduce_axis((0, 24), name="k")
    a, b = te.placeholder((n, 24), name="a"), te.placeholder((24, 40), name="b")
    c = te.compute(
        (n, 40), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k, where=i * 2 < k), name="c"
    )
    d = te.compute((n, 40), lambda i, j: c[i, j] + 1.0, name="d")
    e = te.compute((40, n), lambda i, j: d[j, i] * 2.0, name="e")
    s = schedule_for([e, d], "cuda:sm_90")
    assert not s.fallbacks
    rng = np.random.default_rng(0)
    _agrees(s, {a: rng.integers(-3, 4, (30, 24)).astype("f4"), b: np.ones((24, 40), "f4")}, {n: 30})


def test_rows_of_scans_lie_in_several_lanes_of_a_dimension() -> None:
    """Two dimensions of a tile make one of the row that an iteration takes over (KeyError)."""
    n = te.size_var("n", "int32")
    start, x = te.placeholder((1, 9), name="start"), te.placeholder((n, 9), name="x")
    state = te.placeholder((n, 9), name="state")
    init = te.compute((1, 9), lambda i, j: start[i, j], name="init")
    update = te.compute((n, 9), lambda i, j: state[i - 1, j] * 0.5 + x[i, j], name="update")
    scan = te.scan(init, update, state, name="scan")
    assert isinstance(scan, te.Tensor)
    s = te.create_schedule(scan)
    steps, lanes = s[scan].op.axis
    outer, inner = s[scan].split(lanes, factor=2)
    above, outer = s[scan].split(outer, factor=8)
    s[scan].reorder(above, steps, outer, inner)
    _, within = s[update].split(s[update].op.axis[1], factor=8)
    s[update].vectorize(within)
    data = {t: np.ones((1 if t is start else 6, 9), np.float32) for t in (start, x)}
    _agrees(s, data, {n: 6})


def test_folds_of_a_turned_tile_meet_what_was_there() -> None:
    """A tile whose dimensions run in another order than those of the buffer that it is folded
    into, which has a value already: Triton met blocks of 8 times 2 and 2 times 8."""
    x, k = te.placeholder((17, 17, 5), "float16", name="x"), te.reduce_axis((0, 17), name="k")
    t = te.compute((17, 5), lambda i, j: te.max(x[k, i, j], axis=k), name="t")
    s = te.create_schedule(t)
    _, inner = s[t].split(t.op.reduce_axis[0], factor=4)
    part, _ = s[t].split(inner, factor=2)
    parts = s[s.rfactor(t, part, factor_axis=-1)]
    i, j, part = parts.op.axis
    outer, inner = parts.op.reduce_axis
    s[t].reverse_compute_at(parts, i)
    parts.reorder(i, outer, part, inner, j)
    parts.vectorize(inner)
    data = np.random.default_rng(0).integers(-4, 5, (17, 17, 5)).astype(np.float16)
    _agrees(s, {x: data})
    got = te.build(s, "triton-interpret", cache=False)(data)
    np.testing.assert_array_equal(got, data.max(0))


def test_a_copy_that_leads_another_stays_in_a_kernel_of_threads() -> None:
    """Its loops are those of a copy that is read as a tile, also once the two have parted."""
    a, b = (te.placeholder((5, 9), "uint32", name=name) for name in "ab")
    k, r = (te.reduce_axis((0, 9), name=name) for name in "kr")
    low = te.compute((5,), lambda i: te.sum(a[i, k] + b[i, k], k), name="low")
    y = te.compute((5,), lambda i: te.min(a[i, r] + b[i, r] - low[i], r), name="y")
    s = te.create_schedule(y)
    kept = s.cache_write(y, "local")
    outer, inner = s["y"].split(s["y"].op.axis[0], factor=8)
    s["y"].bind(outer, "blockIdx.x")
    s["y"].vectorize(inner)
    for stage in (s[kept], s["low"]):
        stage.vectorize(stage.op.reduce_axis[0])
        stage.compute_at(s["y"], outer)
    copies = [s.cache_read(each, "local", [s["low"], s[kept]]) for each in (a, b)]
    for copy in copies:
        s[copy].compute_at(s["y"], outer)
    s[copies[0]].compute_with(s[copies[1]], copies[1].op.axis[0])
    s[copies[0]].vectorize(copies[0].op.axis[1])
    s[copies[1]].split(copies[1].op.axis[1], nparts=3)
    s.set_precision(s[copies[0]], "int64")
    s[kept].reverse(s[kept].op.axis[0])
    s["low"].bind(s["low"].op.axis[0], "threadIdx.x")
    te.lower(s, target="cuda:sm_90", check=True)
