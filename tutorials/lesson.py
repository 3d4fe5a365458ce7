"""What the tutorials share: options, a check before every clock, one table, one picture.

A tutorial begins with `lesson = Lesson.begin(__doc__)`, which reads the command line:

    --target cpu               NumPy arrays, times, the search (the default)
    --target cuda              the same on an NVIDIA GPU; needs PyTorch
    --target triton-interpret  the GPU schedules in Triton's interpreter: results, no times
    --target cuda:sm_90        the GPU schedules compiled at full size, no GPU: registers, spills

and then asks it for sizes (`lesson.size`), kernels (`lesson.build`, `lesson.search`) and the
comparison (`lesson.compare`), in which every candidate must agree with NumPy before it is timed,
and all of them are timed in turn on one clock.  Figures in a tutorial's text are those of the run.
Imports the public names of tedsl and its timing; matplotlib and PyTorch where they are there.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

import tedsl as te
from tedsl.devices import ARCHITECTURES
from tedsl.packages import install
from tedsl.runtime.timing import Stats, compare, compare_cuda, format_seconds, measure

Arrays = Sequence[Any]
Reference = Callable[..., Any]
"""Takes the inputs as float32 arrays (integers stay) and returns the result or a tuple of them."""
console = Console(highlight=False, markup=False, width=112)
DISTURBED = 0.1
"""Spread of the samples of a time from which on the machine was busy with something else, as in the
benchmark."""
BUSY = 2
"""Programs for each core from which on times say little, however near to each other they are."""
TOLERANCE = {"float32": 2e-4, "float16": 1e-2, "bfloat16": 4e-2}


def installed(name: str) -> bool:
    """True where a package that a tutorial can do without is there."""
    return importlib.util.find_spec(name) is not None


def spread_text(stats: Stats) -> str:
    """The spread of samples, marked where the machine was busy."""
    return f"{stats.spread:.0%}{' disturbed' * (stats.spread > DISTURBED)}"


def told_of_spread(every: Iterable[Stats]) -> None:
    """Say so where times were disturbed."""
    if any(stats.spread > DISTURBED for stats in every):
        print("Your machine was busy: rows marked as disturbed say little, run it again.")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY * cores:
        print(f"{load:.0f} programs shared {cores} cores: no time here says much.")


def title(text: str) -> None:
    """A heading in the output."""
    print(f"\n--- {text} {'-' * (94 - len(text))}")


def table(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text; the first column to the left, the others to the right."""
    lines = Table(title=heading, title_justify="left")
    for place, column in enumerate(columns):
        lines.add_column(column, justify="right" if place else "left")
    for row in rows:
        lines.add_row(*row)
    console.print(lines)


def size_text(nbytes: float) -> str:
    """Bytes in the unit that suits them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


# --- arrays ---------------------------------------------------------------------------------


def to_torch(array: Any, device: str) -> Any:
    """A NumPy array of any dtype, bfloat16 included, as a tensor on a device."""
    torch: Any = importlib.import_module("torch")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def wide(array: Any) -> Any:
    """A NumPy array wherever the data was; 16-bit floats as float32."""
    if isinstance(array, np.generic):
        array = np.asarray(array)
    if not isinstance(array, np.ndarray):
        array = array.detach().cpu()
        array = (array.float() if array.is_floating_point() else array).numpy()
    narrow = array.dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
    return array.astype(np.float32) if narrow else array


def several(results: Any) -> tuple[Any, ...]:
    """One result or many, as a tuple."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def check(name: str, got: Any, wanted: Any, tolerance: float) -> None:
    """Each result equal up to rounding, relative to the element and to a typical one.

    Raises:
        AssertionError: some element is off by more than `tolerance`, is NaN, or is missing.
    """
    pairs = list(zip(several(got), several(wanted), strict=True))
    for place, (mine, right) in enumerate(pairs):
        where = f"{name}, result {place}" if len(pairs) > 1 else name
        found, exact = wide(mine), wide(right)
        assert found.shape == exact.shape, f"{where}: {found.shape}, not {exact.shape}"
        if not found.size:
            continue
        typical = float(np.sqrt(np.mean(np.square(exact, dtype=np.float64)))) or 1.0
        error = float((np.abs(found - exact) / (np.abs(exact) + typical)).max())
        assert error <= tolerance, f"{where}: off by {error:.2g}, {tolerance:.2g} is allowed"


