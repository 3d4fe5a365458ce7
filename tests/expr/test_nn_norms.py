"""Normalisations and statistics against formulas in numpy and against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_values import DTYPES, TOLERANCE, Inputs, agrees, needs_torch, torch

import tedsl as te

nn = te.nn


def normed(x: Any, axes: tuple[int, ...], eps: float = 1e-5) -> Any:
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps)


def along(channel: Any, rank: int) -> Any:
    """Values of channels, to be broadcast over dimension 1."""
    return channel.reshape(-1, *[1] * (rank - 2))


# Normalisations ---------------------------------------------------------------------------------

SHAPES = ((3, 6), (2, 6, 5), (2, 6, 3, 4))


@pytest.mark.parametrize("shape", SHAPES)
def test_channels_last_is_channels_first_transposed(shape: tuple[int, ...]) -> None:
    """`layout=` of all norms over channels: the same numbers, moved."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    mean, w, b = rng.standard_normal((3, 6))
    var = rng.uniform(0.5, 2.0, 6)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))

    def results(layout: Any, values: Any) -> list[Any]:
        given = Inputs("float64")
        X, *others = (given.given(each) for each in (values, mean, var, w, b))
        M, V, W, B = others
        made = [
            nn.batch_norm(X, M, V, W, B, layout=layout),
            *nn.batch_norm_training(X, W, B, layout=layout),
            nn.group_norm(X, 3, W, B, layout=layout),
        ]
        if len(shape) > 2:
            made.append(nn.instance_norm(X, W, B, layout=layout))
        return [given.found(each) for each in made]

    for want, got in zip(results("channels_first", x), results("channels_last", last), strict=True):
        moved = np.moveaxis(want, 1, -1) if want.ndim > 1 else want
        np.testing.assert_allclose(got, moved, rtol=1e-12, atol=1e-12)
    with pytest.raises(te.ExprError, match=r"layout.*'NHWC'(.|\n)*channels_last"):
        nn.batch_norm(te.placeholder(shape), *[te.placeholder((6,))] * 2, layout="NHWC")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm(shape: tuple[int, ...], affine: bool, dtype: str) -> None:
    given = Inputs(dtype)
    x, mean, var = given.normal(*shape), given.normal(6), given.uniform(6, low=0.5, high=2.0)
    w, b = (given.normal(6), given.normal(6)) if affine else (None, None)
    scale, shift = (given.wide(w), given.wide(b)) if w and b else (np.ones(6), np.zeros(6))
    scale, shift = along(scale, x.ndim), along(shift, x.ndim)
    x64, rank = given.wide(x), x.ndim
    m, v = along(given.wide(mean), rank), along(given.wide(var), rank)
    wanted = (x64 - m) / np.sqrt(v + 1e-5) * scale + shift
    given.check(nn.batch_norm(x, mean, var, w, b), wanted)
    axes = (0, *range(2, rank))
    y, batch_mean, batch_var = nn.batch_norm_training(x, w, b)
    given.check(y, normed(x64, axes) * scale + shift)
    assert batch_mean.dtype == batch_var.dtype == ("float64" if dtype == "float64" else "float32")
    bound = TOLERANCE["float64" if dtype == "float64" else "float32"]
    for made, formula in ((batch_mean, x64.mean(axes)), (batch_var, x64.var(axes))):
        np.testing.assert_allclose(given.found(made), formula, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm(shape: tuple[int, ...], groups: int, dtype: str) -> None:
    given = Inputs(dtype)
    x, w, b = given.normal(*shape), given.normal(6), given.normal(6)
    x64 = given.wide(x)
    apart = x64.reshape(shape[0], groups, 6 // groups, *shape[2:])
    wanted = normed(apart, tuple(range(2, apart.ndim))).reshape(shape)
    scale, shift = along(given.wide(w), x.ndim), along(given.wide(b), x.ndim)
    given.check(nn.group_norm(x, groups), wanted)
    given.check(nn.group_norm(x, groups, w, b, eps=1e-5), wanted * scale + shift)


@pytest.mark.parametrize("dtype", DTYPES)
def test_instance_norm(dtype: str) -> None:
    given = Inputs(dtype)
    x, w, b = given.normal(2, 6, 3, 4), given.normal(6), given.normal(6)
    wanted = normed(given.wide(x), (2, 3), eps=0.1)
    scale, shift = along(given.wide(w), 4), along(given.wide(b), 4)
    given.check(nn.instance_norm(x, w, b, eps=0.1), wanted * scale + shift)
    given.check(nn.instance_norm(x, eps=0.1), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype: str) -> None:
    given = Inputs(dtype)
    x, r, w = given.normal(3, 33), given.normal(3, 33), given.normal(33)
    total = (given.wide(x) + given.wide(r)).astype(given.values[x].dtype).astype("f8")
    normal = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * given.wide(w)
    made, added = nn.add_rms_norm(x, r, w)
    given.check(added, total)
    given.check(made, normal)


def test_one_element_and_none() -> None:
    """Of one element the mean is that element; of none, it is 0 / 0, which nothing reads."""
    given = Inputs()
    one, none = given.normal(1, 4, 1), given.normal(0, 4, 3)
    b = given.normal(4)
    shift = np.broadcast_to(along(given.wide(b), 3), (1, 4, 1))
    for made in (
        nn.instance_norm(one, None, b),
        nn.group_norm(one, 4, None, b),
        nn.batch_norm_training(one, None, b)[0],
    ):
        given.check(made, shift)
    assert given.found(nn.batch_norm_training(none)[0]).shape == (0, 4, 3)
    assert np.isnan(given.found(nn.batch_norm_training(none)[1])).all()
    assert given.found(nn.group_norm(none, 2)).shape == (0, 4, 3)


def test_a_large_mean() -> None:
    given = Inputs()
    x = given.given((given.random.standard_normal((4, 3, 500)) + 1e4).astype("f4"))
    found = given.found(nn.batch_norm_training(x)[0])
    np.testing.assert_allclose(found, normed(given.wide(x), (0, 2)), atol=2e-3)


def test_symbolic_sizes() -> None:
    n, c = te.var("n"), te.var("c")
    x = te.placeholder((n, 2 * c, 5), name="x")
    values = np.random.default_rng(2).standard_normal((3, 8, 5)).astype("f4")
    (found,) = te.evaluate(nn.group_norm(x, 2), {x: values}, {n: 3, c: 4})
    wanted = normed(values.astype("f8").reshape(3, 2, 4, 5), (2, 3)).reshape(3, 8, 5)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    y, mean, _ = nn.batch_norm_training(x)
    found, average = te.evaluate([y, mean], {x: values}, {n: 3, c: 4})
    np.testing.assert_allclose(found, normed(values.astype("f8"), (0, 2)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(average, values.mean((0, 2)), rtol=1e-5, atol=1e-6)


@pytest.mark.cpu
def test_kernels() -> None:
    given = Inputs()
    x, w = given.normal(2, 6, 35), given.normal(6, name="w")
    for made in (nn.group_norm(x, 3, w), nn.instance_norm(x, w), nn.batch_norm_training(x, w)[0]):
        agrees("cpu", made, given)
    agrees("triton-interpret", nn.group_norm(x, 3), given)
    half = Inputs("bfloat16")
    agrees("cpu", nn.group_norm(half.normal(2, 6, 35), 3), half, bound=2**-7)


@needs_torch
def test_norms_against_torch() -> None:
    f = torch.nn.functional
    given = Inputs()
    x, w, b = given.normal(3, 6, 4), given.normal(6), given.normal(6)
    m, v = given.normal(6), given.uniform(6, low=0.5)
    here = [given.torch(each) for each in (x, m, v, w, b)]
    given.check(nn.batch_norm(x, m, v, w, b), f.batch_norm(*here).numpy())
    t, *running, tw, tb = here
    trained = f.batch_norm(t, *(each.clone() for each in running), tw, tb, training=True)
    given.check(nn.batch_norm_training(x, w, b)[0], trained.numpy())
    given.check(nn.group_norm(x, 3, w, b), f.group_norm(t, 3, tw, tb).numpy())
    given.check(nn.instance_norm(x, w, b), f.instance_norm(t, None, None, tw, tb).numpy())


# Statistics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (2, -2), ()])
def test_statistics(axis: Any, keepdims: bool, dtype: str) -> None:
    given = Inputs(dtype)
    x = given.normal(3, 5, 7)
    x64 = given.wide(x)
    given.check(nn.mean(x, axis, keepdims), np.asarray(x64.mean(axis, keepdims=keepdims)))
    for correction in (0, 0.5) if axis == () else (0, 1, 1.5):
        options: dict[str, Any] = {"keepdims": keepdims}
        var = np.asarray(x64.var(axis, ddof=correction, **options))
        given.check(nn.var(x, axis, correction, **options), var)
        given.check(nn.std(x, axis, correction, **options), np.sqrt(var))


def test_statistics_of_little() -> None:
    given = Inputs()
    none, one, number = given.normal(2, 0), given.normal(2, 1), given.normal()
    assert np.isnan(given.found(nn.mean(none, 1))).all()
    assert np.isnan(given.found(nn.var(none, 1))).all()
    assert given.found(nn.mean(none, 0)).shape == (0,)
    assert np.isnan(given.found(nn.var(one, 1))).all()
    assert not given.found(nn.var(one, 1, correction=0)).any()
    given.check(nn.mean(number), given.wide(number))
    far = given.given(np.array([1e4, 1e4 + 1, 1e4 + 2], "f4"))
    given.check(nn.var(far), np.array(1.0))


@pytest.mark.cpu
def test_kernels_of_statistics() -> None:
    given = Inputs()
    x = given.normal(4, 6, 5)
    agrees("cpu", nn.std(x, (0, 2), keepdims=True), given)
    agrees("cpu", nn.var(x), given)


@needs_torch
def test_statistics_against_torch() -> None:
    given = Inputs()
    x = given.normal(3, 5, 7)
    here = given.torch(x)
    given.check(nn.mean(x, (0, 2)), here.mean((0, 2)).numpy())
    given.check(nn.var(x, 1), here.var(1).numpy())
    given.check(nn.std(x, (0, 1), 2, True), here.std((0, 1), correction=2, keepdim=True).numpy())


X = te.placeholder((2, 6, 5), name="x")
W, V = te.placeholder((5,), name="w"), te.placeholder((6,), name="v")
WHOLE = te.placeholder((2, 6), "int32", name="i")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.batch_norm(X, W, V), r"batch_norm: w has the shape \[5\], not \[6\]"),
        (lambda: nn.batch_norm(X, V, V, W), r"batch_norm: w has the shape \[5\], not \[6\]"),
        (lambda: nn.batch_norm(V, V, V), r"v has 1 dimensions, at least 2 are needed"),
        (lambda: nn.batch_norm_training(WHOLE), r"i is int32, not a float"),
        (
            lambda: nn.group_norm(X, 4),
            r"group_norm: the number of channels is 6, .* a multiple of 4",
        ),
        (lambda: nn.group_norm(X, 0), r"not known to be a multiple of 0"),
        (lambda: nn.group_norm(X, 3, bias=W), r"w has the shape \[5\], not \[6\]"),
        (lambda: nn.instance_norm(WHOLE), r"instance_norm: i is int32"),
        (
            lambda: nn.instance_norm(te.placeholder((2, 6), name="m")),
            r"m has 2 dimensions, at least 3",
        ),
        (lambda: nn.add_rms_norm(X, W), r"add_rms_norm: w has the shape \[5\], not \[2, 6, 5\]"),
        (lambda: nn.mean(X, 3), r"mean: x has 3 dimensions, there is no axis 3[\s\S]*-3 \.\. 2"),
        (lambda: nn.var(X, (0, -3)), r"var: x was given the axes \[0, -3\], one of them twice"),
        (lambda: nn.std(WHOLE), r"std: i is int32, not a float"),
    ],
)
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
