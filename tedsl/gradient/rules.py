"""Derivatives of the scalar operators: what a node passes on to its operands.

`local(node, adjoint)` is the chain rule for one node: from the derivative of the result by the
node's value (its adjoint) to what reaches each operand.  Choices (`select`, `if_then_else`, `min`,
`max`) are not here, because `sweep` keeps their conditions apart.  Sixteen-bit operands
are widened to float32, so adjoints are never rounded on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

from tedsl.dtypes import DType
from tedsl.errors import ExprError, InternalError
from tedsl.expr import build
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Expr, Unary, UnaryOp
from tedsl.expr.promote import promote_types

Rule = Callable[[Expr, Expr, Expr], Expr]
"""From the operand, the value and its adjoint to the operand's adjoint."""

FLAT = frozenset(
    {
        *(UnaryOp.SIGN, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC),
        *(UnaryOp.ISNAN, UnaryOp.ISINF, UnaryOp.ISFINITE, UnaryOp.NOT, UnaryOp.POPCOUNT),
    }
)
"""Operators that are constant almost everywhere: their derivative is 0."""


def _sin(x: Expr) -> Expr:
    return build.unary(UnaryOp.SIN, x)


def _cos(x: Expr) -> Expr:
    return build.unary(UnaryOp.COS, x)


def _rsqrt(x: Expr) -> Expr:
    return build.unary(UnaryOp.RSQRT, x)


_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)
RULES: dict[UnaryOp, Rule] = {
    UnaryOp.NEG: lambda x, y, g: -g,
    UnaryOp.ABS: lambda x, y, g: g * build.unary(UnaryOp.SIGN, x),
    UnaryOp.EXP: lambda x, y, g: g * y,
    UnaryOp.EXP2: lambda x, y, g: g * (y * math.log(2.0)),
    UnaryOp.EXPM1: lambda x, y, g: g * build.unary(UnaryOp.EXP, x),
    UnaryOp.LOG: lambda x, y, g: g / x,
    UnaryOp.LOG2: lambda x, y, g: g / (x * math.log(2.0)),
    UnaryOp.LOG10: lambda x, y, g: g / (x * math.log(10.0)),
    UnaryOp.LOG1P: lambda x, y, g: g / (x + 1.0),
    UnaryOp.SQRT: lambda x, y, g: g * 0.5 / y,
    UnaryOp.RSQRT: lambda x, y, g: g * (y * y * y * -0.5),
    UnaryOp.TANH: lambda x, y, g: g * (1.0 - y * y),
    UnaryOp.SIGMOID: lambda x, y, g: g * (y * (1.0 - y)),
    UnaryOp.ERF: lambda x, y, g: g * (build.unary(UnaryOp.EXP, -(x * x)) * _TWO_OVER_ROOT_PI),
    UnaryOp.SIN: lambda x, y, g: g * _cos(x),
    UnaryOp.COS: lambda x, y, g: -(g * _sin(x)),
    UnaryOp.TAN: lambda x, y, g: g * (1.0 + y * y),
    UnaryOp.ASIN: lambda x, y, g: g * _rsqrt((1.0 - x) * (1.0 + x)),
    UnaryOp.ACOS: lambda x, y, g: -(g * _rsqrt((1.0 - x) * (1.0 + x))),
    UnaryOp.ATAN: lambda x, y, g: g / (x * x + 1.0),
    UnaryOp.SINH: lambda x, y, g: g * build.unary(UnaryOp.COSH, x),
    UnaryOp.COSH: lambda x, y, g: g * build.unary(UnaryOp.SINH, x),
    UnaryOp.ASINH: lambda x, y, g: g * _rsqrt(x * x + 1.0),
    UnaryOp.ACOSH: lambda x, y, g: g * _rsqrt((x - 1.0) * (x + 1.0)),
    UnaryOp.ATANH: lambda x, y, g: g / ((1.0 - x) * (1.0 + x)),
}
"""x is the operand, y the value, g the adjoint of the value."""


def wide_dtype(dtype: DType) -> DType:
    """The dtype in which derivatives of a float `dtype` are computed: float32 at least."""
    return DType.float32 if dtype.bits < 32 else dtype


def kept_dtype(dtype: DType) -> DType:
    """The dtype in which derivatives by a tensor of a float `dtype` are kept: its own, but float32
    for an 8-bit float, which would be NaN or infinite for derivatives that are not small."""
    return DType.float32 if dtype.is_float8 else dtype


def wide(expr: Expr) -> Expr:
    """A float `expr`, in float32 at least."""
    return build.cast(expr, wide_dtype(expr.dtype))


def local(node: Unary | Binary | Cast, adjoint: Expr) -> tuple[tuple[Expr, Expr], ...]:
    """Each operand of `node` with what reaches it, for the operands that the value depends on.

    Args:
        node: an operator on floats.
        adjoint: the derivative of the result by the value of `node`, in float32 at least.

    Raises:
        ExprError: an operator without a derivative.
    """
    match node:
        case Cast(a=a):
            met = promote_types(adjoint.dtype, wide_dtype(a.dtype))
            return ((a, build.cast(adjoint, met)),)
        case Unary(op=op, a=a):
            if op in FLAT:
                return ()
            rule = RULES.get(op)
            if rule is None:
                raise no_derivative(op.value)
            return ((a, rule(wide(a), wide(node), adjoint)),)
        case Binary(a=a, b=b):
            first, second = _binary(node, adjoint)
            return ((a, first), (b, second))
        case _:
            assert_never(node)


def no_derivative(what: str) -> ExprError:
    """The refusal of a node that has no derivative."""
    return ExprError(
        f"{what} has no derivative",
        subject="gradient",
        hint="write the value with functions that have one, or make this tensor an input of its "
        "own: te.gradient(output, [it])",
    )


def _binary(node: Binary, g: Expr) -> tuple[Expr, Expr]:
    a, b = wide(node.a), wide(node.b)
    match node.op:
        case BinaryOp.ADD:
            return g, g
        case BinaryOp.SUB:
            return g, -g
        case BinaryOp.MUL:
            return g * b, g * a
        case BinaryOp.DIV:
            return g / b, -(g * (wide(node) / b))
        case BinaryOp.POW:
            return _power(a, b, wide(node), g)
        case BinaryOp.ATAN2:  # the angle of (x = b, y = a)
            square = a * a + b * b
            return g * b / square, -(g * a / square)
        case BinaryOp.TRUNCMOD:  # a - b * trunc(a / b), with steps that have no slope
            return g, -(g * build.unary(UnaryOp.TRUNC, a / b))
        case BinaryOp.MIN | BinaryOp.MAX:
            raise InternalError(f"{node.op} is a choice; the sweep takes it apart")
        case _:
            raise no_derivative(node.op.value)


def _power(a: Expr, b: Expr, value: Expr, g: Expr) -> tuple[Expr, Expr]:
    """d a**b / da = b * a**(b - 1), which is 0 for b = 0; d a**b / db = log(a) * a**b, whose limit
    at a = 0 is 0."""
    below = build.power(a, build.select(build.eq(b, 0.0), 1.0, b - 1.0))
    logarithm = build.unary(UnaryOp.LOG, build.select(build.eq(a, 0.0), 1.0, a))
    return g * (b * below), g * (logarithm * value)
