"""Tutorial 5: a matrix product, one primitive at a time.

    python tutorials/05_matmul_step_by_step.py                   # CPU, under a minute
    python tutorials/05_matmul_step_by_step.py --target cuda     # an NVIDIA GPU and PyTorch

A product of two N x N matrices does 2 N^3 operations on 3 N^2 numbers.  There is enough to do with
each number to keep the arithmetic busy, if a number that has been fetched is used many times before
it is let go.  That is all a fast product is: the same number used again, from a register, from a
cache, by a neighbour.  The schedule below grows by one step at a time, and each step is one more
use of what was fetched.  The last one is measured beside libraries that people spent years on.
"""

# %% Setup
from __future__ import annotations

from itertools import pairwise
from typing import Any

from lesson import Lesson, Panel, bars, table, title

import tedsl as te
from tedsl.detect import cpu_here

lesson = Lesson.begin(__doc__)
N = lesson.size(cpu=512, cuda=4096, quick=128)
DTYPE, F32 = lesson.dtype, "float32"


# %% The definition: the sums, and where they are stored
# Two stages.  Whatever loop of C the sums are attached at holds the running sums of what is inside
# that loop: one number, a row of lanes, a block of registers.  That choice is most of the schedule.
def product() -> te.Tensor:
    """A @ B, summed in float32 and stored as A is."""
    a = te.placeholder((N, N), DTYPE, name="A")
    b = te.placeholder((N, N), DTYPE, name="B")
    k = te.reduce_axis((0, N), name="k")
    sums = te.compute(
        (N, N), lambda i, j: te.sum(a[i, k].astype(F32) * b[k, j].astype(F32), axis=k), name="sum"
    )
    return te.compute((N, N), lambda i, j: sums[i, j].astype(DTYPE), name="C")


