"""Solutions of tutorial 1: what inlining costs, another norm, a tile that is searched.

python tutorials/solutions/01_fuse_by_hand_and_by_search.py
"""

# %% Setup
from __future__ import annotations

from typing import Any

import numpy as np

import tedsl as te

ROWS, LENGTH = 16, 4096
random = np.random.default_rng(0)
numbers: Any = random.standard_normal((ROWS, LENGTH), dtype=np.float32)
x = te.placeholder((ROWS, LENGTH), "float32", name="x")


def axis(extent: int) -> te.Axis:
    """A loop that is summed over."""
    return te.reduce_axis((0, extent), name="k")


# %% 1. The exponentials of the softmax, inlined
# Attached at the row they are computed once and kept in a buffer; inlined they are computed at both
# of their reads, and nothing is kept.  `kernel.explain()` counts both.
j, k = axis(LENGTH), axis(LENGTH)
top = te.compute((ROWS,), lambda i: te.max(x[i, j], axis=j), name="top")
e = te.compute((ROWS, LENGTH), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
total = te.compute((ROWS,), lambda i: te.sum(e[i, k], axis=k), name="total")
softmax = te.compute((ROWS, LENGTH), lambda i, j: e[i, j] / total[i], name="softmax")


def softmax_with(inline: bool) -> te.Schedule:
    """All stages at a row of the result."""
    s = te.create_schedule(softmax)
    row = softmax.op.axis[0]
    s["total"].compute_at(s["softmax"], row)
    if inline:
        s["e"].compute_inline()
    else:
        s["e"].compute_at(s["softmax"], row)
    s["top"].compute_at(s["softmax"], row)
    s["softmax"].parallel(row)
    return s


exact = np.exp(numbers - numbers.max(1, keepdims=True))
exact /= exact.sum(1, keepdims=True)
kept: dict[bool, tuple[int, int]] = {}
for inline in (False, True):
    kernel = te.build(softmax_with(inline), "cpu")
    np.testing.assert_allclose(kernel(numbers), exact, rtol=1e-4)
    (cost,) = kernel.explain().kernels
    kept[inline] = cost.flops, cost.local_bytes
for inline, (flops, held) in kept.items():
    how = "inlined" if inline else "attached"
    print(f"exercise 1, {how}: {flops} operations, {held} bytes in buffers")
assert kept[True][0] > kept[False][0]
assert kept[True][1] < kept[False][1]


# %% 2. rms_norm in place of layer_norm
# There is no mean to subtract: one reduction instead of two, so one stage to attach instead of two
# (and their sums).  The rest of the schedule stands.
scale = te.placeholder((LENGTH,), "float32", name="scale")
norm = te.nn.rms_norm(x, scale, eps=1e-5, name="norm")
s = te.create_schedule(norm)
row, column = norm.op.axis
s["norm"].vectorize(column)
inner = [st.name for st in s.stages if st.op.axis and st.name != "norm"]
print("exercise 2: the stages of rms_norm:", ", ".join(inner), "and norm")
for name in reversed(inner):
    for lanes in s[name].op.reduce_axis:
        s[name].vectorize(lanes)
    s[name].compute_at(s["norm"], row)
s["norm"].parallel(row)
factors: Any = random.standard_normal(LENGTH, dtype=np.float32)
kernel = te.build(s, "cpu")
wanted = numbers / np.sqrt(np.square(numbers).mean(1, keepdims=True) + 1e-5) * factors
np.testing.assert_allclose(kernel(numbers, factors), wanted, rtol=1e-4, atol=1e-5)
assert len(kernel.explain().kernels) == 1

# %% 3. The tile of a matrix product as a knob
M, N, K = 64, 96, 128
A = te.placeholder((M, K), "float32", name="A")
B = te.placeholder((K, N), "float32", name="B")
depth = axis(K)
C = te.compute((M, N), lambda i, j: te.sum(A[i, depth] * B[depth, j], axis=depth), name="C")


def tiled(s: te.Schedule) -> None:
    """A tile of sums in registers, of a size that the search chooses."""
    i, j = C.op.axis
    rows, columns = s.knob("rows", (4, 2, 6, 8)), s.knob("columns", (16, 8, 32))
    row_tile, column_tile, row, column = s["C"].tile(i, j, rows, columns)
    s["C"].reorder(row_tile, column_tile, depth, row, column)
    s["C"].vectorize(row)
    s["C"].vectorize(column)
    s["C"].parallel(row_tile)


kernel = te.autotune(C, "cpu", schedule=tiled, trials=5, records=False)
chosen = ", ".join(f"{knob.name}={knob.chosen}" for knob in kernel.schedule.knobs)
print(f"exercise 3: of 12 tiles, 5 tried: {chosen}")
a: Any = random.standard_normal((M, K), dtype=np.float32)
b: Any = random.standard_normal((K, N), dtype=np.float32)
np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
