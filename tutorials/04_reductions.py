"""Tutorial 4: reductions: whole row, looped, in parts, down the columns.

    python tutorials/04_reductions.py                   # CPU, under a minute
    python tutorials/04_reductions.py --target cuda     # an NVIDIA GPU and PyTorch

A sum is a chain of additions, each waiting for the one before; a machine is fast at many things at
once.  Scheduling a reduction is finding what can be done at once: lanes that each sum a share, rows
that do not know of each other, parts that are summed last.  Which of them is there to be had
depends on the shape, so here is one formula (a sum of squares) over three shapes: along rows, over
everything, down columns.  Regrouping a sum also changes its rounding: the last cell measures that.
"""

# %% Setup
from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from lesson import Lesson, installed, table, title, to_torch

import tedsl as te

lesson = Lesson.begin(__doc__)
LANES = 1024 if lesson.gpu else 64  # additions at once: a block of a GPU program; SIMD registers
torch: Any = importlib.import_module("torch") if lesson.measured and installed("torch") else None


def spread(stage: te.Stage, axis: te.Axis) -> None:
    """Iterations that do not know of each other: threads of the CPU, programs of the GPU."""
    if lesson.gpu:
        stage.bind(axis, "blockIdx.x")
    else:
        stage.parallel(axis)


# %% 1. Along rows: many sums, each over what lies side by side
M, K = lesson.size(512, 16384, 64), lesson.size(4096, 4096, 128)


