"""Traversals over statements: walk, rewrite, substitute, buffers read and written.

Part of the third room; imports `expr` and `ir.nodes`.  Everything here returns the same object when
nothing changed, so a pass can tell by identity whether it did something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from tedsl.errors import InternalError
from tedsl.expr import visit as expr_visit
from tedsl.expr.nodes import Expr
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Finish,
    For,
    Guard,
    HostCall,
    Load,
    Meet,
    Seq,
    Stmt,
    Store,
    TensorCall,
    TileAxis,
)

AnyStmt = Seq | For | Guard | Allocate | Finish | Meet | Store | Accumulate | Dot | HostCall
_STMTS = (Seq, For, Guard, Allocate, Finish, Meet, Store, Accumulate, Dot, HostCall)


def closed(stmt: Stmt) -> AnyStmt:
    """`stmt` as the closed union of statements, so that a `match` over it can end in
    `assert_never`."""
    if isinstance(stmt, _STMTS):
        return stmt
    raise InternalError(f"{type(stmt).__name__} is not a statement of the loop IR")


def sub_stmts(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside `stmt`."""
    match closed(stmt):
        case Seq(stmts=stmts):
            return stmts
        case For(body=body) | Guard(body=body) | Allocate(body=body) | Finish(body=body):
            return (body,)
        case Meet(meanwhile=meanwhile):
            return () if meanwhile is None else (meanwhile,)
        case Store() | Accumulate() | Dot() | HostCall():
            return ()
        case _ as never:
            assert_never(never)


def tile_axes(stmt: Stmt) -> tuple[TileAxis, ...]:
    """The axes `stmt` runs over at once; those of a `Dot` are batch, row, column, contract."""
    match stmt:
        case Store(tile=tile) | Accumulate(tile=tile):
            return tile
        case Dot():
            return (*stmt.batch, stmt.row, stmt.column, stmt.contract)
        case _:
            return ()


def own_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """The whole expressions `stmt` itself holds (not those of statements inside it)."""
    match closed(stmt):
        case Seq() | Allocate() | HostCall():
            return ()
        case For(start=start, end=end, cuts=cuts):
            return (start, end, *cuts)
        case Guard(condition=condition):
            return (condition,)
        case Finish(indices=indices, count=count) | Meet(indices=indices, count=count):
            return (*indices, count)
        case Store(indices=indices, value=value, mask=mask, call=call):
            return (*indices, value, *_optional(mask), *_operands(call))
        case Accumulate(indices=indices, values=values, mask=mask, call=call):
            return (*indices, *values, *_optional(mask), *_operands(call))
        case Dot(indices=indices, lhs=lhs, rhs=rhs):
            return (*indices, lhs, rhs)
        case _ as never:
            assert_never(never)


def _optional(mask: Expr | None) -> tuple[Expr, ...]:
    return () if mask is None else (mask,)


def _operands(call: TensorCall | None) -> tuple[Expr, ...]:
    return () if call is None else call.operands


def _with_operands(call: TensorCall | None, exprs: tuple[Expr, ...]) -> TensorCall | None:
    """`call` with the last of `exprs` as operands."""
    return call and replace(call, operands=exprs[len(exprs) - len(call.operands) :])


