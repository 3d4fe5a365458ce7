"""Tutorial 9: from softmax to attention, with `online` and its proof.

    python tutorials/09_softmax_to_attention_online.py                   # CPU
    python tutorials/09_softmax_to_attention_online.py --target cuda     # an NVIDIA GPU and PyTorch

A softmax adds up exp(x - max), so the sum has to wait for the maximum; the weighted sum of
attention has to wait for both.  Written down, each is a pass of its own.  `s[sum].online(axis)`
computes them in one: whenever a later part of the row raises the maximum, what has been added up so
far is repaired.  The repair is not looked up in a table of known operators: it is derived from the
expressions and proved, and you can print the proof.  What has no repair is refused.
"""

# %% Setup: where it runs, and sizes
from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from lesson import Lesson, title

import tedsl as te

lesson = Lesson.begin(__doc__)
F32 = "float32"
Place = Callable[[te.Schedule], None]


def by(output: te.Tensor, *steps: Place) -> te.Schedule:
    """A schedule of `output` after the steps."""
    s = te.create_schedule(output)
    for step in steps:
        step(s)
    return s


# %% Problem 1: softmax over rows that no first or second cache holds
ROWS = lesson.size(cpu=16, cuda=256, quick=4)
LENGTH = lesson.size(cpu=1 << 18, cuda=1 << 18, quick=5000)
LANES = 4096 if lesson.gpu else 64  # a GPU program holds a block of a row, a core some registers


def softmax() -> te.Tensor:
    """exp(x - m) / l along each row, in four stages as one would write them."""
    x = te.placeholder((ROWS, LENGTH), F32, name="x")
    j, k = (te.reduce_axis((0, LENGTH), name="k") for _ in range(2))
    m = te.compute((ROWS,), lambda i: te.max(x[i, j], axis=j), name="m")
    e = te.compute((ROWS, LENGTH), lambda i, j: te.exp(x[i, j] - m[i]), name="e")
    total = te.compute((ROWS,), lambda i: te.sum(e[i, k], axis=k), name="l")
    return te.compute((ROWS, LENGTH), lambda i, j: e[i, j] / total[i], name="y")


