"""Kernels that ptxas gets wrong: one that subtracts from quotients, where it takes a carry for no
borrow, and one of extremes of negated numbers, where it loses a sign."""

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
