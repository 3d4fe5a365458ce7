"""Measure tedsl against its peers, in one run: `python tests/benchmarks/run.py --target cpu|cuda`.

    python tests/benchmarks/run.py --target cuda --seconds-total 1200    all rows, at most so long
    python tests/benchmarks/run.py --target cuda --class rows --quick    one class, a quick look
    python tests/benchmarks/run.py --target cuda --class rows --update   one class, others kept
    python tests/benchmarks/run.py --target cuda --tune --seconds 40 --only GEMM   search some, keep
    python tests/benchmarks/run.py --check      build and run small sizes, without GPU and PyTorch
    python tests/benchmarks/run.py --static     compile real sizes for sm_90, without a GPU
    python tests/benchmarks/run.py --table      only write the tables and the chart again

Every row runs in a child process that may hang or die.  Outputs are verified first; then all
candidates are timed in turn (medians, L2 flushed on the GPU).  The result is written after each row
to `results/<target>.json`, `results/check.json` or `results/static_sm_90.json`.  Winners of
searches are kept in `records/<target>.lock`; rows that have one there are measured with it, all
others with the default schedule of the rules.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import suite
import summary
import tables
from runner import Plan, Row, Runner
from workload import Workload

HERE = Path(__file__).parent
RESULTS = HERE / "results"
STATIC = "static_sm_90"
TOOLS = ("tedsl", "numpy", "llvmlite", "triton", "torch")
NO_GPU = "no GPU"
"""What stands for the name of a device where there is none."""
SHARE = 0.7
"""Of the processors, that children which compile may use."""
SEARCH = 300.0
"""Seconds that a search may take for which none are given."""


def main() -> None:
    """Parse the options, run, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name contains one of")
    parser.add_argument("--class", dest="families", nargs="+", default=[], help="of these classes")
    parser.add_argument("--rows", type=int, default=0, help="at most so many of each class")
    parser.add_argument("--quick", action="store_true", help="few samples, no torch.compile")
    parser.add_argument("--seconds-total", type=float, default=None, help="end after so long")
    parser.add_argument("--jobs", type=int, default=0, help="child processes at a time")
    parser.add_argument("--devices", type=int, default=1, help="GPUs to spread the rows over")
    parser.add_argument("--prepare", type=float, default=300.0, help="seconds to compile a row")
    parser.add_argument("--measure", type=float, default=30.0, help="seconds to measure a row")
    parser.add_argument("--check", action="store_true", help="run small sizes against NumPy")
    parser.add_argument("--check-target", default="", help="cpu or triton-interpret")
    parser.add_argument("--static", action="store_true", help="compile for sm_90, run nothing")
    parser.add_argument("--tune", action="store_true", help="search and keep, measure nothing")
    parser.add_argument("--trials", type=int, default=0, help="search so many candidates a row")
    parser.add_argument("--seconds", type=float, default=None, help="search so long a row")
    parser.add_argument("--records", type=Path, default=HERE / "records", help="winners kept")
    parser.add_argument("--update", action="store_true", help="keep what is known of other rows")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="what is measured, where git cannot tell")
    parser.add_argument("--table", action="store_true", help="only write the tables and the chart")
    parser.add_argument("--suite", default="suite", help="the module that has the rows")
    options = parser.parse_args()
    failed = 0
    if not options.table:
        failed = run(options)
    if options.out == RESULTS and not (options.check or options.static or options.tune):
        tables.write(RESULTS)
    sys.exit(1 if failed else 0)


def run(options: argparse.Namespace) -> int:
    """Every chosen row; returns how many of a check failed."""
    mode = mode_of(options)
    chosen: Any = importlib.import_module(options.suite)
    everything: list[Workload] = chosen.workloads()
    target = options.target if mode in ("measure", "tune") else "cuda"
    rows = suite.chosen(everything, target, options.only, options.families)
    if mode == "check":
        rows += suite.chosen(everything, "cpu", options.only, options.families)
    rows = suite.in_turn(limited(rows, options.rows))
    names = {"check": "check", "static": STATIC, "measure": target, "tune": f"tuned_{target}"}
    path = options.out / f"{names[mode]}.json"
    where = machine(mode, target, options.commit)
    if options.devices > 1:
        where["devices"] = str(options.devices)
    before: dict[str, Any] = {"rows": []}
    if options.update and mode == "measure":
        before = known(path, where)
    report = Report(path, mode, rows, where, before)
    runner = Runner(plan_of(options, mode), report.add)
    report.end(runner.run([load.name for load in rows]))
    return report.failed if mode == "check" else 0


def known(path: Path, where: dict[str, str]) -> dict[str, Any]:
    """What a file says of rows that were measured before, each with the commit of that time.

    Raises:
        SystemExit: there is no such file, or it is of another device or other tools.
    """
    if not path.exists():
        sys.exit(f"--update: there is no {path}; measure all rows first, without --update")
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = before["machine"]
    differs = [n for n in ("gpu", "cpu", *TOOLS) if n != "tedsl" and found.get(n) != where.get(n)]
    if differs:
        said = ", ".join(f"{n} {found.get(n)} there, {where.get(n)} here" for n in differs)
        sys.exit(f"--update: {path} cannot hold both ({said}); measure all rows, without --update")
    for row in before["rows"]:
        row.setdefault("commit", found["commit"])
    return before


def mode_of(options: argparse.Namespace) -> str:
    """The job of the children."""
    chosen = (name for name in ("check", "static", "tune") if getattr(options, name))
    return next(chosen, "measure")


