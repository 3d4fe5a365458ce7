"""Knobs that the cost model weighs where a rule's own choice is far from what memory allows."""

from __future__ import annotations

import numpy as np

import tedsl as te
from tedsl.cost.accesses import digits
from tedsl.cost.sampled_indices import layout
from tedsl.schedules.gpu.rows.thread_partials import run_of
from tedsl.tensor.tensor import ComputeOp

CUDA = "cuda:sm_90"


def tall(rows: int, name: str = "mm") -> te.Tensor:
    """`x.T @ y` of very many rows of float32."""
    x, y = te.placeholder((rows, 80), name="x"), te.placeholder((rows, 96), name="y")
    k = te.reduce_axis((0, rows), "k")
    return te.compute((80, 96), lambda i, j: te.sum(x[k, i] * y[k, j], axis=k), name=name)


def knob(s: te.Schedule, name: str) -> object:
    """What was chosen."""
    return next(each.chosen for each in s.knobs if each.name == name)


def seconds(s: te.Schedule) -> float:
    """Of all kernels, predicted."""
    return sum(kernel.seconds for kernel in te.explain(s, target=CUDA).kernels)


def test_parts_of_a_tall_product() -> None:
    """592 us on an H200 in 64 parts, 374 in 128."""
    s = te.schedule_for(tall(573916), CUDA)
    fewer = te.schedule_for(tall(573916), CUDA, {"mm.parts": 64})
    assert knob(s, "mm.parts") == 128 and knob(fewer, "mm.parts") == 64
    assert seconds(fewer) > 1.2 * seconds(s)


def test_equal_kernels_of_other_names_have_the_same() -> None:
    for name in ("mm", "other"):
        assert knob(te.schedule_for(tall(573916, name), CUDA), f"{name}.parts") == 128


def test_windows_of_few_columns_are_joined() -> None:
    """A 3-d convolution of rows of 25 elements, channels first: 543 us on an H200, 134 joined."""
    x = te.placeholder((4, 32, 64, 74, 52), "float16", "x")
    w = te.placeholder((92, 32, 3, 3, 3), "float16", "w")
    c = te.reduce_axis((0, 32), "c")
    a, b, d = (te.reduce_axis((0, 3), name) for name in "abd")
    conv = te.compute(
        (4, 92, 31, 36, 25),
        lambda n, o, i, j, k: te.sum(
            x[n, c, 2 * i + a, 2 * j + b, 2 * k + d] * w[o, c, a, b, d], axis=[c, a, b, d]
        ),
        name="conv",
    )
    out = te.compute(conv.shape, lambda *i: conv[i].astype("float16"), name="out")
    s = te.schedule_for(out, CUDA)
    apart = te.schedule_for(out, CUDA, {"out.join_rows": False})
    assert knob(s, "out.join_rows") is True
    assert seconds(apart) > 1.5 * seconds(s)


def test_a_tile_that_steps_unevenly_has_short_runs() -> None:
    """Places 0 1 2, 52 53 54, ...: taps of a window, of which no vector holds more than one."""
    walked = np.array([52 * (n // 3) + n % 3 for n in range(16)])
    steps = digits(walked, 16)
    assert steps == ((1, 3), (52, 6))
    assert layout(steps, 0).run == 3
    assert layout(steps, 0).vector(2) == 2
    assert layout([(1, 16)], 0).vector(2) == 16


def test_a_value_for_each_channel_breaks_no_run() -> None:
    x, b = te.placeholder((8, 53365), "bfloat16", "x"), te.placeholder((8,), "bfloat16", "b")
    c, i = te.reduce_axis((0, 8), "c"), te.reduce_axis((0, 53365), "i")
    every = te.placeholder((53365,), "bfloat16", "every")

    def of(value: te.Expr) -> ComputeOp:
        op = te.compute((1,), lambda _: te.sum(value.astype("float32"), axis=[c, i])).op
        assert isinstance(op, ComputeOp)
        return op

    assert run_of(of(x[c, i] + b[c])) == 8 * 53365
    assert run_of(of(x[c, i] + every[i])) == 53365
