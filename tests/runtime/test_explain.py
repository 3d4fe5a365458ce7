"""Costs counted from the loop IR."""

from __future__ import annotations

from irs import buffer, float32, int32, load, loop, tile

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Expr, Reducer, Unary, UnaryOp, Var
from tedsl.ir.nodes import Accumulate, Allocate, Buffer, Dot, Func, Module, Scope, Seq, Stmt, Store
from tedsl.runtime.explain import Explanation, explain
from tedsl.target import Target

CPU = Target.parse("cpu")


def add(a: Expr, b: Expr) -> Expr:
    return Binary(BinaryOp.ADD, a, b)


def total(dtype: DType = DType.float32) -> Reducer:
    lhs, rhs = Var("lhs", dtype), Var("rhs", dtype)
    return Reducer("sum", (lhs,), (rhs,), (add(lhs, rhs),), (float32(0.0),))


def explained(inputs: list[Buffer], outputs: list[Buffer], body: Stmt) -> Explanation:
    func = Func("f", (*inputs, *outputs), (), body)
    return explain(Module("m", tuple(inputs), tuple(outputs), (), (), (func,)), CPU, {})


def test_a_tile_counts_each_operation_over_the_axes_it_has() -> None:
    a, b, c = buffer("A", 8, 16), buffer("B", 16), buffer("C", 8, 16)
    i, j = Axis("i"), Axis("j")
    row = Unary(UnaryOp.EXP, load(b, j))  # 16 operations
    value = add(load(a, i, j), row)  # 8 x 16
    told = explained([a, b], [c], Store(c, (i, j), value, tile=tile((i, 8), (j, 16))))
    assert told.flops == 16 + 8 * 16
    assert told.kernels[0].reads == {"A": 512, "B": 64}
    assert told.kernels[0].writes == {"C": 512}
    assert told.nbytes == told.least_bytes == 1088


def test_loops_multiply_and_a_buffer_counts_once() -> None:
    a, c = buffer("A", 10, 4), buffer("C", 10)
    acc = Buffer("acc", DType.float32, (), Scope.LOCAL)
    i, k = Axis("i"), Axis("k")
    square = Binary(BinaryOp.MUL, load(a, i, k), load(a, i, k))
    body = Seq((
        Store(acc, (), float32(0.0)),
        loop(k, 4, Accumulate((acc,), (), total(), (square,))),
        Store(c, (i,), load(acc)),
    ))  # fmt: skip
    told = explained([a], [c], loop(i, 10, Allocate(acc, body)))
    assert told.flops == 10 * 4 * 2
    assert told.kernels[0].stages == ("acc", "C")
    assert told.kernels[0].local_bytes == 4
    assert told.nbytes == 160 + 40
    assert str(told).splitlines()[0] == "1 kernel for cpu: 200 B moved, 80 flop"


def test_a_dot_is_two_operations_per_point() -> None:
    a, b = buffer("A", 16, 32), buffer("B", 32, 64)
    acc = buffer("C", 16, 64)
    i, j, k = (tile((Axis(name), n))[0] for name, n in (("i", 16), ("j", 64), ("k", 32)))
    dot = Dot(acc, (i.axis, j.axis), load(a, i.axis, k.axis), load(b, k.axis, j.axis), (), i, j, k)
    told = explained([a, b], [acc], dot)
    assert told.flops == 2 * 16 * 64 * 32
    assert told.kernels[0].reads["C"] == told.kernels[0].writes["C"] == 4096


def test_integer_arithmetic_is_no_flop() -> None:
    a, c = buffer("A", 4, dtype=DType.int32), buffer("C", 4, dtype=DType.int32)
    i = Axis("i")
    told = explained([a], [c], loop(i, 4, Store(c, (i,), add(load(a, i), int32(1)))))
    assert told.flops == 0
    assert told.kernels[0].nbytes == 32


def test_two_versions_of_a_parallel_body_are_one() -> None:
    source = te.placeholder((100,), name="source")
    result = te.compute((100,), lambda i: source[i] + 1.0, name="result")
    s = te.create_schedule(result)
    outer, inner = s[result].split(result.op.axis[0], 32)
    s[result].parallel(outer)
    s[result].vectorize(inner)
    told = explain(te.lower(s, "cpu"), CPU, {})
    assert told.flops == 4 * 32  # the last tile has idle lanes
