"""Schedules and rules of drawn programs that were refused though every call had been accepted."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.ir.interp import run
from tedsl.reference.reference import evaluate
from tedsl.schedules import schedule_for


@pytest.mark.parametrize("first", ["mark", "place"])
@pytest.mark.parametrize("how", ["attached", "shared", "atomic"])
def test_parallel_loops_inside_which_others_compute_are_no_programs(how: str, first: str) -> None:
    """Nothing runs between the loops of the grid, and `parallel` orders nothing."""
    x = te.placeholder((4, 6), "int32", name="x")
    y = te.compute((4, 6), lambda i, j: x[i, j] * 2, name="y")
    k = te.reduce_axis((0, 6), name="k")
    if how == "atomic":
        z = te.compute((4,), lambda i: te.sum(y[i, k], axis=k), name="z")
    else:
        read = x if how == "shared" else y
        z = te.compute((4, 6), lambda i, j: read[i, j] + 1, name="z")
    s = te.create_schedule([y, z] if how == "shared" else z)
    if how == "atomic":
        s[z].atomic()
    outer, inner = s[z].leaf_iter_vars
    s[z].bind(outer, "blockIdx.x")
    if first == "mark":
        s[z].parallel(inner)
    if how == "shared":
        s[y].compute_with(s[z], outer)
        s[y].parallel(y.op.axis[1])
    else:
        s[y].compute_at(s[z], outer)
    if first == "place":
        s[z].parallel(inner)
    data = np.arange(24, dtype=np.int32).reshape(4, 6)
    module = te.lower(s, "triton-interpret", check=True)
    want = evaluate([y, z] if how == "shared" else [z], {x: data}, {})
    for got, expected in zip(run(module, {module.inputs[0]: data}, {}).values(), want, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source.count("tl.program_id") == 1


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("lanes", [None, 4])
@pytest.mark.parametrize("columns", [None, 70000])
def test_accumulators_that_no_registers_hold_are_in_memory(
    columns: int | None, lanes: int | None, target: str
) -> None:
    """Those of which none is the result itself: its repair needs the sum without the factor."""
    size_var = te.size_var("n")
    n = size_var if columns is None else columns
    x, w = te.placeholder((2, 4), name="x"), te.placeholder((4, n), name="w")
    k = te.reduce_axis((0, 4), name="k")
    most = te.compute((2,), lambda i: te.max(x[i, k], axis=k), name="most")
    k = te.reduce_axis((0, 4), name="k")
    y = te.compute(
        (2, n),
        lambda i, j: te.sum(te.exp(x[i, k] - most[i]) * (x[i, k] - most[i]) * w[k, j], axis=k),
        name="y",
    )
    s = te.create_schedule(y)
    row, column = s[y].op.axis
    s[y].parallel(row)
    if lanes is not None:
        column, inner = s[y].split(column, factor=lanes)
        s[y].vectorize(inner)
    s[y].reorder(row, k, column)
    s[y].online(k)
    size = 11 if columns is None else columns
    data = {
        x: np.arange(8, dtype=np.float32).reshape(2, 4) * 3 % 7,
        w: np.arange(4 * size, dtype=np.float32).reshape(4, size) % 5,
    }
    module = te.lower(s, target, check=True)
    if columns is None:
        given = dict(zip(module.inputs, data.values(), strict=True))
        (got,) = run(module, given, dict.fromkeys(module.sizes, size)).values()
    else:
        got = te.build(s, "cpu", cache=False)(*data.values())
    (want,) = evaluate([y], data, {size_var: size})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.cpu
@pytest.mark.parametrize("shape", ["crossed", "long", "units"])
def test_rules_of_rows_have_lanes_of_constant_extents(shape: str) -> None:
    """What a stage has one element of in a row may be of any number, and what it reduces may be
    longer than the row of the root."""
    n = te.size_var("n")
    k, c = te.reduce_axis((0, n if shape == "long" else 8), name="k"), te.reduce_axis((0, 8), "c")
    if shape == "crossed":
        x = te.placeholder((8, n), name="x")
        most = te.compute((n,), lambda i: te.max(x[k, i], axis=k), name="most")
        y = te.compute((n,), lambda i: te.sum(te.exp(x[c, i] - most[i]), axis=c), name="y")
    elif shape == "long":
        x = te.placeholder((8, n), name="x")
        most = te.compute((8,), lambda i: te.max(x[i, k], axis=k), name="most")
        y = te.compute((8,), lambda i: te.sum(most[i] * x[i, 0] + c, axis=c), name="y")
    else:
        x = te.placeholder((1, 1, n), name="x")
        k, c = te.reduce_axis((0, 1), name="k"), te.reduce_axis((0, 1), name="c")
        most = te.compute((1, n), lambda i, j: te.max(x[k, i, j], axis=k), name="most")
        moved = te.compute((1, 1, n), lambda h, i, j: most[i, j] + x[h, i, j], name="moved")
        y = te.compute((1, n), lambda i, j: te.sum(moved[c, i, j], axis=c), name="y")
    sizes = (1, 1, 11) if shape == "units" else (8, 11)
    data = np.linspace(-1, 1, sizes[0] * 11, dtype=np.float32).reshape(sizes)
    got = te.build(schedule_for(y, "cpu"), "cpu", cache=False)(data)
    np.testing.assert_allclose(got, evaluate(y, {x: data}, {n: 11})[0], rtol=1e-5)


@pytest.mark.cpu
def test_rows_read_what_another_kernel_folds_online() -> None:
    """A maximum that is an estimate in the loop of one kernel is read by the rows of another."""
    n = te.size_var("n")
    x, w = te.placeholder((16, 1000), name="x"), te.placeholder((1000, n), name="w")
    k = te.reduce_axis((0, 1000), name="k")
    most = te.compute((16,), lambda i: te.max(x[i, k] * 0.5, axis=k), name="most")
    k = te.reduce_axis((0, 1000), name="k")
    total = te.compute((16,), lambda i: te.sum(te.exp(x[i, k] * 0.5 - most[i]), axis=k), name="t")
    y = te.compute((16,), lambda i: total[i] * 0.5 + te.tanh(most[i]), name="y")
    p = te.compute((16, 1000), lambda i, j: te.exp(x[i, j] * 0.5 - most[i]), name="p")
    k = te.reduce_axis((0, 1000), name="k")
    z = te.compute((16, n), lambda i, j: te.sum(p[i, k] * w[k, j], axis=k), name="z")
    s = schedule_for([y, z], "cuda:sm_90", {"z.chain": True})
    assert "folded * exp" in str(s)
    rng = np.random.default_rng(1)
    data = {x: rng.normal(size=(16, 1000)), w: rng.normal(size=(1000, 5))}
    data = {t: a.astype(np.float32) for t, a in data.items()}
    built = te.build(s, "cpu", cache=False)
    for got, want in zip(built(*data.values()), evaluate([y, z], data, {n: 5}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["pqij", "ijpq", "ipqj", "piqj", "pjiq"])
@pytest.mark.parametrize("first", [1, 2])
def test_products_with_batches_that_no_matrix_unit_takes(first: int, order: str) -> None:
    """Of two batch axes in one tile, or of one that is not in front, the products are summed one by
    one; the matrix units take the others."""
    sizes = {"p": first, "q": 2, "i": 16, "j": 16}
    a = te.placeholder((first, 2, 16, 16), "float16", name="a")
    b = te.placeholder((first, 2, 16, 16), "float16", name="b")
    k = te.reduce_axis((0, 16), name="k")

    def body(*axes: te.Expr) -> te.Expr:
        at = dict(zip(order, axes, strict=True))
        left, right = a[at["p"], at["q"], at["i"], k], b[at["p"], at["q"], k, at["j"]]
        return te.sum(left.astype("float32") * right.astype("float32"), axis=k)

    c = te.compute([sizes[name] for name in order], body, name="c")
    s = te.create_schedule(c)
    for axis in (*c.op.axis, k):
        s[c].vectorize(axis)
    rng = np.random.default_rng(5)
    data = {t: rng.integers(-3, 4, (first, 2, 16, 16)).astype("f2") for t in (a, b)}
    source = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    assert ("tl.dot" in source) is (first == 1 and order.replace("p", "")[0] == "q")
    assert ("several batch dimensions" in str(te.explain(s, "cuda:sm_90"))) is (
        "tl.dot" not in source
    )
    got = te.build(s, target="triton-interpret")(data[a], data[b])
    np.testing.assert_array_equal(got, evaluate(c, data)[0])


@pytest.mark.parametrize("rows", [64, 4096])
def test_tiles_that_a_pipelined_loop_implies_have_room(rows: int) -> None:
    """The loops inside it are dimensions of a tile, inner ones first, as far as registers go: of
    all of them it would have a million elements and more, and be no matrix product."""
    x = te.placeholder((2, rows, 24, 17), "float32", name="x")
    w = te.placeholder((17, 20), "float32", name="w")
    k = te.reduce_axis((0, 17), name="k")
    y = te.compute(
        (2, rows, 24, 20), lambda a, b, i, j: te.sum(x[a, b, i, k] * w[k, j], axis=k), name="y"
    )
    s = te.create_schedule(y)
    outer, _, i, _ = y.op.axis
    s[y].reverse(outer)
    s[y].vectorize(i)
    s[y].pipeline(outer, num_stages=4)
    source = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    assert "tl.dot(" in source
    assert f"tl.range(0, {rows})" in source, "a loop of the program"
    if rows == 64:
        rng = np.random.default_rng(3)
        data = {t: rng.integers(-4, 5, [int(str(e)) for e in t.shape]).astype("f4") for t in (x, w)}
        got = te.build(s, target="triton-interpret")(data[x], data[w])
        np.testing.assert_array_equal(got, evaluate(y, data)[0])


def test_a_pipelined_loop_around_a_tile_that_fits_moves_all_of_it() -> None:
    x = te.placeholder((8, 32, 64), "float32", name="x")
    y = te.compute((8, 32, 64), lambda a, i, j: x[a, i, j] + 1.0, name="y")
    s = te.create_schedule(y)
    s[y].pipeline(y.op.axis[0], num_stages=3)
    source = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    assert source.count("tl.range") == 1 and "num_stages=3" in source


def _agrees(s: te.Schedule, inputs: dict[te.Tensor, np.ndarray], want: np.ndarray) -> None:
    """On the CPU and in programs of tiles, of which there is a text."""
    for target in ("cpu", "triton-interpret"):
        module = te.lower(s, target, check=True)
        by_name = {tensor.name: array for tensor, array in inputs.items()}
        given = {buffer: by_name[buffer.name] for buffer in module.inputs}
        (got,) = run(module, given, {}).values()
        np.testing.assert_array_equal(got, want)
    emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")


@pytest.mark.parametrize("how", ["starts", "starts first", "tiled", "stored"])
def test_nothing_is_at_loops_that_each_thread_runs(how: str) -> None:
    """What threads compute together is a tile of the program: what starts it
    or is kept for it is outside of it, whatever call brings it there."""
    x = te.placeholder((6, 4, 3), "int32", name="x")
    y = te.compute((6, 4, 3), lambda k, i, j: x[k, i, j] * 2, name="y")
    k = te.reduce_axis((0, 6), name="k")
    z = te.compute((4, 3), lambda i, j: te.sum(y[k, i, j], axis=k), name="z")
    s = te.create_schedule(z)
    i, j = s[z].op.axis
    if how == "starts first":
        s.decompose_reduction(z, k)
    if how == "tiled":
        s[z].reorder(j, i)
        s[y].compute_at(s[z], j)
        s[z].bind(i, "threadIdx.x")
        s[z].tile(j, k, 2, 2)
    else:
        s[z].bind(i, "threadIdx.x")
    if how == "starts":
        s.decompose_reduction(z, k)
    if how == "stored":
        s[y].compute_at(s[z], k)
        s[y].store_at(s[z], j)
    data = np.arange(72, dtype=np.int32).reshape(6, 4, 3)
    _agrees(s, {x: data}, (data * 2).sum(0))


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("stored", [None, 0, 1, 2])
def test_the_loop_that_a_stage_is_stored_in_stays_one(at: int, stored: int | None) -> None:
    """It indexes the tile that the results start from, and would be a dimension of it: inside of
    where the stage is computed."""
    x = te.placeholder((3, 4, 5, 6), "int32", name="x")
    y = te.compute((3, 4, 5, 6), lambda h, i, j, c: x[h, i, j, c] * 2, name="y")
    k = te.reduce_axis((0, 6), name="k")
    z = te.compute((3, 4, 5), lambda h, i, j: te.sum(y[h, i, j, k], axis=k), name="z")
    s = te.create_schedule(z)
    loops = s[z].op.axis
    s[y].compute_at(s[z], loops[2])
    if stored is None:
        s[y].store_root()
    else:
        s[y].store_at(s[z], loops[stored])
    s.decompose_reduction(z, loops[at])
    data = np.arange(360, dtype=np.int32).reshape(3, 4, 5, 6)
    _agrees(s, {x: data}, (data * 2).sum(3))


@pytest.mark.parametrize("factors", [(4, 3), (4, 2), (5, 3), (3, 2)])
@pytest.mark.parametrize("order", ["inside", "outside"])
def test_programs_that_only_one_of_updates_memory(factors: tuple[int, int], order: str) -> None:
    """A guard says which: it stands for the program in the index of its part."""
    x, w = te.placeholder((2, 6), "int32", name="x"), te.placeholder((6, 2), "int32", name="w")
    k = te.reduce_axis((0, 6), name="k")
    z = te.compute((2, 2), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="z")
    s = te.create_schedule(z)
    s[z].atomic()
    i, j = s[z].op.axis
    outer, inner = s[z].split(k, factor=factors[0])
    if order == "outside":
        s[z].reorder(i, outer, j, inner)
    programs, _ = s[z].split(inner, factor=factors[1])
    s[z].bind(programs, "blockIdx.x")
    data = np.arange(12, dtype=np.int32)
    a, b = data.reshape(2, 6), data.reshape(6, 2)
    _agrees(s, {x: a, w: b}, a @ b)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("form", ["remainder", "gathered"])
def test_bounds_of_types_are_no_sizes(form: str, dtype: str) -> None:
    """What is read at computed places of a dimension of a runtime size has that size at most,
    however large the numbers are that a place could be."""
    n = te.size_var("n", dtype)
    x, places = te.placeholder((3, n), name="x"), te.placeholder((n,), "int32", name="places")
    y = te.compute((3, n), lambda i, j: x[i, j] * 2.0, name="y")

    def place(j: te.Expr) -> te.Expr:
        found = te.cast(places[j], dtype)
        return (found * 9 - j) % n if form == "remainder" else found

    z = te.compute((3, n), lambda i, j: y[i, place(j)], name="z")
    s = te.create_schedule(z)
    s[y].compute_at(s[z], s[z].op.axis[0])
    data = {
        x: np.arange(15, dtype=np.float32).reshape(3, 5),
        places: np.array([4, 0, 2, 1, 3], np.int32),
    }
    (want,) = evaluate([z], data, {n: 5})
    assert re.search(r"y: float32\[1, (n|min\(n, int64\(2147483648\)\))\], local", str(s))
    kernel = te.build(s, "cpu", cache=False)
    by_name = {tensor.name: array for tensor, array in data.items()}
    got = kernel(*(by_name[buffer.name] for buffer in kernel.module.inputs))
    np.testing.assert_array_equal(got, want)
    emit(te.lower(s, "cuda:sm_90", check=True), "cuda:sm_90")


def test_loops_that_end_at_wider_sizes_have_numbers_of_their_own_type() -> None:
    """A place that a fold keeps is of 32 bits, whatever the loop is cut at."""
    n = te.size_var("n", "int64")
    x, k = te.placeholder((n, 3), name="x"), te.reduce_axis((0, 3), name="k")
    place = te.compute((n,), lambda i: te.argmax(x[i, k], axis=k), name="place")
    s = te.create_schedule(place)
    stage = next(each for each in s.stages if k in each.leaf_iter_vars)
    stage.cut(k, 1, s.size("n") + 2)
    source = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    assert re.search(r"tl.range\(1, tl.cast\(tl.minimum\(n \+ 2, 3\), tl.int32\)\)", source)
    te.build(s, "cuda:sm_90", cache=False)


def test_warps_are_a_power_of_two() -> None:
    """Warps are capped by the elements of a tile: three parts of a sum are no power of two."""
    a, b = te.placeholder((1, 24), name="a"), te.placeholder((24, 65), name="b")
    k = te.reduce_axis((0, 24), name="k")
    t = te.compute((1, 65), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="t")
    s = schedule_for([t], "cuda:sm_90", {"t.columns": 32, "t.rows": 4})
    warps = [int(n) for n in re.findall(r"num_warps=(\d+)", str(s))]
    assert warps and all(n & (n - 1) == 0 for n in warps)


def test_a_sum_that_a_loop_takes_up_twice() -> None:
    """Triton's `TritonGPUOptimizeThreadLocality` asserts that a sum of loads is added to the
    variable of the loop, where its result is added to that of another sum."""
    x, k = te.placeholder((7, 1000), name="x"), te.reduce_axis((0, 1000), name="k")
    y = te.compute((7,), lambda i: te.sum(x[i, k], axis=k), name="y")
    s = te.create_schedule(y)
    outer, inner = s[y].split(k, factor=3)
    parts, within = s[y].split(outer, nparts=8)
    s[y].reorder(inner, s[y].op.axis[0], within)
    s.cache_read(x, "global", [s[y]])
    s["x.global"].compute_at(s[y], parts)
    kernel = te.build(s, "cuda:sm_90", cache=False)
    assert re.search(r"y_acc \+= tl.sum\(.*\) \+ 0.0", kernel.source)


@pytest.mark.parametrize("copied", [False, True])
def test_masked_products_of_a_large_tile_are_added_up_in_turns(copied: bool) -> None:
    """0 times infinity is no 0, so that masked products are no matrix product: registers hold a
    part of them at once."""
    rows, columns, depth = 7, 128, 256
    n = te.size_var("n", "int32")
    a, b = te.placeholder((n, depth), name="a"), te.placeholder((depth, columns), name="b")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute(
        (n, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k, where=i < k + 5), name="c"
    )
    s = te.create_schedule(c)
    i, j, i_inner, j_inner = s[c].tile(*c.op.axis, 128, 32)
    s[c].bind(i, "blockIdx.x")
    for axis in (i_inner, j_inner, k):
        s[c].vectorize(axis)
    s[c].launch(num_warps=8)
    if copied:
        for tensor, scope in ((a, "shared"), (b, "local")):
            copy = s[s.cache_read(tensor, scope, [s[c]])]
            copy.compute_at(s[c], j)
            for axis in copy.op.axis:
                copy.vectorize(axis)
    rng = np.random.default_rng(0)
    left = rng.standard_normal((rows, depth)).astype(np.float32)
    right = rng.standard_normal((depth, columns)).astype(np.float32)
    left[6, 0] = np.inf  # masked
    kernel = te.build(s, "triton-interpret", cache=False)
    assert kernel.source.count("c_acc += tl.sum(") == kernel.source.count("for k_turn in")
    got = kernel(left, right)
    left[5, 0], left[6, :2] = 0, 0
    np.testing.assert_allclose(got, left @ right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_last_programs_compute_is_stored_outside_their_loops(when: str) -> None:
    """The memory of a stage at the root of `compute_last` was nowhere."""
    x, w = te.placeholder((2, 3), name="x"), te.placeholder((3, 4), name="w")
    y = te.compute((2, 3), lambda i, k: x[i, k] * 2.0, name="y")
    k = te.reduce_axis((0, 3), name="k")
    z = te.compute((2, 4), lambda i, j: te.sum(y[i, k] * w[k, j], axis=k), name="z")
    s = te.create_schedule(z)
    s[y].bind(y.op.axis[0], "blockIdx.x")
    if when == "before":
        s[z].compute_last(s[y])
    copy = s[s.cache_read(w, "local", [s[z]])]
    copy.compute_at(s[z], z.op.axis[1])
    copy.store_root()
    if when == "after":
        s[z].compute_last(s[y])
    rng = np.random.default_rng(0)
    left = rng.integers(-4, 4, (2, 3)).astype(np.float32)
    right = rng.integers(-4, 4, (3, 4)).astype(np.float32)
    for target in ("cpu", "triton-interpret"):
        kernel = te.build(s, target, cache=False)
        np.testing.assert_array_equal(kernel(left, right), left * 2 @ right)
    te.lower(s, "cuda:sm_90", check=True)


@pytest.mark.cpu
@pytest.mark.parametrize("how", ["last", "beside"])
def test_tiles_stored_outside_loops_of_a_stage_without_programs(how: str) -> None:
    """Such a tile is a value of the programs that compute the stage, not one outside all of the
    grid."""
    x, w = te.placeholder((2, 4), name="x"), te.placeholder((4, 4), name="w")
    y = te.compute((2, 4), lambda i, k: x[i, k] * 2.0, name="y")
    k = te.reduce_axis((0, 4), name="k")
    read = y if how == "last" else x
    z = te.compute((2, 4), lambda i, j: te.sum(read[i, k] * w[k, j], axis=k), name="z")
    s = te.create_schedule([y, z])
    s[y].bind(y.op.axis[0], "blockIdx.x")
    copy = s[s.cache_read(w, "local", [s[z]])]
    copy.compute_at(s[z], z.op.axis[0])
    copy.store_root()
    s[z].vectorize(z.op.axis[1])
    s[z].vectorize(k)
    if how == "last":
        s[z].compute_last(s[y])
    else:
        s[z].compute_with(s[y])
    rng = np.random.default_rng(0)
    left = rng.integers(-4, 4, (2, 4)).astype(np.float32)
    right = rng.integers(-4, 4, (4, 4)).astype(np.float32)
    for target in ("cpu", "triton-interpret"):
        _, found = te.build(s, target, cache=False)(left, right)
        np.testing.assert_array_equal(found, (left * 2 if how == "last" else left) @ right)
    te.lower(s, "cuda:sm_90", check=True)
    te.build(s, "cuda:sm_90")


@pytest.mark.parametrize("home", ["root", "scan"])
def test_what_a_launched_step_stores_outside_of_it(home: str) -> None:
    """Steps of a scan that are kernels each keep in device memory what is stored around them."""
    steps, n = 5, 4
    x, w = te.placeholder((steps, n), name="x"), te.placeholder((n, n), name="w")
    state = te.placeholder((steps, n), name="state")
    init = te.compute((1, n), lambda t, i: x[0, i], name="init")
    k = te.reduce_axis((0, n), name="k")
    mixed = te.compute(
        (steps, n), lambda t, i: te.sum(state[t - 1, k] * w[k, i], axis=k), name="mixed"
    )
    update = te.compute((steps, n), lambda t, i: mixed[t, i] + x[t, i], name="update")
    scan = te.scan(init, update, state, inputs=[x], name="scan")
    s = te.create_schedule(scan)
    s[update].bind(update.op.axis[1], "blockIdx.x")
    copy = s[s.cache_read(w, "local", [s[mixed]])]
    copy.compute_at(s[mixed], k)
    if home == "root":
        copy.store_root()
    else:
        copy.store_at(s["scan"], s["scan"].op.axis[0])
    rng = np.random.default_rng(0)
    given = rng.integers(-2, 2, (steps, n)).astype(np.float32)
    weights = rng.integers(-1, 2, (n, n)).astype(np.float32)
    want = [given[0]]
    for t in range(1, steps):
        want.append(want[-1] @ weights + given[t])
    for target in ("cpu", "triton-interpret"):
        kernel = te.build(s, target, cache=False)
        by_name = {"x": given, "w": weights}
        got = kernel(*(by_name[buffer.name] for buffer in kernel.module.inputs))
        np.testing.assert_array_equal(got, np.stack(want))
    te.lower(s, "cuda:sm_90", check=True)


@pytest.mark.parametrize("shape", [(8, 48, 9, 9), (4096, 8), (3, 40000)])
def test_rules_for_folds_that_read_a_scalar(shape: tuple[int, ...]) -> None:
    """A scalar has no rows that could start anywhere."""
    x, zero = te.placeholder(shape, name="x"), te.placeholder((), name="zero")
    kept = 0 if shape[0] == 3 else 1
    axes = [te.reduce_axis((0, n), name=f"k{d}") for d, n in enumerate(shape) if d != kept]

    def value(i: te.Expr) -> te.Expr:
        place = [axes[d - (d > kept)] if d != kept else i for d in range(len(shape))]
        return te.sum(te.if_then_else(x[tuple(place)] <= 0, zero[()], x[tuple(place)]), axis=axes)

    y = te.compute((shape[kept],), value, name="y")
    rng = np.random.default_rng(0)
    data = rng.integers(-2, 3, shape).astype(np.float32)
    want = np.where(data <= 0, 0.5, data).sum(tuple(d for d in range(len(shape)) if d != kept))
    for target in ("cuda:sm_80", "cuda:sm_90"):
        assert not schedule_for([y], target).fallbacks
    kernel = te.build(schedule_for([y], "triton-interpret"), "triton-interpret", cache=False)
    np.testing.assert_allclose(kernel(data, np.float32(0.5)), want, rtol=1e-5)
