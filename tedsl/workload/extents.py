"""A workload under given sizes: extents and shapes as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tedsl.errors import TuneError
from tedsl.expr.nodes import Expr, Var
from tedsl.reference.evaluate import evaluate_scalar
from tedsl.runtime.arrays.views import NUMPY_DTYPES
from tedsl.tensor.tensor import ComputeOp, Tensor
from tedsl.workload.workload import Workload


class Extents:
    """Concrete extents of a workload under given symbolic sizes."""

    def __init__(self, workload: Workload, sizes: Mapping[str, int]) -> None:
        missing = [v.name for v in workload.variables if v.name not in sizes]
        if missing:
            raise TuneError(
                f"the size {missing[0]!r} is symbolic and has no value to tune for",
                facts=[("missing", ", ".join(missing))],
                hint=f"pass sizes={{{missing[0]!r}: ...}}; the kernel still serves all sizes",
            )
        self.workload = workload
        self.scalars = {v: NUMPY_DTYPES[v.dtype].type(sizes[v.name]) for v in workload.variables}

    def extent(self, expr: Expr) -> int:
        """The value of an extent."""
        return int(evaluate_scalar(expr, self.scalars))

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self.extent(expr) for expr in tensor.shape)

    def points(self, op: ComputeOp) -> int:
        """Points of the iteration space of an operation, reduction included."""
        domains = [a.domain for a in (*op.axes, *op.reduce_axes) if a.domain is not None]
        return math.prod(max(0, self.extent(d.extent)) for d in domains)

    @property
    def values(self) -> dict[Var, int]:
        """Values of the symbolic sizes."""
        return {var: int(value) for var, value in self.scalars.items()}
