"""What a program of tiles cannot hold in registers goes through memory, with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from lowering import after_passes, agrees

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.names import Names
from tedsl.backends.triton.emit.writer import Writer
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import Buffer
from tedsl.scheduling.handles.schedule import Schedule

TARGET = "triton-interpret"
Golden = Callable[..., None]


def in_memory(s: Schedule, target: str = TARGET) -> list[str]:
    """The workspaces of which each program has a part."""
    return [buffer.name for buffer in te.lower(s, target).workspaces if buffer.private]


def blocked(out: te.Tensor, factor: int = 8) -> tuple[Schedule, Axis]:
    """Programs of one tile of the last axis each."""
    s = te.create_schedule(out)
    outer, inner = s[out].split(out.op.axis[-1], factor)
    s[out].reorder(outer, *out.op.axis[:-1], inner)
    s[out].bind(outer, "blockIdx.x")
    s[out].vectorize(inner)
    return s, outer


def halo(n: int = 32, shift: int = 2) -> tuple[te.Tensor, te.Tensor]:
    """A stage and one that reads it at a shift."""
    a = te.placeholder((n + shift,), name="A")
    b = te.compute((n + shift,), lambda i: a[i] + 1.0, name="B")
    return b, te.compute((n,), lambda i: b[i] + b[i + shift], name="C")


def test_a_tile_read_at_a_shift(golden: Golden) -> None:
    b, c = halo()
    s, outer = blocked(c)
    s[b].compute_at(s[c], outer)
    seen = after_passes(s, "cuda:sm_90")
    golden(f"{seen['run_backwards']}\n\nthrough_memory\n\n{seen['through_memory']}")
    assert in_memory(s) == ["B_memory"]
    assert agrees(s)


@pytest.mark.parametrize(("n", "factor"), [(32, 8), (33, 8), (30, 3), (7, 5), (5, 16)])
@pytest.mark.parametrize("part", [1, 3, 4])
def test_a_tile_stored_in_parts(n: int, factor: int, part: int) -> None:
    """Padded lanes of one part lie in the next one: nothing may be stored there."""
    b, c = halo(n)
    s, outer = blocked(c, factor)
    s[b].compute_at(s[c], outer)
    _, inner = s[b].split(b.op.axis[0], part)
    s[b].vectorize(inner)
    assert agrees(s)


@pytest.mark.parametrize("n", [32, 29])
def test_a_tile_that_is_gathered(n: int) -> None:
    index = te.placeholder((n,), "int32", name="X")
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((n,), lambda i: b[index[i]], name="C")
    s, outer = blocked(c)
    s[b].compute_at(s[c], outer)
    assert in_memory(s) == ["B_memory"]
    assert agrees(s)


def test_a_fold_into_a_tile_that_is_read_backwards() -> None:
    """An accumulator of two values, of which each element is read at another place."""
    a = te.placeholder((16, 12), name="A")
    k = te.reduce_axis((0, 12), name="k")
    b = te.compute((16,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((4, 16), lambda r, i: b[15 - i] + a[i, r], name="C")
    s = te.create_schedule(c)
    s[c].bind(c.op.axis[0], "blockIdx.x")
    s[c].vectorize(c.op.axis[1])
    s[b].compute_at(s[c], c.op.axis[0])
    _, inner = s[b].split(k, 4)
    s[b].vectorize(inner)
    assert in_memory(s) == ["B_memory"]
    assert agrees(s)


def test_a_tuple_is_folded_in_one_place() -> None:
    """Both values of a pair lie in memory where one is read at a shift."""
    a = te.placeholder((18, 12), name="A")
    k = te.reduce_axis((0, 12), name="k")
    best = te.comm_reducer(
        lambda x, y: (te.select(x[0] >= y[0], x[0], y[0]), te.select(x[0] >= y[0], x[1], y[1])),
        lambda t0, t1: (te.min_value(t0), te.const(-1, t1)),
        name="argmax",
    )
    top, place = te.compute((18,), lambda i: best((a[i, k], k), axis=k), name="T")
    c = te.compute((16,), lambda i: top[i] + top[i + 2] + place[i].astype("float32"), name="C")
    s, outer = blocked(c, 4)
    s[top].compute_at(s[c], outer)
    assert len(in_memory(s)) == 2
    assert agrees(s)


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("root", [False, True])
def test_a_stage_stored_outside_its_loop(rolling: bool, root: bool) -> None:
    """What one iteration computes, the next ones read."""
    a = te.placeholder((18, 9), name="A")
    b = te.compute((18, 9), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((16, 9), lambda i, j: b[i, j] + b[i + 2, j], name="C")
    s = te.create_schedule(c)
    i, j = c.op.axis
    s[c].reorder(j, i)
    if not root:
        s[c].bind(j, "blockIdx.x")
    s[b].compute_at(s[c], i)
    if root:
        s[b].store_root()
    else:
        s[b].store_at(s[c], j)
    if rolling:
        s[b].rolling_buffer()
    assert in_memory(s) == ["B_memory"]
    assert agrees(s)


def test_a_stage_computed_inside_a_loop_of_a_tile() -> None:
    """The loop is no dimension of a tile then."""
    a = te.placeholder((6, 8), name="A")
    b = te.compute((6, 8), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((6, 8), lambda i, j: b[i, j] + 1.0, name="C")
    d = te.compute((6, 8), lambda i, j: c[i, j] * c[i, j], name="D")
    s = te.create_schedule(d)
    s[d].bind(d.op.axis[0], "blockIdx.x")
    s[c].compute_at(s[d], d.op.axis[0])
    s[b].compute_at(s[c], c.op.axis[1])
    assert agrees(s)


@pytest.mark.parametrize("n", [1, 13, 40])
def test_a_dimension_of_a_tile_that_has_no_constant_extent(n: int) -> None:
    """What was to be a dimension of a tile is a serial loop then."""
    size = te.size_var("n")
    a = te.placeholder((3, size), name="A")
    k, l = (te.reduce_axis((0, size), name=name) for name in "kl")  # noqa: E741
    total = te.compute((3,), lambda i: te.sum(a[i, k] * a[i, k], axis=k), name="S")
    root = te.compute((3,), lambda i: te.sqrt(total[i] + 1.0), name="R")
    top = te.compute((3,), lambda i: te.max(a[i, l] / root[i], axis=l), name="T")
    s = te.create_schedule(top)
    outer, _ = s[top].split(l, nparts=4)
    s[top].online(outer, casts=True)
    shown = after_passes(s, "cuda:sm_90")
    assert "vectorized" in shown["through_memory"]
    assert agrees(s, {size: n})


@pytest.mark.parametrize("n", [0, 1, 2, 16])
def test_a_tile_without_elements(n: int) -> None:
    """Of sizes below 2 and divisible by 16 there is 0, for which no program runs."""
    size = te.size_var("n")
    a = te.placeholder((5,), name="A")
    b = te.compute((5,), lambda i: a[4 - i] + 1.0, name="B")
    c = te.compute((size, 5), lambda r, i: b[i] + r.astype("float32"), name="C")
    s = te.create_schedule(c)
    outer, inner = s[c].split(s[c].fuse(*c.op.axis), 16)
    s[c].bind(outer, "blockIdx.x")
    s[c].vectorize(inner)
    s[c].specialize(size >= 2)
    s[b].compute_at(s[c], outer)
    te.build(s, "cuda:sm_90")
    assert agrees(s, {size: n})


def test_registers_stay_registers() -> None:
    a = te.placeholder((30, 40), name="A")
    b = te.compute((30, 40), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((30, 40), lambda i, j: b[i, j] * b[i, j], name="C")
    s = te.create_schedule(c)
    _, jo, _, _ = s[c].tile(*c.op.axis, 8, 16)
    s[b].compute_at(s[c], jo)
    assert not in_memory(s)


@pytest.mark.parametrize("marked", [1, 2])
def test_parallel_loops_that_the_grid_has_no_place_for(marked: int) -> None:
    """`parallel` allows: inside a serial loop, and of an attached stage, it is a serial loop."""
    a = te.placeholder((3, 5, 4), name="A")
    b = te.compute((3, 5, 4), lambda i, j, k: a[i, j, k] + 1.0, name="B")
    c = te.compute((3, 5, 4), lambda i, j, k: b[i, j, k] * 2.0, name="C")
    s = te.create_schedule(c)
    s[c].parallel(c.op.axis[marked])
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].parallel(b.op.axis[marked])
    assert agrees(s)


def test_more_parallel_loops_than_a_grid_has_dimensions() -> None:
    a = te.placeholder((2, 3, 2, 3, 2), name="A")
    b = te.compute((2, 3, 2, 3, 2), lambda *i: a[i] + 1.0, name="B")
    s = te.create_schedule(b)
    for axis in b.op.axis:
        s[b].parallel(axis)
    assert str(te.lower(s, "cuda:sm_90")).count("program[") == 3
    assert agrees(s)


@pytest.mark.parametrize(("rows", "wide"), [(1 << 10, False), (1 << 24, True)])
def test_parts_of_all_programs_are_addressed_in_64_bits_beyond_2_gib(rows: int, wide: bool) -> None:
    """No call that was accepted is refused when it is built: whoever has less memory is told when
    the kernel is called."""
    b, c = halo(rows, 1 << 8)
    s, outer = blocked(c, 1)
    s[b].compute_at(s[c], outer)
    module = te.lower(s, "cuda:sm_90")
    (memory,) = (buffer for buffer in module.funcs[0].params if buffer.private)
    source = emit(module, "cuda:sm_90").source
    places = [line for line in source.splitlines() if "B_memory +" in line]
    assert places and all(("int64" in line) is wide for line in places), source
    assert math.prod(int(str(extent)) for extent in memory.shape) > (1 << 31 if wide else 0)


def test_the_blocks_of_a_cluster_share_no_such_memory() -> None:
    b, c = halo()
    s, outer = blocked(c)
    s[b].compute_at(s[c], outer)
    s[c].launch(num_ctas=2)
    (func,) = te.lower(s, "cuda:sm_90").funcs
    assert [buffer.name for buffer in func.params if buffer.private] == ["B_memory"]
    assert func.launch.num_ctas is None


def test_devices_without_clusters_launch_single_blocks() -> None:
    a = te.placeholder((1024,), name="A")
    b = te.compute((1024,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b)
    outer, inner = s[b].split(b.op.axis[0], factor=128)
    s[b].bind(outer, "blockIdx.x")
    s[b].vectorize(inner)
    s[b].launch(num_ctas=2)
    for target, blocks in (("cuda:sm_80", None), ("cuda:sm_90", 2)):
        (spec,) = emit(te.lower(s, target), target).kernels
        assert spec.options().get("num_ctas") == blocks


def test_loops_that_load_what_they_store_have_no_stages() -> None:
    """Triton would load the next turn's elements before they are stored."""
    a = te.placeholder((16, 34), name="A")
    b = te.compute((16, 34), lambda r, i: a[r, i] + 1.0, name="B")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((32,), lambda i: te.sum(b[k, i] + b[k, i + 2], axis=k), name="C")
    s, _ = blocked(c)
    s[c].reorder(s[c].leaf_iter_vars[0], k, s[c].leaf_iter_vars[1])
    s[b].compute_at(s[c], k)
    s[c].pipeline(k, num_stages=3)
    text = emit(te.lower(s, "cuda:sm_90"), "cuda:sm_90").source
    assert in_memory(s) == ["B_memory"] and "num_stages=1)" in text and "num_stages=3" not in text
    assert text.index("tl.debug_barrier()") < text.index("tl.store(B_memory")
    assert agrees(s)


@pytest.mark.parametrize("runs", [False, True])
def test_a_barrier_that_may_not_be_met_orders_nothing_after_it(runs: bool) -> None:
    """Of a store, a load in a branch, and another load behind the branch."""
    buffer = Buffer("B", DType.float32, ())
    writer = Writer(Names())
    writer.shared_memory = {buffer}
    writer.before_store(buffer)
    writer.open(in_loop=False)
    writer.before_load(buffer)
    writer.close("if x:", runs=runs)
    writer.before_load(buffer)
    text = "\n".join(writer.blocks[-1].lines)
    assert text.count("tl.debug_barrier()") == (1 if runs else 2)
