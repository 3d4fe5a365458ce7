"""Tutorial 10: the tuner: knobs of your own, budgets, records, sizes, a lock file.

    python tutorials/10_the_tuner.py                   # CPU, under a minute
    python tutorials/10_the_tuner.py --target cuda     # an NVIDIA GPU and PyTorch

A schedule has numbers in it that nobody knows: how large a tile, how many rows to a thread, attach
here or there.  Write them as knobs, and a search tries them: each candidate is compiled and run in
a process of its own, which may crash or hang, and its results are checked before it may win.  This
tutorial follows one problem through all that a search can be told: for each of many points the
distance to the nearest of 256 centres, which no library has as one operation.
"""

# %% Setup
from __future__ import annotations

import importlib
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from lesson import Lesson, check, installed, title, to_torch

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.frontend.result import TuneResult
from tedsl.autotune.records.database import Records

lesson = Lesson.begin(__doc__)
POINTS = lesson.size(cpu=1 << 13, cuda=1 << 17, quick=500)
CENTRES, DEPTH = 256, 32
F32 = "float32"
TARGET = lesson.target
folder = Path(tempfile.mkdtemp(prefix="tedsl-"))  # records and lock of this run only
RECORDS = folder / "records.sqlite"


# %% The problem: a sum, and a minimum of sums
# The sum of |x - c| is no matrix product.  The distances of all pairs are many times the inputs.
def nearest(points: int | te.Expr = POINTS) -> te.Tensor:
    """The L1 distance of each point to the nearest centre: float32[points]."""
    x = te.placeholder((points, DEPTH), F32, name="x")
    c = te.placeholder((DEPTH, CENTRES), F32, name="c")
    k = te.reduce_axis((0, DEPTH), name="k")
    j = te.reduce_axis((0, CENTRES), name="j")
    far = te.compute(
        (points, CENTRES), lambda i, j: te.sum(te.abs(x[i, k] - c[k, j]), axis=k), name="far"
    )
    return te.compute((points,), lambda i: te.min(far[i, j], axis=j), name="near")