def row_sums() -> te.Tensor:
    """sum_k x[i, k]^2."""
    x = te.placeholder((M, K), "float32", name="x")
    k = te.reduce_axis((0, K), name="k")
    return te.compute((M,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="rows")


def as_written(output: te.Tensor) -> te.Schedule:
    """Rows at once, and a plain loop over k.

    On a GPU that is a chain of K additions.  On the CPU it is not: a reducer is known to combine in
    any order, the code says so (`fadd reassoc`), and LLVM finds SIMD lanes in the loop by itself.
    """
    s = te.create_schedule(output)
    spread(s[output], s[output].op.axis[0])
    return s


def looped(output: te.Tensor) -> te.Schedule:
    """LANES sums at once, each over every LANES-th element; they are added up after the loop.

    `vectorize` of a reduction's loop asks for exactly that.  TVM refuses it; here the reducer is
    known to combine in any order, so it is legal (and changes the rounding).
    """
    s = te.create_schedule(output)
    stage = s[output]
    _, lanes = stage.split(stage.op.reduce_axis[0], factor=LANES)
    stage.vectorize(lanes)
    spread(stage, stage.op.axis[0])
    return s


def whole_row(output: te.Tensor) -> te.Schedule:
    """No loop: the row is one value.  A GPU program holds it in registers, where other stages could
    use it again (a norm, a softmax); the CPU's code generator makes its own loop of it."""
    s = te.create_schedule(output)
    stage = s[output]
    stage.vectorize(stage.op.reduce_axis[0])
    spread(stage, stage.op.axis[0])
    return s


title("1. along rows")
rows = row_sums()
print(looped(rows))
kernels = {
    "as written": lesson.build(as_written(rows)),
    f"looped, {LANES} lanes": lesson.build(looped(rows)),
    "whole row": lesson.build(whole_row(rows)),
    "default rules": lesson.build(rows),
}
along = lesson.compare(
    f"sum of squares of rows, {M} x {K} float32",
    kernels,
    [lesson.normal(M, K)],
    lambda x: np.square(x).sum(axis=1),
    lambda x: x.square().sum(1),
    base="as written",
)
along.print()
along.draw("04_rows")
if along:
    gain = along.speedup(f"looped, {LANES} lanes")
    print(f"Lanes gain {gain:.2f}x over the loop as written.")
    if not lesson.gpu:
        print("On the CPU that can be nothing: LLVM finds lanes in the plain loop.  They are worth")
        print(
            "saying where it does not: where the loop holds other stages, or is shared with some."
        )

# %% 2. Over everything: one sum, and no rows to share out
# Now there is a single result, so nothing that `parallel` could take.  `rfactor` makes some: it
# turns one loop of the reduction into an axis of partial results, a stage of its own, and the old
# stage sums those.  Two kernels instead of one, and the first is as parallel as you like.
COUNT = lesson.size(1 << 24, 1 << 28, 1 << 12)
PARTS = lesson.size(64, 1024, 8)


def total() -> te.Tensor:
    """sum_k x[k]^2."""
    x = te.placeholder((COUNT,), "float32", name="x")
    k = te.reduce_axis((0, COUNT), name="k")
    return te.compute((), lambda: te.sum(x[k] * x[k], axis=k), name="total")


def single(output: te.Tensor) -> te.Schedule:
    """Lanes, and one thread or program for all of it."""
    s = te.create_schedule(output)
    _, lanes = s[output].split(s[output].op.reduce_axis[0], factor=LANES)
    s[output].vectorize(lanes)
    return s


def in_parts(output: te.Tensor) -> te.Schedule:
    """PARTS sums side by side, then their sum."""
    s = te.create_schedule(output)
    part, _ = s[output].split(s[output].op.reduce_axis[0], nparts=PARTS)
    partial = s[s.rfactor(s[output], part)]
    _, lanes = partial.split(partial.op.reduce_axis[0], factor=LANES)
    partial.vectorize(lanes)
    spread(partial, partial.op.axis[0])
    s[output].vectorize(s[output].op.reduce_axis[0])  # PARTS numbers: one step
    return s


def in_one_launch(output: te.Tensor) -> te.Schedule:
    """The same, but the last program to store its part also adds up all of them.  On a GPU a count
    in memory tells it that it is the last, and the second launch is saved; on the CPU both loops
    stay as they are."""
    s = in_parts(output)
    s[output].compute_last("total.rf")
    return s


title("2. over everything")
everything = total()
print(in_parts(everything))
print(in_one_launch(everything))
kernels = {
    "as written": lesson.build(te.create_schedule(everything)),
    "one thread": lesson.build(single(everything)),
    f"rfactor, {PARTS} parts": lesson.build(in_parts(everything)),
    "default rules": lesson.build(everything),
}
if lesson.gpu:
    kernels["the same in one launch"] = lesson.build(in_one_launch(everything))
if lesson.target == "cuda":
    del kernels["as written"]  # one program, one number at a time: seconds
values = lesson.normal(COUNT)
whole = lesson.compare(
    f"sum of squares of {COUNT} numbers",
    kernels,
    [values],
    lambda x: np.square(x, dtype=np.float64).sum(),
    lambda x: x.square().sum(),
    base="one thread",
    tolerance=1e-3,  # of a long sum in float32: see the last cell
)
whole.print()
whole.draw("04_everything")
if whole:
    print(f"In {PARTS} parts it is {whole.speedup(f'rfactor, {PARTS} parts'):.2f}x as fast as one")
    if lesson.gpu:
        print(
            "thread, which is one program here: a hundredth of the device, waiting for each load."
        )
    else:
        print(
            "thread: at most the number of cores, and less where one core can already take a good"
        )
        print("part of the bandwidth of the memory.")

# %% 3. Down columns: what is summed lies far apart
# sum_k x[k, j]: with lanes along k, as above, each of them fetches a line of memory for 4 bytes.
# The neighbours in memory are other sums.  So the lanes are results: each of WIDE neighbouring
# columns has its own running sum, and a step of k adds a piece of a row to all of them.
DEEP, ACROSS = lesson.size(1 << 16, 1 << 19, 256), lesson.size(256, 512, 64)
WIDE = min(ACROSS, 64 if lesson.gpu else 128)
STEPS = 64  # parts of the columns


def column_sums() -> te.Tensor:
    """sum_k x[k, j]^2."""
    x = te.placeholder((DEEP, ACROSS), "float32", name="x")
    k = te.reduce_axis((0, DEEP), name="k")
    return te.compute((ACROSS,), lambda j: te.sum(x[k, j] * x[k, j], axis=k), name="columns")


def lanes_of_columns(s: te.Schedule, stage: te.Stage, columns: te.Axis) -> te.Axis:
    """Running sums of WIDE neighbours side by side.  Returns the loop over groups of them."""
    group, lanes = stage.split(columns, factor=WIDE)
    step = stage.op.reduce_axis[0]
    if lesson.gpu:  # several rows at once as well: a block of two dimensions
        step, high = stage.split(step, factor=16)
        stage.reorder(group, step, high, lanes)
        stage.vectorize(high)
    else:
        step, high = stage.split(step, factor=8)
        stage.reorder(group, step, high, lanes)
        stage.unroll(high)  # eight rows between two visits of the running sums
    stage.vectorize(lanes)
    return group


def across(output: te.Tensor) -> te.Schedule:
    """Lanes are columns; groups of columns run at once.  There are only ACROSS / WIDE of those."""
    s = te.create_schedule(output)
    spread(s[output], lanes_of_columns(s, s[output], s[output].op.axis[0]))
    return s


def across_in_parts(output: te.Tensor) -> te.Schedule:
    """Both: stretches of rows at once (rfactor), lanes that are columns within each."""
    s = te.create_schedule(output)
    part, _ = s[output].split(s[output].op.reduce_axis[0], nparts=STEPS)
    partial = s[s.rfactor(s[output], part)]
    part, columns = partial.op.axis
    group = lanes_of_columns(s, partial, columns)
    spread(partial, part)
    if lesson.gpu:
        partial.bind(group, "blockIdx.y")
    _, lanes = s[output].split(s[output].op.axis[0], factor=WIDE)
    s[output].reorder(s[output].op.reduce_axis[0], lanes)
    s[output].vectorize(lanes)
    if lesson.gpu:
        s[output].bind(s[output].leaf_iter_vars[0], "blockIdx.x")
    return s


title("3. down columns")
columns = column_sums()
print(across_in_parts(columns))
kernels = {
    "lanes along k": lesson.build(looped(columns)),
    f"lanes are {WIDE} columns": lesson.build(across(columns)),
    f"the same in {STEPS} parts": lesson.build(across_in_parts(columns)),
    "default rules": lesson.build(columns),
    **lesson.search(columns),
}
down = lesson.compare(
    f"sum of squares of columns, {DEEP} x {ACROSS} float32",
    kernels,
    [lesson.normal(DEEP, ACROSS)],
    lambda x: np.square(x).sum(axis=0, dtype=np.float64),
    lambda x: x.square().sum(0),
    base="lanes along k",
)
down.print()
down.draw("04_columns")
if down:
    turned = down.speedup(f"lanes are {WIDE} columns")
    parts = down.speedup(f"the same in {STEPS} parts", f"lanes are {WIDE} columns")
    print(f"Turning the lanes gains {turned:.1f}x, parts another {parts:.2f}x.")
    if parts < 1.1:
        print(f"Parts gain little here: {ACROSS // WIDE} groups of columns already keep "
              f"{'the device' if lesson.gpu else 'all cores'} busy.")  # fmt: skip

# %% What regrouping does to the result
# Every schedule above computed the same sum in another order, and float32 rounds each time.  One
# long chain rounds worst: late additions put a small number on a large sum.  Lanes and parts are
# many short chains, so the fast schedules are the accurate ones too.  Against a sum in float64:
title("4. how far off")
if lesson.runs:
    exact = float(np.square(values, dtype=np.float64).sum())
    regrouped = {
        "as written": te.create_schedule(everything),
        "one thread": single(everything),
        f"rfactor, {PARTS} parts": in_parts(everything),
    }
    here = values
    if lesson.target == "cuda":
        del regrouped["as written"]
        here = to_torch(values, "cuda")
    sums = {name: float(lesson.build(s)(here)) for name, s in regrouped.items()}
    sums["NumPy, pairwise"] = float(np.square(values).sum())
    sums["one chain (np.cumsum)"] = float(np.cumsum(np.square(values))[-1])
    off = [(name, f"{abs(found / exact - 1):.1e}") for name, found in sums.items()]
    table("relative error of the sum", ("order", "error"), off)
else:
    print("nothing runs here, so nothing is off")

# %% Exercises (solutions/04_reductions.py)
# 1. The largest element of each row and where it is: a `te.comm_reducer` of pairs.  Give it lanes;
#    what must the reducer say about ties for that to be legal?
# 2. RMS norm: x[i, j] / sqrt(mean of squares of row i).  One kernel instead of two: where does the
#    reduction go?
# 3. Four rows of a million: `looped` has four tasks.  Give a row several threads.
lesson.done()
