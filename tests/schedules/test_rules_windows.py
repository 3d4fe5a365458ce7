"""Short folds over windows, written out in registers, and what lies around an image."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import compiled, drawn, interpreted

import tedsl as te
from tedsl.expr.nodes import Axis, Expr
from tedsl.schedules import schedule_for
from tedsl.schedules.gpu.columns import columns
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor


def depthwise(n: int, size: int, channels: int, stride: int = 1) -> Tensor:
    x = c.p(n, size, size, channels, dtype="float16")
    w = c.p(3, 3, 1, channels, dtype="float16", name="w")
    return te.nn.relu(te.nn.conv2d(x, w, None, stride, 1, groups=channels))


def short_means(n: int, folded: int, columns: int) -> Tensor:
    x, k = c.p(n, folded, columns), te.reduce_axis((0, folded), name="k")
    total = te.compute((n, columns), lambda i, j: te.sum(x[i, k, j], axis=k), name="total")
    return te.compute((n, columns), lambda i, j: total[i, j] / folded, name="mean")


def in_groups(n: int, groups: int, within: int, each: int, size: int, taps: int = 3) -> Tensor:
    """A convolution along rows: `each` results of `within` channels in each of some groups."""
    x = c.p(n, groups * within, size + taps - 1, dtype="float16")
    w = c.p(groups * each, within, taps, dtype="float16", name="w")
    q, r = te.reduce_axis((0, within), name="q"), te.reduce_axis((0, taps), name="r")
    total = te.compute(
        (n, groups * each, size),
        lambda b, f, i: te.sum(
            x[b, f // each * within + q, i + r].astype("float32") * w[f, q, r].astype("float32"),
            axis=[q, r],
        ),
        name="total",
    )
    return te.compute(total.shape, lambda *i: te.relu(total[i]).astype("float16"), name="rows")


def squeezed(rows: int, size: int) -> Tensor:
    """The largest of five neighbours, at every other place of a row, as a plane of one row."""
    x = c.p(rows, 2 * size + 3, dtype="float16")
    q, r = te.reduce_axis((0, 1), name="q"), te.reduce_axis((0, 5), name="r")
    window = te.compute(
        (rows, 1, size), lambda b, _, i: te.max(x[b, 2 * i + r], axis=[q, r]), name="window"
    )
    return te.compute((rows, size), lambda b, i: window[b, 0, i], name="largest")


CASES: dict[str, Callable[[], Tensor]] = {
    "windows of one channel": lambda: depthwise(1, 7, 33),
    "with a stride": lambda: depthwise(2, 9, 20, stride=2),
    "largest of a window": lambda: te.nn.max_pool2d(c.p(1, 9, 9, 35), 3, stride=2, padding=1),
    "more terms than are written out at once": lambda: te.nn.avg_pool2d(
        c.p(1, 12, 12, 35), 9, stride=1
    ),
    "at a stride in a plane of one row": lambda: squeezed(3, 70),
    "columns of few rows": lambda: short_means(3, 5, 50),
}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small results count as large ones, which would take the interpreter long."""
    monkeypatch.setattr(columns, "LEAST_WINDOWS", 0)


def unrolled(s: Schedule) -> bool:
    return any(".unroll(" in line for line in s.as_python().splitlines())


@pytest.mark.parametrize("name", CASES)
def test_short_folds_are_written_out(name: str) -> None:
    assert unrolled(interpreted(RuleCase(name, CASES[name]), "cuda"))


@pytest.mark.parametrize("name", CASES)
def test_drawn_decisions(name: str) -> None:
    case, rng = RuleCase(name, CASES[name]), random.Random(5)
    for _ in range(3):
        assert unrolled(interpreted(case, "cuda", drawn(case, "cuda", rng)))


@pytest.mark.parametrize("written", [True, False])
def test_products_of_groups_either_way(written: bool) -> None:
    for sizes in ((2, 3, 1, 2, 70), (1, 2, 3, 8, 130), (1, 2, 4, 5, 40)):
        case = RuleCase("groups", lambda sizes=sizes: in_groups(*sizes))
        assert unrolled(interpreted(case, "cuda", {"rows.written_out": written})) is written


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "cuda:sm_100"])
def test_the_quicker_rule_for_groups_is_taken(target: str) -> None:
    """Tensor cores are padded to 16 products where there are 3; they pay where there are more."""
    assert unrolled(schedule_for(in_groups(2, 80, 1, 2, 217872), target))
    assert not unrolled(schedule_for(in_groups(8, 16, 8, 32, 16384), target))


