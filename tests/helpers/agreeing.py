"""What two ways to compute may differ by: nothing for integers, a stated bound for floats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from strategies import Case

from tedsl.dtypes import DType
from tedsl.expr.numerics import Array
from tedsl.ir.interp import run
from tedsl.ir.nodes import Buffer, Module
from tedsl.reference.reference import evaluate
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import Tensor

HUGE = 1e20
"""What stands for minus infinity in drawn masks is larger, and all other values are smaller."""
EPSILON = {
    DType.float8_e4m3fn: 0.0,
    DType.float8_e5m2: 0.0,
    DType.float16: 2.0**-10,
    DType.bfloat16: 2.0**-7,
    DType.float32: 2.0**-23,
    DType.float64: 2.0**-52,
}


def interpreted(module: Module, case: Case) -> list[Array]:
    """The module in the IR interpreter."""
    by_name = {tensor.name: array for tensor, array in case.inputs.items()}
    sizes = {var.name: value for var, value in case.sizes.items()}
    arrays = {buffer: by_name[buffer.name] for buffer in module.inputs}
    result: dict[Buffer, Array] = run(module, arrays, {v: sizes[v.name] for v in module.sizes})
    return [result[buffer] for buffer in module.outputs]


class Oracle:
    """The values of a case's definitions, and what another way to compute them may differ by."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.outputs = case.outputs
        floats = [] if case.close else _floats(case)
        found = evaluate([*case.outputs, *floats], case.inputs, case.sizes)
        self.wanted = found[: len(case.outputs)]
        self._floats = floats
        self._sized = [np.abs(v.astype(np.float64)) for v in found[len(case.outputs) :]]

    def bound(self, dtype: DType, most: float = HUGE) -> float:
        """The absolute error that two ways to round may differ by.

        Each of the `depth` stages has at most 8 roundings of its dtype, of values up to the largest
        in the graph that is below `most`; a sum of `length` terms has as many of its accumulator
        (float32 at least).  Eight-bit floats hold what is drawn for them exactly.
        """
        case = self.case
        if case.close:
            sized = [np.abs(v.astype(np.float64)) for v in self.wanted]
            return case.close * max([1.0, *(v[v < most].max(initial=1.0) for v in sized)])
        largest = max([1.0, *(v[v < most].max(initial=1.0) for v in self._sized)])
        coarsest = max([EPSILON[t.dtype] for t in self._floats] + [EPSILON[dtype]])
        single = EPSILON[DType.float32] if coarsest > 1e-10 else 0.0
        accumulated = max(single, EPSILON[DType.float64])
        return largest * (8 * case.depth * coarsest + 4 * case.length * accumulated)

    def compare(self, got: Sequence[Array], how: str) -> None:
        """Exact for integers; within `bound`, with equal infinities and NaNs, for floats.

        What is larger than `HUGE` or NaN in the oracle is not compared in `finite` cases.  Where a
        result is larger than that, what stands for minus infinity was computed with (the maximum of
        nothing, times a number, summed up), and its rounding counts.

        Raises:
            AssertionError: they differ by more.
        """
        for tensor, x, y in zip(self.outputs, got, self.wanted, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype, how
            if not tensor.dtype.is_float:
                np.testing.assert_array_equal(x, y, err_msg=f"{how}: {tensor.name}")
                continue
            x, y = x.astype(np.float64), y.astype(np.float64)
            if self.case.finite:
                kept = np.abs(y) < HUGE
                x, y = x[kept], y[kept]
            beyond = any(((abs(z) >= HUGE) & np.isfinite(z)).any() for z in (x, y))
            error = self.bound(tensor.dtype, np.inf if beyond else HUGE)
            x, y = _held(x, y, float(tensor.dtype.info.highest))
            np.testing.assert_allclose(x, y, rtol=0, atol=error, err_msg=f"{how}: {tensor.name}")


def _held(x: Array, y: Array, largest: float) -> tuple[Array, Array]:
    """Without what one way overflowed in that another barely holds: the order of a sum decides."""
    over = np.isinf(x) & (np.abs(y) > largest / 16) | np.isinf(y) & (np.abs(x) > largest / 16)
    kept = ~over | (np.isinf(x) & np.isinf(y))
    return x[kept], y[kept]


def _floats(case: Case) -> list[Tensor]:
    tensors = [t for op in operations(case.outputs) for t in op.outputs]
    return [t for t in tensors if t.dtype.is_float]
