"""The golden format itself."""

from __future__ import annotations

from collections.abc import Callable

from irs import argmax, binary, buffer, compare, float32, func, load, loop, module, reducer, tile

from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Cast, Const, Expr, IfThenElse, Select, Unary, UnaryOp, Var
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Dot,
    Finish,
    For,
    Func,
    Guard,
    Launch,
    LoopKind,
    Meet,
    Precision,
    Scope,
    Seq,
    Store,
    TileAxis,
)
from tedsl.ir.printer import print_expr, print_func, print_module, print_stmt

Golden = Callable[..., None]


def test_nest(golden: Golden) -> None:
    n = Var("n", lower=0)
    a, b = buffer("A", n, 64), buffer("B", n)
    i, j, again = Axis("i"), Axis("j"), Axis("i")
    body = Seq(
        (
            loop(i, n, Store(b, (i,), float32(0.0)), LoopKind.PARALLEL),
            loop(
                again,
                n,
                loop(
                    j,
                    64,
                    Guard(
                        compare("<", binary("+", binary("*", again, 64), j), n),
                        Accumulate((b,), (again,), reducer("+"), (load(a, again, j),)),
                    ),
                ),
            ),
        )
    )
    golden(print_module(module((a,), (b,), body, sizes=(n,))))


def test_tile(golden: Golden) -> None:
    a, b, c = buffer("A", 100, 70), buffer("B", 70, 64), buffer("C", 100, 64)
    acc = buffer("acc", 16, 64, scope=Scope.LOCAL)
    io, ii, ji, ko, ki = (Axis(name) for name in ("io", "ii", "ji", "ko", "ki"))
    row, k = binary("+", binary("*", io, 16), ii), binary("+", binary("*", ko, 32), ki)
    row_mask, k_mask = compare("<", row, 100), compare("<", k, 70)
    dot = Dot(
        acc,
        (ii, ji),
        load(a, row, k, mask=binary("&", row_mask, k_mask)),
        load(b, k, ji, mask=k_mask),
        (),
        TileAxis(ii, 16),
        TileAxis(ji, 64),
        TileAxis(ki, 32),
        Precision.TF32,
    )
    out = tile((ii, 16), (ji, 64))
    body = Seq(
        (
            Store(acc, (ii, ji), float32(0.0), None, out),
            For(ko, Const(3, DType.int32), LoopKind.SERIAL, dot, num_stages=3),
            Store(c, (row, ji), load(acc, ii, ji), row_mask, out),
        )
    )
    grid = loop(io, 7, Allocate(acc, body), LoopKind.PROGRAM)
    golden(print_func(Func("mm", (a, b, c), (), grid, Launch(num_warps=4))))


def test_tuple_reducer() -> None:
    x, v, p = buffer("X", 8), buffer("V"), buffer("P", dtype=DType.int32)
    i = Axis("i")
    stmt = Accumulate((v, p), (), argmax(), (load(x, i), i), None, tile((i, 8)))
    assert print_stmt(stmt) == "tile (i:8): (V[], P[]) argmax= (X[i], i)"


def test_expressions() -> None:
    i, j, x = Axis("i"), Axis("j"), Var("x", DType.float32)
    texts: list[tuple[Expr, str]] = [
        (binary("*", binary("+", i, j), 4), "(i + j) * 4"),
        (binary("-", i, binary("-", j, 1)), "i - (j - 1)"),
        (binary("%", binary("//", i, 4), 2), "i // 4 % 2"),
        (binary("min", i, binary("*", j, 2)), "min(i, j * 2)"),
        (binary("&", compare("<", i, 4), compare(">=", j, 1)), "(i < 4) & (j >= 1)"),
        (Unary(UnaryOp.NEG, binary("+", x, x)), "-(x + x)"),
        (Unary(UnaryOp.EXP, x), "exp(x)"),
        (Cast(i, DType.float32), "float32(i)"),
        (Const(-1, DType.int64), "int64(-1)"),
        (binary("-", i, Const(-1, DType.int32)), "i - -1"),
        (Select(compare("==", i, 0), x, x), "select(i == 0, x, x)"),
        (IfThenElse(compare("==", i, 0), x, x), "if_then_else(i == 0, x, x)"),
    ]
    for expr, text in texts:
        assert print_expr(expr) == text


def test_equal_names_are_told_apart_by_first_use() -> None:
    first, second, third = Axis("i"), Axis("i"), Axis("i_1")
    assert print_expr(binary("+", binary("+", second, first), third)) == "i + i_1 + i_1_1"
    assert print_expr(binary("+", first, first)) == "i + i"


def test_the_last_of_several_programs() -> None:
    count, i = buffer("count", 8, dtype=DType.int32), Axis("i")
    stmt = Finish(count, (i,), binary("+", i, 4), Store(buffer("B", 8), (i,), float32(0.0)))
    assert print_stmt(stmt) == "last of i + 4 at count[i]:\n  B[i] = 0.0"
    assert print_stmt(Meet(count, (i,), binary("+", i, 4))) == "meet i + 4 at count[i]"
    text = print_module(module((), (), Seq(()), counters=(count,)))
    assert "  counter count: int32[8]\n" in text


def test_empty_sequence() -> None:
    assert print_func(func("f", (), Seq(()))) == "func f():\n  pass\n"
