"""What the matrix units of a GPU multiply.  Imports `expr`."""

from __future__ import annotations

from tedsl.dtypes import DType
from tedsl.expr.nodes import Cast, Expr

# What tensor cores multiply, and the accumulator's type.
_EXACT = {
    DType.float16: DType.float32,
    DType.bfloat16: DType.float32,
    DType.float8_e4m3fn: DType.float32,
    DType.float8_e5m2: DType.float32,
    DType.int8: DType.int32,
}
_FULL = {DType.float32: DType.float32}
# The least rows, columns and K of a `tl.dot`.
MIN_EDGE = 16
# The least K of a `tl.dot` of 8-bit elements.
MIN_DEPTH = 32
# A side of fewer elements is no side of a matrix, and a K step of fewer is no K step.
LEAST_EDGE = 2
LEAST_DEPTH = 4


def worth_padding(rows: int, columns: int, depth: int) -> bool:
    """True for sides that are padded to those of a `tl.dot` where they are shorter: one of rows and
    columns is long enough as it is."""
    edges = min(rows, columns), max(rows, columns)
    return edges[0] >= LEAST_EDGE and edges[1] >= MIN_EDGE and depth >= LEAST_DEPTH


def factors(a: Expr, b: Expr, acc: DType) -> tuple[Expr, Expr] | None:
    """The operands of `acc += a * b` as a matrix product takes them: without widening casts, when
    the hardware multiplies them into `acc` exactly; 8-bit floats of two types as the float16 that
    they are.  None where no unit multiplies such types, so that products are added up one by one.

    Rules ask this of definitions, so that they make tiles of products of what becomes one.
    """
    inner_a = a.a if isinstance(a, Cast) else a
    inner_b = b.a if isinstance(b, Cast) else b
    if inner_a.dtype is inner_b.dtype and _EXACT.get(inner_a.dtype) is acc:
        return inner_a, inner_b
    if acc is DType.float32 and inner_a.dtype.is_float8 and inner_b.dtype.is_float8:
        return Cast(inner_a, DType.float16), Cast(inner_b, DType.float16)
    if a.dtype is b.dtype and _FULL.get(a.dtype) is acc:
        return a, b
    return None
