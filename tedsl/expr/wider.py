"""Expressions computed in wider types than they are written in.

What is folded is computed in the type that it is folded in (`in_accumulator`): a library adds up
products of 16-bit floats in float32 without rounding one of them, and so do the matrix units; so
would the reader of `sum(a * b)` do it on paper.  The rule, of `te.sum` and `te.prod`:

    Where the accumulator holds every value of the type that the terms are written in, operators
    and functions of that type are taken in the accumulator's.  What is read, cast or folded
    already is an operand: it keeps its value, and is converted.

    te.sum(A[i, k] * B[k, j], axis=k)                      sum(float32(A) * float32(B))
    te.sum(te.exp(x[k] - m[()]) * 0.1, axis=k)             sum(exp(float32(x) - float32(m)) * 0.1)
    te.sum((A[i, k] * B[k, j]).astype("float32"), axis=k)  sum(float32(A * B)): the product is cast,
                                                           so it is bfloat16 first, and rounded
    te.sum((A[i, k] * B[k, j]).astype("bfloat16"), axis=k)  the same, said shorter
    te.sum(a[k] * b[k], axis=k, dtype="bfloat16")          nothing is wider: rounded at each step

Numbers are not rounded to the narrow type that they would have met.  Conditions of `select` and
`if_then_else` are no terms, and stay.  Integers follow where they do not mean bits: products,
sums, quotients, remainders, extremes, but no shifts and masks, whose value depends on the width;
under a float only where it holds each of them, and what rounds down stays.

The other half is used by `set_precision(compute=True)`.  Imports `nodes`, `build` and `promote`.
"""

from __future__ import annotations

from collections.abc import Callable

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.build import cast
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    Folded,
    IfThenElse,
    Select,
    TensorRead,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.expr.promote import promote_types
from tedsl.expr.visit import map_children, walk

Replace = Callable[[Expr], Expr | None]

# Integers up to 2 to the power of this are floats of the type, each of them.
_WHOLE = {DType.float16: 11, DType.bfloat16: 8, DType.float32: 24, DType.float64: 53}
# What means the same of an integer however wide it is, up to overflow; and of a float, too.
_NUMBERS = frozenset(
    {BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX, UnaryOp.NEG, UnaryOp.ABS}
)
_QUOTIENTS = frozenset({BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD})


def holds(wide: DType, narrow: DType) -> bool:
    """True when each value of `narrow` is one of `wide`."""
    if wide is narrow or narrow.is_bool:
        return True
    if wide.is_float and narrow.is_integer:
        return narrow.bits - (narrow.info.lowest < 0) <= _WHOLE.get(wide, 0)
    if wide.is_bool or wide.is_float != narrow.is_float:
        return False
    low, high = wide.info, narrow.info
    inside = low.lowest <= high.lowest and high.highest <= low.highest
    return inside and (not wide.is_float or wide.bits > narrow.bits)


def in_accumulator(expr: Expr, dtype: DType) -> Expr:
    """`expr` as a term of a fold that accumulates in `dtype`; the rule is that of this module.

    Before:  a * b + c                          a, b and c are bfloat16, `dtype` is float32
    After:   float32(a) * float32(b) + float32(c)
    """
    if expr.dtype is dtype or not holds(dtype, expr.dtype):
        return cast(expr, dtype)
    memo: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in memo:
            memo[node] = _taken(node, expr.dtype, dtype, visit)
        return memo[node]

    return visit(expr)


def unmarked(expr: Expr) -> Expr:
    """`expr` without casts to the dtype that a value has: no fold takes it in another any more."""
    if not any(_is_mark(node) for node in walk(expr)):
        return expr
    done: dict[Expr, Expr] = {}
    stack = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            new = map_children(node, done.__getitem__)
            done[node] = new.children()[0] if _is_mark(new) else new
        elif node not in done:
            stack.append((node, True))
            stack.extend((child, False) for child in node.children())
    return done[expr]


def _is_mark(node: Expr) -> bool:
    return isinstance(node, Cast) and node.dtype is node.a.dtype


def _taken(node: Expr, narrow: DType, wide: DType, visit: Callable[[Expr], Expr]) -> Expr:
    """`node`, which is of the type `narrow`, in the type `wide`."""
    match node:
        case Cast(a=a) if _is_mark(node):
            return cast(a, wide)
        case Const(value=value) if narrow.is_float:
            return Const(float(value), wide)
        case Select(condition=condition, a=a, b=b):
            return build.select(condition, visit(a), visit(b))
        case IfThenElse(condition=condition, a=a, b=b):
            return build.if_then_else(condition, visit(a), visit(b))
        case Unary(op=op, a=a) if _goes_along(op, narrow, wide):
            return build.unary(op, visit(a))
        case Binary(op=op, a=a, b=b) if _goes_along(op, narrow, wide):
            return build.binary(op, visit(a), visit(b))
        case _:
            return cast(node, wide)


def _goes_along(op: BinaryOp | UnaryOp, narrow: DType, wide: DType) -> bool:
    if narrow.is_float:
        return op is not UnaryOp.BITS
    return narrow.is_integer and (op in _NUMBERS or (op in _QUOTIENTS and wide.is_integer))


def with_wider(expr: Expr, replaced: Replace) -> Expr:
    """`expr` with wider floats for the nodes of which `replaced` gives one; what is computed of
    them is computed in the wider type, up to a cast that rounds.

    Before:  (x - m) * y                        m is replaced by M, a float64
    After:   (float64(x) - M) * float64(y)
    """
    memo: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in memo:
            found = replaced(node)
            memo[node] = _rebuilt(node, visit) if found is None else found
        return memo[node]

    return visit(expr)


def _rebuilt(node: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    new = [visit(child) for child in node.children()]
    if all(a is b for a, b in zip(node.children(), new, strict=True)):
        return node
    match node:
        case Binary() | Compare():
            return node.rebuild(_together(new[0], new[1]))
        case Select() | IfThenElse():
            return node.rebuild([new[0], *_together(new[1], new[2])])
        case Cast(dtype=dtype):
            return cast(new[0], promote_types(dtype, new[0].dtype) if _holds(node) else dtype)
        case _:
            return node.rebuild(new)


def _together(a: Expr, b: Expr) -> list[Expr]:
    dtype = promote_types(a.dtype, b.dtype)
    return [cast(a, dtype), cast(b, dtype)]


def computed_in(expr: Expr, dtype: DType) -> Expr:
    """`expr` computed in `dtype` from what it reads; a cast at its root to a narrower float than
    its operand, which only says how it is stored, is left out.  Other casts that round stay.
    """
    while isinstance(expr, Cast) and _narrows(expr):
        expr = expr.a

    def leaf(node: Expr) -> Expr | None:
        if not node.dtype.is_float:
            # An index: what it reads is as it was.
            return node if isinstance(node, TensorRead) else None
        if isinstance(node, Folded):
            return Folded(node.index, dtype)
        if isinstance(node, (Const, Var, TensorRead)) or (
            isinstance(node, Cast) and not _holds(node)
        ):
            return cast(node, promote_types(node.dtype, dtype))
        return None

    return cast(with_wider(expr, leaf), dtype)


def _holds(node: Cast) -> bool:
    """True for a cast to a float that holds all values of the float it is of: it rounds nothing."""
    if not node.a.dtype.is_float:
        return False
    return promote_types(node.dtype, node.a.dtype) is node.dtype


def _narrows(node: Cast) -> bool:
    if not (node.dtype.is_float and node.a.dtype.is_float):
        return False
    return promote_types(node.dtype, node.a.dtype) is node.a.dtype
