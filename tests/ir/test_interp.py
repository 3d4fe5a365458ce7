"""The interpreter against numpy, and the accesses it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from irs import argmax, binary, buffer, compare, float32, int32, load, loop, module, reducer, tile

from tedsl.dtypes import SAME_BITS, DType
from tedsl.errors import InternalError
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    IfThenElse,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.ir.interp import OutOfBounds, Unwritten, run
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Finish,
    Guard,
    LoopKind,
    Meet,
    Scope,
    Seq,
    Stmt,
    Store,
    TileAxis,
)
from tedsl.ir.numerics import numpy_dtype, unary

Array = npt.NDArray[Any]
II, JJ, KK = Axis("i"), Axis("j"), Axis("k")


def out(
    body: Stmt, result: Buffer, inputs: dict[Buffer, Array], sizes: dict[Var, float] | None = None
) -> Array:
    program = module(tuple(inputs), (result,), body, tuple(sizes or ()))
    return run(program, inputs, sizes)[result]


def ramp(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("m,n", [(3, 5), (0, 5), (3, 0), (1, 1)])
def test_row_sum_with_symbolic_sizes(m: int, n: int) -> None:
    vm, vn = Var("m", lower=0), Var("n", lower=0)
    a, b = buffer("A", vm, vn), buffer("B", vm)
    body = Seq(
        (
            loop(II, vm, Store(b, (II,), float32(0.0)), LoopKind.PROGRAM),
            loop(JJ, vm, loop(KK, vn, Accumulate((b,), (JJ,), reducer("+"), (load(a, JJ, KK),)))),
        )
    )
    x = ramp(m, n)
    np.testing.assert_array_equal(out(body, b, {a: x}, {vm: m, vn: n}), x.sum(1))


def test_tile_reads_before_it_writes() -> None:
    b = buffer("B", 8)
    fill = Store(b, (II,), Cast(II, DType.float32), None, tile((II, 8)))
    flipped = load(b, binary("-", int32(7), JJ))
    body = Seq((fill, Store(b, (JJ,), flipped, None, tile((JJ, 8)))))
    np.testing.assert_array_equal(out(body, b, {}), ramp(8)[::-1])


def test_masked_tile() -> None:
    a, b = buffer("A", 5), buffer("B", 5)
    mask = compare("<", II, 5)
    body = Store(b, (II,), load(a, II, mask=mask), mask, tile((II, 8)))
    np.testing.assert_array_equal(out(body, b, {a: ramp(5)}), ramp(5))


def test_masked_load_is_zero() -> None:
    a, b = buffer("A", 5), buffer("B", 8)
    value = load(a, II, mask=compare("<", II, 5))
    body = Store(b, (II,), value, None, tile((II, 8)))
    assert out(body, b, {a: ramp(5) + 1}).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


@pytest.mark.parametrize("op", ["+", "*", "min", "max"])
@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_tile_reduction_over_a_missing_axis(op: str, n: int) -> None:
    a, b = buffer("A", 4, n), buffer("B", 4)
    x = np.random.default_rng(n).integers(1, 3, (4, n)).astype(np.float32)
    start = Store(b, (II,), load(a, II, int32(0)), None, tile((II, 4)))
    axes = tile((II, 4), (JJ, n))
    rest = Accumulate((b,), (II,), reducer(op), (load(a, II, JJ),), compare(">=", JJ, 1), axes)
    fold = {"+": np.sum, "*": np.prod, "min": np.min, "max": np.max}[op]
    np.testing.assert_array_equal(out(Seq((start, rest)), b, {a: x}), fold(x, axis=1))


def test_tuple_reducer_over_a_tile() -> None:
    a, v, p = buffer("A", 3, 10), buffer("V", 3), buffer("P", 3, dtype=DType.int32)
    x = np.random.default_rng(0).integers(0, 5, (3, 10)).astype(np.float32)
    axes = tile((II, 3), (JJ, 10))
    body = Seq(
        (
            Store(v, (II,), float32(float("-inf")), None, tile((II, 3))),
            Store(p, (II,), int32(99), None, tile((II, 3))),
            Accumulate((v, p), (II,), argmax(), (load(a, II, JJ), JJ), None, axes),
        )
    )
    result = run(module((a,), (v, p), body), {a: x})
    assert result[p].tolist() == x.argmax(1).tolist()
    assert result[v].tolist() == x.max(1).tolist()


def test_accumulate_into_equal_places() -> None:
    a, b = buffer("A", 9, dtype=DType.int32), buffer("B", 3, dtype=DType.int32)
    zero = Store(b, (II,), int32(0), None, tile((II, 3)))
    add = reducer("+", DType.int32, 0)
    count = Accumulate((b,), (load(a, JJ),), add, (int32(1),), None, tile((JJ, 9)))
    x = np.array([0, 2, 2, 1, 2, 0, 2, 2, 0], np.int32)
    assert out(Seq((zero, count)), b, {a: x}).tolist() == [3, 1, 5]


def test_dot_with_batch_and_swapped_operands() -> None:
    a, b, c = buffer("A", 2, 5, 3), buffer("B", 4, 5), buffer("C", 2, 4, 3)
    n, m = Axis("n"), Axis("m")
    dims = TileAxis(m, 3), TileAxis(JJ, 4), TileAxis(KK, 5)
    zero = Store(c, (n, JJ, m), float32(1.0), None, tile((n, 2), (JJ, 4), (m, 3)))
    dot = Dot(c, (n, JJ, m), load(a, n, KK, m), load(b, JJ, KK), (TileAxis(n, 2),), *dims)
    x, y = ramp(2, 5, 3), ramp(4, 5)
    expected = 1 + np.einsum("nkm,jk->njm", x, y)
    np.testing.assert_array_equal(out(Seq((zero, dot)), c, {a: x, b: y}), expected)


def test_every_access_is_checked() -> None:
    a, b = buffer("A", 4), buffer("B", 4)
    x = {a: ramp(4)}
    past = binary("+", II, 1)
    for body, match in (
        (loop(II, 4, Store(b, (II,), load(a, past))), r"read outside the buffer: A\[4\]"),
        (loop(II, 4, Store(b, (past,), load(a, II))), r"store outside the buffer: B\[4\]"),
        (Store(b, (II,), load(a, past), None, tile((II, 4))), r"read outside the buffer: A\[4\]"),
        (Store(b, (past,), load(a, II), None, tile((II, 4))), r"store outside the buffer: B\[4\]"),
        (Store(b, (int32(-1),), float32(0.0)), r"store outside the buffer: B\[-1\]"),
    ):
        with pytest.raises(OutOfBounds, match=match) as caught:
            out(body, b, x)
        assert caught.value.shape == (4,)


def test_reads_of_memory_nobody_wrote() -> None:
    b = buffer("B", 4)
    with pytest.raises(Unwritten, match=r"read of an element never written: B\[0\]"):
        out(loop(II, 4, Store(b, (II,), load(b, II))), b, {})
    with pytest.raises(Unwritten, match=r"read of an element never written: B\[0\]"):
        out(Store(b, (II,), load(b, II), None, tile((II, 4))), b, {})
    with pytest.raises(Unwritten, match=r"accumulation into an element never written: B\[2\]"):
        out(Accumulate((b,), (int32(2),), reducer("+"), (float32(1.0),)), b, {})


@pytest.mark.parametrize("tiled", [False, True])
def test_branches_that_are_discarded_may_read_what_nobody_wrote(tiled: bool) -> None:
    """Also of what is shared with a branch that counts, or with what is read in any case."""
    b, first = buffer("B", 5), compare("<", II, 1)

    def ran(value: Expr) -> Array:
        leaf = Store(b, (binary("-", int32(4), II),), value, None, tile((II, 3)) if tiled else ())
        body = leaf if tiled else loop(II, 3, leaf)
        last = Store(b, (int32(1),), float32(0.0))
        return out(Seq((Store(b, (int32(0),), float32(3.0)), body, last)), b, {})

    read = load(b, II)
    np.testing.assert_array_equal(ran(Select(first, read, float32(1.0))), [3, 0, 1, 1, 3])
    twice = Select(first, binary("+", read, read), float32(1.0))
    np.testing.assert_array_equal(ran(twice), [3, 0, 1, 1, 6])
    for wrong in (Select(first, float32(1.0), read), binary("+", twice, read)):
        with pytest.raises(Unwritten, match=r"never written: B\[1\]"):
            ran(wrong)


def test_local_memory_nobody_wrote_is_poison() -> None:
    b, t = buffer("B", 2, dtype=DType.int32), buffer("t", 2, dtype=DType.int32, scope=Scope.LOCAL)
    kept = Select(compare("==", II, 0), int32(5), load(t, II))
    result = out(Allocate(t, loop(II, 2, Store(b, (II,), kept))), b, {})
    assert result[0] == 5 and result[1] == -1515870811


def test_memory_nobody_wrote_is_nan() -> None:
    b = buffer("B", 4)
    result = out(Store(b, (int32(1),), float32(2.0)), b, {})
    assert np.isnan(result[[0, 2, 3]]).all() and result[1] == 2


def test_allocation_is_fresh_each_time() -> None:
    b, t = buffer("B", 4), buffer("t", 1, scope=Scope.LOCAL)
    first = Guard(compare("==", II, 0), Store(t, (int32(0),), float32(1.0)))
    body = loop(II, 4, Allocate(t, Seq((first, Store(b, (II,), load(t, int32(0)))))))
    assert out(body, b, {})[0] == 1 and np.isnan(out(body, b, {})[1:]).all()


def test_two_points_may_not_store_one_element() -> None:
    b = buffer("B", 4)
    body = Store(b, (binary("//", II, 2),), float32(0.0), None, tile((II, 8)))
    with pytest.raises(InternalError, match=r"two points of a tile store one element of 'B'"):
        out(body, b, {})


def test_arguments() -> None:
    n = Var("n")
    a, b = buffer("A", n), buffer("B", n)
    program = module((a,), (b,), loop(II, n, Store(b, (II,), load(a, II))), (n,))
    with pytest.raises(InternalError, match=r"no value for size 'n'"):
        run(program, {a: ramp(3)})
    with pytest.raises(InternalError, match=r"no array for input 'A'"):
        run(program, {}, {n: 3})
    with pytest.raises(InternalError, match=r"input 'A' is float32\[3\], not float32\[4\]"):
        run(program, {a: ramp(3)}, {n: 4})
    written = module((a,), (b,), Store(a, (int32(0),), float32(0.0)), (n,))
    with pytest.raises(InternalError, match=r"input 'A' is written"):
        run(written, {a: ramp(3)}, {n: 3})


def test_if_then_else_is_lazy_and_select_is_not() -> None:
    a, b = buffer("A", 4), buffer("B", 5)
    inside, read = compare("<", II, 4), load(a, II)
    guarded = IfThenElse(inside, read, float32(9.0))
    assert out(loop(II, 5, Store(b, (II,), guarded)), b, {a: ramp(4)}).tolist() == [0, 1, 2, 3, 9]
    with pytest.raises(OutOfBounds, match=r"A\[4\]"):
        out(loop(II, 5, Store(b, (II,), Select(inside, read, read))), b, {a: ramp(4)})


def test_shared_subexpressions_are_computed_once() -> None:
    b = buffer("B", dtype=DType.int32)
    value: Expr = int32(1)
    for _ in range(200):
        value = Binary(BinaryOp.ADD, value, value)
    assert out(Store(b, (), value), b, {}).item() == 0


def scalar_of(value: Expr) -> Any:
    b = Buffer("B", value.dtype, ())
    return out(Store(b, (), value), b, {}).item()


@pytest.mark.parametrize("tiled", [False, True])
def test_integers_wrap_and_divide_as_documented(tiled: bool) -> None:
    points = np.array([-(2**31), -7, -1, 0, 3, 7, 2**31 - 1], np.int32)
    divisors = np.array([-3, -1, 1, 2, 5, 7, -2], np.int32)
    a, d, b = (buffer(name, 7, dtype=DType.int32) for name in "ADB")
    wide_a, wide_d = points.astype(np.int64), divisors.astype(np.int64)
    quotient = np.trunc(wide_a / wide_d).astype(np.int64)
    expected = {
        "+": wide_a + wide_d,
        "*": wide_a * wide_d,
        "//": wide_a // wide_d,
        "%": wide_a % wide_d,
        "truncdiv": quotient,
        "truncmod": wide_a - quotient * wide_d,
        "max": np.maximum(wide_a, wide_d),
    }
    for op, want in expected.items():
        value = binary(op, load(a, II), load(d, II))
        body = (
            Store(b, (II,), value, None, tile((II, 7)))
            if tiled
            else loop(II, 7, Store(b, (II,), value))
        )
        got = out(body, b, {a: points, d: divisors})
        np.testing.assert_array_equal(got, want.astype(np.int32), err_msg=op)


def test_conversions() -> None:
    assert scalar_of(Cast(Const(-2.7, DType.float32), DType.int32)) == -2
    assert scalar_of(Cast(Const(300, DType.int32), DType.uint8)) == 44
    assert scalar_of(Cast(Const(-0.5, DType.float64), DType.bool)) is True
    assert scalar_of(Cast(Const(2.5, DType.bfloat16), DType.int8)) == 2
    assert scalar_of(Cast(Const(1.00390625, DType.float32), DType.bfloat16)) == 1.0
    assert scalar_of(Cast(Const(True, DType.bool), DType.float16)) == 1.0


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
def test_half_precision_rounds_after_every_operation(dtype: DType) -> None:
    b = Buffer("B", dtype, ())
    big, small = Const(1024.0, dtype), Const(2.0**-9, dtype)
    value = binary("-", binary("+", big, small), big)
    assert out(Store(b, (), value), b, {}).item() == 0.0


@pytest.mark.parametrize("op", list(UnaryOp))
@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16, DType.float32, DType.float64])
def test_every_function_on_scalars_and_tiles(op: UnaryOp, dtype: DType) -> None:
    if op in (UnaryOp.NOT, UnaryOp.POPCOUNT):
        pytest.skip("integers only")
    if op is UnaryOp.BITS and dtype not in SAME_BITS:
        pytest.skip("of 32 and 64 bits only")
    node = Unary(op, load(buffer("X", 4, dtype=dtype), II))
    x = np.array([0.25, 0.5, 0.75, 1.0]).astype(numpy_dtype(dtype))
    a = node.a.buffer  # pyright: ignore[reportAttributeAccessIssue]
    b = Buffer("B", node.dtype, (int32(4),))
    tiled = out(Store(b, (II,), node, None, tile((II, 4))), b, {a: x})
    scalars = out(loop(JJ, 4, Store(b, (JJ,), Unary(op, load(a, JJ)))), b, {a: x})
    np.testing.assert_array_equal(tiled.astype(float), scalars.astype(float))
    assert tiled.dtype == numpy_dtype(node.dtype)


def test_functions_of_known_points() -> None:
    for op, value, expected in (
        (UnaryOp.ERF, 0.5, 0.5204999),
        (UnaryOp.SIGMOID, 0.0, 0.5),
        (UnaryOp.RSQRT, 4.0, 0.5),
        (UnaryOp.ROUND, 2.5, 2.0),
        (UnaryOp.SIGN, -3.0, -1.0),
    ):
        assert float(unary(op, DType.float32)(np.float32(value))) == pytest.approx(expected)
    assert int(unary(UnaryOp.POPCOUNT, DType.int32)(np.int32(-1))) == 32
    assert unary(UnaryOp.POPCOUNT, DType.uint8)(np.array([255, 3], np.uint8)).tolist() == [8, 2]
    assert unary(UnaryOp.NOT, DType.bool)(np.bool_(True)) == False  # noqa: E712


def test_bfloat16_buffers() -> None:
    a, b = buffer("A", 4, dtype=DType.bfloat16), buffer("B", dtype=DType.bfloat16)
    x = np.array([1, 2, 3, 4], ml_dtypes.bfloat16)
    add = reducer("+", DType.bfloat16)
    zero = Store(b, (), Const(0.0, DType.bfloat16))
    fold = Accumulate((b,), (), add, (load(a, II),), None, tile((II, 4)))
    assert float(out(Seq((zero, fold)), b, {a: x})) == 10.0


def test_the_last_program_sees_what_all_have_stored() -> None:
    """y[i] = sum(j)(x[i, j]), by the last program of each i, in whatever order they come."""
    x, y = buffer("X", 3, 4), buffer("Y", 3)
    parts, count = buffer("parts", 3, 4), buffer("count", 3, dtype=DType.int32)
    fold = loop(KK, 4, Accumulate((y,), (II,), reducer("+"), (load(parts, II, KK),)))
    start = Store(y, (II,), float32(0.0))
    part = Store(parts, (II, JJ), load(x, II, JJ))

    def grid(of: int, counter: Buffer = count) -> Stmt:
        last = Finish(counter, (II,), int32(of), Seq((start, fold)))
        inner = loop(JJ, 4, Seq((part, last)), LoopKind.PROGRAM, 1)
        return loop(II, 3, inner, LoopKind.PROGRAM)

    def found(of: int) -> Array:
        program = module((x,), (y,), grid(of), workspaces=(parts,), counters=(count,))
        return run(program, {x: ramp(3, 4)})[y]

    np.testing.assert_array_equal(found(4), ramp(3, 4).sum(1))
    with pytest.raises(Unwritten, match=r"parts\[0, 3\]"):
        found(3)
    with pytest.raises(InternalError, match=r"'count' is not 0 after main"):
        found(5)


def test_programs_wait_until_all_have_come() -> None:
    """y[i, j] = sum of row i, of which each of four programs stored one element; twice."""
    x, y = buffer("X", 3, 4), buffer("Y", 3, 4)
    parts, count = buffer("parts", 2, 3, 4), buffer("count", 3, dtype=DType.int32)
    turn = Axis("turn")
    part = Store(parts, (turn, II, JJ), load(x, II, JJ))
    start = Store(y, (II, JJ), float32(0.0))
    fold = loop(KK, 4, Accumulate((y,), (II, JJ), reducer("+"), (load(parts, turn, II, KK),)))

    def grid(of: int, body: Stmt, skip: int = 9) -> Stmt:
        meet = Meet(count, (II,), int32(of))
        turns = loop(turn, 2, Seq((part, Guard(compare("<", JJ, skip), meet), body)))
        return loop(II, 3, loop(JJ, 4, turns, LoopKind.PROGRAM, 1), LoopKind.PROGRAM)

    def found(of: int, skip: int = 9) -> Array:
        body = grid(of, Seq((start, fold)), skip)
        program = module((x,), (y,), body, workspaces=(parts,), counters=(count,))
        return run(program, {x: ramp(3, 4)})[y]

    np.testing.assert_array_equal(found(4), np.repeat(ramp(3, 4).sum(1, keepdims=True), 4, 1))
    with pytest.raises(Unwritten, match=r"parts\[0, 0, 2\]"):
        found(2)
    with pytest.raises(InternalError, match=r"the programs of main wait for each other forever"):
        found(5)
