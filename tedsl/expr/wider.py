"""Expressions computed in wider floats than they are written in.

Used by `set_precision(compute=True)`; imports `nodes`, `build` and `promote`.
"""

from __future__ import annotations

from collections.abc import Callable

from tedsl.dtypes import DType
from tedsl.expr.build import cast
from tedsl.expr.nodes import (
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Folded,
    IfThenElse,
    Select,
    TensorRead,
    Var,
)
from tedsl.expr.promote import promote_types

Replace = Callable[[Expr], Expr | None]


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
