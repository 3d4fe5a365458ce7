"""Tutorial 2: what `compute_at` buys, on a photograph.

    python tutorials/02_blur_compute_at.py         # needs matplotlib: pip install matplotlib

An unsharp mask is a blur and a pointwise stage; the blur is separable, so it is two stages: along
rows, then along columns.  Where the first of them is computed is the whole question.  Anywhere
gives the same picture; time, work and memory differ.  Every result is compared with NumPy before it
is timed.
"""

# %% Setup: options, and a real photograph
from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import tedsl as te
from tedsl.runtime.timing import Stats, compare

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
parser.add_argument("--out", type=Path, default=Path("blur_compute_at.png"), help="the picture")
parser.add_argument("--copies", type=int, default=4, help="photographs in each direction")
parser.add_argument("--trials", type=int, default=40, help="candidates of the search")
parser.add_argument("--seconds", type=float, default=15.0, help="time of the search")
parser.add_argument("--quick", action="store_true", help="one photograph, short search")
options = parser.parse_args()
if options.quick:
    options.copies, options.trials = 1, min(options.trials, 3)
    options.seconds = min(options.seconds, 5.0)
if importlib.util.find_spec("matplotlib") is None:
    sys.exit("this tutorial needs matplotlib for its photograph: python -m pip install matplotlib")
# A folder gets the picture under its usual name.
saved_as = options.out / "blur_compute_at.png" if options.out.is_dir() else options.out
begin = time.perf_counter()


def title(text: str) -> None:
    """A heading in the output."""
    print(f"\n--- {text} {'-' * (90 - len(text))}")


def photograph() -> Any:
    """Grey levels in 0..1: the portrait that comes with matplotlib."""
    cbook: Any = importlib.import_module("matplotlib.cbook")
    pillow: Any = importlib.import_module("PIL.Image")
    with cbook.get_sample_data("grace_hopper.jpg") as file:
        return np.asarray(pillow.open(file).convert("L"), np.float32) / 255


portrait = photograph()
image = np.tile(portrait, (options.copies, options.copies))  # large enough to leave the caches
HEIGHT, WIDTH = image.shape
RADIUS, SIGMA, AMOUNT = 4, 2.0, 1.0
bell = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / SIGMA) ** 2)
TAPS = (bell / bell.sum()).astype(np.float32)
padded = np.pad(image, RADIUS, mode="edge")  # edges outside the clock: the loops stay plain
title(f"{HEIGHT} x {WIDTH} float32, {len(TAPS)} x {len(TAPS)} taps, {os.cpu_count()} cores")


# %% The computation: three stages, no loops
def unsharp_mask() -> te.Tensor:
    """image + AMOUNT * (image - blur(image))."""
    source = te.placeholder((HEIGHT + 2 * RADIUS, WIDTH + 2 * RADIUS), "float32", name="source")

    def weighted(read: Callable[[int], te.Expr]) -> te.Expr:
        total = read(0) * float(TAPS[0])
        for tap in range(1, len(TAPS)):
            total = total + read(tap) * float(TAPS[tap])
        return total

    rows = te.compute(
        (HEIGHT + 2 * RADIUS, WIDTH), lambda y, x: weighted(lambda t: source[y, x + t]), name="rows"
    )
    blur = te.compute((HEIGHT, WIDTH), lambda y, x: weighted(lambda t: rows[y + t, x]), name="blur")

    def sharpened(y: te.Axis, x: te.Axis) -> te.Expr:
        here = source[y + RADIUS, x + RADIUS]
        return here + AMOUNT * (here - blur[y, x])

    return te.compute((HEIGHT, WIDTH), sharpened, name="sharp")


# %% The same in NumPy and in SciPy
def in_numpy() -> Any:
    """Shifted slices, one whole-array operation after the other."""
    rows = np.zeros((HEIGHT + 2 * RADIUS, WIDTH), np.float32)
    blur = np.zeros((HEIGHT, WIDTH), np.float32)
    for t in range(len(TAPS)):
        rows += TAPS[t] * padded[:, t : t + WIDTH]
    for t in range(len(TAPS)):
        blur += TAPS[t] * rows[t : t + HEIGHT]
    return image + np.float32(AMOUNT) * (image - blur)


ndimage: Any = None
if importlib.util.find_spec("scipy") is not None:
    ndimage = importlib.import_module("scipy.ndimage")


def in_scipy() -> Any:
    """SciPy's own separable filter, then NumPy."""
    blur = ndimage.correlate1d(image, TAPS, axis=1, mode="nearest")
    blur = ndimage.correlate1d(blur, TAPS, axis=0, mode="nearest")
    return image + np.float32(AMOUNT) * (image - blur)


# %% Where `rows` is computed: five answers
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


# %% Or let the search choose: the same schedules as one function with knobs
# `s.knob(name, choices)` returns the first choice until a search decides otherwise, so this
# function is a schedule by itself, and to te.autotune a space of 33 schedules.
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
        at_rows(s, int(str(s.knob("height", (8, 16, 32, 64, 128)))))
    else:
        height = int(str(s.knob("height", (8, 16, 32, 64, 128))))
        at_tile(s, height, int(str(s.knob("width", (64, 128, 256, 512, 1024)))))


