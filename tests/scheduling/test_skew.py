"""skew: loops that start earlier by another amount for each row."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from lowering import agrees
from refusals import refused

import tedsl as te
from tedsl.tensor.tensor import Tensor

LENGTHS = (1, 7, 8, 33, 37, 64, 65)


def row_sums(m: int, n: int) -> Tensor:
    x = te.placeholder((m, n), name="x")
    k = te.reduce_axis((0, n), name="k")
    return te.compute((m,), lambda i: te.sum(x[i, k] * (i + 1), axis=k), name="t")


def normed(m: int, n: int) -> tuple[te.Schedule, Tensor, Tensor, Tensor]:
    """Rows over the sums of their exponentials, less their largest."""
    x = te.placeholder((m, n), name="x")
    k, j = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, n), name="j")
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="top")
    total = te.compute((m,), lambda i: te.sum(te.exp(x[i, j] - top[i]), axis=j), name="total")
    y = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]) / total[i], name="y")
    return te.create_schedule(y), top, total, y


def pieces(stage: te.Stage, axis: te.Axis, n: int, factor: int = 16) -> tuple[te.Axis, te.Axis]:
    (along, *_) = stage.op.axis
    outer, inner = stage.split(stage.skew(axis, along, n, 8), factor=factor)
    stage.partition(outer, "ends")
    return outer, inner


@pytest.mark.parametrize("n", LENGTHS)
def test_a_data_axis(n: int) -> None:
    s, *_, y = normed(5, n)
    if n % 8:
        pieces(s[y], s[y].op.axis[1], n)
    assert agrees(s)


@pytest.mark.parametrize("way", ["parallel", "unroll", "bind"])
def test_a_loop_that_is_none_of_steps_keeps_its_guards(way: str) -> None:
    s, *_, y = normed(5, 37)
    outer, _ = pieces(s[y], s[y].op.axis[1], 37)
    s[y].reorder(outer, s[y].op.axis[0])
    getattr(s[y], way)(outer, *(["blockIdx.x"] if way == "bind" else []))
    assert agrees(s)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("way", ["fold", "lanes", "pieces"])
def test_a_reduce_axis(n: int, way: str) -> None:
    t = row_sums(5, n)
    s = te.create_schedule(t)
    if n % 8 == 0:
        return
    outer, inner = pieces(s[t], s[t].op.reduce_axis[0], n)
    if way != "fold":
        s[t].partition(outer, "auto")
        s.rfactor(s[t], inner if way == "lanes" else outer)
    assert agrees(s)


@pytest.mark.parametrize("n", [33, 37, 65])
def test_parts_of_dependent_folds(n: int) -> None:
    s, _, total, y = normed(5, n)
    stage = s[total]
    _, inner = stage.split(stage.skew(stage.op.reduce_axis[0], stage.op.axis[0], n, 8), factor=16)
    s.split_online(stage, inner)
    pieces(s[y], s[y].op.axis[1], n)
    assert agrees(s)


def test_in_a_region() -> None:
    """The skew counts rows as the definition does, not as the region that is computed."""
    x = te.placeholder((12, 37), name="x")
    b = te.compute((12, 37), lambda i, j: x[i, j] * 2.0 + i, name="b")
    c = te.compute((12, 37), lambda i, j: b[i, j] + 1.0, name="c")
    s = te.create_schedule(c)
    outer, _ = s[c].split(s[c].op.axis[0], factor=3)
    s[b].compute_at(s[c], outer)
    pieces(s[b], s[b].op.axis[1], 37)
    copy = s.cache_read(x, "local", [b])
    s[copy].compute_at(s[b], s[b].leaf_iter_vars[1])
    assert agrees(s, targets=("cpu",))  # on the GPU a piece of a tile has no place


def test_source() -> None:
    """Whole pieces start at multiples of 8 elements and have no masks."""
    s, top, total, y = normed(64, 4097)
    i, j = s[y].op.axis
    _, lanes = pieces(s[y], j, 4097, 512)
    s[y].bind(i, "blockIdx.x")
    s[y].vectorize(lanes)
    for each in (total, top):
        _, lanes = pieces(s[each], s[each].op.reduce_axis[0], 4097, 512)
        s[each].vectorize(lanes)
        s[each].compute_at(s[y], i)
    text = te.build(s, "cuda:sm_90").source
    lines = text.split("\n")
    heads = [n for n, line in enumerate(lines) if line.startswith("    for ")]
    assert len(heads) == 3
    for head in heads:
        assert "tl.range(1, 8)" in lines[head]
        inside = itertools.takewhile(lambda line: line.startswith("     "), lines[head + 1 :])
        assert "mask" not in "".join(inside)
    assert "// 8 * 8" in text
    assert "i * 4096" in text and "i * 4097" not in text


@pytest.mark.ptxas
def test_whole_pieces_are_read_and_stored_16_bytes_at_a_time() -> None:
    x = te.placeholder((64, 4097), "bfloat16", name="x")
    y = te.compute((64, 4097), lambda i, j: x[i, j] * 2, name="y")

    def wide(skewed: bool) -> int:
        s = te.create_schedule(y)
        i, j = s[y].op.axis
        _, inner = pieces(s[y], j, 4097, 1024) if skewed else s[y].split(j, factor=1024)
        s[y].bind(i, "blockIdx.x")
        s[y].vectorize(inner)
        s[y].launch(num_warps=4)
        return te.build(s, "cuda:sm_90").asm.count("global.v4.b32")

    assert wide(True) >= 2
    assert wide(False) == 0


def test_refusals() -> None:
    s, _, total, y = normed(6, 37)
    i, j = s[y].op.axis
    (k,) = s[total].op.reduce_axis
    with refused(s, "step is 0"):
        s[y].skew(j, i, 0, 8)
    with refused(s, "16 is a multiple of 8", "leave skew out"):
        s[y].skew(j, i, 16, 8)
    with refused(s, "cannot be skewed along y.j", "allowed", "i"):
        s[y].skew(j, j, 3, 8)
    with refused(s, "cannot be skewed along total.j"):
        s[y].skew(j, k, 3, 8)
    with refused(s, "cannot be skewed along"):
        s[y].skew(j, 3, 3, 8)  # type: ignore[arg-type]
    s[y].vectorize(j)
    with refused(s, "already vectorized"):
        s[y].skew(j, i, 3, 8)


def test_refuses_what_is_no_axis_of_the_definition_any_more() -> None:
    s, *_, y = normed(6, 37)
    i, j = s[y].op.axis
    _, inner = s[y].split(j, factor=8)
    with refused(s, "not an axis of the definition", "skew before split and fuse"):
        s[y].skew(inner, i, 3, 8)
    with refused(s, "it has been split into"):
        s[y].skew(j, i, 3, 8)
    skewed = s[y].skew(i, j, 3, 8)
    with refused(s, "it has been skewed into i.skewed"):
        s[y].split(i, factor=2)
    s[y].split(skewed, factor=2)
    assert agrees(s)


def test_loops_skewed_along_each_other_are_refused() -> None:
    s, *_, y = normed(6, 37)
    i, j = s[y].op.axis
    s[y].skew(j, i, 37, 8)
    with refused(s, "j is skewed along i", "depend on where the other does"):
        s[y].skew(i, j, 3, 8)


def test_refuses_sizes_that_are_not_known() -> None:
    s, *_, y = normed(6, 37)
    i, j = s[y].op.axis
    n = te.size_var("n")
    with refused(s, "step"):
        s[y].skew(j, i, n, 8)  # type: ignore[arg-type]


def test_parts_of_another_row_are_refused() -> None:
    """The parts of one row are no parts of another."""
    x = te.placeholder((6, 37), name="x")
    k, j = te.reduce_axis((0, 37), name="k"), te.reduce_axis((0, 37), name="j")
    top = te.compute((6,), lambda i: te.max(x[i, k], axis=k), name="top")
    total = te.compute((6,), lambda i: te.sum(x[i, j] - top[i // 2], axis=j), name="total")
    s = te.create_schedule(total)
    stage = s[total]
    _, inner = stage.split(stage.skew(j, stage.op.axis[0], 37, 8), factor=16)
    with refused(s, "is skewed", "top[i // 2]", "leave skew out"):
        s.split_online(stage, inner)


def test_parts_of_folds_of_other_dimensions_are_refused() -> None:
    """A fold that goes along without being read has no row to be skewed along."""
    x, v = te.placeholder((6, 37), name="x"), te.placeholder((37,), name="v")
    k, j, m = (te.reduce_axis((0, 37), name=name) for name in "kjm")
    top = te.compute((6,), lambda i: te.max(x[i, k], axis=k), name="top")
    whole = te.compute((), lambda: te.sum(v[m], axis=m), name="whole")
    total = te.compute((6,), lambda i: te.sum(te.exp(x[i, j] - top[i]), axis=j), name="total")
    s = te.create_schedule([total, whole])
    stage = s[total]
    _, inner = stage.split(stage.skew(j, stage.op.axis[0], 37, 8), factor=16)
    with refused(s, "is skewed", "whole has other dimensions"):
        s.split_online(stage, inner, along=[whole])


def test_undone() -> None:
    s, *_, y = normed(6, 37)
    before = str(s)
    s[y].skew(s[y].op.axis[1], s[y].op.axis[0], 37, 8)
    assert str(s) != before
    s.undo()
    assert str(s) == before
    np.testing.assert_equal(len(s.trace), 0)


@pytest.mark.cpu
def test_a_cache_is_skewed_as_its_stage_was() -> None:
    x = te.placeholder((5, 8), name="x")
    k = te.reduce_axis((0, 8), name="k")
    y = te.compute((5,), lambda i: te.sum(x[i, k], axis=k), name="y")
    s = te.create_schedule(y)
    s[y].skew(k, y.op.axis[0], step=1, modulus=3)
    s.cache_write(y, "local")
    given = np.random.default_rng(0).normal(size=(5, 8)).astype("float32")
    np.testing.assert_allclose(te.build(s, "cpu")(given), given.sum(1), atol=1e-5)
    s = te.create_schedule(y)
    s[y].skew(k, y.op.axis[0], step=1, modulus=3)
    s[y].split(y.op.axis[0], 2)
    with pytest.raises(te.ScheduleError, match="which is split or fused"):
        s.cache_write(y, "local")


def test_skewed_lanes_of_what_another_reduction_reads() -> None:
    """Where the reduction around it says where the lanes begin, those before have no result."""
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 4), name="B")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((8, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    _, inner = s[c].split(k, factor=4)
    s.rfactor(s[c], inner, factor_axis=-1)
    (outer,) = s["C.rf"].op.reduce_axis
    s.rfactor(s["C.rf"], s["C.rf"].split(outer, factor=4)[1])
    (along,) = s["C.rf"].op.reduce_axis
    s["C.rf.rf"].compute_at(s["C.rf"], along)
    first, *_, last = s["C.rf.rf"].op.axis
    skewed = s["C.rf.rf"].skew(last, first, step=7, modulus=4)
    pieces, _ = s["C.rf.rf"].split(skewed, factor=4)
    s["C.rf.rf"].partition(pieces, policy="ends")
    s["C.rf"].compute_at(s["C"], s["C"].op.axis[0])
    te.lower(s, "cuda:sm_90", check=True)
    assert agrees(s, bound=1e-5)
