"""Folds over triangles: what running folds along a tile compute."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.index_arith import conjuncts, constant
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Compare, CompareOp, Expr, Reduce, Var
from tedsl.expr.visit import axes_of, rewrite
from tedsl.schedules.analysis.views import extent_of
from tedsl.tensor.tensor import ComputeOp


def triangle(op: ComputeOp) -> Axis | None:
    """The axis j of a fold over k <= j, or over k <= j % n in blocks of n, whose terms depend on
    the block alone: what a tile of both does as a running fold; None for any other."""
    body = op.bodies[0]
    if not isinstance(body, Reduce) or body.where is None or len(body.axes) != 1:
        return None
    (k,) = body.axes
    length, tests = extent_of(k), conjuncts(body.where)
    for place, test in enumerate(tests):
        row = _row(test, k, length)
        if row is not None:
            rest = (*body.sources, *tests[:place], *tests[place + 1 :])
            return row if row not in axes_of(*_by_block(rest, row, length)) else None
    return None


def _row(test: Expr, k: Axis, length: int | None) -> Axis | None:
    """The axis j of a test k <= j or k <= j % n."""
    match test:
        case Compare(op=CompareOp.LE, a=a, b=Axis() as row) if a is k:
            return row if length is not None and extent_of(row) == length else None
        case Compare(
            op=CompareOp.LE, a=a, b=Binary(op=BinaryOp.FLOORMOD, a=Axis() as row, b=b)
        ) if a is k:
            return row if length is not None and constant(b) == length else None
        case _:
            return None


def _by_block(exprs: Sequence[Expr], row: Axis, length: int | None) -> list[Expr]:
    """The expressions with a number for each block of rows."""
    number = Var("block", row.dtype)

    def block(node: Expr) -> Expr | None:
        match node:
            case Binary(op=BinaryOp.FLOORDIV, a=a, b=b) if a is row and constant(b) == length:
                return number
            case _:
                return None

    return [rewrite(each, block) for each in exprs]
