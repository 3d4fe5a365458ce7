"""A kernel whose addresses have a sum that is cut to 32 bits, and what LLVM may make of it."""

from __future__ import annotations

import re

import tedsl as te
from tedsl.scheduling.handles.schedule import Schedule

_CHOSEN = re.compile(r"selp\.b64\s+(%rd\d+), -?\d+, (?:429496\d{4}|-?\d+), %p\d+;")
_ADDED = re.compile(r"add\.s64\s+(%rd\d+), (%rd\d+), (%rd\d+);")
_SCALED = re.compile(r"(?:shl\.b64|mul\.lo\.s64)\s+%rd\d+, (%rd\d+), \d+;")


def rolled(columns: int, rows: int, lanes: int, warps: int) -> Schedule:
    """Rows whose columns are rolled by half, with a column of 64 bits; float32[4, 17, columns]."""
    x = te.placeholder((4, 17, te.const(columns, "int64")), name="x")
    half, whole = te.const(columns // 2, "int64"), te.const(columns, "int64")
    y = te.compute(x.shape, lambda n, i, j: x[n, (i * 7 + 1) % 17, (j - half) % whole], name="y")
    s = te.create_schedule(y)
    n, i, j = s[y].op.axis
    outer, row = s[y].split(i, factor=rows)
    part, column = s[y].split(j, factor=lanes)
    s[y].reorder(n, outer, part, row, column)
    s[y].bind(s[y].fuse(n, outer, part), "blockIdx.x")
    s[y].vectorize(row)
    s[y].vectorize(column)
    s[y].launch(num_warps=warps)
    return s


def carries(ptx: str) -> bool:
    """Whether what was chosen of two numbers is scaled with all its 64 bits, as part of a sum."""
    wide = set(_CHOSEN.findall(ptx))
    for total, a, b in _ADDED.findall(ptx):
        if wide & {a, b}:
            wide.add(total)
    return any(term in wide for term in _SCALED.findall(ptx))
