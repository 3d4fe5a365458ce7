"""Rows that several programs share, which wait for each other at a grid barrier."""

from __future__ import annotations

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule


def softmax(m: int, n: int, dtype: str = "float32") -> te.Tensor:
    """The softmax of rows, with a stage for the maximum and one for the sum."""
    x = te.placeholder((m, n), dtype, name="x")
    k, r = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "r")

    def wide(i: te.Expr, j: te.Expr) -> te.Expr:
        return x[i, j].astype("float32")

    top = te.compute((m,), lambda i: te.max(wide(i, k), axis=k), name="top")
    z = te.compute((m,), lambda i: te.sum(te.exp(wide(i, r) - top[i]), axis=r), name="z")
    return te.compute(
        (m, n), lambda i, j: (te.exp(wide(i, j) - top[i]) / z[i]).astype(dtype), name="y"
    )


def shared(y: te.Tensor, programs: int, groups: int, warps: int, maxnreg: int = 255) -> Schedule:
    """A softmax by groups of programs, each of which has a part of each row in registers: the parts
    of the statistics are passed on, and the part of the next row is fetched meanwhile."""
    s = te.create_schedule(y)
    (r,) = s["z"].op.reduce_axis
    part = -(-int(y.shape[1]) // (64 * programs)) * 64
    s.split_online(s["z"], s["z"].split(r, factor=part)[0], casts=True)
    copies = [
        s.cache_read(s["top.rf"], "local", [s["top"], s["z"]]),
        s.cache_read(s["z.rf"], "local", [s["z"]]),
    ]
    i, j = s[y].op.axis
    turn, own = s[y].split(i, factor=groups)
    program, lanes = s[y].split(j, factor=part)
    s[y].reorder(own, program, turn, lanes)
    s[y].bind(own, "blockIdx.y")
    s[y].bind(program, "blockIdx.x")
    s[y].vectorize(lanes)
    for name in ("z", "top"):
        s[name].vectorize(s[name].op.reduce_axis[0])
        s[name].compute_at(s[y], turn)
    for copy in copies:
        s[copy].compute_across(s[y], turn, s[copy].op.axis[0], program)
    for name in ("z.rf", "top.rf"):
        s[name].vectorize(s[name].op.reduce_axis[0])
        s[name].compute_at(s[y], turn)
    held = s.cache_read(s["x"], "local", [s["top.rf"], s["z.rf"], s[y]])
    s[held].compute_at(s[y], turn)
    s[held].double_buffer()
    s[y].launch(num_warps=warps, maxnreg=maxnreg)
    return s
