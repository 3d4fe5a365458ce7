"""Hand-built loop IR modules and calls for the tests of the CPU backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tedsl.backends.cpu import CpuProgram, compile_module
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Expr, Reducer, Unary, UnaryOp, Var
from tedsl.ir.nodes import Buffer, For, Func, Load, LoopKind, Module, Scope, Stmt, Store, TileAxis
from tedsl.target import Target

f32, i32 = DType.float32, DType.int32


def c(value: int) -> Const:
    return Const(value, i32)


def f(value: float, dtype: DType = f32) -> Const:
    return Const(float(value), dtype)


def op(name: str, a: Expr, b: Expr) -> Binary:
    return Binary(BinaryOp(name), a, b)


def un(name: str, a: Expr) -> Unary:
    return Unary(UnaryOp(name), a)


def add(a: Expr, b: Expr) -> Binary:
    return op("+", a, b)


def mul(a: Expr, b: Expr) -> Binary:
    return op("*", a, b)


def reducer(name: str, identity: bool | int | float, dtype: DType = f32) -> Reducer:
    a, b = Var("a", dtype), Var("b", dtype)
    return Reducer(name, (a,), (b,), (op(name, a, b),), (Const(identity, dtype),))


def buffer(
    name: str, shape: Sequence[int | Expr], dtype: DType = f32, scope: Scope = Scope.GLOBAL
) -> Buffer:
    return Buffer(name, dtype, tuple(c(s) if isinstance(s, int) else s for s in shape), scope)


def local(name: str, shape: Sequence[int], dtype: DType = f32) -> Buffer:
    return buffer(name, shape, dtype, Scope.LOCAL)


def module(
    inputs: Sequence[Buffer], outputs: Sequence[Buffer], body: Stmt, sizes: Sequence[Var] = ()
) -> Module:
    func = Func("kernel", (*inputs, *outputs), tuple(sizes), body)
    return Module("m", tuple(inputs), tuple(outputs), (), tuple(sizes), (func,))


def build(m: Module) -> CpuProgram:
    return compile_module(m, Target.parse("cpu"))


def call(program: CpuProgram, *arrays: np.ndarray, sizes: Sequence[int | float] = ()) -> None:
    program.entry([a.ctypes.data for a in arrays], sizes)


def elementwise(
    n: int,
    dtypes: Sequence[DType],
    out: DType,
    make: Callable[..., Expr],
    kind: LoopKind | None = None,
) -> CpuProgram:
    """`out[i] = make(in0[i], in1[i], ...)` over one tile of n elements, or a loop of `kind`."""
    axis = Axis("i")
    inputs = [buffer(f"x{k}", (n,), d) for k, d in enumerate(dtypes)]
    result = buffer("y", (n,), out)
    value = make(*(Load(b, (axis,)) for b in inputs))
    if kind is not None:
        body: Stmt = For(axis, c(n), kind, Store(result, (axis,), value))
    else:
        body = Store(result, (axis,), value, None, (TileAxis(axis, n),))
    return build(module(inputs, [result], body))
