"""Tutorial 2: what `compute_at` buys, on a photograph.

    python tutorials/02_blur_compute_at.py                   # CPU, under a minute
    python tutorials/02_blur_compute_at.py --target cuda     # an NVIDIA GPU and PyTorch

An unsharp mask is a blur and a pointwise stage; the blur is separable, so it is two stages: along
rows, then along columns.  Where the first of them is computed is the whole question.  Anywhere
gives the same picture; time, work and memory differ.  A CPU and a GPU answer it differently, and
the cells below say why.
"""

# %% Setup: options, and a real photograph
from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lesson import Lesson, installed, size_text, spread_text, table, title

import tedsl as te

lesson = Lesson.begin(__doc__)
if not installed("matplotlib"):
    sys.exit("this tutorial needs matplotlib for its photograph: python -m pip install matplotlib")
torch: Any = importlib.import_module("torch") if lesson.measured and installed("torch") else None
if torch is not None:
    torch.backends.cudnn.allow_tf32 = False  # all candidates compute in float32


def photograph() -> Any:
    """Grey levels in 0..1: the portrait that comes with matplotlib."""
    cbook: Any = importlib.import_module("matplotlib.cbook")
    pillow: Any = importlib.import_module("PIL.Image")
    with cbook.get_sample_data("grace_hopper.jpg") as file:
        return np.asarray(pillow.open(file).convert("L"), np.float32) / 255


portrait = photograph()
if lesson.target == "triton-interpret":
    portrait = portrait[96:288, 128:384]
copies = lesson.size(cpu=4, cuda=16, quick=1)  # large enough to leave the caches
image = np.tile(portrait, (copies, copies))
HEIGHT, WIDTH = image.shape
RADIUS, SIGMA, AMOUNT = 4, 2.0, 1.0
bell = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / SIGMA) ** 2)
TAPS = (bell / bell.sum()).astype(np.float32)
padded = np.pad(image, RADIUS, mode="edge")  # edges outside the clock: the loops stay plain
WHAT = f"unsharp mask, {HEIGHT} x {WIDTH} float32"
title(f"{WHAT}, {len(TAPS)} x {len(TAPS)} taps, {os.cpu_count()} cores")


# %% The computation: three stages, no loops
def weighted(read: Callable[[int], te.Expr]) -> te.Expr:
    """The sum of `read` of each tap, by its weight."""
    total = read(0) * float(TAPS[0])
    for tap in range(1, len(TAPS)):
        total = total + read(tap) * float(TAPS[tap])
    return total


source = te.placeholder((HEIGHT + 2 * RADIUS, WIDTH + 2 * RADIUS), "float32", name="source")
rows = te.compute(
    (HEIGHT + 2 * RADIUS, WIDTH), lambda y, x: weighted(lambda t: source[y, x + t]), name="rows"
)
blur = te.compute((HEIGHT, WIDTH), lambda y, x: weighted(lambda t: rows[y + t, x]), name="blur")


def sharpened(blurred: Callable[[te.Axis, te.Axis], te.Expr]) -> te.Tensor:
    """image + AMOUNT * (image - blurred)."""

    def at(y: te.Axis, x: te.Axis) -> te.Expr:
        here = source[y + RADIUS, x + RADIUS]
        return here + AMOUNT * (here - blurred(y, x))

    return te.compute((HEIGHT, WIDTH), at, name="sharp")


sharp = sharpened(lambda y, x: blur[y, x])


# %% The same in NumPy, SciPy and PyTorch
def in_numpy(padded: Any) -> Any:
    """Shifted slices, one whole-array operation after the other."""
    rows = np.zeros((HEIGHT + 2 * RADIUS, WIDTH), np.float32)
    blur = np.zeros((HEIGHT, WIDTH), np.float32)
    for t in range(len(TAPS)):
        rows += TAPS[t] * padded[:, t : t + WIDTH]
    for t in range(len(TAPS)):
        blur += TAPS[t] * rows[t : t + HEIGHT]
    image = padded[RADIUS:-RADIUS, RADIUS:-RADIUS]
    return image + np.float32(AMOUNT) * (image - blur)