# %% On the CPU, step by step
# 0. As written: for each i and j a sum over k.  B is read down a column: a line of memory fetched
#    for each number, and every number of A and B is fetched N times.
# 1. Lanes: the sums of neighbouring j side by side, k outside.  B is read along a row now, and one
#    number of A is used for all lanes.
# 2. A block of registers: several rows of such lanes.  A piece of B, loaded once, is used for every
#    row of the block; a number of A for every lane.  As many rows as registers hold.
# 3. Unrolled: four steps of k without a branch between them.
# 4. Packed: the panel of B under the block is copied to where its rows lie one after another, once
#    for all blocks that use it.  Rows of B itself are N numbers apart: a page each.
# 5. Threads: every core takes panels.
CPU_STEPS = ("as written", "+ lanes", "+ block in registers", "+ unrolled", "+ packed", "+ threads")
here = cpu_here()
WIDE = 2 * here.lanes(4)  # two registers of float32
HIGH = max(4, 3 * here.vector_registers // 8)  # times two sums each: 3/4 of the registers


def on_cpu(output: te.Tensor, step: int) -> te.Schedule:
    """The schedule after a number of steps."""
    s = te.create_schedule(output)
    out, sums = s["C"], s["sum"]
    i, j = out.op.axis
    if step == 0:
        sums.compute_at(out, j)
        return s
    rows, panel, row, lanes = out.tile(i, j, HIGH if step >= 2 else 1, WIDE)
    out.reorder(panel, rows, row, lanes)  # all blocks of a panel in turn: the panel stays in cache
    out.vectorize(row)
    out.vectorize(lanes)
    sums.compute_at(out, rows)  # the running sums of one block, and of no more: registers
    (k,) = sums.op.reduce_axis
    sums.reorder(k, *sums.op.axis)  # a step of k updates the whole block
    for axis in sums.op.axis:
        sums.vectorize(axis)
    if step >= 3:
        k, few = sums.split(k, factor=4)
        sums.reorder(k, few, *sums.op.axis)
        sums.unroll(few)
    if step >= 4:
        packed = s[s.cache_read(s["B"], "local", [sums])]
        packed.compute_at(out, panel)
        packed.vectorize(packed.op.axis[1])
    if step >= 5:
        out.parallel(panel)
    return s


# %% On a GPU, step by step
# A program computes a block of C; what the CPU does with registers and lanes, Triton does inside
# the program.  `vectorize` makes a loop an axis of the block, and a multiply-accumulate over block
# axes of i, j and k is `tl.dot`: the tensor cores.
# 0. Blocks of 32 x 32: each number fetched is used 32 times; the tensor cores wait.
# 1. Blocks of 128 x 128: four times the use of each number.
# 2. A pipeline: the loads of two steps ahead fly during the dot.
# 3. Grouping: programs that run at the same time share rows and columns in the L2 cache.
# 4. Descriptors: on Hopper and later TMA loads whole blocks; no address arithmetic.
GPU_STEPS = ("blocks of 32", "+ blocks of 128", "+ pipeline", "+ grouping", "+ descriptors")


def on_gpu(output: te.Tensor, step: int) -> te.Schedule:
    """The schedule after a number of steps."""
    s = te.create_schedule(output)
    out, sums = s["C"], s["sum"]
    side, depth = (128, 64) if step >= 1 else (32, 32)
    rows, columns, row, column = out.tile(*out.op.axis, side, side)
    if step >= 3:
        group, member = out.split(rows, factor=8)
        out.reorder(group, columns, member, row, column)
        grid = out.fuse(group, columns, member)
    else:
        grid = out.fuse(rows, columns)
    out.bind(grid, "blockIdx.x")
    out.vectorize(row)
    out.vectorize(column)
    sums.compute_at(out, grid)
    k, inner = sums.split(sums.op.reduce_axis[0], factor=depth)
    sums.vectorize(inner)
    if step >= 2:
        sums.pipeline(k, num_stages=3)
    if step >= 4:
        for name in ("A", "B"):
            staged = s[s.cache_read(s[name], "shared", [sums])]
            staged.compute_at(sums, k)
    out.launch(num_warps=8 if step >= 1 else 4, num_stages=3 if step >= 2 else 1)
    return s


# %% The loops at the beginning and at the end
c = product()
schedule, STEPS = (on_gpu, GPU_STEPS) if lesson.gpu else (on_cpu, CPU_STEPS)
title(STEPS[0])
print(schedule(c, 0))
title(f"all steps, to {STEPS[-1]}")
print(schedule(c, len(STEPS) - 1))

# %% Measured: every step, the rules, a search, and the libraries
title("measured")
kernels = {name: lesson.build(schedule(c, step)) for step, name in enumerate(STEPS)}
kernels["default rules"] = lesson.build(c)
kernels |= lesson.search(c)
matrices = [lesson.normal(N, N, dtype=DTYPE) for _ in range(2)]


def in_torch(a: Any, b: Any) -> Any:
    """PyTorch's product: cuBLAS on a GPU, MKL or the like on a CPU."""
    return a @ b


result = lesson.compare(
    f"{N} x {N} x {N}, {DTYPE}",
    kernels,
    matrices,
    lambda a, b: a @ b,
    in_torch,
    base=STEPS[0],
)
result.print(rates="Gflop/s")

# %% What each step gained over the one before
if result:
    gains = [(now, result.speedup(now, before)) for before, now in pairwise(STEPS)]
    table(
        "gain of each step", ("step", "over the step before"), [(n, f"{g:.2f}x") for n, g in gains]
    )
    flat = [name for name, gain in gains if gain < 1.05]
    if flat:
        print(f"No gain here: {', '.join(flat)}.")
    if "+ packed" in flat:
        print("Packing pays when the rows of B are many pages apart and the matrix is larger than")
        print(
            f"the cache: at {N} x {N} B is {N * N * 4 / 1e6:.1f} MB.  Exercise 1 makes it larger."
        )
    if "+ unrolled" in flat:
        print("Unrolling pays where the loop's own instructions take slots from the arithmetic;")
        print("a processor that executes many at once may hide them.")
    if "+ descriptors" in flat:
        print("Descriptors pay with large blocks and deep pipelines; the search tries both.")
    best = result.fastest()
    peers = [name for name in ("NumPy", "PyTorch eager") if name in result.rows]
    for name in peers:
        print(f"`{best}` takes {1 / result.speedup(best, name):.2f} of the time of {name}.")
    rows = [(name, row.seconds) for name, row in result.rows.items() if "(on the" not in name]
    work = 2 * N**3
    rates = [(name, work / seconds / 1e9) for name, seconds in rows]
    panel = Panel("Gflop/s", rates, lambda rate: f"{rate:.3g}")
    bars(lesson.pictures / "05_matmul.png", result.heading, [panel])

# %% Where the arithmetic happens
# The proof that a block is in registers is the machine code: fused multiply-adds in a row, without
# a store between them.
if lesson.target == "cpu":
    title("the inner loop of the last step")
    code = kernels[STEPS[-1]].asm.splitlines()
    fused = [n for n, line in enumerate(code) if "vfmadd" in line or "fmla" in line]
    middle = fused[len(fused) // 2] if fused else 0
    print("\n".join(code[max(middle - 6, 0) : middle + 6]))
    print(f"{len(fused)} fused multiply-adds in all")
else:
    title("the program of the last step")
    print(kernels[STEPS[-1]].source)

# %% Exercises (solutions/05_matmul_step_by_step.py)
# 1. Let B be long and thin (K = 4096, N = 64) and then wide (K = 64, N = 4096).  For which of them
#    does packing pay, and why?
# 2. The block in registers has HIGH rows.  Make it 2, 4, ... 16 and find where sums no longer fit.
# 3. A product with A transposed (A[k, i]).  Change the definition and nothing else: what does each
#    step gain now?
lesson.done()
