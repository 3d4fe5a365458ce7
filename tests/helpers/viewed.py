"""Schedules that the tests of the viewer show."""

from __future__ import annotations

from typing import Any

import tedsl as te


def fused_product(size: int = 64) -> te.Schedule:
    """A matrix product with its epilogue in one kernel, by 9 steps."""
    a = te.placeholder((size, size), "float32", name="A")
    b = te.placeholder((size, size), "float32", name="B")
    bias = te.placeholder((size,), "float32", name="bias")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((size, size), lambda i, j: te.relu(c[i, j] + bias[j]), name="D")
    s = te.create_schedule(d)
    io, jo, ii, ji = s[d].tile(*s[d].op.axis, 16, 16)
    block = s[d].fuse(io, jo)
    s[d].bind(block, "blockIdx.x")
    s[d].vectorize(ii)
    s[d].vectorize(ji)
    s[c].compute_at(s[d], block)
    ko, ki = s[c].split(s[c].op.reduce_axis[0], 16)
    s[c].vectorize(ki)
    s[c].pipeline(ko, num_stages=2)
    return s


def many_stages(blocks: int = 5) -> te.Tensor:
    """Nine stages a block, in a chain with shortcuts."""
    x = te.placeholder((64, 64), "float32", name="X")
    w = te.placeholder((64, 64), "float32", name="W")
    y: Any = x
    for _ in range(blocks):
        y = te.nn.layer_norm(te.nn.relu(te.nn.matmul(y, w) * 0.5) + y)
    return y


HOSTILE = '</script><script>document.title="caught"</script><!--"\'&<b>'
"""A name that would do harm where it is not escaped."""


def hostile() -> te.Schedule:
    """A computation whose names would do harm where they are not escaped."""
    a = te.placeholder((8,), "float32", name=HOSTILE)
    b = te.compute((8,), lambda i: a[i] * 2.0, name=f"{HOSTILE}2")
    return te.create_schedule(b)
