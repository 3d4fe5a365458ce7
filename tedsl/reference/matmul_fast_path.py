"""A float sum of products of two plain reads, through `numpy.matmul`: the fast half of the oracle.

What counts is the structure: `sum(R)(a * b)` where `a` and `b` are reads (or reads cast to a wider
float) whose indices are axes, each once, or numbers.  Axes of both factors that are summed are
contracted, those of the output are a batch, and so on; a matrix product is the usual case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tedsl.expr.nodes import Axis, Binary, BinaryOp, Cast, Expr, Reduce, TensorRead
from tedsl.expr.numerics import Array, numpy_dtype, xp
from tedsl.reference.evaluate import axis_plus_constant, spread
from tedsl.tensor.tensor import Tensor


class _Factor(NamedTuple):
    """A block of a tensor, and the dimension of each of its axes, in order."""

    array: Array
    axes: dict[Axis, int]


def sum_of_products(
    node: Reduce,
    axes: Sequence[Axis],
    box: Sequence[tuple[int, int]],
    ranges: Sequence[tuple[int, int]],
    values: Mapping[Tensor, Array],
    precise: bool,
) -> Array | None:
    """The reduction over the `box` of `axes`, or None when its structure is another."""
    source = node.sources[0]
    if (
        node.reducer.operator is not BinaryOp.ADD
        or node.where is not None
        or node.init is not None
        or not node.dtype.is_float
        or node.dtype.bits < 32
        or not isinstance(source, Binary)
        or source.op is not BinaryOp.MUL
    ):
        return None
    bounds = dict(zip(axes, box, strict=True))
    bounds.update(zip(node.axes, ranges, strict=True))
    left, right = (_factor(each, bounds, values) for each in (source.a, source.b))
    if left is None or right is None:
        return None
    if any(axis not in left.axes and axis not in right.axes for axis in node.axes):
        return None
    wide = np.dtype(np.float64) if precise else numpy_dtype(node.dtype)
    left, right = (_prepared(each, wide) for each in (left, right))
    result, order = _product(left, right, frozenset(node.axes))
    dims = {axis: dim for dim, axis in enumerate(axes)}
    placed = spread(result, [dims[axis] for axis in order], len(axes))
    whole = xp.broadcast_to(placed, tuple(high - low for low, high in box))
    return whole.astype(numpy_dtype(node.dtype), order="C")


def _factor(
    expr: Expr, bounds: Mapping[Axis, tuple[int, int]], values: Mapping[Tensor, Array]
) -> _Factor | None:
    """`expr` as a slice of a tensor, when it is one."""
    if isinstance(expr, Cast) and expr.a.dtype.is_float and expr.a.dtype.bits < expr.dtype.bits:
        expr = expr.a
    if not isinstance(expr, TensorRead):
        return None
    slices: list[slice | int] = []
    axes: list[Axis] = []
    for index, size in zip(expr.indices, values[expr.tensor].shape, strict=True):
        parts = axis_plus_constant(index)
        if parts is None:
            return None
        axis, offset = parts
        low, high = (0, 1) if axis is None else bounds[axis]
        if low + offset < 0 or high + offset > size:
            return None
        if axis is None:
            slices.append(offset)
        else:
            slices.append(slice(low + offset, high + offset))
            axes.append(axis)
    if len(set(axes)) < len(axes):
        return None
    return _Factor(values[expr.tensor][tuple(slices)], {a: dim for dim, a in enumerate(axes)})


def _prepared(factor: _Factor, dtype: np.dtype[np.generic]) -> _Factor:
    return _Factor(factor.array.astype(dtype), factor.axes)


def _sum_alone(factor: _Factor, other: _Factor, reduced: frozenset[Axis]) -> _Factor:
    """`factor` summed over reduced axes that only it has."""
    alone = tuple(d for a, d in factor.axes.items() if a in reduced and a not in other.axes)
    if not alone:
        return factor
    kept = [a for a, d in factor.axes.items() if d not in alone]
    return _Factor(factor.array.sum(axis=alone), {a: dim for dim, a in enumerate(kept)})


def _product(
    left: _Factor, right: _Factor, reduced: frozenset[Axis]
) -> tuple[Array, tuple[Axis, ...]]:
    """The contraction as one batched matrix product, and the axes of its dimensions."""
    left, right = _sum_alone(left, right, reduced), _sum_alone(right, left, reduced)
    both = {axis: None for axis in left.axes if axis in right.axes}
    batch = [axis for axis in both if axis not in reduced]
    inner = [axis for axis in both if axis in reduced]
    rows = [axis for axis in left.axes if axis not in both]
    columns = [axis for axis in right.axes if axis not in both]
    sizes = dict(zip(left.axes, left.array.shape, strict=True))
    sizes.update(zip(right.axes, right.array.shape, strict=True))

    def grouped(factor: _Factor, groups: Sequence[Sequence[Axis]]) -> Array:
        order = [factor.axes[axis] for group in groups for axis in group]
        shape = [int(np.prod([sizes[axis] for axis in group], dtype=int)) for group in groups]
        return factor.array.transpose(order).reshape(shape)

    product = xp.matmul(
        grouped(left, (batch, rows, inner)), grouped(right, (batch, inner, columns))
    )
    order = (*batch, *rows, *columns)
    return product.reshape([sizes[axis] for axis in order]), order