def in_scipy(padded: Any) -> Any:
    """SciPy's own separable filter, then NumPy."""
    ndimage: Any = importlib.import_module("scipy.ndimage")
    image = padded[RADIUS:-RADIUS, RADIUS:-RADIUS]
    blur = ndimage.correlate1d(image, TAPS, axis=1, mode="nearest")
    blur = ndimage.correlate1d(blur, TAPS, axis=0, mode="nearest")
    return image + np.float32(AMOUNT) * (image - blur)


def in_torch(padded: Any) -> Any:
    """PyTorch's convolution, along rows and along columns."""
    taps = torch.from_numpy(TAPS).to(padded.device)
    conv2d = torch.nn.functional.conv2d
    rows = conv2d(padded[None, None], taps.view(1, 1, 1, -1))
    image = padded[RADIUS:-RADIUS, RADIUS:-RADIUS]
    return image + AMOUNT * (image - conv2d(rows, taps.view(1, 1, -1, 1))[0, 0])


# %% Where `rows` is computed on a CPU: five answers
# The schedules differ in one line, the place of `rows`.  All else is common to them: `blur` is
# inlined into `sharp`, the outer loop runs on all threads, and the inner loop is SIMD lanes.
LANES = 256


def at_root(s: te.Schedule) -> None:
    """A pass of its own over the whole photograph: nothing twice, but all of it goes to memory."""
    s["blur"].compute_inline()
    for name in ("rows", "sharp"):
        y, x = s[name].op.axis
        _, lanes = s[name].split(x, factor=LANES)
        s[name].vectorize(lanes)
        s[name].parallel(y)


def inlined(s: te.Schedule) -> None:
    """Nowhere: substituted at each of its 9 reads.  No memory, and `rows` is computed 9 times."""
    s["blur"].compute_inline()
    s["rows"].compute_inline()
    y, x = s["sharp"].op.axis
    _, lanes = s["sharp"].split(x, factor=LANES)
    s["sharp"].vectorize(lanes)
    s["sharp"].parallel(y)


def at_rows(s: te.Schedule, height: int) -> None:
    """In each strip of `height` rows: the strip, and 8 rows more that the next computes again."""
    s["blur"].compute_inline()
    y, x = s["sharp"].op.axis
    strip, _ = s["sharp"].split(y, factor=height)
    _, lanes = s["sharp"].split(x, factor=LANES)
    s["sharp"].vectorize(lanes)
    s["rows"].compute_at(s["sharp"], strip)
    _, lanes = s["rows"].split(s["rows"].op.axis[1], factor=LANES)
    s["rows"].vectorize(lanes)
    s["sharp"].parallel(strip)


def at_tile(s: te.Schedule, height: int, width: int) -> None:
    """In each tile: the buffer is small enough for the first cache, and only rows are repeated."""
    s["blur"].compute_inline()
    y, x = s["sharp"].op.axis
    ty, tx, _, lanes = s["sharp"].tile(y, x, height, width)
    s["sharp"].vectorize(lanes)
    tile = s["sharp"].fuse(ty, tx)
    s["rows"].compute_at(s["sharp"], tile)
    s["rows"].vectorize(s["rows"].op.axis[1])
    s["sharp"].parallel(tile)


