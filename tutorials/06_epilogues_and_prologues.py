"""Tutorial 6: epilogues and prologues: what to do to a product before it is stored, or begun.

    python tutorials/06_epilogues_and_prologues.py                   # CPU, under a minute
    python tutorials/06_epilogues_and_prologues.py --target cuda     # an NVIDIA GPU and PyTorch

A product is rarely alone: a bias is added to its result, an activation follows, a sum with what
came before (an epilogue); or its operand is computed from something else first (a prologue).  Both
can be fused into the product, and they are different.  An epilogue happens once per result, where
the sum has just left its register: fusing it costs nothing.  A prologue is wanted by every block of
the product that reads the operand: fused blindly it is computed again for each.
"""

# %% Setup, and the product of tutorial 5 as a function
from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from lesson import Lesson, installed, title

import tedsl as te
from tedsl.detect import cpu_here

lesson = Lesson.begin(__doc__)
DTYPE, F32 = lesson.dtype, "float32"
ROWS = lesson.size(1024, 8192, 64)
COLUMNS = lesson.size(512, 4096, 64)
torch: Any = importlib.import_module("torch") if lesson.measured and installed("torch") else None

here = cpu_here()
WIDE = 2 * here.lanes(4)
HIGH = max(4, 3 * here.vector_registers // 8)
BLOCK = 16 * HIGH  # rows that a task of the CPU takes at a time


def product(s: te.Schedule, out: te.Stage, sums: te.Stage) -> te.Axis:
    """Blocks of `out`, with the sums of each in registers.  Returns the loop over large blocks."""
    i, j = out.op.axis
    if lesson.gpu:
        rows, columns, row, column = out.tile(i, j, 64 if COLUMNS < 128 else 128, 128)
        group, member = out.split(rows, factor=8)
        out.reorder(group, columns, member, row, column)
        block = out.fuse(group, columns, member)
        out.bind(block, "blockIdx.x")
        out.vectorize(row)
        out.vectorize(column)
        sums.compute_at(out, block)
        step, inner = sums.split(sums.op.reduce_axis[0], factor=64)
        sums.vectorize(inner)
        sums.pipeline(step, num_stages=3)
        out.launch(num_warps=8)
        return block
    block, i = out.split(i, factor=BLOCK)
    rows, panel, row, lanes = out.tile(i, j, HIGH, WIDE)
    out.reorder(panel, rows, row, lanes)
    out.vectorize(row)
    out.vectorize(lanes)
    sums.compute_at(out, rows)
    step, few = sums.split(sums.op.reduce_axis[0], factor=4)
    sums.reorder(step, few, *sums.op.axis)
    sums.unroll(few)
    for axis in sums.op.axis:
        sums.vectorize(axis)
    packed = s[s.cache_read(s["B"], "local", [sums])]
    packed.compute_at(out, panel)
    packed.vectorize(packed.op.axis[1])
    out.parallel(block)
    return block


def alone(stage: te.Stage) -> None:
    """A pointwise stage in a kernel of its own."""
    if lesson.gpu:
        block, lanes = stage.split(stage.fuse(*stage.op.axis), factor=1024)
        stage.bind(block, "blockIdx.x")
    else:
        row, column = stage.op.axis
        _, lanes = stage.split(column, factor=128)
        stage.parallel(row)
    stage.vectorize(lanes)


# %% 1. An epilogue: relu(A @ B + bias) + x
def layer(depth: int) -> te.Tensor:
    """The product of A (ROWS x depth) and B (depth x COLUMNS), bias, relu, and a skip."""
    a = te.placeholder((ROWS, depth), DTYPE, name="A")
    b = te.placeholder((depth, COLUMNS), DTYPE, name="B")
    bias = te.placeholder((COLUMNS,), DTYPE, name="bias")
    x = te.placeholder((ROWS, COLUMNS), DTYPE, name="x")
    k = te.reduce_axis((0, depth), name="k")
    shape = (ROWS, COLUMNS)
    sums = te.compute(
        shape, lambda i, j: te.sum(a[i, k].astype(F32) * b[k, j].astype(F32), axis=k), name="sums"
    )
    biased = te.compute(shape, lambda i, j: sums[i, j] + bias[j].astype(F32), name="biased")
    active = te.compute(shape, lambda i, j: te.max(biased[i, j], 0.0), name="active")
    return te.compute(
        shape, lambda i, j: (active[i, j] + x[i, j].astype(F32)).astype(DTYPE), name="out"
    )


def layer_numpy(a: Any, b: Any, bias: Any, x: Any) -> Any:
    """The same in NumPy."""
    return np.maximum(a @ b + bias, 0) + x


def layer_torch(a: Any, b: Any, bias: Any, x: Any) -> Any:
    """The same in PyTorch: `addmm` has the bias as an epilogue of its own."""
    return torch.addmm(bias, a, b).relu() + x


def four_kernels(output: te.Tensor) -> te.Schedule:
    """The product by itself, then each step over its whole result."""
    s = te.create_schedule(output)
    for name in ("biased", "active", "out"):
        alone(s[name])
    product(s, s["sums"], s[s.cache_write(s["sums"], "local")])
    return s


def with_epilogue(output: te.Tensor) -> te.Schedule:
    """One kernel: the sums of a block never leave the registers before they are finished."""
    s = te.create_schedule(output)
    s["active"].compute_inline()
    s["biased"].compute_inline()
    product(s, s["out"], s["sums"])
    return s


SHORT, LONG = lesson.size(32, 128, 32), lesson.size(1024, 8192, 128)
gained: dict[int, float] = {}
for depth in (SHORT, LONG):
    title(f"1. an epilogue, {depth} deep")
    out = layer(depth)
    if depth == SHORT:
        print(with_epilogue(out))
    kernels = {
        "unfused": lesson.build(four_kernels(out)),
        "epilogue by hand": lesson.build(with_epilogue(out)),
        "default rules": lesson.build(out),
    }
    arrays = [
        lesson.normal(ROWS, depth, dtype=DTYPE),
        lesson.normal(depth, COLUMNS, dtype=DTYPE, scale=depth**-0.5),
        lesson.normal(COLUMNS, dtype=DTYPE),
        lesson.normal(ROWS, COLUMNS, dtype=DTYPE),
    ]
    heading = f"relu(A @ B + bias) + x, {ROWS} x {depth} x {COLUMNS} {DTYPE}"
    result = lesson.compare(heading, kernels, arrays, layer_numpy, layer_torch)
    result.print()
    result.draw(f"06_epilogue_{depth}_deep")
    if result:
        gained[depth] = result.speedup("epilogue by hand")
if gained:
    print(f"The epilogue gains {gained[SHORT]:.2f}x over a product {SHORT} deep and "
          f"{gained[LONG]:.2f}x over one {LONG} deep.")  # fmt: skip
    print(
        "The bytes that it saves are the same.  The deeper product does more work for each of its"
    )
    print("results, so what happens to a result afterwards weighs less.")

# %% 2. A prologue: (silu(g) * u) @ B, the second half of a gated layer
# `hidden` has ROWS x DEPTH elements with an exponential in each.  Where is it computed?
# - at root: a pass of its own; written to memory and read again;
# - inlined: wherever the product reads it, so once for every panel of B: the fewest bytes, and the
#   exponentials COLUMNS / width-of-a-panel times over;
# - at a block of rows (the CPU): before the panels are begun, into a buffer that stays in cache:
#   computed once, and never in memory.
DEPTH = lesson.size(512, 4096, 64)


def gated() -> te.Tensor:
    """(silu(g) * u) @ B."""
    g = te.placeholder((ROWS, DEPTH), DTYPE, name="g")
    u = te.placeholder((ROWS, DEPTH), DTYPE, name="u")
    b = te.placeholder((DEPTH, COLUMNS), DTYPE, name="B")

    def gate(i: te.Axis, k: te.Axis) -> te.Expr:
        x = g[i, k].astype(F32)
        return (x / (1 + te.exp(-x)) * u[i, k].astype(F32)).astype(DTYPE)

    hidden = te.compute((ROWS, DEPTH), gate, name="hidden")
    k = te.reduce_axis((0, DEPTH), name="k")
    shape = (ROWS, COLUMNS)
    sums = te.compute(
        shape,
        lambda i, j: te.sum(hidden[i, k].astype(F32) * b[k, j].astype(F32), axis=k),
        name="sums",
    )
    return te.compute(shape, lambda i, j: sums[i, j].astype(DTYPE), name="out")


def gated_numpy(g: Any, u: Any, b: Any) -> Any:
    """The same in NumPy."""
    return (g / (1 + np.exp(-g)) * u) @ b


def gated_torch(g: Any, u: Any, b: Any) -> Any:
    """The same in PyTorch."""
    return (torch.nn.functional.silu(g) * u) @ b


def prologue(output: te.Tensor, place: str) -> te.Schedule:
    """The product with `hidden` at one of the three places."""
    s = te.create_schedule(output)
    hidden = s["hidden"]
    if place == "inlined":
        hidden.compute_inline()
    block = product(s, s["out"], s["sums"])
    if place == "at root":
        alone(hidden)
    elif place == "at a block":
        hidden.compute_at(s["out"], block)
        _, lanes = hidden.split(hidden.op.axis[1], factor=128)
        hidden.vectorize(lanes)
    return s


title("2. a prologue")
out = gated()
PLACES = ("at root", "inlined") if lesson.gpu else ("at root", "inlined", "at a block")
print(prologue(out, PLACES[-1]))
kernels = {place: lesson.build(prologue(out, place)) for place in PLACES}
kernels["default rules"] = lesson.build(out)
kernels |= lesson.search(out)
arrays = [
    lesson.normal(ROWS, DEPTH, dtype=DTYPE),
    lesson.normal(ROWS, DEPTH, dtype=DTYPE),
    lesson.normal(DEPTH, COLUMNS, dtype=DTYPE, scale=DEPTH**-0.5),
]
heading = f"(silu(g) * u) @ B, {ROWS} x {DEPTH} x {COLUMNS} {DTYPE}"
result = lesson.compare(heading, kernels, arrays, gated_numpy, gated_torch, base="at root")
result.print()
result.draw("06_prologue")
if result:
    least = kernels["at root"].explain()
    for place in PLACES[1:]:
        cost = kernels[place].explain()
        print(f"{place}: {least.nbytes / 1e6:.1f} -> {cost.nbytes / 1e6:.1f} MB moved, "
              f"{cost.flops / least.flops:.2f}x the operations, "
              f"{result.speedup(place):.2f}x as fast.")  # fmt: skip
    best = result.fastest()
    print(f"Fastest: {best}.")
    print("An exponential counts as one operation above and costs as much as many: the inlined")
    print("prologue loses more than its count says.")
    if lesson.gpu:
        print(f"Here {-(-COLUMNS // 128)} blocks repeat it, while the tensor cores wait for their")
        print("operand: the copy through memory is the cheaper one, unless B has few columns.")

# %% Exercises (solutions/06_epilogues_and_prologues.py)
# 1. Begin with the schedule of the product and pull the epilogue in from the other side:
#    `reverse_compute_at`.  Is the loop nest the same?
# 2. An epilogue with a reduction in it: the product, and the sum of squares of each row of the
#    result.  What does a block need to hold for that to be one kernel?
# 3. At which COLUMNS does inlining the prologue win on your machine?
lesson.done()
