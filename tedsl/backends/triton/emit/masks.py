"""Masks as lists of conditions, and conditional expressions as masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.nodes import Binary, BinaryOp, Const, Expr, IfThenElse, Select, Unary, UnaryOp
from tedsl.expr.visit import rewrite_down
from tedsl.ir.nodes import Load, Scope


def conjuncts(mask: Expr | None) -> list[Expr]:
    """The parts of a conjunction, without those that are constant true."""
    match mask:
        case None:
            return []
        case Binary(op=BinaryOp.AND, a=a, b=b) if mask.dtype.is_bool:
            return [*conjuncts(a), *conjuncts(b)]
        case Const(value=True):
            return []
        case _:
            return [mask]


def conjunction(parts: Sequence[Expr]) -> Expr | None:
    """The parts joined by `&`; None when there are none."""
    joined: Expr | None = None
    for part in parts:
        joined = part if joined is None else Binary(BinaryOp.AND, joined, part)
    return joined


def guard_loads(expr: Expr) -> Expr:
    """`expr` with each `IfThenElse` turned into a `Select` whose branches load under its condition.

    a if c else b  =  select(c, a[loads masked by c], b[loads masked by not c])
    """

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, IfThenElse):
            return None
        condition = guard_loads(node.condition)
        other = Unary(UnaryOp.NOT, condition)
        return Select(
            condition,
            _masked(guard_loads(node.a), condition),
            _masked(guard_loads(node.b), other),
        )

    return rewrite_down(expr, visit)


def _masked(expr: Expr, condition: Expr) -> Expr:
    def visit(node: Expr) -> Expr | None:
        if not (isinstance(node, Load) and node.buffer.scope is Scope.GLOBAL):
            return None
        indices = tuple(_masked(index, condition) for index in node.indices)
        mask = conjunction([*conjuncts(node.mask), condition])
        return replace(node, indices=indices, mask=mask)

    return rewrite_down(expr, visit)