# %% Where `rows` is computed on a GPU: what slides cannot slide here
# A strip on the CPU is one thread that goes down the photograph: what it computed for the last row
# is still in its cache, at whatever address it likes to read.  A program of a GPU computes all
# elements of its tile at once, and keeps each in a register of one of its threads.  The memory of a
# GPU can be read at any place; a register of another thread cannot.  So a tile that was computed
# stays in registers only where it is read as it is, element for element: `rows[y + 1, x]` is in
# another register than `rows[y, x]`.  `rows` attached at a tile and read at a shift is carried out
# through memory: each program has a part of a workspace of its own, which `print(kernel.explain())`
# counts.
#
# What else there is: store all of `rows` and read it at a shift; or inline it, and read `source` at
# 81 shifts.  Inlined, the arithmetic is 4.8 times as much, but the loads find nearly everything in
# the first-level cache, and a GPU has arithmetic to spare as long as it waits for memory.
def tile_of(s: te.Schedule, name: str, height: int, width: int, warps: int = 4) -> te.Axis:
    """A stage in tiles, a program for each; returns the loop over them."""
    y, x = s[name].op.axis
    ty, tx, row, lanes = s[name].tile(y, x, height, width)
    grid = s[name].fuse(ty, tx)
    s[name].bind(grid, "blockIdx.x")
    s[name].vectorize(row)
    s[name].vectorize(lanes)
    s[name].launch(num_warps=warps)
    return grid


def kernels_apart(s: te.Schedule, height: int = 4, width: int = 256, warps: int = 4) -> None:
    """At root: two kernels, and `rows` goes to memory and comes back, nine times over."""
    s["blur"].compute_inline()
    tile_of(s, "rows", height, width, warps)
    tile_of(s, "sharp", height, width, warps)


def one_kernel(s: te.Schedule, height: int = 4, width: int = 256, warps: int = 4) -> None:
    """Inlined: one kernel, and no intermediate."""
    s["blur"].compute_inline()
    s["rows"].compute_inline()
    tile_of(s, "sharp", height, width, warps)


def at_blocks(s: te.Schedule) -> None:
    """Attached at a tile and read at a shift: a GPU keeps it in memory, a part for each program."""
    s["blur"].compute_inline()
    s["rows"].compute_at(s["sharp"], tile_of(s, "sharp", 24, 64))


# %% Or say it in a way in which a tile is read whole: as a product
# What a GPU does with whole tiles better than anything else is to multiply them.  A blur along
# columns is a product with a band of taps: row i of a block of 24 rows is the sum over the 32 rows
# r that the block needs, each times band[i, r], which is the tap r - i, or 0 where there is none.
# Three quarters of the products are with zeros.  But every row of the sum reads the tile of `rows`
# as a whole, so `rows` may be attached at the block: it is computed 32 / 24 times, not 9 times, and
# nothing goes to memory.  Same picture, another definition of one stage.
BLOCK = 24  # + 8 = 32 rows: a tile without padding
BAND = BLOCK + 2 * RADIUS


def tap(i: te.Axis, r: te.Axis) -> te.Expr:
    """The weight of row r for row i of a block: the bell, computed."""
    away = (r - i - RADIUS).astype("float32") * (1 / SIGMA)
    weight = te.exp(-0.5 * away * away) * float(1 / bell.sum())
    return te.select((r >= i) & (r - i < len(TAPS)), weight, 0.0)


