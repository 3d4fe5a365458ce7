"""Keys that a query does not see, by their places alone (a causal mask): the condition under which
an element of scores is not minus infinity, or an element of their softmax not 0.  Reductions with
it as `where=` leave them out, and loops end with it; imports the expressions alone."""

from __future__ import annotations

import math

from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
)
from tedsl.expr.visit import reads, substitute
from tedsl.tensor.tensor import ComputeOp


def seen(score: Expr) -> Expr | None:
    """The condition on indices without which a score is minus infinity; None where there is
    none."""
    match _defined(score):
        case Select(condition=condition, b=Const(value=value)) if value == -math.inf:
            found = _defined(condition)
            return None if reads(found) else found
        case _:
            return None


def weighed(share: Expr) -> Expr | None:
    """The condition on indices without which an element of a softmax is 0, of one that is defined
    by the largest score, from a finite number on, and a sum of at least 1; None for all others."""
    match _defined(share):
        case Cast(a=a):
            return weighed(a)
        case Binary(op=BinaryOp.DIV, a=power, b=Binary(op=BinaryOp.MAX, b=Const(value=1.0))):
            return raised(power)
        case _:
            return None


def raised(power: Expr) -> Expr | None:
    """The same of the exponential of how far a score is below a finite number."""
    match power:
        case Unary(op=UnaryOp.EXP, a=Binary(op=BinaryOp.SUB, a=score)):
            return seen(score)
        case _:
            return None


def _defined(found: Expr) -> Expr:
    """What an element is computed as; itself where that is read from memory, or a reduction."""
    while isinstance(found, TensorRead):
        op = found.tensor.op
        if not isinstance(op, ComputeOp) or op.reduce_axes:
            break
        found = substitute(
            op.bodies[found.tensor.index], dict(zip(op.axes, found.indices, strict=True))
        )
    return found
