"""Indices computed in floating point become integer ones where those are the same numbers."""

from __future__ import annotations

import pytest
from index_text import Scope, show

from tedsl.index.simplify import simplify


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
