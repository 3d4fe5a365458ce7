"""Short axes of a contraction's result that are taken as one."""

from __future__ import annotations

import random
from collections.abc import Callable

import every_kernel
import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import drawn, interpreted

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor

CASES: dict[str, tuple[Callable[[], Tensor], str]] = {
    "windows of the first operand": (lambda: c.images(3, 7, 16, 17, "float16"), "cast_1.join_rows"),
    "between other axes": (
        lambda: c.images(2, 9, 16, 16, layout="channels_first"),
        "conv2d.join_rows",
    ),
    "windows of the second operand": (lambda: swapped(2, 9, 16, 17), "swapped.join_columns"),
    "rows of neighbours": (lambda: c.shared_right(5, 7, 20, 33), "matmul.join_rows"),
    "any number of images": (lambda: c.images(te.size_var("n"), 7, 16, 16), "maximum.join_rows"),
}
SIZES = {"any number of images": {"n": 3}}


def swapped(n: int, size: int, q: int, o: int) -> Tensor:
    """Windows that are the columns of a product."""
    x, w = c.p(n, size + 2, size + 2, q), c.p(o, 3, q, name="w")
    a, b = te.reduce_axis((0, 3), name="a"), te.reduce_axis((0, q), name="b")
    return te.compute(
        (o, n, size, size),
        lambda f, i, y, z: te.sum(w[f, a, b] * x[i, y + a, z + a, b], axis=[a, b]),
        name="swapped",
    )


def chosen(s: Schedule, name: str) -> object:
    return {knob.name: knob.chosen for knob in s.knobs}[name]


@pytest.mark.parametrize("name", CASES)
def test_axes_are_joined_or_not(name: str) -> None:
    make, knob = CASES[name]
    case = RuleCase(name, make, SIZES.get(name, {}))
    default = interpreted(case, "cuda")
    assert chosen(default, knob) is ("neighbours" not in name)
    for joined in (True, False):
        s = interpreted(case, "cuda", {knob: joined})
        assert any("transform_layout" in line for line in s.as_python().splitlines()) is joined


@pytest.mark.parametrize("name", CASES)
def test_drawn_decisions(name: str) -> None:
    make, knob = CASES[name]
    case, rng = RuleCase(name, make, SIZES.get(name, {})), random.Random(3)
    for _ in range(4):
        every_kernel.forget()  # ptxas takes what the last one makes
        interpreted(case, "cuda", drawn(case, "cuda", rng, {knob: True}))
