"""Tutorial 3: counting bytes, and when the count is wrong.

    python tutorials/03_counting_bytes.py                   # CPU, under a minute
    python tutorials/03_counting_bytes.py --target cuda     # an NVIDIA GPU and PyTorch

An addition takes a fraction of a nanosecond; fetching its operand from memory takes longer.  So
where a program does little to each element, its time is the bytes it moves over the bandwidth of
the machine, and you can predict it with a pencil.  This tutorial predicts four programs (a chain of
pointwise steps, the same with casts, a transpose, a gather) and measures them.  Twice the pencil is
right; twice it has to learn something.
"""

# %% Setup.  `lesson.py` reads the options; sizes are such that arrays do not fit in the caches.
from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from lesson import Comparison, Lesson, installed, size_text, title

import tedsl as te

lesson = Lesson.begin(__doc__)
N = lesson.size(cpu=3072, cuda=8192, quick=256)
torch: Any = importlib.import_module("torch") if lesson.measured and installed("torch") else None
points: list[tuple[str, float, float]] = []  # name, bytes, seconds: for the picture at the end


def remember(comparison: Comparison, *names: str) -> None:
    """Keep what was counted and measured."""
    for name in names if comparison else ():
        row = comparison.rows[name]
        points.append((f"{comparison.heading}: {name}", float(row.nbytes or 0), row.seconds))


# %% How one stage runs when it runs alone
# The same for every stage below, so that only fusion differs: on the CPU rows over the threads and
# SIMD lanes along a row; on a GPU pieces of 1024 elements, one for each program.
def alone(stage: te.Stage) -> None:
    """A loop nest of its own, parallel and vectorized."""
    axes = stage.op.axis
    if lesson.gpu:
        block, lanes = stage.split(stage.fuse(*axes), factor=1024)
        stage.bind(block, "blockIdx.x")
    else:
        _, lanes = stage.split(axes[-1], factor=1024)
        stage.parallel(axes[0])
    stage.vectorize(lanes)


def unfused(output: te.Tensor) -> te.Schedule:
    """Every stage at root: it reads its operands from memory and writes its result there."""
    s = te.create_schedule(output)
    for stage in s.stages:
        if stage.op.axis:
            alone(stage)
    return s


def by_hand(output: te.Tensor) -> te.Schedule:
    """Everything substituted into the last stage: one loop, intermediates in registers."""
    s = te.create_schedule(output)
    for stage in s.stages:
        if stage.op.axis and stage.name != output.op.name:
            stage.compute_inline()
    alone(s[output])
    return s


# %% 1. A chain: centre, scale, squash, add back
# Four steps.  By itself each reads one or two arrays of N x N and writes one; together they read x
# and write y.  Count: 1 + 1, 1 + 1, 1 + 1, 2 + 1 = 9 arrays unfused, 2 fused.
def chain(dtype: str = "float32") -> te.Tensor:
    """x + squash((x - mean) * gain), stored as `dtype` and computed in float32."""
    f32, shape = "float32", (N, N)
    x = te.placeholder(shape, dtype, name="x")
    mean = te.placeholder((N,), f32, name="mean")
    gain = te.placeholder((N,), f32, name="gain")
    source = x
    if dtype != f32:  # a cast is a stage like any other
        source = te.compute(shape, lambda i, j: x[i, j].astype(f32), name="up")
    centred = te.compute(shape, lambda i, j: source[i, j] - mean[j], name="centred")
    scaled = te.compute(shape, lambda i, j: centred[i, j] * gain[j], name="scaled")
    squashed = te.compute(
        shape, lambda i, j: scaled[i, j] / (1 + te.abs(scaled[i, j])), name="squashed"
    )
    y = te.compute(shape, lambda i, j: source[i, j] + squashed[i, j], name="y")
    if dtype != f32:
        y = te.compute(shape, lambda i, j: y[i, j].astype(dtype), name="down")
    return y


def chain_numpy(x: Any, mean: Any, gain: Any) -> Any:
    """The same in NumPy: one pass over memory for each operation."""
    scaled = (x - mean) * gain
    return x + scaled / (1 + np.abs(scaled))


def chain_torch(x: Any, mean: Any, gain: Any) -> Any:
    """The same in PyTorch, eager."""
    source = x.float()
    scaled = (source - mean) * gain
    return (source + scaled / (1 + scaled.abs())).to(x.dtype)


