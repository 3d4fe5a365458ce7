"""Clamps of what is counted down in 64 bits: `min` and `max` of a kernel on their way to text.

ptxas 12.8 and 12.9 lose a sign on sm_90: of

    q = i // 7                      in 64 bits, q * 7 is subtracted from i, too
    max(n - int32(q) - 2, 0)

the difference and the maximum become one instruction (VIADDMNMX), to which `q` is given where `-q`
was meant.  It has no form of 64 bits, so such a clamp is calculated in those:

    int32(max(int64(n) - q - 2, 0))

That is the same where the difference does not wrap, as one of few positions in a tensor does not.
"""

from __future__ import annotations

from dataclasses import replace

from tedsl.dtypes import DType
from tedsl.expr.index_arith import widened
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Expr
from tedsl.expr.visit import rewrite, walk
from tedsl.index.linear import linear
from tedsl.index.width import one_width
from tedsl.ir.nodes import Func, Load
from tedsl.ir.visit import map_exprs

_FEW = 16
"""The sum of all coefficients up to which a sum of positions is taken not to wrap."""


def widen_clamps(func: Func) -> Func:
    """The kernel with clamps of differences in 64 bits, where what is subtracted was narrowed."""
    memo: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr | None:
        match node:
            case Binary(op=BinaryOp.MIN | BinaryOp.MAX, a=a, b=b, dtype=DType.int32):
                down = [_counts_down(each) for each in (a, b)]
                if not any(down):
                    return None
                wide = [widened(each) for each in (a, b)]
                wide = [one_width(e) if turns else e for e, turns in zip(wide, down, strict=True)]
                return Cast(Binary(node.op, *wide), DType.int32)
            case _:
                return None

    body = map_exprs(func.body, lambda expr: rewrite(expr, visit, memo))
    return func if body is func.body else replace(func, body=body)


def _counts_down(expr: Expr) -> bool:
    """Whether an expression is a sum of few positions from which one of 64 bits is subtracted."""
    if not any(isinstance(node, Cast) and node.a.dtype is DType.int64 for node in walk(expr)):
        return False
    terms = linear(expr).terms
    if sum(map(abs, terms.values())) > _FEW or any(isinstance(e, Load) for e in walk(expr)):
        return False
    return any(
        times < 0 and any(part.dtype is DType.int64 for part in walk(term))
        for term, times in terms.items()
    )
