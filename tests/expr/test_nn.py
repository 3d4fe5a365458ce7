"""te.nn against formulas written in numpy (float64), and against PyTorch where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.expr.numerics import numpy_dtype
from tedsl.tensor.printer import print_graph

DTYPES = ("float16", "bfloat16", "float32", "float64")
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-12}
RNG = np.random.default_rng(3)
UNKNOWN: Any = "fast"
nn = te.nn

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def placeholder(shape: tuple[int, ...], dtype: str, name: str) -> tuple[te.Tensor, Any]:
    values = RNG.standard_normal(shape).astype(numpy_dtype(te.DType(dtype)))
    return te.placeholder(shape, dtype, name=name), values


def check(out: te.Tensor, inputs: dict[te.Tensor, Any], wanted: Any, dtype: str) -> None:
    (found,) = te.evaluate(out, inputs)
    assert found.dtype == numpy_dtype(te.DType(dtype))
    assert found.shape == wanted.shape
    bound = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=bound, atol=bound)


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


erf = np.vectorize(math.erf, otypes=[float])
POINTWISE: dict[str, tuple[Callable[[te.Tensor], te.Tensor], Callable[[Any], Any]]] = {
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
    "gelu": (nn.gelu, lambda x: x / 2 * (1 + erf(x / math.sqrt(2)))),
    "gelu_tanh": (
        lambda x: nn.gelu(x, "tanh"),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "silu": (nn.silu, lambda x: x / (1 + np.exp(-x))),
    "softmax": (nn.softmax, lambda x: softmax(x, -1)),
    "softmax_0": (lambda x: nn.softmax(x, axis=0), lambda x: softmax(x, 0)),
    "softmax_1": (lambda x: nn.softmax(x, axis=-2), lambda x: softmax(x, 1)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POINTWISE)
def test_functions_of_one_tensor(name: str, dtype: str) -> None:
    function, formula = POINTWISE[name]
    x, values = placeholder((3, 5, 7), dtype, "x")
    check(function(x), {x: values}, formula(values.astype("f8")), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 9), (9, 5)),
        ((2, 4, 9), (2, 9, 5)),
        ((2, 3, 4, 9), (2, 3, 9, 5)),
        ((2, 4, 9), (9, 5)),
        ((4, 9), (3, 9, 5)),
        ((1, 1), (1, 1)),
        ((4, 0), (0, 5)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    (a, av), (b, bv) = placeholder(left, dtype, "a"), placeholder(right, dtype, "b")
    check(nn.matmul(a, b), {a: av, b: bv}, av.astype("f8") @ bv.astype("f8"), dtype)


def test_matmul_of_integers_and_mixed_dtypes() -> None:
    a, b = te.placeholder((3, 4), "int32"), te.placeholder((4, 2), "int32")
    av, bv = RNG.integers(-9, 9, (3, 4), "int32"), RNG.integers(-9, 9, (4, 2), "int32")
    np.testing.assert_array_equal(te.evaluate(nn.matmul(a, b), {a: av, b: bv})[0], av @ bv)
    half, full = te.placeholder((3, 4), "float16"), te.placeholder((4, 2))
    assert nn.matmul(half, full).dtype == "float32"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_linear(lead: tuple[int, ...], bias: bool, dtype: str) -> None:
    (x, xv), (w, wv) = placeholder((*lead, 9), dtype, "x"), placeholder((5, 9), dtype, "w")
    b, bv = placeholder((5,), dtype, "b")
    wanted = xv.astype("f8") @ wv.astype("f8").T + (bv.astype("f8") if bias else 0)
    inputs = {x: xv, w: wv, b: bv}
    check(nn.linear(x, w, b if bias else None), inputs, wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [False, True])
def test_norms(affine: bool, dtype: str) -> None:
    x, xv = placeholder((2, 4, 33), dtype, "x")
    w, wv = placeholder((33,), dtype, "w")
    b, bv = placeholder((33,), dtype, "b")
    inputs = {x: xv, w: wv, b: bv}
    x64 = xv.astype("f8")
    scale, shift = (wv.astype("f8"), bv.astype("f8")) if affine else (1, 0)
    mean, var = x64.mean(-1, keepdims=True), x64.var(-1, keepdims=True)
    wanted = (x64 - mean) / np.sqrt(var + 1e-5) * scale + shift
    normed = nn.layer_norm(x, w, b) if affine else nn.layer_norm(x)
    check(normed, inputs, wanted, dtype)
    wanted = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6) * scale
    check(nn.rms_norm(x, w if affine else None), inputs, wanted, dtype)


def test_layer_norm_of_a_large_mean() -> None:
    x = te.placeholder((4, 1000), name="x")
    values = (RNG.standard_normal((4, 1000)) + 1e4).astype("f4")
    x64 = values.astype("f8")
    wanted = (x64 - x64.mean(-1, keepdims=True)) / np.sqrt(x64.var(-1, keepdims=True) + 1e-5)
    found = te.evaluate(nn.layer_norm(x), {x: values})[0]
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_softmax_of_extreme_values() -> None:
    x = te.placeholder((4, 3), name="x")
    inf = np.inf
    values = np.array([[3e38, -3e38, 0], [1e4, 1e4, -inf], [0, 0, 0], [-inf, -inf, -inf]], "f4")
    found = te.evaluate(nn.softmax(x), {x: values})[0]
    np.testing.assert_allclose(found[:3], [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3], rtol=1e-6)
    assert np.isnan(found[3]).all()


@needs_torch
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "softmax", "layer_norm", "linear"])
def test_against_torch(name: str) -> None:
    f = torch.nn.functional
    (x, xv), (w, wv) = placeholder((4, 9), "float32", "x"), placeholder((9, 9), "float32", "w")
    b, bv = placeholder((9,), "float32", "b")
    xt, wt, bt = (torch.from_numpy(v) for v in (xv, wv, bv))
    row, row_t = (b, bt)
    cases: dict[str, tuple[te.Tensor, Any]] = {
        "gelu": (nn.gelu(x), f.gelu(xt)),
        "gelu_tanh": (nn.gelu(x, approximate="tanh"), f.gelu(xt, approximate="tanh")),
        "silu": (nn.silu(x), f.silu(xt)),
        "softmax": (nn.softmax(x, 0), f.softmax(xt, 0)),
        "layer_norm": (nn.layer_norm(x, row, row), f.layer_norm(xt, (9,), row_t, row_t)),
        "linear": (nn.linear(x, w, b), f.linear(xt, wt, bt)),
    }
    ours, theirs = cases[name]
    check(ours, {x: xv, w: wv, b: bv}, theirs.numpy(), "float32")


def test_stages_are_named(golden: Callable[..., None]) -> None:
    n = te.var("n")
    x = te.placeholder((n, 64), "bfloat16", name="x")
    w, b = te.placeholder((64,), "bfloat16", name="w"), te.placeholder((64,), name="b")
    golden(print_graph(nn.softmax(x)), "softmax")
    golden(print_graph(nn.layer_norm(x, w, b)), "layer_norm")
    golden(print_graph(nn.linear(x, te.placeholder((8, 64), "bfloat16", name="w"))), "linear")
    golden(print_graph(nn.gelu(x, "tanh")), "gelu_tanh")


def test_symbolic_shapes() -> None:
    n, k = te.var("n"), te.var("k")
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, 3), name="b")
    av, bv = RNG.standard_normal((5, 4)).astype("f4"), RNG.standard_normal((4, 3)).astype("f4")
    out = nn.layer_norm(nn.softmax(nn.matmul(a, b)))
    assert te.evaluate(out, {a: av, b: bv})[0].shape == (5, 3)
    with pytest.raises(te.ExprError, match=r"the inner extents are k and n"):
        nn.matmul(a, te.placeholder((n, 3)))


X = te.placeholder((4, 9), name="x")
INTEGERS = te.placeholder((4, 9), "int32", name="i")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.matmul(X, X), r"matmul: the inner extents are 9 and 4"),
        (lambda: nn.matmul(X, te.placeholder((9,), name="v")), r"v has 1 dimensions, at least 2"),
        (
            lambda: nn.matmul(te.placeholder((2, 4, 9)), te.placeholder((3, 9, 4))),
            r"batch extents are 2 and 3",
        ),
        (
            lambda: nn.matmul(te.placeholder((2, 1, 4, 9)), te.placeholder((2, 9, 4))),
            r"has 2 batch dimensions and placeholder has 1",
        ),
        (lambda: nn.linear(X, X, X), r"linear: x has the shape \[4, 9\], not \[4\]"),
        (lambda: nn.linear(X, te.placeholder((4, 8), name="w")), r"w has .* not \[any, 9\]"),
        (lambda: nn.linear(INTEGERS, X), r"linear: i is int32, not a float[\s\S]*astype"),
        (lambda: nn.softmax(X, axis=2), r"x has 2 dimensions, there is no axis 2[\s\S]*-2 \.\. 1"),
        (lambda: nn.softmax(te.placeholder((), name="s")), r"s has 0 dimensions, at least 1"),
        (lambda: nn.softmax(INTEGERS), r"softmax: i is int32"),
        (lambda: nn.gelu(X, UNKNOWN), r"gelu has no approximation 'fast'"),
        (lambda: nn.gelu(INTEGERS), r"gelu: i is int32"),
        (lambda: nn.silu(INTEGERS), r"silu: i is int32"),
        (lambda: nn.layer_norm(X, X), r"layer_norm: x has the shape \[4, 9\], not \[9\]"),
        (lambda: nn.rms_norm(X, X), r"rms_norm: x has the shape"),
    ],
)
def test_refusals(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
