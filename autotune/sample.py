"""Some elements of a large output by the oracle, without computing all of it.

    out[p] = body with each axis replaced by the index of sample p

A read of another stage inside the body gets a stage of its own, over just the variables its indices
depend on, and so on down to the inputs:

    before  C[i] = sum(k) P[i, k] * V[k]          P[i, j] = exp(S[i, j])
    after   C'[p] = sum(k) P'[p, k] * V[k]        P'[p, k] = exp(S[rows[p], k])

The result is a computation like any other, which the oracle evaluates as written.  Imports `expr`.
"""

from __future__ import annotations

import math

import numpy as np

from tedsl.autotune.inputs import Array, Extents
from tedsl.autotune.workload import Workload
from tedsl.expr import build
from tedsl.expr.nodes import Axis, AxisKind, Const, Expr, Range, TensorRead
from tedsl.expr.printer import operations
from tedsl.expr.reference import evaluate
from tedsl.expr.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor
from tedsl.expr.visit import rewrite, substitute, walk
from tedsl.runtime.arrays import NUMPY_DTYPES

Points = list[Array]


def sample_points(shape: tuple[int, ...], count: int, seed: int) -> Points:
    """Indices of `count` elements, one array for each dimension: the two far corners, then random.

    In every dimension first and last indices come up often, since that is where tails go wrong.
    """
    rng = np.random.default_rng(seed)
    points: Points = []
    for extent in shape:
        drawn = rng.integers(0, extent, count)
        edge = rng.random(count)
        drawn = np.where(edge < 0.125, 0, np.where(edge > 0.875, extent - 1, drawn))
        drawn[0], drawn[-1] = 0, extent - 1
        points.append(drawn)
    return points


def sample_work(size: Extents, output: Tensor, count: int) -> int:
    """Points that `evaluate_samples` evaluates for `count` samples of `output`."""
    sampled = _Sampled(size, output, count)
    smaller = Extents(Workload.of(sampled.output), {v.name: n for v, n in size.values.items()})
    return sum(smaller.points(op) for op in smaller.workload.computes)


def evaluate_samples(
    size: Extents, inputs: dict[Tensor, Array], output: Tensor, points: Points
) -> Array:
    """The elements of `output` at `points`, by the oracle with sums in float64."""
    sampled = _Sampled(size, output, len(points[0]) if points else 1)
    rows: dict[Tensor, Array] = {
        index.outputs[0]: at.astype(NUMPY_DTYPES[index.dtype])
        for index, at in zip(sampled.indices, points, strict=True)
    }
    (found,) = evaluate([sampled.output], {**inputs, **rows}, size.values, precise=True)
    return np.asarray(found)


class _Sampled:
    """The computation of samples of one output."""

    def __init__(self, size: Extents, output: Tensor, count: int) -> None:
        self.size = size
        self.made: dict[tuple[object, ...], tuple[ComputeOp, tuple[Axis, ...]]] = {}
        op = output.op
        axes = op.axes if isinstance(op, ComputeOp) else ()
        sample = _fresh("sample", count)
        extent = Const(count, sample.dtype)
        self.indices = [PlaceholderOp(f"at_{a.name}", (extent,), a.dtype) for a in axes]
        at: dict[Expr, Expr] = {
            axis: TensorRead(index.outputs[0], (sample,))
            for axis, index in zip(axes, self.indices, strict=True)
        }
        made = self._restrict(op, at, (sample,)) if isinstance(op, ComputeOp) else None
        self.output = output if made is None else made.outputs[output.index]

    def _restrict(self, op: ComputeOp, at: dict[Expr, Expr], axes: tuple[Axis, ...]) -> ComputeOp:
        """`op` over `axes`, with its own axes replaced by what `at` says."""

        def replace(node: Expr) -> Expr | None:
            if isinstance(node, TensorRead) and isinstance(node.tensor.op, ComputeOp):
                return self._read(node, node.tensor.op)
            return None

        bodies = [rewrite(substitute(body, at), replace) for body in op.bodies]
        shape = tuple(a.domain.extent for a in axes if a.domain is not None)
        return ComputeOp(op.name, axes, tuple(bodies), shape, op.reduce_axes)

    def _read(self, read: TensorRead, op: ComputeOp) -> Expr:
        """A read of `op` at some indices, as a read of a stage made for these indices."""
        used = [node for node in walk(*read.indices) if isinstance(node, Axis)]
        axes = tuple(dict.fromkeys(used))
        key = (op, *axes, *(str(index) for index in read.indices))
        known = self.made.get(key)
        if known is None:
            fresh = tuple(_fresh(a.name, self._extent(a)) for a in axes)
            start = {a: _low(a) for a in axes}
            renamed: dict[Expr, Expr] = {
                a: build.add(f, start[a]) for a, f in zip(axes, fresh, strict=True)
            }
            clamped = [
                _clamp(substitute(index, renamed), self.size.extent(extent))
                for index, extent in zip(read.indices, op.shape, strict=True)
            ]
            at: dict[Expr, Expr] = {
                axis: build.cast(index, axis.dtype)
                for axis, index in zip(op.axes, clamped, strict=True)
            }
            known = self.made[key] = self._restrict(op, at, fresh), axes
        made, order = known
        indices = tuple(build.sub(axis, _low(axis)) for axis in order)
        return TensorRead(made.outputs[read.tensor.index], indices)

    def _extent(self, axis: Axis) -> int:
        return 1 if axis.domain is None else max(0, self.size.extent(axis.domain.extent))


def _fresh(name: str, extent: int) -> Axis:
    zero = Const(0, Axis(name).dtype)
    return Axis(name, AxisKind.DATA, Range(zero, Const(extent, zero.dtype)))


def _low(axis: Axis) -> Expr:
    return Const(0, axis.dtype) if axis.domain is None else axis.domain.min


def _clamp(index: Expr, extent: int) -> Expr:
    """`index` moved into range: a guard that made it so stands outside the stage made here."""
    high = Const(max(extent - 1, 0), index.dtype)
    return build.minimum(build.maximum(index, Const(0, index.dtype)), high)


def affordable(size: Extents, output: Tensor, limit: int, most: int = 512) -> int:
    """The largest power of two of samples, up to `most`, whose evaluation stays below `limit`
    points; 0 when not even one does."""
    if math.prod(size.shape(output)) == 0:
        return 0
    if any(isinstance(op, ScanOp) for op in operations((output,))):
        return 0  # an element needs all steps before its own
    count = most
    while count and sample_work(size, output, count) > limit:
        count //= 2
    return count