@pytest.mark.parametrize(("each", "rows"), [(4, 128), (32, 64)])
def test_rows_make_up_for_few_columns_of_a_group(each: int, rows: int) -> None:
    x = c.p(8, 64, 64, 16, dtype="float16")
    w = c.p(3, 3, 4, 4 * each, dtype="float16", name="w")
    knobs = schedule_for(te.nn.conv2d(x, w, None, 1, 1, groups=4), "cuda:sm_90").knobs
    assert [knob.chosen for knob in knobs if knob.name.endswith(".bm")] == [rows]


def test_small_tiles_have_programs_of_their_own() -> None:
    """One program for each SM would leave most of its threads without work."""
    made = in_groups(4, 16, 8, 8, 201824, 9)
    knobs = {knob.name: knob.chosen for knob in schedule_for(made, "cuda:sm_90").knobs}
    assert knobs["rows.resident"] == 0


def test_results_at_a_stride_have_a_thread_each() -> None:
    s = schedule_for(squeezed(3, 70), "cuda:sm_90")
    assert "largest.threads" in {knob.name for knob in s.knobs}


def test_few_results_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large device would be left idle."""
    monkeypatch.setattr(columns, "LEAST_WINDOWS", 128)
    assert not unrolled(schedule_for(short_means(16, 8, 1000), "cuda"))
    assert unrolled(schedule_for(short_means(160, 8, 1000), "cuda"))


def test_long_folds_are_not_written_out() -> None:
    """They are folded by tiles of rows, of which some are asked for at once."""
    knobs = [schedule_for(short_means(1000, rows, 1000), "cuda").knobs for rows in (64, 65)]
    assert [any(k.name.endswith(".unrolled") for k in each) for each in knobs] == [False, True]


def test_a_tile_leaves_few_lanes_idle() -> None:
    s = schedule_for(depthwise(32, 112, 96), "cuda")
    chosen = {knob.name.partition(".")[2]: knob.chosen for knob in s.knobs}
    assert 96 % int(str(chosen["columns"])) == 0
    assert 112 % int(str(chosen["rows"])) == 0


def stored_around(dtype: str, value: float, scale: float = 1.0) -> Tensor:
    """A product of windows of an image that a stage of its own surrounds with `value`."""
    x, w = c.p(2, 6, 6, 16, dtype=dtype), c.p(16, 3, 3, 16, dtype=dtype, name="w")

    def around(n: te.Axis, i: te.Axis, j: te.Axis, q: te.Axis) -> te.Expr:
        inside = (i >= 1) & (i < 7) & (j >= 1) & (j < 7)
        read = x[n, i - 1, j - 1, q]
        read = read if scale == 1.0 else te.exp(read * scale)
        return te.if_then_else(inside, read, te.const(value, dtype))

    padded = te.compute((2, 8, 8, 16), around, name="padded")
    r, s, q = (te.reduce_axis((0, n), name=name) for n, name in ((3, "r"), (3, "s"), (16, "q")))
    return te.compute(
        (2, 6, 6, 16),
        lambda n, i, j, f: te.sum(
            padded[n, i + r, j + s, q].astype("float32") * w[f, r, s, q].astype("float32"),
            axis=[r, s, q],
        ),
        name="windows",
    )


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_what_surrounds_an_image_is_no_kernel(value: float) -> None:
    case = RuleCase("around", lambda: stored_around("float16", value))
    s = interpreted(case, "cuda")
    assert 's["padded"].compute_inline()' in s.as_python()
    interpreted(case, "cuda", {"padded.place": "root"})


def test_what_is_computed_for_every_read_is_a_kernel() -> None:
    case = RuleCase("around", lambda: stored_around("float16", 0.0, scale=0.5))
    assert 's["padded"].compute_inline()' not in interpreted(case, "cuda").as_python()


def test_the_condition_of_a_load_is_its_mask() -> None:
    """Zeros around an image cost no choice between elements: the product reads what was loaded."""
    for value, chosen in ((0.0, False), (-0.0, True), (1.0, True)):
        source = te.build(stored_around("float16", value), "triton-interpret").source
        assert ("tl.where(" in source) is chosen
        assert "tl.dot(" in source


def by_channel(shape: tuple[int, int, int, int], taps: int, last: bool, dtype: str) -> Tensor:
    """A depthwise convolution as PyTorch has it: filters first, channels first or `last`."""
    n, size, channels, _ = shape
    wide = size + taps - 1
    x = c.p(*((n, wide, wide, channels) if last else (n, channels, wide, wide)), dtype=dtype)
    w = c.p(channels, taps, taps, dtype=dtype, name="w")
    q, r = te.reduce_axis((0, taps), name="q"), te.reduce_axis((0, taps), name="r")

    def product(b: Axis, f: Axis, y: Axis, z: Axis) -> Expr:
        found = x[b, y + q, z + r, f] if last else x[b, f, y + q, z + r]
        return te.sum(found.astype("float32") * w[f, q, r].astype("float32"), axis=[q, r])

    if last:
        return te.compute((n, size, size, channels), lambda b, y, z, f: product(b, f, y, z), "rows")
    return te.compute((n, channels, size, size), product, "rows")


@pytest.mark.parametrize("turned", [True, False])
def test_filters_may_have_their_channels_last(turned: bool) -> None:
    case = RuleCase("depthwise", lambda: by_channel((4, 12, 8, 0), 3, True, "float16"))
    s = interpreted(case, "cuda:sm_90", {"rows.turn_w": turned})
    assert any(stage.name == "w.global" for stage in s.stages) == turned
    compiled(case, "triton-interpret", {"rows.turn_w": turned})


@pytest.mark.parametrize(("size", "turned"), [(56, True), (4, False)])
def test_filters_of_large_images_have_their_channels_last(size: int, turned: bool) -> None:
    """Channels of the image are loaded as vectors, those of the filter one by one otherwise."""
    s = schedule_for(by_channel((64, size, 96, 0), 7, True, "bfloat16"), "cuda:sm_90")
    assert any(stage.name == "w.global" for stage in s.stages) == turned


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_thread_loads_in_one_piece_fits_its_registers(dtype: str) -> None:
    """Seven by seven terms of 16 results each in one piece: 32 registers, 4864 bytes of stack."""
    made = schedule_for(by_channel((4, 96, 128, 0), 7, False, dtype), "cuda:sm_90")
    assert "for r in 0..7  (unrolled)" in str(made) and "for q in 0..7\n" in str(made)
    kernel = te.build(made, target="cuda:sm_90", cache=False)
    assert all(each.stack == 0 for each in kernel.resources.values())


@pytest.mark.parametrize("size", [7, 14])
def test_small_images_have_tiles_of_vectors(size: int) -> None:
    """Tiles of 8 for 7 places leave an eighth idle; a thread for each result loads no vectors."""
    s = schedule_for(by_channel((64, size, 768, 0), 7, True, "bfloat16"), "cuda:sm_90")
    chosen = {knob.name: knob.chosen for knob in s.knobs}
    tile = [chosen[f"rows.{side}"] for side in ("columns", "rows", "high")]
    assert math.prod(int(str(n)) for n in tile) >= 1024


def test_what_is_folded_again_is_stored_as_it_is_rounded() -> None:
    """A depthwise convolution of 90 million results in float16 and their mean: 787 us predicted of
    sums in float32, and 750 of what they are rounded to."""

    def make() -> list[Tensor]:
        x, q = c.p(70, 40, dtype="float16"), te.reduce_axis((0, 3), name="q")
        total = te.compute(
            (68, 40), lambda i, j: te.sum(x[i + q, j].astype("float32"), axis=q), name="total"
        )
        rounded = te.compute((68, 40), lambda *i: total[i].astype("float16"), name="rounded")
        i, j = te.reduce_axis((0, 68), name="i"), te.reduce_axis((0, 40), name="j")
        return [
            te.compute((), lambda: te.sum(rounded[i, j].astype("float32"), axis=[i, j]), name="all")
        ]

    s = interpreted(RuleCase("rounded", make), "cuda")
    assert "kernel rounded: float16[68, 40]" in str(s)
    compiled(RuleCase("rounded", make), "triton-interpret", {})
