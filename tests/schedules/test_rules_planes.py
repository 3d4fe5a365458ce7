"""Statistics of channels, whose elements lie in planes; windows at a stride; what is resized."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import compiled, interpreted

import tedsl as te
from tedsl.schedules import default_schedule, schedule_for
from tedsl.schedules.gpu.columns import columns
from tedsl.tensor.tensor import Tensor


def normalised(n: int, channels: int, *plane: int) -> Tensor:
    """Each channel less its mean, over its deviation."""
    x, count = c.p(n, channels, *plane), float(n)
    for size in plane:
        count *= size

    def fold(name: str, value: Callable[[te.Expr, te.Axis], te.Expr]) -> Tensor:
        axes = [te.reduce_axis((0, size), name=f"k{d}") for d, size in enumerate((n, *plane))]
        return te.compute(
            (channels,),
            lambda i: te.sum(value(x[axes[0], i, *axes[1:]], i), axis=axes),
            name=name,
        )

    total = fold("total", lambda value, _: value)
    mean = te.compute((channels,), lambda i: total[i] / count, name="mean")
    squares = fold("squares", lambda value, i: (value - mean[i]) * (value - mean[i]))
    return te.compute(
        x.shape,
        lambda *i: (x[i] - mean[i[1]]) * te.rsqrt(squares[i[1]] / count + 1e-5),
        name="normalised",
    )


def kernels(text: str) -> list[str]:
    return [line.split(":")[0] for line in text.splitlines() if line.startswith("kernel ")]


@pytest.mark.parametrize("channels", [88, 168])
def test_channels_that_leave_much_of_the_device_idle_are_split(channels: int) -> None:
    """What is read for the statistics is read once, by many programs for each channel, and all of
    the device normalises."""
    s = schedule_for(normalised(7, channels, 352, 36), "cuda:sm_90")
    assert kernels(str(s)) == ["kernel squares.rf", "kernel normalised"]
    parts = next(knob.chosen for knob in s.knobs if knob.name == "normalised.parts")
    assert int(str(parts)) * channels >= 4 * 132


def test_statistics_of_many_channels_are_one_pass() -> None:
    """Both statistics in one loop, then the results."""
    s = schedule_for(normalised(7, 512, 352, 36), "cuda:sm_90")
    assert kernels(str(s)) == ["kernel normalised"]
    assert ".online(" in s.as_python()


@pytest.mark.ptxas
@pytest.mark.parametrize("plane", [(352, 36), (64, 3, 12)])
def test_planes_are_read_in_vectors(plane: tuple[int, ...]) -> None:
    """A piece crosses from one plane to the next at a vector boundary."""
    kernel = te.build(schedule_for(normalised(7, 88, *plane), "cuda:sm_90"), "cuda:sm_90")
    for code in kernel.asm.split(".entry")[1:]:
        loads = [line for line in code.splitlines() if "ld.global" in line and ".L" not in line]
        assert any(".v4" in line for line in loads), code


@pytest.mark.parametrize("plane", [(7, 11), (3, 5, 9), (1, 1), (333,)])
@pytest.mark.parametrize("target", ["cuda:sm_90", "triton-interpret"])
def test_uneven_planes(plane: tuple[int, ...], target: str) -> None:
    count = 4000 // max(1, plane[0])
    case = RuleCase("planes", lambda: normalised(count, 3, *plane))
    (interpreted if target != "triton-interpret" else compiled)(case, target)


def pooled(kind: str, n: int, channels: int, *image: int, size: int, stride: int) -> Tensor:
    """Windows of `size` in each dimension of images, channels first."""
    x = c.p(n, channels, *image)
    window = [te.reduce_axis((0, size), name=f"r{d}") for d in range(len(image))]
    places = [(length - size) // stride + 1 for length in image]
    fold = te.max if kind == "largest" else te.sum

    def at(*i: te.Axis) -> te.Expr:
        moved = (a * stride + r for a, r in zip(i[2:], window, strict=True))
        return fold(x[i[0], i[1], *moved], axis=window)

    found = te.compute((n, channels, *places), at, name="found")
    if kind == "largest":
        return found
    return te.compute(found.shape, lambda *i: found[i] / float(size ** len(image)), name="mean")


def padded(n: int, channels: int, size: int) -> Tensor:
    x = c.p(n, channels, size, size + 2, dtype="float16")
    return te.nn.max_pool2d(x, 3, stride=2, padding=1, layout="channels_first")


POOLS: dict[str, Callable[[], Tensor]] = {
    "largest": lambda: pooled("largest", 2, 3, 29, 31, size=5, stride=3),
    "mean of three dimensions": lambda: pooled("mean", 1, 2, 9, 11, 13, size=5, stride=2),
    "of rows": lambda: pooled("mean", 2, 3, 77, size=4, stride=4),
    "padded": lambda: padded(2, 3, 15),
    "one image": lambda: pooled("mean", 1, 5, 29, 31, size=3, stride=2),
    "of one channel": lambda: pooled("largest", 3, 1, 29, 31, size=3, stride=2),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("target", ["cuda:sm_90", "triton-interpret"])
def test_windows_at_a_stride(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result for each thread, in one flat tile."""
    monkeypatch.setattr(columns, "LEAST_WINDOWS", 0)
    case = RuleCase(name, POOLS[name])
    if target == "triton-interpret":
        compiled(case, target)
        return
    knobs = {knob.name.rpartition(".")[2]: knob.chosen for knob in interpreted(case, target).knobs}
    assert "threads" in knobs and "columns" not in knobs
    assert not default_schedule(POOLS[name](), target).fallbacks


