"""Numbers for operators of te.nn: random inputs, tolerances, and ways to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import nn_values
import numpy as np

import tedsl as te
from tedsl.expr.numerics import numpy_dtype

TOLERANCE = {**nn_values.TOLERANCE, "float32": 4e-6}  # sums of products of many


def drawn(shape: Sequence[int], dtype: str = "float64", seed: int = 3) -> Any:
    """Normal numbers, rounded to `dtype`."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return values.astype(numpy_dtype(te.DType(dtype)))


def given(array: Any, name: str) -> te.Tensor:
    """A placeholder for `array`."""
    return te.placeholder(array.shape, array.dtype.name, name=name)


def close(found: Any, wanted: Any, dtype: str, slack: float = 1.0) -> None:
    """Of `dtype`, of the shape of `wanted`, and as near as rounding allows."""
    assert found.dtype == numpy_dtype(te.DType(dtype))
    assert found.shape == wanted.shape
    bound = TOLERANCE[dtype] * slack
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=bound, atol=bound)


def built(
    out: te.Tensor, values: Mapping[te.Tensor, Any], target: str, **sizes: int
) -> tuple[Any, te.Kernel]:
    """What the kernel of the default rules gives, and the kernel."""
    kernel = te.build(out, target=target, cache=False)
    named = {tensor.name: array for tensor, array in values.items()}
    return kernel(*(named[b.name] for b in kernel.module.inputs), **sizes), kernel


def functions(kernel: te.Kernel) -> int:
    """How many kernels are launched."""
    return len(kernel.module.funcs)
