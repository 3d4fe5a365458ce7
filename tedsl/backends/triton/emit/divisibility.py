"""Proved divisibility, written so that Triton's analysis of addresses and masks sees it.

An access is as wide as the strides, the offsets and the bounds of the mask are known to be
divisible.  Triton knows that of constants, of sums and products of known multiples, and, for a
launch, of an integer argument that is a multiple of 16; of an argument that is a multiple of 4 or
8 it knows nothing.  `tl.multiple_of` marks the operation that made a value, so it says nothing of
an argument, and `tl.assume` is not read by this analysis.  A product with a constant is:

    n = n // 16 * 16

which changes no value, since it is written only where `index` proves that 16 divides n, from
assumptions that every call is checked against.
"""

from __future__ import annotations

from tedsl.backends.triton.math.functions import PRODUCT, Text
from tedsl.expr.nodes import Binary, BinaryOp, Expr, Var
from tedsl.index.affine import known_multiple
from tedsl.index.facts import Facts
from tedsl.index.intern import INDEX_DTYPES

WIDEST = 16  # elements of one byte in the widest access
DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)


def size_hint(name: str, size: Var, facts: Facts) -> str | None:
    """The statement that says what divides a size; None when nothing is known."""
    factor = _factor(size, facts)
    return None if factor == 1 else f"{name} = {_product(Text(name), factor).text}"


def hinted(text: Text, expr: Expr, facts: Facts) -> Text:
    """The source of a scalar with what divides it, where Triton cannot conclude that itself.

    It does not from the operands of a division.
    """
    if not (isinstance(expr, Binary) and expr.op in DIVISIONS):
        return text
    factor = _factor(expr, facts)
    return text if factor == 1 else _product(text, factor)


def _factor(expr: Expr, facts: Facts) -> int:
    return known_multiple(expr, facts, WIDEST) if expr.dtype in INDEX_DTYPES else 1


def _product(text: Text, factor: int) -> Text:
    return Text(f"{text.at(PRODUCT)} // {factor} * {factor}", PRODUCT)
