"""Run a module in Triton's interpreter and in the loop IR's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.program import evaluate
from tedsl.backends.triton.interpret.client import run
from tedsl.dtypes import DType
from tedsl.expr.nodes import Var
from tedsl.expr.numerics import numpy_dtype
from tedsl.ir import interp
from tedsl.ir.nodes import Buffer, Module

Arrays = dict[Buffer, Any]


def draw(module: Module, sizes: Mapping[Var, int], seed: int = 0) -> Arrays:
    """Inputs of a module: normal floats, small integers, random truth values."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for buffer in module.inputs:
        shape = tuple(evaluate(extent, sizes) for extent in buffer.shape)
        if buffer.dtype.is_float:
            content = rng.standard_normal(shape)
        elif buffer.dtype is DType.bool:
            content = rng.integers(0, 2, shape)
        else:
            content = rng.integers(0, 5, shape)
        arrays[buffer] = np.asarray(content).astype(numpy_dtype(buffer.dtype))
    return arrays


def in_triton(
    module: Module, inputs: Arrays, sizes: Mapping[Var, int], timeout: float = 120.0
) -> list[Any]:
    """The outputs of a module, from Triton's interpreter."""
    arrays = {buffer: array.copy() for buffer, array in inputs.items()}
    for buffer in (*module.outputs, *module.workspaces):
        shape = tuple(evaluate(extent, sizes) for extent in buffer.shape)
        arrays[buffer] = np.zeros(shape, numpy_dtype(buffer.dtype))
    run(emit(module, "triton-interpret"), arrays, sizes, timeout)
    return [arrays[buffer] for buffer in module.outputs]


def both(
    module: Module,
    inputs: Arrays | None = None,
    sizes: Mapping[Var, int] | None = None,
    timeout: float = 120.0,
) -> list[tuple[Any, Any]]:
    """(Triton's interpreter, loop IR's interpreter) per output."""
    sizes = sizes or {}
    given = draw(module, sizes) if inputs is None else inputs
    expected = interp.run(module, given, sizes)
    found = in_triton(module, given, sizes, timeout)
    return [(f, expected[b]) for f, b in zip(found, module.outputs, strict=True)]


def agree(pairs: list[tuple[Any, Any]], tolerance: float) -> None:
    """Assert equality: of integers exact, of floats within `tolerance`, relative and absolute."""
    for found, expected in pairs:
        if found.dtype.kind in "iub":
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(
                np.asarray(found, np.float64),
                np.asarray(expected, np.float64),
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
            )
