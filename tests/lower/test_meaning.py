"""The lowering keeps the numbers: the interpreter before and after it against the numpy oracle."""

from __future__ import annotations

from typing import Any

import pytest
from lowering import agrees

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule


def _softmax(m: Any, n: Any) -> tuple[te.Tensor, ...]:
    x = te.placeholder((m, n), name="X")
    k, l = te.reduce_axis((0, n), name="k"), te.reduce_axis((0, n), name="l")  # noqa: E741
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="M")
    total = te.compute((m,), lambda i: te.sum(te.exp(x[i, l] - top[i]), axis=l), name="S")
    out = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]) / total[i], name="O")
    return x, top, total, out


@pytest.mark.parametrize("n", [1, 7, 33, 257])
def test_rows_in_one_tile(n: int) -> None:
    _, top, total, out = _softmax(10, n)
    s = te.create_schedule(out)
    i, j = out.op.axis
    s[out].parallel(i)
    s[out].vectorize(j)
    for stage in (total, top):
        s[stage].compute_at(s[out], i)
        s[stage].vectorize(stage.op.reduce_axis[0])
    assert agrees(s)


@pytest.mark.parametrize("n", [7, 33, 257])
@pytest.mark.parametrize("piece", [16, 64])
def test_rows_in_pieces(n: int, piece: int) -> None:
    _, top, total, out = _softmax(3, n)
    s = te.create_schedule(out)
    i, j = out.op.axis
    s[out].parallel(i)
    s[out].vectorize(s[out].split(j, piece)[1])
    for stage in (total, top):
        s[stage].compute_at(s[out], i)
        s[stage].vectorize(s[stage].split(stage.op.reduce_axis[0], piece)[1])
    assert agrees(s)


@pytest.mark.parametrize("sizes", [(5, 300), (1, 7), (0, 7), (3, 0)])
def test_symbolic_rows(sizes: tuple[int, int]) -> None:
    m, n = te.var("m"), te.var("n")
    _, top, total, out = _softmax(m, n)
    s = te.create_schedule(out)
    i, j = out.op.axis
    s[out].parallel(i)
    s[out].vectorize(s[out].split(j, 32)[1])
    for stage in (total, top):
        s[stage].compute_at(s[out], i)
        s[stage].vectorize(s[stage].split(stage.op.reduce_axis[0], 32)[1])
    assert agrees(s, {m: sizes[0], n: sizes[1]})


def test_several_rows_and_a_staged_input() -> None:
    x, top, total, out = _softmax(10, 33)
    s = te.create_schedule(out)
    i, j = out.op.axis
    io, ii = s[out].split(i, 4)
    s[out].bind(io, "blockIdx.x")
    s[out].vectorize(ii)
    s[out].vectorize(j)
    for stage in (total, top):
        s[stage].compute_at(s[out], io)
        s[stage].vectorize(stage.op.reduce_axis[0])
    staged = s.cache_read(x, "local", [top, total, out])
    s[staged].compute_at(s[out], io)
    assert agrees(s)


