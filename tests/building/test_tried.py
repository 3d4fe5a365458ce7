"""Programs that the first people who tried tedsl wrote, none of them in the documentation then."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tedsl as te


def gated(m: int, n: int, k: int, dtype: str) -> te.Tensor:
    """silu(x @ w) * (x @ v) + r, each product a sum over an axis, nothing cast."""
    x, r = te.placeholder((m, k), dtype, name="x"), te.placeholder((m, n), dtype, name="r")
    w, v = (te.placeholder((k, n), dtype, name=name) for name in "wv")
    a, b = (te.reduce_axis((0, k), name=name) for name in "ab")
    gate = te.compute((m, n), lambda i, j: te.sum(x[i, a] * w[a, j], axis=a), name="gate")
    up = te.compute((m, n), lambda i, j: te.sum(x[i, b] * v[b, j], axis=b), name="up")
    made = te.compute((m, n), lambda i, j: te.silu(gate[i, j]) * up[i, j] + r[i, j], name="out")
    return te.cast(made, dtype)


@pytest.mark.ptxas
def test_a_gated_unit_of_bfloat16_is_two_products_in_one_kernel() -> None:
    kernel = te.build(gated(512, 512, 256, "bfloat16"), "cuda:sm_90")
    assert kernel.source.count("tl.dot(") == 2 and len(kernel.resources) == 1
    assert all(used.stack == 0 for used in kernel.resources.values())


@pytest.mark.ptxas
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_a_gated_unit_is_right(target: str) -> None:
    rng = np.random.default_rng(0)
    shapes = ((32, 48), (32, 64), (48, 64), (48, 64))
    x, r, w, v = (rng.standard_normal(each).astype(ml_dtypes.bfloat16) for each in shapes)
    kernel = te.build(gated(32, 64, 48, "bfloat16"), target)
    given = {"x": x, "r": r, "w": w, "v": v}
    wide = {name: each.astype(np.float32) for name, each in given.items()}
    gate = wide["x"] @ wide["w"]
    wanted = gate / (1 + np.exp(-gate)) * (wide["x"] @ wide["v"]) + wide["r"]
    np.testing.assert_allclose(kernel(**given).astype(np.float32), wanted, rtol=2e-2, atol=2e-1)


@pytest.mark.cpu
def test_a_share_of_hits() -> None:
    scores, labels = (
        te.placeholder((64, 100), name="scores"),
        te.placeholder((64,), "int64", "labels"),
    )
    row = te.reduce_axis((0, 64), name="row")
    best = te.argmax(scores, 1)
    hit = te.compute(
        (1,), lambda _: te.sum(te.cast(best[row] == labels[row], "float32"), axis=row) / 64, "hit"
    )
    rng = np.random.default_rng(0)
    given = rng.standard_normal((64, 100)).astype(np.float32)
    right = np.where(np.arange(64) < 48, given.argmax(1), (given.argmax(1) + 1) % 100)
    for kernel in (te.build(hit, "cpu"), te.build(te.create_schedule(hit), "cpu")):
        assert kernel(scores=given, labels=right).tolist() == [0.75]


def pooled() -> tuple[te.Tensor, te.Tensor]:
    x, w = te.placeholder((1, 34, 34, 4), name="x"), te.placeholder((3, 3, 4, 16), name="w")
    conv = te.nn.conv2d(x, w)
    return conv, te.nn.max_pool2d(te.nn.relu(conv), 2)


@pytest.mark.cpu
def test_a_convolution_inside_a_pool() -> None:
    """One kernel by hand: rows of the convolution are computed where a row of the pool is begun."""
    conv, pool = pooled()
    s = te.create_schedule(pool)
    s["relu"].compute_inline()
    s[conv].compute_at(s[pool], s[pool].op.axis[1])
    found = te.explain(s, "cpu")
    assert len(found.kernels) == 1 and not found.pairs
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 34, 34, 4)).astype(np.float32)
    w = rng.standard_normal((3, 3, 4, 16)).astype(np.float32)
    by_rules = te.build(pooled()[1], "cpu")(x, w)
    np.testing.assert_allclose(te.build(s, "cpu")(x, w), by_rules, rtol=1e-5, atol=1e-5)


@pytest.mark.cpu
def test_a_norm_of_groups_and_silu() -> None:
    x = te.placeholder((2, 6, 6, 16), name="x")
    scale, shift = (te.placeholder((16,), name=name) for name in ("scale", "shift"))
    normed = te.nn.group_norm(x, 4, scale, shift, layout="channels_last")
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 6, 6, 16)).astype(np.float32)
    b, c = rng.standard_normal((2, 16)).astype(np.float32)
    groups = a.reshape(2, 36, 4, 4)
    middle, wide = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    y = ((groups - middle) / np.sqrt(wide + 1e-5)).reshape(a.shape) * b + c
    found = te.build(te.nn.silu(normed), "cpu")(x=a, scale=b, shift=c)
    np.testing.assert_allclose(found, y / (1 + np.exp(-y)), rtol=1e-4, atol=1e-5)
    with pytest.raises(te.ExprError, match=r"scale has the shape \[16\](.|\n)*layout="):
        te.nn.group_norm(x, 3, scale, shift)


def quantized() -> te.Tensor:
    a, w = te.placeholder((64, 128), "int8", name="a"), te.placeholder((64, 128), "int8", name="w")
    scale, d = te.placeholder((64,), name="scale"), te.reduce_axis((0, 128), name="d")
    dot = te.compute((64, 64), lambda i, j: te.sum(a[i, d] * w[j, d], axis=d), name="dot")
    return te.compute((64, 64), lambda i, j: te.cast(dot[i, j], "float32") * scale[j], name="out")


@pytest.mark.ptxas
def test_a_product_of_bytes_that_is_scaled() -> None:
    rng = np.random.default_rng(0)
    a, w = rng.integers(-128, 128, (2, 64, 128)).astype(np.int8)
    scale = rng.random(64).astype(np.float32)
    wanted = (a.astype(np.int32) @ w.astype(np.int32).T).astype(np.float32) * scale
    np.testing.assert_allclose(te.build(quantized(), "cpu")(a=a, w=w, scale=scale), wanted)
    assert te.build(quantized(), "cuda:sm_90").source.count("tl.dot(") == 1


@pytest.mark.cpu
def test_the_logarithm_of_a_sum_of_exponentials_in_pairs() -> None:
    """A reducer of one's own, of two values, vectorized by hand."""

    def joined(x: Any, y: Any) -> Any:
        top = te.maximum(x[0], y[0])
        return top, x[1] * te.exp(x[0] - top) + y[1] * te.exp(y[0] - top)

    def nothing(*dtypes: Any) -> Any:
        return te.min_value("float32"), te.const(0.0)

    reducer = te.comm_reducer(joined, nothing, name="lse")
    x = te.placeholder((8, 96), name="x")
    k = te.reduce_axis((0, 96), name="k")
    top, total = te.compute((8,), lambda i: reducer((x[i, k], te.const(1.0)), axis=k), name="pair")
    made = te.compute((8,), lambda i: top[i] + te.log(total[i]), name="out")
    s = te.create_schedule(made)
    s["pair"].vectorize(s["pair"].split(k, 16)[1])
    given = np.random.default_rng(0).standard_normal((8, 96)).astype(np.float32)
    wanted = np.log(np.exp(given.astype(np.float64)).sum(1))
    for kernel in (te.build(s, "cpu"), te.build(made, "cpu")):
        np.testing.assert_allclose(kernel(given), wanted, rtol=1e-5)
    minus = te.comm_reducer(lambda x, y: x - y, lambda dtype: te.const(0, dtype), name="minus")
    m = te.reduce_axis((0, 96), name="m")
    wrong = te.compute((8,), lambda i: minus(x[i, m], axis=m), name="wrong")
    with pytest.raises(te.ScheduleError, match=r"x=3 y=0: x\.y = 3, y\.x = -3"):
        te.create_schedule(wrong)[wrong].vectorize(m)