def softmax_numpy(x: Any) -> Any:
    """The same in NumPy: four passes over memory, with temporaries between them."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_torch(x: Any) -> Any:
    """The same in PyTorch: one operator."""
    return x.softmax(1)


# %% Unfused: four kernels; the exponentials go to memory and come back twice
def unfused_softmax(s: te.Schedule) -> None:
    """Each stage by itself: parallel over the rows, SIMD lanes (on a GPU, blocks) along them."""
    for name in ("m", "e", "l", "y"):
        in_lanes(s, name)
        s[name].parallel(s[name].op.axis[0])


def in_lanes(s: te.Schedule, name: str) -> None:
    """The innermost loop of a stage in pieces of LANES that are computed at once."""
    s[name].vectorize(s[name].split(s[name].leaf_iter_vars[-1], factor=LANES)[1])


# %% At each row: one kernel, but three passes over the row
# The exponentials are computed twice instead of being stored.  `l` needs `m` of the whole row, and
# `y` needs `l`: the row is read three times.
def softmax_at_rows(s: te.Schedule) -> None:
    """`m` and `l` computed where a row of the result is begun."""
    s["e"].compute_inline()
    for name in ("y", "l", "m"):
        in_lanes(s, name)
    row = s["y"].op.axis[0]
    s["l"].compute_at(s["y"], row)
    s["m"].compute_at(s["y"], row)
    s["y"].parallel(row)


# %% Online: two passes
# The loop of `l` is cut into blocks.  In each, `m` is updated first, then `l` is repaired, then the
# block is added.  What `online` does is in the loop nest that is printed below: `m` has moved into
# the loop of `l`, and `l` has a `repair=` that says what becomes of it when `m` grows.
BLOCK = LANES if lesson.gpu else min(16384, LENGTH)


def softmax_online(s: te.Schedule) -> None:
    """`m` and `l` in one loop over blocks of the row, then the result."""
    s["e"].compute_inline()
    block, inner = s["l"].split(s["l"].op.reduce_axis[0], factor=BLOCK)
    if lesson.gpu:
        s["l"].vectorize(inner)
        s["l"].online(block)
        s["m"].vectorize(s["m"].leaf_iter_vars[-1])
        in_lanes(s, "y")
    else:
        s["l"].online(block)
        for name in ("l", "m", "y"):
            in_lanes(s, name)
    row = s["y"].op.axis[0]
    s["l"].compute_at(s["y"], row)
    s["y"].parallel(row)


title("softmax online: the proof, asked for before the step is taken")
print(te.create_schedule(softmax())["l"].proof())
title("softmax online: the loop nest")
print(by(softmax(), softmax_online))

# %% The softmax measured
# A pass that is saved counts where memory is the limit.  On a CPU the row comes back from the last
# cache, and the exponentials (computed twice in either fused form) cost more than reading it; so
# the gain of `online` over three passes is small here, and grows where bandwidth is scarce.
kernels = {
    "unfused": lesson.build(by(softmax(), unfused_softmax)),
    "at each row": lesson.build(by(softmax(), softmax_at_rows)),
    "online": lesson.build(by(softmax(), softmax_online)),
    "default rules": lesson.build(softmax()),
    **lesson.search(softmax()),
}
found = lesson.compare(
    f"softmax, {ROWS} x {LENGTH} float32",
    kernels,
    [lesson.normal(ROWS, LENGTH, scale=3.0)],
    softmax_numpy,
    softmax_torch,
)
found.print()
found.draw("09_softmax")
if found:
    print(f"online against three passes: {found.speedup('online', 'at each row'):.2f}x")


# %% What is refused
# The sum of sigmoid(x - m) has no repair: the old sum does not determine the new one.  The refusal
# names what it could not separate, and the schedule is as it was.
def refused(values: Callable[[Any, Any], Any]) -> str:
    """Why the sum of `values(x, m)` cannot go along with the maximum `m`."""
    x = te.placeholder((64,), F32, name="x")
    j, k = (te.reduce_axis((0, 64), name="k") for _ in range(2))
    m = te.compute((), lambda: te.max(x[j], axis=j), name="m")
    total = te.compute((), lambda: te.sum(values(x[k], m()), axis=k), name="t")
    s = te.create_schedule(total)
    try:
        s[total].online(s[total].op.reduce_axis[0])
    except te.ScheduleError as error:
        return str(error)
    raise AssertionError("it was expected to be refused")


title("refused: a sum of sigmoid(x - m)")
print(refused(lambda x, m: te.sigmoid(x - m)))


# %% Problem 2: attention, as its definition reads
# S = Q K^T / sqrt(depth), the softmax of its rows, and the sum of the values with these weights:
# three reductions over the keys, each of which uses the ones before.  `causal` hides later keys.
HEADS = lesson.size(cpu=4, cuda=16, quick=2)
TOKENS = lesson.size(cpu=1024, cuda=4096, quick=150)
DEPTH = lesson.size(cpu=64, cuda=128, quick=16)


def attention(
    causal: bool = False, heads: int = HEADS, queries: int = TOKENS, keys: int = TOKENS
) -> te.Tensor:
    """O[head, query, depth], float32, from Q, K and V of the lesson's dtype."""
    q = te.placeholder((heads, queries, DEPTH), lesson.dtype, name="Q")
    k, v = (te.placeholder((heads, keys, DEPTH), lesson.dtype, name=n) for n in "KV")
    d = te.reduce_axis((0, DEPTH), name="d")
    j0, j1, j2 = (te.reduce_axis((0, keys), name="j") for _ in range(3))
    whole = (heads, queries, keys)

    def seen(i: te.Axis, j: te.Axis) -> dict[str, Any]:
        return {"axis": j, "where": j <= i} if causal else {"axis": j}

    def score(h: te.Axis, i: te.Axis, j: te.Axis) -> te.Expr:
        return te.sum(q[h, i, d].astype(F32) * k[h, j, d].astype(F32), axis=d)

    S = te.compute(whole, score, name="S")
    T = te.compute(whole, lambda h, i, j: S[h, i, j] * DEPTH**-0.5, name="T")
    m = te.compute((heads, queries), lambda h, i: te.max(T[h, i, j0], **seen(i, j0)), name="m")
    p = te.compute(whole, lambda h, i, j: te.exp(T[h, i, j] - m[h, i]), name="p")
    total = te.compute((heads, queries), lambda h, i: te.sum(p[h, i, j1], **seen(i, j1)), name="l")
    P = te.compute(whole, lambda h, i, j: p[h, i, j] / total[h, i], name="P")

    def weighted(h: te.Axis, i: te.Axis, c: te.Axis) -> te.Expr:
        weight = P[h, i, j2].astype(lesson.dtype).astype(F32)  # tensor cores take 16-bit operands
        return te.sum(weight * v[h, j2, c].astype(F32), **seen(i, j2))

    return te.compute((heads, queries, DEPTH), weighted, name="O")


