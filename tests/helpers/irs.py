"""Small builders for hand-written loop IR."""

from __future__ import annotations

from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Reducer,
    Select,
    Var,
)
from tedsl.ir.nodes import Buffer, For, Func, Load, LoopKind, Module, Scope, Stmt, TileAxis


def int32(value: int) -> Const:
    return Const(value, DType.int32)


def float32(value: float) -> Const:
    return Const(value, DType.float32)


def binary(op: str, a: Expr, b: Expr | int) -> Binary:
    return Binary(BinaryOp(op), a, Const(b, a.dtype) if isinstance(b, int) else b)


def compare(op: str, a: Expr, b: Expr | int) -> Compare:
    return Compare(CompareOp(op), a, Const(b, a.dtype) if isinstance(b, int) else b)


def buffer(
    name: str, *shape: int | Expr, dtype: DType = DType.float32, scope: Scope = Scope.GLOBAL
) -> Buffer:
    return Buffer(name, dtype, tuple(int32(n) if isinstance(n, int) else n for n in shape), scope)


def load(source: Buffer, *indices: Expr, mask: Expr | None = None) -> Load:
    return Load(source, indices, mask)


def loop(
    axis: Axis, extent: int | Expr, body: Stmt, kind: LoopKind = LoopKind.SERIAL, program: int = 0
) -> For:
    return For(axis, int32(extent) if isinstance(extent, int) else extent, kind, body, program)


def tile(*axes: tuple[Axis, int]) -> tuple[TileAxis, ...]:
    return tuple(TileAxis(axis, extent) for axis, extent in axes)


def reducer(op: str, dtype: DType = DType.float32, identity: float = 0.0) -> Reducer:
    lhs, rhs = Var("lhs", dtype), Var("rhs", dtype)
    names = {"+": "sum", "*": "prod"}
    combine = (Binary(BinaryOp(op), lhs, rhs),)
    return Reducer(names.get(op, op), (lhs,), (rhs,), combine, (Const(identity, dtype),))


def argmax(dtype: DType = DType.float32) -> Reducer:
    """(value, index) of the largest value; of equal ones, the smaller index."""
    lhs = (Var("lhs_value", dtype), Var("lhs_index"))
    rhs = (Var("rhs_value", dtype), Var("rhs_index"))
    better = Compare(CompareOp.GT, lhs[0], rhs[0])
    equal = Compare(CompareOp.EQ, lhs[0], rhs[0])
    first = Binary(BinaryOp.AND, equal, Compare(CompareOp.LT, lhs[1], rhs[1]))
    keep = Binary(BinaryOp.OR, better, first)
    combine = tuple(Select(keep, a, b) for a, b in zip(lhs, rhs, strict=True))
    identity = (Const(dtype.info.lowest, dtype), int32(2**31 - 1))
    return Reducer("argmax", lhs, rhs, combine, identity)


def func(name: str, params: tuple[Buffer, ...], body: Stmt, sizes: tuple[Var, ...] = ()) -> Func:
    return Func(name, params, sizes, body)


def module(
    inputs: tuple[Buffer, ...],
    outputs: tuple[Buffer, ...],
    body: Stmt,
    sizes: tuple[Var, ...] = (),
    workspaces: tuple[Buffer, ...] = (),
    counters: tuple[Buffer, ...] = (),
) -> Module:
    """A module of one kernel over all buffers."""
    kernel = func("main", (*inputs, *outputs, *workspaces, *counters), body, sizes)
    return Module("m", inputs, outputs, workspaces, sizes, (kernel,), counters=counters)
