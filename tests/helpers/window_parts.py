"""Kernels that ptxas or Triton get wrong: one that subtracts from quotients, where ptxas takes a
carry for no borrow, one of extremes of negated numbers, where it loses a sign, equal 8-bit
floats, of which it stores what nothing wrote, and sums of few products, of which Triton makes a
matrix product."""

from __future__ import annotations

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor


def partial_extremes() -> tuple[Schedule, Tensor, Tensor]:
    """The schedule, its input (int32[16, 3, 7, 4]) and its output (int32[3, 7, 4]): the largest of
    a window of the first axis, in two parts; loops end at quotients of 64-bit program numbers."""
    rows, columns = te.const(7, "int64"), 4
    x = te.placeholder((16, 3, rows, columns), "int32", name="x")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute(
        (3, rows, columns),
        lambda n, i, j: te.max(x[k, n, i, j], axis=k, where=(k <= n * 2 + 5) & (k > n * 2), init=1),
        name="y",
    )
    s = te.create_schedule(y)
    outer, _ = s[y].split(k, nparts=2)
    parts = s[s.rfactor(y, outer)]
    held = s[s.cache_write(parts, "local")]
    part, n, i, j = parts.op.axis
    parts.reorder(n, i, part, j)
    programs = parts.fuse(n, i)
    parts.bind(programs, "blockIdx.y")
    parts.bind(part, "blockIdx.x")
    held.compute_at(parts, part)
    (rest,) = held.op.reduce_axis
    _, inner = held.split(rest, factor=4)
    for stage, axis in ((parts, j), (held, held.op.axis[3]), (held, inner)):
        stage.vectorize(axis)
    return s, x, y


def greatest_of_negated() -> tuple[Schedule, Tensor, Tensor]:
    """The schedule, its input int32[3] and its output int32[1]."""
    x, k = te.placeholder((3,), "int32", name="x"), te.reduce_axis((0, 3), name="k")
    y = te.compute((1,), lambda i: te.max(x[i + k] * -1, axis=k), name="y")
    return te.create_schedule(y), x, y


def few_products(depth: int) -> tuple[Schedule, Tensor, Tensor, Tensor]:
    """The schedule of a tile of sums of `depth` < 8 products, its factors float32[16, depth] and
    float32[depth, 16], and its output float32[16, 16]: no matrix product."""
    a, b = te.placeholder((16, depth), name="a"), te.placeholder((depth, 16), name="b")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c)
    local = s[s.cache_write(c, "local")]
    i, j = s[c].op.axis
    outer, inner = s[c].split(i, factor=16)
    s[c].bind(outer, "blockIdx.x")
    local.compute_at(s[c], outer)
    row, column = local.op.axis
    local.reorder(row, local.op.reduce_axis[0], column)
    for stage, axis in ((s[c], inner), (s[c], j), (local, local.op.reduce_axis[0])):
        stage.vectorize(axis)
    return s, a, b, c


def repeated_pairs(dtype: str) -> tuple[Schedule, Tensor, Tensor, Tensor, te.Var]:
    """The schedule, its inputs float32[64, n] and float32[n, 8], its output float32[64, 8], the
    products with numbers rounded to `dtype`, and n: where it is 1, most of a tile is the same 0."""
    n = te.size_var("n")
    x, w = te.placeholder((64, n), "float32", name="x"), te.placeholder((n, 8), name="w")
    k = te.reduce_axis((0, n), name="k")

    def rounded(i: te.Expr, k: te.Expr) -> te.Expr:
        return te.cast(te.cast(x[i, k], dtype), "float32")

    y = te.compute((64, 8), lambda i, j: te.sum(rounded(i, k) * w[k, j], axis=k), name="y")
    s = te.create_schedule(y)
    local = s[s.cache_write(y, "local")]
    i, j = s[y].op.axis
    s[y].bind(i, "blockIdx.x")
    local.compute_at(s[y], i)
    _, inner = local.split(local.op.reduce_axis[0], factor=2048)
    for stage, axis in ((s[y], j), (local, inner)):
        stage.vectorize(axis)
    s[y].launch(num_warps=8)
    return s, x, w, y, n


def skewed_rows_of_wide_counters() -> tuple[Schedule, Tensor, Tensor]:
    """The schedule, its input int8[10, 63] and its output, the lesser of each element and one of
    the row as far from the end: loops of constant ends whose numbers have 64 bits."""
    columns = te.const(63, "int64")
    x = te.placeholder((10, columns), "int8", name="x")
    y = te.compute(
        (10, columns),
        lambda i, j: te.minimum(x[i, j], x[9 - i, (j + te.const(2, "int64")) % columns]),
        name="y",
    )
    s = te.create_schedule(y)
    skewed = s[y].skew(*s[y].op.axis, step=7, modulus=4)
    outer, _ = s[y].split(skewed, factor=8)
    s[y].partition(outer, policy="ends")
    return s, x, y
