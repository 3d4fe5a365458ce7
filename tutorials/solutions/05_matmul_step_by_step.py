"""Solutions to the exercises of tutorial 5, on the CPU.

python tutorials/solutions/05_matmul_step_by_step.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import tedsl as te
from tedsl.detect import cpu_here
from tedsl.runtime.timing import compare

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lesson import check, table, title

random = np.random.default_rng(0)
WIDE = 2 * cpu_here().lanes(4)
HIGH = max(4, 3 * cpu_here().vector_registers // 8)


def product(m: int, n: int, depth: int, *, turned: bool = False) -> te.Tensor:
    """A @ B, or A.T @ B."""
    a = te.placeholder((depth, m) if turned else (m, depth), "float32", name="A")
    b = te.placeholder((depth, n), "float32", name="B")
    k = te.reduce_axis((0, depth), name="k")

    def term(i: te.Axis, j: te.Axis) -> te.Expr:
        return te.sum((a[k, i] if turned else a[i, k]) * b[k, j], axis=k)

    return te.compute((m, n), term, name="C")


def blocked(output: te.Tensor, *, high: int = HIGH, packed: bool = False) -> te.Schedule:
    """The tutorial's block in registers, with as many rows as asked for; B packed or not."""
    s = te.create_schedule(output)
    sums = s[s.cache_write(output, "local")]
    out = s[output]
    rows, panel, row, lanes = out.tile(*out.op.axis, high, WIDE)
    out.reorder(panel, rows, row, lanes)
    out.vectorize(row)
    out.vectorize(lanes)
    sums.compute_at(out, rows)
    (k,) = sums.op.reduce_axis
    sums.reorder(k, *sums.op.axis)
    for axis in sums.op.axis:
        sums.vectorize(axis)
    if packed:
        copy = s[s.cache_read(s["B"], "local", [sums])]
        copy.compute_at(out, panel)
        copy.vectorize(copy.op.axis[1])
    return s


def rates(
    output: te.Tensor, schedules: dict[str, te.Schedule], arrays: list[Any], want: Any
) -> Any:
    """Gflop/s of each schedule, after a check."""
    kernels = {name: te.build(s, "cpu") for name, s in schedules.items()}
    for name, kernel in kernels.items():
        check(name, kernel(*arrays), want, 1e-4)
    times = compare({n: (lambda k=k: k(*arrays)) for n, k in kernels.items()}, repeats=5)
    work = next(iter(kernels.values())).explain().flops
    return {name: work / stats.median / 1e9 for name, stats in times.items()}


def normal(*shape: int) -> Any:
    """Random float32."""
    return random.standard_normal(shape, dtype=np.float32)


# %% 1. When packing pays
# Packing a panel costs K * WIDE copies and serves M / HIGH blocks: it is paid back if M is large.
# It gains if the rows of B are far apart.  In a thin B (N = 64) they are 256 bytes apart: nearly
# packed already.  In a wide one (N = 4096) each row of a panel is on a page of its own.
title("exercise 1: packing, thin and wide B")
M = 192
lines: list[tuple[str, ...]] = []
for depth, n in ((2048, 64), (64, 2048)):
    output = product(M, n, depth)
    arrays = [normal(M, depth), normal(depth, n)]
    schedules = {"as it is": blocked(output), "packed": blocked(output, packed=True)}
    found = rates(output, schedules, arrays, arrays[0] @ arrays[1])
    shape = f"K = {depth}, N = {n}"
    lines.append((shape, *(f"{rate:.3g}" for rate in found.values())))
table("Gflop/s", ("B", "as it is", "packed"), lines)

# %% 2. The rows of a block
# Each row of the block takes two registers for its sums.  A few more hold a piece of B and a number
# of A.  Beyond that the compiler puts sums into memory and fetches them back at every step of k.
title("exercise 2: how many rows fit")
output = product(M, 192, 192)
arrays = [normal(M, 192), normal(192, 192)]
heights = (2, 4, 6, 8, 12, 16)
schedules = {str(high): blocked(output, high=high) for high in heights}
found = rates(output, schedules, arrays, arrays[0] @ arrays[1])
here = cpu_here().vector_registers
table(
    f"this processor has {here} vector registers",
    ("rows", "registers of sums", "Gflop/s"),
    [(name, str(2 * int(name)), f"{rate:.3g}") for name, rate in found.items()],
)

# %% 3. A transposed: another definition, the same schedule
# A[k, i] for neighbouring i lie side by side now: the numbers of a block's rows come from one line.
# Nothing else changes; the block in registers is what it was.
title("exercise 3: A.T @ B")
output = product(M, 192, 192, turned=True)
arrays = [normal(192, M), normal(192, 192)]
schedules = {"block in registers": blocked(output), "packed": blocked(output, packed=True)}
found = rates(output, schedules, arrays, arrays[0].T @ arrays[1])
table("Gflop/s", ("A.T @ B", "Gflop/s"), [(n, f"{rate:.3g}") for n, rate in found.items()])
