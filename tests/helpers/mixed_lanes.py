"""A kernel for which LLVM makes one vector of a column and a row, and what it may get wrong."""

from __future__ import annotations

import re

import tedsl as te
from tedsl.expr.nodes import Var
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor

_WIDE = re.compile(r"mul\.wide\.u32\s+(%rd\d+), %r\d+, \d+;")
_JOINED = re.compile(r"or\.b64\s+(%rd\d+), (%rd\d+), (%rd\d+);")
_HALF = re.compile(r"mov\.b64\s+\{[^}]*\}, (%rd\d+);")


def rows_less_their_least() -> tuple[Schedule, Tensor, Tensor, tuple[Var, Var]]:
    """The schedule, its input float32[2, n, m], its output float32[2, n] (zeros), and n and m."""
    n, m = te.size_var("n", "int32"), te.size_var("m", "int32")
    x = te.placeholder((2, n, m), name="x")
    k, r = te.reduce_axis((0, m), name="k"), te.reduce_axis((0, m), name="r")
    least = te.compute((2, n), lambda h, i: te.min(x[h, i, k], axis=k), name="least")
    y = te.compute((2, n), lambda h, i: te.min(x[h, i, r] - least[h, i], axis=r), name="y")
    s = te.create_schedule(y)
    local = s.cache_write(y, "local")
    h, i = s[y].op.axis
    outer, inner = s[y].split(i, factor=32)
    s[y].reorder(h, outer, inner)
    block = s[y].fuse(h, outer)
    s[y].bind(block, "blockIdx.x")
    s[y].vectorize(inner)
    for stage in (s[local], s[least]):
        stage.compute_at(s[y], block)
        steps, step = stage.split(stage.op.reduce_axis[0], factor=64)
        stage.vectorize(step)
        stage.pipeline(steps, num_stages=3)
    s[y].launch(num_warps=1)
    return s, x, y, (n, m)


def lanes_run_over(ptx: str) -> bool:
    """Whether a product of 64 bits is a half of a register that is taken apart again."""
    wide, halves = set(_WIDE.findall(ptx)), set(_HALF.findall(ptx))
    return any(
        whole in halves and (low in wide or high in wide)
        for whole, low, high in _JOINED.findall(ptx)
    )