@pytest.mark.ptxas
def test_nothing_of_a_window_is_computed_or_masked_twice() -> None:
    """An address is that of the first element and a constant; what lies inside is known to."""
    made = pooled("largest", 2, 5, 896, 1088, size=5, stride=3)
    kernel = te.build(schedule_for(made, "cuda:sm_90"), "cuda:sm_90")
    code = kernel.asm
    assert code.count("ld.global") == 25
    assert code.count("mul.hi") <= 6 and code.count("selp") == 0
    assert next(iter(kernel.resources.values())).registers <= 40


def test_windows_of_neighbours_keep_their_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors serve them where a window starts at a vector; channels last are neighbours too."""
    monkeypatch.setattr(columns, "LEAST_WINDOWS", 0)
    for made in (
        pooled("mean", 2, 3, 29, 31, size=3, stride=1),
        te.nn.max_pool2d(c.p(2, 29, 31, 64), 3, stride=2),
    ):
        knobs = {knob.name.rpartition(".")[2] for knob in schedule_for(made, "cuda:sm_90").knobs}
        assert "columns" in knobs and "threads" not in knobs


def nearest(n: int, height: int, width: int, scale: float) -> Tensor:
    """An image resized as PyTorch defines it: places are computed in float32."""
    x = c.p(n, height, width, dtype="float16")

    def place(i: te.Expr, size: int) -> te.Expr:
        found = ((i.astype("float32") + 0.0) * float(1.0 / scale)).astype("int64")
        inside = te.select(found < 0, found + size, found)
        return te.minimum(te.maximum(inside, te.const(0, "int64")), te.const(size - 1, "int64"))

    shape = (n, int(height * scale), int(width * scale))
    return te.compute(
        shape, lambda b, i, j: x[b, place(i, height), place(j, width)], name="resized"
    )


@pytest.mark.parametrize("scale", [2.0, 3.0, 0.5])
def test_places_of_resized_images_are_whole_numbers(scale: float) -> None:
    case = RuleCase("resized", lambda: nearest(2, 34, 38, scale))
    interpreted(case, "cuda:sm_90")
    compiled(case, "triton-interpret")
    source = te.build(schedule_for(nearest(4, 340, 380, scale), "cuda:sm_90"), "cuda:sm_90").source
    assert "float32" not in source and "where" not in source


def test_unaligned_channels_of_several_images_are_read_in_large_pieces() -> None:
    """886 us of [23, 768, 41, 105] on an H200 in pieces of 512 elements of which three are under
    way, 359 in pieces of 2048; rows that are one run in memory keep the small ones."""

    def chosen(of: Tensor) -> dict[str, object]:
        return {knob.name: knob.chosen for knob in schedule_for(of, "cuda:sm_90").knobs}

    several = chosen(normalised(23, 768, 41, 105))
    assert several["normalised.block"] == 2048 and several["normalised.stages"] == 1
    one = chosen(normalised(1, 768, 401, 105))
    assert one["normalised.block"] == 512 and one["normalised.stages"] == 3
