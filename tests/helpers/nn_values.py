"""What the tests of te.nn share: inputs of every dtype, tolerances, comparison, PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.expr.numerics import numpy_dtype

DTYPES = ("float16", "bfloat16", "float32", "float64")
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-12}

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


class Inputs:
    """Placeholders with their values; the same values in every run."""

    def __init__(self, dtype: str = "float32", seed: int = 3) -> None:
        self.dtype = dtype
        self.random = np.random.default_rng(seed)
        self.values: dict[te.Tensor, Any] = {}

    def given(self, values: Any, name: str = "x") -> te.Tensor:
        """A placeholder for an array."""
        array = np.asarray(values)
        made = te.placeholder(array.shape, array.dtype.name, name=name)
        self.values[made] = array
        return made

    def normal(self, *shape: int, scale: float = 1.0, name: str = "x") -> te.Tensor:
        kind = numpy_dtype(te.DType(self.dtype))
        return self.given((self.random.standard_normal(shape) * scale).astype(kind), name)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> te.Tensor:
        kind = numpy_dtype(te.DType(self.dtype))
        return self.given(self.random.uniform(low, high, shape).astype(kind), "u")

    def integers(self, high: int, *shape: int, dtype: str = "int64") -> te.Tensor:
        return self.given(self.random.integers(0, high, shape).astype(dtype), "i")

    def wide(self, tensor: te.Tensor) -> Any:
        """The value of a placeholder, in float64."""
        return self.values[tensor].astype("f8")

    def torch(self, tensor: te.Tensor) -> Any:
        return torch.from_numpy(self.values[tensor])

    def found(self, output: te.Tensor, sizes: Mapping[te.Var, int] | None = None) -> Any:
        return te.evaluate(output, self.values, sizes)[0]

    def check(self, output: te.Tensor, wanted: Any) -> None:
        """The reference gives `wanted`, in the dtype of the inputs."""
        found = self.found(output)
        assert output.dtype == self.dtype
        assert found.dtype == numpy_dtype(te.DType(self.dtype))
        assert found.shape == np.shape(wanted)
        bound = TOLERANCE[self.dtype]
        np.testing.assert_allclose(found.astype("f8"), wanted, rtol=bound, atol=bound)


def built(target: str, output: te.Tensor, *arrays: Any) -> Any:
    """What the kernel of the default rules gives."""
    return te.build(output, target=target, cache=False)(*arrays)


def agrees(target: str, output: te.Tensor, inputs: Inputs, bound: float = 1e-5) -> None:
    """A kernel gives what the reference gives."""
    kernel = te.build(output, target=target, cache=False)
    named = {tensor.name: value for tensor, value in inputs.values.items()}
    found: Any = kernel(*(named[buffer.name] for buffer in kernel.module.inputs))
    np.testing.assert_allclose(
        found.astype("f8"), inputs.found(output).astype("f8"), rtol=bound, atol=bound
    )
