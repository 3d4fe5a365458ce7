"""A kernel for which LLVM packs sums of 16-bit integers, of which ptxas loses constants."""

from __future__ import annotations

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor


def bytes_at_clamped_remainders(warps: int) -> tuple[Schedule, Tensor, Tensor]:
    """The schedule, its input and its output: int8[3, 4, 7, 7]."""
    shape = (3, 4, 7, 7)
    a = te.placeholder(shape, "int8", name="a")
    b = te.compute(
        shape,
        lambda n, c, y, x: a[n, c, te.minimum(y + 1, 6), te.minimum(te.abs(x - 7), 6)],
        name="b",
    )
    zero = te.const(0, "int8")
    d = te.compute(
        shape,
        lambda n, c, y, x: (
            te.if_then_else((c < 2) & (y >= 1), b[n, c + 2, y - 1, x], zero)
            + te.if_then_else(y < 6, b[n, c, y + 1, x], zero)
        ),
        name="d",
    )
    s = te.create_schedule(d)
    s[b].compute_inline()
    outer, inner = s[d].split(s[d].fuse(*s[d].op.axis), factor=512)
    s[d].bind(outer, "blockIdx.x")
    s[d].vectorize(inner)
    s[d].cut(outer, 1)
    s[d].launch(num_warps=warps)
    return s, a, d