# %% Build each, and print its loops: the five nests differ in where `rows` stands
sharp = unsharp_mask()
PLACES: dict[str, Callable[[te.Schedule], None]] = {
    "at root": at_root,
    "inlined": inlined,
    "at each row": lambda s: at_rows(s, 1),
    "at strips of 64 rows": lambda s: at_rows(s, 64),
    "at tiles of 32 x 256": lambda s: at_tile(s, 32, 256),
}


def loops_of(s: te.Schedule) -> str:
    """The loop nest; long sums are cut."""
    lines = [line for line in str(s).splitlines() if not line.startswith(("input", "blur"))]
    return "\n".join(line if len(line) <= 96 else line[:92] + " ..." for line in lines)


kernels: dict[str, te.Kernel] = {}
for name, place in PLACES.items():
    s = te.create_schedule(sharp)
    place(s)
    title(f"rows computed {name}")
    print(loops_of(s))
    kernels[name] = te.build(s, "cpu")

title("the search over all of these, as Python")
kernels["found by search"] = te.autotune(
    sharp,
    "cpu",
    schedule=somewhere,
    trials=options.trials,
    seconds=options.seconds,
    candidate_seconds=10.0,
)
print(kernels["found by search"].schedule.as_python())
found = ", ".join(f"{k.name}={k.chosen}" for k in kernels["found by search"].schedule.knobs)
print(f"knobs: {found}")


# %% Check every result against NumPy, then time all in turn
wanted = in_numpy()
calls: dict[str, Callable[[], object]] = {}
for name, kernel in kernels.items():
    np.testing.assert_allclose(kernel(padded), wanted, rtol=1e-4, atol=1e-5, err_msg=name)
    calls[name] = lambda kernel=kernel: kernel(padded)
calls["NumPy"] = in_numpy
if ndimage is not None:
    np.testing.assert_allclose(in_scipy(), wanted, rtol=1e-4, atol=1e-5, err_msg="SciPy")
    calls["SciPy + NumPy"] = in_scipy
times = compare(calls, repeats=5 if options.quick else 15)


# %% Time, work and memory in one table
# Work is counted from the loops that were built (`kernel.explain()`): floating-point operations,
# as a multiple of those at root, where nothing is computed twice.  Memory is what `rows` is kept
# in: all of it in memory at root, else a buffer for each thread.
@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    stats: Stats
    work: float | None
    kept: int | None


def row_of(name: str, stats: Stats) -> Row:
    """The figures of one schedule; peers have only a time."""
    if name not in kernels:
        return Row(name, stats, None, None)
    cost = kernels[name].explain()
    base = kernels["at root"].explain().flops
    kept = cost.workspace_bytes + sum(kernel.local_bytes for kernel in cost.kernels)
    return Row(name, stats, cost.flops / base, kept)


def bytes_text(count: int | None) -> str:
    """A size in the unit that suits it."""
    if count is None:
        return ""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB" if count else "none"


lines = [row_of(name, stats) for name, stats in times.items()]
table = Table(title=f"unsharp mask, {HEIGHT} x {WIDTH} float32", title_justify="left")
for heading in ("rows computed", "time", "spread", "vs root", "work", "memory of rows"):
    table.add_column(heading, justify="left" if heading == "rows computed" else "right")
for line in lines:
    table.add_row(
        line.name,
        f"{line.stats.median * 1e3:.2f} ms",
        f"{line.stats.spread:.0%}",
        f"{times['at root'].median / line.stats.median:.2f}x",
        "" if line.work is None else f"{line.work:.2f}x",
        bytes_text(line.kept),
    )
Console(highlight=False, width=96).print(table)


# %% And in one picture
def draw(pyplot: Any) -> None:
    """The photograph before and after, and a bar for each figure of each schedule."""
    figure = pyplot.figure(figsize=(11, 8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1.3, 1.0))
    blurred = image - (wanted - image) / AMOUNT
    pictures = {"photograph": image, "blurred": blurred, "sharpened": wanted}
    for axes, (name, picture) in zip(above.subplots(1, 3), pictures.items(), strict=True):
        axes.imshow(picture[70:350, 120:400], cmap="gray", vmin=0, vmax=1)
        axes.set_title(name, fontsize=11)
        axes.set_axis_off()
    ours = [line for line in lines if line.name in kernels]
    peers = ", ".join(f"{n} {s.median * 1e3:.0f}" for n, s in times.items() if n not in kernels)
    work = [line.work or 0.0 for line in ours]
    kept = [line.kept or 0 for line in ours]
    spent = [line.stats.median * 1e3 for line in ours]
    panels: list[tuple[str, Sequence[float], list[str]]] = [
        (f"time in ms\n(off the scale: {peers})", spent, [f"{ms:.1f}" for ms in spent]),
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
    figure.savefig(saved_as, dpi=130)


matplotlib: Any = importlib.import_module("matplotlib")
matplotlib.use("agg")
draw(importlib.import_module("matplotlib.pyplot"))
print(f"picture: {saved_as}")

# %% Exercises (solutions/02_blur_compute_at.py)
# 1. Write the blur as one stage of 9 x 9 taps, without the separation.  Predict its work in the
#    units of the table before you build it.
# 2. Strips compute 8 rows twice, and hold a whole strip.  Hold `rows` for the strip but compute it
#    row by row (`store_at`, `rolling_buffer`).  How many rows are in memory at a time?
# 3. Ask the schedule where `rows` may stand (`s["rows"].legal_places()`), and try another place.
title(f"done in {time.perf_counter() - begin:.0f} s")
