"""Atomic reductions on a GPU: programs that meet at one element."""

from __future__ import annotations

from typing import Any

import pytest

import tedsl as te

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")


def columns(reducer: str, element: str) -> te.Schedule:
    """Column results of a long matrix: blocks of rows at the same time."""
    n = te.size_var("n")
    A = te.placeholder((n, 96), element, name="A")
    k = te.reduce_axis((0, n), name="k")
    fold = getattr(te, reducer)
    options = {"dtype": element} if reducer == "sum" else {}
    C = te.compute((96,), lambda j: fold(A[k, j], axis=k, **options), name="C")
    s = te.create_schedule(C)
    ko, ki = s[C].split(k, 64)
    (j,) = s[C].op.axis
    s[C].reorder(ko, j, ki)
    s[C].atomic()
    s[C].bind(ko, "blockIdx.x")
    s[C].vectorize(j)
    s[C].vectorize(ki)
    return s


@pytest.mark.parametrize("reducer", ["sum", "max", "min"])
@pytest.mark.parametrize("element", ["int32", "int64"])
def test_integers_are_exact(reducer: str, element: str) -> None:
    kernel = te.build(columns(reducer, element), "cuda")
    for rows in (0, 1, 1000, 100_003):
        x = torch.randint(-(2**20), 2**20, (rows, 96), device="cuda").to(getattr(torch, element))
        for _ in range(3):
            found = kernel(x)
            if rows == 0:
                continue
            want = x.sum(0).to(x.dtype) if reducer == "sum" else getattr(x, f"a{reducer}")(0)
            assert torch.equal(found, want)


@pytest.mark.parametrize("element", ["float32", "float64", "float16", "bfloat16"])
def test_sums(element: str) -> None:
    kernel = te.build(columns("sum", element), "cuda")
    x = torch.rand(4099, 96, device="cuda", dtype=torch.float64).to(getattr(torch, element)) / 64
    for _ in range(3):
        found, want = kernel(x).double(), x.double().sum(0)
        rough = {"float16": 2e-2, "bfloat16": 2e-1}.get(element, 1e-5)
        torch.testing.assert_close(found, want, rtol=rough, atol=rough)


@pytest.mark.parametrize("reducer", ["max", "min"])
@pytest.mark.parametrize("element", ["float32", "float64"])
def test_extremes_keep_nan(reducer: str, element: str) -> None:
    kernel = te.build(columns(reducer, element), "cuda")
    x = torch.randn(4099, 96, device="cuda", dtype=getattr(torch, element))
    x[:, 0], x[:, 1], x[:, 2] = -x[:, 0].abs(), x[:, 1].abs(), -0.0
    x[7, 3], x[4000, 4], x[9, 5] = float("nan"), -float("nan"), float("nan")
    x[:9, 5], x[10:, 5] = -1.0, 1.0
    x[:, 6], x[:, 7], x[5, 8] = float("inf"), -float("inf"), float("inf")
    for _ in range(3):
        found, want = kernel(x), getattr(x, f"a{reducer}")(0)
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
