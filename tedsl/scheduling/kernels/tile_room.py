"""How large the tiles may be that a pipelined loop implies: what nobody asked for takes no more
registers than there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tedsl.expr.nodes import Axis, AxisKind, Binary, BinaryOp, Reduce
from tedsl.expr.visit import axes_of
from tedsl.ir.matrix_units import MIN_EDGE, factors
from tedsl.tensor.tensor import ComputeOp

# Elements of the largest value of a tile with implied dimensions: 256 for each of 256 threads.
MOST = 1 << 16

Leaves = Callable[[set[Axis]], set[Axis]]
"""From root axes to the loops that are made of them."""


def loops_left(
    op: ComputeOp, implied: Sequence[Axis], sizes: Mapping[Axis, int], leaves: Leaves
) -> frozenset[Axis]:
    """Those of the loops `implied`, outer ones first, that stay loops, so that no value of the tile
    has more than `MOST` elements.

    Args:
        op: what the tile computes.
        implied: loops that would be dimensions of the tile, outermost first.
        sizes: of all dimensions of the tile, these among them.
        leaves: the loops of some of the axes of `op`.
    """
    left = dict(sizes)
    for axis in implied:
        if _largest(op, left, leaves) <= MOST:
            break
        del left[axis]
    return frozenset(sizes).difference(left)


def _largest(op: ComputeOp, sizes: Mapping[Axis, int], leaves: Leaves) -> int:
    """Elements of the largest value that a tile has; a matrix product has none of all axes."""
    body, whole = op.bodies[0], prod(sizes.values())
    match body:
        case Reduce(sources=(Binary(op=BinaryOp.MUL, a=a, b=b),)) if (
            body.reducer.operator is BinaryOp.ADD and factors(a, b, body.dtype) is not None
        ):
            left, right = (leaves(set(axes_of(each))).intersection(sizes) for each in (a, b))
        case _:
            return whole
    folded = {axis for axis in sizes if axis.kind is AxisKind.REDUCE}
    rows, columns = left - right - folded, right - left - folded
    sides = [axis for each in (rows, columns, folded) for axis in each if sizes[axis] >= MIN_EDGE]
    if not len(rows) == len(columns) == len(folded) == 1 or len(sides) < 3:
        return whole
    results = sizes.keys() - folded
    return max(prod(sizes[axis] for axis in each) for each in (left, right, results))