@pytest.mark.ptxas
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_partial_sums_of_partial_sums(target: str) -> None:
    """`rfactor` twice, the second inside the first; axes of what is made anew are fetched again."""
    x, k = te.placeholder((1024,), name="x"), te.reduce_axis((0, 1024), name="k")
    total = te.compute((1,), lambda _: te.sum(x[k], axis=k), name="total")
    s = te.create_schedule(total)
    outer, inner = s[total].split(k, 32)
    partial = s.rfactor(total, inner)
    with pytest.raises(te.ScheduleError, match=r"fetch the axes again from s\[total.rf\].op.axis"):
        s[partial].split(outer, 8)
    s[partial].split(s[partial].op.reduce_axis[0], 8)
    s.rfactor(partial, s[partial].leaf_iter_vars[-1])
    given = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
    np.testing.assert_allclose(te.build(s, target)(given), [given.sum()], rtol=1e-4)


@pytest.mark.cpu
def test_a_result_of_sixteen_bits_is_refused_with_the_fix() -> None:
    x, k = te.placeholder((4, 8), "float16", name="x"), te.reduce_axis((0, 8), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="total")
    kernel = te.build(te.create_schedule(total), [x, total], "cpu")
    with pytest.raises(te.BackendError, match=r"float16, float32 expected(.|\n)*float32"):
        kernel(np.ones((4, 8), np.float16), np.zeros(4, np.float16))


@pytest.mark.cpu
def test_a_stage_at_root_is_an_array_and_whole() -> None:
    """Of 4 elements 3 are read, and 4 computed; a scope of no meaning here changes nothing."""
    x = te.placeholder((4,), name="x")
    stored = te.compute((4,), lambda i: x[i] * 2, name="stored")
    read = te.compute((3,), lambda i: stored[i] + 1, name="read")
    s = te.create_schedule(read)
    s[stored].set_scope("warp")
    assert "for i in 0..4" in str(te.lower(s, target="cpu"))
    assert te.build(s, "cpu")(np.ones(4, np.float32)).tolist() == [3, 3, 3]
