"""Indices computed in floating point become integer ones where those are the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from index_text import Scope, show

from tedsl.dtypes import DType
from tedsl.expr.nodes import Cast, Unary, UnaryOp
from tedsl.index.evaluate import computed
from tedsl.index.interval import interval
from tedsl.index.simplify import simplify
from tedsl.index.width import in_32_bits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int64((float32(i) + 0.0) * 0.5)", "int64(i // 2)"),
        ("int64((float32(i) + 0.5) * 0.25)", "int64(i // 4)"),
        ("int64((float32(i) + 2.5) * 0.25)", "int64((i + 2) // 4)"),
        ("int64(float32(i) * 0.3333333432674408)", "int64(i // 3)"),
        ("int32(float32(i) * 2.0 - 4.0)", "i * 2 - 4"),
        ("int32(float32(i) * 0.001)", "0"),
    ],
)
def test_stairs_and_lines(text: str, expected: str) -> None:
    scope = Scope(i="0:742")
    assert show(simplify(scope(text), scope.facts)) == expected


def test_steps_of_other_lengths_stay() -> None:
    scope = Scope(i="0:742", j="0:n")
    for text in (
        "int64(float32(i) * 1.7)",
        "int64(float32(i) * 0.7)",
        "int64((float32(i) - 5.0) * 0.5)",  # truncated towards 0 on both sides
        "int64(float32(j) * 0.5)",  # of no known range
    ):
        assert "float32" in show(simplify(scope(text), scope.facts))


def test_numbers_that_are_rounded_stay() -> None:
    """Beyond 2048 not every integer is a float16."""
    small, large = Scope(i="0:1025"), Scope(i="0:4096")
    text = "int32(float16(i) * float16(2.0))"
    assert show(simplify(small(text), small.facts)) == "i * 2"
    assert "float16" in show(simplify(large(text), large.facts))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int64(max((float32(i) + 0.5) * 0.5 - 0.5, 0.0))", "int64(max((i + 1) // 2 - 1, 0))"),
        ("int64(min(float32(i) * 0.25, 5.5))", "int64(min(i // 4, 5))"),
        ("int64(max(float32(i) * 0.7, 0.0))", "int64(int32(max(float32(i) * 0.7, 0.0)))"),
        ("float32(int64(i))", "float32(i)"),
    ],
)
def test_limits_of_what_is_rounded(text: str, expected: str) -> None:
    """Places in a resized image are held at its edges, before or after they are rounded."""
    scope = Scope(i="0:742")
    assert show(simplify(scope(text), scope.facts)) == expected


def test_places_that_are_rounded_down() -> None:
    scope = Scope(i="0:742")
    place = Unary(UnaryOp.FLOOR, scope("(float32(i) + 0.5) * 0.5 - 0.5"))
    assert show(simplify(Cast(place, DType.int64), scope.facts)) == "int64((i + 1) // 2 - 1)"


@pytest.mark.parametrize("rounding", [None, UnaryOp.FLOOR, UnaryOp.CEIL])
@pytest.mark.parametrize("text", ["float32(i) * 0.7", "(float32(i) + 0.5) * 1.3 - 0.5"])
def test_bounds_of_what_is_rounded(text: str, rounding: UnaryOp | None) -> None:
    """They hold, and at both ends no number more than one of another rounding is left."""
    scope = Scope(i="3:739")
    place = scope(text) if rounding is None else Unary(rounding, scope(text))
    numbers = computed(place, np.arange(3, 742)).astype(np.int64)
    lo, hi = interval(Cast(place, DType.int64), scope.facts)
    assert lo is not None and hi is not None
    assert numbers.min() - 1 <= lo <= numbers.min() and numbers.max() <= hi <= numbers.max() + 1


def test_clamps_of_places_inside_an_image_are_left_out() -> None:
    scope = Scope(i="0:742")
    place = "int64(max((float32(i) + 0.5) * 0.7 - 0.5, 0.0))"
    found = show(simplify(scope(f"min(max({place}, int64(0)), int64(600))"), scope.facts))
    assert "min" not in found and found.count("max") == 1


def test_index_arithmetic_that_fits_is_of_32_bits() -> None:
    scope = Scope(i="0:742", j="0:n")
    near, far = scope("min(int64(i) + int64(1), int64(700))"), scope("int64(j) * int64(3)")
    assert show(in_32_bits(near, scope.facts)) == "min(i + 1, 700)"
    assert in_32_bits(far, scope.facts) is far
