"""What single kernels move and do, counted from their loop IR."""

from __future__ import annotations

import pytest
from irs import buffer, float32, int32, load, loop, tile

import tedsl as te
from tedsl.devices import H100, CpuDevice
from tedsl.dtypes import DType
from tedsl.explaining.data import Bound, KernelCost
from tedsl.explaining.kernels import kernel_costs
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Expr, Reducer, Unary, UnaryOp, Var
from tedsl.ir.nodes import Accumulate, Allocate, Buffer, Dot, Func, Module, Scope, Seq, Stmt, Store
from tedsl.schedules import default_schedule

CPU = CpuDevice("test", 4, 256, 16, 6e10, 32 << 10, 1 << 20, 16 << 20, 2e10, 2.5e9)


def add(a: Expr, b: Expr) -> Expr:
    return Binary(BinaryOp.ADD, a, b)


def total(dtype: DType = DType.float32) -> Reducer:
    lhs, rhs = Var("lhs", dtype), Var("rhs", dtype)
    return Reducer("sum", (lhs,), (rhs,), (add(lhs, rhs),), (float32(0.0),))


def counted(inputs: list[Buffer], outputs: list[Buffer], body: Stmt) -> KernelCost:
    func = Func("f", (*inputs, *outputs), (), body)
    module = Module("m", tuple(inputs), tuple(outputs), (), (), (func,))
    return kernel_costs(module, CPU, {})[0]


def on_gpu(output: te.Tensor, *, n: int | None = None) -> list[KernelCost]:
    module = te.lower(default_schedule(output, "cuda"), "cuda")
    values = {var: n or 0 for var in module.sizes}
    return list(kernel_costs(module, H100, values))


def test_a_tile_counts_each_operation_over_the_axes_it_has() -> None:
    a, b, c = buffer("A", 8, 16), buffer("B", 16), buffer("C", 8, 16)
    i, j = Axis("i"), Axis("j")
    row = Unary(UnaryOp.EXP, load(b, j))  # 16 operations
    value = add(load(a, i, j), row)  # 8 x 16
    told = counted([a, b], [c], Store(c, (i, j), value, tile=tile((i, 8), (j, 16))))
    assert told.flops == 16 + 8 * 16
    assert told.reads == {"A": 512, "B": 64}
    assert told.writes == {"C": 512}
    assert told.nbytes == 1088 and told.intensity == pytest.approx(144 / 1088)


def test_loops_multiply_and_what_stays_in_a_cache_is_read_once() -> None:
    a, c = buffer("A", 10, 4), buffer("C", 10)
    acc = Buffer("acc", DType.float32, (), Scope.LOCAL)
    i, k = Axis("i"), Axis("k")
    square = Binary(BinaryOp.MUL, load(a, i, k), load(a, i, k))
    body = Seq((
        Store(acc, (), float32(0.0)),
        loop(k, 4, Accumulate((acc,), (), total(), (square,))),
        Store(c, (i,), load(acc)),
    ))  # fmt: skip
    told = counted([a], [c], loop(i, 10, Allocate(acc, body)))
    assert told.flops == 10 * 4 * 2
    assert [place.stage for place in told.stages] == ["acc", "C"]
    assert told.local_bytes == 4
    assert told.nbytes == 160 + 40


def test_a_dot_is_two_operations_per_point() -> None:
    a, b = buffer("A", 16, 32), buffer("B", 32, 64)
    acc = buffer("C", 16, 64)
    i, j, k = (tile((Axis(name), n))[0] for name, n in (("i", 16), ("j", 64), ("k", 32)))
    dot = Dot(acc, (i.axis, j.axis), load(a, i.axis, k.axis), load(b, k.axis, j.axis), (), i, j, k)
    func = Func("f", (a, b, acc), (), dot)
    told = kernel_costs(Module("m", (a, b), (acc,), (), (), (func,)), H100, {})[0]
    assert told.flops == 2 * 16 * 64 * 32


def test_integer_arithmetic_is_no_flop() -> None:
    a, c = buffer("A", 4, dtype=DType.int32), buffer("C", 4, dtype=DType.int32)
    i = Axis("i")
    told = counted([a], [c], loop(i, 4, Store(c, (i,), add(load(a, i), int32(1)))))
    assert told.flops == 0 and told.nbytes == 32


def test_two_versions_of_a_parallel_body_are_one() -> None:
    source = te.placeholder((100,), name="source")
    result = te.compute((100,), lambda i: source[i] + 1.0, name="result")
    s = te.create_schedule(result)
    outer, inner = s[result].split(result.op.axis[0], 32)
    s[result].parallel(outer)
    s[result].vectorize(inner)
    told = kernel_costs(te.lower(s, "cpu"), CPU, {})[0]
    assert told.flops == 4 * 32  # the last tile has idle lanes


