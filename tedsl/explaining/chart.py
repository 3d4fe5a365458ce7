"""`te.roofline`: programs below the ceilings of the machine, as numbers and as one picture.

A point is a program: operations for each byte that it moves, and operations a second.  Predicted
points come from `te.explain`, measured ones from running the kernel.  Loads matplotlib when a
picture is asked for.  Imports the rest of `explaining` and `autotune.report.plots`.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from tedsl import saving
from tedsl.autotune.report.plots import (
    BEST,
    FORMATS,
    INK,
    MUTED,
    ROOF,
    check_plot,
    empty_figure,
    octaves,
)
from tedsl.build import build, default_target
from tedsl.errors import TuneError
from tedsl.explaining.ceilings import TF32, Ceilings, ceilings
from tedsl.explaining.data import Explanation
from tedsl.explaining.explain import Explainable, explain
from tedsl.explaining.running import calls_of, times
from tedsl.explaining.text import scaled
from tedsl.ir.nodes import Dot, Module, Precision
from tedsl.ir.visit import walk_stmts
from tedsl.runtime.kernel import Kernel
from tedsl.runtime.timing import format_seconds
from tedsl.schedules.analysis.views import alone
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.graph import initial_plan
from tedsl.slips import suggests
from tedsl.target import Target, TargetKind
from tedsl.tensor.tensor import ComputeOp

UNFUSED = "unfused"
COLOURS = (BEST, "#b5651d", "#7a3e9d", "#0b7a8f", "#a03325", "#5d6d1e")


@dataclass(frozen=True, slots=True)
class Point:
    """A program: its name, what it moves and does, and how long that takes.

    `dtype` is the type whose ceiling counts: of the operands of its matrix products, else of its
    results.  `least` is the time that the ceilings leave.
    """

    name: str
    nbytes: int
    flops: int
    seconds: float
    least: float
    dtype: str
    measured: bool

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def gap(self) -> float:
        """How many times longer it takes than the ceilings allow for what it moves and does."""
        return self.seconds / self.least if self.least else 0.0

    @property
    def share(self) -> float:
        """The part of the roof that it reaches, at most 1: the least time over the time it takes.
        What stays in a cache may be faster than the roof of device memory, and counts as 1."""
        return min(1.0, 1.0 / self.gap) if self.gap else 0.0

    def __str__(self) -> str:
        how = "measured" if self.measured else "predicted"
        above = ", its data stays in a cache" if self.measured and 0 < self.gap < 1 else ""
        return (
            f"{self.name:<24} {how:<9} {format_seconds(self.seconds):>10}  "
            f"{scaled(self.nbytes):>7}B  {scaled(self.rate):>7}flop/s  "
            f"{self.intensity:8.3g} per byte  {self.share:4.0%} of the roof{above}"
        )


@suggests()
@dataclass(frozen=True)
class Chart:
    """The ceilings of a device and programs below them."""

    target: str
    ceilings: Ceilings
    points: tuple[Point, ...]

    @property
    def contradicted(self) -> bool:
        """True when something was measured to be faster than a measured roof allows."""
        limits = self.ceilings
        return limits.measured and any(p.measured and 0 < p.gap < 1 for p in self.points)

    def below(self, limits: Ceilings) -> Chart:
        """The same programs below other ceilings of the same machine, of each the higher one."""
        higher = self.ceilings.higher(limits)
        points = (replace(p, least=higher.seconds(p.flops, p.nbytes, p.dtype)) for p in self.points)
        return replace(self, ceilings=higher, points=tuple(points))

    def ridges(self) -> dict[str, float]:
        """Operations for each byte at which memory and arithmetic take as long, by type."""
        types = dict.fromkeys(point.dtype for point in self.points)
        return {dtype: self.ceilings.ridge(dtype) for dtype in types}

    def save(self, path: str | Path) -> Path:
        """Draw it, or write its numbers.

        Args:
            path: a file that ends in .svg, .png or .pdf; in .json or .txt for the numbers.

        Returns:
            The path.

        Raises:
            TuneError: another ending, no matplotlib, or a file that cannot be written.
        """
        drawn = dict.fromkeys(FORMATS, self._draw)
        json_text, plain = saving.text(self.to_json), saving.text(lambda: f"{self}\n")
        writers = {**drawn, ".json": json_text, ".txt": plain}
        return saving.save(path, "the roofline", writers, TuneError)

    def _draw(self, path: Path) -> None:
        check_plot(path)
        _figure(self).savefig(path, dpi=130)

    def to_json(self) -> str:
        """All of it as one JSON object."""
        rows = [
            {
                **asdict(p),
                "intensity": p.intensity,
                "rate": p.rate,
                "gap": p.gap,
                "share": p.share,
            }
            for p in self.points
        ]
        limits = json.loads(self.ceilings.to_json())
        return json.dumps(
            {"target": self.target, "ceilings": limits, "ridges": self.ridges(), "points": rows}
        )

    def _repr_svg_(self) -> str:
        check_plot(Path("chart.svg"))
        text = io.StringIO()
        _figure(self).savefig(text, format="svg")
        return text.getvalue()

    def __str__(self) -> str:
        limits = self.ceilings
        how = "measured" if limits.measured else "data sheet"
        head = f"{limits.device} ({how}): {scaled(limits.bandwidth)}B/s"
        peaks = ", ".join(f"{name} {scaled(rate)}flop/s" for name, rate in limits.flops.items())
        ridges = ", ".join(f"{n} at {at:.3g} per byte" for n, at in self.ridges().items())
        return "\n".join([head, f"products: {peaks}", f"ridge: {ridges}", *map(str, self.points)])


def roofline(
    what: Explainable | Mapping[str, Explainable],
    target: str | Target | None = None,
    *,
    measure: bool | None = None,
    unfused: bool = True,
    sizes: Mapping[str, int] | None = None,
    fresh: bool = False,
) -> Chart:
    """Programs beside what the machine can do at most.

    Args:
        what: a schedule, a kernel, tensors, or several of these by name: `{"manual": s,
            "automatic": te.autotune(D)}`.
        target: as for `te.build`; that of the first kernel by default.
        measure: run the kernels too; by default where the target is here.
        unfused: also the first of them with every stage a kernel of its own.
        sizes: values of runtime sizes, by name; 1024 by default.
        fresh: measure the ceilings again, whatever is known of them.

    Returns:
        The chart: print it, `save("roofline.svg")`, or read `.points` and `.ceilings`.  Ceilings
        are measured once for each machine and kept; a program that is measured above them shows
        that the machine was busy then, and they are measured again.

    Raises:
        BackendError: what `te.build`, `te.explain` and the first call of a kernel refuse.
    """
    given = what if isinstance(what, Mapping) else {"fused": what}
    where = _target(given, target)
    limits = ceilings(where, fresh=fresh)
    runs = limits.measured if measure is None else measure
    points: list[Point] = []
    calls: dict[str, Callable[[], object]] = {}
    for number, (name, each) in enumerate(given.items()):
        kernel = each if isinstance(each, Kernel) else build(cast("Any", each), target=where)
        found = explain(kernel, sizes=sizes)
        dtype = _dtype(kernel.module)
        if number == 0 and unfused and found.unfused is not None:
            whole = UNFUSED if UNFUSED not in given else f"{UNFUSED}, by the rules"
            points.append(_unfused_point(whole, found, dtype, limits))
            if runs:
                calls |= _unfused_calls(kernel, found, where)
        points.append(_point(name, found.nbytes, found.flops, found.seconds, dtype, limits, False))
        if runs:
            calls[name] = calls_of(kernel, found.sizes)
    taken = times(calls, where.kind is TargetKind.CUDA) if calls else {}
    measured = {name: stats.median for name, stats in taken.items() if name in given}
    parts = [stats.median for name, stats in taken.items() if name not in given]
    if parts:
        measured[points[0].name] = sum(parts)
    chart = Chart(str(where), limits, tuple(_with_measured(points, measured)))
    return chart.below(ceilings(where, fresh=True)) if chart.contradicted else chart


def _target(given: Mapping[str, Explainable], target: str | Target | None) -> Target:
    if target is not None:
        return Target.parse(target)
    kernels = [each.target for each in given.values() if isinstance(each, Kernel)]
    return kernels[0] if kernels else default_target()


def _point(
    name: str,
    nbytes: int,
    flops: int,
    seconds: float,
    dtype: str,
    limits: Ceilings,
    measured: bool,
) -> Point:
    least = limits.seconds(flops, nbytes, dtype)
    return Point(name, nbytes, flops, seconds, least, dtype, measured)


def _unfused_point(name: str, found: Explanation, dtype: str, limits: Ceilings) -> Point:
    other = found.unfused
    assert other is not None
    return _point(name, other.nbytes, other.flops, other.seconds, dtype, limits, False)


def _unfused_calls(
    kernel: Kernel, found: Explanation, target: Target
) -> dict[str, Callable[[], object]]:
    """A call of each stage as a program of its own."""
    schedule = kernel.schedule
    stages = initial_plan(schedule.definition).stages if isinstance(schedule, Schedule) else ()
    made: dict[str, Callable[[], object]] = {}
    for stage in stages:
        if isinstance(stage.op, ComputeOp):
            single = build(alone([stage.op])[0][0], target=target)
            names = {var.name for var in single.module.sizes}
            own = {name: value for name, value in found.sizes.items() if name in names}
            made[f"{UNFUSED} {stage.name}"] = calls_of(single, own)
    return made


def _with_measured(points: Sequence[Point], measured: Mapping[str, float]) -> Iterator[Point]:
    """Each predicted point, followed by the measured one of the same program."""
    for point in points:
        yield point
        if point.name in measured:
            yield Point(
                point.name, point.nbytes, point.flops, measured[point.name], point.least,
                point.dtype, True,
            )  # fmt: skip


def _dtype(module: Module) -> str:
    """The type whose ceiling counts for a program."""
    for func in module.funcs:
        for stmt in walk_stmts(func.body):
            if isinstance(stmt, Dot):
                wide = stmt.lhs.dtype.value
                return TF32 if wide == "float32" and stmt.precision is not Precision.IEEE else wide
    floats = [b.dtype.value for b in module.outputs if b.dtype.is_float and b.dtype.bits >= 32]
    return floats[0] if floats else "float32"


# The picture.


def _figure(chart: Chart) -> Any:
    figure = empty_figure(1)
    axes: Any = figure.axes[0]
    limits, points = chart.ceilings, [p for p in chart.points if p.flops and p.nbytes]
    ridges = chart.ridges() or {"float32": limits.ridge("float32")}
    across = [*(p.intensity for p in points), *ridges.values()]
    left, right = min(across) / 4, max(across) * 4
    for dtype, ridge in ridges.items():
        line = [left, ridge, right]
        heights = [min(limits.peak(dtype), x * limits.bandwidth) / 1e9 for x in line]
        axes.plot(line, heights, color=ROOF, linewidth=1.6, zorder=2)
        axes.plot([ridge], [heights[1]], marker="o", markersize=4, color=ROOF, zorder=3)
        axes.annotate(
            f"{dtype}: {scaled(limits.peak(dtype))}flop/s, ridge {ridge:.3g}",
            (right, heights[2]), textcoords="offset points", xytext=(-2, 4), ha="right",
            fontsize=7, color=ROOF,
        )  # fmt: skip
    axes.annotate(
        f"copy: {scaled(limits.bandwidth)}B/s", (left, left * limits.bandwidth / 1e9),
        textcoords="offset points", xytext=(16, 0), fontsize=7, color=ROOF,
    )  # fmt: skip
    _draw_points(axes, points)
    axes.set_xscale("log")
    octaves(axes)
    rates = [p.rate / 1e9 for p in points]
    top = max([limits.peak(dtype) / 1e9 for dtype in ridges] + rates)
    bottom = min([left * limits.bandwidth / 1e9, *rates])
    axes.set_ylim(bottom / 2, 10 ** (math.log10(top) + 0.3))
    axes.set_xlim(left, right)
    axes.set_title(f"roofline, {limits.device}", loc="left", fontsize=10, color=INK)
    axes.set_xlabel("operations for each byte of device memory", fontsize=9, color=INK)
    axes.set_ylabel("Gflop/s", fontsize=9, color=INK)
    axes.grid(True, which="major", color="#e6e9ee", linewidth=0.6, zorder=0)
    figure.legend(fontsize=7, frameon=False, loc="outside lower center", ncols=2)  # over no point
    return figure


def _draw_points(axes: Any, points: Sequence[Point]) -> None:
    """A colour for each program; measured points are filled, and a line down from the roof is the
    gap of each."""
    names = list(dict.fromkeys(point.name for point in points))
    for point in points:
        colour = MUTED if point.name == UNFUSED else COLOURS[names.index(point.name) % len(COLOURS)]
        how = "measured" if point.measured else "predicted"
        axes.vlines(
            [point.intensity], [point.rate / 1e9], [point.flops / point.least / 1e9],
            color=colour, linewidth=0.8, linestyle=":", zorder=3,
        )  # fmt: skip
        share = f"{point.share:.0%} of the roof"
        axes.scatter(
            [point.intensity], [point.rate / 1e9],
            marker="o" if point.measured else "s", s=40,
            facecolors=colour if point.measured else "white", edgecolors=colour, zorder=5,
            label=f"{point.name}, {how}: {format_seconds(point.seconds)}, {share}",
        )  # fmt: skip
