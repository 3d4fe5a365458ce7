"""Convolutions with a padding stage of their own, of every shape that networks have: found with
float32 images of one, whose joined axes began with an axis of one element."""

from __future__ import annotations

from typing import Any

import pytest
from rule_cases import RuleCase
from rule_checks import interpreted

import tedsl as te
from tedsl.backends.triton.emit import module as emit
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

IMAGES = ((56, 64, 64), (56, 64, 128), (28, 128, 256), (14, 256, 256), (7, 512, 512), (224, 3, 64))
WINDOWS = ((3, 1, 1), (1, 1, 0), (3, 2, 1), (1, 2, 0), (7, 2, 3))
ALL = [
    (n, *image, *window, epilogue)
    for n in (1, 2, 8)
    for image in IMAGES
    for window in WINDOWS
    for epilogue in (False, True)
]


def convolution(
    n: int, h: int, ci: int, co: int, k: int, s: int, p: int, epilogue: bool, dtype: str
) -> Tensor:
    """`n` images of `h` by `h`, windows of `k` in steps of `s`, padded by `p`."""
    x, w = (
        te.placeholder(shape, dtype, name=name)
        for shape, name in (((n, h, h, ci), "x"), ((k, k, ci, co), "w"))
    )

    def pad(b: Any, i: Any, j: Any, c: Any) -> Any:
        inside = te.all(i >= p, i < p + h, j >= p, j < p + h)
        return te.if_then_else(inside, x[b, i - p, j - p, c], te.const(0, dtype))

    around = te.compute((n, h + 2 * p, h + 2 * p, ci), pad, name="pad")
    o = (h + 2 * p - k) // s + 1
    r, q, c = (te.reduce_axis((0, size), name=a) for a, size in (("r", k), ("q", k), ("c", ci)))

    def fold(b: Any, i: Any, j: Any, f: Any) -> Any:
        return te.sum(around[b, i * s + r, j * s + q, c] * w[r, q, c, f], axis=[r, q, c])

    y = te.compute((n, o, o, co), fold, name="conv")
    if not epilogue:
        return y
    bias = te.placeholder((co,), dtype, name="bias")
    return te.compute(
        y.shape, lambda b, i, j, f: te.max(y[b, i, j, f] + bias[f], te.const(0, y.dtype)), name="o"
    )


def _lowers(shape: tuple[Any, ...], dtype: str, arch: str) -> None:
    """By the rules themselves: nothing simpler is taken."""
    target = Target.parse(f"cuda:{arch}")
    module = lower(schedule_for(convolution(*shape, dtype=dtype), target).plan, target)
    assert len(emit.emit(module, target).kernels) == len(module.funcs)


@pytest.mark.uncompiled("those of the rules are compiled in their own tests")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rules_schedule_them(dtype: str, arch: str) -> None:
    first = {"sm_80": 0, "sm_90": 5, "sm_100": 10}[arch]
    for shape in ALL[first::17]:
        _lowers(shape, dtype, arch)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.uncompiled("those of the rules are compiled in their own tests")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rules_schedule_all_of_them(dtype: str, arch: str) -> None:
    for shape in ALL:
        _lowers(shape, dtype, arch)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 14, 256, 256, 3, 1, 1, False),
        (1, 7, 512, 512, 3, 1, 1, False),
        (1, 56, 64, 128, 3, 2, 1, True),
        (1, 28, 128, 256, 1, 2, 0, True),
    ],
)
def test_images_of_one_in_float32(shape: Any) -> None:
    _lowers(shape, "float32", "sm_90")


@pytest.mark.parametrize("n", [1, 2])
def test_their_numbers_are_right(n: int) -> None:
    def make() -> Tensor:
        return convolution(n, 7, 32, 20, 3, 2, 1, True, "float32")

    schedule = interpreted(RuleCase("padded", make), "cuda:sm_90")
    assert any(knob.name.endswith("join_rows") and knob.chosen for knob in schedule.knobs)
