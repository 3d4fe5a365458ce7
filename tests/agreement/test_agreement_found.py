"""Failures that drawing found, shrunk, each with a name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import Case

import tedsl as te
from tedsl.backends.cpu.emit.module import emit_module
from tedsl.backends.triton.emit.module import emit
from tedsl.ir.interp import run
from tedsl.reference.reference import evaluate
from tedsl.runtime.arguments.sizes import evaluate_shape
from tedsl.schedules import schedule_for
from tedsl.scheduling.handles.schedule import Schedule


def check(case: Case, schedule: Schedule, target: str) -> None:
    """The lowered module, verified after every pass, computes what the definitions say."""
    module = te.lower(schedule, target, check=True)
    by_name = {tensor.name: array for tensor, array in case.inputs.items()}
    sizes = {var: value for var, value in case.sizes.items() if var in set(module.sizes)}
    result = run(module, {buffer: by_name[buffer.name] for buffer in module.inputs}, sizes)
    want = evaluate(case.outputs, case.inputs, case.sizes)
    for buffer, expected in zip(module.outputs, want, strict=True):
        np.testing.assert_array_equal(result[buffer], expected)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_gathered_stage_attached_where_it_is_read(target: str) -> None:
    """The region of the producer is one row, at a place that is read from memory."""
    n = te.size_var("n")
    table = te.placeholder((16,), "float32", name="table")
    index = te.placeholder((n,), "int32", name="index")
    shifted = te.compute((16,), lambda i: table[i] + 1.0, name="shifted")
    picked = te.compute((n,), lambda i: shifted[index[i]], name="picked")
    schedule = te.create_schedule(picked)
    schedule[shifted].compute_at(schedule[picked], schedule[picked].op.axis[0])
    inputs = {table: np.arange(16, dtype=np.float32), index: np.array([3, 0, 15], np.int32)}
    check(Case([picked], inputs, {n: 3}), schedule, target)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_producer_that_its_guard_skips(target: str) -> None:
    """Where the guard is false the attached producer is not computed, and what is read of it does
    not count."""
    source = te.placeholder((7, 7), "float32", name="source")
    double = te.compute((7, 7), lambda i, j: source[i, j] * 2.0, name="double")
    moved = te.compute(
        (7, 7), lambda i, j: te.if_then_else(j >= 1, double[i, j - 1], 1.0), name="moved"
    )
    schedule = te.create_schedule(moved)
    schedule[double].compute_at(schedule[moved], schedule[moved].op.axis[1])
    data = np.arange(49, dtype=np.float32).reshape(7, 7)
    check(Case([moved], {source: data}), schedule, target)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_parallel_loop_inside_a_serial_one(target: str) -> None:
    """Threads on the CPU; where the grid has no loop outside it, a loop of one program."""
    source = te.placeholder((8, 16), "float32", name="source")
    result = te.compute((8, 16), lambda i, j: source[i, j] + 1.0, name="result")
    schedule = te.create_schedule(result)
    schedule[result].parallel(schedule[result].op.axis[1])
    data = np.arange(128, dtype=np.float32).reshape(8, 16)
    check(Case([result], {source: data}), schedule, target)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_tail_of_an_attached_reduction(target: str) -> None:
    """The last tile holds one column; padded lanes may not store over it."""
    a = te.placeholder((33, 8), "float32", name="a")
    b = te.placeholder((8, 17), "float32", name="b")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((33, 17), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    d = te.compute((33, 17), lambda i, j: te.relu(c[i, j]) + 1.0, name="d")
    schedule = te.create_schedule(d)
    _, jo, _, ji = schedule[d].tile(*schedule[d].op.axis, 16, 8)
    schedule[c].compute_at(schedule[d], jo)
    schedule[d].vectorize(ji)
    inputs = {
        a: np.arange(33 * 8, dtype=np.float32).reshape(33, 8) % 7,
        b: np.arange(8 * 17, dtype=np.float32).reshape(8, 17) % 5,
    }
    check(Case([d], inputs), schedule, target)


@pytest.mark.cpu
def test_masked_tail_of_a_narrow_row_writes_nothing_else() -> None:
    """LLVM turned a masked 16-bit store of one constant lane into a 32-bit store."""
    n = te.size_var("n")
    source = te.placeholder((n, 9), "bfloat16", name="source")
    half = te.const(0.5, "bfloat16")
    result = te.compute((n, 9), lambda i, j: source[i, j] * half, name="result")
    schedule = te.create_schedule(result)
    *_, inner = schedule[result].tile(*result.op.axis, 2, 4)
    schedule[result].vectorize(inner)
    kernel = te.build(schedule, "cpu", cache=False)
    data = np.arange(27).reshape(3, 9).astype("bfloat16")
    np.testing.assert_array_equal(kernel(data), data * data.dtype.type(0.5))


def test_exclusive_or_with_true_is_not() -> None:
    source = te.placeholder((4,), "bool", name="source")
    result = te.compute((4,), lambda i: source[i] ^ te.const(True, "bool"), name="result")
    data = np.array([True, False, False, True])
    np.testing.assert_array_equal(evaluate(result, {source: data})[0], ~data)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_symbolic_rows_of_an_empty_dimension(target: str) -> None:
    """The range of a product with an empty range is empty."""
    n, m = te.size_var("n"), te.size_var("m")
    source = te.placeholder((0, n, m), "float32", name="source")
    k = te.reduce_axis((0, m), name="k")
    top = te.compute((0, n), lambda i, j: te.max(source[i, j, k], axis=k), name="top")
    result = te.compute((0, n, m), lambda i, j, e: source[i, j, e] - top[i, j], name="result")
    schedule = te.create_schedule(result)
    fused = schedule[result].fuse(*result.op.axis)
    schedule[result].split(fused, 8)
    data = np.zeros((0, 2, 3), np.float32)
    check(Case([result], {source: data}, {n: 2, m: 3}), schedule, target)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_fused_loop_over_nothing(target: str) -> None:
    """Its axes are remainders by an extent of 0."""
    source = te.placeholder((3, 0), "float32", name="source")
    k = te.reduce_axis((0, 0), name="k")
    result = te.compute((3,), lambda i: te.sum(source[i, k], axis=k), name="result")
    schedule = te.create_schedule(result)
    outer, _ = schedule[result].split(k, factor=2)
    schedule.rfactor(result, outer, factor_axis=-1)
    stage = schedule["result.rf"]
    i, part = stage.op.axis
    piece, _ = stage.split(part, factor=1)
    stage.fuse(i, piece)
    data = np.zeros((3, 0), np.float32)
    check(Case([result], {source: data}), schedule, target)


def test_cut_of_a_parallel_loop_to_single_elements() -> None:
    """Under the condition of a part the index of the result is a constant: nothing races."""
    source = te.placeholder((1, 2), "float32", name="source")
    k = te.reduce_axis((0, 1), name="k")
    result = te.compute((2,), lambda i: te.sum(source[k, i], axis=k, init=1.0), name="result")
    schedule = te.create_schedule(result)
    (i,) = schedule[result].op.axis
    schedule[result].parallel(i)
    schedule[result].reorder(k, i)
    schedule[result].cut(i, 1)
    check(Case([result], {source: np.array([[1, 2]], np.float32)}), schedule, "cpu")


@pytest.mark.ptxas
def test_constants_of_doubles_keep_their_digits() -> None:
    result = te.compute((4,), lambda i: te.const(1.0 / 3.0, "float64"), name="result")
    kernel = te.build(te.create_schedule(result), "triton-interpret")
    np.testing.assert_array_equal(kernel(), np.full(4, 1.0 / 3.0))


def guarded_sums() -> tuple[list[te.Tensor], te.Tensor]:
    """A recurrence that asks whether a row is there: no row is given."""
    source = te.placeholder((5, 3), "float32", name="source")
    state = te.placeholder((5, 3), "float32", name="state")
    none = te.compute((0, 3), lambda t, i: 0.0, name="none")
    step = te.compute(
        (5, 3),
        lambda t, i: source[t, i] + te.if_then_else(t >= 1, state[t - 1, i], 0.0),
        name="step",
    )
    made = te.scan(none, step, state, name="sums")
    return [made] if isinstance(made, te.Tensor) else made, source


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_carried_row_before_the_first(target: str) -> None:
    """A loop around the steps carries the row before: at the first step there is none to load."""
    outputs, source = guarded_sums()
    schedule = te.create_schedule(outputs)
    t, i = schedule["sums"].leaf_iter_vars
    schedule["sums"].reorder(i, t)
    data = np.arange(15, dtype=np.float32).reshape(5, 3)
    check(Case(outputs, {source: data}), schedule, target)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_row_that_is_not_there_yet_is_not_read(target: str) -> None:
    """Of two steps the guarded one reads row 0, whatever the step: it is inside, and unwritten at
    the first."""
    source = te.placeholder((2,), "float32", name="source")
    state = te.placeholder((2,), "float32", name="state")
    none = te.compute((0,), lambda t: 0.0, name="none")
    step = te.compute(
        (2,), lambda t: source[t] + te.if_then_else(t >= 1, state[t - 1], 0.0), name="step"
    )
    made = te.scan(none, step, state, name="sums")
    outputs = [made] if isinstance(made, te.Tensor) else made
    data = np.arange(2, dtype=np.float32) + 1
    check(Case(outputs, {source: data}), te.create_schedule(outputs), target)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_idle_lanes_may_read_what_aligns_a_row(target: str) -> None:
    """Rows of three are as long as four, and so is the tile: its last lane reads what nobody wrote,
    and nothing comes of it."""
    n = te.size_var("n")
    source = te.placeholder((n, 3), "float32", name="source")
    double = te.compute((n, 3), lambda i, j: source[i, j] * 2.0, name="double")
    k = te.reduce_axis((0, n), name="k")
    result = te.compute((3,), lambda i: te.sum(double[k, i], axis=k), name="result")
    schedule = te.create_schedule(result)
    schedule[double].storage_align(schedule[double].op.axis[0], 2, 0)
    schedule[result].vectorize(schedule[result].op.axis[0])
    data = np.arange(15, dtype=np.float32).reshape(5, 3)
    check(Case([result], {source: data}, {n: 5}), schedule, target)


@pytest.mark.parametrize("wide", [0, 1, 2])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_rows_of_two_widths_are_joined(target: str, wide: int) -> None:
    """The default rules take the short rows of a product as one long axis, whatever they count in:
    the tile stays in registers."""
    shape = [te.const(n, "int64" if p == wide else "int32") for p, n in enumerate((4, 5, 17))]
    a, b = te.placeholder(shape, "float32", name="a"), te.placeholder((shape[2], 2), name="b")
    moved = te.compute(
        shape, lambda i, j, k: te.if_then_else(i >= 1, a[i - 1, j, k], 1.0), name="moved"
    )
    k = te.reduce_axis((0, shape[2]), name="k")
    c = te.compute(
        (*shape[:2], 2), lambda i, j, n: te.sum(moved[i, j, k] * b[k, n], axis=k), name="c"
    )
    schedule = schedule_for([c], target)
    if target != "cpu":
        assert any(step.primitive == "transform_layout" for step in schedule.trace.steps)
        assert not te.lower(schedule, target).workspaces
    inputs = {
        a: np.arange(4 * 5 * 17, dtype=np.float32).reshape(4, 5, 17) % 7,
        b: np.arange(34, dtype=np.float32).reshape(17, 2) % 5,
    }
    check(Case([c], inputs), schedule, target)


def stepped(rows: te.Expr | int, columns: te.Expr | int) -> tuple[te.Tensor, te.Tensor]:
    """A recurrence in whose steps every other element of a stage is read, and its input."""
    x, s = (te.placeholder((rows, columns), "float32", name=name) for name in ("x", "s"))
    first = te.compute((1, columns), lambda t, i: x[t, i], name="first")
    twice = (rows, columns * 2)
    between = te.compute(twice, lambda t, i: s[t - 1, columns - 1 - i // 2] + 1.0, name="between")
    step = te.compute((rows, columns), lambda t, i: between[t, i * 2] + x[t, i], name="step")
    made = te.scan(first, step, s, inputs=[x], name="sums")
    assert isinstance(made, te.Tensor)
    return made, x


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("columns", [0, 1, 3])
def test_workspaces_of_nothing_have_no_elements(target: str, columns: int) -> None:
    """2 * m - 1 elements are read of m columns: none of none."""
    m = te.size_var("m")
    made, x = stepped(4, m)
    schedule = te.create_schedule(made)
    data = np.arange(4 * columns, dtype=np.float32).reshape(4, columns)
    check(Case([made], {x: data}, {m: columns}), schedule, target)
    (want,) = evaluate([made], {x: data}, {m: columns})
    np.testing.assert_array_equal(te.build(schedule, target=target, cache=False)(data), want)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_regions_of_loops_that_never_run_are_empty(target: str) -> None:
    """A recurrence of no more rows than it starts with has no steps: nothing is read in them."""
    x, s = te.placeholder((3,), name="x"), te.placeholder((3,), name="s")
    first = te.compute((3,), lambda t: x[t], name="first")
    between = te.compute((3,), lambda t: s[t - 2] * 0.5, name="between")
    step = te.compute((3,), lambda t: s[t - 3] - between[t], name="step")
    made = te.scan(first, step, s, name="sums")
    assert isinstance(made, te.Tensor)
    last = te.compute((3,), lambda t: made[t] + made[t], name="last")
    schedule = te.create_schedule(last)
    schedule["between"].transform_layout(lambda t: ((t + 1) // 3, t, (t + 1) % 3))
    assert "-1" not in str(te.lower(schedule, target)).split("func")[0]
    data = np.arange(3, dtype=np.float32)
    check(Case([last], {x: data}), schedule, target)
    np.testing.assert_array_equal(te.build(schedule, target=target, cache=False)(data), data * 2)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("widths", [("int64", "int32"), ("int32", "int64")])
def test_definitions_are_substituted_in_their_own_width(
    target: str, widths: tuple[str, str]
) -> None:
    """What computes with an axis of one width is read at places of another."""
    n = te.size_var("n", widths[0])
    table = te.placeholder((n,), "float32", name="table")
    index = te.placeholder((4,), widths[1], name="index")
    odd = te.compute((n,), lambda i: te.select(i % 2 < 1, table[i], -table[i]), name="odd")
    picked = te.compute((4,), lambda i: odd[index[i]], name="picked")
    schedule = te.create_schedule(picked)
    schedule[odd].compute_inline()
    data, places = np.arange(7, dtype=np.float32), np.array([3, 0, 6, 5], widths[1])
    check(Case([picked], {table: data, index: places}, {n: 7}), schedule, target)
    built = te.build(schedule, target=target, cache=False)
    np.testing.assert_array_equal(built(data, places), [-3, 0, 6, -5])


def test_regions_without_a_constant_size_are_kernels() -> None:
    """Of a stage that a tile reads at both ends there is no part of a constant size."""
    n = te.size_var("n")
    x = te.placeholder((n, 3), name="x")
    curve = te.compute((n, 3), lambda i, j: te.exp(x[i, j]) * te.tanh(x[i, j]), name="curve")
    both = te.compute((n, 3), lambda i, j: curve[n - 1 - i, j] + curve[i, j], name="both")
    schedule = schedule_for(both, "cpu", {"curve.place": "tile"})
    data = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    half = np.exp(data) * np.tanh(data)
    built = te.build(schedule, target="cpu", cache=False)
    np.testing.assert_allclose(built(data), half + half[::-1], rtol=1e-5)


def test_operands_read_twice_are_staged_once() -> None:
    """A weighted sum of squares: the copy engine moves what is squared for both of its factors."""
    n = te.size_var("n")
    x, w = te.placeholder((n, 64), name="x"), te.placeholder((64, n), name="w")
    k = te.reduce_axis((0, 64), name="k")
    y = te.compute((n, n), lambda i, j: te.sum(x[i, k] * x[i, k] * w[k, j], axis=k), name="y")
    s = schedule_for(y, "cuda:sm_90", {"y.descriptors": True})
    staged = [stage.name for stage in s.stages if stage.name.endswith(".shared")]
    assert staged == ["x.shared"]


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("count,unrolled", [(16, True), (600, False), (8192, False)])
def test_loops_are_unrolled_as_far_as_triton_compiles_them(
    count: int, unrolled: bool, lanes: int
) -> None:
    """A pass of Triton takes the cube of the number of accesses to tiles: a minute for 600."""
    x = te.placeholder((count, 8), name="x")
    y = te.compute((count, 8), lambda i, j: te.exp(x[i, j]) * te.tanh(x[i, j]), name="y")
    s = te.create_schedule(y)
    if lanes == 1:
        s[y].reorder(y.op.axis[1], y.op.axis[0])
        unrolled |= count == 600
    else:
        s[y].vectorize(y.op.axis[1])
    s[y].unroll(y.op.axis[0])
    program = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90")
    assert ("tl.static_range" in program.source) == unrolled
    assert ("i stays a loop" in program.source) != unrolled


@pytest.mark.parametrize("count,unrolled", [(8, True), (64, False)])
def test_loops_inside_unrolled_ones_are_counted(count: int, unrolled: bool) -> None:
    """ptxas takes seconds for 250 loops beside each other and minutes for 500; LLVM writes out the
    eight iterations of the loop between."""
    n = te.size_var("n")
    x = te.placeholder((count, n), name="x")
    y = te.compute((count, n), lambda i, j: x[i, j] * 2.0, name="y")
    s = te.create_schedule(y)
    i, j = s[y].op.axis
    s[y].unroll(i)
    s[y].split(j, nparts=8)
    source = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    assert ("tl.static_range" in source) == unrolled


def test_the_last_program_may_fold_in_memory() -> None:
    """It alone runs what comes last, of which it stores partial results."""
    x = te.placeholder((5, 7), name="x")
    k = te.reduce_axis((0, 7), name="k")
    largest = te.compute((5,), lambda i: te.max(x[i, k], axis=k), name="largest")
    s = te.create_schedule(largest)
    _, inner = s[largest].split(k, factor=1)
    partial = s.rfactor(largest, inner, factor_axis=-1)
    s[partial].bind(s[partial].op.axis[0], "blockIdx.x")
    last = s["largest"]
    (merged,) = last.op.reduce_axis
    outer, inner = last.split(merged, factor=1)
    last.vectorize(inner)
    last.reorder(outer, inner, last.op.axis[0])
    last.compute_last(s[partial])
    data = np.arange(35, dtype=np.float32).reshape(5, 7)
    built = te.build(s, target="triton-interpret", cache=False)
    np.testing.assert_array_equal(built(data), data.max(1))


def test_what_finishes_a_reduction_is_not_computed_in_its_loop() -> None:
    """Parts of a quantised sum are scaled by the whole maximum, when all of them are added."""
    n = te.size_var("n")
    x = te.placeholder((2, n), name="x")
    k = te.reduce_axis((0, n), name="k")
    most = te.compute((2,), lambda i: te.max(te.abs(x[i, k]), axis=k), name="most")
    k = te.reduce_axis((0, n), name="k")
    y = te.compute((2,), lambda i: te.sum(x[i, k] / (most[i] + 0.5), axis=k), name="y")
    s = te.create_schedule(y)
    outer, _ = s[y].split(s["y"].op.reduce_axis[0], factor=16)
    s.split_online(y, outer)
    row, parts = s["y"].op.axis[0], s["y"].op.reduce_axis[0]
    with pytest.raises(te.ScheduleError, match="the finish of y reads most after the reduce loop"):
        s["most"].compute_at(s["y"], parts)
    s["most"].compute_at(s["y"], row)
    data = np.linspace(-2, 3, 74, dtype=np.float32).reshape(2, 37)
    want = data.sum(1) / (np.abs(data).max(1) + 0.5)
    np.testing.assert_allclose(te.build(s, target="cpu", cache=False)(data), want, rtol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "layout",
    [
        lambda i: (i % 1, i),
        lambda i: (i + te.const(3, "int64"),),
        lambda i: (te.cast(i, "int64"), te.const(0, "int64")),
    ],
)
def test_a_layout_is_what_its_trace_says(layout: Any, dynamic: bool) -> None:
    """Types that constants and casts of an index were written in are not in a trace."""
    size = te.size_var("n", "int64") if dynamic else 6
    x = te.placeholder((size,), name="x")
    y = te.compute((size,), lambda i: x[i] + 1, name="y")
    z = te.compute((size,), lambda i: y[i] * 2, name="z")
    s = te.create_schedule(z)
    s[y].transform_layout(layout)
    again = te.replay(s.definition, s.trace)
    assert str(again) == str(s) and not s.diff(again)


def test_a_stage_can_follow_the_same_leader_at_another_loop() -> None:
    x = te.placeholder((4, 6), name="x")
    a = te.compute((4, 6), lambda i, j: x[i, j], name="a")
    b = te.compute((4, 6), lambda i, j: x[i, j] + 1, name="b")
    s = te.create_schedule([a, b])
    s[b].compute_with(s[a], a.op.axis[0])
    s[b].compute_with(s[a], a.op.axis[1])
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    first, second = te.build(s, target="cpu", cache=False)(data)
    np.testing.assert_array_equal(first + 1, second)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "copies,wide,behind", [(16, 1, False), (128, 1, True), (24, 9, True), (8, 200, False)]
)
def test_many_reads_under_conditions_are_behind_branches(
    copies: int, wide: int, behind: bool
) -> None:
    """LLVM took minutes over hundreds of choices between two addresses in a block, those of short
    loops that it writes out included; loops that stay loops have blocks of their own."""
    x = te.placeholder((7, copies, wide), "int32", name="x")
    k = te.reduce_axis((0, 2), name="k")
    y = te.compute(
        (4, copies, wide),
        lambda i, j, h: te.max(
            te.if_then_else(i * 2 + k < 7, x[i * 2 + k, j, h] + 1, -5)
            + te.if_then_else(i >= 1, x[i - 1, j, h], 0),
            axis=k,
        ),
        name="y",
    )
    s = te.create_schedule(y)
    s[y].unroll(y.op.axis[1])
    source = emit_module(te.lower(s, "cpu"))
    assert ("ptr @tedsl.zero\n" not in source) == behind
    data = np.arange(7 * copies * wide, dtype=np.int32).reshape(7, copies, wide) * 37 % 101
    np.testing.assert_array_equal(te.build(s, "cpu", cache=False)(data), evaluate(y, {x: data})[0])


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("modulus", [2, 3])
@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", ["skew", "split", "first"])
def test_skewed_axes_of_nothing_leave_identities(
    how: str, known: bool, size: int, modulus: int, target: str
) -> None:
    """One iteration more than none is a loop that vanishes, whose guard skipped the identity."""
    m: te.Expr | int = size if known else te.size_var("m")
    x = te.placeholder((5, m), name="x")
    k = te.reduce_axis((0, m), name="k")
    infinity = te.const(float("inf"), "float32")
    both = te.comm_reducer(
        lambda a, b: (te.minimum(a[0], b[0]), te.maximum(a[1], b[1])),
        lambda *_: (infinity, -infinity),
        name="both",
    )
    least, most = te.compute((5,), lambda i: both((x[i, k], x[i, k]), axis=[k]), name="y")
    s = te.create_schedule([least, most])
    (i,), (k,) = s[least].op.axis, s[least].op.reduce_axis
    skewed = s[least].skew(k, i, step=1, modulus=modulus)
    if how == "split":
        s[least].partition(s[least].split(skewed, factor=4)[0], policy="ends")
    if how == "first":
        s[least].reorder(skewed, i)
    data = np.arange(5 * size, dtype=np.float32).reshape(5, size)
    sizes = {} if isinstance(m, int) else {m: size}
    check(Case([least, most], {x: data}, sizes), s, target)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", ["online", "split", "parts"])
def test_quotients_of_nothing_are_not_summed(how: str, known: bool, size: int, target: str) -> None:
    """A sum of quotients is computed as a quotient of sums, which over an empty axis is 0 / 0."""
    m: te.Expr | int = size if known else te.size_var("m")
    x = te.placeholder((5, m), name="x")
    ks = [te.reduce_axis((0, m), name=f"k{n}") for n in range(2)]
    total = te.compute((5,), lambda i: te.sum(x[i, ks[0]], axis=ks[0]), name="total")
    y = te.compute((5,), lambda i: te.sum(x[i, ks[1]] / total[i], axis=ks[1]), name="y")
    s = te.create_schedule(y)
    (k,) = s[y].op.reduce_axis
    if how == "online":
        s[y].online(k)
    elif how == "split":
        s[y].online(s[y].split(k, factor=2)[0])
    else:
        s.split_online(y, s[y].split(k, nparts=3)[0])
    module = te.lower(s, target, check=True)
    data = np.ones((5, size), np.float32)
    found = run(module, {module.inputs[0]: data}, {v: size for v in module.sizes})
    want = np.full(5, 1.0 if size else 0.0, np.float32)
    np.testing.assert_allclose(found[module.outputs[0]], want, rtol=1e-6)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret", "cuda:sm_90"])
def test_memory_of_loops_that_never_run(target: str) -> None:
    """The region that an interleaved loop reads has 4 * ceil(n / 4) - 3 elements, and none where n
    is 0: memory is never of a negative size, and no size is taken to be at least 1."""
    n = te.size_var("n")
    x, w = te.placeholder((n,), "int32", name="x"), te.placeholder((8,), "int32", name="w")
    twice = te.compute((n,), lambda i: x[i] * 2, name="twice")
    k = te.reduce_axis((0, n), name="k")
    total = te.compute((8,), lambda i: te.sum(twice[k] + i * 0, axis=k), name="total")
    moved = te.compute((8,), lambda i: te.if_then_else(n > 0, total[i] + w[i] * n, 5), name="moved")
    schedule = te.create_schedule(moved)
    outer, inner = schedule[total].split(k, factor=4)
    schedule[total].reorder(inner, outer)
    schedule[total].compute_at(schedule[moved], schedule[moved].op.axis[0])
    schedule[twice].compute_at(schedule[total], inner)
    module = te.lower(schedule, target, check=True)
    for size in (0, 1, 2, 3, 4, 5, 17):
        for buffer in module.workspaces:
            assert evaluate_shape(buffer.shape, dict.fromkeys(module.sizes, size))[0] >= 0
        if target != "cuda:sm_90":
            inputs = {x: np.arange(size, dtype=np.int32), w: np.arange(8, dtype=np.int32)}
            check(Case([moved], inputs, {n: size}), schedule, target)


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("how", ["unroll", "parallel", "serial", "reverse"])
def test_cuts_at_a_wider_size(how: str, target: str) -> None:
    """A loop of int32 is cut at a size of int64: its positions stay int32, wherever they stand."""
    n = te.size_var("n", "int64")
    index, table = te.placeholder((7,), "int32", name="index"), te.placeholder((7, n), name="table")
    turned = te.compute((7, n), lambda i, j: table[(index[i] * 5 - i) % 7, j], name="turned")
    schedule = te.create_schedule(turned)
    stage = schedule[turned]
    i = stage.op.axis[0]
    stage.cut(i, 3, schedule.size("n") - 4)
    getattr(stage, how)(i)
    rng = np.random.default_rng(3)
    for size in (3, 9, 20):
        inputs = {
            index: rng.integers(0, 7, 7).astype(np.int32),
            table: rng.integers(0, 9, (7, size)).astype(np.float32),
        }
        check(Case([turned], inputs, {n: size}), schedule, target)


def _log_sum(a: te.Expr, b: te.Expr) -> te.Expr:
    return te.maximum(a, b) + te.log1p(te.exp(te.minimum(a, b) - te.maximum(a, b)))


def _mean(a: tuple[te.Expr, ...], b: tuple[te.Expr, ...]) -> tuple[te.Expr, ...]:
    return (a[0] * a[1] + b[0] * b[1]) / (a[1] + b[1]), a[1] + b[1]


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
@pytest.mark.parametrize("extent", [3, 9, 17])
@pytest.mark.parametrize("kind", ["logs", "means"])
def test_two_identities_make_one(kind: str, extent: int, target: str) -> None:
    """Masked lanes meet each other: exp(-inf - -inf) and 0 / 0 are no numbers."""
    logs = te.comm_reducer(_log_sum, lambda dtype: te.const(float("-inf"), dtype), "logs")
    means = te.comm_reducer(_mean, lambda *dtypes: [te.const(0, d) for d in dtypes], "means")
    x, k = te.placeholder((extent, extent), name="x"), te.reduce_axis((0, extent), name="k")

    def folded(i: te.Expr) -> Any:
        if kind == "logs":
            return logs(x[i, k], k, where=k <= i)
        return means((x[i, k], te.const(1.0, "float32")), k, where=k <= i)

    s = te.create_schedule(te.compute((extent,), folded, name="folded"))
    s["folded"].vectorize(s["folded"].split(k, factor=8 if target == "cpu" else 32)[1])
    data = np.linspace(-1, 1, extent**2, dtype=np.float32).reshape(extent, extent)
    found = te.build(s, target, cache=False)(data)
    for got, want in zip(np.atleast_2d(found), evaluate(s.outputs, {x: data}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
