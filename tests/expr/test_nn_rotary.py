"""Rotary position embedding: both forms, its tables, and what it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_values import DTYPES, Inputs, agrees, needs_torch, torch

import tedsl as te

nn = te.nn


def angles(positions: Any, dim: int, base: float = 10000.0) -> Any:
    return np.outer(positions, base ** (-2.0 * np.arange(dim // 2) / dim))


def turned(x: Any, angle: Any, interleaved: bool) -> Any:
    """Pairs as complex numbers, times exp(i * angle)."""
    half = x.shape[-1] // 2
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    z = (a + 1j * b) * np.exp(1j * angle)
    result = np.empty_like(x)
    if interleaved:
        result[..., ::2], result[..., 1::2] = z.real, z.imag
    else:
        result[..., :half], result[..., half:] = z.real, z.imag
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(7, 6), (3, 7, 2), (2, 3, 7, 8), (2, 1, 0, 4)])
def test_values(shape: tuple[int, ...], interleaved: bool, dtype: str) -> None:
    given = Inputs(dtype)
    x = given.normal(*shape)
    n, d = shape[-2:]
    angle = given.random.uniform(-3, 3, (n, d // 2))
    cos, sin = (given.given(f(angle).astype(given.values[x].dtype)) for f in (np.cos, np.sin))
    near = np.arctan2(given.wide(sin), given.wide(cos))  # the tables are rounded
    length = np.hypot(given.wide(sin), given.wide(cos))
    wanted = turned(given.wide(x), near - 1j * np.log(length), interleaved)
    given.check(nn.rope(x, cos, sin, interleaved), wanted)


def test_another_axis() -> None:
    """Positions before the heads."""
    given = Inputs()
    x = given.normal(2, 5, 3, 8)
    angle = angles(np.arange(5), 8)
    cos, sin = (given.given(f(angle).astype("f4")) for f in (np.cos, np.sin))
    wanted = turned(np.swapaxes(given.wide(x), 1, 2), angle, False)
    given.check(nn.rope(x, cos, sin, axis=1), np.swapaxes(wanted, 1, 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables(dtype: str) -> None:
    given = Inputs(dtype)
    for positions, numbers in (
        (5, np.arange(5)),
        (given.given(np.array([3, 0, 100]), "p"), np.array([3, 0, 100])),
    ):
        for dim, base in ((8, 10000.0), (2, 10000.0), (6, 500000.0)):
            cos, sin = nn.rope_tables(positions, dim, base, dtype)
            angle = angles(numbers, dim, base)
            for made, wanted in ((cos, np.cos(angle)), (sin, np.sin(angle))):
                assert made.dtype == dtype
                bound = {"float32": 5e-6}.get(dtype)  # of an angle up to 100, in float32
                if bound is None:
                    given.check(made, wanted)
                else:
                    np.testing.assert_allclose(given.found(made), wanted, atol=2 * bound)


@pytest.mark.parametrize("interleaved", [False, True])
def test_products_depend_on_the_distance_only(interleaved: bool) -> None:
    """What the embedding is for: q at s times k at t is a function of s - t."""
    given = Inputs("float64")
    q, k = given.normal(8), given.normal(8)
    place = te.placeholder((1,), "int64", name="place")

    def at(v: te.Tensor) -> te.Tensor:
        row = te.compute((1, 8), lambda _, j: v[j], name="row")
        return nn.rope(row, *nn.rope_tables(place, 8, dtype="float64"), interleaved)

    def product(s: int, t: int) -> float:
        (a,) = te.evaluate(at(q), {**given.values, place: np.array([s])})
        (b,) = te.evaluate(at(k), {**given.values, place: np.array([t])})
        return float((a * b).sum())

    assert product(5, 3) == pytest.approx(product(42, 40), rel=1e-9)
    assert product(5, 3) != pytest.approx(product(5, 4), rel=1e-3)


@pytest.mark.cpu
def test_kernels_of_symbolic_sizes() -> None:
    n, h = te.var("n"), te.var("h")
    x = te.placeholder((2, n, 2 * h), "bfloat16", name="x")
    cos, sin = nn.rope_tables(n, 2 * h)
    for interleaved in (False, True):
        kernel = te.build(nn.rope(x, cos, sin, interleaved), target="cpu", cache=False)
        for size in (1, 6):
            given = Inputs("bfloat16", seed=size)
            values = given.values[given.normal(2, size, 8)]
            found: Any = kernel(values, h=4)
            wanted = turned(values.astype("f8"), angles(np.arange(size), 8), interleaved)
            np.testing.assert_allclose(found.astype("f8"), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.cpu
def test_a_kernel_in_tritons_interpreter() -> None:
    given = Inputs()
    x = given.normal(2, 3, 8)
    agrees("triton-interpret", nn.rope(x, *nn.rope_tables(3, 8)), given)


@needs_torch
@pytest.mark.parametrize("interleaved", [False, True])
def test_against_torch(interleaved: bool) -> None:
    """The usual formulas, with the second half or the odd elements moved over and negated."""
    given = Inputs()
    x = given.normal(2, 5, 8)
    here = given.torch(x)
    angle = torch.from_numpy(angles(np.arange(5), 8)).float()
    if interleaved:
        angle = angle.repeat_interleave(2, -1)
        moved = torch.stack((-here[..., 1::2], here[..., ::2]), -1).flatten(-2)
    else:
        angle = torch.cat((angle, angle), -1)
        moved = torch.cat((-here[..., 4:], here[..., :4]), -1)
    wanted = here * angle.cos() + moved * angle.sin()
    given.check(nn.rope(x, *nn.rope_tables(5, 8), interleaved), wanted.numpy())


X = te.placeholder((2, 5, 8), name="x")
T = te.placeholder((5, 4), name="t")
ODD = te.placeholder((5, 7), name="o")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.rope(X, T, ODD), r"rope: o has the shape \[5, 7\], not \[5, 4\]"),
        (lambda: nn.rope(X, T, T, axis=0), r"t has the shape \[5, 4\], not \[2, 4\]"),
        (lambda: nn.rope(X, T, T, axis=-1), r"along its last dimension[\s\S]*another axis"),
        (lambda: nn.rope(ODD, T, T), r"the last extent of o is 7, .* multiple of 2"),
        (lambda: nn.rope(te.placeholder((4,), name="v"), T, T), r"v has 1 dimensions, at least 2"),
        (lambda: nn.rope(X, T, te.placeholder((5, 4), "int8", name="i")), r"i is int8, not a"),
        (lambda: nn.rope_tables(5, 7), r"rope: dim is 7, .* multiple of 2"),
        (lambda: nn.rope_tables(5, 8, base=0), r"rope: base is 0[\s\S]*above 0"),
        (lambda: nn.rope_tables(5, 8, dtype="int32"), r"rope: dtype is int32, not a float"),
        (lambda: nn.rope_tables(T, 8), r"rope: t is float32, not an integer"),
        (lambda: nn.rope_tables(-1, 8), r"extent 0 is -1, below 0"),
    ],
)
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
