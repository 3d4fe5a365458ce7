"""Tasks of parallel loops: for all threads of a processor, however many it has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tedsl as te
from tedsl import target
from tedsl.devices import CpuDevice
from tedsl.expr.nodes import Const
from tedsl.ir.nodes import For, LoopKind
from tedsl.ir.visit import walk_stmts
from tedsl.schedules import schedule_for

ROWS, COLUMNS = 900, 480


def mapped(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i, j: te.exp(x[i, j]), name="out")


def turned(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i, j: x[(i + 7) % ROWS, j], name="out")


def over_columns(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, ROWS), name="k")
    return te.compute((COLUMNS,), lambda j: te.sum(x[k, j], axis=k), name="out")


def of_everything(x: te.Tensor) -> te.Tensor:
    k, h = te.reduce_axis((0, ROWS), name="k"), te.reduce_axis((0, COLUMNS), name="h")
    return te.compute((), lambda: te.sum(x[k, h], axis=[k, h]), name="out")


def of_long_rows(x: te.Tensor) -> te.Tensor:
    y = te.compute((3, 300, COLUMNS), lambda b, i, j: x[b * 300 + i, j], name="y")
    k, h = te.reduce_axis((0, 300), name="k"), te.reduce_axis((0, COLUMNS), name="h")
    return te.compute((3,), lambda b: te.max(y[b, k, h], axis=[k, h]), name="out")


def normed_columns(x: te.Tensor) -> te.Tensor:
    return te.nn.softmax(x, axis=0)


def over_the_other_axis(x: te.Tensor) -> te.Tensor:
    """Few rows that lie across those of the input, each of many columns."""
    y = te.compute((ROWS * 24, 20), lambda i, j: x[i // 24, i % 24 * 20 + j], name="y")
    return te.compute((20, ROWS * 24), lambda j, i: y[i, j] + 1.0, name="out")


def of_one_row(x: te.Tensor) -> te.Tensor:
    size = ROWS * COLUMNS
    return te.compute(
        (1, size), lambda b, i: x[i // COLUMNS, i % COLUMNS] * x[b, i % 2], name="out"
    )


@pytest.mark.cpu
@pytest.mark.parametrize("cores", [1, 2, 16, 64])
@pytest.mark.parametrize(
    "made",
    [
        mapped,
        te.nn.softmax,
        turned,
        over_columns,
        of_everything,
        of_long_rows,
        normed_columns,
        over_the_other_axis,
        of_one_row,
    ],
)
def test_each_thread_has_a_task(
    made: Callable[[te.Tensor], te.Tensor], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 432,000 elements; a task has at least 8192 of a sum, and a strip of columns 32."""
    x = te.placeholder((ROWS, COLUMNS), name="x")
    result = made(x)
    monkeypatch.setattr(target, "cpu_here", lambda: CpuDevice("test", cores, 512, 32))
    s = schedule_for(result, "cpu")
    loops = [
        int(each.extent.value)
        for func in te.lower(s, "cpu").funcs
        for each in walk_stmts(func.body)
        if isinstance(each, For)
        and each.kind is LoopKind.PARALLEL
        and isinstance(each.extent, Const)
    ]
    assert max(loops) >= min(cores, 13)
    given = np.random.default_rng(1).random((ROWS, COLUMNS), dtype=np.float32)
    np.testing.assert_allclose(
        te.build(s, "cpu")(given), te.evaluate(result, {x: given})[0], rtol=2e-5
    )


@pytest.mark.cpu
@pytest.mark.parametrize("rows", [(), (3,)])
def test_a_sum_over_several_axes_goes_along_memory(rows: tuple[int, ...]) -> None:
    """Whatever the order in which they are named."""
    x = te.placeholder((*rows, 700, 640), name="x")
    k, h = te.reduce_axis((0, 640), name="k"), te.reduce_axis((0, 700), name="h")
    total = te.compute(rows, lambda *i: te.sum(x[(*i, h, k)], axis=[k, h]), name="total")
    s = schedule_for(total, "cpu")
    given = np.random.default_rng(1).random((*rows, 700, 640), dtype=np.float32)
    kernel = te.build(s, "cpu")
    np.testing.assert_allclose(kernel(given), given.sum((-2, -1)), rtol=2e-5)
    assert "for h.k.fused.outer" in str(s)