class _Counted(np.ndarray[Any, Any]):
    """An array whose ufuncs add up the bytes of what they read and write."""

    moved = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        def plain(value: Any) -> Any:
            return value.view(np.ndarray) if isinstance(value, _Counted) else value

        if "out" in kwargs:
            kwargs["out"] = tuple(plain(array) for array in kwargs["out"])
        given = [plain(value) for value in inputs]
        result = getattr(ufunc, method)(*given, **kwargs)
        arrays = [value for value in (*given, result) if isinstance(value, np.ndarray)]
        _Counted.moved += sum(array.nbytes for array in arrays)
        return result.view(_Counted) if isinstance(result, np.ndarray) else result


def bytes_of_numpy(function: Reference, arrays: Arrays) -> int:
    """Bytes that the ufuncs of one call read and write; products, copies and gathers are no ufuncs
    and are not counted."""
    _Counted.moved = 0
    function(*(array.view(_Counted) for array in arrays))
    return _Counted.moved


# --- one comparison -------------------------------------------------------------------------


def asked_of_gpu(heading: str, kernels: Mapping[str, te.Kernel], target: str) -> None:
    """A table of what each kernel, compiled for a GPU that need not be there, asks of it."""
    lines: list[tuple[str, ...]] = []
    for name, kernel in kernels.items():
        for part, info in kernel.resources.items():
            asked = (info.registers, info.stack, info.shared, info.num_warps)
            lines.append((name, part, *map(str, asked)))
    columns = ("schedule", "kernel", "registers", "spilled bytes", "shared bytes", "warps")
    table(f"{heading}, compiled for {target}", columns, lines)


@dataclass(frozen=True)
class Row:
    """One candidate: its time, and, where tedsl built it, what it moves and computes."""

    name: str
    stats: Stats
    kernels: int | None = None
    nbytes: int | None = None
    flops: int | None = None

    @property
    def seconds(self) -> float:
        """Median seconds of a call."""
        return self.stats.median


@dataclass(frozen=True)
class Comparison:
    """Candidates timed in one run.  Empty (and then false) where nothing is measured."""

    heading: str
    rows: Mapping[str, Row]
    base: str
    least_bytes: int
    least_flops: int
    pictures: Path

    def __bool__(self) -> bool:
        return bool(self.rows)

    def speedup(self, name: str, over: str | None = None) -> float:
        """How many times faster `name` was than `over` (the base)."""
        return self.rows[over or self.base].seconds / self.rows[name].seconds

    def fastest(self) -> str:
        """The fastest that tedsl built."""
        ours = [row for row in self.rows.values() if row.kernels is not None]
        return min(ours, key=lambda row: row.seconds).name

    def print(self, rates: str = "GB/s") -> None:
        """The table.  `rates` is "GB/s" or "Gflop/s": what the kernels move or do, as counted.

        A peer is taken to do as few operations as the best kernel; its bytes are not known.
        """
        if not self:
            return
        columns = ("schedule", "kernels", "moves", "of least", "time", "spread", rates,
                   f"vs {self.base}")  # fmt: skip
        lines = [self._line(row, rates) for row in self.rows.values()]
        table(self.heading, columns, lines)
        told_of_spread(row.stats for row in self.rows.values())

    def _line(self, row: Row, rates: str) -> tuple[str, ...]:
        moved = ("", "", "")
        if row.nbytes is not None:
            count = "" if row.kernels is None else str(row.kernels)
            moved = (count, size_text(row.nbytes), f"{row.nbytes / self.least_bytes:.2f}x")
        done = row.nbytes if rates == "GB/s" else row.flops or self.least_flops
        rate = "" if not done else f"{done / row.seconds / 1e9:.3g}"
        spent = row.seconds * 1e3  # one unit for all rows, to compare at a glance
        time_text = f"{spent:.0f} ms" if spent >= 100 else f"{spent:.3g} ms"
        gain = f"{self.speedup(row.name):.2f}x"
        return (row.name, *moved, time_text, spread_text(row.stats), rate, gain)

    def draw(self, name: str) -> None:
        """Bars of time and of bytes, as `name`.png in the folder of pictures."""
        if not self:
            return
        ours = [row for row in self.rows.values() if row.nbytes is not None]
        built = [row.seconds for row in self.rows.values() if row.kernels is not None]
        shown = [row for row in self.rows.values() if row.seconds <= max(6 * min(built), *built)]
        beyond = [
            f"{r.name} {format_seconds(r.seconds)}" for r in self.rows.values() if r not in shown
        ]
        label = "time of a call" + (f"\n(off the scale: {', '.join(beyond)})" if beyond else "")
        panels = [times_of({row.name: row.stats for row in shown}, label)]
        if len({row.nbytes for row in ours}) > 1:
            moved = [(row.name, float(row.nbytes or 0)) for row in ours]
            label = "bytes moved\n(dotted: every input and output once)"
            panels.append(Panel(label, moved, size_text, self.least_bytes))
        bars(self.pictures / f"{name}.png", self.heading, panels)


