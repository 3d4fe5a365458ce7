"""Solutions to the exercises of tutorial 8, on the CPU.

python tutorials/solutions/08_horizontal_fusion.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import tedsl as te

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lesson import check, title

random = np.random.default_rng(0)
N, RATE, MOMENTUM, DECAY, LIMIT = 10_000, 0.1, 0.9, 1e-2, 1.0
ARRAY = 4 * N


def given(*names: str) -> list[te.Tensor]:
    """Vectors of N numbers."""
    return [te.placeholder((N,), "float32", name=name) for name in names]


# %% 1. SGD with momentum and weight decay
# m' = MOMENTUM m + g + DECAY p and p' = p - RATE m'.  Apart: p, g, m -> m' and p, g, m -> p', 4
# arrays each, 8 in all.  Together 3 are read and 2 written: 5.
title("exercise 1: SGD")
p, g, m = given("p", "g", "m")


def momentum(i: te.Axis) -> te.Expr:
    """The new momentum."""
    return m[i] * MOMENTUM + (g[i] + p[i] * DECAY)


new_m = te.compute((N,), momentum, name="new_m")
new_p = te.compute((N,), lambda i: p[i] - momentum(i) * RATE, name="new_p")
s = te.create_schedule([new_p, new_m])
piece, lanes = s[new_p].split(s[new_p].op.axis[0], factor=1000)
s[new_p].vectorize(lanes)
_, lanes = s[new_m].split(s[new_m].op.axis[0], factor=1000)
s[new_m].vectorize(lanes)
apart = te.build(s, "cpu")
s[new_m].compute_with(s[new_p], piece)
print(s)
kernel = te.build(s, "cpu")
old_p, old_m, slope = (random.standard_normal(N, dtype=np.float32) for _ in range(3))
want_m = old_m * np.float32(MOMENTUM) + (slope + old_p * np.float32(DECAY))
want = (old_p - want_m * np.float32(RATE), want_m)
for each in (apart, kernel):
    check("SGD", each(old_p, old_m, slope), want, 1e-5)  # p, m, g: in the order of reading
print(f"arrays moved: {apart.explain().nbytes // ARRAY} apart, "
      f"{kernel.explain().nbytes // ARRAY} together")  # fmt: skip
assert apart.explain().nbytes == 8 * ARRAY
assert kernel.explain().nbytes == 5 * ARRAY

# %% 2. Not side by side: one reads the other
# Then one has to come before the other, and the message names what brings a reader into the loops
# of what it reads.
title("exercise 2: refused")
a = te.compute((N,), lambda i: p[i] * 2, name="a")
b = te.compute((N,), lambda i: a[i] + 1, name="b")
s = te.create_schedule([a, b])
try:
    s[b].compute_with(s[a], s[a].op.axis[0])
except te.ScheduleError as error:
    print(error)
else:
    raise SystemExit("compute_with of a reader was expected to be refused")

# %% 3. Clipping by the norm of all gradients
# The sums of squares of the tensors do not know of each other: they run side by side.  Their total
# needs all of them, and every step needs the total, so there are two waits; the steps run side by
# side again.  In the list below the parts of the norm are kernels of their own: they are small.
title("exercise 3: clip, then step")
PIECE = 500
SIZES = (3000, 10_000, 500)


def pieces_of(t: int, gradient: te.Tensor, n: int) -> te.Tensor:
    """The sum of squares of each PIECE of a gradient."""
    k = te.reduce_axis((0, PIECE), name="k")

    def one(i: te.Axis) -> te.Expr:
        return te.sum(gradient[i * PIECE + k] * gradient[i * PIECE + k], axis=k)

    return te.compute((n // PIECE,), one, name=f"squares{t}")


def total_of(squares: te.Tensor) -> te.Expr:
    """The sum of a vector."""
    k = te.reduce_axis((0, squares.shape[0]), name="k")
    return te.sum(squares[k], axis=k)


def stepped(t: int, weight: te.Tensor, gradient: te.Tensor, norm: te.Tensor, n: int) -> te.Tensor:
    """weight - RATE * gradient, shortened to LIMIT."""

    def one(i: te.Axis) -> te.Expr:
        return weight[i] - gradient[i] * te.min(LIMIT / norm[()], 1.0) * RATE

    return te.compute((n,), one, name=f"step{t}")


weights = [te.placeholder((n,), "float32", name=f"w{t}") for t, n in enumerate(SIZES)]
slopes = [te.placeholder((n,), "float32", name=f"g{t}") for t, n in enumerate(SIZES)]
squares = [pieces_of(t, g, n) for t, (g, n) in enumerate(zip(slopes, SIZES, strict=True))]
norm = te.compute((), lambda: te.sqrt(sum(total_of(each) for each in squares)), name="norm")
steps = [stepped(t, weights[t], slopes[t], norm, n) for t, n in enumerate(SIZES)]
s = te.create_schedule(steps)
for each in squares:
    s[each].vectorize(s[each].op.reduce_axis[0])
    s[each].parallel(s[each].op.axis[0])
for each in steps:
    piece, lanes = s[each].split(s[each].op.axis[0], factor=PIECE)
    s[each].vectorize(lanes)
    s[each].parallel(piece)
for leader, *others in (squares, steps):
    for other in others:
        s[other].compute_with(s[leader])
# With a list of arguments, their order is yours; without it, that in which they are read.
kernel = te.build(s, [*weights, *slopes, *steps], "cpu")
values, gradients = ([random.standard_normal(n, dtype=np.float32) for n in SIZES] for _ in "wg")
length = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
clipped = np.float32(RATE) * min(np.float32(LIMIT / length), np.float32(1))
wanted = [value - gradient * clipped for value, gradient in zip(values, gradients, strict=True)]
found = [np.empty_like(value) for value in values]
kernel(*values, *gradients, *found)
check("clipped step", found, wanted, 1e-4)
print(f"kernels: {[cost.name for cost in kernel.explain().kernels]}")