@pytest.mark.parametrize(("rows", "columns"), [(4096, 4096), (4001, 5003), (70000, 513)])
def test_masked_lanes_of_odd_rows_move_nothing(rows: int, columns: int) -> None:
    x = te.placeholder((rows, columns), name="x")
    told = on_gpu(te.nn.softmax(x))[-1]
    assert told.reads["x"] == pytest.approx(4 * rows * columns, rel=0.01)
    assert sum(told.writes.values()) == pytest.approx(4 * rows * columns, rel=0.01)
    assert told.bound is Bound.MEMORY


@pytest.mark.parametrize("order", ["rows", "columns", "three"])
def test_loops_that_were_fused_move_what_they_moved_before(order: str) -> None:
    """Their one index is taken apart again by divisions and remainders."""
    a, b = te.placeholder((1024, 512), name="a"), te.placeholder((1024, 512), name="b")
    out = te.compute((1024, 512), lambda i, j: a[i, j] + 2.0 * b[i, j], name="out")

    def told(fused: bool) -> KernelCost:
        s = te.create_schedule(out)
        io, jo, ii, ji = s[out].tile(*out.op.axis, 32, 64)
        inner = s[out].split(ji, factor=8) if order == "three" else (ji,)
        loops = [jo, io] if order == "columns" else [io, jo]
        s[out].reorder(*loops, ii, *inner)
        s[out].vectorize(inner[-1])
        if fused:
            loops += [ii] if order == "three" else []
            loops = [s[out].fuse(*loops)]
        s[out].parallel(loops[0])
        return kernel_costs(te.lower(s, "cpu"), CPU, {})[0]

    before, after = told(fused=False), told(fused=True)
    whole = 4.0 * 1024 * 512
    assert before.reads == after.reads == {"a": whole, "b": whole}
    assert before.writes == after.writes == {"out": whole}


def test_windows_that_overlap_are_read_once() -> None:
    x, w = te.placeholder((8194, 4098), name="x"), te.placeholder((3, 3), name="w")
    a, b = te.reduce_axis((0, 3), name="a"), te.reduce_axis((0, 3), name="b")
    out = te.compute(
        (8192, 4096), lambda i, j: te.sum(x[i + a, j + b] * w[a, b], axis=[a, b]), name="out"
    )
    told = on_gpu(out)[-1]
    assert told.reads["x"] == pytest.approx(4 * 8194 * 4098, rel=0.03)


def test_rows_read_through_an_index_come_again_where_the_cache_has_lost_them() -> None:
    table = te.placeholder((200_000, 512), name="table")
    ids = te.placeholder((400_000,), "int32", name="ids")
    out = te.compute((400_000, 512), lambda i, j: table[ids[i], j], name="out")
    told = on_gpu(out)[-1]
    drawn, whole = 4 * 400_000 * 512, 4 * 200_000 * 512
    assert whole < told.reads["table"] < drawn
    assert told.reads["ids"] == pytest.approx(4 * 400_000, rel=0.01)
    few = te.compute((400_000, 512), lambda i, j: table[ids[i] % 64, j], name="few")
    assert on_gpu(few)[-1].writes["few"] == pytest.approx(drawn, rel=0.01)


def test_a_row_that_is_read_twice_is_fetched_again_when_all_rows_together_exceed_the_cache() -> (
    None
):
    def looped(columns: int) -> KernelCost:
        x = te.placeholder((2048, columns), name="x")
        out = te.nn.softmax(x)
        s = te.create_schedule(out)
        block, row = s[out].split(out.op.axis[0], 1)
        s[out].bind(block, "blockIdx.x")
        s[out].vectorize(row)
        s[out].vectorize(s[out].split(out.op.axis[1], 1024)[1])
        for name in ("softmax.sum", "softmax.max"):
            s[name].compute_at(s[out], block)
            s[name].vectorize(s[name].split(s[name].op.reduce_axis[0], 1024)[1])
        return kernel_costs(te.lower(s, "cuda"), H100, {})[-1]

    short, long = looped(1024), looped(262_144)
    assert short.reads["x"] == pytest.approx(4 * 2048 * 1024, rel=0.02)
    assert long.reads["x"] == pytest.approx(3 * 4 * 2048 * 262_144, rel=0.02)


def test_a_product_whose_operands_exceed_the_cache_reads_them_more_than_once() -> None:
    def product(n: int) -> tuple[KernelCost, int]:
        a, b = (te.placeholder((n, n), "bfloat16", name=name) for name in "ab")
        return on_gpu(te.nn.matmul(a, b))[-1], 2 * n * n

    small, each = product(1024)
    assert sum(small.reads.values()) == pytest.approx(2 * each, rel=0.02)
    large, each = product(16384)
    assert sum(large.reads.values()) > 2.5 * each
    assert sum(large.writes.values()) == pytest.approx(each, rel=0.01)
    assert large.bound is Bound.COMPUTE


def test_symbolic_sizes_count_as_given() -> None:
    n = te.size_var("n")
    x = te.placeholder((n, 64), name="x")
    out = te.compute((n, 64), lambda i, j: te.exp(x[i, j]), name="out")
    assert on_gpu(out, n=1 << 20)[-1].nbytes == pytest.approx(2 * 4 * 64 << 20, rel=0.01)
    assert on_gpu(out, n=16)[-1].bound is Bound.LAUNCH
