"""Hand-built modules at TILE level, as the lowering makes them for Triton targets."""

from __future__ import annotations

from collections.abc import Callable

from irs import argmax, float32, int32, tile

from tedsl.dtypes import DType
from tedsl.expr import build as b
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Const,
    Expr,
    Reducer,
    Unary,
    UnaryOp,
    Var,
)
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    For,
    Func,
    Guard,
    Launch,
    Load,
    LoopKind,
    Module,
    Precision,
    Scope,
    Seq,
    Stmt,
    Store,
)
from tedsl.tensor.reduce import simple_reducer

BF16, F16, F32, I32 = DType.bfloat16, DType.float16, DType.float32, DType.int32


def mem(name: str, shape: tuple[int | Expr, ...], dtype: DType = F32) -> Buffer:
    return Buffer(name, dtype, tuple(int32(n) if isinstance(n, int) else n for n in shape))


def local(
    name: str, shape: tuple[int, ...], dtype: DType = F32, scope: Scope = Scope.LOCAL
) -> Buffer:
    return Buffer(name, dtype, tuple(int32(n) for n in shape), scope)


def unary(op: UnaryOp, a: Expr) -> Expr:
    return Unary(op, a)


def f32(a: Expr) -> Expr:
    return b.cast(a, F32)


def grid(axis: Axis, extent: int | Expr, body: Stmt, program: int = 0) -> For:
    count = int32(extent) if isinstance(extent, int) else extent
    return For(axis, count, LoopKind.PROGRAM, body, program)


def serial(axis: Axis, extent: int | Expr, body: Stmt, num_stages: int = 0) -> For:
    count = int32(extent) if isinstance(extent, int) else extent
    return For(axis, count, LoopKind.SERIAL, body, 0, num_stages)


def allocate(buffers: tuple[Buffer, ...], *stmts: Stmt) -> Stmt:
    body: Stmt = Seq(stmts)
    for buffer in reversed(buffers):
        body = Allocate(buffer, body)
    return body


def module(
    name: str,
    inputs: tuple[Buffer, ...],
    outputs: tuple[Buffer, ...],
    body: Stmt,
    sizes: tuple[Var, ...] = (),
    launch: Launch | None = None,
) -> Module:
    func = Func(name, (*inputs, *outputs), sizes, body, launch or Launch())
    return Module(name, inputs, outputs, (), sizes, (func,))


def softmax(
    rows: int, columns: int, padded: int, dtype: DType = F32, num_warps: int | None = None
) -> Module:
    """A row in one tile, the chain in registers."""
    x, y = mem("X", (rows, columns), dtype), mem("Y", (rows, columns), dtype)
    top, total = local("row_max", (1,)), local("row_sum", (1,))
    weight = local("weight", (1, padded))
    i, j = Axis("i"), Axis("j")
    k1, k2 = Axis("k", AxisKind.REDUCE), Axis("k", AxisKind.REDUCE)
    zero = int32(0)

    def inside(axis: Axis) -> Expr | None:
        return None if columns == padded else b.lt(axis, columns)

    def shifted(axis: Axis) -> Expr:
        return b.sub(f32(Load(x, (i, axis), inside(axis))), Load(top, (zero,)))

    e = Axis("j")
    body = allocate(
        (top, weight, total),
        Store(top, (zero,), float32(float("-inf"))),
        Accumulate(
            (top,),
            (zero,),
            simple_reducer(BinaryOp.MAX, F32),
            (f32(Load(x, (i, k1), inside(k1))),),
            inside(k1),
            tile((k1, padded)),
        ),
        Store(weight, (zero, e), unary(UnaryOp.EXP, shifted(e)), None, tile((e, padded))),
        Store(total, (zero,), float32(0.0)),
        Accumulate(
            (total,),
            (zero,),
            simple_reducer(BinaryOp.ADD, F32),
            (Load(weight, (zero, k2)),),
            inside(k2),
            tile((k2, padded)),
        ),
        Store(
            y,
            (i, j),
            b.cast(b.div(Load(weight, (zero, j)), Load(total, (zero,))), dtype),
            inside(j),
            tile((j, padded)),
        ),
    )
    return module("softmax", (x,), (y,), grid(i, rows, body), launch=Launch(num_warps=num_warps))