def by_product() -> te.Tensor:
    """The unsharp mask, with the blur along columns as a product in blocks of rows."""
    band = te.compute((BLOCK, BAND), tap, name="band")
    r = te.reduce_axis((0, BAND), name="r")
    blocks = te.compute(
        (HEIGHT // BLOCK, BLOCK, WIDTH),
        lambda b, i, x: te.sum(band[i, r] * rows[b * BLOCK + r, x], axis=r),
        name="blocks",
    )
    return sharpened(lambda y, x: blocks[y // BLOCK, y % BLOCK, x])


def multiplied(s: te.Schedule) -> None:
    """Everything at a block of 24 x 64: `rows` and `band` as tiles, and the product of the two."""
    grid = tile_of(s, "sharp", BLOCK, 64)
    for name in ("blocks", "rows", "band"):
        s[name].compute_at(s["sharp"], grid)
    s["blocks"].vectorize(s["blocks"].op.reduce_axis[0])  # over block axes: tl.dot


# %% Or let the search choose: the same schedules as one function with knobs
# `s.knob(name, choices)` returns the first choice until a search decides otherwise, so either
# function is a schedule by itself, and to te.autotune a space: of 33 schedules, or of 64.
def number(s: te.Schedule, name: str, choices: Sequence[int]) -> int:
    """A knob whose choices are numbers."""
    return int(str(s.knob(name, tuple(choices))))


def somewhere(s: te.Schedule) -> None:
    """The place, and the sizes that the place needs."""
    place = s.knob("place", ("root", "inline", "row", "strip", "tile"))
    if place == "root":
        at_root(s)
    elif place == "inline":
        inlined(s)
    elif place == "row":
        at_rows(s, 1)
    elif place == "strip":
        at_rows(s, number(s, "height", (8, 16, 32, 64, 128)))
    else:
        height = number(s, "height", (8, 16, 32, 64, 128))
        at_tile(s, height, number(s, "width", (64, 128, 256, 512, 1024)))


def somewhere_gpu(s: te.Schedule) -> None:
    """Stored or inlined, and the tile of a program."""
    place = kernels_apart if s.knob("place", ("root", "inline")) == "root" else one_kernel
    height = number(s, "height", (4, 1, 2, 8))
    place(s, height, number(s, "width", (256, 64, 128, 512)), number(s, "warps", (4, 8)))


# %% Build each, and print its loops: the nests differ in where `rows` stands
Place = Callable[[te.Schedule], None]
ON_CPU: dict[str, Place] = {
    "at root": at_root,
    "inlined": inlined,
    "at each row": lambda s: at_rows(s, 1),
    "at strips of 64 rows": lambda s: at_rows(s, 64),
    "at tiles of 32 x 256": lambda s: at_tile(s, 32, 256),
}
ON_GPU: dict[str, Place] = {
    "at root": kernels_apart,
    "inlined": one_kernel,
    "at blocks, in memory": at_blocks,
}


def loops_of(s: te.Schedule) -> str:
    """The loop nest; long sums are cut."""
    lines = [line for line in str(s).splitlines() if not line.startswith(("input", "blur"))]
    return "\n".join(line if len(line) <= 96 else line[:92] + " ..." for line in lines)


def built(name: str, output: te.Tensor, place: Place) -> te.Kernel:
    """The kernel of a schedule that is printed first."""
    s = te.create_schedule(output)
    place(s)
    title(f"rows computed {name}")
    print(loops_of(s))
    return lesson.build(s)


kernels = {
    name: built(name, sharp, place) for name, place in (ON_GPU if lesson.gpu else ON_CPU).items()
}
if lesson.gpu:
    kernels["at blocks, a product"] = built("at blocks, a product", by_product(), multiplied)
    print(kernels["at blocks, a product"].source)
kernels["default rules"] = lesson.build(sharp)
found = lesson.search(sharp, somewhere_gpu if lesson.gpu else somewhere, "found by search")
for kernel in found.values():
    title("the search over all of these, as Python")
    print(kernel.schedule.as_python())
    print("knobs: " + ", ".join(f"{knob.name}={knob.chosen}" for knob in kernel.schedule.knobs))
kernels |= found

# %% Check every result against NumPy, then time all in turn
compared = lesson.compare(
    WHAT,
    kernels,
    [padded],
    in_numpy,
    in_torch,
    base="at root",
    others={"SciPy + NumPy": in_scipy} if installed("scipy") else {},
)


# %% Time, work and memory in one table
# Work is counted from the loops that were built (`kernel.explain()`): floating-point operations,
# as a multiple of those at root, where nothing is computed twice.  Memory is what `rows` is kept
# in: all of it in memory at root, else a buffer of each thread, or registers of each program.
@dataclass(frozen=True)
class Line:
    """One line of the table; peers have only a time."""

    name: str
    seconds: float
    work: float | None
    kept: int | None


def line_of(name: str) -> Line:
    """The figures of one schedule."""
    seconds = compared.rows[name].seconds
    if name not in kernels:
        return Line(name, seconds, None, None)
    cost = kernels[name].explain()
    kept = cost.workspace_bytes + sum(kernel.local_bytes for kernel in cost.kernels)
    return Line(name, seconds, cost.flops / kernels["at root"].explain().flops, kept)


def bytes_text(count: int | None) -> str:
    """A size; nothing where it is not known."""
    return "" if count is None else size_text(count) if count else "none"


lines = [line_of(name) for name in compared.rows]
if compared:
    table(
        WHAT,
        ("rows computed", "time", "spread", "vs root", "work", "memory of rows"),
        [
            (
                line.name,
                f"{line.seconds * 1e3:.3g} ms",
                spread_text(compared.rows[line.name].stats),
                f"{compared.speedup(line.name):.2f}x",
                "" if line.work is None else f"{line.work:.2f}x",
                bytes_text(line.kept),
            )
            for line in lines
        ],
    )


# %% And in one picture
def draw(pyplot: Any) -> None:
    """The photograph before and after, and a bar for each figure of each schedule."""
    figure = pyplot.figure(figsize=(11, 8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1.3, 1.0))
    wanted = in_numpy(padded)
    blurred = image - (wanted - image) / AMOUNT
    pictures = {"photograph": image, "blurred": blurred, "sharpened": wanted}
    for axes, (name, picture) in zip(above.subplots(1, 3), pictures.items(), strict=True):
        axes.imshow(picture[70:350, 120:400], cmap="gray", vmin=0, vmax=1)
        axes.set_title(name, fontsize=11)
        axes.set_axis_off()
    ours = [line for line in lines if line.name in kernels]
    peers = [f"{line.name} {line.seconds * 1e3:.3g}" for line in lines if line.name not in kernels]
    work = [line.work or 0.0 for line in ours]
    kept = [line.kept or 0 for line in ours]
    spent = [line.seconds * 1e3 for line in ours]
    panels: list[tuple[str, Sequence[float], list[str]]] = [
        (f"time in ms\n(not shown: {', '.join(peers)})", spent, [f"{ms:.3g}" for ms in spent]),
        ("work (1 = nothing twice)", work, [f"{ratio:.2f}" for ratio in work]),
        ("memory of the intermediate", kept, [bytes_text(count) for count in kept]),
    ]
    below.suptitle("where the blur along rows is computed, and what that costs", fontsize=12)
    shades = ["0.1" if line.name == "found by search" else "0.55" for line in ours]
    every = below.subplots(1, 3, sharey=True)
    for axes, (label, values, texts) in zip(every, panels, strict=True):
        bars = axes.barh([line.name for line in ours], values, color=shades, height=0.65)
        axes.bar_label(bars, texts, padding=3, fontsize=9)
        axes.set_xlabel(label)
        axes.margins(x=0.22)
        axes.set_xticks([])
        axes.tick_params(left=False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    every[0].invert_yaxis()
    lesson.pictures.mkdir(parents=True, exist_ok=True)
    figure.savefig(lesson.pictures / "02_blur.png", dpi=130)
    print(f"picture: {lesson.pictures / '02_blur.png'}")


if compared:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    draw(importlib.import_module("matplotlib.pyplot"))
    best = compared.fastest()
    work = line_of(best).work or 0.0
    print(
        f"Fastest: {best}, {compared.speedup(best):.2f}x as fast as at root, {work:.2f}x its work."
    )
    if lesson.gpu:
        cost = {name: kernel.explain() for name, kernel in kernels.items()}
        moved = cost["at root"].nbytes / cost["inlined"].nbytes
        more = line_of("inlined").work or 0.0
        print(
            f"Stored, {moved:.2f}x the bytes of inlined move; inlined, {more:.2f}x the operations"
        )
        print("are done.  Which of them weighs more is the table's answer.")

# %% Exercises (solutions/02_blur_compute_at.py)
# 1. Write the blur as one stage of 9 x 9 taps, without the separation.  Predict its work in the
#    units of the table before you build it.
# 2. Strips compute 8 rows twice, and hold a whole strip.  Hold `rows` for the strip but compute it
#    row by row (`store_at`, `rolling_buffer`).  How many rows are in memory at a time?
# 3. Ask the schedule where `rows` may stand (`s["rows"].legal_places()`), and try another place.
#    Then ask the GPU for the same places: `te.lower(s, target="cuda:sm_90")` needs none.
lesson.done()
