"""The kernels of the gallery: small enough to be looked at, each with one idea."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tedsl as te
from tedsl.schedules import default_schedule

TARGET = "cuda:sm_90"


def view_of(schedule: te.Schedule, target: str) -> bytes:
    """The viewer's page of the kernel that a schedule gives."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        te.build(schedule, target=target).view(path)
        return path.read_bytes()


def rows_fused() -> te.Schedule:
    """A norm over rows with what comes before and after it, in one kernel, by default rules."""
    x = te.placeholder((4096, 1024), "float32", name="x")
    residual = te.placeholder((4096, 1024), "float32", name="residual")
    y = te.nn.silu(te.nn.layer_norm(x + residual))
    return default_schedule(y, TARGET)


def product_with_epilogue() -> te.Schedule:
    """A matrix product by hand: tiles in registers, TMA, a pipelined loop, bias, ReLU."""
    m, n, k = 1024, 1024, 512
    a = te.placeholder((m, k), "bfloat16", name="a")
    b = te.placeholder((k, n), "bfloat16", name="b")
    bias = te.placeholder((n,), "float32", name="bias")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r, dtype="float32"), name="c"
    )
    d = te.compute((m, n), lambda i, j: te.relu(c[i, j] + bias[j]), name="d")
    s = te.create_schedule(d)
    rows, columns, row, column = s[d].tile(*s[d].op.axis, 128, 128)
    s[d].bind(rows, "blockIdx.y")
    s[d].bind(columns, "blockIdx.x")
    s[d].vectorize(row)
    s[d].vectorize(column)
    s[c].compute_at(s[d], columns)
    outer, inner = s[c].split(r, 64)
    s[c].vectorize(inner)
    s[c].pipeline(outer, num_stages=3)
    return s


def softmax_in_one_pass() -> te.Schedule:
    """Two reductions that depend on each other, in one loop over the row: `online`."""
    n, k = 2048, 4096
    x = te.placeholder((n, k), "float32", name="x")
    r, q = te.reduce_axis((0, k), name="r"), te.reduce_axis((0, k), name="q")
    top = te.compute((n,), lambda i: te.max(x[i, r], axis=r), name="top")
    total = te.compute((n,), lambda i: te.sum(te.exp(x[i, q] - top[i]), axis=q), name="total")
    y = te.compute((n,), lambda i: top[i] + te.log(total[i]), name="logsumexp")
    s = te.create_schedule(y)
    s[y].bind(s[y].op.axis[0], "blockIdx.x")
    s[total].compute_at(s[y], s[y].op.axis[0])
    outer, inner = s[total].split(s[total].op.reduce_axis[0], 1024)
    s[total].online(outer)
    s[total].vectorize(inner)
    return s


def stencil_of_a_stencil() -> te.Schedule:
    """Two blurs: the first is computed where the second needs it, by default rules."""
    n, m = 512, 2048
    x = te.placeholder((n + 4, m), "float32", name="x")
    rows = te.compute((n + 2, m), lambda i, j: x[i, j] + x[i + 1, j] + x[i + 2, j], name="rows")
    y = te.compute((n, m), lambda i, j: rows[i, j] + rows[i + 1, j] + rows[i + 2, j], name="y")
    return default_schedule(y, TARGET)


def two_results_in_one_launch() -> te.Schedule:
    """Two sums of one matrix side by side: each element is read once."""
    n, k = 4096, 2048
    x = te.placeholder((n, k), "float32", name="x")
    r, q = te.reduce_axis((0, k), name="r"), te.reduce_axis((0, k), name="q")
    total = te.compute((n,), lambda i: te.sum(x[i, r], axis=r), name="total")
    squares = te.compute((n,), lambda i: te.sum(x[i, q] * x[i, q], axis=q), name="squares")
    return default_schedule([total, squares], TARGET)


WORKS = (
    rows_fused,
    product_with_epilogue,
    softmax_in_one_pass,
    stencil_of_a_stencil,
    two_results_in_one_launch,
)
