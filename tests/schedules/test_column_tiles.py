"""Tiles of columns that a program folds whole: loads enough are under way to keep memory busy."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te
from tedsl.devices import GPUS
from tedsl.schedules import schedule_for

FIRST = 0.8e-6
"""Seconds until the first of some data comes from memory."""


def chosen(rows: int, columns: int, dtype: str, fold: str) -> dict[str, int]:
    """The choices of the default rules for a fold of `rows` in the middle of 16 blocks."""
    x, k = te.placeholder((16, rows, columns), dtype, name="x"), te.reduce_axis((0, rows), name="k")

    def of(i: te.Axis, j: te.Axis) -> te.Expr:
        if fold == "place":
            return te.argmax(x[i, k, j], axis=k)
        value = x[i, k, j].astype("float32")
        return te.max(te.tanh(value) if fold == "function" else value, axis=k)

    y = te.compute((16, columns), of, name="y")
    s = schedule_for(y, "cuda:sm_90")
    counts = {knob.name: knob.chosen for knob in s.knobs if isinstance(knob.chosen, int)}
    return {name.rpartition(".")[2]: count for name, count in counts.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fold", ["plain", "function", "place"])
@pytest.mark.parametrize("columns", [3001, 4095, 4096, 36447])
def test_loads_enough_are_under_way(columns: int, fold: str, dtype: str) -> None:
    gpu = next(each for each in GPUS if each.arch == "sm_90")
    tile = chosen(1024, columns, dtype, fold)
    programs = 16 * -(-columns // tile["columns"])
    beside = min(programs / gpu.sms, gpu.warps_sm / 4)
    each = tile["columns"] * tile["rows"] * (4 if dtype == "float32" else 2)
    under_way = each * tile["unrolled"] * beside * gpu.sms
    assert under_way >= FIRST * gpu.bandwidth


def test_several_values_are_not_loaded_one_by_one() -> None:
    """ptxas comes to the loads of an element when it folds it, where there are several values: more
    are asked for at once (argmax over 2,048 rows of 1,023: 0.38 ms, now 0.20, on an H100)."""
    plain, place = (chosen(1024, 4095, "float32", fold) for fold in ("plain", "place"))
    assert place["rows"] * place["unrolled"] >= 2 * plain["rows"] * plain["unrolled"]


def crossed(rows: int, columns: int, fold: str, dtype: str = "float16") -> te.Tensor:
    """A fold of what is read along the lanes of the results, and along what is reduced."""
    x = te.placeholder((rows, columns), dtype, name="x")
    y, k = te.placeholder((columns, rows), dtype, name="y"), te.reduce_axis((0, rows), name="k")

    def of(j: te.Axis) -> te.Expr:
        value = x[k, j].astype("float32") * y[j, k].astype("float32")
        return te.argmax(value, axis=k) if fold == "place" else te.sum(value, axis=k)

    return te.compute((columns,), of, name="total")


@pytest.mark.parametrize(("rows", "columns"), [(2457, 7544), (4096, 4096), (20000, 300)])
def test_reductions_that_transpose_have_tiles_with_neighbours_in_both(
    rows: int, columns: int
) -> None:
    """A program for each result read one of the two element by element, each from a sector of its
    own (predicted for a norm of 2457 x 7544 elements of float16: 62 us, now 24)."""
    s = schedule_for(crossed(rows, columns, "sum"), "cuda:sm_90")
    sides = {knob.name.rpartition(".")[2]: knob.chosen for knob in s.knobs}
    assert sides["columns"] == sides["rows"] == 64


def test_short_reductions_that_transpose_are_held_at_once() -> None:
    s = schedule_for(crossed(100, 30000, "sum"), "cuda:sm_90")
    assert {knob.name: knob.chosen for knob in s.knobs}["total.whole_row"] is True


@pytest.mark.parametrize("fold", ["sum", "place"])
@pytest.mark.parametrize(("rows", "columns"), [(300, 70), (17, 1030), (130, 33), (1, 40)])
def test_reductions_that_transpose_are_right(rows: int, columns: int, fold: str) -> None:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    y = rng.standard_normal((columns, rows)).astype(np.float32)
    for target in ("triton-interpret", "cpu"):
        kernel = te.build(crossed(rows, columns, fold, "float32"), target)
        products = x.astype(np.float64) * y.T
        want = products.argmax(0) if fold == "place" else products.sum(0)
        np.testing.assert_allclose(np.asarray(kernel(x, y)), want, rtol=1e-4, atol=1e-4)


def test_windows_do_not_transpose() -> None:
    """Their last index moves with the results as with what is reduced."""
    x = te.placeholder((64, 66, 1026), "float32", name="x")
    q, r = te.reduce_axis((0, 3), name="q"), te.reduce_axis((0, 3), name="r")
    y = te.compute(
        (64, 64, 1024), lambda n, i, j: te.max(x[n, i + q, j + r], axis=[q, r]), name="y"
    )
    s = schedule_for(y, "cuda:sm_90")
    assert "y.whole_row" not in {knob.name for knob in s.knobs}
