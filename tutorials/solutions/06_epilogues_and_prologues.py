"""Solutions to the exercises of tutorial 6, on the CPU.

python tutorials/solutions/06_epilogues_and_prologues.py
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
ROWS, DEPTH = 8 * HIGH, 64


def normal(*shape: int) -> Any:
    """Random float32."""
    return random.standard_normal(shape, dtype=np.float32)


def product(a: te.Tensor, columns: int) -> te.Tensor:
    """a @ B, as a stage called sums."""
    b = te.placeholder((DEPTH, columns), "float32", name="B")
    k = te.reduce_axis((0, DEPTH), name="k")
    return te.compute((ROWS, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="sums")


def blocks(out: te.Stage, sums: te.Stage) -> te.Axis:
    """Blocks in registers.  Returns the loop over them."""
    rows, panel, row, lanes = out.tile(*out.op.axis, HIGH, WIDE)
    out.reorder(panel, rows, row, lanes)
    out.vectorize(row)
    out.vectorize(lanes)
    sums.compute_at(out, rows)
    sums.reorder(sums.op.reduce_axis[0], *sums.op.axis)
    for axis in sums.op.axis:
        sums.vectorize(axis)
    return rows


# %% 1. From the other side
# The product is scheduled first, as if it were alone: `sums` in blocks, its running sums cached.
# Then its reader is pulled into the loop over blocks.  The loops are those of the product now, and
# the result is the same nest: a block of sums, then the same block of the result.
title("exercise 1: reverse_compute_at")
COLUMNS = 8 * WIDE
A = te.placeholder((ROWS, DEPTH), "float32", name="A")
bias = te.placeholder((COLUMNS,), "float32", name="bias")
sums = product(A, COLUMNS)
out = te.compute((ROWS, COLUMNS), lambda i, j: te.max(sums[i, j] + bias[j], 0.0), name="out")
s = te.create_schedule(out)
running = s[s.cache_write(sums, "local")]
at = blocks(s[sums], running)
s[out].reverse_compute_at(s[sums], at)
for axis in s[out].leaf_iter_vars[-2:]:
    s[out].vectorize(axis)
print(s)
kernel = te.build(s, "cpu")
a, b, shift = normal(ROWS, DEPTH), normal(DEPTH, COLUMNS), normal(COLUMNS)
check("pulled in", kernel(a, b, shift), np.maximum(a @ b + shift, 0), 1e-4)
assert len(kernel.explain().kernels) == 1

# %% 2. A reduction behind the product: the sum of squares of each row of the result
# It needs whole rows.  A block of a few columns is not enough; HIGH whole rows are, and they fit
# the cache.  So the product is attached at a group of rows, in a buffer, and has its blocks there.
title("exercise 2: a row reduction as epilogue")
j = te.reduce_axis((0, COLUMNS), name="j")
squares = te.compute((ROWS,), lambda i: te.sum(sums[i, j] * sums[i, j], axis=j), name="squares")
s = te.create_schedule(squares)
running = s[s.cache_write(sums, "local")]
group, row = s[squares].split(s[squares].op.axis[0], factor=HIGH)
s[squares].vectorize(s[squares].op.reduce_axis[0])
s[sums].compute_at(s[squares], group)
blocks(s[sums], running)
s[squares].parallel(group)
print(s)
kernel = te.build(s, "cpu")
check("squares of rows", kernel(a, b), np.square(a @ b).sum(axis=1), 1e-4)
cost = kernel.explain()
assert len(cost.kernels) == 1
print(f"the product is never in memory: {cost.workspace_bytes} bytes of workspace")

# %% 3. Where inlining the prologue wins
# An element of `hidden` is computed once for each panel of WIDE columns: the more panels, the more
# exponentials.  With one panel nothing is repeated and a pass over memory is saved, and yet it can
# lose: in the loop over k an exponential has HIGH lanes, gathered from HIGH rows, and at root it
# has full registers along a row.  What is fused runs in the shape of the loops it is fused into.
title("exercise 3: an inlined prologue, by columns")
g = te.placeholder((ROWS, DEPTH), "float32", name="g")
hidden = te.compute((ROWS, DEPTH), lambda i, k: g[i, k] / (1 + te.exp(-g[i, k])), name="hidden")


def gated(columns: int, *, inlined: bool) -> te.Kernel:
    """silu(g) @ B."""
    total = product(hidden, columns)
    s = te.create_schedule(total)
    if inlined:
        s[hidden].compute_inline()
    else:
        s[hidden].vectorize(s[hidden].op.axis[1])
    blocks(s[total], s[s.cache_write(total, "local")])
    return te.build(s, "cpu")


lines: list[tuple[str, ...]] = []
gate = normal(ROWS, DEPTH)
for panels in (1, 2, 8, 32):
    b = normal(DEPTH, panels * WIDE)
    kernels = {w: gated(panels * WIDE, inlined=w == "inlined") for w in ("at root", "inlined")}
    for name, kernel in kernels.items():
        check(name, kernel(gate, b), (gate / (1 + np.exp(-gate))) @ b, 1e-4)
    times = compare({n: (lambda k=k, b=b: k(gate, b)) for n, k in kernels.items()}, repeats=7)
    gain = times["at root"].best / times["inlined"].best
    lines.append((str(panels * WIDE), f"{panels}x", f"{gain:.2f}x"))
table("silu(g) @ B", ("columns", "exponentials", "inlined over at root"), lines)
