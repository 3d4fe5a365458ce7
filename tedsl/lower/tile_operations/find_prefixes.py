"""Find running folds (prefix sums and the like) among the reductions over tiles: what becomes
`tl.associative_scan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tedsl.expr.index_arith import both, conjuncts, constant
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Compare, CompareOp, Expr
from tedsl.expr.visit import axes_of, substitute
from tedsl.ir.nodes import Accumulate, Func, Scope, Stmt, TileAxis
from tedsl.ir.visit import rewrite_stmts


def find_prefixes(func: Func) -> Func:
    """Make a fold over the triangle k <= j of a tile a running fold along j.

    Before:  tile (i:4, j:64, k:64): acc[i, j] += A[i, k] if k <= j
    After:   tile (i:4, j:64): running along j acc[i, j] += A[i, j]
    As many operations as elements, and no value of both axes.
    Requires: level TILE, padded tiles.   Ensures: the same results, added up in another order.
    Order: before what limits the elements of a tile.
    """
    body = rewrite_stmts(func.body, _as_prefix)
    return func if body is func.body else replace(func, body=body)


def _as_prefix(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, Accumulate) or stmt.mask is None or stmt.along is not None:
        return None
    if stmt.call is not None or any(b.scope is not Scope.LOCAL for b in stmt.buffers):
        return None
    kept = axes_of(*stmt.indices)
    folded = [t for t in stmt.tile if t.axis not in kept]
    if len(folded) != 1:
        return None
    (k,) = folded
    tests = conjuncts(stmt.mask)
    found = [(n, _ends(test, k, stmt.tile)) for n, test in enumerate(tests)]
    ends = [(n, along) for n, along in found if along is not None]
    if len(ends) != 1:
        return None
    ((place, j),) = ends
    rest = [test for n, test in enumerate(tests) if n != place]
    if j.axis not in kept or j.axis in axes_of(*stmt.values, *rest):
        return None
    here: dict[Expr, Expr] = {k.axis: j.axis}
    mask = both(*(substitute(test, here) for test in rest)) if rest else None
    return replace(
        stmt,
        values=tuple(substitute(value, here) for value in stmt.values),
        mask=mask,
        tile=tuple(t for t in stmt.tile if t is not k),
        along=j.axis,
    )


def _ends(test: Expr, k: TileAxis, tile: Sequence[TileAxis]) -> TileAxis | None:
    """The axis j of the tile, as long as k, for which the test is k <= j."""
    if not isinstance(test, Compare):
        return None
    low, high = test.a, test.b
    op = test.op
    if op in (CompareOp.GE, CompareOp.GT):
        low, high, op = high, low, CompareOp.LE if op is CompareOp.GE else CompareOp.LT
    if op is CompareOp.LT:
        match high:
            case Binary(op=BinaryOp.ADD, a=a, b=b) if constant(b) == 1:
                high = a
            case _:
                return None
    elif op is not CompareOp.LE:
        return None
    if low is not k.axis or not isinstance(high, Axis):
        return None
    return next((t for t in tile if t.axis is high and t.extent == k.extent), None)
