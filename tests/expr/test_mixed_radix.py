"""Indices that are taken apart and put together again."""

from __future__ import annotations

import itertools

import pytest

import tedsl as te
from tedsl.expr.mixed_radix import put_together
from tedsl.expr.nodes import Axis, Expr
from tedsl.expr.printer import print_expr
from tedsl.expr.visit import substitute
from tedsl.index.evaluate import evaluate_int


def axes(*sizes: int) -> list[Axis]:
    x = te.compute(sizes, lambda *i: te.const(0), name="x")
    return list(x.op.axis)


A, B, C = axes(5, 7, 3)
CASES: dict[str, tuple[Expr, str]] = {
    "quotient": ((A * 7 + B) // 7, "i0"),
    "remainder": ((A * 7 + B) % 7, "i1"),
    "of three": ((A * 21 + B * 3 + C) // 3, "i0 * 7 + i1"),
    "nested": (((A * 7 + B) * 3 + C) % 3, "i2"),
    "small": (B // 7, "0"),
    "both": (A // 2 * 2 + A % 2, "i0"),
    "both, scaled": (A // 2 * 6 + A % 2 * 3, "i0 * 3"),
    "both of a quotient": (A // 4 * 2 + A // 2 % 2, "i0 // 2"),
    "three parts": ((A // 4 * 2 + A // 2 % 2) * 2 + A % 2, "i0"),
    "of a part": ((A * 21 + B * 3 + C) // 63, "(i0 * 7 + i1) // 21"),
    "rest of a part": ((A * 21 + B * 3 + C) % 63, "(i0 * 7 + i1) % 21 * 3 + i2"),
    "twice": ((A * 7 + B) // 2 // 3, "(i0 * 7 + i1) // 6"),
    "too long": ((A * 3 + B) // 3, "i0 + i1 // 3"),
    "shifted": ((A * 7 + B + 1) // 7, "i0 + (i1 + 1) // 7"),
    "of the rest": ((A * 9 + B) % 3, "i1 % 3"),
    "below 0": ((A * 7 - B - 1) // 7, "(i0 * 7 - i1 - 1) // 7"),
    "another number": (A // 2 * 3 + A % 2, "i0 // 2 * 3 + i0 % 2"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_left(name: str) -> None:
    given, expected = CASES[name]
    found = put_together(given)
    assert print_expr(found) == expected
    for values in itertools.product(range(5), range(7), range(3)):
        at: dict[Expr, Expr] = dict(zip((A, B, C), map(te.const, values), strict=True))
        want, got = (evaluate_int(substitute(e, at), {}) for e in (given, found))
        assert want == got