def looped_sum(rows: int, columns: int, block: int, row_block: int = 4) -> Module:
    """Rows in blocks, columns in a loop: wide accumulators, one reduction after the loop."""
    x, y = mem("X", (rows, columns)), mem("Y", (rows,))
    wide, out = local("partial", (row_block, block)), local("total", (row_block,))
    io, ko = Axis("i.outer"), Axis("k.outer", AxisKind.REDUCE)
    ii, ki = Axis("i.inner"), Axis("k.inner", AxisKind.REDUCE)
    i2, k2, i3 = Axis("i.inner"), Axis("k.inner", AxisKind.REDUCE), Axis("i.inner")
    row = b.add(b.mul(io, row_block), ii)
    column = b.add(b.mul(ko, block), ki)
    parts: list[Expr] = []
    if rows % row_block:
        parts.append(b.lt(row, rows))
    if columns % block:
        parts.append(b.lt(column, columns))
    mask = b.conjunction(parts) if parts else None
    add = simple_reducer(BinaryOp.ADD, F32)
    a, c = Axis("i.inner"), Axis("k.inner", AxisKind.REDUCE)
    row3 = b.add(b.mul(io, row_block), i3)
    body = allocate(
        (wide, out),
        Store(wide, (a, c), float32(0.0), None, tile((a, row_block), (c, block))),
        serial(
            ko,
            -(-columns // block),
            Accumulate(
                (wide,), (ii, ki), add, (Load(x, (row, column), mask),), mask,
                tile((ii, row_block), (ki, block)),
            ),
            num_stages=2,
        ),
        Store(out, (i2,), float32(0.0), None, tile((i2, row_block))),
        Accumulate(
            (out,), (i2,), add, (Load(wide, (i2, k2)),), None, tile((i2, row_block), (k2, block))
        ),
        Store(
            y, (row3,), Load(out, (i3,)),
            b.lt(row3, rows) if rows % row_block else None, tile((i3, row_block)),
        ),
    )  # fmt: skip
    return module("row_sum", (x,), (y,), grid(io, -(-rows // row_block), body))


def inside(*triples: tuple[Expr, int, int]) -> Expr | None:
    """`index < size` for each (index, size, block) where the block does not divide the size."""
    parts = [b.lt(index, size) for index, size, block in triples if size % block]
    return b.conjunction(parts) if parts else None


def matmul(
    size: tuple[int, int, int],
    block: tuple[int, int, int],
    dtype: DType = BF16,
    *,
    shared: bool = False,
    launch: Launch | None = None,
    precision: Precision = Precision.IEEE,
    num_stages: int = 3,
    transposed: bool = False,
) -> Module:
    """Blocks of C in a grid, K in a loop, `Dot` inside; `shared` stages by descriptors."""
    (m, n, k), (bm, bn, bk) = size, block
    a = mem("A", (m, k), dtype)
    w = mem("B", (n, k) if transposed else (k, n), dtype)
    c = mem("C", (m, n), dtype)
    bias = mem("bias", (n,), dtype)
    acc = local("acc", (bm, bn))
    scope = Scope.SHARED if shared else Scope.LOCAL
    a_tile = local("A_tile", (bm, bk), dtype, scope)
    b_tile = local("B_tile", (bn, bk) if transposed else (bk, bn), dtype, scope)
    c_tile = local("C_tile", (bm, bn), dtype, scope)
    io, jo, ko = Axis("i.outer"), Axis("j.outer"), Axis("k.outer", AxisKind.REDUCE)
    i, j, kk = Axis("i"), Axis("j"), Axis("k", AxisKind.REDUCE)
    row, column = b.add(b.mul(io, bm), i), b.add(b.mul(jo, bn), j)
    depth = b.add(b.mul(ko, bk), kk)
    place, b_dims = (column, depth) if transposed else (depth, column), tile((kk, bk), (j, bn))
    b_mask = inside((depth, k, bk), (column, n, bn))
    a_load = Load(a, (row, depth), inside((row, m, bm), (depth, k, bk)))
    lhs, rhs = a_load, Load(w, place, b_mask)
    steps: list[Stmt] = []
    staged: tuple[Buffer, ...] = ()
    if shared:
        b_index = (j, kk) if transposed else (kk, j)
        steps = [
            Store(a_tile, (i, kk), a_load, None, tile((i, bm), (kk, bk))),
            Store(b_tile, b_index, rhs, None, b_dims),
        ]
        lhs, rhs = Load(a_tile, (i, kk)), Load(b_tile, b_index)
        staged = (a_tile, b_tile)
    ti, tj, tk = tile((i, bm), (j, bn), (kk, bk))
    dot = Dot(acc, (i, j), lhs, rhs, (), ti, tj, tk, precision)
    loop = serial(
        ko, -(-k // bk), allocate(staged, *steps, dot) if shared else dot, num_stages=num_stages
    )
    out = b.add(Load(acc, (i, j)), f32(Load(bias, (column,), inside((column, n, bn)))))
    result = b.cast(b.maximum(out, 0.0), dtype)
    mask = inside((row, m, bm), (column, n, bn))
    tiles = tile((i, bm), (j, bn))
    store: Stmt = Store(c, (row, column), result, mask, tiles)
    if shared:
        store = allocate(
            (c_tile,),
            Store(c_tile, (i, j), result, None, tiles),
            Store(c, (row, column), Load(c_tile, (i, j)), mask, tiles),
        )
    body = allocate((acc,), Store(acc, (i, j), float32(0.0), None, tiles), loop, store)
    whole = grid(io, -(-m // bm), grid(jo, -(-n // bn), body, 1), 0)
    return module("matmul", (a, w, bias), (c,), whole, launch=launch)


def transpose_add(n: int, block: int) -> Module:
    """Y[i, j] = X[i, j] + X[j, i]."""
    x, y = mem("X", (n, n)), mem("Y", (n, n))
    io, jo, ii, ji = Axis("i.outer"), Axis("j.outer"), Axis("i.inner"), Axis("j.inner")
    i, j = b.add(b.mul(io, block), ii), b.add(b.mul(jo, block), ji)
    mask = b.logical_and(b.lt(i, n), b.lt(j, n)) if n % block else None
    value = b.add(Load(x, (i, j), mask), Load(x, (j, i), mask))
    count = -(-n // block)
    body = Store(y, (i, j), value, mask, tile((ii, block), (ji, block)))
    return module("transpose_add", (x,), (y,), grid(io, count, grid(jo, count, body, 1)))


def gather(rows: int, columns: int, table: int) -> Module:
    """Y[i, j] = E[index[i], j]: one row per program."""
    e, index = mem("E", (table, columns)), mem("index", (rows,), I32)
    y = mem("Y", (rows, columns))
    i, j = Axis("i"), Axis("j")
    padded = 1 << (columns - 1).bit_length()
    mask = b.lt(j, columns) if padded != columns else None
    body = Store(y, (i, j), Load(e, (Load(index, (i,)), j), mask), mask, tile((j, padded)))
    return module("gather", (e, index), (y,), grid(i, rows, body))


def arg_max(rows: int, columns: int) -> Module:
    """(largest value, its index) of each row by a tuple reducer."""
    x, v, p = mem("X", (rows, columns)), mem("best", (rows,)), mem("where", (rows,), I32)
    lv, lp = local("v", (1,)), local("p", (1,), I32)
    i, k = Axis("i"), Axis("k", AxisKind.REDUCE)
    padded = 1 << (columns - 1).bit_length()
    mask = b.lt(k, columns) if padded != columns else None
    reducer: Reducer = argmax()
    zero = int32(0)
    body = allocate(
        (lv, lp),
        Store(lv, (zero,), reducer.identity[0]),
        Store(lp, (zero,), reducer.identity[1]),
        Accumulate((lv, lp), (zero,), reducer, (Load(x, (i, k), mask), k), mask, tile((k, padded))),
        Store(v, (i,), Load(lv, (zero,))),
        Store(p, (i,), Load(lp, (zero,))),
    )
    return module("argmax", (x,), (v, p), grid(i, rows, body))


def symbolic_scale(block: int = 128) -> Module:
    """Y[i, j] = 2 X[i, j] + i for a matrix whose size is known at the call only."""
    m, n = Var("m", lower=0), Var("n", lower=0)
    x, y = mem("X", (m, n)), mem("Y", (m, n))
    io, jo, ii, ji = Axis("i.outer"), Axis("j.outer"), Axis("i.inner"), Axis("j.inner")
    i, j = b.add(b.mul(io, 4), ii), b.add(b.mul(jo, block), ji)
    mask = b.logical_and(b.lt(i, m), b.lt(j, n))
    value = b.add(b.mul(Load(x, (i, j), mask), 2.0), f32(i))
    body = Store(y, (i, j), value, mask, tile((ii, 4), (ji, block)))
    columns = b.floordiv(b.add(n, block - 1), block)
    rows = b.floordiv(b.add(m, 3), 4)
    whole = grid(io, rows, grid(jo, columns, body, 1))
    return module("scale", (x,), (y,), whole, sizes=(m, n))


def pointwise(
    count: int, block: int, inputs: tuple[DType, ...], out: DType, value: Callable[..., Expr]
) -> Module:
    """Y[i] = value(X0[i], X1[i], ...) over blocks of a vector."""
    buffers = tuple(mem(f"X{n}", (count,), dtype) for n, dtype in enumerate(inputs))
    y = mem("Y", (count,), out)
    io, ii = Axis("i.outer"), Axis("i.inner")
    i = b.add(b.mul(io, block), ii)
    mask = b.lt(i, count) if count % block else None
    result = value(*(Load(buffer, (i,), mask) for buffer in buffers))
    body = Store(y, (i,), result, mask, tile((ii, block)))
    return module("pointwise", buffers, (y,), grid(io, -(-count // block), body))


def with_input(source: Module, extra: Buffer) -> Module:
    """`source` with one more input, for a value that reads a buffer of its own."""
    (func,) = source.funcs
    wider = Func(func.name, (extra, *func.params), func.sizes, func.body, func.launch)
    inputs = (*source.inputs, extra)
    return Module(source.name, inputs, source.outputs, (), source.sizes, (wider,))


def fused_grid(a: int, c: int, d: int) -> Module:
    """Two loops on one grid axis and one on another: Y[i, j, k] = 100 i + 10 j + k."""
    y = mem("Y", (a, c, d), I32)
    i, j, k = Axis("i"), Axis("j"), Axis("k")
    value = b.add(b.add(b.mul(i, 100), b.mul(j, 10)), k)
    body = Store(y, (i, j, k), value)
    return module("fused", (), (y,), grid(j, c, grid(k, d, grid(i, a, body, 0), 1), 1))


def matmul_into_columns() -> Module:
    """C[i, j] = sum over k of A[i, k] B[k, j], accumulated as [j, i]."""
    n = 32
    a, w, c = (mem(name, (n, n), F16) for name in "ABC")
    acc = local("acc", (n, n))
    i, j, k = Axis("i"), Axis("j"), Axis("k", AxisKind.REDUCE)
    ti, tj, tk = tile((i, n), (j, n), (k, n))
    body = allocate(
        (acc,),
        Store(acc, (j, i), float32(0.0), None, (tj, ti)),
        Dot(acc, (j, i), Load(a, (i, k)), Load(w, (k, j)), (), ti, tj, tk),
        Store(c, (i, j), b.cast(Load(acc, (j, i)), F16), None, (ti, tj)),
    )
    return module("columns", (a, w), (c,), body)


def batched_matmul(count: int, n: int) -> Module:
    """C[p, i, j] = sum over k of A[p, i, k] B[p, k, j], all of the padded batch in one tile."""
    padded = 1 << (count - 1).bit_length()
    a, w, c = (mem(name, (count, n, n)) for name in "ABC")
    acc = local("acc", (padded, n, n))
    p, i, j, k = Axis("p"), Axis("i"), Axis("j"), Axis("k", AxisKind.REDUCE)
    tp, ti, tj, tk = tile((p, padded), (i, n), (j, n), (k, n))
    mask = b.lt(p, count) if padded != count else None
    body = allocate(
        (acc,),
        Store(acc, (p, i, j), float32(0.0), None, (tp, ti, tj)),
        Dot(
            acc, (p, i, j), Load(a, (p, i, k), mask), Load(w, (p, k, j), mask), (tp,), ti, tj, tk
        ),
        Store(c, (p, i, j), Load(acc, (p, i, j)), mask, (tp, ti, tj)),
    )  # fmt: skip
    return module("batched", (a, w), (c,), body)


def guarded_steps(rows: int, steps: int) -> Module:
    """Y[i, j] = sum over u < steps with (i + u) % 2 == 0 of X[i, j] (u + 1), in a guarded loop."""
    x, y = mem("X", (rows, 16)), mem("Y", (rows, 16))
    acc = local("acc", (16,))
    i, j, u = Axis("i"), Axis("j"), Axis("u", AxisKind.REDUCE)
    j1, j2 = Axis("j"), Axis("j")
    even = b.eq(b.floormod(b.add(i, u), 2), 0)
    term = b.mul(Load(x, (i, j)), f32(b.add(u, 1)))
    step = Accumulate((acc,), (j,), simple_reducer(BinaryOp.ADD, F32), (term,), None, tile((j, 16)))
    loop = For(u, int32(steps), LoopKind.UNROLLED, Guard(even, step))
    body = allocate(
        (acc,),
        Store(acc, (j1,), float32(0.0), None, tile((j1, 16))),
        loop,
        Store(y, (i, j2), Load(acc, (j2,)), None, tile((j2, 16))),
    )
    return module("guarded", (x,), (y,), grid(i, rows, body))


def scaled_steps(rows: int, steps: int, factor: float) -> Module:
    """Y[i, j] = exp(h), rounded to bfloat16, with h <- factor h + tanh(X[i, j]) `steps` times."""
    x, y = mem("X", (rows, 16)), mem("Y", (rows, 16), BF16)
    h = local("h", (16,))
    i, u, j0, j1, j2 = Axis("i"), Axis("u"), Axis("j"), Axis("j"), Axis("j")
    grown = b.add(b.mul(Load(h, (j1,)), float32(factor)), unary(UnaryOp.TANH, Load(x, (i, j1))))
    power = b.cast(unary(UnaryOp.EXP, Load(h, (j2,))), BF16)
    body = allocate(
        (h,),
        Store(h, (j0,), float32(0.0), None, tile((j0, 16))),
        serial(u, steps, Store(h, (j1,), grown, None, tile((j1, 16)))),
        Store(y, (i, j2), power, None, tile((j2, 16))),
    )
    return module("scaled", (x,), (y,), grid(i, rows, body))


def update_in_memory(rows: int, columns: int) -> Module:
    """Y[i] = sum over k of X[i, k], added up in device memory over two serial steps."""
    x, y = mem("X", (rows, columns)), mem("Y", (rows,))
    i, ko, ki = Axis("i"), Axis("k.outer", AxisKind.REDUCE), Axis("k.inner", AxisKind.REDUCE)
    column = b.add(b.mul(ko, 32), ki)
    mask = b.lt(column, columns)
    add = simple_reducer(BinaryOp.ADD, F32)
    update = Accumulate((y,), (i,), add, (Load(x, (i, column), mask),), mask, tile((ki, 32)))
    body = Seq((Store(y, (i,), float32(0.0)), serial(ko, -(-columns // 32), update)))
    return module("update", (x,), (y,), grid(i, rows, body))


def bool_reducer(op: BinaryOp) -> Reducer:
    lhs, rhs = Var("lhs", DType.bool), Var("rhs", DType.bool)
    identity = Const(op is BinaryOp.AND, DType.bool)
    return Reducer(op.name.lower(), (lhs,), (rhs,), (Binary(op, lhs, rhs),), (identity,))


def reduce_rows(rows: int, columns: int, dtype: DType, reducer: Reducer) -> Module:
    """Y[i] = reducer over k of X[i, k], four rows in a tile."""
    x, y = mem("X", (rows, columns), dtype), mem("Y", (rows,), dtype)
    padded = 1 << (columns - 1).bit_length()
    acc = local("acc", (4,), dtype)
    io, i, k = Axis("i.outer"), Axis("i.inner"), Axis("k", AxisKind.REDUCE)
    i1, i2 = Axis("i.inner"), Axis("i.inner")
    row = b.add(b.mul(io, 4), i)
    mask = b.logical_and(b.lt(row, rows), b.lt(k, columns))
    row2 = b.add(b.mul(io, 4), i2)
    body = allocate(
        (acc,),
        Store(acc, (i1,), reducer.identity[0], None, tile((i1, 4))),
        Accumulate(
            (acc,), (i,), reducer, (Load(x, (row, k), mask),), mask, tile((i, 4), (k, padded))
        ),
        Store(y, (row2,), Load(acc, (i2,)), b.lt(row2, rows), tile((i2, 4))),
    )
    return module("reduce", (x,), (y,), grid(io, -(-rows // 4), body))


def inner_program(n: int) -> Module:
    """Y[i, j] = X[j, i] with the grid axis inside a serial loop, and a scalar condition."""
    x, y = mem("X", (n, n)), mem("Y", (n, n))
    i, j = Axis("i"), Axis("j")
    inside = b.lt(b.add(i, j), n + 3)
    body = Store(y, (i, j), Load(x, (j, i), inside))
    return module("inner", (x,), (y,), serial(i, n, grid(j, n, body)))


def scalar_and_tile_mask(n: int) -> Module:
    """Y[i] = sum over serial k of X[k, i], both guarded by masks."""
    x, y = mem("X", (n, n)), mem("Y", (n,))
    i, i1, i2, k = Axis("i"), Axis("i"), Axis("i"), Axis("k", AxisKind.REDUCE)
    padded = 2 << (n - 1).bit_length()
    acc = local("acc", (padded,))
    mask = b.logical_and(b.lt(k, n), b.lt(i, n))
    update = Accumulate(
        (acc,), (i,), simple_reducer(BinaryOp.ADD, F32), (Load(x, (k, i), mask),), mask,
        tile((i, padded)),
    )  # fmt: skip
    body = allocate(
        (acc,),
        Store(acc, (i1,), float32(0.0), None, tile((i1, padded))),
        serial(k, n + 2, update),
        Store(y, (i2,), Load(acc, (i2,)), b.lt(i2, n), tile((i2, padded))),
    )
    return module("masks", (x,), (y,), body)
