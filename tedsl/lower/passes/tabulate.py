"""Operands that take long, computed before the loop that folds them, a vector at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tedsl.expr.index_arith import add, as_index, constant, sub
from tedsl.expr.nodes import Axis, Expr, Unary, UnaryOp
from tedsl.expr.visit import axes_of, substitute
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    For,
    Func,
    Load,
    LoopKind,
    Scope,
    Seq,
    Stmt,
    Store,
    TileAxis,
)
from tedsl.ir.visit import rewrite_stmts

# Iterations that are worth it, and elements of a table, which is to stay in the L1 cache.
LEAST = 8
MOST = 4096
_QUICK = {
    *(UnaryOp.NEG, UnaryOp.NOT, UnaryOp.ABS, UnaryOp.SIGN, UnaryOp.FLOOR, UnaryOp.CEIL),
    *(UnaryOp.ROUND, UnaryOp.TRUNC, UnaryOp.ISNAN, UnaryOp.ISINF, UnaryOp.ISFINITE),
    *(UnaryOp.SQRT, UnaryOp.POPCOUNT, UnaryOp.BITS),
}


@dataclass(frozen=True, slots=True)
class _Table:
    """What an operand is along the loop, for each of the tile axes in it."""

    operand: Expr
    rows: tuple[TileAxis, ...]
    buffer: Buffer


def tabulate_operands(func: Func) -> Func:
    """Take functions such as `exp` out of a loop over K where a whole vector has one value of them.

    Before:  for k: tile (i:6, j:32): acc[i, j] += exp(S[i, k]) * V[k, j]
    After:   for i: tile (k:128): p[i, k] = exp(S[i, k])
             for k: tile (i:6, j:32): acc[i, j] += p[i, k] * V[k, j]
    Requires: level TILE.
    """
    body = rewrite_stmts(func.body, _rewritten)
    return func if body is func.body else replace(func, body=body)


def _rewritten(stmt: Stmt) -> Stmt | None:
    match stmt:
        case For(kind=LoopKind.SERIAL, body=Accumulate(call=None, values=values) as fold):
            length = constant(sub(stmt.end, stmt.start))
        case _:
            return None
    if length is None or length < LEAST:
        return None
    tables: dict[Expr, _Table] = {}
    for value in values:
        for operand in _operands(value, stmt.axis, fold):
            table = _table(operand, stmt, fold, length)
            if table is not None:
                tables[operand] = table
    if not tables:
        return None
    place = sub(stmt.axis, stmt.start)
    read: dict[Expr, Expr] = {
        operand: Load(table.buffer, (*(t.axis for t in table.rows), place))
        for operand, table in tables.items()
    }
    short = replace(fold, values=tuple(substitute(value, read) for value in values))
    made: Stmt = Seq(
        (*(_fill(t, stmt, length) for t in tables.values()), replace(stmt, body=short))
    )
    for table in tables.values():
        made = Allocate(table.buffer, made)
    return made


def _operands(value: Expr, loop: Axis, fold: Accumulate) -> Iterator[Expr]:
    """The largest parts of a value that change with the loop, have one value for a whole vector,
    and take long."""
    lanes = frozenset(t.axis for t in fold.tile if t.extent > 1)
    facts = _facts(value, fold)
    stack, seen = [value], set[Expr]()
    while stack:
        node = stack.pop()
        axes, slow, own = facts[node]
        if node in seen or not slow or not lanes:
            continue
        seen.add(node)
        if loop in axes and lanes - axes and node.dtype.is_float and not own:
            yield node
        else:
            stack.extend(reversed(node.children()))


def _facts(value: Expr, fold: Accumulate) -> dict[Expr, tuple[frozenset[Axis], bool, bool]]:
    """Of each node below a value: its axes, whether a slow function is in it, and whether it reads
    what the loop folds into."""
    facts: dict[Expr, tuple[frozenset[Axis], bool, bool]] = {}
    stack = [value]
    while stack:
        node = stack[-1]
        missing = [child for child in node.children() if child not in facts]
        if missing and node not in facts:
            stack.extend(missing)
            continue
        stack.pop()
        below = [facts[child] for child in node.children()]
        axes = frozenset([node] if isinstance(node, Axis) else ()).union(*(b[0] for b in below))
        slow = isinstance(node, Unary) and node.op not in _QUICK
        own = isinstance(node, Load) and node.buffer in fold.buffers
        facts[node] = axes, slow or any(b[1] for b in below), own or any(b[2] for b in below)
    return facts


def _table(operand: Expr, loop: For, fold: Accumulate, length: int) -> _Table | None:
    rows = tuple(t for t in fold.tile if t.axis in axes_of(operand))
    sizes = [t.extent for t in rows]
    if math.prod(sizes) * length > MOST:
        return None
    shape = tuple(as_index(size) for size in (*sizes, length))
    name = f"{fold.buffers[0].name}_{loop.axis.name}"
    return _Table(operand, rows, Buffer(name, operand.dtype, shape, Scope.LOCAL))


def _fill(table: _Table, loop: For, length: int) -> Stmt:
    """Loops over the rows around a tile along the loop."""
    rows = [Axis(t.axis.name, t.axis.kind, None, t.axis.dtype) for t in table.rows]
    lane = Axis(loop.axis.name, loop.axis.kind, None, loop.axis.dtype)
    at: dict[Expr, Expr] = {t.axis: row for t, row in zip(table.rows, rows, strict=True)}
    at[loop.axis] = add(lane, loop.start)
    value = substitute(table.operand, at)
    made: Stmt = Store(table.buffer, (*rows, lane), value, None, (TileAxis(lane, length),))
    for row, dim in zip(reversed(rows), reversed(table.rows), strict=True):
        made = For(row, as_index(dim.extent), LoopKind.SERIAL, made)
    return made