# --- pictures -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """One group of bars: its label, named values, their text, a line at the least possible, how far
    samples are from each value."""

    label: str
    values: Sequence[tuple[str, float]]
    text: Callable[[float], str] = format_seconds
    least: float | None = None
    doubt: Sequence[float] = ()


def times_of(every: Mapping[str, Stats], label: str = "time of a call") -> Panel:
    """Bars of times with half the interquartile range of their samples to both sides; what was
    disturbed is named so."""
    names = [n + "\n(disturbed)" * (s.spread > DISTURBED) for n, s in every.items()]
    doubt = [stats.median * stats.spread for stats in every.values()]
    values = [stats.median for stats in every.values()]
    return Panel(label, list(zip(names, values, strict=True)), doubt=doubt)


def bars(path: Path, heading: str, panels: Sequence[Panel]) -> None:
    """Draw horizontal bars, a panel beside the other, and save them; without matplotlib say so."""
    if not installed("matplotlib"):
        print(f"no picture: {install('matplotlib')}")
        return
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    height = 1.4 + 0.34 * max(len(panel.values) for panel in panels)
    figure, every = pyplot.subplots(
        1, len(panels), figsize=(5.5 * len(panels), height), layout="constrained", squeeze=False
    )
    figure.suptitle(heading, fontsize=11)
    for axes, panel in zip(every[0], panels, strict=True):
        names = [name for name, _ in panel.values]
        values = [value for _, value in panel.values]
        shades = ["0.75" if name.split("\n")[0] in PEERS else "0.35" for name in names]
        around = {"xerr": panel.doubt, "ecolor": "tab:orange"} if panel.doubt else {}
        drawn = axes.barh(names, values, color=shades, height=0.65, **around)
        axes.bar_label(drawn, [panel.text(value) for value in values], padding=3, fontsize=9)
        if panel.least is not None:
            axes.axvline(panel.least, color="tab:orange", linewidth=1.5, linestyle=":")
        axes.set_xlabel(panel.label)
        axes.set_xlim(0, 1.25 * max(values))
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.tick_params(left=False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"picture: {path}")


# --- one lesson -----------------------------------------------------------------------------

NUMPY, TORCH = "NumPy", "PyTorch eager"
NUMPY_ELSEWHERE = "NumPy (on the CPU)"
PEERS = (NUMPY, TORCH, NUMPY_ELSEWHERE)
QUICK_ENOUGH = 1.0
"""Seconds up to which NumPy is timed again beside a GPU, and not only while it makes the results
that all others are compared with."""


TARGETS = ("cpu", "cuda", "triton-interpret", *(f"cuda:{arch}" for arch in ARCHITECTURES))


@dataclass
class Lesson:
    """One run of a tutorial: where it runs, how long it may take, where its pictures go."""

    target: str
    quick: bool
    trials: int
    seconds: float
    pictures: Path
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    began: float = field(default_factory=time.perf_counter)

    @staticmethod
    def begin(doc: str | None, targets: Sequence[str] = TARGETS) -> Lesson:
        """Read the command line; `doc` is the tutorial's own docstring."""
        parser = argparse.ArgumentParser(description=(doc or "").strip().partition("\n")[0])
        parser.add_argument("--target", choices=targets, default="cpu", help="see lesson.py")
        parser.add_argument("--quick", action="store_true", help="small sizes, short searches")
        parser.add_argument("--trials", type=int, default=16, help="candidates of each search")
        parser.add_argument("--seconds", type=float, default=30.0, help="time of each search")
        parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder of pictures")
        given = parser.parse_args()
        if given.target == "cuda" and not installed("torch"):
            parser.error(f"--target cuda needs PyTorch: {install('torch')}")
        trials = min(given.trials, 2) if given.quick else given.trials
        return Lesson(given.target, given.quick, trials, given.seconds, given.out)

    @property
    def gpu(self) -> bool:
        """True when the schedules are those for a GPU: program axes and block axes."""
        return self.target != "cpu"

    @property
    def measured(self) -> bool:
        """True where times mean something."""
        return self.target in ("cpu", "cuda")

    @property
    def runs(self) -> bool:
        """True where kernels run, and not only compile."""
        return self.measured or self.target == "triton-interpret"

    @property
    def dtype(self) -> str:
        """What matrices are made of where the lesson is about products: bfloat16 on a GPU."""
        return "bfloat16" if self.target.startswith("cuda") else "float32"

    def size(self, cpu: int, cuda: int, quick: int) -> int:
        """An extent: for the CPU, for a GPU, and for a quick or an interpreted run."""
        if self.quick or self.target == "triton-interpret":
            return quick
        return cpu if self.target == "cpu" else cuda

    def normal(self, *shape: int, dtype: str = "float32", scale: float = 1.0) -> Any:
        """Random numbers, as a NumPy array of that dtype (rounded from float32); zeros that take no
        memory where nothing runs."""
        wanted = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        if not self.runs:
            return np.broadcast_to(np.zeros((), wanted), shape)
        drawn = self.random.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        return drawn.astype(wanted)

    def build(self, computed: te.Schedule | te.Tensor | Sequence[te.Tensor]) -> te.Kernel:
        """A kernel for the target: of a schedule, or of tensors by the default rules."""
        return te.build(computed, self.target)

    def search(
        self,
        outputs: te.Tensor | Sequence[te.Tensor],
        schedule: Callable[[te.Schedule], object] | None = None,
        name: str = "search",
    ) -> dict[str, te.Kernel]:
        """The kernel that a short search finds, under `name`; nothing where nothing is measured."""
        if not self.measured:
            return {}
        found = te.autotune(
            outputs,
            self.target,
            schedule=schedule,
            trials=self.trials,
            seconds=self.seconds,
            candidate_seconds=120.0,  # one that hangs is rare; a machine that is busy is not
        )
        if found.tuning is not None and not found.tuning.replayed and not found.tuning.tried:
            print(f"The {name} tried nothing in {self.seconds:g} s: this is the default schedule.")
            name = f"{name}: 0 tried, the default"
        return {name: found}

    def compare(
        self,
        heading: str,
        kernels: Mapping[str, te.Kernel],
        arrays: Arrays,
        numpy: Reference,
        torch: Reference | None = None,
        base: str = "unfused",
        tolerance: float | None = None,
        repeats: int | None = None,
        count: bool = False,
        others: Mapping[str, Reference] | None = None,
    ) -> Comparison:
        """Check every kernel against NumPy, then time all in turn.

        A kernel writes its results where those of the check are (`out=`), as in a program that
        calls it again and again: the first touch of fresh memory costs the operating system more
        than many a kernel here takes.  NumPy and PyTorch allocate as they do.

        Args:
            heading: what is computed, for the table and the picture.
            kernels: what tedsl built, by name.
            arrays: the inputs, as NumPy arrays of the dtypes that the kernels take.
            numpy: the same computation; it gets the inputs as float32.
            torch: the same in PyTorch, timed and checked where that is installed.
            base: the candidate that others are compared with.
            tolerance: what rounding may do; by default that of the narrowest input.
            repeats: samples of each.
            count: count the bytes of NumPy's ufuncs as well.
            others: more peers that take NumPy arrays, by name: checked and timed on the CPU.

        Raises:
            AssertionError: a candidate disagrees with NumPy.
        """
        if not self.runs:
            asked_of_gpu(heading, kernels, self.target)
            return Comparison(heading, {}, base, 1, 1, self.pictures)
        names = [str(array.dtype) for array in arrays]
        allowed = tolerance or max(TOLERANCE.get(name, 0.0) for name in names)
        here = [to_torch(a, "cuda") if self.target == "cuda" else a for a in arrays]
        exact = [wide(array) for array in arrays]
        wanted, alone = _clocked(numpy, exact)
        calls: dict[str, Callable[[], object]] = {}
        for name, kernel in kernels.items():
            results = kernel(*here)
            check(name, results, wanted, allowed)
            calls[name] = lambda kernel=kernel, out=results: kernel(*here, out=out)
        if not self.measured:
            print(f"{heading}: {', '.join(kernels)} agree with NumPy")
            return Comparison(heading, {}, base, 1, 1, self.pictures)
        self._peers(calls, arrays, exact, wanted, torch, others or {}, allowed)
        timed = self._time(calls, numpy, exact, alone, repeats)
        rows = {name: _row(name, stats, kernels) for name, stats in timed.items()}
        if count:
            where = NUMPY_ELSEWHERE if self.gpu else NUMPY
            rows[where] = replace(rows[where], nbytes=bytes_of_numpy(numpy, exact))
        costs = [kernel.explain() for kernel in kernels.values()]
        flops = min(cost.flops for cost in costs)
        return Comparison(heading, rows, base, costs[0].least_bytes, flops, self.pictures)

    def _peers(
        self,
        calls: dict[str, Callable[[], object]],
        arrays: Arrays,
        exact: Arrays,
        wanted: Any,
        torch: Reference | None,
        others: Mapping[str, Reference],
        allowed: float,
    ) -> None:
        """Add to what is timed the peers that are there and agree."""
        for name, peer in ({} if self.gpu else others).items():
            check(name, peer(*exact), wanted, allowed)
            calls[name] = lambda peer=peer: peer(*exact)
        if torch is not None and installed("torch"):
            there = [to_torch(a, "cuda" if self.gpu else "cpu") for a in arrays]
            check(TORCH, torch(*there), wanted, allowed)
            calls[TORCH] = lambda: torch(*there)

    def _time(
        self,
        calls: Mapping[str, Callable[[], object]],
        numpy: Reference,
        exact: Arrays,
        alone: Stats,
        repeats: int | None,
    ) -> dict[str, Stats]:
        """Time all in turn.  NumPy beside a GPU has the time `alone` of its one call for the check,
        or is timed by itself where that is quick."""
        many = repeats or (3 if self.quick else 50 if self.gpu else 40)
        if not self.gpu:
            everything = {**calls, NUMPY: lambda: numpy(*exact)}
            return compare(everything, repeats=many, max_seconds=5.0)
        if alone.median < QUICK_ENOUGH:
            alone = measure(lambda: numpy(*exact), repeats=3, warmup=0)
        timed = compare_cuda(calls, repeats=many, max_seconds=5.0)
        return {**timed, NUMPY_ELSEWHERE: alone}

    def compare_torch(
        self, heading: str, calls: Mapping[str, Callable[[], Any]], tolerance: float = 1e-3
    ) -> dict[str, float]:
        """Check calls that return PyTorch's tensors against the first one, then time all in turn.

        Args:
            heading: of the table.
            calls: what to call, by name.
            tolerance: what rounding may do.

        Returns:
            Seconds of each.

        Raises:
            AssertionError: a call disagrees with the first.
        """
        base, *_ = calls
        wanted = calls[base]()
        for name, call in calls.items():
            check(name, call(), wanted, tolerance)
        many = 3 if self.quick else 30
        timed = compare(calls, repeats=many, max_seconds=8.0)
        first = timed[base].median
        lines = [
            (name, f"{stats.median * 1e3:.3g} ms", spread_text(stats),
             f"{first / stats.median:.2f}x")
            for name, stats in timed.items()
        ]  # fmt: skip
        table(heading, ("call", "time", "spread", f"vs {base}"), lines)
        told_of_spread(timed.values())
        return {name: stats.median for name, stats in timed.items()}

    def done(self) -> None:
        """The closing line."""
        title(f"done in {time.perf_counter() - self.began:.0f} s")


def _clocked(function: Reference, arrays: Arrays) -> tuple[Any, Stats]:
    """What a function returns, and how long this one call took."""
    begin = time.perf_counter()
    found = function(*arrays)
    return found, Stats((time.perf_counter() - begin,))


def _row(name: str, stats: Stats, kernels: Mapping[str, te.Kernel]) -> Row:
    if name not in kernels:
        return Row(name, stats)
    cost = kernels[name].explain()
    return Row(name, stats, len(cost.kernels), cost.nbytes, cost.flops)