def attention_numpy(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """The same in NumPy, a head at a time: the scores of all would be gigabytes."""
    results: list[Any] = []
    for head, keys, values in zip(q, k, v, strict=True):
        scores = head @ keys.T * np.float32(DEPTH**-0.5)
        if causal:
            scores[~np.tri(*scores.shape, dtype=bool)] = -np.inf
        results.append(softmax_numpy(scores) @ values)
    return np.stack(results)


def attention_torch(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """The same in PyTorch: one operator."""
    return importlib.import_module("torch").nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal
    )


# %% The two products, in all schedules alike
# Loops over tiles, then the loop that is summed over, then the tile: its sums stay in registers.
# The keys are read across their rows, so a CPU copies a panel of them first.
TILE = (128, 64) if lesson.gpu else (6, 16)


def tiled(s: te.Schedule, name: str) -> tuple[te.Axis, te.Axis, te.Axis]:
    """The last two axes in tiles: the loops over rows and columns of tiles, and what is summed."""
    stage = s[name]
    (i, c), (k,) = stage.op.axis[-2:], stage.op.reduce_axis
    rows, columns, row, column = stage.tile(i, c, *TILE)
    stage.reorder(columns, rows, k, row, column)
    stage.vectorize(row)
    stage.vectorize(column)
    if name == "S" and not lesson.gpu:
        panel = s[s.cache_read(s["K"], "local", [stage])]
        panel.compute_at(stage, columns)
        panel.vectorize(panel.op.axis[1])
    return rows, columns, k


def unfused_attention(s: te.Schedule) -> None:
    """Seven kernels; six tensors of tokens x tokens go to memory or come from there."""
    for name in ("S", "O"):
        rows, columns, k = tiled(s, name)
        if lesson.gpu:
            s[name].vectorize(s[name].split(k, factor=64)[1])  # a multiply-accumulate: tl.dot
        grid = (s[name].op.axis[0], columns, *([rows] if lesson.gpu else []))
        s[name].parallel(s[name].fuse(*grid))
    for name in ("T", "m", "p", "l", "P"):
        in_lanes(s, name)
        s[name].parallel(s[name].fuse(*s[name].op.axis[:2]))


# %% Blocks of queries: one kernel, without `online`
# All stages are attached at a block of queries.  Each reduction still goes over all keys before the
# next begins, so the block needs its scores twice over: queries x tokens numbers each for `S` and
# `p`.  A CPU has a second-level cache for that while the sequence is short; a GPU program, with
# what registers it has, does not, and such a schedule cannot be built for it.
QUERIES = 128 if lesson.gpu else 48
KEYS = 64 if lesson.gpu else 128


def attention_at_blocks(s: te.Schedule) -> None:
    """Everything at blocks of queries; whole rows of scores in a buffer."""
    block = queries_of(s)[0]
    s["T"].compute_inline()
    for name in ("l", "p", "m"):
        s[name].compute_at(s["O"], block)
        in_lanes(s, name)
    s["S"].compute_at(s["O"], block)
    tiled(s, "S")
    s["O"].parallel(s["O"].fuse(s["O"].op.axis[0], block))


def queries_of(s: te.Schedule) -> tuple[te.Axis, te.Axis]:
    """The result in blocks of queries and those in tiles: the loop over blocks, and what is summed.

    The weights p / l are inlined: the division moves behind the sum by itself (see the proof).
    """
    s["P"].compute_inline()
    out = s["O"]
    (h, i, c), (k,) = out.op.axis, out.op.reduce_axis
    block, i = out.split(i, factor=QUERIES)
    if lesson.gpu:
        out.reorder(h, block, k, i, c)
        tile = [i, c]  # the block of queries is the tile of a program
    else:
        row, tile_row = out.split(i, factor=TILE[0])
        column, tile_column = out.split(c, factor=TILE[1])
        out.reorder(h, block, row, column, k, tile_row, tile_column)
        tile = [tile_row, tile_column]
    for axis in tile:
        out.vectorize(axis)
    return block, k


# %% Online: one kernel, one pass over the keys
# The loop over blocks of keys moves outside of the tiles and `online` is asked for it.  It takes
# `m`, `l` and `p` into the loop; the scores of a block of queries and a block of keys are all that
# is ever held.  Their size does not depend on the length of the sequence any more.
def attention_online(s: te.Schedule) -> None:
    """What is published as FlashAttention, from the definition above."""
    out = s["O"]
    h = out.op.axis[0]
    block, k = queries_of(s)
    s["T"].compute_inline()
    keys, inner = out.split(k, factor=KEYS)
    if not lesson.gpu:
        _, _, row, column, _, _, tile_row, tile_column = out.leaf_iter_vars
        out.reorder(keys, row, column, inner, tile_row, tile_column)
    out.online(keys, casts=lesson.gpu)  # casts: that weights are rounded to 16 bits is accepted
    s["S"].compute_at(out, keys)
    if lesson.gpu:
        s["S"].vectorize(s["S"].op.reduce_axis[0])
        out.dot(inner, finite=True)  # masked scores are finite here: no NaN can come from zeros
        out.pipeline(keys, num_stages=2)
        out.launch(num_warps=8)
        out.bind(h, "blockIdx.y")
        out.bind(block, "blockIdx.x")
    else:
        tiled(s, "S")
        for name in ("m", "p", "l"):
            s[name].vectorize(s[name].leaf_iter_vars[-1])
        out.parallel(out.fuse(h, block))


title("attention online: the proof")
s = te.create_schedule(attention())
s["P"].compute_inline()
s["T"].compute_inline()
print(s["O"].proof(casts=lesson.gpu))
title("attention online: the loop nest")
print(by(attention(), attention_online))


# %% Attention measured
# Gflop/s count what each kernel does, the exponentials included.
def operands(heads: int = HEADS, queries: int = TOKENS, keys: int = TOKENS) -> list[Any]:
    """Random queries, keys and values."""
    return [
        lesson.normal(heads, count, DEPTH, dtype=lesson.dtype) for count in (queries, keys, keys)
    ]


kernels = {"unfused": lesson.build(by(attention(), unfused_attention))}
if not lesson.gpu:
    kernels["at blocks of queries"] = lesson.build(by(attention(), attention_at_blocks))
kernels |= {
    "online": lesson.build(by(attention(), attention_online)),
    "default rules": lesson.build(attention()),
    **lesson.search(attention()),
}
found = lesson.compare(
    f"attention, {HEADS} heads, {TOKENS} tokens, depth {DEPTH}, {lesson.dtype}",
    kernels,
    operands(),
    attention_numpy,
    attention_torch,
)
found.print("Gflop/s")
found.draw("09_attention")

# %% Causal: the condition shortens the loop
# The schedule is the same.  Each query sees only the keys up to its own, so the loop over blocks of
# keys ends where the last query of the block is, and about half of the work is gone.  The bound is
# in the loop nest that is lowered: look for the `min` in its extent.
title("causal: the loops over queries and keys, lowered")
loops = str(te.lower(by(attention(causal=True), attention_online), target=lesson.target))
over_keys = [line for line in loops.splitlines() if "for j.outer" in line and ".outer" in line[16:]]
print("\n".join(line for line in over_keys if "i.outer" in line))


def causal_numpy(q: Any, k: Any, v: Any) -> Any:
    """In NumPy nothing is saved: all scores are computed, and half of them hidden."""
    return attention_numpy(q, k, v, causal=True)


hidden = lesson.compare(
    f"causal attention, {HEADS} heads, {TOKENS} tokens",
    {"online": lesson.build(by(attention(causal=True), attention_online))},
    operands(),
    causal_numpy,
    lambda q, k, v: attention_torch(q, k, v, causal=True),
    base="online",
)
hidden.print()
if hidden and not lesson.quick:
    share = hidden.rows["online"].seconds / found.rows["online"].seconds
    print(f"of the time of all keys (measured before): {share:.0%}")

# %% One query and many keys: parts of the loop side by side
# When text is generated there is one query at a time.  One loop over the keys then keeps one core,
# or one program, busy.  The repair that carries a running sum over to a new maximum also merges
# sums that were computed apart, so `split_online` cuts the loop into parts, each with a maximum of
# its own, and merges them in the end.  The proof is the same.
#
# Here one kernel is not the aim.  The scores of one query are small and go to memory; `l.rf` takes
# its maximum along in one pass over them; `O.rf` reads the values.  All three run in parallel, and
# the last kernel merges.
CONTEXT = lesson.size(cpu=1 << 16, cuda=1 << 18, quick=1000)
PARTS = 128 if lesson.gpu else max(2, os.cpu_count() or 1)


def one_query() -> te.Tensor:
    """Attention of one query in one head over a long context."""
    return attention(heads=1, queries=1, keys=CONTEXT)


def one_loop(s: te.Schedule) -> None:
    """Blocks of keys one after the other, everything in one kernel."""
    s["P"].compute_inline()
    s["T"].compute_inline()
    out = s["O"]
    (h, i, c), (k,) = out.op.axis, out.op.reduce_axis
    keys, inner = out.split(k, factor=KEYS)
    out.reorder(h, i, keys, inner, c)
    out.online(keys, casts=lesson.gpu)
    out.vectorize(c)
    s["S"].compute_at(out, keys)
    s["S"].vectorize(s["S"].op.reduce_axis[0])
    if lesson.gpu:
        out.vectorize(inner)


def in_parts(s: te.Schedule) -> None:
    """The scores, then parts of the keys side by side, then what merges them."""
    s["P"].compute_inline()
    s["T"].compute_inline()
    part, _ = s["O"].split(s["O"].op.reduce_axis[0], nparts=PARTS)
    s.split_online(s["O"], part, casts=lesson.gpu)
    scores = s["S"]
    block, inner = scores.split(scores.op.axis[-1], factor=64)
    scores.vectorize(scores.op.reduce_axis[0])
    scores.parallel(scores.fuse(*scores.op.axis[:2], block))
    weights = s["l.rf"]
    keys, _ = weights.split(weights.op.reduce_axis[0], factor=1024)
    weights.online(keys)
    for name in ("l.rf", "m.rf"):
        piece = s[name].leaf_iter_vars[-1]
        s[name].vectorize(piece if lesson.gpu else s[name].split(piece, factor=128)[1])
    weights.parallel(weights.op.axis[0])
    values = s["O.rf"]
    columns, (k,) = values.op.axis[-1], values.op.reduce_axis
    values.reorder(k, columns)
    values.vectorize(columns)
    values.parallel(values.op.axis[0])
    if lesson.gpu:
        scores.vectorize(inner)
        values.vectorize(values.split(k, factor=64)[1])
    merged = s["O"]
    for name in ("l", "m"):
        s[name].compute_at(merged, merged.op.axis[1])
    merged.vectorize(merged.op.axis[-1])


title("one query: the loop nest in parts")
print(by(one_query(), in_parts))
decoded = lesson.compare(
    f"one query, {CONTEXT} keys, depth {DEPTH}",
    {
        "one loop": lesson.build(by(one_query(), one_loop)),
        "in parts": lesson.build(by(one_query(), in_parts)),
    },
    operands(heads=1, queries=1, keys=CONTEXT),
    attention_numpy,
    attention_torch,
    base="one loop",
)
decoded.print()

# %% Fewer repairs
# After the first blocks the maximum hardly ever moves, and still every block multiplies all sums by
# exp(0).  With a threshold the sums stay relative to an older maximum until the new one is so far
# ahead that they might grow too large.  An iteration in which no row is skips the repair.
title("with rescale_threshold=8: what the loop of `l` becomes")
s = te.create_schedule(softmax())
s["e"].compute_inline()
block, _ = s["l"].split(s["l"].op.reduce_axis[0], factor=BLOCK)
s["l"].online(block, rescale_threshold=8)
print("\n".join(line for line in str(s).splitlines() if " = " in line and "y[" not in line))

# %% Exercises (solutions/09_softmax_to_attention_online.py)
# 1. The logarithm of the sum of exponentials of each row, log(sum(exp(x - m))) + m, in one pass.
#    Is the repair of the sum another one?  Print the proof.
# 2. The variance of each row, the sum of (x - mean)^2, in one pass with `online`.  What has to be
#    carried along to repair it, and how many numbers is that (look for `rank` in the proof)?
# 3. A soft cap: scores become 30 * tanh(score / 30) before the softmax.  Change the definition of
#    `T`.  What changes in `attention_online`, and what in the proof?
lesson.done()
