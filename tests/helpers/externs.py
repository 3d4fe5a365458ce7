"""Computations with functions from outside, shared by the tests of `te.extern`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tedsl as te

Arrays = Sequence[Any]


def one(made: te.Tensor | list[te.Tensor]) -> te.Tensor:
    assert isinstance(made, te.Tensor)
    return made


def several(made: te.Tensor | list[te.Tensor]) -> list[te.Tensor]:
    assert isinstance(made, list)
    return made


def sort_rows(ins: Arrays, outs: Arrays) -> None:
    outs[0][...] = np.sort(ins[0], axis=1)


def split_even(ins: Arrays, outs: Arrays) -> tuple[Any, Any]:
    return ins[0][:, ::2].copy(), ins[0].sum(axis=1, dtype=np.float64)


@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64))
def running_sum(arrays: Any, shape: Any) -> int:
    """Row by row, in C's way of seeing memory; more than 100 columns are an error."""
    rows, columns = shape[0], shape[1]
    if columns > 100:
        return 7
    pointer = ctypes.POINTER(ctypes.c_float)
    given, made = (ctypes.cast(arrays[n], pointer) for n in range(2))
    for row in range(rows):
        total = 0.0
        for column in range(row * columns, (row + 1) * columns):
            total += given[column]
            made[column] = total
    return 0


def between(function: Any, n: Any = None, m: int = 5, **kwargs: Any) -> te.Tensor:
    """`C = E(B) - B` with `B = A * 2` and the extern `E`."""
    n = te.size_var("n") if n is None else n
    a = te.placeholder((n, m), name="A")
    b = te.compute((n, m), lambda i, j: a[i, j] * 2 + 1, name="B")
    e = one(te.extern((n, m), [b], function, name="E", **kwargs))
    return te.compute((n, m), lambda i, j: e[i, j] - b[i, j], name="C")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def input_of(tensor: te.Tensor) -> te.Tensor:
    """The one input of a schedule of `tensor`."""
    (found,) = [s.op.outputs[0] for s in te.create_schedule(tensor).stages if s.name == "A"]
    return found


Scheduled = Callable[[te.Schedule], None]
