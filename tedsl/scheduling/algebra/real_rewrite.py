"""Expressions with some sub-expressions replaced by 0 or 1, as in real arithmetic."""

from __future__ import annotations

from collections.abc import Callable

from tedsl.expr import build
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
)


def rebuilt(node: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """`node` over visited children, with neutral operands dropped as in real arithmetic."""
    children = [visit(child) for child in node.children()]
    if all(a is b for a, b in zip(children, node.children(), strict=True)):
        return node
    match node:
        case Binary(op=op):
            neutral = _neutral(op, *children)
            return build.binary(op, *children) if neutral is None else neutral
        case Unary(op=UnaryOp.LOG | UnaryOp.LOG2) if _is(children[0], 1):
            return build.const(0, node.dtype)
        case Unary(op=UnaryOp.SQRT | UnaryOp.RSQRT) if _is(children[0], 1):
            return children[0]
        case Unary(op=op):
            return build.unary(op, *children)
        case Cast(dtype=dtype):
            return build.cast(children[0], dtype)
        case Select():
            return build.select(*children)
        case IfThenElse():
            return build.if_then_else(*children)
        case _:
            return node.rebuild(children)


def _neutral(op: BinaryOp, a: Expr, b: Expr) -> Expr | None:
    """`a op b` when an operand is a neutral or absorbing 0."""
    match op:
        case BinaryOp.ADD | BinaryOp.SUB if _is(b, 0):
            return a
        case BinaryOp.ADD if _is(a, 0):
            return b
        case BinaryOp.SUB if _is(a, 0):
            return build.neg(b)
        case BinaryOp.MUL if _is(a, 0):
            return a
        case BinaryOp.MUL if _is(b, 0):
            return b
        case _:
            return None


def _is(expr: Expr, number: int) -> bool:
    return isinstance(expr, Const) and not expr.dtype.is_bool and expr.value == number
