"""Folds of the same long rows are one kernel, which loads them once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target

CUDA = Target.parse("cuda:sm_90")


def folds(rows: int, columns: int, dtype: str = "float32") -> list[te.Tensor]:
    """The sum of products of two matrices, the greatest of one, both for each row, and the sum of
    the other, rounded."""
    x, y = (te.placeholder((rows, columns), dtype, name=name) for name in "xy")
    k, r, q = (te.reduce_axis((0, columns), name=name) for name in "krq")
    a = te.compute(
        (rows,),
        lambda i: te.sum(x[i, k].astype("float32") * y[i, k].astype("float32"), axis=k),
        name="a",
    )
    b = te.compute((rows,), lambda i: te.max(x[i, r], axis=r), name="b")
    c = te.compute((rows,), lambda i: te.sum(y[i, q].astype("float32"), axis=q), name="c")
    return [a, b, te.compute((rows,), lambda i: c[i].astype(dtype), name="d")]


@pytest.mark.parametrize("rows,columns", [(1024, 20000), (256, 50000)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_loaded_once(rows: int, columns: int, dtype: str) -> None:
    s = schedule_for(folds(rows, columns, dtype), CUDA)
    program = emit(lower(s.plan, CUDA, check=True), CUDA)
    assert len(program.kernels) == 1
    assert program.source.count("tl.load(x ") == program.source.count("tl.load(y ") <= 2, (
        "but for the last piece"
    )


def test_each_may_stay_by_itself() -> None:
    outputs = folds(1024, 20000)
    s = schedule_for(outputs, CUDA, {"b.in_rows": False, "d.in_rows": False})
    assert len(emit(lower(s.plan, CUDA), CUDA).kernels) == 3


def test_others_stay_apart() -> None:
    """Of other rows, of other lengths, of another matrix, and what reads a result of the other."""
    x, y = te.placeholder((1024, 20000), name="x"), te.placeholder((1024, 30000), name="y")
    z = te.placeholder((1024, 20000), name="z")
    k, r, q, p = (te.reduce_axis((0, n)) for n in (20000, 30000, 20000, 20000))
    a = te.compute((1024,), lambda i: te.sum(x[i, k], axis=k), name="a")
    b = te.compute((1024,), lambda i: te.sum(y[i, r], axis=r), name="b")
    c = te.compute((1024,), lambda i: te.sum(z[i, q], axis=q), name="c")
    d = te.compute((1024,), lambda i: te.max(x[i, p] * a[1023 - i], axis=p), name="d")
    s = schedule_for([a, b, c, d], CUDA)
    assert len(emit(lower(s.plan, CUDA), CUDA).kernels) == 4


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("columns", [17000, 40000])
def test_numbers(target: str, columns: int) -> None:
    outputs = folds(140, columns)
    kernel = te.build(schedule_for(outputs, target), target=target)
    rng = np.random.default_rng(0)
    given = {name: rng.integers(-4, 5, (140, columns)).astype("float32") for name in "xy"}
    x, y = given["x"], given["y"]
    got = kernel(**{b.name: given[b.name] for b in kernel.module.inputs})
    for found, wanted in zip(got, [(x * y).sum(1), x.max(1), y.sum(1)], strict=True):
        np.testing.assert_array_equal(found, wanted)


def whole_folds(rows: int, columns: int) -> list[te.Tensor]:
    """The sum of a matrix, the greatest product with another, and twice the sum of those."""
    x, y = (te.placeholder((rows, columns), name=name) for name in "xy")

    def folded(fold: Callable[..., te.Expr], of: Callable[..., te.Expr], name: str) -> te.Tensor:
        a, b = te.reduce_axis((0, rows)), te.reduce_axis((0, columns))
        return te.compute((), lambda: fold(of(a, b), axis=[a, b]), name=name)

    a = folded(te.sum, lambda i, j: x[i, j], "a")
    b = folded(te.max, lambda i, j: x[i, j] * y[i, j], "b")
    c = folded(te.sum, lambda i, j: x[i, j] * y[i, j], "c")
    return [a, b, te.compute((), lambda: 2 * c[()], name="d")]


@pytest.mark.parametrize("rows,columns", [(3000, 1001), (4096, 1024)])
def test_everything_is_loaded_once(rows: int, columns: int) -> None:
    s = schedule_for(whole_folds(rows, columns), CUDA)
    program = emit(lower(s.plan, CUDA, check=True), CUDA)
    assert len(program.kernels) == 1
    assert program.source.count("tl.load(x ") == program.source.count("tl.load(y ") <= 2
    apart = schedule_for(whole_folds(rows, columns), CUDA, {"b.along": False, "c.along": False})
    assert len(emit(lower(apart.plan, CUDA), CUDA).kernels) > 1


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("rows,columns", [(300, 101), (64, 1024), (3, 5)])
def test_numbers_of_everything(target: str, rows: int, columns: int) -> None:
    outputs = whole_folds(rows, columns)
    kernel = te.build(schedule_for(outputs, target), target=target)
    rng = np.random.default_rng(0)
    given = {name: rng.integers(-4, 5, (rows, columns)).astype("float32") for name in "xy"}
    x, y = given["x"], given["y"]
    for _ in range(2):  # what counts programs is as it was
        got = kernel(**{b.name: given[b.name] for b in kernel.module.inputs})
        wanted = [x.sum(), (x * y).max(), 2 * (x * y).sum()]
        for found, each in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(found, each)


def test_a_sum_that_needs_another_is_not_beside_it() -> None:
    """How far numbers are from their sum, on average."""
    x = te.placeholder((100000,), name="x")
    k, r = te.reduce_axis((0, 100000), name="k"), te.reduce_axis((0, 100000), name="r")
    a = te.compute((), lambda: te.sum(x[k], axis=k), name="a")
    b = te.compute((), lambda: te.sum(te.abs(x[r] - a[()]), axis=r), name="b")
    s = schedule_for([a, b], CUDA)
    assert len(emit(lower(s.plan, CUDA), CUDA).kernels) == 2


def column_folds(rows: int, columns: int, dtype: str = "float32") -> list[te.Tensor]:
    """The sum of a matrix and the greatest product with another for each column, and the sum of
    the products, rounded."""
    x, y = (te.placeholder((rows, columns), dtype, name=name) for name in "xy")
    k, r, q = (te.reduce_axis((0, rows), name=name) for name in "krq")
    wide = "float32"
    a = te.compute((columns,), lambda j: te.sum(x[k, j].astype(wide), axis=k), name="a")
    b = te.compute((columns,), lambda j: te.max(x[r, j] * y[r, j], axis=r), name="b")
    c = te.compute(
        (columns,), lambda j: te.sum(x[q, j].astype(wide) * y[q, j].astype(wide), axis=q), name="c"
    )
    return [a, b, te.compute((columns,), lambda j: c[j].astype(dtype), name="d")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows,columns", [(4096, 1024), (896, 36448), (1024, 20000)])
def test_columns_are_loaded_once(rows: int, columns: int, dtype: str) -> None:
    s = schedule_for(column_folds(rows, columns, dtype), CUDA)
    program = emit(lower(s.plan, CUDA, check=True), CUDA)
    assert len(program.kernels) == 1
    assert program.source.count("tl.load(x_base") == program.source.count("tl.load(y_base") or (
        program.source.count("tl.load(x ") == program.source.count("tl.load(y ") <= 2
    )
    apart = schedule_for(
        column_folds(rows, columns, dtype), CUDA, {"b.local.along": False, "c.along": False}
    )
    assert len(emit(lower(apart.plan, CUDA), CUDA).kernels) == 3


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("rows,columns", [(300, 1000), (100, 40001), (2000, 77)])
def test_numbers_of_columns(target: str, rows: int, columns: int) -> None:
    outputs = column_folds(rows, columns)
    kernel = te.build(schedule_for(outputs, target), target=target)
    rng = np.random.default_rng(0)
    given = {name: rng.integers(-4, 5, (rows, columns)).astype("float32") for name in "xy"}
    x, y = given["x"], given["y"]
    for _ in range(2):
        got = kernel(**{b.name: given[b.name] for b in kernel.module.inputs})
        for found, each in zip(got, [x.sum(0), (x * y).max(0), (x * y).sum(0)], strict=True):
            np.testing.assert_array_equal(found, each)


def test_what_is_computed_for_one_of_them_is_weighed_with_all() -> None:
    """Of rows that are neither few nor many, one kernel is compared with several: as a computation
    with all of its results."""
    x, y = (te.placeholder((512, 100001), "bfloat16", name=name) for name in "xy")
    k, r, q = (te.reduce_axis((0, 100001), name=name) for name in "krq")
    m = te.compute(x.shape, lambda i, j: x[i, j] * y[i, j], name="m")
    a = te.compute((512,), lambda i: te.sum(x[i, k].astype("float32"), axis=k), name="a")
    b = te.compute((512,), lambda i: te.sum(m[i, r].astype("float32"), axis=r), name="b")
    c = te.compute((512,), lambda i: te.max(y[i, q], axis=q), name="c")
    o = te.compute((512,), lambda i: a[i].astype("bfloat16"), name="o")
    p = te.compute((512,), lambda i: b[i].astype("bfloat16"), name="p")
    s = schedule_for([o, p, c], CUDA)
    assert not s.fallbacks
    assert len(lower(s.plan, CUDA, check=True).funcs) == 1, f"{s}"
