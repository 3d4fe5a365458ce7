"""The text of generated kernels, and what cannot be generated."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import scans
import triton_irs as t
from irs import float32, int32, tile

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.names import Names, sanitise
from tedsl.backends.triton.emit.program import ParamKind
from tedsl.backends.triton.emit.writer import wrap
from tedsl.dtypes import DType
from tedsl.errors import BackendError, LowerError
from tedsl.expr import build as b
from tedsl.expr.nodes import Axis, AxisKind, BinaryOp, Compare, CompareOp, Expr, Unary, UnaryOp
from tedsl.ir.nodes import Accumulate, Dot, For, Guard, Load, LoopKind, Module, Store
from tedsl.lower.pipeline import lower
from tedsl.target import Target
from tedsl.tensor.reduce import simple_reducer

Golden = Callable[..., None]

CASES: dict[str, Callable[[], Module]] = {
    "softmax": lambda: t.softmax(8, 100, 128, DType.bfloat16),
    "row_sum": lambda: t.looped_sum(10, 100, 32),
    "matmul": lambda: t.matmul((128, 128, 64), (32, 32, 16)),
    "matmul_masked": lambda: t.matmul((100, 90, 50), (32, 32, 16), DType.float32),
    "matmul_descriptors": lambda: t.matmul((128, 128, 64), (32, 32, 16), shared=True),
    "matmul_descriptors_refused": lambda: t.matmul((100, 90, 50), (32, 32, 16), shared=True),
    "matmul_transposed": lambda: t.matmul(
        (128, 128, 64), (32, 32, 16), shared=True, transposed=True
    ),
    "columns": t.matmul_into_columns,
    "batched": lambda: t.batched_matmul(3, 32),
    "transpose_add": lambda: t.transpose_add(100, 16),
    "gather": lambda: t.gather(5, 33, 9),
    "argmax": lambda: t.arg_max(4, 33),
    "symbolic": t.symbolic_scale,
    "fused_grid": lambda: t.fused_grid(2, 70000, 3),
    "guarded": lambda: t.guarded_steps(5, 3),
    "update": lambda: t.update_in_memory(6, 40),
    "large": lambda: t.transpose_add(65536, 32),
}


@pytest.mark.parametrize("case", CASES)
def test_source(case: str, golden: Golden) -> None:
    golden(emit(CASES[case](), "cuda").source)


def test_the_same_module_prints_the_same_text() -> None:
    assert emit(t.arg_max(4, 33), "cuda").source == emit(t.arg_max(4, 33), "cuda").source


def test_a_softmax_prints_quickly() -> None:
    module = t.softmax(1024, 4096, 4096)
    emit(module, "cuda")
    start = time.thread_time()
    emit(module, "cuda")
    assert time.thread_time() - start < 0.05


def test_lines_fit_on_a_page() -> None:
    for make in CASES.values():
        assert max(map(len, emit(make(), "cuda").source.splitlines())) <= 130


def test_no_steps_launch_nothing() -> None:
    """Of one row the first is all there is."""
    rows = te.size_var("n")
    s = te.create_schedule(scans.running_sum(rows, 5))
    s["U"].bind(s["U"].op.axis[-1], "blockIdx.x")
    target = Target.parse("cuda:sm_90")
    program = emit(lower(s.plan, target), target)
    for size, wanted in ((1, [(1, "first")]), (4, [(1, "first"), (3, "U")])):
        launches = program.launches({rows: size})
        assert [(times, spec.func) for times, _, specs in launches for spec in specs] == wanted


def test_no_descriptors_on_sm_80() -> None:
    program = emit(t.matmul((128, 128, 64), (32, 32, 16), shared=True), "cuda:sm_80")
    assert "A_tile by plain loads: the target has no tensor descriptors" in program.source
    assert all(p.kind is ParamKind.POINTER for p in program.kernels[0].params)


def test_descriptors_say_their_block() -> None:
    (kernel,) = emit(t.matmul((128, 128, 64), (32, 32, 16), shared=True), "cuda").kernels
    found = {p.name: p.block for p in kernel.params if p.kind is ParamKind.DESCRIPTOR}
    assert found == {"A_desc": (32, 16), "B_desc": (16, 32), "C_desc": (32, 32)}
    assert [p.name for p in kernel.params if p.kind is ParamKind.POINTER] == ["bias"]


@pytest.mark.parametrize(("rows", "fits"), [(2, False), (4, False), (8, True), (16, True)])
def test_tiles_of_few_rows_have_no_descriptors(rows: int, fits: bool) -> None:
    """The next tile of a pipelined loop would start within a swizzle, or where TMA may not write:
    for 2 rows of 16 16-bit elements an H200 says `misaligned address`."""
    x, k = te.placeholder((64, 64), "uint16", name="x"), te.reduce_axis((0, 64), name="k")
    y = te.compute((64,), lambda i: te.sum(x[i, k], axis=k), name="y")
    s = te.create_schedule(y)
    block, row = s[y].split(s[y].op.axis[0], factor=rows)
    turn, lane = s[y].split(k, factor=16)
    s[y].bind(block, "blockIdx.x")
    s[y].reorder(block, turn, row, lane)
    s[y].vectorize(row)
    s[y].vectorize(lane)
    s[y].pipeline(turn, num_stages=3)
    s[s.cache_read(x, "shared", [y])].compute_at(s[y], turn)
    source = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    assert ("x_desc.load" in source) is fits
    assert ("by plain loads: its rows are no multiple of 8" in source) is not fits


def test_grid_of_symbolic_sizes() -> None:
    module = t.symbolic_scale()
    m, n = module.sizes
    (kernel,) = emit(module, "cuda").kernels
    assert kernel.grid_for({m: 9, n: 300}) == (3 * 3, 1, 1)
    assert kernel.grid_for({m: 9, n: 0}) == (0, 1, 1)


def test_offsets_beyond_32_bits_are_refused_at_the_call() -> None:
    module = t.symbolic_scale()
    m, n = module.sizes
    (kernel,) = emit(module, "cuda").kernels
    with pytest.raises(BackendError, match=r"(?s)beyond a 32-bit offset.*constant shapes"):
        kernel.grid_for({m: 4, n: 2**30})


def test_a_grid_too_large_is_refused_at_the_call() -> None:
    module = t.symbolic_scale()
    m, n = module.sizes
    (kernel,) = emit(module, "cuda").kernels
    with pytest.raises(BackendError, match=r"(?s)programs on grid axis 0.*larger split factor"):
        kernel.grid_for({m: 2**31 - 4, n: 2**20})


def test_names_are_valid_and_unique() -> None:
    assert [sanitise(n) for n in ("i.outer", "2d", "é", "")] == ["i_outer", "_2d", "v", "v"]
    names = Names()
    assert [names.fresh("x"), names.fresh("x"), names.fresh("for")] == ["x", "x_1", "for_1"]


def test_a_buffer_may_be_called_like_a_module() -> None:
    x, y = t.mem("tl", (8,)), t.mem("range", (8,))
    i = Axis("float")
    body = Store(y, (i,), Load(x, (i,)), None, tile((i, 8)))
    source = emit(t.module("triton", (x,), (y,), body), "cuda").source
    assert "def triton_1(tl_1, range_1):" in source


def test_a_tile_read_at_a_shift_is_refused() -> None:
    x, y = t.mem("X", (8,)), t.mem("Y", (8,))
    held = t.local("held", (8,))
    i, j = Axis("i"), Axis("j")
    body = t.allocate(
        (held,),
        Store(held, (i,), Load(x, (i,)), None, tile((i, 8))),
        Store(y, (j,), Load(held, (b.sub(int32(7), j),)), None, tile((j, 8))),
    )
    with pytest.raises(LowerError, match=r"(?s)'held' is indexed.*inline the producer"):
        emit(t.module("shift", (x,), (y,), body), "cuda")


def test_a_tile_that_is_no_power_of_two_is_refused() -> None:
    y = t.mem("Y", (6,))
    held = t.local("held", (6,))
    i = Axis("i")
    body = t.allocate((held,), Store(y, (i,), Load(held, (i,)), None, tile((i, 6))))
    with pytest.raises(LowerError, match=r"(?s)'held' has an extent.*power of two"):
        emit(t.module("six", (), (y,), body), "cuda")


def test_a_small_dot_is_refused() -> None:
    with pytest.raises(LowerError, match=r"(?s)contract axis 'k' of at least 16.*has 8"):
        emit(t.matmul((32, 32, 16), (16, 16, 8)), "cuda")


def test_a_dot_into_memory_is_refused() -> None:
    a, c = t.mem("A", (16, 16)), t.mem("C", (16, 16))
    i, j, k = Axis("i"), Axis("j"), Axis("k", AxisKind.REDUCE)
    ti, tj, tk = tile((i, 16), (j, 16), (k, 16))
    body = Dot(c, (i, j), Load(a, (i, k)), Load(a, (k, j)), (), ti, tj, tk)
    with pytest.raises(LowerError, match=r"(?s)'C' in device memory.*cache_write"):
        emit(t.module("memory", (a,), (c,), body), "cuda")


def test_an_update_shared_by_programs_is_refused() -> None:
    x, y = t.mem("X", (8,)), t.mem("Y", (1,))
    i = Axis("i")
    add = simple_reducer(BinaryOp.ADD, DType.float32)
    body = t.grid(i, 8, Accumulate((y,), (int32(0),), add, (Load(x, (i,)),)))
    with pytest.raises(LowerError, match=r"(?s)several programs would update.*'Y'.*rfactor"):
        emit(t.module("shared", (x,), (y,), body), "cuda")


def test_guards_say_which_program_updates_an_element() -> None:
    """For each element one: `i == j` lets one program through for each j."""
    x, y = t.mem("X", (8,)), t.mem("Y", (8,))
    i, j = Axis("i"), Axis("j")
    add = simple_reducer(BinaryOp.ADD, DType.float32)

    def module(index: Expr) -> Module:
        update = Accumulate((y,), (index,), add, (Load(x, (i,)),))
        own = Guard(Compare(CompareOp.EQ, i, j), update)
        return t.module("own", (x,), (y,), t.grid(i, 8, For(j, int32(8), LoopKind.SERIAL, own)))

    assert "tl.store(y" in emit(module(j), "cuda").source.lower()
    with pytest.raises(LowerError, match="several programs would update"):
        emit(module(int32(0)), "cuda")


def test_an_operator_without_meaning_is_refused() -> None:
    module = t.pointwise(8, 8, (DType.int32,), DType.int32, lambda x: Unary(UnaryOp.EXP, x))
    with pytest.raises(BackendError, match=r"(?s)exp takes floats, not int32.*cast"):
        emit(module, "cuda")


def test_repeated_loads_are_done_once() -> None:
    source = emit(t.softmax(8, 128, 128), "cuda").source
    assert source.count("tl.load") == 1


def test_a_store_between_two_loads_keeps_both() -> None:
    x, y = t.mem("X", (8,)), t.mem("Y", (8,))
    i, j, k = Axis("i"), Axis("i"), Axis("i")
    stmts = (
        Store(y, (i,), Load(x, (i,)), None, tile((i, 8))),
        Store(x, (j,), float32(1.0), None, tile((j, 8))),
        Store(y, (k,), Load(x, (k,)), None, tile((k, 8))),
    )
    source = emit(t.module("twice", (x,), (y,), t.allocate((), *stmts)), "cuda").source
    assert source.count("tl.load") == 2
    assert source.count("tl.debug_barrier()") == 2


def test_two_reducers_of_one_name_get_two_functions() -> None:
    first, second = t.arg_max(4, 8), t.arg_max(4, 16)
    module = Module(
        "both", first.inputs + second.inputs, first.outputs + second.outputs, (), (),
        first.funcs + second.funcs,
    )  # fmt: skip
    source = emit(module, "cuda").source
    assert source.count("def combine_argmax") == 1
    assert re.findall(r"def (argmax\w*)", source) == ["argmax", "argmax_1"]


def test_a_kernel_that_stores_nothing_is_a_function() -> None:
    """Its one statement starts a value that nobody reads: of a softmax over rows of length 0."""
    held = t.local("held", (1,))
    body = t.allocate((held,), Store(held, (int32(0),), float32(0.0)))
    i, k = Axis("i"), Axis("k")
    alone = emit(t.module("alone", (), (), body), "cuda").source
    looped = emit(t.module("looped", (), (), t.grid(i, 4, t.serial(k, 4, body))), "cuda").source
    for source in (alone, looped):
        compile(source, "<kernel>", "exec")


def test_bool_memory_is_read_as_it_is() -> None:
    module = t.pointwise(8, 8, (DType.bool,), DType.bool, lambda x: Unary(UnaryOp.NOT, x))
    assert "~x0" in emit(module, "cuda").source


def test_shared_tiles_need_sixteen_bytes() -> None:
    module = t.matmul((32, 20, 32), (16, 16, 16), DType.bfloat16, shared=True)
    source = emit(module, "cuda").source
    assert "# B_tile by plain loads: rows are no multiple of 16 bytes apart" in source
    assert "A_desc.load" in source


# Found by drawn computations --------------------------------------------------------------------


def test_a_row_that_a_row_names_is_one_number() -> None:
    """Under the mask of a tile of columns a scalar is loaded as a scalar, for the next one too."""
    m, n = te.var("m"), te.var("n")
    a, b = (te.placeholder((9,), "int32", name=name) for name in "AB")
    i = te.placeholder((m,), "int32", name="I")
    y = te.compute((m, n), lambda r, c: a[b[i[r]]] + te.if_then_else(i[r] > 2, 1, 2), name="y")
    module = lower(te.schedule_for(y, "cuda", {"y.rows": 1}).plan, Target.parse("cuda:sm_90"))
    source = emit(module, "cuda:sm_90").source
    row = "    a = tl.load(A + b, mask=(0 <= b) & (b < 9), other=0)\n"
    assert source.count(row) == source.count("tl.load(B") == 3 and "mask=m_c)" in source


def test_what_the_last_programs_alone_need_is_made_there() -> None:
    x = te.placeholder((7, 7, 7), name="x")
    k = te.reduce_axis((0, 7), name="k")
    y = te.compute((7, 7), lambda i, j: te.sum(x[i, j, k], axis=k), name="y")
    s = te.create_schedule(y)
    parts = s[s.rfactor(y, s[y].split(k, nparts=2)[0])]
    parts.bind(parts.op.axis[0], "blockIdx.x")
    for axis in s[y].op.axis:
        s[y].vectorize(axis)
    s[y].compute_last(parts)
    source = emit(lower(s.plan, Target.parse("cuda:sm_90")), "cuda:sm_90").source
    assert source.index("if before == 1:") < source.index("m_i = ") < source.index("m_ij = ")


def test_a_call_without_arguments_stays_one_line_however_deep() -> None:
    indent = " " * 120
    assert wrap("tl.debug_barrier()", indent) == [f"{indent}tl.debug_barrier()"]
    assert wrap("tl.load(x)", indent) == [f"{indent}tl.load(", f"{indent}    x,", f"{indent})"]