def _product(m: int, n: int, depth: int, dtype: str) -> tuple[te.Tensor, ...]:
    a, b = te.placeholder((m, depth), dtype, name="A"), te.placeholder((depth, n), dtype, name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute(
        (m, n),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
        name="C",
    )
    d = te.compute((m, n), lambda i, j: te.relu(c[i, j]), name="D")
    return a, b, c, d


SHAPES = [(32, 64, 32), (37, 50, 19), (1, 7, 33)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_blocks_with_staged_operands(shape: tuple[int, int, int], dtype: str) -> None:
    a, b, c, d = _product(*shape, dtype)
    s = te.create_schedule(d)
    io, jo, ii, ji = s[d].tile(*d.op.axis, 32, 32)
    block = s[d].fuse(io, jo)
    s[d].bind(block, "blockIdx.x")
    s[d].vectorize(ii)
    s[d].vectorize(ji)
    s[c].compute_at(s[d], block)
    ko, ki = s[c].split(c.op.reduce_axis[0], 16)
    s[c].pipeline(ko, num_stages=3)
    s[c].vectorize(ki)
    for operand in (a, b):
        staged = s.cache_read(operand, "shared", [c])
        s[staged].compute_at(s[c], ko)
    assert agrees(s, targets=("triton-interpret",), bound=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_register_tiles_with_a_packed_panel(shape: tuple[int, int, int]) -> None:
    _, b, c, d = _product(*shape, "float32")
    s = te.create_schedule(d)
    io, jo, ii, ji = s[d].tile(*d.op.axis, 12, 32)
    s[d].reorder(jo, io, ii, ji)
    s[d].parallel(jo)
    s[d].vectorize(ii)
    s[d].vectorize(ji)
    s[c].compute_at(s[d], io)
    i, j = c.op.axis
    s[c].reorder(c.op.reduce_axis[0], i, j)
    s[c].vectorize(i)
    s[c].vectorize(j)
    packed = s.cache_read(b, "local", [c])
    s[packed].compute_at(s[d], jo)
    assert agrees(s, targets=("cpu",), bound=1e-4)


def _blur(n: int) -> tuple[te.Tensor, te.Tensor, Schedule]:
    a = te.placeholder((n + 2, n + 2), name="A")
    x = te.compute((n + 2, n), lambda y, x: a[y, x] + a[y, x + 1] + a[y, x + 2], name="X")
    y = te.compute((n, n), lambda i, j: x[i, j] + x[i + 1, j] + x[i + 2, j], name="Y")
    return x, y, te.create_schedule(y)


@pytest.mark.parametrize("n", [7, 33, 50])
@pytest.mark.parametrize("place", ["tile", "row", "inline", "root"])
def test_a_stencil_computed_anywhere(n: int, place: str) -> None:
    x, y, s = _blur(n)
    if place == "tile":
        yo, xo, _, xi = s[y].tile(*y.op.axis, 8, 16)
        s[x].compute_at(s[y], xo)
        s[y].vectorize(xi)
        s[x].vectorize(s[x].op.axis[1])
        s[y].parallel(yo)
    elif place == "row":
        s[x].compute_at(s[y], y.op.axis[0])
    elif place == "inline":
        s[x].compute_inline()
    assert agrees(s, targets=("cpu",))


@pytest.mark.parametrize("n", [1, 64, 1000])
def test_partial_sums(n: int) -> None:
    a = te.placeholder((n,), name="A")
    k = te.reduce_axis((0, n), name="k")
    b = te.compute((), lambda: te.sum(a[k], axis=k), name="B")
    s = te.create_schedule(b)
    part, _ = s[b].split(k, factor=64)
    partial = s.rfactor(b, part)
    s[partial].parallel(s[partial].op.axis[0])
    s[partial].vectorize(s[partial].op.reduce_axis[0])
    assert agrees(s, bound=1e-4)


def test_rows_of_a_table() -> None:
    index = te.placeholder((20,), "int32", name="I")
    table = te.placeholder((10, 40), name="E")
    b = te.compute((20, 40), lambda i, j: table[index[i], j], name="B")
    s = te.create_schedule(b)
    io, jo, ii, ji = s[b].tile(*b.op.axis, 8, 32)
    s[b].bind(s[b].fuse(io, jo), "blockIdx.x")
    s[b].vectorize(ii)
    s[b].vectorize(ji)
    assert agrees(s)


def test_where_over_results_is_kept() -> None:
    a = te.placeholder((8, 16), name="A")
    k = te.reduce_axis((0, 16), name="k")
    b = te.compute((8,), lambda i: te.sum(a[i, k], axis=k, where=i > 3), name="B")
    s = te.create_schedule(b)
    s[b].vectorize(b.op.axis[0])
    s[b].vectorize(k)
    assert agrees(s)


def test_division_in_masked_lanes() -> None:
    a, d = te.placeholder((33,), "int32", name="A"), te.placeholder((33,), "int32", name="D")
    b = te.compute((33,), lambda i: te.if_then_else(d[i] != 0, a[i] // d[i], 0), name="B")
    s = te.create_schedule(b)
    outer, inner = s[b].split(b.op.axis[0], 16)
    s[b].parallel(outer)
    s[b].vectorize(inner)
    assert agrees(s)


@pytest.mark.parametrize("n", [1, 13, 16])
@pytest.mark.parametrize("shift", [1, 3])
def test_lanes_that_would_read_before_the_start(n: int, shift: int) -> None:
    """Only a guard of the definition keeps the first lanes inside; the last are inside anyway."""
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: te.if_then_else(i >= shift, A[i - shift], 0.0), name="B")
    s = te.create_schedule(B)
    s[B].vectorize(s[B].split(B.op.axis[0], 8)[1])
    assert agrees(s)


@pytest.mark.parametrize("n", [1, 13, 16])
def test_a_region_that_begins_before_its_tensor(n: int) -> None:
    """Where nobody uses what lies outside, nothing is read for it either."""
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] * 2.0, name="B")
    C = te.compute((n,), lambda i: te.if_then_else(i >= 2, B[i - 2], 1.0), name="C")
    for factor in (1, 4):
        s = te.create_schedule(C)
        outer, _ = s[C].split(C.op.axis[0], factor)
        s[B].compute_at(s[C], outer)
        assert agrees(s)


def test_guarded_read_in_joined_dimensions() -> None:
    """Element [1, -1] is that of the row before in memory, and still outside."""
    A = te.placeholder((2, 2), name="A")
    B = te.compute((2, 2), lambda i, j: te.if_then_else(j >= 1, A[i, j - 1], 1.0), name="B")
    s = te.create_schedule(B)
    s[B].cut(s[B].fuse(*s[B].op.axis), 1)
    assert agrees(s)
