"""Sums of products and differences of bytes, for which processors have instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tedsl as te
from tedsl.expr.nodes import Expr

pytestmark = pytest.mark.cpu

TERMS: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "products": lambda a, b, k: a * b,
    "masked": lambda a, b, k: te.select(k < 5, 1, -2) * a + te.select(k % 3 == 0, 0, 1) * b,
    "differences": lambda a, b, k: te.abs(a - b),
    "some": lambda a, b, k: te.select(k < 5, 0, 1) * b,
    "sums": lambda a, b, k: a + b,
}


@pytest.mark.parametrize("extent,lanes", [(4, 4), (8, 8), (16, 16), (32, 32), (37, 16), (128, 64)])
@pytest.mark.parametrize("types", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.parametrize("terms", TERMS)
def test_no_lane_is_left_out(terms: str, types: tuple[str, str], extent: int, lanes: int) -> None:
    """LLVM 22 left out lanes of what it makes `vpdpbusd` and `vpsadbw` of."""
    a, b = (te.placeholder((extent,), t, name=n) for n, t in zip("ab", types, strict=True))
    k = te.reduce_axis((0, extent), name="k")
    first, second = (te.cast(x[k], "int32") for x in (a, b))
    y = te.compute((), lambda: te.sum(TERMS[terms](first, second, k), axis=k), name="y")
    s = te.create_schedule(y)
    _, inner = s[y].split(s["y"].op.reduce_axis[0], factor=lanes)
    s[y].vectorize(inner)
    rng = np.random.default_rng(extent)
    built = te.build(s, target="cpu", cache=False)
    read = [spec.name for spec in built.signature.inputs]
    given = {
        x: rng.integers(np.iinfo(t).min, np.iinfo(t).max, extent, endpoint=True).astype(t)
        for x, t in zip((a, b), types, strict=True)
        if x.name in read
    }
    (want,) = te.evaluate([y], given)
    np.testing.assert_array_equal(built(*given.values()), want)
