"""Row-major memory as fewer dimensions: what a fused loop visits in order is one dimension."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.index_arith import add, mul
from tedsl.expr.nodes import Binary, BinaryOp, Expr
from tedsl.expr.visit import walk
from tedsl.index.facts import Facts
from tedsl.index.simplify import simplify

_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)


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
    outer_sizes, outer = [sizes[0]], [where[0]]
    for size, index in zip(sizes[1:], where[1:], strict=True):
        if _divides(outer[-1]) and _divides(index):
            joined = simplify(add(mul(outer[-1], size), index), facts)
            if _divisions(joined) < _divisions(outer[-1]) + _divisions(index):
                outer[-1] = joined
                outer_sizes[-1] = simplify(mul(outer_sizes[-1], size), facts)
                continue
        outer.append(index)
        outer_sizes.append(size)
    return tuple(outer_sizes), tuple(outer)


def _divisions(expr: Expr) -> int:
    return sum(isinstance(n, Binary) and n.op in _DIVISIONS for n in walk(expr))


def _divides(expr: Expr) -> bool:
    return _divisions(expr) > 0
