"""Each rule of each level: broken on purpose, and the message it gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from irs import argmax, binary, buffer, compare, float32, func, int32, load, loop, module, tile
from irs import reducer as reducer_

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.nodes import Axis, Const, Expr, IfThenElse, Select, TensorRead, Var
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Finish,
    For,
    Func,
    Guard,
    Level,
    LoopKind,
    Meet,
    Module,
    Scope,
    Seq,
    Stmt,
    Store,
    TileAxis,
)
from tedsl.ir.verify import verify
from tedsl.tensor.tensor import PlaceholderOp

N = Var("n", lower=0)
A, B = buffer("A", 8), buffer("B", 8)
II, JJ = Axis("i"), Axis("j")
TRUE = Const(True, DType.bool)
ZERO = float32(0.0)


def check(body: Stmt, level: Level = Level.NEST, params: tuple[Buffer, ...] = (A, B)) -> None:
    verify(func("f", params, body, (N,)), level)


def refused(body: Stmt, match: str, level: Level = Level.NEST) -> None:
    with pytest.raises(InternalError, match=match):
        check(body, level)


def store(index: Expr, value: Expr = ZERO) -> Store:
    return Store(B, (index,), value)


def test_good_ir_of_both_levels_passes() -> None:
    check(loop(II, 8, Guard(compare("<", II, N), store(II, load(A, II))), LoopKind.VECTORIZED))
    mask = compare("<", II, N)
    check(Store(B, (II,), load(A, II, mask=mask), mask, tile((II, 8))), Level.TILE)
    check(Accumulate((B,), (int32(0),), reducer_("+"), (ZERO,), None, tile((II, 8))), Level.TILE)


def test_axes() -> None:
    refused(store(II), r"axis 'i' is not bound here")
    refused(loop(II, 8, loop(II, 8, store(II))), r"axis 'i' is bound twice")
    refused(Seq((loop(II, 8, store(II)), loop(II, 8, store(II)))), r"axis 'i' is bound twice")
    refused(Seq((loop(II, 8, store(II)), store(II))), r"axis 'i' is not bound here")
    refused(loop(II, II, store(II)), r"axis 'i' is not bound here")
    refused(store(Var("m")), r"size 'm' is not listed")


def test_types() -> None:
    one = Const(1, DType.int64)
    refused(loop(II, 8, store(II, II)), r"a int32 value is stored into float32 buffer 'B'")
    refused(store(ZERO), r"an index of 'B' is not an integer")
    refused(loop(II, 8, store(binary("+", II, one))), r"operands are int32 and int64")
    refused(loop(II, 8, store(binary("/", II, II))), r"/ of int32 operands")
    refused(Guard(II, store(int32(0))), r"not bound")
    refused(Guard(int32(1), store(int32(0))), r"condition of a guard is not bool")
    refused(loop(II, ZERO, store(II)), r"bound of a loop is not an integer")
    refused(store(int32(0), Select(int32(1), ZERO, ZERO)), r"condition of a choice is not bool")
    refused(store(Select(TRUE, int32(0), one)), r"choices are int32 and int64")
    refused(store(Const(2**40, DType.int32)), r"1099511627776 does not fit int32")
    refused(store(Const(0.5, DType.int32)), r"0.5 is not a value of int32")


def test_buffers() -> None:
    other = buffer("other", 8)
    local = buffer("local", N, scope=Scope.LOCAL)
    fixed = buffer("fixed", 4, scope=Scope.LOCAL)
    refused(Store(other, (int32(0),), ZERO), r"'other' is neither a parameter nor allocated")
    refused(store(int32(0), load(other, int32(0))), r"'other' is neither a parameter")
    refused(Store(B, (), ZERO), r"0 indices for buffer 'B' of rank 1")
    refused(store(int32(0), load(A)), r"0 indices for buffer 'A' of rank 1")
    refused(Allocate(local, Seq(())), r"local buffer 'local' has no constant shape")
    refused(Allocate(fixed, Allocate(fixed, Seq(()))), r"'fixed' is allocated twice")
    with pytest.raises(InternalError, match=r"parameter 'fixed' is not GLOBAL"):
        check(Seq(()), params=(fixed,))
    stray = Module("m", (A,), (), (), (), (func("f", (A, B), Seq(())),))
    with pytest.raises(InternalError, match=r"parameter 'B' of f is no buffer of the module"):
        verify(stray, Level.NEST)
    sized = Module("m", (A,), (), (), (), (Func("f", (A,), (N,), Seq(())),))
    with pytest.raises(InternalError, match=r"size 'n' of f is no size of the module"):
        verify(sized, Level.NEST)
    verify(module((A,), (B,), store(int32(0)), (N,)), Level.NEST)


def test_levels() -> None:
    tiled = Store(B, (II,), ZERO, None, tile((II, 8)))
    refused(tiled, r"tile axes at NEST level")
    refused(Store(B, (int32(0),), ZERO, TRUE), r"a mask at NEST level")
    refused(store(int32(0), load(A, int32(0), mask=TRUE)), r"a mask at NEST level")
    refused(loop(II, 8, store(II), LoopKind.VECTORIZED), r"VECTORIZED loop", Level.TILE)
    choice = IfThenElse(TRUE, ZERO, ZERO)
    check(store(int32(0), choice))
    refused(store(int32(0), choice), r"an IfThenElse at TILE level", Level.TILE)
    read = TensorRead(PlaceholderOp("T", (), DType.float32).outputs[0], ())
    refused(store(int32(0), read), r"a TensorRead in the loop IR")


def test_tiles() -> None:
    def refuse(stmt: Stmt, match: str) -> None:
        refused(stmt, match, Level.TILE)

    refuse(Store(B, (II,), ZERO, None, tile((II, 0))), r"tile axis 'i' has extent 0")
    refuse(Store(B, (II,), ZERO, int32(1), tile((II, 8))), r"a mask is not bool")
    refuse(Store(B, (II,), ZERO, None, tile((II, 8), (JJ, 2))), r"tile axis 'j' write the same")
    refuse(Store(B, (II,), ZERO, None, tile((II, 8), (II, 8))), r"tile axis occurs twice")
    refuse(loop(II, 8, Store(B, (II,), ZERO, None, tile((II, 8)))), r"is also a loop around it")
    pinned = Store(B, (II,), ZERO, compare("==", JJ, 0), tile((II, 8), (JJ, 2)))
    check(pinned, Level.TILE)


def test_accumulate_and_dot() -> None:
    place = (int32(0),)
    refused(Accumulate((B,), place, argmax(), (ZERO,)), r"1 buffers and 1 values for reducer")
    wide = reducer_("+", DType.float64)
    refused(Accumulate((B,), place, wide, (ZERO,)), r"'sum' makes float64 for float32 buffer 'B'")
    k = Axis("k")
    lhs = load(A, binary("+", II, k))
    row, column, contract = TileAxis(II, 4), TileAxis(JJ, 4), TileAxis(k, 4)
    good = Dot(B, (binary("+", II, JJ),), lhs, load(A, k), (), row, column, contract)
    check(good, Level.TILE)
    bad = Dot(B, (binary("+", II, JJ),), lhs, lhs, (), row, column, contract)
    refused(bad, r"the rhs of a dot depends on i", Level.TILE)


def test_loops_without_a_second_iteration_do_not_race() -> None:
    """Where a size is known to be 1 or less: by an assumption, by the condition of a version, or
    by one around the update."""
    fold = Accumulate((B,), (int32(0),), reducer_("+"), (ZERO,))
    grid, small, race = LoopKind.PROGRAM, compare("<", N, 2), r"iterations of 'i' race for one"
    ran = func("f", (A, B), loop(II, N, fold, grid), (N,))
    verify(replace(ran, assumptions=(small,)), Level.NEST)
    verify(replace(ran, when=small), Level.NEST)
    check(loop(II, N, Guard(small, fold), grid))
    refused(loop(II, N, fold, grid), race)
    with pytest.raises(InternalError, match=race):
        verify(replace(ran, when=compare("<", N, 3)), Level.NEST)


def test_message_names_the_statement() -> None:
    with pytest.raises(InternalError, match=r"(?s)bug in tedsl.*verify f.*B\[i\] = 0.0"):
        check(store(II))


def test_the_last_of_several_programs() -> None:
    count, wide = buffer("count", 8, dtype=DType.int32), buffer("wide", 8, dtype=DType.int64)
    grid = LoopKind.PROGRAM

    def last(body: Stmt, counter: Buffer = count) -> Finish:
        return Finish(counter, (II,), int32(4), body)

    def both(body: Stmt) -> Stmt:
        return loop(II, 8, loop(JJ, 4, body, grid, 1), grid)

    def bad(body: Stmt, match: str) -> None:
        with pytest.raises(InternalError, match=match):
            check(body, params=(A, B, count, wide))

    check(both(last(store(II))), params=(A, B, count))
    check(both(Guard(compare("<", II, 3), last(store(II)))), params=(A, B, count))
    bad(
        both(Guard(compare("<", load(A, II), Const(3.0, DType.float32)), last(store(II)))),
        r"not at all, or again",
    )
    bad(both(last(store(JJ))), r"axis 'j' is not bound here")
    bad(both(last(store(II), wide)), r"'wide' is no counter")
    bad(both(Guard(compare("<", JJ, 3), last(store(II)))), r"not at all, or again and again")
    bad(both(loop(Axis("k"), 2, last(store(II)))), r"not at all, or again and again")
    bad(both(last(last(store(II)))), r"not at all, or again and again")
    bad(both(Finish(count, (), int32(4), store(II))), r"0 indices for buffer 'count' of rank 1")
    bad(both(Finish(count, (II,), ZERO, store(II))), r"count of a finish is not an integer")
    bad(both(last(Store(count, (II,), int32(0)))), r"'count' is neither a parameter nor allocated")
    with pytest.raises(InternalError, match=r"'count' is no counter"):
        check(both(last(store(II))), params=(A, B))
    fold = Accumulate((B,), (int32(0),), reducer_("+"), (ZERO,))
    bad(both(last(fold)), r"iterations of 'i' race for one element")
    check(loop(JJ, 4, Finish(count, (int32(0),), int32(4), fold), grid), params=(B, count))
    counted = module((A,), (B,), both(last(store(II))), counters=(count,))
    verify(counted, Level.NEST)
    as_space = module((A,), (B,), both(last(store(II))), workspaces=(count,))
    with pytest.raises(InternalError, match=r"'count' is no counter"):
        verify(as_space, Level.NEST)


def test_programs_that_meet() -> None:
    count, wide = buffer("count", 8, dtype=DType.int32), buffer("wide", 8, dtype=DType.int64)
    grid, turn = LoopKind.PROGRAM, Axis("turn")

    def meet(counter: Buffer = count) -> Stmt:
        return Meet(counter, (II,), int32(4))

    def both(body: Stmt) -> Stmt:
        return loop(II, 8, loop(JJ, 4, body, grid, 1), grid)

    def bad(body: Stmt, match: str) -> None:
        with pytest.raises(InternalError, match=match):
            check(body, params=(A, B, count, wide))

    check(both(meet()), params=(A, B, count))
    check(both(loop(turn, 3, Guard(compare("<", II, turn), meet()))), params=(A, B, count))
    bad(both(meet(wide)), r"'wide' is no counter")
    bad(both(Meet(count, (II,), ZERO)), r"count of a meeting is not an integer")
    bad(both(Meet(count, (), int32(4))), r"0 indices for buffer 'count' of rank 1")
    bad(both(Guard(compare("<", JJ, 3), meet())), r"only some iterations of 'j' come")
    bad(both(For(turn, JJ, LoopKind.SERIAL, meet())), r"only some iterations of 'j' come")
    bad(loop(II, 8, meet(), grid), r"every program meets itself alone")
