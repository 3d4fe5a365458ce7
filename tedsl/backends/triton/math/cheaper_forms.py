"""Arithmetic that costs less beside other arithmetic: powers in base 2, and reciprocals.

exp in base 2: log2(e) goes into the factors that are there already.

The hardware has 2^x; exp(x) is 2^(x * log2(e)), one product more for each element.  Where x is a
product with a constant, the constant takes it up.  Where it is a sum, each term does, of which only
those over all axes of the tile cost anything:

    exp(x * c)            2^(x * (c * log2(e)))
    exp(s * c - m)        2^(s * (c * log2(e)) - m * log2(e)),  m over fewer axes

Accuracy, with u = 2^-24: the first has a relative error of (|x c| + 2) u.  The second has one of
1.5 (|s c| + |m|) u, where the difference itself would have had one of |s c - m| u: it is used where
a result of 16 bits hides it (up to terms of 2^10), and where no product with log2(e) can overflow.

A block over a number for each of its rows is the block times their reciprocals, a product for each
element in place of a division; of relative error 2^-22, and infinite for rows below 2^-128.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tedsl.backends.triton.math.accuracy import MODERATE, Accuracy
from tedsl.dtypes import DType
from tedsl.expr.nodes import Binary, BinaryOp, Const, Expr, Unary, UnaryOp

LOG2E = math.log2(math.e)
# The relative error of a sum in base 2, for terms of 2^10.
SUMS = 2.0**-13

# The relative error of a product with a reciprocal.
RECIPROCAL = 2.0**-22

Dims = Callable[[Expr], tuple[int, ...]]


def in_base_2(power: Unary, accuracy: Accuracy, dims: Dims) -> Unary | None:
    """exp(x) as exp2 of an expression that costs less than x * log2(e); None when there is none.

    Args:
        power: exp of a float32.
        accuracy: of the kernel.
        dims: the axes of the tile that an expression is over.
    """
    x = power.a
    if _factor(x) is not None:
        return Unary(UnaryOp.EXP2, _scaled(x))
    if accuracy.of(power).share < SUMS or not isinstance(x, Binary):
        return None
    if x.op not in (BinaryOp.ADD, BinaryOp.SUB):
        return None
    whole = [term for term in (x.a, x.b) if dims(term) == dims(x)]
    rest = [term for term in (x.a, x.b) if dims(term) != dims(x)]
    if len(whole) != 1 or not accuracy.is_moderate(whole[0]):
        return None
    terms = {term: _scaled(term) for term in whole}
    # A maximum of nothing is the lowest float, and must not become infinite.
    terms |= {term: _clamped(_scaled(term)) for term in rest}
    return Unary(UnaryOp.EXP2, Binary(x.op, terms[x.a], terms[x.b]))


def by_reciprocal(quotient: Binary, accuracy: Accuracy, dims: Dims) -> Binary | None:
    """a / b as a * (1 / b), where b is over fewer axes and the result may be that wrong."""
    a, b = quotient.a, quotient.b
    fewer = len(dims(b)) < len(dims(quotient))
    if not fewer or isinstance(b, Const) or quotient.dtype is not DType.float32:
        return None
    if accuracy.of(quotient).share < RECIPROCAL:
        return None
    return Binary(BinaryOp.MUL, a, Binary(BinaryOp.DIV, Const(1.0, DType.float32), b))


def _factor(x: Expr) -> tuple[Expr, float] | None:
    """(y, c) when x is y * c with a constant c."""
    match x:
        case Binary(op=BinaryOp.MUL, a=a, b=Const(value=c)):
            return a, float(c)
        case Binary(op=BinaryOp.MUL, a=Const(value=c), b=b):
            return b, float(c)
        case Unary(op=UnaryOp.NEG, a=a):
            return a, -1.0
        case _:
            return None


def _scaled(x: Expr) -> Expr:
    """x * log2(e)."""
    found = _factor(x)
    inner, factor = (x, 1.0) if found is None else found
    return Binary(BinaryOp.MUL, inner, Const(factor * LOG2E, DType.float32))


def _clamped(x: Expr) -> Expr:
    return Binary(BinaryOp.MAX, x, Const(-MODERATE, DType.float32))
