"""Inputs for checking and timing: random by element type, in range where they are indices.

Two sets: `random`, and `extreme`, in which magnitudes are much larger.  The same seed gives the
same numbers in every process.  Imports `expr` and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tedsl.autotune.workload import Workload, nodes_of
from tedsl.dtypes import DType, Kind
from tedsl.errors import TuneError
from tedsl.expr.evaluate import evaluate_scalar
from tedsl.expr.nodes import Binary, BinaryOp, Expr, TensorRead, Var
from tedsl.expr.tensor import ComputeOp, Operation, PlaceholderOp, Tensor
from tedsl.expr.visit import reads, walk
from tedsl.runtime.arrays import NUMPY_DTYPES

Array = NDArray[Any]
KINDS = ("random", "extreme")
_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)
_PLAIN_ONLY = (*_DIVISIONS, BinaryOp.SHL, BinaryOp.SHR)


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


def make_inputs(size: Extents, seed: int, kind: str) -> dict[Tensor, Array]:
    """An array for every placeholder.

    Floats are normal (times 1000 when `extreme`, 30 for float16).  Integers lie in -10..10 (their
    whole range when `extreme`), in 1..10 where something divides or shifts, and inside the
    dimension they index.
    """
    workload = size.workload
    plain = any(
        isinstance(node, Binary) and node.op in _PLAIN_ONLY and node.dtype.is_integer
        for node in nodes_of(workload)
    )
    bounds = index_bounds(size)
    made: dict[Tensor, Array] = {}
    for number, op in enumerate(workload.placeholders):
        rng = np.random.default_rng([seed & 0xFFFFFFFF, number, KINDS.index(kind)])
        tensor = op.outputs[0]
        shape = size.shape(tensor)
        bound = bounds.get(op)
        if bound is not None:
            raw: Array = rng.integers(0, max(1, bound), shape)
        else:
            raw = _draw(rng, op.dtype, shape, kind == "extreme", plain)
        made[tensor] = np.asarray(raw).astype(NUMPY_DTYPES[op.dtype]).reshape(shape)
    return made


def _draw(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], extreme: bool, plain: bool
) -> Array:
    """Random numbers of one element type."""
    if dtype.kind is Kind.BOOL:
        return rng.integers(0, 2, shape)
    if dtype.kind is Kind.FLOAT:
        scale = (30.0 if dtype is DType.float16 else 1000.0) if extreme else 1.0
        drawn: Array = rng.standard_normal(shape, dtype=np.float32)
        return drawn * np.float32(scale)
    if plain:
        return rng.integers(1, 11, shape)
    if extreme:
        kind = NUMPY_DTYPES[dtype]
        return rng.integers(int(dtype.info.lowest), int(dtype.info.highest), shape, kind, True)
    return rng.integers(0 if dtype.kind is Kind.UINT else -10, 11, shape)


def index_bounds(size: Extents) -> dict[Operation, int]:
    """For each integer placeholder that is used as an index: the smallest dimension it indexes."""
    bounds: dict[Operation, int] = {}
    for node in nodes_of(size.workload):
        if not isinstance(node, TensorRead):
            continue
        for index, extent in zip(node.indices, node.tensor.shape, strict=True):
            for inner in walk(index):
                if isinstance(inner, TensorRead):
                    for op in _integer_inputs(inner.tensor.op):
                        bounds[op] = min(bounds.get(op, 1 << 31), size.extent(extent))
    return bounds


def _integer_inputs(op: Operation) -> list[PlaceholderOp]:
    """Integer placeholders that `op` is, or is computed from."""
    if isinstance(op, PlaceholderOp):
        return [op] if op.dtype.is_integer else []
    found: list[PlaceholderOp] = []
    if isinstance(op, ComputeOp):
        for read in reads(*op.bodies):
            found.extend(_integer_inputs(read.tensor.op))
    return found
