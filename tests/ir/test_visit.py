"""Traversals over statements."""

from __future__ import annotations

from irs import binary, buffer, compare, float32, int32, load, loop, reducer, tile

from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.ir.nodes import Accumulate, Allocate, For, Guard, Load, Scope, Seq, Stmt, Store
from tedsl.ir.printer import print_stmt
from tedsl.ir.visit import (
    buffers_read,
    buffers_written,
    map_buffers,
    map_exprs,
    rewrite_stmts,
    substitute,
    walk_exprs,
    walk_stmts,
)

N = Var("n", lower=0)
A, B, C = buffer("A", N), buffer("B", N), buffer("C", 4, scope=Scope.LOCAL)
II, JJ = Axis("i"), Axis("j")
TREE = loop(
    II,
    N,
    Allocate(
        C,
        Seq(
            (
                Store(C, (JJ,), float32(0.0), None, tile((JJ, 4))),
                Guard(
                    compare("<", II, N),
                    Accumulate((B,), (II,), reducer("+"), (load(A, II, mask=compare("<", II, 9)),)),
                ),
            )
        ),
    ),
)


def test_walk_is_in_program_order() -> None:
    names = [type(stmt).__name__ for stmt in walk_stmts(TREE)]
    assert names == ["For", "Allocate", "Seq", "Store", "Guard", "Accumulate"]
    assert {node for node in walk_exprs(TREE) if isinstance(node, (Axis, Var))} == {N, II, JJ}


def test_nothing_changed_is_the_same_object() -> None:
    assert rewrite_stmts(TREE, lambda stmt: None) is TREE
    assert map_exprs(TREE, lambda expr: expr) is TREE
    assert substitute(TREE, {}) is TREE
    assert substitute(TREE, {Axis("i"): int32(0)}) is TREE
    assert map_buffers(TREE, {buffer("A", 1): A}) is TREE


def test_map_exprs_reaches_extents_masks_and_indices() -> None:
    seen: list[Expr] = []

    def look(expr: Expr) -> Expr:
        seen.append(expr)
        return expr

    map_exprs(TREE, look)
    assert {N, II, JJ} <= set(seen) and len(seen) == 7


def test_substitute() -> None:
    stmt = Guard(compare("<", II, N), Store(B, (binary("+", II, 1),), load(A, II)))
    changed = substitute(stmt, {II: JJ})
    assert print_stmt(changed) == "if j < n:\n  B[j + 1] = A[j]"
    assert print_stmt(stmt) == "if i < n:\n  B[i + 1] = A[i]"


def test_rewrite_is_bottom_up_and_shares_the_rest() -> None:
    def unwrap(stmt: Stmt) -> Stmt | None:
        return stmt.body if isinstance(stmt, Guard) else None

    changed = rewrite_stmts(TREE, unwrap)
    assert not any(isinstance(stmt, Guard) for stmt in walk_stmts(changed))
    stores = [s for tree in (TREE, changed) for s in walk_stmts(tree) if isinstance(s, Store)]
    assert stores[0] is stores[1]


def test_buffers() -> None:
    assert buffers_read(TREE) == (A, B)
    assert buffers_written(TREE) == (C, B)
    other = buffer("other", N)
    changed = map_buffers(TREE, {A: other, B: other})
    assert buffers_read(changed) == (other,)
    assert isinstance(changed, For)
    assert not any(isinstance(e, Load) and e.buffer is A for e in walk_exprs(changed))
