"""float16 on processors with instructions that convert it, and on those without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_machines import MACHINES, compiling_for
from float8_values import agree

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr import numerics

pytestmark = pytest.mark.cpu
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def edges() -> Any:
    """float32 numbers at which the rounding to float16 changes, and what lies beside them."""
    numbers = np.unique(EVERY[np.isfinite(EVERY)]).astype(np.float32)
    numbers = np.append(numbers, np.float32(65536.0))
    middles = (numbers[1:] + numbers[:-1]) / 2
    middles = np.concatenate([middles, -middles])
    near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    far = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-40, -1e-9, 65536, 1e30, -3e38], np.float32)
    return np.concatenate([numbers[:-1], middles, *near, far])


def cast(x: Any, source: DType, target: DType) -> Any:
    given = te.placeholder(x.shape, source, name="x")
    made = te.compute(x.shape, lambda i: given[i].astype(target), name="y")
    return te.build(made, "cpu", cache=False)(x)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_and_every_rounding(machine: str) -> None:
    with compiling_for(machine), np.errstate(over="ignore"):
        for wide in (DType.float32, DType.float64):
            kind = numerics.numpy_dtype(wide)
            agree(cast(EVERY, DType.float16, wide), EVERY.astype(kind))
            x = edges().astype(kind)
            agree(cast(x, wide, DType.float16), x.astype(np.float16))


@pytest.mark.parametrize("machine", MACHINES)
def test_products_and_gathers(machine: str) -> None:
    """Odd sizes, so that loads and stores are masked, whole and single elements."""
    rng = np.random.default_rng(3)
    left, right = (rng.standard_normal((37, 37)).astype(np.float16) for _ in range(2))
    places = rng.permutation(37).astype(np.int32)
    a, b = (te.placeholder((37, 37), "float16", name=name) for name in "ab")
    at = te.placeholder((37,), "int32", name="at")
    k = te.reduce_axis((0, 37), name="k")
    product = te.compute(
        (37, 37),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
        name="product",
    )
    taken = te.compute((37, 37), lambda i, j: (product[i, at[j]] * 0.1).astype("float16"), name="t")
    other = te.compute((37, 37), lambda i, j: a[i, at[j]] * b[i, j] + b[at[i], j], name="other")
    with compiling_for(machine):
        kernel = te.build([taken, other], "cpu", cache=False)
        got, second = kernel(left, right, places)
    want = (left.astype(np.float64) @ right)[:, places] * 0.1
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-3, atol=1e-4)
    agree(second, left[:, places] * right + right[places])
