"""Solutions of tutorial 10: the place as a knob, an illegal choice, a search that is followed.

python tutorials/solutions/10_the_tuner.py
"""

# %% Setup: the problem of the tutorial, small
from __future__ import annotations

from typing import Any

import numpy as np

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.report.events import Event, Tried

POINTS, CENTRES, DEPTH = 200, 64, 16
x = te.placeholder((POINTS, DEPTH), "float32", name="x")
c = te.placeholder((DEPTH, CENTRES), "float32", name="c")
k = te.reduce_axis((0, DEPTH), name="k")
j = te.reduce_axis((0, CENTRES), name="j")
far = te.compute((POINTS, CENTRES), lambda i, q: te.sum(te.abs(x[i, k] - c[k, q]), axis=k), "far")
near = te.compute((POINTS,), lambda i: te.min(far[i, j], axis=j), name="near")


# %% 1. The place of `far` is a knob, and decides which other knobs there are
def anywhere(s: te.Schedule) -> te.Axis:
    """At blocks of points and centres, or a kernel of its own.  Returns the loop over centres."""
    block, row = s["near"].split(near.op.axis[0], s.knob("rows", (2, 4, 8), 4))
    centres, column = s["near"].split(j, s.knob("columns", (16, 32, 64)))
    s["near"].reorder(block, centres, row, column)
    s["near"].vectorize(column)
    p, q = far.op.axis
    if s.knob("place", ("blocks", "root")) == "blocks":
        s["far"].compute_at(s["near"], centres)
        s["far"].reorder(k, p, q)
    else:
        piece, q = s["far"].split(q, s.knob("piece", (16, 32, 64)))
        s["far"].reorder(p, piece, k, q)
        s["far"].parallel(p)
    s["far"].vectorize(q)
    s["near"].parallel(block)
    return centres


listing = te.space(near, "cpu", schedule=anywhere)
print(listing)
assert "36" in str(listing)  # 3 rows x 3 columns, at blocks; as many times 3 pieces, at root
print("exercise 1: 9 schedules at blocks and 27 at root\n")


# %% 2. A choice that is refused is counted, never run
# `parallel` raises ScheduleError where the schedule is made: that candidate is over before anything
# is compiled, and the reason is in the summary.
def racing(s: te.Schedule) -> None:
    """Half of the space is a race."""
    centres = anywhere(s)
    if s.knob("race", (False, True)):
        s["near"].parallel(centres)


found = tune(near, "cpu", schedule=racing, trials=6, records=False)
print(found.summary)
assert all(not knob.chosen for knob in found.winner.candidate.knobs if knob.name == "race")
print("exercise 2: refused:", dict(found.rejected), "\n")

# %% 3. Following a search
curve: list[float] = []


def follow(event: Event) -> None:
    """The best time after each measurement."""
    if isinstance(event, Tried) and event.time is not None:
        curve.append(min([event.time, *curve[-1:]]))


kernel = te.autotune(near, "cpu", schedule=anywhere, trials=6, records=False, events=follow)
print("exercise 3:", ", ".join(f"{seconds * 1e6:.0f} us" for seconds in curve))
assert curve == sorted(curve, reverse=True)
assert curve

# %% Whatever was found is right
given: Any = np.random.default_rng(0).standard_normal((POINTS, DEPTH), dtype=np.float32)
centre: Any = np.random.default_rng(1).standard_normal((DEPTH, CENTRES), dtype=np.float32)
wanted = np.abs(given[:, :, None] - centre).sum(1).min(1)
for each in (kernel, found.kernel):
    np.testing.assert_allclose(each(given, centre), wanted, rtol=1e-5)
