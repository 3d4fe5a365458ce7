"""Solutions of tutorial 2: work that is counted, a window that slides, places that are legal.

python tutorials/solutions/02_blur_compute_at.py
"""

# %% Setup: the blur of the tutorial on random numbers
from __future__ import annotations

from typing import Any

import numpy as np

import tedsl as te

HEIGHT, WIDTH, TAPS = 130, 256, 5
WEIGHTS = [0.1, 0.2, 0.4, 0.2, 0.1]
noise: Any = np.random.default_rng(0).random(
    (HEIGHT + TAPS - 1, WIDTH + TAPS - 1), dtype=np.float32
)
source = te.placeholder(noise.shape, "float32", name="source")


def weighted(terms: list[te.Expr]) -> te.Expr:
    """The weighted sum of five neighbours."""
    total = terms[0] * WEIGHTS[0]
    for term, weight in zip(terms[1:], WEIGHTS[1:], strict=True):
        total = total + term * weight
    return total


def in_numpy() -> Any:
    """Along rows, then along columns."""
    rows: Any = sum(w * noise[:, t : t + WIDTH] for t, w in enumerate(WEIGHTS))
    return sum(w * rows[t : t + HEIGHT] for t, w in enumerate(WEIGHTS))


def built(s: te.Schedule) -> te.Kernel:
    """The kernel, checked."""
    kernel = te.build(s, "cpu")
    np.testing.assert_allclose(kernel(noise), in_numpy(), rtol=1e-5)
    return kernel


rows = te.compute(
    (HEIGHT + TAPS - 1, WIDTH),
    lambda y, x: weighted([source[y, x + t] for t in range(TAPS)]),
    name="rows",
)
blur = te.compute(
    (HEIGHT, WIDTH), lambda y, x: weighted([rows[y + t, x] for t in range(TAPS)]), name="blur"
)

# %% 1. One stage of 5 x 5 taps, without the separation
# It is what `rows` inlined computes: each of five sums along a row, for each of five rows.
grid = te.compute(
    (HEIGHT, WIDTH),
    lambda y, x: weighted(
        [weighted([source[y + u, x + t] for t in range(TAPS)]) for u in range(TAPS)]
    ),
    name="grid",
)
inlined = te.create_schedule(blur)
inlined["rows"].compute_inline()
work = {
    "separate": built(te.create_schedule(blur)).explain().flops,
    "inlined": built(inlined).explain().flops,
    "one stage": built(te.create_schedule(grid)).explain().flops,
}
print(
    "exercise 1:",
    ", ".join(f"{name} {flops / work['separate']:.2f}" for name, flops in work.items()),
)
assert work["inlined"] == work["one stage"] > 2.5 * work["separate"]


# %% 2. A window that slides
# Stored at a strip and computed at a row, only the row that is new is computed: in the first row of
# a strip all five, after that one.  A rolling buffer keeps five rows in place of the strip.
def sliding(height: int) -> te.Schedule:
    """`rows` held for a strip, computed as rows are needed."""
    s = te.create_schedule(blur)
    y, x = blur.op.axis
    strip, row = s[blur].split(y, factor=height)
    s[rows].compute_at(s[blur], row)
    s[rows].store_at(s[blur], strip)
    s[rows].rolling_buffer()
    s[rows].vectorize(rows.op.axis[1])
    s[blur].vectorize(x)
    s[blur].parallel(strip)
    return s


def at_strips(height: int) -> te.Schedule:
    """`rows` of a strip computed at once."""
    s = te.create_schedule(blur)
    y, x = blur.op.axis
    strip, _ = s[blur].split(y, factor=height)
    s[rows].compute_at(s[blur], strip)
    s[rows].vectorize(rows.op.axis[1])
    s[blur].vectorize(x)
    s[blur].parallel(strip)
    return s


print(sliding(65))
held = [
    sum(kernel.local_bytes for kernel in built(s).explain().kernels)
    for s in (at_strips(65), sliding(65))
]
print(f"exercise 2: {held[0]} bytes of a strip, {held[1]} of the rows in the window\n")
assert held[1] < held[0]

# %% 3. Where may `rows` stand?
# `legal_places` says it without trying: root, and every loop of the stage that reads it.  All of
# these are schedules.  A GPU carries them out through memory: at each, `rows` is a tile of which
# the reader wants parts, neighbours at a shift, and registers are read whole.
s = te.create_schedule(blur)
s[blur].split(blur.op.axis[0], factor=10)
places = [f"{stage.name}.{axis.name}" for stage, axis in s[rows].legal_places()]
print("exercise 3:", ", ".join(places))
assert places == ["blur.y.outer", "blur.y.inner", "blur.x"]
for place in range(len(places)):
    s = te.create_schedule(blur)
    s[blur].split(blur.op.axis[0], factor=10)
    stage, axis = s[rows].legal_places()[place]
    s[rows].compute_at(stage, axis)
    te.lower(s, target="cpu")
    kept = [b.shape for b in te.lower(s, target="cuda:sm_90").workspaces]
    print(f"at {places[place]}, on a GPU: {len(kept)} workspace of the rows of each program")
    assert len(kept) == 1
assert len(te.lower(te.create_schedule(blur), target="cuda:sm_90").funcs) == 2
print("at root, on a GPU: two kernels")
