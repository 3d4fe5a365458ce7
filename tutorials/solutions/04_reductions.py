"""Solutions to the exercises of tutorial 4, on the CPU.

python tutorials/solutions/04_reductions.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import tedsl as te
from tedsl.runtime.timing import compare

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lesson import check, title

random = np.random.default_rng(0)

# %% 1. The largest of each row, and where it is
# Lanes combine shares of the row in another order than a loop does.  "Keep the earlier one" is then
# not what `>=` says: of two equal values the one at the smaller INDEX has to win, whichever comes
# first.  With that the reducer combines in any order, which tedsl proves before it vectorizes.
title("exercise 1: argmax")


def larger(a: Any, b: Any) -> Any:
    """Of two (index, value) the larger value; of equal ones the smaller index."""
    first = (a[1] > b[1]) | ((a[1] == b[1]) & (a[0] < b[0]))
    return te.select(first, a[0], b[0]), te.select(first, a[1], b[1])


argmax = te.comm_reducer(
    larger, lambda index, value: (te.max_value(index), te.min_value(value)), name="argmax"
)
M, K = 256, 1000
x = te.placeholder((M, K), "float32", name="x")
k = te.reduce_axis((0, K), name="k")
place, value = te.compute((M,), lambda i: argmax((k.var, x[i, k]), axis=k), name="largest")
s = te.create_schedule([place, value])
_, lanes = s[place].split(s[place].op.reduce_axis[0], factor=32)
s[place].vectorize(lanes)
s[place].parallel(s[place].op.axis[0])
numbers = random.integers(0, 50, (M, K)).astype(np.float32)  # many ties
where, best = te.build(s, "cpu")(numbers)
np.testing.assert_array_equal(where, numbers.argmax(axis=1))
np.testing.assert_array_equal(best, numbers.max(axis=1))
print("agrees with NumPy, ties included")

# %% 2. RMS norm in one kernel
# The sum of a row is wanted by the elements of that row only: compute it at the row.  The second
# pass over the row finds it in the first cache.
title("exercise 2: RMS norm")
k = te.reduce_axis((0, K), name="k")
squares = te.compute((M,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")
normed = te.compute(
    (M, K), lambda i, j: x[i, j] / te.sqrt(squares[i] * (1 / K) + 1e-6), name="normed"
)
s = te.create_schedule(normed)
row, column = s[normed].op.axis
s[squares].compute_at(s[normed], row)
s[squares].vectorize(s[squares].op.reduce_axis[0])
s[normed].vectorize(column)
s[normed].parallel(row)
print(s)
kernel = te.build(s, "cpu")
values = random.standard_normal((M, K), dtype=np.float32)
rms = np.sqrt(np.square(values).mean(axis=1, keepdims=True) + 1e-6)
check("RMS norm", kernel(values), values / rms, 1e-5)
assert len(kernel.explain().kernels) == 1

# %% 3. Four long rows: parts of a row as tasks
# `rfactor` makes PARTS sums of each row; rows and parts fused are 4 * PARTS tasks.
title("exercise 3: few long rows")
ROWS, LONG, PARTS = 4, 1 << 20, 16
y = te.placeholder((ROWS, LONG), "float32", name="y")
k = te.reduce_axis((0, LONG), name="k")
total = te.compute((ROWS,), lambda i: te.sum(y[i, k] * y[i, k], axis=k), name="total")


def by_row() -> te.Schedule:
    """A thread for each row."""
    s = te.create_schedule(total)
    _, lanes = s[total].split(s[total].op.reduce_axis[0], factor=64)
    s[total].vectorize(lanes)
    s[total].parallel(s[total].op.axis[0])
    return s


def by_part() -> te.Schedule:
    """A thread for each part of each row."""
    s = te.create_schedule(total)
    part, _ = s[total].split(s[total].op.reduce_axis[0], nparts=PARTS)
    partial = s[s.rfactor(s[total], part)]
    part, row = partial.op.axis
    _, lanes = partial.split(partial.op.reduce_axis[0], factor=64)
    partial.vectorize(lanes)
    partial.parallel(partial.fuse(part, row))
    return s


long_rows = random.standard_normal((ROWS, LONG), dtype=np.float32)
kernels = {"by row": te.build(by_row(), "cpu"), "by part": te.build(by_part(), "cpu")}
for name, kernel in kernels.items():
    check(name, kernel(long_rows), np.square(long_rows, dtype=np.float64).sum(axis=1), 1e-4)
times = compare({n: (lambda k=k: k(long_rows)) for n, k in kernels.items()}, repeats=10)
for name, stats in times.items():
    print(f"{name}: {stats}")
print("With as many cores as rows, or fewer, parts can gain nothing; with more they do.")
