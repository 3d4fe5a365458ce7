"""Functions of one element and gates, against formulas in numpy and against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_values import DTYPES, Inputs, agrees, needs_torch, torch

import tedsl as te

nn = te.nn


def sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0, -x))


def elu(x: Any, alpha: float) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def gated(x: Any, axis: int) -> Any:
    a, b = np.split(x, 2, axis)
    return a * sigmoid(b)


FORMULAS: dict[str, tuple[Callable[[te.Tensor], te.Tensor], Callable[[Any], Any]]] = {
    "relu6": (nn.relu6, lambda x: np.clip(x, 0, 6)),
    "sigmoid": (nn.sigmoid, sigmoid),
    "tanh": (nn.tanh, np.tanh),
    "leaky_relu": (lambda x: nn.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    "elu": (lambda x: nn.elu(x, 0.5), lambda x: elu(x, 0.5)),
    "selu": (
        nn.selu,
        lambda x: 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717),
    ),
    "softplus": (nn.softplus, lambda x: np.logaddexp(0, x)),
    "softplus_2": (lambda x: nn.softplus(x, beta=2), lambda x: np.logaddexp(0, 2 * x) / 2),
    "mish": (nn.mish, lambda x: x * np.tanh(np.logaddexp(0, x))),
    "hardsigmoid": (nn.hardsigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    "hardswish": (nn.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "glu": (nn.glu, lambda x: gated(x, -1)),
    "glu_0": (lambda x: nn.glu(x, axis=0), lambda x: gated(x, 0)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_values(name: str, dtype: str) -> None:
    function, formula = FORMULAS[name]
    given = Inputs(dtype)
    x = given.normal(4, 5, 6, scale=3.0)
    given.check(function(x), formula(given.wide(x)))


@pytest.mark.parametrize("name", FORMULAS)
def test_extreme_values(name: str) -> None:
    """Nothing overflows on the way where the result is finite."""
    function, formula = FORMULAS[name]
    given = Inputs()
    x = given.given(np.tile(np.array([[1e4], [-1e4], [0.0], [88.0]], "f4"), (1, 2)))
    given.check(function(x), formula(given.wide(x)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(dtype: str) -> None:
    given = Inputs(dtype)
    gate, up = given.normal(3, 7), given.normal(3, 7, name="up")
    g = given.wide(gate)
    given.check(nn.swiglu(gate, up), g * sigmoid(g) * given.wide(up))


def test_slopes_at_zero() -> None:
    """Halves, where |x| and max(x, 0) would make 0 or 1 of them."""
    x = te.placeholder((1,), "float64", name="x")
    h = te.placeholder((1,), "float64", name="h")
    for function, slope in ((nn.softplus, 0.5), (nn.mish, 0.6), (nn.sigmoid, 0.25)):
        (by_x,) = te.gradient(function(x), [x], h)
        (found,) = te.evaluate(by_x, {x: np.zeros(1), h: np.ones(1)})
        np.testing.assert_allclose(found, slope, rtol=1e-12)


def test_no_elements_and_integers() -> None:
    given = Inputs()
    empty = given.normal(0, 4)
    for function, _ in FORMULAS.values():
        made = function(empty)
        assert given.found(made).shape == tuple(int(str(n)) for n in made.shape)
    whole = Inputs("int32")
    i = whole.given(np.array([-3, 2, 9], "i4"))
    assert whole.found(nn.relu6(i)).tolist() == [0, 2, 6]


def test_symbolic_sizes() -> None:
    n = te.var("n")
    x = te.placeholder((3, 2 * n), name="x")
    made = nn.glu(nn.mish(x))
    values = np.random.default_rng(1).standard_normal((3, 10)).astype("f4")
    (found,) = te.evaluate(made, {x: values}, {n: 5})
    mish = values * np.tanh(np.logaddexp(0, values))
    np.testing.assert_allclose(found, gated(mish, -1), rtol=1e-5, atol=1e-6)


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_kernels(target: str) -> None:
    given = Inputs()
    gate, up = given.normal(3, 7, scale=4.0), given.normal(3, 7, name="up")
    made = nn.swiglu(nn.mish(gate), nn.selu(nn.hardswish(up)))
    agrees(target, made, given)


@pytest.mark.cpu
def test_a_kernel_of_halves() -> None:
    given = Inputs()
    x = given.normal(6, 4)
    agrees("cpu", nn.glu(nn.mish(x), axis=0), given)


@needs_torch
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("relu6", ()), ("sigmoid", ()), ("tanh", ()), ("leaky_relu", (0.3,)), ("elu", (0.7,))),
        *(("selu", ()), ("softplus", (2.0,)), ("mish", ()), ("hardsigmoid", ())),
        *(("hardswish", ()), ("glu", (1,))),
    ],
)
def test_against_torch(name: str, arguments: tuple[Any, ...]) -> None:
    given = Inputs()
    x = given.normal(5, 6, scale=4.0)
    theirs = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    wanted = theirs(given.torch(x), *arguments).numpy()
    given.check(getattr(nn, name)(x, *arguments), wanted)


X = te.placeholder((3, 5), name="x")
WHOLE = te.placeholder((3, 5), "int32", name="i")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.mish(WHOLE), r"mish: i is int32, not a float[\s\S]*astype"),
        (lambda: nn.softplus(X, 0), r"softplus: beta is 0"),
        (lambda: nn.glu(X), r"glu: the extent of x along axis -1 is 5, .*multiple of 2"),
        (lambda: nn.glu(X, 2), r"there is no axis 2"),
        (lambda: nn.glu(te.placeholder((te.var("n"),), name="v")), r"is n, [\s\S]*2 \* te\.var"),
        (lambda: nn.swiglu(X, te.placeholder((5, 3), name="u")), r"u has .* not \[3, 5\]"),
    ],
)
def test_refusals(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
