"""Index arithmetic of two widths as that of one.

    int64(i * 2) + j  -->  int64(i) * 2 + j

Casts between int32 and int64 change no index.  Between a division and its dividend, or between a
quotient and its remainder, they hide what the rules for divisions look for.  Imports `expr` and
`intern`.
"""

from __future__ import annotations

from tedsl.expr.index_arith import widened
from tedsl.expr.nodes import Binary, Cast, Compare, Expr, IfThenElse, Select, Unary
from tedsl.expr.visit import map_children, walk
from tedsl.index.intern import INDEX_DTYPES

_ARITHMETIC = (Binary, Unary, Select, IfThenElse)


def changes_width(expr: Expr) -> bool:
    """Whether `expr` is a cast of index arithmetic to the other index type."""
    if type(expr) is not Cast or expr.dtype not in INDEX_DTYPES:
        return False
    return isinstance(expr.a, _ARITHMETIC) and expr.a.dtype in INDEX_DTYPES


def of_two_widths(*roots: Expr) -> bool:
    """Whether such a cast occurs."""
    return any(changes_width(node) for node in walk(*roots))


def one_width(expr: Expr) -> Expr:
    """`expr` with its index arithmetic in int64, and casts only of what is no arithmetic."""
    memo: dict[Expr, Expr] = {}

    def wide(node: Expr) -> Expr:
        done = memo.get(node)
        if done is None:
            if isinstance(node, Cast) and node.a.dtype in INDEX_DTYPES:
                done = wide(node.a)
            elif isinstance(node, _ARITHMETIC):
                done = node.rebuild([each(child) for child in node.children()])
            else:
                done = widened(node)
            memo[node] = done
        return done

    def each(node: Expr) -> Expr:
        if node.dtype in INDEX_DTYPES:
            return wide(node)
        logic = isinstance(node, (Binary, Unary, Compare)) and node.dtype.is_bool
        return map_children(node, each) if logic else node

    return each(expr)
