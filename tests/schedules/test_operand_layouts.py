"""Operands of products that are copied, since tiles are not loaded well from where they lie."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rule_cases import RuleCase
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.schedules import schedule_for
from tedsl.tensor.tensor import Tensor
from tedsl.workload.workload import Workload


def between(k: int, m: int, n: int, b: int, dtype: str = "float16") -> Tensor:
    """Products of a batch whose operands lie element by element beside each other."""
    x = te.placeholder((k, m, b), dtype, name="x")
    y = te.placeholder((k, n, b), dtype, name="y")
    r = te.reduce_axis((0, k), name="r")

    def element(c: Any, i: Any, j: Any) -> Any:
        return te.sum(x[r, i, c].astype("float32") * y[r, j, c].astype("float32"), axis=r)

    return te.compute((b, m, n), element, name="out")


def between_two(k: int, m: int, n: int, b: int, c: int) -> Tensor:
    """The same, of a batch of two axes, the inner one first."""
    x = te.placeholder((m, k, b, c), "float16", name="x")
    y = te.placeholder((c, k, b, n), "float16", name="y")
    r = te.reduce_axis((0, k), name="r")

    def element(p: Any, q: Any, i: Any, j: Any) -> Any:
        return te.sum(x[i, r, q, p].astype("float32") * y[p, r, q, j].astype("float32"), axis=r)

    return te.compute((c, b, m, n), element, name="out")


def convolution(n: int, c: int, h: int, f: int, dtype: str = "float32", pad: int = 1) -> Tensor:
    """Channels first, as PyTorch has them."""
    x = te.placeholder((n, c, h, h), dtype, name="x")
    w = te.placeholder((f, c, 3, 3), dtype, name="w")

    def margin(i: Any, q: Any, y: Any, z: Any) -> Any:
        inside = te.all(y >= pad, y < h + pad, z >= pad, z < h + pad)
        return te.if_then_else(inside, x[i, q, y - pad, z - pad], te.const(0, dtype))

    wide = h + 2 * pad
    around = te.compute((n, c, wide, wide), margin, name="around") if pad else x
    q, r0, r1 = (te.reduce_axis((0, size), name=a) for size, a in ((c, "q"), (3, "r0"), (3, "r1")))

    def element(i: Any, j: Any, y: Any, z: Any) -> Any:
        left = around[i, q, y + r0, z + r1].astype("float32")
        return te.sum(left * w[j, q, r0, r1].astype("float32"), axis=[q, r0, r1])

    return te.compute((n, f, wide - 2, wide - 2), element, name="out")


def product(m: int, n: int, k: int, tf32: bool = False) -> Tensor:
    """Both operands row-major: the columns of the right one are not folded."""
    x, y = te.placeholder((m, k), name="x"), te.placeholder((k, n), name="y")
    r = te.reduce_axis((0, k), name="r")
    return te.compute((m, n), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r, tf32=tf32), name="out")


CASES = {
    "float32 by columns": (lambda: product(40, 24, 48), ("out.turn_y",)),
    "a batch inside": (lambda: between(40, 24, 33, 3), ("out.turn_x", "out.turn_y")),
    "a batch of two axes inside": (lambda: between_two(40, 24, 33, 3, 2), ("out.turn_x",)),
    "channels first": (lambda: convolution(2, 30, 6, 5), ("out.turn_x", "out.turn_w")),
    "without a margin": (lambda: convolution(1, 32, 9, 16, pad=0), ("out.turn_x", "out.turn_w")),
    "of 16 bits": (lambda: convolution(1, 16, 8, 16, "float16"), ("out.turn_x",)),
}


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_numbers_are_the_same(name: str, turned: bool) -> None:
    make, knobs = CASES[name]
    case = RuleCase(name, make)
    decisions = dict.fromkeys(knobs, turned)
    s = interpreted(case, "cuda:sm_90", decisions)
    assert sum(stage.name.endswith(".global") for stage in s.stages) == turned * len(knobs)
    compiled(case, "triton-interpret", decisions)


def test_small_ones_are_read_where_they_lie() -> None:
    for make, _ in CASES.values():
        stages = schedule_for(make(), "cuda:sm_90").stages
        assert not any(stage.name.endswith(".global") for stage in stages)


@pytest.mark.parametrize(
    ("make", "layouts"),
    [
        (lambda: between(7168, 320, 288, 16), {"x.global": (16, 7168, 320)}),
        (lambda: between_two(1280, 512, 288, 8, 7), {"x.global": (8, 7, 512, 1280)}),
        (lambda: convolution(1, 64, 336, 64), {"x.global": (1, 336, 336, 64)}),
        (lambda: convolution(1, 64, 336, 64), {"w.global": (64, 3, 3, 64)}),
    ],
)
def test_large_ones_are_copied_first(make: Any, layouts: dict[str, tuple[int, ...]]) -> None:
    s = schedule_for(make(), "cuda:sm_90")
    found = {stage.name: stage.op.outputs[0].shape for stage in s.stages}
    for name, shape in layouts.items():
        assert tuple(int(n) for n in found[name]) == shape  # type: ignore[arg-type]


def test_what_already_fits_stays() -> None:
    """The last index of both operands is one of a row, a column or what is added up."""
    x = te.placeholder((8, 2048, 2048), "float16", name="x")
    y = te.placeholder((8, 2048, 2048), "float16", name="y")
    r = te.reduce_axis((0, 2048), name="r")
    s = schedule_for(
        te.compute(
            (8, 2048, 2048),
            lambda c, i, j: te.sum(
                x[c, r, i].astype("float32") * y[c, r, j].astype("float32"), axis=r
            ),
        ),
        "cuda:sm_90",
    )
    assert not any(stage.name.endswith(".global") for stage in s.stages)


@pytest.mark.parametrize("channels", [18, 20, 36, 49, 52, 59, 64])
def test_lanes_of_a_k_step_are_channels(channels: int) -> None:
    """Where they are not of a whole step, too: else each lane has a tap of its own."""
    s = schedule_for(convolution(8, channels, 128, 128), "cuda:sm_90")
    lanes = [line for line in str(s).splitlines() if "given the dot precision" in line]
    assert lanes and all("for q.inner in" in line for line in lanes)


@pytest.mark.parametrize(("filters", "lanes"), [(9, 45), (64, 16)])
def test_steps_of_short_tiles_are_long(filters: int, lanes: int) -> None:
    """Tensor cores multiply 16 rows at least: idle lanes take no time where there are fewer."""
    s = schedule_for(convolution(2, 45, 128, filters, "float16"), "cuda:sm_90")
    assert f"for q.inner in 0..{lanes}" in str(s)


def test_factors_are_rounded_where_the_sum_says_so() -> None:
    """On matrix units only; the text, and what a record keeps of it, says so too."""
    rounded, exact = product(128, 128, 64, tf32=True), product(128, 128, 64)
    for arch in ("sm_80", "sm_90"):
        assert "dot precision tf32)" in str(schedule_for(rounded, f"cuda:{arch}"))
        assert "dot precision tf32x3)" in str(schedule_for(exact, f"cuda:{arch}"))
    assert "tf32=True" in str(rounded.op) and "tf32" not in str(exact.op)
    kept = Workload.of([rounded])
    assert kept.hash != Workload.of([exact]).hash
    (again,) = Workload.from_json(kept.to_json()).outputs
    assert "tf32=True" in str(again.op)


@pytest.mark.parametrize("option", ["finite", "tf32"])
def test_options_of_a_sum_are_bools(option: str) -> None:
    x, k = te.placeholder((4,), name="x"), te.reduce_axis((0, 4), name="k")
    with pytest.raises(te.ExprError, match=f"{option}='yes'"):
        te.sum(x[k], axis=k, **{option: "yes"})  # type: ignore[arg-type]


def strided(
    row: int, step: int, start: int, dtype: str = "float16", flat: bool = True, relu: bool = False
) -> Tensor:
    """Of the right operand every `step`-th element of rows is read, of memory or of a matrix."""
    m, n, k = 40, 70, 48
    size = (k - 1) * row + (n - 1) * step + 1 + start
    x = te.placeholder((m, k), dtype, name="x")
    y = te.placeholder((size,) if flat else (k, row), dtype, name="y")
    r = te.reduce_axis((0, k), name="r")

    def element(i: Any, j: Any) -> Any:
        value = y[r * row + j * step + start] if flat else y[r, j * step + start]
        value = te.maximum(value, te.const(0, dtype)) if relu else value
        return te.sum(x[i, r].astype("float32") * value.astype("float32"), axis=r)

    return te.compute((m, n), element, name="out")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {"row": 140, "step": 2, "start": 0},
        {"row": 141, "step": 2, "start": 1},
        {"row": 80, "step": 1, "start": 3},
        {"row": 141, "step": 2, "start": 1, "dtype": "float32"},
        {"row": 150, "step": 2, "start": 5, "dtype": "float32", "flat": False},
        {"row": 140, "step": 2, "start": 0, "relu": True},
    ],
)
def test_what_is_read_with_a_stride_may_be_copied(given: dict[str, Any], packed: bool) -> None:
    """No more than that: the elements between are computed by nothing."""
    case = RuleCase("strided", lambda: strided(**given))
    decisions = {"out.pack_y": packed}
    s = interpreted(case, "cuda:sm_90", decisions)
    copies = [e for e in s.stages if ".global" in e.name and "shared" not in e.name]
    copies = [e for e in copies if not e.plan.placement.inlined]
    order = (70, 48) if given.get("dtype") == "float32" else (48, 70)
    shapes = [tuple(int(n) for n in e.op.outputs[0].shape) for e in copies]  # type: ignore[arg-type]
    assert shapes == ([order] if packed else [])
    compiled(case, "triton-interpret", decisions)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_large_operand_with_a_stride_is_copied_first(dtype: str) -> None:
    """On an H200 a float32 product of 1421 by 908 by 1728 took 2.7 times as long as cuBLAS where
    its right operand was read from every second place of memory, one of float16 2.4 times."""
    m, n, k = 1421, 908, 1728
    x = te.placeholder((m, k), dtype, name="x")
    y = te.placeholder((2 * k * n - 1,), dtype, name="y")
    r = te.reduce_axis((0, k), name="r")

    def element(i: Any, j: Any) -> Any:
        left, right = x[i, r], y[r * (2 * n) + j * 2]
        return te.sum(left.astype("float32") * right.astype("float32"), axis=r)

    s = schedule_for(te.compute((m, n), element, name="out"), "cuda:sm_90")
    assert any(stage.name.startswith("y.global") for stage in s.stages)


def test_windows_are_no_parts() -> None:
    """Neighbours read the same elements: those have no dimension for each axis."""
    s = schedule_for(convolution(1, 64, 336, 64, pad=0), "cuda:sm_90")
    assert not any(".pack_" in knob.name for knob in s.knobs)


@pytest.mark.parametrize(("n", "padded"), [(415, True), (416, False)])
def test_a_result_that_rows_are_folded_of_has_padded_rows(n: int, padded: bool) -> None:
    """Without that, 128 by 128 elements are stored one by one, from 254 registers and the stack."""
    x = te.placeholder((256, 64), "float16", name="x")
    y = te.placeholder((64, n), "float16", name="y")
    r, a = te.reduce_axis((0, 64), name="r"), te.reduce_axis((0, n), name="a")

    def element(i: Any, j: Any) -> Any:
        return te.sum(x[i, r].astype("float32") * y[r, j].astype("float32"), axis=r)

    def products() -> Tensor:
        summed = te.compute((256, n), element, name="summed")
        z = te.compute((256, n), lambda i, j: summed[i, j].astype("float16"), name="z")
        f = te.compute((256,), lambda i: te.sum(z[i, a].astype("float32"), axis=a), name="f")
        return te.compute((256, n), lambda i, j: z[i, j].astype("float32") - f[i], name="out")

    case = RuleCase("rows", products)
    s = interpreted(case, "cuda:sm_90")
    assert any(stage.plan.aligned for stage in s.stages if stage.name == "z") == padded
    compiled(case, "triton-interpret")


@pytest.mark.parametrize("filters", [6, 256])
def test_images_of_few_filters_are_turned(filters: int) -> None:
    """Tiles of few filters have few products for each element that is gathered."""
    s = schedule_for(convolution(8, 176, 168, filters, "float16", pad=0), "cuda:sm_90")
    assert "kernel x.global" in str(s)


def test_what_takes_longer_to_turn_than_to_gather_stays() -> None:
    """A row of 800,000 places and two filters: the copy would take as long as the product."""
    size = 800_000
    x, w = te.placeholder((4, 32, size), name="x"), te.placeholder((2, 32, 3), name="w")
    k, r = te.reduce_axis((0, 32), name="k"), te.reduce_axis((0, 3), name="r")

    def margin(i: Any, c: Any, q: Any) -> Any:
        return te.if_then_else(te.all(q >= 1, q < size + 1), x[i, c, q - 1], 0.0)

    around = te.compute((4, 32, size + 2), margin, name="around")

    def element(i: Any, f: Any, q: Any) -> Any:
        return te.sum(around[i, k, q + r] * w[f, k, r], axis=(k, r), tf32=True)

    out = te.compute((4, 2, size), element, name="out")
    assert "kernel x.global" not in str(schedule_for(out, "cuda:sm_90"))
    assert "kernel x.global" in str(schedule_for(out, "cuda:sm_90", {"out.turn_x": True}))


def test_weights_of_narrow_tiles_are_turned() -> None:
    """Few results on each SM make narrow tiles, each of which would gather all weights."""
    s = schedule_for(convolution(2, 56, 64, 56, "float16"), "cuda:sm_90")
    assert {"x.global", "w.global"} <= {stage.name for stage in s.stages}


def test_parts_of_one_dimension_are_copied_as_neighbours() -> None:
    """Windows beside each other: two elements of each channel lie side by side, and the next
    window's behind them (drawn row 611126:232, where a copy two elements at a time took 2.1 ms)."""
    x = te.placeholder((1, 184, 90, 128), "float16", name="x")
    w = te.placeholder((256, 184, 2, 2), "float16", name="w")
    y = te.nn.conv2d(x, w, stride=2, layout="channels_first")
    text = str(schedule_for(y, "cuda:sm_90"))
    assert re.search(r"kernel x\.global.*\n.*\n +for \S+\.fused\.inner in 0\.\.16  \(vect", text)
