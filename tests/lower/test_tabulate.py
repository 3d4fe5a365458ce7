"""Slow functions of one operand leave the loop that folds them, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te
from tedsl.ir.nodes import Allocate
from tedsl.ir.visit import walk_stmts
from tedsl.tensor.tensor import Tensor

M, N, K = 12, 32, 40


def product(
    function: object = te.exp, m: int = M, n: int = N, k: int = K, where: bool = False
) -> Tensor:
    x, w = te.placeholder((m, k), name="x"), te.placeholder((k, n), name="w")
    r = te.reduce_axis((0, k), name="r")

    def value(i: te.Axis, j: te.Axis) -> te.Expr:
        part = function(x[i, r]) * w[r, j]  # type: ignore[operator]
        return te.sum(part, axis=r, where=r <= i + 3) if where else te.sum(part, axis=r)

    return te.compute((m, n), value, name="y")


def tiled(y: Tensor, rows: int = 6) -> te.Schedule:
    s = te.create_schedule(y)
    c = s.cache_write(y, "local")
    i, j = s[y].op.axis
    io, ii = s[y].split(i, factor=rows)
    jo, ji = s[y].split(j, factor=16)
    s[y].reorder(io, jo, ii, ji)
    s[y].vectorize(ii)
    s[y].vectorize(ji)
    s[c].compute_at(s[y], jo)
    (k,) = s[c].op.reduce_axis
    ic, jc = s[c].op.axis
    s[c].reorder(k, ic, jc)
    s[c].vectorize(ic)
    s[c].vectorize(jc)
    return s


def text(s: te.Schedule) -> str:
    return str(te.lower(s, target="cpu", check=True))


def test_an_operand_of_one_value_for_a_vector_is_computed_before() -> None:
    found = text(tiled(product()))
    assert f"float32[6, {K}]" in found
    lines = [line for line in found.splitlines() if "exp(" in line]
    assert len(lines) == 1
    assert f"tile (r:{K})" in lines[0]


@pytest.mark.parametrize(
    "y",
    [
        product(te.sqrt),  # an instruction
        product(k=4),  # over at once
        product(k=1000),  # no table of it stays in the L1 cache
        te.nn.softmax(te.placeholder((M, N), name="x")),  # a value for each lane
    ],
)
def test_other_operands_stay(y: Tensor) -> None:
    s = tiled(y) if y.name == "y" else te.schedule_for(y, "cpu")
    assert "_r: local" not in text(s)


def test_what_is_shared_is_looked_at_once() -> None:
    """A value of a few nodes that stands for 3^60 terms."""

    def grown(x: te.Expr) -> te.Expr:
        value = te.exp(x)
        for _ in range(60):
            value = value + value * 0.5 * value
        return value

    x, w = te.placeholder((M, K), name="x"), te.placeholder((K, N), name="w")
    r = te.reduce_axis((0, K), name="r")
    y = te.compute((M, N), lambda i, j: te.sum(grown(x[i, r]) + grown(w[r, j]), axis=r), name="y")
    loop = te.lower(tiled(y), target="cpu").funcs[0].body
    assert any(isinstance(stmt, Allocate) and "_r" in stmt.buffer.name for stmt in walk_stmts(loop))


@pytest.mark.cpu
@pytest.mark.parametrize("where", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(12, 32, 40), (13, 37, 9), (5, 16, 64)])
def test_numbers(m: int, n: int, k: int, where: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(m, k)).astype("float32"), rng.normal(size=(k, n)).astype("float32")
    kept = (np.arange(k) <= np.arange(m)[:, None] + 3) | (not where)
    kernel = te.build(tiled(product(m=m, n=n, k=k, where=where)), "cpu")
    np.testing.assert_allclose(kernel(x, w), (np.exp(x) * kept) @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.cpu
@pytest.mark.parametrize("keys", [128, 200])
def test_attention_takes_each_exponential_once_for_a_vector(keys: int) -> None:
    q, k, v = (te.placeholder((2, keys, 32), name=name) for name in "qkv")
    r = te.reduce_axis((0, 32), name="r")
    scores = te.compute(
        (2, keys, keys), lambda b, i, j: te.sum(q[b, i, r] * k[b, j, r], axis=r), name="scores"
    )
    kernel = te.build(te.nn.matmul(te.nn.softmax(scores), v), "cpu")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, keys, 32)).astype("float32") for _ in range(3)]
    score = np.einsum("bik,bjk->bij", *arrays[:2])
    part = np.exp(score - score.max(-1, keepdims=True))
    wanted = np.einsum("bij,bjd->bid", part / part.sum(-1, keepdims=True), arrays[2])
    np.testing.assert_allclose(kernel(*arrays), wanted, rtol=1e-4, atol=1e-5)
