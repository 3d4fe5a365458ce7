"""Solutions to the exercises of tutorial 3, on the CPU.

python tutorials/solutions/03_counting_bytes.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import tedsl as te
from tedsl.runtime.timing import compare

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lesson import check, size_text, title

random = np.random.default_rng(0)
N = 1024
ARRAY = N * N * 4

# %% 1. Two results of one loop
# x is read once and both are written: 3 arrays.  As two stages, y reads `squashed` back from
# memory (or computes it again).  A tuple makes them one stage, which has both at hand.
title("exercise 1: two results")


def squashed(value: te.Expr) -> te.Expr:
    """value / (1 + |value|)."""
    return value / (1 + te.abs(value))


x = te.placeholder((N, N), "float32", name="x")
both = te.compute(
    (N, N), lambda i, j: (squashed(x[i, j]), x[i, j] + squashed(x[i, j])), name="both"
)
kernel = te.build(list(both), "cpu")
values = random.standard_normal((N, N), dtype=np.float32)
half = values / (1 + np.abs(values))
check("two results", kernel(values), (half, values + half), 1e-5)
moved = kernel.explain().nbytes
print(f"counted by hand {size_text(3 * ARRAY)}, by `explain` {size_text(moved)}")
assert moved == 3 * ARRAY

# %% 2. Quantised: 4 bytes in, 1 byte out, and the scales
# A copy moves 4 + 4 bytes for each element, this 4 + 1: 1.6 times as fast at best.
title("exercise 2: int8")
scale = te.placeholder((N,), "float32", name="scale")


def quantised(i: te.Axis, j: te.Axis) -> te.Expr:
    """The nearest of 255 steps."""
    return te.clip(te.round(x[i, j] * scale[j]), -127.0, 127.0).astype("int8")


q = te.compute((N, N), quantised, name="q")
copy = te.compute((N, N), lambda i, j: x[i, j], name="copy")
quantise, copied = te.build(q, "cpu"), te.build(copy, "cpu")
steps = (127 / np.abs(values).max(axis=0)).astype(np.float32)
wanted = np.clip(np.round(values * steps), -127, 127).astype(np.int8)
assert np.abs(quantise(values, steps).astype(int) - wanted).max() <= 1  # ties may round apart
times = compare(
    {"copy": lambda: copied(values), "int8": lambda: quantise(values, steps)}, repeats=10
)
counted = copied.explain().nbytes / quantise.explain().nbytes
gain = times["copy"].median / times["int8"].median
print(
    f"the count says {counted:.2f}x, the clock {gain:.2f}x (converting and rounding is work, too)"
)

# %% 3. The transpose as a stage of its own, at the tile
# Its lanes run along i, where x[j, i] is contiguous: whole lines are read.  It is written down the
# columns of its buffer, which is small and in the first cache.
title("exercise 3: a staged transpose")
turned = te.compute((N, N), lambda i, j: x[j, i], name="turned")
total = te.compute((N, N), lambda i, j: x[i, j] + turned[i, j], name="total")


def staged() -> te.Schedule:
    """Tiles of 64 x 64, `turned` computed for each."""
    s = te.create_schedule(total)
    rows, columns, _, lanes = s[total].tile(*s[total].op.axis, 64, 64)
    s[total].vectorize(lanes)
    s[total].parallel(rows)
    s[turned].compute_at(s[total], columns)
    i, j = s[turned].op.axis
    s[turned].reorder(j, i)
    s[turned].vectorize(i)
    return s


def in_registers() -> te.Schedule:
    """The tutorial's blocks of 8 x 8 in tiles of 64 x 64."""
    s = te.create_schedule(total)
    s[turned].compute_inline()
    rows, _, i, j = s[total].tile(*s[total].op.axis, 64, 64)
    _, _, i, j = s[total].tile(i, j, 8, 8)
    s[total].vectorize(i)
    s[total].vectorize(j)
    s[total].parallel(rows)
    return s


print(staged())
kernels = {"staged": te.build(staged(), "cpu"), "in registers": te.build(in_registers(), "cpu")}
for name, kernel in kernels.items():
    check(name, kernel(values), values + values.T, 1e-6)
times = compare({n: (lambda k=k: k(values)) for n, k in kernels.items()}, repeats=10)
for name, stats in times.items():
    print(f"{name}: {stats}")