def limited(rows: list[Workload], most: int) -> list[Workload]:
    """At most so many rows of each class; 0 for all."""
    counts: dict[str, int] = {}
    kept: list[Workload] = []
    for load in rows:
        family = suite.family_of(load)
        counts[family] = counts.get(family, 0) + 1
        if not most or counts[family] <= most:
            kept.append(load)
    return kept


def plan_of(options: argparse.Namespace, mode: str) -> Plan:
    """How the children are run."""
    cores = len(os.sched_getaffinity(0))
    several = options.target == "cuda" and mode in ("measure", "tune")
    most = max(1, int(SHARE * cores)) if mode == "measure" else 2 * options.devices
    jobs = options.jobs or (most if several else 1)
    settings: dict[str, Any] = {
        "quick": options.quick,
        "trials": options.trials,
        "seconds": options.seconds,
        "records": str(options.records),
        "devices": options.devices,
        "target": options.check_target or "triton-interpret",
    }
    # A child compiles by itself: rows beside each other keep the processors busy, and a child that
    # is killed leaves nothing behind.
    variables = {"TORCHINDUCTOR_COMPILE_THREADS": "1"} if options.target == "cuda" else {}
    return Plan(
        mode=mode,
        settings=settings,
        suite=options.suite,
        jobs=jobs,
        prepare=options.prepare,
        measure=options.measure + (options.seconds or SEARCH if mode == "tune" else 0.0),
        seconds=options.seconds_total,
        devices=[str(n) for n in range(options.devices)] if options.devices > 1 else (),
        variables=variables,
    )


class Report:
    """What has been found so far, on disk after each row."""

    def __init__(
        self,
        path: Path,
        mode: str,
        rows: list[Workload],
        machine: dict[str, str],
        before: dict[str, Any],
    ) -> None:
        self._path = path
        self._mode = mode
        self._loads = {load.name: load for load in rows}
        self._rows: dict[str, Row] = {row["name"]: row for row in before["rows"]}
        self._order = list(dict.fromkeys([*self._rows, *self._loads]))
        self._earlier: float = before.get("seconds", 0.0)
        self._machine = machine
        self._begin = time.monotonic()

    @property
    def failed(self) -> int:
        """Rows that failed."""
        return sum("failed" in row for row in self._rows.values())

    def add(self, row: Row) -> None:
        """Keep a row, with its ratios to the bars."""
        load = self._loads[row["name"]]
        row = {"class": suite.family_of(load), **row, "line": load.line}
        if "times" in row:
            row |= {"bars": summary.bars(load, row["times"]), "commit": self._machine["commit"]}
        self._rows[load.name] = row
        self._write([])
        print(f"{time.monotonic() - self._begin:6.0f} s {line(row)}", flush=True)

    def end(self, left: list[str]) -> None:
        """Say how it went."""
        self._write(left)
        rows = list(self._rows.values())
        failed = [row["name"] for row in rows if "failed" in row]
        print(f"{len(rows)} rows, {len(failed)} failed, {len(left)} without time: {self._path}")
        if self._mode == "static":
            print(tables.static_table({"rows": rows}))
        elif self._mode == "measure":
            print(tables.summary_table(summary.lines(rows)))

    def _write(self, left: list[str]) -> None:
        rows = [self._rows[name] for name in self._order if name in self._rows]
        found: dict[str, Any] = {"machine": self._machine, "rows": rows, "left_out": left}
        if self._mode == "measure":
            found["summary"] = summary.lines(rows)
        found["seconds"] = round(self._earlier + time.monotonic() - self._begin, 1)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)


def line(row: Row) -> str:
    """One row as text."""
    if "failed" in row or "lacks" in row:
        return f"{row.get('lacks', 'FAILED'):6} {row['name']}: {row.get('failed', 'lacking')}"
    if "times" in row:
        times = ", ".join(f"{k} {v['ms']:.4f}" for k, v in row["times"].items())
        bars = ", ".join(f"{b['peer']} {b['got']:.2f} (>= {b['ratio']})" for b in row["bars"])
        verdict = "ok" if all(b["met"] for b in row["bars"]) else "MISSED"
        return f"{verdict:6} {row['name']}: {times} ms | {bars} | {row['how']}"
    if "tuned" in row:
        found = row["tuned"]
        times = f"{found['default_us']} -> {found['winner_us']} us"
        return f"tuned  {row['name']}: {times}, {found['measured']} in {found['seconds']} s"
    if "error" in row:
        return f"ok     {row['name']}: error {row['error']:.1e}, {row['kernels']} kernels"
    remarks = "; ".join(row.get("remarks", [])) or "nothing against it"
    return f"ok     {row['name']}: {remarks}"


def machine(mode: str, target: str, commit: str) -> dict[str, str]:
    """What the figures were taken on."""
    found = {name: installed(name) for name in TOOLS}
    where = {"python": platform.python_version(), "commit": commit or current(), **found}
    if mode in ("measure", "tune") and target == "cuda":
        where["gpu"] = gpu_name()
    elif mode != "static":
        where["cpu"] = cpu_name()
    return where


def current() -> str:
    """The commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return "unknown"
    return done.stdout.strip() or "unknown"


def gpu_name() -> str:
    """Asked in another process: this one never touches the device."""
    code = "import torch; print(torch.cuda.get_device_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or NO_GPU


def installed(name: str) -> str:
    """A package's version, or what is missing."""
    try:
        return version(name)
    except ImportError:
        return "not installed"


def cpu_name() -> str:
    """The processor and its number of usable cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    return f"{model or platform.machine()}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    main()
