"""Quantised rows and their matrix product, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tedsl as te
from tedsl.errors import ExprError

nn, P = te.nn, te.placeholder
KINDS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
STEP = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "int8": 0.5 / 127}
"""Half the distance of two numbers, relative to the larger; of int8 to the largest."""


def kind(dtype: str) -> Any:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def shape(tensor: te.Tensor) -> list[int]:
    return [int(str(extent)) for extent in tensor.shape]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("of", ["float32", "bfloat16"])
def test_quantize(dtype: str, of: str) -> None:
    x = P((2, 5, 33), of, name="x")
    values, scales = nn.quantize(x, dtype)
    assert (values.dtype, scales.dtype) == (dtype, "float32")
    rng = np.random.default_rng(1)
    given = (rng.standard_normal((2, 5, 33)) * 10.0 ** rng.integers(-6, 6, (2, 5, 1))).astype(
        kind(of)
    )
    given[0, 0] = 0
    q, s = te.evaluate([values, scales], {x: given})
    wide = given.astype(np.float64)
    largest = np.abs(wide).max(-1)
    np.testing.assert_allclose(s[0, 1:], largest[0, 1:] / KINDS[dtype], rtol=1e-6)
    assert s[0, 0] == np.float32(2.0**-126) and not q[0, 0].astype(np.float32).any()
    assert (np.abs(q.astype(np.float64)).max(-1)[0, 1:] == KINDS[dtype]).all()
    back = q.astype(np.float64) * s[..., None]
    scale = np.abs(wide) if dtype != "int8" else largest[..., None]
    # Below the normal numbers of the type, steps are of one size.
    least = largest[..., None] * (0 if dtype == "int8" else 2.0**-15)
    assert (np.abs(back - wide) <= 1.0001 * STEP[dtype] * np.maximum(scale, least)).all()


def test_rows_of_tiny_numbers_and_of_none() -> None:
    x = P((3, 4), name="x")
    given = np.array([[1e-40, -2e-41, 0, 0], [np.nan, 1, 2, 3], [np.inf, 1, 0, 0]], "f4")
    q, s = te.evaluate(list(nn.quantize(x)), {x: given})
    assert np.isfinite(q[0].astype("f4")).all() and s[0] == np.float32(2.0**-126)
    assert np.isnan(s[1]) and np.isnan(q[1].astype("f4")).all()
    assert np.isinf(s[2]) and np.isnan(q[2].astype("f4"))[0]
    empty = P((3, 0), name="empty")
    q, s = te.evaluate(list(nn.quantize(empty)), {empty: np.zeros((3, 0), "f4")})
    assert q.shape == (3, 0) and (s == np.float32(2.0**-126)).all()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize("with_scales", ["rows", "one", "none"])
def test_scaled_matmul(dtype: str, lead: tuple[int, ...], with_scales: str) -> None:
    m, n, k = 5, 7, 33
    rng = np.random.default_rng(2)
    a, b = P((*lead, m, k), dtype, name="a"), P((n, k), dtype, name="b")
    shapes = {"rows": ((*lead, m), (n,)), "one": ((), ()), "none": ()}[with_scales]
    scales = [P(s, name=f"s{n}") for n, s in enumerate(shapes)]
    bias = P((n,), "bfloat16", name="bias")
    out = nn.scaled_matmul(a, b, *scales, bias=bias, dtype="float32")
    span = 100 if dtype == "int8" else 8
    values = {t: (rng.standard_normal(shape(t)) * span).astype(kind(t.dtype)) for t in (a, b)}
    for each in (*scales, bias):
        values[each] = rng.uniform(0.5, 2, shape(each)).astype(kind(each.dtype))
    (got,) = te.evaluate(out, values)
    left, right = (values[t].astype("f8") for t in (a, b))
    factor = np.ones(())
    if shapes:
        sa, sb = (values[t].astype("f8") for t in scales)
        factor = sa[..., None] * sb
    want = left @ right.T * factor + values[bias].astype("f8")
    size = np.abs(left) @ np.abs(right).T * factor + 1
    assert out.dtype == "float32"
    assert (np.abs(got - want) <= 3e-7 * size).all()
    if dtype == "int8" and not shapes:
        np.testing.assert_array_equal(got, want.astype("f4"))


def test_the_product_of_rows_that_were_quantised() -> None:
    """About that of the rows: two roundings of 2^-4, of which most cancel in a sum."""
    x, w = P((16, 256), name="x"), P((24, 256), name="w")
    (a, sa), (b, sb) = nn.quantize(x, name="qx"), nn.quantize(w, name="qw")
    out = nn.scaled_matmul(a, b, sa, sb, dtype="float32")
    rng = np.random.default_rng(3)
    given = {t: rng.standard_normal(shape(t), np.float32) for t in (x, w)}
    (got,) = te.evaluate(out, given)
    want = given[x].astype("f8") @ given[w].astype("f8").T
    assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)


def test_derivatives() -> None:
    """By float8 operands and by scales; int8 has none."""
    a, b = P((4, 6), "float8_e4m3fn", name="a"), P((5, 6), "float8_e4m3fn", name="b")
    sa, head = P((4,), name="sa"), P((4, 5), name="head")
    out = nn.scaled_matmul(a, b, sa, dtype="float32")
    by_a, by_sa = te.gradient(out, [a, sa], head)
    rng = np.random.default_rng(4)
    av, bv = (rng.standard_normal((r, 6)).astype(kind("float8_e4m3fn")) for r in (4, 5))
    sv, hv = rng.random(4, np.float32), rng.standard_normal((4, 5), np.float32)
    got = te.evaluate([by_a, by_sa], {a: av, b: bv, sa: sv, head: hv})
    wide = av.astype("f8"), bv.astype("f8")
    assert by_a.dtype == by_sa.dtype == "float32"
    np.testing.assert_allclose(got[0], (hv * sv[:, None]) @ wide[1], rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], (hv * (wide[0] @ wide[1].T)).sum(1), rtol=2e-5, atol=1e-5)
    i = P((4, 6), "int8", name="i")
    with pytest.raises(ExprError, match=r"i is int8, and only floats have derivatives"):
        te.gradient(nn.scaled_matmul(i, P((5, 6), "int8", name="j")), [i])


E4 = P((4, 8), "float8_e4m3fn", name="x")
I8 = P((4, 8), "int8", name="i")
F32 = P((4, 8), name="f")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.scaled_matmul(E4, I8), r"x is float8_e4m3fn and i is int8(.|\n)*quantize"),
        (lambda: nn.scaled_matmul(F32, F32), r"f is float32(.|\n)*two 8-bit floats, or two int8"),
        (lambda: nn.scaled_matmul(E4, E4, F32), r"f has the shape \[4, 8\], not \[4\]"),
        (lambda: nn.scaled_matmul(E4, E4, P((3,), name="s")), r"s has the shape \[3\], not \[4\]"),
        (lambda: nn.scaled_matmul(E4, E4, dtype="int32"), r"asked for in int32(.|\n)*bfloat16"),
        (lambda: nn.scaled_matmul(E4, P((4, 9), E4.dtype, name="w")), r"w has .* not \[any, 8\]"),
        (lambda: nn.quantize(I8), r"i is int8, not a float"),
        (lambda: nn.quantize(E4), r"x of float8_e4m3fn is to become(.|\n)*16 bits or more"),
        (lambda: nn.quantize(F32, "uint8"), r"f of float32 is to become uint8(.|\n)*int8"),
    ],
)
def test_what_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ExprError, match=words):
        make()
