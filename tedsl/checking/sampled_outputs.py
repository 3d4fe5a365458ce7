"""Some elements of a large output by the oracle, without computing all of it.

    out[p] = body with each axis replaced by the index of sample p

A read of another stage inside the body gets a stage of its own, over just the variables its indices
depend on, and so on down to the inputs:

    before  C[i] = sum(k) P[i, k] * V[k]          P[i, j] = exp(S[i, j])
    after   C'[p] = sum(k) P'[p, k] * V[k]        P'[p, k] = exp(S[rows[p], k])

The result is a computation like any other, which the oracle evaluates as written.  It may be
shaken by a few roundings of each term, up or down by a hash of i and k,

    before  sum(k) P[i, k] * V[k]             after  sum(k) P[i, k] * V[k] * (1 +- d)

which says what any other order of additions may come to.  Imports `expr`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace as replace_fields

import numpy as np

from tedsl.checking.random_inputs import Array
from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.nodes import Axis, AxisKind, BinaryOp, Const, Expr, Range, Reduce, TensorRead
from tedsl.expr.visit import rewrite, substitute, walk
from tedsl.reference.reference import evaluate
from tedsl.runtime.arrays.views import NUMPY_DTYPES
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, ScanOp, Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

Points = list[Array]
ROUNDINGS = 4
"""By how many roundings the terms of a shaken sum move: some hardware cuts off where it adds."""
_ODD = 0x2545F491


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
    size: Extents,
    inputs: dict[Tensor, Array],
    output: Tensor,
    points: Points,
    *,
    precise: bool = True,
    shaken: bool = False,
) -> Array:
    """The elements of `output` at `points`, by the oracle.

    Args:
        size: the sizes.
        inputs: an array for every placeholder.
        output: of which elements are wanted.
        points: their indices, an array for each dimension.
        precise: sums in float64; otherwise in the types that the definition says.
        shaken: the terms of all float sums are moved by a few roundings.
    """
    sampled = _Sampled(size, output, len(points[0]) if points else 1, shaken)
    rows: dict[Tensor, Array] = {
        index.outputs[0]: at.astype(NUMPY_DTYPES[index.dtype])
        for index, at in zip(sampled.indices, points, strict=True)
    }
    (found,) = evaluate([sampled.output], {**inputs, **rows}, size.values, precise=precise)
    return np.asarray(found)


class _Sampled:
    """The computation of samples of one output."""

    def __init__(self, size: Extents, output: Tensor, count: int, shaken: bool = False) -> None:
        self.size = size
        self.shaken = shaken
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

        bodies = [_shaken(body, op.axes) if self.shaken else body for body in op.bodies]
        bodies = [rewrite(substitute(body, at), replace) for body in bodies]
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


def _shaken(body: Expr, axes: Sequence[Axis]) -> Expr:
    """A float sum with each term moved by `ROUNDINGS` roundings, up or down by the term's place."""
    if not isinstance(body, Reduce) or body.reducer.operator is not BinaryOp.ADD:
        return body
    (term,) = body.sources
    if not term.dtype.is_float:
        return body
    mixed: Expr = Const(1, DType.int32)
    for axis in (*axes, *body.axes):
        mixed = build.mul(build.add(mixed, build.cast(axis, DType.int32)), _ODD)
        mixed = build.bitwise_xor(mixed, build.right_shift(mixed, 15))
    step = ROUNDINGS * (2.0**-52 if term.dtype is DType.float64 else 2.0**-23)
    up = build.eq(build.bitwise_and(mixed, 1), 0)
    wide = build.cast(term, DType.float64)
    moved = build.mul(wide, build.select(up, 1.0 + step, 1.0 - step))
    return replace_fields(body, sources=(build.cast(moved, term.dtype),))


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