title("1. a chain of four pointwise steps")
y = chain()
print(by_hand(y))
kernels = {
    "unfused": lesson.build(unfused(y)),
    "by hand": lesson.build(by_hand(y)),
    "default rules": lesson.build(y),
    **lesson.search(y),
}
vectors = [lesson.normal(N), 1 + lesson.normal(N, scale=0.1)]
x = lesson.normal(N, N)
plain = lesson.compare(
    "chain, float32", kernels, [x, *vectors], chain_numpy, chain_torch, count=True
)
plain.print()
plain.draw("03_chain")
remember(plain, "unfused", "by hand")
if plain:
    counted = kernels["unfused"].explain().nbytes / kernels["by hand"].explain().nbytes
    print(
        f"The count says that fusing gains {counted:.2f}x; "
        f"the clock says {plain.speedup('by hand'):.2f}x."
    )
    print("Where the clock says less, an array was still in the cache when the next step read it,")
    print("or the fused loop is no longer bound by memory alone (it divides, too).")

# %% 2. Casts: half the bytes in the same loop
# Stored as float16, x and y are half as large.  But a cast that runs by itself writes a float32
# array and the next step reads it: unfused, 16 bits cost MORE than 32.  Fused they are free.
# (`wide` arithmetic, narrow storage: the sum is computed in float32 either way.)
title("2. the same chain stored as float16")
y16 = chain("float16")
kernels = {
    "unfused": lesson.build(unfused(y16)),
    "by hand": lesson.build(by_hand(y16)),
    "default rules": lesson.build(y16),
}
narrow = lesson.compare(
    "chain, float16", kernels, [x.astype(np.float16), *vectors], chain_numpy, chain_torch
)
narrow.print()
remember(narrow, "unfused", "by hand")
if narrow:
    halves = plain.rows["by hand"].seconds / narrow.rows["by hand"].seconds
    print(f"Fused, float16 is {halves:.2f}x as fast as float32; the count says 2x.")
    if halves < 1.6:
        print("It is short of 2x: converting costs instructions, and a loop that was waiting for")
        print("memory now waits for its own arithmetic.  Fewer bytes help until something else is")
        print("the bottleneck; the same loop on more cores per memory channel would gain more.")

# %% 3. A transpose: the count is the same, the time is not
# y = x + x.T reads x (one array; twice, but it is the same array) and writes y.  However the loops
# run, `explain` counts 2 arrays.  But memory comes in lines of 64 bytes (GPU: sectors of 32), and a
# loop along rows of y walks down a column of x: it fetches a line for each 4 bytes that it uses.
# Unless a line is still there when the next row wants its neighbour, 16 times the bytes move.


def transposed() -> te.Tensor:
    """x + x.T."""
    source = te.placeholder((N, N), "float32", name="x")
    return te.compute((N, N), lambda i, j: source[i, j] + source[j, i], name="both")


def along_rows(output: te.Tensor) -> te.Schedule:
    """What is right for every other stage here."""
    s = te.create_schedule(output)
    alone(s[output])
    return s


def in_tiles(output: te.Tensor, side: int, block: int) -> te.Schedule:
    """Squares: the lines fetched for the first row of a tile serve all its other rows.

    A block inside the tile is one value in registers, loaded along the rows of x on both sides;
    the compiler turns the one operand around there.  On a GPU the block is the tile.
    """
    s = te.create_schedule(output)
    stage = s[output]
    io, jo, ii, ji = stage.tile(*stage.op.axis, side, side)
    if block < side:
        _, _, ii, ji = stage.tile(ii, ji, block, block)
    stage.vectorize(ii)
    stage.vectorize(ji)
    if lesson.gpu:
        stage.bind(stage.fuse(io, jo), "blockIdx.x")
    else:
        stage.parallel(io)
    return s


title("3. x + x.T")
both = transposed()
print(in_tiles(both, 64, 64 if lesson.gpu else 8))
blocks = (16, 64) if lesson.gpu else (1, 8)
kernels = {
    "along rows": lesson.build(along_rows(both)),
    **{f"blocks of {b} x {b}": lesson.build(in_tiles(both, max(b, 64), b)) for b in blocks},
    "default rules": lesson.build(both),
}
turned = lesson.compare(
    "x + x.T", kernels, [x], lambda x: x + x.T, lambda x: x + x.T, base="along rows"
)
turned.print()
turned.draw("03_transpose")
remember(turned, "along rows", f"blocks of {blocks[1]} x {blocks[1]}")
if turned:
    best = turned.fastest()
    what, line, element = ("sector", 32, 4) if lesson.gpu else ("line", 64, 4)
    print(f"Equal counts; `{best}` is {turned.speedup(best):.2f}x as fast as along rows.")
    print(f"A {what} of {line} bytes holds {line // element} numbers: the count assumes that all")
    print(f"are used before the {what} is lost.  A schedule has to make that assumption true.")

