"""Build a row at its small size, run it in an interpreter or on the CPU, compare with NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import references
from workload import Fill, Workload, buildable, shape_of

import tedsl as te
from tedsl.expr.numerics import numpy_dtype
from tedsl.tensor.tensor import Tensor

PLAIN = Fill()


def run(load: Workload, settings: Mapping[str, Any], wait: Callable[[], None]) -> dict[str, Any]:
    """The relative error, and how many kernels there are."""
    del wait
    kernel = te.build(buildable(load.outputs(small=True)), str(settings["target"]))
    made = inputs_of(load, load.inputs(small=True), load.small)
    got = kernel(*(made[buffer.name] for buffer in kernel.module.inputs))
    error = worst(got, expected(load, made))
    if not error <= load.error:
        raise ValueError(f"relative error {error:.3g} is above {load.error:g}")
    return {"error": error, "kernels": len(kernel.module.funcs)}


def inputs_of(
    load: Workload, tensors: Mapping[str, Tensor], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """Arrays for the placeholders, the same at every run."""
    made: dict[str, Any] = {}
    for name, tensor in tensors.items():
        rng = np.random.default_rng(zlib.crc32(f"{load.name} {name}".encode()))
        fill, shape = load.fills.get(name, PLAIN), shape_of(tensor)
        if fill.high is not None:
            data = rng.integers(0, highest(fill, sizes), shape)
        else:
            data = rng.standard_normal(shape) * fill.scale + fill.mean
            data = np.abs(data) if fill.positive else data
        made[name] = np.asarray(data).astype(numpy_dtype(tensor.dtype))
    return made


def highest(fill: Fill, sizes: Mapping[str, Any]) -> int:
    """The end of the integers that an input is filled with."""
    return int(sizes[fill.high] if isinstance(fill.high, str) else fill.high or 0)


def expected(load: Workload, inputs: Mapping[str, Any]) -> Any:
    """The results in float64."""
    function: Any = getattr(references, load.function)
    wide = {
        name: array if array.dtype.kind in "iu" else array.astype(np.float64)
        for name, array in inputs.items()
    }
    return function(**wide, **settings_of(load))


def settings_of(load: Workload) -> dict[str, Any]:
    """The settings of the small size, where a size of it is one of them."""
    return {name: load.small.get(name, value) for name, value in load.settings.items()}


def worst(got: Any, wanted: Any) -> float:
    """The largest relative error of an output, in the Frobenius norm; infinite where it is NaN."""
    found = got if isinstance(got, tuple) else (got,)
    exact = wanted if isinstance(wanted, tuple) else (wanted,)
    errors: list[float] = []
    for mine, want in zip(found, exact, strict=True):
        mine, want = np.asarray(mine).astype(np.float64), np.asarray(want)
        if mine.shape != want.shape:
            raise ValueError(f"the shape is {mine.shape}, not {want.shape}")
        norm = float(np.linalg.norm(want)) or 1.0
        errors.append(float(np.linalg.norm(mine - want)) / norm)
    return max(error if error == error else float("inf") for error in errors)
