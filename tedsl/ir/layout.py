"""Row-major memory as fewer dimensions: what a fused loop visits in order is one dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tedsl.dtypes import DType
from tedsl.expr.index_arith import add, constant, mul, widened
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Const, Expr
from tedsl.expr.visit import walk
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import Buffer

SMALL = 1 << 31
"""Elements that an index of 32 bits does not reach."""
_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)


def flat_index(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """The place of one element among all of a row-major buffer."""
    place: Expr = Const(0, DType.int64)
    for extent, index in zip(buffer.shape, indices, strict=True):
        place = add(mul(place, extent), index)
    return place


def collapse(
    shape: Sequence[Expr], indices: Sequence[Expr], facts: Facts = Facts.EMPTY
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The same element with adjacent dimensions joined where that saves divisions.

    X[f // n, f % n] of shape (m, n)  -->  X[f] of shape (m * n)
    Args:
        shape: of row-major memory.
        indices: of one element.
        facts: ranges of the axes in the indices.

    Returns:
        Shape and indices; the given ones when nothing joins.
    """
    sizes, where = tuple(shape), tuple(indices)
    if len(where) < 2 or not any(_divides(i) for i in where):
        return sizes, where
    known = [constant(size) for size in sizes]
    small = all(known) and math.prod(size for size in known if size is not None) < SMALL
    outer_sizes, outer = [sizes[0]], [where[0]]
    for size, index in zip(sizes[1:], where[1:], strict=True):
        if _divides(outer[-1]) and _divides(index):
            joined = _joined(outer[-1], size, index, facts, small)
            if _divisions(joined) < _divisions(outer[-1]) + _divisions(index):
                outer[-1] = joined
                outer_sizes[-1] = simplify(mul(outer_sizes[-1], size), facts)
                continue
        outer.append(index)
        outer_sizes.append(size)
    return tuple(outer_sizes), tuple(outer)


def _joined(row: Expr, width: Expr, column: Expr, facts: Facts, small: bool) -> Expr:
    """row * width + column, in 64 bits where that may leave 32 though neither part of it does."""
    if small:
        return simplify(add(mul(row, width), column), facts)
    joined = simplify(add(mul(_wide(row), widened(width)), _wide(column)), facts)
    match joined:
        case Cast(a=a) if a.dtype is DType.int32:
            return a
        case _:
            return joined


def _wide(index: Expr) -> Expr:
    """An index as a 64-bit integer, of which a division divides such: the cast to the type of an
    index, which fits, is left out."""
    match index:
        case Cast(a=a) if a.dtype is DType.int64:
            return a
        case Binary(op=op, a=a, b=b) if op in _DIVISIONS:
            return Binary(op, widened(a), widened(b))
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL as op, a=a, b=b):
            return Binary(op, _wide(a), _wide(b))
        case _:
            return widened(index)


def _divisions(expr: Expr) -> int:
    return sum(isinstance(n, Binary) and n.op in _DIVISIONS for n in walk(expr))


def _divides(expr: Expr) -> bool:
    return _divisions(expr) > 0