def nearest_numpy(x: Any, c: Any) -> Any:
    """The same in NumPy, a few points at a time: all differences at once would be gigabytes."""
    parts = np.array_split(x, max(1, len(x) // 64))
    return np.concatenate([np.abs(p[:, None] - c.T).sum(-1).min(1) for p in parts])


def nearest_torch(x: Any, c: Any) -> Any:
    """PyTorch has an operator for the distances; the minimum is another one."""
    return importlib.import_module("torch").cdist(x, c.T.contiguous(), p=1).amin(1)


# %% Unfused: the distances of all pairs go to memory
LANES = 64


def unfused(s: te.Schedule) -> None:
    """Two kernels."""
    far, near = s["far"], s["near"]
    i, j = far.op.axis
    k = far.op.reduce_axis[0]
    outer, lanes = far.split(j, factor=LANES)
    far.reorder(i, outer, k, lanes)
    far.vectorize(lanes)
    far.parallel(far.fuse(i, outer) if lesson.gpu else i)
    near.vectorize(near.split(near.op.reduce_axis[0], factor=LANES)[1])
    near.parallel(near.op.axis[0])


# %% A schedule with knobs
# `s.knob(name, choices)` is the first choice (or the one that a third argument names) until a
# search decides otherwise: this function is a schedule as it stands.  A choice may decide which
# other knobs there are: `columns` is asked for only where centres are taken in blocks.
def by_hand(s: te.Schedule) -> None:
    """Distances in tiles of points and centres, at blocks of points."""
    far, near = s["far"], s["near"]
    (i,), (j,) = near.op.axis, near.op.reduce_axis
    rows = s.knob("rows", (4, 8, 16, 32, 64, 128) if lesson.gpu else (2, 4, 6, 8, 16), 4)
    block, row = near.split(i, factor=rows)
    in_blocks = s.knob("in_blocks", (True, False))
    columns = s.knob("columns", (16, 32, 64, 128), 32) if in_blocks else CENTRES
    centres, column = near.split(j, factor=columns)
    near.reorder(block, centres, row, column)
    far.compute_at(near, centres)  # rows x columns distances at a time
    near.vectorize(row)
    near.vectorize(column)
    p, q = far.op.axis
    far.reorder(far.op.reduce_axis[0], p, q)  # the sum outside: a tile of running sums
    if not lesson.gpu:
        far.reorder(*tiles(far, s.knob("lanes", (8, 16, 32), 16)))
    _, few = far.split(far.op.reduce_axis[0], s.knob("unroll", (1, 2, 4, 8), 2))
    far.unroll(few)
    if lesson.gpu:
        far.vectorize(p)
        far.vectorize(q)
        near.launch(num_warps=s.knob("warps", (2, 4, 8), 4))
    near.parallel(block)


def tiles(far: te.Stage, lanes: object) -> list[te.Axis]:
    """Centres in pieces of `lanes`; the order of loops with the pieces outside the sum."""
    p, q = far.op.axis
    (k,) = far.op.reduce_axis
    piece, lane = far.split(q, int(str(lanes)))
    far.vectorize(p)
    far.vectorize(lane)
    return [piece, k, p, lane]


# %% What there is to choose, before anything is searched
title("the space")
if lesson.measured:
    print(te.space(nearest(), TARGET, schedule=by_hand))


def scheduled(step: Any) -> te.Schedule:
    """A schedule of the problem after a schedule function."""
    s = te.create_schedule(nearest())
    step(s)
    return s


print(scheduled(by_hand))

# %% Search
# `te.autotune` returns the kernel; `tedsl.autotune.tune` returns everything that the search learnt.
# The default is measured first, so a search that has time for nothing else returns that.
kernels = {
    "unfused": lesson.build(scheduled(unfused)),
    "by hand": lesson.build(scheduled(by_hand)),
    "default rules": lesson.build(nearest()),
}
search: dict[str, Any] = {"schedule": by_hand, "records": RECORDS, "seconds": lesson.seconds}
found: TuneResult | None = None
if lesson.measured:
    title("the search over the knobs")
    found = tune(nearest(), TARGET, trials=lesson.trials, **search)
    print(found.summary)
    kernels["search"] = found.kernel
    if installed("matplotlib"):
        lesson.pictures.mkdir(parents=True, exist_ok=True)
        print(f"picture: {found.plot(lesson.pictures / '10_search.png')}")

# %% Budgets
# `trials` bounds the candidates and `seconds` the time, whichever ends first; "quick", "normal" and
# "full" are 16, 64 and 256 candidates.  "none" measures nothing at all: what is recorded wins, else
# what a model of the machine holds for fastest.  That is for programs that must start at once.
if lesson.measured:
    begin = time.perf_counter()
    guessed = te.autotune(nearest(), TARGET, schedule=by_hand, budget="none", records=False)
    title("budget none")
    print(f"{time.perf_counter() - begin:.1f} s to choose and build, nothing measured:")
    print(", ".join(f"{knob.name}={knob.chosen}" for knob in guessed.schedule.knobs))
    kernels["model only"] = guessed

# %% All of them, checked and timed in turn
arrays = [lesson.normal(POINTS, DEPTH), lesson.normal(DEPTH, CENTRES)]
compared = lesson.compare(
    f"distance to the nearest of {CENTRES}, {POINTS} points",
    kernels,
    arrays,
    nearest_numpy,
    nearest_torch,
)
compared.print("Gflop/s")
compared.draw("10_nearest")

# %% The report: what each decision was worth, which limit binds, how candidates failed
# It ends a notebook's cell well.  Here its headings and the part about decisions.
if found is not None:
    title("the report")
    for heading, lines in found.report.sections:
        print(heading)
        if heading.startswith("what"):
            print("\n".join(f"  {line}" for line in lines))


# %% Records
# Everything tried is in the record file (without `records=`, one in the user's data folder).  A
# call whose budget an earlier run has covered returns that run's winner and measures nothing; names
# of tensors and stages do not matter to it.  A larger budget goes on from there, and so does the
# next call after a search that was killed.
#
# `python -m tedsl records list` shows the file, `export` and `merge` carry it elsewhere.  A name
# that ends in .jsonl is a text file of winners only, for a repository.
if found is not None:
    title("records")
    winners = folder / "winners.jsonl"
    for name, where in (("again", RECORDS), ("from winners.jsonl", winners)):
        if where is winners:
            with closing(Records(RECORDS)) as records:
                records.export(winners, winners_only=True)
        begin = time.perf_counter()
        replayed = tune(nearest(), TARGET, trials=1, **(search | {"records": where}))
        spent = time.perf_counter() - begin
        print(f"{name}: {spent:.1f} s, replayed: {replayed.replayed}")
        assert replayed.replayed
        assert replayed.winner.candidate.key == found.winner.candidate.key
    print(f"{len(winners.read_text().splitlines())} lines in winners.jsonl")

# %% A lock file
# Records are of this machine and grow.  `tedsl.lock` is for a program: one entry for each
# computation and device, with the decisions, sorted, to be committed.  What it pins is taken
# without looking further; with `frozen=True` a computation that it does not know is an error, so
# that all ranks of a job, and every run of a test, use the same schedules.
if lesson.measured:
    title("the lock file")
    lock = folder / "tedsl.lock"
    te.autotune(nearest(), TARGET, trials=1, lock=lock, **search)
    print(lock.read_text())
    pinned = te.autotune(nearest(), TARGET, schedule=by_hand, lock=lock, frozen=True, records=False)
    print("frozen:", ", ".join(f"{knob.name}={knob.chosen}" for knob in pinned.schedule.knobs))
    try:
        te.autotune(nearest(POINTS + 1), TARGET, schedule=by_hand, lock=lock, frozen=True)
    except te.TuneError as error:
        print(f"\nwith one point more:\n{error}")
    else:
        raise SystemExit("the lock file was expected not to know this size")

# %% Sizes
# With a symbolic size one kernel serves all, but what is best for a few points is not so for many.
# A list of sizes (or a range, `te.sizes.log_uniform(64, 4096)`) is one search for a few
# kernels, such that at each size one is within 5 % of the fastest found there.  What comes back is
# called like a kernel; how it decides is Python that can be read.
if lesson.measured:
    title("sizes")
    sizes = [{"n": 64}, {"n": POINTS // 4}, {"n": POINTS}]
    dispatch = te.autotune(
        nearest(te.var("n")),
        TARGET,
        schedule=by_hand,
        sizes=sizes,
        trials=6,
        seconds=lesson.seconds,
        records=False,
    )
    print(dispatch)
    print(dispatch.source)
    for points in (64, 100, POINTS):
        given = [to_torch(a, "cuda") if lesson.gpu else a for a in (arrays[0][:points], arrays[1])]
        check(
            f"{points} points", dispatch(*given), nearest_numpy(arrays[0][:points], arrays[1]), 2e-4
        )

# %% Exercises (solutions/10_the_tuner.py)
# 1. Make the place of `far` a knob: at blocks, or at root with a parallel loop of its own (a knob's
#    value may decide which primitives are called at all).  How large is the space now?
# 2. Give a knob a choice that is illegal, say `parallel` of the loop over centres, which all write
#    one minimum.  What does the search do with a choice that the schedule refuses?
# 3. Follow a search while it runs: pass a function as `events=` and collect the best time so far.
shutil.rmtree(folder)
lesson.done()