def map_sub_stmts(stmt: Stmt, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """`stmt` with `fn` applied to each statement directly inside it; the same object when none
    changed."""
    match closed(stmt):
        case Seq(stmts=stmts):
            new = tuple([fn(child) for child in stmts])
            return stmt if all(map(_is, new, stmts)) else Seq(new)
        case (For() | Guard() | Allocate() | Finish()) as node:
            body = fn(node.body)
            return node if body is node.body else replace(node, body=body)
        case Meet() as meet:
            between = None if meet.meanwhile is None else fn(meet.meanwhile)
            return meet if between is meet.meanwhile else replace(meet, meanwhile=between)
        case Store() | Accumulate() | Dot() | HostCall():
            return stmt
        case _ as never:
            assert_never(never)


def map_own_exprs(stmt: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """`stmt` with `fn` applied to each whole expression it itself holds; the same object when none
    changed."""
    old = own_exprs(stmt)
    new = tuple(fn(expr) for expr in old)
    return stmt if all(map(_is, new, old)) else with_exprs(stmt, new)


def with_exprs(stmt: Stmt, exprs: tuple[Expr, ...]) -> Stmt:
    """`stmt` over other expressions: as many as, and in the order of, `own_exprs`."""
    match closed(stmt):
        case (Seq() | Allocate() | HostCall()) as node:
            return node
        case For() as node:
            return replace(node, start=exprs[0], end=exprs[1])
        case Guard() as node:
            return replace(node, condition=exprs[0])
        case (Finish() | Meet()) as node:
            return replace(node, indices=exprs[:-1], count=exprs[-1])
        case Store() as node:
            n = len(node.indices)
            mask = exprs[n + 1] if node.mask is not None else None
            call = _with_operands(node.call, exprs)
            return replace(node, indices=exprs[:n], value=exprs[n], mask=mask, call=call)
        case Accumulate() as node:
            n, m = len(node.indices), len(node.indices) + len(node.values)
            mask = exprs[m] if node.mask is not None else None
            call = _with_operands(node.call, exprs)
            return replace(node, indices=exprs[:n], values=exprs[n:m], mask=mask, call=call)
        case Dot() as node:
            return replace(node, indices=exprs[:-2], lhs=exprs[-2], rhs=exprs[-1])
        case _ as never:
            assert_never(never)


def walk_stmts(stmt: Stmt) -> Iterator[Stmt]:
    """`stmt` and every statement below it, parents before children, in program order."""
    stack = [stmt]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(sub_stmts(node)))


def walk_exprs(stmt: Stmt) -> Iterator[Expr]:
    """Every distinct expression node in the tree (extents, conditions, indices, values, masks), in
    program order."""
    return expr_visit.walk(*(expr for node in walk_stmts(stmt) for expr in own_exprs(node)))


def rewrite_stmts(stmt: Stmt, fn: Callable[[Stmt], Stmt | None]) -> Stmt:
    """Rebuild from the innermost statements out; `fn(node)` sees finished children, None keeps the
    node."""
    rebuilt = map_sub_stmts(stmt, lambda child: rewrite_stmts(child, fn))
    replaced = fn(rebuilt)
    return rebuilt if replaced is None else replaced


map_stmts = rewrite_stmts


def map_exprs(stmt: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """Apply `fn` to every whole expression of the tree: extents, conditions, indices, values and
    masks.

    Buffers keep their shapes: a buffer is an object, and the same one is named in many places.
    """
    return rewrite_stmts(stmt, lambda node: map_own_exprs(node, fn))


def substitute(stmt: Stmt, mapping: Mapping[Expr, Expr]) -> Stmt:
    """`stmt` with each expression node that is a key (by identity) replaced by its value,
    everywhere.

    A loop over a key keeps its axis: map bound axes only on purpose.
    """
    if not mapping:
        return stmt
    return map_exprs(stmt, lambda expr: expr_visit.substitute(expr, mapping))


def map_buffers(stmt: Stmt, mapping: Mapping[Buffer, Buffer]) -> Stmt:
    """`stmt` with buffers replaced wherever they are loaded, stored, accumulated or allocated."""

    def load(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in mapping:
            return replace(node, buffer=mapping[node.buffer])
        return None

    def target(node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer=b) | Dot(buffer=b) | Allocate(buffer=b) if b in mapping:
                return replace(node, buffer=mapping[b])
            case Finish(counter=counter) | Meet(counter=counter) if counter in mapping:
                return replace(node, counter=mapping[counter])
            case Accumulate(buffers=buffers) if any(b in mapping for b in buffers):
                return replace(node, buffers=tuple(mapping.get(b, b) for b in buffers))
            case HostCall(inputs=inputs, outputs=outputs):
                ins = tuple(mapping.get(b, b) for b in inputs)
                return replace(node, inputs=ins, outputs=tuple(mapping.get(b, b) for b in outputs))
            case _:
                return None

    return rewrite_stmts(map_exprs(stmt, lambda e: expr_visit.rewrite(e, load)), target)


def map_places(
    stmt: Stmt,
    mapping: Mapping[Buffer, Buffer],
    place: Callable[[Buffer, tuple[Expr, ...]], tuple[Expr, ...]],
) -> Stmt:
    """`stmt` with buffers replaced wherever they are loaded, stored or accumulated: the element of
    one at some indices is that of the other at `place` of these.

    Requires: level NEST; the buffers that one statement accumulates are replaced together.
    """

    def load(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer not in mapping:
            return None
        own = node.buffer
        return replace(node, buffer=mapping[own], indices=place(own, node.indices))

    def target(node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer=own) if own in mapping:
                return replace(node, buffer=mapping[own], indices=place(own, node.indices))
            case Accumulate(buffers=(own, *_) as all_) if own in mapping:
                places = place(own, node.indices)
                return replace(node, buffers=tuple(mapping[b] for b in all_), indices=places)
            case _:
                return None

    return rewrite_stmts(map_exprs(stmt, lambda e: expr_visit.rewrite(e, load)), target)


def buffers_read(stmt: Stmt) -> tuple[Buffer, ...]:
    """Buffers loaded or accumulated into, each once, in program order."""
    found: dict[Buffer, None] = {}
    for node in walk_stmts(stmt):
        for expr in expr_visit.walk(*own_exprs(node)):
            if isinstance(expr, Load):
                found[expr.buffer] = None
        if isinstance(node, Accumulate):
            found.update(dict.fromkeys(node.buffers))
        elif isinstance(node, Dot):
            found[node.buffer] = None
        elif isinstance(node, (Finish, Meet)):
            found[node.counter] = None
        elif isinstance(node, HostCall):
            found.update(dict.fromkeys(node.inputs))
    return tuple(found)


def buffers_written(stmt: Stmt) -> tuple[Buffer, ...]:
    """Buffers stored or accumulated into, each once, in program order."""
    found: dict[Buffer, None] = {}
    for node in walk_stmts(stmt):
        match node:
            case Store(buffer=buffer) | Dot(buffer=buffer):
                found[buffer] = None
            case Finish(counter=buffer) | Meet(counter=buffer):
                found[buffer] = None
            case Accumulate(buffers=buffers) | HostCall(outputs=buffers):
                found.update(dict.fromkeys(buffers))
            case _:
                pass
    return tuple(found)


def _is(a: object, b: object) -> bool:
    return a is b
