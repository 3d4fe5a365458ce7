"""One golden text per pass: the module before and after it, on the smallest case that shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lowering import after_passes

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule

Golden = Callable[..., None]


def _before_and_after(s: Schedule, target: str, name: str) -> str:
    seen = after_passes(s, target)
    names = list(seen)
    before = names[names.index(name) - 1]
    return f"{before}\n\n{seen[before]}\n\n{name}\n\n{seen[name]}"


def _row_sum(m: int = 10, n: int = 100) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a = te.placeholder((m, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    b = te.compute((m,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((m,), lambda i: b[i] * 2.0, name="C")
    return a, b, c


def test_build_nests(golden: Golden) -> None:
    _, b, c = _row_sum()
    s = te.create_schedule(c)
    outer, _ = s[c].split(c.op.axis[0], 4)
    s[b].compute_at(s[c], outer)
    golden(after_passes(s, "cpu")["build_nests"])


def test_build_nests_of_an_inlined_stage(golden: Golden) -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((8,), lambda i: b[i] * b[7 - i], name="C")
    s = te.create_schedule(c)
    s[b].compute_inline()
    golden(after_passes(s, "cpu")["build_nests"])


def test_build_nests_of_a_halo(golden: Golden) -> None:
    a = te.placeholder((34,), name="A")
    b = te.compute((34,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((32,), lambda i: b[i] + b[i + 2], name="C")
    s = te.create_schedule(c)
    outer, _ = s[c].split(c.op.axis[0], 8)
    s[b].compute_at(s[c], outer)
    golden(after_passes(s, "cpu")["build_nests"])


def test_simplify(golden: Golden) -> None:
    a = te.placeholder((4, 8), name="A")
    b = te.compute((4, 8), lambda i, j: a[i, j], name="B")
    s = te.create_schedule(b)
    s[b].fuse(*b.op.axis)
    golden(_before_and_after(s, "cpu", "simplify"))


def test_partition_loops(golden: Golden) -> None:
    a = te.placeholder((100,), name="A")
    b = te.compute((100,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b)
    s[b].split(b.op.axis[0], 32)
    golden(_before_and_after(s, "cpu", "partition_loops"))


def test_partition_of_a_parallel_loop(golden: Golden) -> None:
    a = te.placeholder((100,), name="A")
    b = te.compute((100,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b)
    outer, inner = s[b].split(b.op.axis[0], 32)
    s[b].parallel(outer)
    s[b].vectorize(inner)
    golden(_before_and_after(s, "cpu", "partition_loops"))


def test_partition_of_a_symbolic_loop(golden: Golden) -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b)
    s[b].split(b.op.axis[0], 32)
    golden(_before_and_after(s, "cpu", "simplify_parts"))


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_vectorize_loops(golden: Golden, target: str) -> None:
    a = te.placeholder((100,), name="A")
    b = te.compute(
        (100,), lambda i: te.if_then_else(i > 0, a[i - 1], 0.0) // (a[i] + 1.0), name="B"
    )
    s = te.create_schedule(b)
    outer, inner = s[b].split(b.op.axis[0], 24)
    s[b].bind(outer, "blockIdx.x")
    s[b].vectorize(inner)
    golden(_before_and_after(s, target, "vectorize_loops"))


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_widen_accumulators(golden: Golden, target: str) -> None:
    _, b, c = _row_sum(10, 128)
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.op.axis[0])
    s[c].bind(c.op.axis[0], "blockIdx.x")
    _, inner = s[b].split(b.op.reduce_axis[0], 32)
    s[b].vectorize(inner)
    golden(_before_and_after(s, target, "widen_accumulators"))


def _product(dtype: str, m: int = 64, right: str = "", depth: int = 16) -> Schedule:
    a = te.placeholder((m, 32), dtype, name="A")
    b = te.placeholder((32, 64), right or dtype, name="B")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute(
        (m, 64),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
        name="C",
    )
    d = te.compute((m, 64), lambda i, j: te.relu(c[i, j]), name="D")
    s = te.create_schedule(d)
    io, jo, ii, ji = s[d].tile(*d.op.axis, 32, 32)
    block = s[d].fuse(io, jo)
    s[d].bind(block, "blockIdx.x")
    s[d].vectorize(ii)
    s[d].vectorize(ji)
    s[c].compute_at(s[d], block)
    _, ki = s[c].split(c.op.reduce_axis[0], depth)
    s[c].vectorize(ki)
    return s


def test_find_dots(golden: Golden) -> None:
    golden(_before_and_after(_product("float16"), "cuda:sm_90", "find_dots"))


def test_a_step_of_8_bits_is_deep_enough_for_a_dot() -> None:
    """A shorter one is padded."""
    for depth in (16, 32):
        shown = after_passes(_product("float8_e4m3fn", depth=depth), "cuda:sm_90")["find_dots"]
        assert "dot(" in shown and "k.inner:32" in shown


def test_8_bit_floats_of_two_types_are_multiplied_as_float16() -> None:
    s = _product("float8_e4m3fn", right="float8_e5m2", depth=32)
    shown = after_passes(s, "cuda:sm_90")["find_dots"]
    assert "float16(A[" in shown and "float16(B[" in shown and "dot(" in shown


def test_a_fold_of_maxima_is_no_dot() -> None:
    a, b = te.placeholder((32, 32), name="A"), te.placeholder((32, 32), name="B")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((32, 32), lambda i, j: te.max(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    for axis in (*c.op.axis, *c.op.reduce_axis):
        s[c].vectorize(axis)
    assert "dot(" not in after_passes(s, "cuda:sm_90")["find_dots"]


@pytest.mark.parametrize(("edge", "warps"), [(32, 4), (128, 4), (256, 16)])
def test_choose_warps(edge: int, warps: int) -> None:
    a = te.placeholder((edge, edge), name="A")
    b = te.compute((edge, edge), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((edge, edge), lambda i, j: b[i, j] * b[i, j], name="C")
    s = te.create_schedule(c)
    whole = s[c].split(c.op.axis[0], edge)[0]
    s[b].compute_at(s[c], whole)
    assert f"num_warps={warps}" in after_passes(s, "cuda:sm_90")["choose_warps"]


def test_a_region_without_constant_size_is_in_memory_of_its_own() -> None:
    n = te.var("n")
    a = te.placeholder((4, n), name="A")
    b = te.compute((4, n), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((4, n), lambda i, j: b[i, j] * 2.0, name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.op.axis[0])
    s[c].bind(c.op.axis[0], "blockIdx.x")
    nests = str(te.lower(s, target="cpu", check=True))
    assert "alloc B: global float32[1, n], a part for each program" in nests
    kernel = str(te.lower(s, target="cuda:sm_90", check=True))
    assert "B_memory" in kernel and "alloc" not in kernel


def test_a_vectorized_loop_of_unknown_extent_is_refused() -> None:
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b)
    with pytest.raises(te.ScheduleError, match=r"(?s)constant.*split"):
        s[b].vectorize(b.op.axis[0])
