"""The tuning curve and the roofline as a picture.  Loads matplotlib when a picture is asked for;
imports `outcome` and `roofline`."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tedsl.autotune.frontend.result import TuneResult
from tedsl.autotune.outcome import Status, Trial
from tedsl.cost.roofline import Roofline
from tedsl.errors import TuneError
from tedsl.packages import install
from tedsl.runtime.timing import format_seconds

FORMATS = (".svg", ".png", ".pdf")
INK, MUTED, BEST, BAD, ROOF = "#222222", "#9aa4b1", "#0b6e4f", "#c0392b", "#2b5fad"
TALL = 5.0
"""The range of times from which on their axis is logarithmic."""


def plot(found: TuneResult, path: Path) -> Path:
    """Draw a search to a file; see `TuneResult.plot`."""
    check_plot(path)
    ok = [trial for trial in found.searched if trial.outcome.status is Status.OK]
    if not ok:
        raise TuneError(
            "nothing was measured, so there is nothing to draw",
            hint="search with fresh=True, or a larger budget",
        )
    roof = found.roofline if found.roofline is not None and found.roofline.flops else None
    figure = empty_figure(1 if roof is None else 2)
    axes: list[Any] = list(figure.axes)
    _curve(axes[0], found, ok)
    if roof is not None:
        _roof(axes[1], found, ok, roof)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def check_plot(path: Path) -> None:
    """Refuse a file that no plot can be written to.

    Raises:
        TuneError: a name that ends in no known format, or no matplotlib.
    """
    if path.suffix.lower() not in FORMATS:
        raise TuneError(
            f"a plot cannot be written to {path.name!r}",
            facts=[("allowed", ", ".join(FORMATS))],
            hint="name a file that ends in one of these",
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise TuneError("plots need matplotlib, which is not installed", hint=install("matplotlib"))


def empty_figure(panels: int) -> Any:
    """An empty figure; nothing of the program's own plots is touched."""
    module: Any = importlib.import_module("matplotlib.figure")
    figure = module.Figure(figsize=(6.2 * panels, 4.2), layout="constrained")
    for each in figure.subplots(1, panels, squeeze=False)[0]:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(colors=INK, labelsize=8)
    return figure


def _curve(axes: Any, found: TuneResult, ok: Sequence[Trial]) -> None:
    """Every trial's time in the order tried, the best so far, and what it is measured by."""
    numbers = [trial.number + 1 for trial in ok]
    times = [1e6 * trial.seconds for trial in ok]
    axes.scatter(numbers, times, s=12, color=MUTED, label="candidates", zorder=2)
    steps: list[tuple[int, float]] = []
    for number, time in sorted(zip(numbers, times, strict=True)):
        if not steps or time < steps[-1][1]:
            steps.append((number, time))
    last = max(trial.number + 1 for trial in found.searched)
    axes.step(
        [n for n, _ in steps] + [last],
        [t for _, t in steps] + [steps[-1][1]],
        where="post", color=BEST, linewidth=1.8, label="best so far", zorder=3,
    )  # fmt: skip
    winner = found.winner
    axes.scatter(
        [winner.number + 1], [1e6 * winner.seconds],
        marker="*", s=110, color=BEST, label=f"winner, {format_seconds(winner.seconds)}", zorder=4,
    )  # fmt: skip
    default = next((t for t in ok if t.number == 0), None)
    if default is not None:
        label = f"default, {format_seconds(default.seconds)}"
        axes.axhline(1e6 * default.seconds, color=INK, linestyle="--", linewidth=0.9, label=label)
    low = min(times)
    floor = 0.0 if found.roofline is None else 1e6 * found.roofline.seconds
    if floor > low / 50:
        label = f"roofline, {format_seconds(floor / 1e6)}"
        axes.axhline(floor, color=ROOF, linestyle=":", linewidth=1.2, label=label)
        low = min(low, floor)
    failed = [t.number + 1 for t in found.searched if t.outcome.status is not Status.OK]
    if failed:
        top = axes.get_xaxis_transform()
        label = f"failed ({len(failed)})"
        axes.scatter(failed, [0.985] * len(failed), marker="x", s=16, color=BAD, transform=top,
                     label=label, clip_on=False)  # fmt: skip
    if max(times) > TALL * low:
        octaves(axes)
    _label(axes, "tuning curve", "trial", "time of a call, us")


def _roof(axes: Any, found: TuneResult, ok: Sequence[Trial], roof: Roofline) -> None:
    """The roof of the device, and where the candidates are below it."""
    ridge = roof.peak / roof.bandwidth
    wide = [roof.intensity, ridge]
    left, right = min(wide) / 8, max(wide) * 8
    line = [left, ridge, right]
    axes.plot(
        line, [min(roof.peak, x * roof.bandwidth) / 1e9 for x in line],
        color=ROOF, linewidth=1.8, label="roof of the device", zorder=2,
    )  # fmt: skip
    rates = [roof.flops / trial.seconds / 1e9 for trial in ok]
    axes.scatter([roof.intensity] * len(ok), rates, s=12, color=MUTED, label="candidates", zorder=3)
    default = next((t for t in ok if t.number == 0), None)
    if default is not None:
        rate = roof.flops / default.seconds / 1e9
        axes.scatter([roof.intensity], [rate], marker="s", s=34, facecolors="none",
                     edgecolors=INK, label="default", zorder=4)  # fmt: skip
    rate = roof.flops / found.winner.seconds / 1e9
    share = 100 * roof.seconds / found.winner.seconds
    axes.scatter([roof.intensity], [rate], marker="*", s=110, color=BEST,
                 label=f"winner, {share:.0f} % of the roof", zorder=5)  # fmt: skip
    axes.set_xscale("log")
    octaves(axes)
    top = max(roof.peak / 1e9, max(rates))
    axes.set_ylim(min(*rates, left * roof.bandwidth / 1e9) / 2, 10 ** (math.log10(top) + 0.4))
    _label(axes, "roofline", "operations for each byte", "Gflop/s")


def octaves(axes: Any) -> None:
    """A logarithmic axis with plain numbers."""
    ticker: Any = importlib.import_module("matplotlib.ticker")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(_number))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def _number(value: float, place: int) -> str:
    return f"{value:g}"


def _label(axes: Any, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(across, fontsize=9, color=INK)
    axes.set_ylabel(up, fontsize=9, color=INK)
    axes.legend(fontsize=7.5, frameon=False)
    axes.grid(True, which="major", color="#e6e9ee", linewidth=0.6, zorder=0)