# %% 4. A gather: rows of a table, chosen by indices
# The first layer of a language model: row `ids[t]` of a table, scaled, plus a position.  Unfused,
# the chosen rows are written and read again.  `explain` counts the WHOLE table for a gather, since
# it cannot know the indices; you do: T rows.  Along columns (permuting features) each element takes
# a line of its own from its row, but the row is in the cache: not every gather is slow.
WORDS = lesson.size(cpu=50257, cuda=50257, quick=300)
TOKENS = lesson.size(cpu=16384, cuda=65536, quick=64)
WIDTH = lesson.size(cpu=512, cuda=1024, quick=64)


def embedding() -> te.Tensor:
    """words[ids[t]] * scale + positions[t], as three stages."""
    words = te.placeholder((WORDS, WIDTH), "float32", name="words")
    ids = te.placeholder((TOKENS,), "int32", name="ids")
    positions = te.placeholder((TOKENS, WIDTH), "float32", name="positions")
    shape = (TOKENS, WIDTH)
    chosen = te.compute(shape, lambda t, d: words[ids[t], d], name="chosen")
    scaled = te.compute(shape, lambda t, d: chosen[t, d] * float(WIDTH**0.5), name="scaled")
    return te.compute(shape, lambda t, d: scaled[t, d] + positions[t, d], name="embedded")


def embedding_numpy(words: Any, ids: Any, positions: Any) -> Any:
    """The same in NumPy."""
    return words[ids] * np.float32(WIDTH**0.5) + positions


def embedding_torch(words: Any, ids: Any, positions: Any) -> Any:
    """The same in PyTorch."""
    chosen = torch.nn.functional.embedding(ids, words)
    return torch.add(positions, chosen, alpha=WIDTH**0.5)


title("4. rows of a table")
embedded = embedding()
print(by_hand(embedded))
kernels = {
    "unfused": lesson.build(unfused(embedded)),
    "by hand": lesson.build(by_hand(embedded)),
    "default rules": lesson.build(embedded),
}
ids = lesson.random.integers(0, WORDS, TOKENS).astype(np.int32)
gathered = lesson.compare(
    "embedding",
    kernels,
    [lesson.normal(WORDS, WIDTH), ids, lesson.normal(TOKENS, WIDTH)],
    embedding_numpy,
    embedding_torch,
)
gathered.print()
if gathered:
    array, table = TOKENS * WIDTH * 4, WORDS * WIDTH * 4
    yours = {"unfused": 7 * array, "by hand": 3 * array}  # 1+1, 1+1, 2+1 arrays; fused 2+1
    print(f"The table has {size_text(table)}, the rows chosen {size_text(array)}.")
    print(f"Counted by the rows: {yours['unfused'] / yours['by hand']:.2f}x to gain; "
          f"measured: {gathered.speedup('by hand'):.2f}x.")  # fmt: skip
    for name, nbytes in yours.items():
        points.append((f"embedding: {name}", float(nbytes), gathered.rows[name].seconds))


# %% All of them in one picture: time against bytes
# Programs bound by memory lie on one line, whose slope is the bandwidth of the machine.  What is
# above the line moves more than was counted, or computes too much.
def draw() -> None:
    """A point for each program and the line of the best bandwidth seen."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    rate = max(nbytes / seconds for _, nbytes, seconds in points)
    reach = 1.1 * max(nbytes for _, nbytes, _ in points)
    least = min(nbytes for _, nbytes, _ in points) / 1.1
    ends = ([least / 1e6, reach / 1e6], [least / rate * 1e3, reach / rate * 1e3])
    axes.loglog(*ends, color="tab:orange", linestyle=":")  # a slow program must not flatten others
    axes.annotate(f"{rate / 1e9:.0f} GB/s", (reach / 1e6, reach / rate * 1e3), ha="right", va="top")
    for place, (name, nbytes, seconds) in enumerate(points):
        mark = "o" if "unfused" in name or "along rows" in name else "s"
        axes.plot(nbytes / 1e6, seconds * 1e3, mark, color=f"C{place // 2}", label=name)
    axes.set_xlabel("bytes counted, MB")
    axes.set_ylabel("time, ms")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    lesson.pictures.mkdir(parents=True, exist_ok=True)
    figure.savefig(lesson.pictures / "03_bytes.png", dpi=110)
    print(f"picture: {lesson.pictures / '03_bytes.png'}")


if points and installed("matplotlib"):
    draw()

# %% Exercises (solutions/03_counting_bytes.py)
# 1. Return `squashed` as well as y.  How many bytes does the best program move now?  Build it and
#    compare with `kernel.explain().nbytes`.
# 2. Quantise x to int8 with a scale for each column.  Predict bytes and gain over a plain copy.
# 3. Stage the transpose: a stage `t` with t[i, j] = x[j, i], attached at the tile of its reader,
#    with its lanes along i.  Is it as fast as the block in registers?
lesson.done()
