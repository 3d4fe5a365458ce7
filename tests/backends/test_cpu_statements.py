"""Statements, loops and memory on the CPU against the IR interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from cpu_machines import MACHINES, compiling_for
from cpu_modules import add, buffer, build, c, call, f, local, module, mul, op, reducer, un

from tedsl.backends.cpu.emit.memory import STREAM_BYTES
from tedsl.backends.cpu.emit.module import emit_module
from tedsl.backends.cpu.emit.parallel_tasks import STREAM_FROM
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Cast, Compare, CompareOp, Const, Expr, Reducer, Select, Var
from tedsl.ir import interp
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    For,
    Func,
    Guard,
    Load,
    LoopKind,
    Module,
    Scope,
    Seq,
    Store,
    TileAxis,
)
from tedsl.ir.numerics import numpy_dtype
from tedsl.processor import machine

pytestmark = pytest.mark.cpu
EXTENTS = (1, 2, 3, 7, 16, 33, 40, 130)


def extent(e: Expr, sizes: Mapping[Var, float]) -> int:
    if isinstance(e, Const):
        return int(e.value)
    assert isinstance(e, Var)
    return int(sizes[e])


def fill(b: Buffer, sizes: Mapping[Var, float] | None = None, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed + len(b.name))
    shape = tuple(extent(e, sizes or {}) for e in b.shape)
    dtype = numpy_dtype(b.dtype)
    if b.dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if b.dtype.is_integer:
        low = 0 if b.dtype.info.lowest == 0 else -50
        return rng.integers(low, 50, shape).astype(dtype)
    return (rng.integers(-64, 64, shape) / 8).astype(dtype)


def check(m: Module, sizes: Mapping[Var, float] | None = None, tolerance: float = 0.0) -> None:
    """The CPU's outputs are the interpreter's."""
    inputs = {b: fill(b, sizes) for b in m.inputs}
    want = interp.run(m, inputs, sizes)
    outputs = [np.zeros_like(want[b]) for b in m.outputs]
    for array in outputs:
        array[...] = 77 if array.dtype != np.bool_ else True
    spaces = [fill(b, sizes) for b in m.workspaces]
    values = [sizes[v] for v in m.sizes] if sizes else []
    call(build(m), *inputs.values(), *outputs, *spaces, sizes=values)
    for got, b in zip(outputs, m.outputs, strict=True):
        if tolerance:
            np.testing.assert_allclose(
                got.astype(np.float64), want[b].astype(np.float64), rtol=tolerance, atol=tolerance
            )
        else:
            np.testing.assert_array_equal(got, want[b])


def tiles(axes: Sequence[Axis], extents: Sequence[int]) -> tuple[TileAxis, ...]:
    return tuple(TileAxis(a, e) for a, e in zip(axes, extents, strict=True))


def axes(names: str) -> list[Axis]:
    return [Axis(n) for n in names.split()]


def less(a: Expr, b: Expr) -> Expr:
    return Compare(CompareOp.LT, a, b)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("n", EXTENTS)
def test_copy_and_transpose(n: int, dtype: DType) -> None:
    i, j = axes("i j")
    x, y, z = buffer("x", (5, n), dtype), buffer("y", (5, n), dtype), buffer("z", (n, 5), dtype)
    tile = tiles((i, j), (5, n))
    check(
        module(
            [x],
            [y, z],
            Seq(
                (
                    Store(y, (i, j), Load(x, (i, j)), None, tile),
                    Store(z, (j, i), Load(x, (i, j)), None, tile),
                )
            ),
        )
    )


@pytest.mark.parametrize("n", EXTENTS)
def test_strides_reversal_and_gather(n: int) -> None:
    (i,) = axes("i")
    x, idx = buffer("x", (2 * n,)), buffer("idx", (n,), DType.int64)
    outs = [buffer(f"y{k}", (n,)) for k in range(5)]
    tile = tiles((i,), (n,))
    places = [
        mul(i, c(2)),
        op("-", c(n - 1), i),
        op("%", i, c(5)),
        op("//", i, c(3)),
        op("%", Load(idx, (i,)), Const(2 * n, DType.int64)),
    ]
    body = Seq(
        tuple(Store(y, (i,), Load(x, (p,)), None, tile) for y, p in zip(outs, places, strict=True))
    )
    check(module([x, idx], outs, body))


@pytest.mark.parametrize("n", EXTENTS)
def test_masks(n: int) -> None:
    """A masked load gives 0 without an access; a masked store leaves memory alone."""
    i, j = axes("i j")
    m = Var("m")
    x, y, z = buffer("x", (4, m)), buffer("y", (4, n)), buffer("z", (4, n))
    tile = tiles((i, j), (4, n))
    inside = less(j, m)
    rows = less(i, c(3))
    masked = Store(y, (i, j), add(Load(x, (i, j), inside), f(1)), None, tile)
    first = Store(z, (i, j), f(-1), None, tile)
    both = op("&", inside, rows)
    second = Store(z, (i, j), Load(x, (i, j), inside), both, tile)
    third = Store(z, (i, j), mul(Load(z, (i, j)), f(2)), rows, tile)
    for size in (0, 1, n // 2, n):
        check(module([x], [y, z], Seq((masked, first, second, third)), [m]), {m: size})


@pytest.mark.parametrize("n", EXTENTS)
@pytest.mark.parametrize("scope", [Scope.LOCAL, Scope.GLOBAL])
def test_overlapping_reads_come_first(n: int, scope: Scope) -> None:
    (i,) = axes("i")
    x, y = buffer("x", (n + 1,)), buffer("y", (n + 1,))
    t = Buffer("t", DType.float32, (c(n + 1),), scope)
    whole, tile = tiles((i,), (n + 1,)), tiles((i,), (n,))
    shift = Store(t, (add(i, c(1)),), Load(t, (i,)), None, tile)
    body = Seq(
        (
            Store(t, (i,), Load(x, (i,)), None, whole),
            shift,
            Store(y, (i,), Load(t, (i,)), None, whole),
        )
    )
    check(module([x], [y], Allocate(t, body)))


@pytest.mark.parametrize("n", EXTENTS)
@pytest.mark.parametrize(
    "name,identity", [("+", 0.0), ("max", float("-inf")), ("min", float("inf"))]
)
@pytest.mark.parametrize(
    "dtype", [DType.float32, DType.float64, DType.int32, DType.int8, DType.bfloat16]
)
def test_reductions(name: str, identity: float, n: int, dtype: DType) -> None:
    """Over rows, over columns, over both, with and without a mask."""
    i, j = axes("i j")
    if dtype.is_integer:
        identity = {"+": 0, "max": dtype.info.lowest, "min": dtype.info.highest}[name]
    fold = reducer(name, identity, dtype)
    start = fold.identity[0]
    x, rows, cols = (
        buffer("x", (6, n), dtype),
        buffer("rows", (6,), dtype),
        buffer("cols", (n,), dtype),
    )
    total, some = local("total", (1,), dtype), buffer("some", (6,), dtype)
    out = buffer("out", (1,), dtype)
    value = Load(x, (i, j))
    if dtype is DType.bfloat16:
        value = (
            op("*", value, Const(0.0625, dtype))
            if name != "+"
            else Select(less(j, c(2)), value, start)
        )
    tile = tiles((i, j), (6, n))
    (z,) = axes("z")
    body = Seq((
        Store(rows, (z,), start, None, tiles((z,), (6,))),
        Store(cols, (z,), start, None, tiles((z,), (n,))),
        Store(some, (z,), start, None, tiles((z,), (6,))),
        Store(total, (c(0),), start),
        Accumulate((rows,), (i,), fold, (value,), None, tile),
        Accumulate((cols,), (j,), fold, (value,), None, tile),
        Accumulate((total,), (c(0),), fold, (value,), None, tile),
        Accumulate((some,), (i,), fold, (value,), less(add(i, j), c(n)), tile),
        Store(out, (c(0),), Load(total, (c(0),))),
    ))  # fmt: skip
    if dtype is DType.bfloat16 and name == "+":
        return
    check(module([x], [rows, cols, out, some], Allocate(total, body)))


def test_argmax_pairs() -> None:
    """A reducer of two values, whose parts are combined in any order."""
    v0, v1 = Var("v0", DType.float32), Var("v1", DType.float32)
    k0, k1 = Var("k0"), Var("k1")
    tie = op("&", Compare(CompareOp.EQ, v0, v1), less(k0, k1))
    first = op("|", Compare(CompareOp.GT, v0, v1), tie)
    argmax = Reducer(
        "argmax",
        (v0, k0),
        (v1, k1),
        (Select(first, v0, v1), Select(first, k0, k1)),
        (f(float("-inf")), c(2**31 - 1)),
    )
    i, j = axes("i j")
    for n in EXTENTS:
        x = buffer("x", (5, n))
        best, where = buffer("best", (5,)), buffer("where", (5,), DType.int32)
        tile, row = tiles((i, j), (5, n)), tiles((i,), (5,))
        body = Seq((
            Store(best, (i,), f(float("-inf")), None, row),
            Store(where, (i,), c(2**31 - 1), None, row),
            Accumulate((best, where), (i,), argmax, (Load(x, (i, j)), j), None, tile),
        ))  # fmt: skip
        check(module([x], [best, where], body))


@pytest.mark.parametrize("kind", [LoopKind.PARALLEL, LoopKind.PROGRAM, LoopKind.SERIAL])
@pytest.mark.parametrize("m,n,k", [(5, 33, 7), (24, 64, 40), (1, 1, 1), (13, 7, 3)])
def test_matmul_in_registers(kind: LoopKind, m: int, n: int, k: int) -> None:
    rows, cols = 4, 32
    a, b, out = buffer("a", (m, k)), buffer("b", (k, n)), buffer("c", (m, n))
    acc = local("acc", (rows, cols))
    io, jo, kk, ii, ji = axes("io jo k ii ji")
    tile = tiles((ii, ji), (rows, cols))
    i, j = add(mul(io, c(rows)), ii), add(mul(jo, c(cols)), ji)
    in_rows, in_cols = less(i, c(m)), less(j, c(n))
    step = mul(Load(a, (i, kk), in_rows), Load(b, (kk, j), in_cols))
    update = Accumulate((acc,), (ii, ji), reducer("+", 0), (step,), None, tile)
    inner = Allocate(
        acc,
        Seq((
            Store(acc, (ii, ji), f(0), None, tile),
            For(kk, c(k), LoopKind.SERIAL, update),
            Store(out, (i, j), un("abs", Load(acc, (ii, ji))), op("&", in_rows, in_cols), tile),
        )),
    )  # fmt: skip
    nest = For(io, c(-(-m // rows)), kind, For(jo, c(-(-n // cols)), kind, inner))
    check(module([a, b], [out], nest))


def test_large_local_buffers_and_captured_memory() -> None:
    """Scratch of a parallel body is its own; memory made outside is shared."""
    i, j = axes("i j")
    big, shared = local("big", (9000,)), local("shared", (9000,))
    x, y = buffer("x", (9000,)), buffer("y", (6, 9000))
    tile = tiles((j,), (9000,))
    row = Allocate(
        big,
        Seq((
            Store(big, (j,), mul(Load(shared, (j,)), Cast(i, DType.float32)), None, tile),
            Store(y, (i, j), Load(big, (j,)), None, tile),
        )),
    )  # fmt: skip
    fill_shared = Store(shared, (j,), add(Load(x, (j,)), f(1)), None, tile)
    body = Allocate(shared, Seq((fill_shared, For(i, c(6), LoopKind.PARALLEL, row))))
    check(module([x], [y], body))


def test_symbolic_sizes_guards_and_several_kernels() -> None:
    n, scale = Var("n", DType.int64), Var("scale", DType.float32)
    i, jo, ji = axes("i jo ji")
    x, t, y = buffer("x", (n, n)), buffer("t", (n, n)), buffer("y", (n, n))
    j = add(mul(jo, c(16)), ji)
    inside = less(Cast(j, DType.int64), n)
    blocks = Cast(op("//", add(n, Const(15, DType.int64)), Const(16, DType.int64)), DType.int32)
    tile = tiles((ji,), (16,))

    def kernel(name: str, source: Buffer, target: Buffer, value: Expr) -> Func:
        stmt = Store(target, (i, j), value, inside, tile)
        nest = For(i, n, LoopKind.PARALLEL, For(jo, blocks, LoopKind.SERIAL, stmt))
        guarded = Guard(Compare(CompareOp.GT, n, Const(0, DType.int64)), nest)
        return Func(name, (source, target), (n, scale), guarded)

    first = kernel("scale", x, t, mul(Load(x, (i, j), inside), scale))
    second = kernel("transposed", t, y, add(Load(t, (j, i), inside), f(1)))
    m = Module("m", (x,), (y,), (t,), (n, scale), (first, second))
    for size in (0, 1, 15, 16, 40):
        check(m, {n: size, scale: 0.5})


def test_unrolled_loops_and_rank_zero() -> None:
    u, j = axes("u j")
    total, x, y = local("total", ()), buffer("x", (4, 8)), buffer("y", ())
    update = Accumulate((total,), (), reducer("+", 0), (Load(x, (u, j)),), None, tiles((j,), (8,)))
    body = Seq(
        (
            Store(total, (), f(0)),
            For(u, c(4), LoopKind.UNROLLED, update),
            Store(y, (), Load(total, ())),
        )
    )
    check(module([x], [y], Allocate(total, body)))


@pytest.mark.parametrize("count,copies", [(40, 40), (4000, 1)])
def test_loops_are_unrolled_as_far_as_llvm_compiles_them(count: int, copies: int) -> None:
    u, j = axes("u j")
    x, y = buffer("x", (count, 9)), buffer("y", (count, 9))
    inner = For(j, c(9), LoopKind.SERIAL, Store(y, (u, j), un("exp", Load(x, (u, j)))))
    m = module([x], [y], For(u, c(count), LoopKind.UNROLLED, inner))
    source = emit_module(m)
    assert source.count("; y\n") == copies
    assert ("u stays a loop" in source) == (copies == 1)
    check(m, tolerance=1e-6)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("n", [1, 7, 33])
def test_other_machines(n: int, machine: str) -> None:
    with compiling_for(machine):
        test_copy_and_transpose(n, DType.float32)
        test_copy_and_transpose(n, DType.int8)
        test_strides_reversal_and_gather(n)
        test_masks(n)
        test_matmul_in_registers(LoopKind.PARALLEL, n, 2 * n, 3)


@pytest.mark.parametrize("dtype", [DType.float32, DType.float64, DType.int8, DType.bfloat16])
@pytest.mark.parametrize("rows,columns", [(16, 16), (64, 64), (70, 33), (33, 140), (17, 16)])
def test_transposed_blocks(rows: int, columns: int, dtype: DType) -> None:
    """Blocks are loaded along the other axis and turned in registers; edges are gathered."""
    i, j = axes("i j")
    x, w = buffer("x", (columns + 3, rows), dtype), buffer("w", (rows, columns), dtype)
    y = buffer("y", (rows, columns), dtype)
    value = op("max", Load(x, (add(j, c(2)), i)), Load(w, (i, j)))
    check(module([x, w], [y], Store(y, (i, j), value, None, tiles((i, j), (rows, columns)))))


@pytest.mark.parametrize("m,n,k", [(12, 64, 48), (5, 33, 7)])
def test_local_buffers_are_laid_out_for_their_readers(m: int, n: int, k: int) -> None:
    """A tile kept as [column, k] and read along its columns is contiguous along columns."""
    a, b, out = buffer("a", (m, k)), buffer("b", (n, k)), buffer("c", (m, n))
    tile, total = local("tile", (n, k)), local("total", (n,))
    i, kk, j, jj, kj = axes("i kk j jj kj")
    row = tiles((j,), (n,))
    step = mul(Load(a, (i, kk)), Load(tile, (j, kk)))
    update = Accumulate((total,), (j,), reducer("+", 0), (step,), None, row)
    nest = Seq((
        Store(total, (j,), f(0), None, row),
        For(kk, c(k), LoopKind.SERIAL, update),
        Store(out, (i, j), Load(total, (j,)), None, row),
    ))  # fmt: skip
    pack = Store(tile, (jj, kj), Load(b, (jj, kj)), None, tiles((jj, kj), (n, k)))
    rows = For(i, c(m), LoopKind.PARALLEL, Allocate(total, nest))
    m_ = module([a, b], [out], Allocate(tile, Seq((pack, rows))))
    check(m_)
    assert "gather" not in build(m_).llvm_ir or n % 16


@pytest.mark.parametrize("columns,aligned", [(1024, True), (1040, True), (1025, False)])
def test_rows_of_whole_cache_lines_are_stored_past_the_caches(columns: int, aligned: bool) -> None:
    """Of an output too large for them; each vector of the other rows would touch two lines."""
    i, j = axes("i j")
    shape = (STREAM_FROM // 4 // columns + 1, columns)
    x, y = buffer("x", (1, columns)), buffer("y", shape)
    row = Store(y, (i, j), Load(x, (c(0), j)), None, tiles((j,), (columns,)))
    m = module([x], [y], For(i, c(shape[0]), LoopKind.PARALLEL, row))
    streams = machine().has_masks and machine().vector_bits == 8 * STREAM_BYTES
    assert ("!nontemporal" in emit_module(m)) == (aligned and streams)
    given, got = fill(x), np.zeros(shape, np.float32)
    call(build(m), given, got)
    np.testing.assert_array_equal(got, np.broadcast_to(given, shape))


@pytest.mark.parametrize("rows,copies", [((8,), 16), ((9,), 2), ((2, 4), 16), ((4, 4), 8)])
def test_a_tile_is_unrolled_as_far_as_its_budget_goes(rows: tuple[int, ...], copies: int) -> None:
    """Sixteen vectors of a copy, of which each row has two: what is more is in a loop."""
    where, shape = axes("i j k")[-len(rows) - 1 :], (*rows, 2 * machine().lanes(32))
    x, y = buffer("x", shape), buffer("y", shape)
    m = module([x], [y], Store(y, tuple(where), Load(x, tuple(where)), None, tiles(where, shape)))
    assert emit_module(m).count("  store <") == copies
    check(m)


@pytest.mark.parametrize("wide,copies", [(9, 128), (200, 128), (200, 16)])
def test_loops_inside_unrolled_ones_count_as_llvm_writes_them(wide: int, copies: int) -> None:
    """Short ones once for each iteration, long ones as vectors and what is left over: LLVM's
    allocator of registers took minutes over a hundred loops that it made vectors of."""
    u, j = axes("u j")
    x, y = buffer("x", (copies, wide), DType.int32), buffer("y", (copies, wide), DType.int32)
    value: Expr = Load(x, (u, j))
    for k in range(7):
        value = op("+", mul(value, value), Const(k, DType.int32))
    inner = For(j, c(wide), LoopKind.SERIAL, Store(y, (u, j), value))
    m = module([x], [y], For(u, c(copies), LoopKind.UNROLLED, inner))
    assert ("u stays a loop" in emit_module(m)) == (copies == 128)
