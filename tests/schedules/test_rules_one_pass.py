"""Reductions that read each element once, of whole lines: of everything, and of short lanes."""

from __future__ import annotations

import re

import pytest
from rule_cases import RuleCase
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.cost.estimate import estimate
from tedsl.devices import GpuDevice
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target

CUDA = Target.parse("cuda:sm_90")


def printed(s: Schedule) -> str:
    return emit(lower(s.plan, CUDA), CUDA).source


def microseconds(s: Schedule) -> float:
    device = CUDA.resolve()
    assert isinstance(device, GpuDevice)
    return estimate(lower(s.plan, CUDA), device).seconds * 1e6


# Everything ------------------------------------------------------------------------------------


def spread(shape: tuple[int, ...], largest: bool, keep: bool) -> list[te.Tensor]:
    """The variance of everything, and the largest of it."""
    x, count = te.placeholder(shape, name="x"), 1.0
    for extent in shape:
        count *= extent

    def axes(name: str) -> list[te.Axis]:
        return [te.reduce_axis((0, n), name=f"{name}{d}") for d, n in enumerate(shape)]

    k = axes("k")
    total = te.compute((), lambda: te.sum(x[tuple(k)], axis=k), name="total")
    r = axes("r")

    def square() -> te.Expr:
        apart = x[tuple(r)] - total[()] / count
        return te.sum(apart * apart, axis=r)

    squares = te.compute((), square, name="squares")
    kept = (1,) * len(shape) if keep else ()
    made = [te.compute(kept, lambda *_: squares[()] / count, name="spread")]
    m = axes("m")
    if largest:
        made.append(te.compute((), lambda: te.max(x[tuple(m)], axis=m), name="top"))
    return made


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("shape", [(20000,), (90, 300), (3, 41, 113), (8192,), (700,)])
def test_what_depends_on_everything_is_one_pass(shape: tuple[int, ...], keep: bool) -> None:
    s = interpreted(RuleCase("spread", lambda: spread(shape, True, keep)), "cuda")
    if len(shape) == 2:
        assert len(re.findall(r"tl.load\(x ", printed(s))) == 1


def test_the_variance_of_everything_takes_the_time_of_its_bytes() -> None:
    s = schedule_for(spread((272, 723, 256), True, True), CUDA)
    assert len(lower(s.plan, CUDA).funcs) == 3
    assert microseconds(s) < 90.0


@pytest.mark.ptxas
def test_parts_of_everything_in_tritons_interpreter() -> None:
    compiled(RuleCase("spread", lambda: spread((3, 41, 113), True, False)), "triton-interpret")


# Short lanes -----------------------------------------------------------------------------------


def folded(*shape: int, dtype: str = "float32") -> te.Tensor:
    """The first axis reduced, and scaled along the last."""
    high, *rest = shape
    x, w = te.placeholder(shape, dtype, name="x"), te.placeholder(rest[-1:], dtype, name="w")
    k = te.reduce_axis((0, high), name="k")
    top = te.compute(rest, lambda *i: te.max(x[(k, *i)], axis=k), name="top")
    return te.compute(rest, lambda *i: top[i] * w[i[-1]], name="y")


@pytest.mark.parametrize(
    "shape", [(95, 7, 11, 40), (70, 13, 9), (200, 3, 5, 24), (300, 33), (1000, 2, 7), (66, 1, 9)]
)
def test_short_lanes_are_one_loop_with_those_around(shape: tuple[int, ...]) -> None:
    s = interpreted(RuleCase("folded", lambda: folded(*shape)), "cuda")
    many = len([n for n in shape[1:] if n > 1]) > 1
    assert ("transform_layout" in s.as_python()) == many


def test_short_lanes_fill_whole_lines() -> None:
    """Whatever the rows are, addresses follow each other in a tile, and no lane is idle."""
    source = printed(schedule_for(folded(95, 73, 48, 40, dtype="float16"), CUDA))
    assert re.search(r"x_offsets = k\w*\[:, None\] \* 140160 \+ \w+\[None, :\]", source)
    assert "mask=" not in source.partition("tl.range")[2].partition("# top")[0]


@pytest.mark.ptxas
def test_short_lanes_in_tritons_interpreter() -> None:
    compiled(RuleCase("folded", lambda: folded(70, 13, 9)), "triton-interpret")


# Parts of cascades, and blocks -----------------------------------------------------------------


def softmax_slopes(rows: int, n: int) -> te.Tensor:
    """Backwards through a softmax."""
    x, g = (te.placeholder((rows, n), "bfloat16", name=name) for name in "xg")

    def wide(t: te.Tensor, *i: te.Expr) -> te.Expr:
        return te.cast(t[i], "float32")

    k, r, q = (te.reduce_axis((0, n), name=name) for name in "krq")
    top = te.compute((rows,), lambda i: te.max(wide(x, i, k), axis=k), name="top")
    total = te.compute(
        (rows,), lambda i: te.sum(te.exp(wide(x, i, r) - top[i]), axis=r), name="total"
    )

    def share(i: te.Axis, j: te.Expr) -> te.Expr:
        return te.exp(wide(x, i, j) - top[i]) / total[i]

    both = te.compute((rows,), lambda i: te.sum(wide(g, i, q) * share(i, q), axis=q), name="both")
    return te.compute(
        (rows, n),
        lambda i, j: te.cast(share(i, j) * (wide(g, i, j) - both[i]), "bfloat16"),
        name="slopes",
    )


def test_no_part_of_a_cascade_is_left_over() -> None:
    """What counts only at the end is in no pass: its parts would be a loop of one thread."""
    assert microseconds(schedule_for(softmax_slopes(38, 96704), CUDA)) < 100.0
    interpreted(RuleCase("slopes", lambda: softmax_slopes(3, 8300)), "cuda")


def test_blocks_of_a_scan_are_rows_though_the_last_reaches_beyond_the_end() -> None:
    found = te.nn.cumsum(te.placeholder((53990638,), name="x"), name="found")
    assert microseconds(schedule_for(found, CUDA)) < 300.0


def test_a_tile_of_rows_counts_what_is_read_before_it_is_reduced() -> None:
    """A pipeline of tiles has as many stages as shared memory holds of all that is loaded."""
    shape = 480, 20000
    x, g, w = (te.placeholder(shape, "float16", name=name) for name in "xgw")
    both = te.compute(shape, lambda i, j: te.exp(x[i, j]) + g[i, j], name="both")
    k = te.reduce_axis((0, shape[1]), name="k")
    top = te.compute(shape[:1], lambda i: te.max(both[i, k], axis=k), name="top")
    y = te.compute(shape, lambda i, j: (both[i, j] - top[i]) * w[i, j], name="y")
    s = schedule_for(y, CUDA)
    device = CUDA.resolve()
    assert isinstance(device, GpuDevice)
    assert estimate(lower(s.plan, CUDA), device).shared <= device.shared_block


def test_parts_of_everything_are_combined_at_once() -> None:
    s = schedule_for(spread((90000, 1000), False, False), CUDA)
    kernel = printed(s).partition("def spread_kernel(")[2]
    assert kernel.count("tl.range(0, 2)") == 2 and microseconds(s) < 175.0
