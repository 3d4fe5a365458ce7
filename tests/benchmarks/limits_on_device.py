"""What limits the rows of the GPU benchmark that fall short, by the hardware's counters.

    python tests/benchmarks/limits_on_device.py --out FOLDER [--only NAME ...] [--seconds 400]
    python tests/benchmarks/limits_on_device.py --list      the rows, without a GPU
    python tests/benchmarks/limits_on_device.py --page      writes results/limits.md, without a GPU

Each row of `results/cuda.json` that is below a bar is built as the benchmark builds it, in two
child processes.  The first ones compile beside each other, and each times its row alone.  Of the
second ones, under Nsight Compute (`ncu`), some start beside each other; the device is used by one
at a time, for inputs, a first call, and one call whose kernels are counted.  Writes
FOLDER/limits.json after each row; as `results/limits_h200.json` it is what the page is made of.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import counters
import limits
import limits_page
import run
import suite
from bytes_on_device import find_ncu
from limited import Ended, run_limited
from runner import Plan, Row, Runner

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CHILD = 100.0
"""Seconds that one child under the profiler may take, waiting for the device included."""
ALONE = 40
"""Seconds that one may hold the device."""
BESIDE = 4
"""Children under the profiler at a time."""
QUERY = 30.0
"""Seconds for the profiler to say which metrics it knows."""
LEAST = 5.0
"""Seconds from which it is worth it to start a child."""
TAIL = 800


def main() -> int:
    """Measure and count, or list, or write the page, or be a child."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="where limits.json goes")
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name contains one of")
    parser.add_argument("--seconds", type=float, default=400.0, help="of the whole run")
    parser.add_argument("--jobs", type=int, default=0, help="children that compile at a time")
    parser.add_argument("--results", type=Path, default=RESULTS / "cuda.json")
    parser.add_argument("--records", type=Path, default=HERE / "records", help="winners kept")
    parser.add_argument("--commit", default="", help="what is measured, where git cannot tell")
    parser.add_argument("--list", action="store_true", help="only say which rows fall short")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.records)
        return 0
    if options.page:
        limits_page.write(RESULTS)
        return 0
    recorded = json.loads(options.results.read_text(encoding="utf-8"))
    rows = limits.named(limits.shortfalls(recorded), options.only)
    if options.list:
        for each in rows:
            print(f"{each.line.title}: {each.name}: {limits_page.bars_text(each)}")
        return 0
    if options.out is None:
        parser.error("--out FOLDER says where limits.json goes; --list and --page need none")
    if not rows:
        print(f"no row of {options.results} falls short with {options.only} in its name")
        return 1
    machine = run.machine("measure", "cuda", options.commit)
    if machine["gpu"] == run.NO_GPU:
        parser.error(
            f"PyTorch sees no GPU here (torch {machine['torch']}), and counting needs one: run it "
            "where there is one; --list and --page need none"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    return measured(rows, Report(options.out / "limits.json", rows, machine), options)


def measured(rows: Sequence[limits.Shortfall], report: Report, options: argparse.Namespace) -> int:
    """Time all, count all; returns 1 where a row was not counted."""
    end = time.monotonic() + options.seconds
    cores = len(os.sched_getaffinity(0))
    plan = Plan(
        mode="limits",
        settings={"records": str(options.records)},
        jobs=options.jobs or max(1, cores - 2),
        prepare=min(120.0, options.seconds / 2),
        measure=20.0,
        seconds=0.6 * options.seconds,
    )
    report.left_out = Runner(plan, report.add).run([each.name for each in rows])
    report.write()
    profiler = find_ncu()
    if profiler is None:
        report.note("ncu is not installed: nothing is counted")
        return 1
    asked, missing = counters.metrics(counters.known(profiler, QUERY))
    report.profiler = profiler
    report.note(*(f"this version of ncu does not know {name}" for name in missing))
    counting = Counting(profiler, asked, report, options, end)
    names = [name for name, row in report.rows.items() if "failed" not in row]
    again = counting.all_of(names, BESIDE)
    if again:  # what went wrong beside others may go well alone
        again = counting.all_of(again, 1)
    print(f"{len(rows)} rows, {len(again)} not counted: {options.out / 'limits.json'}")
    return 1 if again else 0


class Report:
    """What is known of the rows so far, on disk after each step."""

    def __init__(
        self, path: Path, rows: Sequence[limits.Shortfall], machine: dict[str, str]
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.left_out: list[str] = []
        self.profiler = ""
        self._machine = machine
        self._short = {each.name: each for each in rows}
        self._notes: list[str] = []
        self._path = path
        self._begin = time.monotonic()
        self._lock = threading.Lock()

    def add(self, row: Row) -> None:
        """A row with its floor and what was recorded of it."""
        short = self._short[row["name"]]
        floor = limits.floor_of(short.load)
        known = {
            "floor_ms": round(floor.ms, 5),
            "floor": floor.what,
            "recorded": [
                {"peer": m.peer, "asked": m.asked, "reached": m.reached, "ms": m.ours_ms,
                 "peer_ms": m.peer_ms}
                for m in short.missed
            ],
        }  # fmt: skip
        self.rows[row["name"]] = {**self.rows.get(row["name"], {}), **known, **row}
        self.write()
        self._say(self.rows[row["name"]])

    def counted(self, name: str, more: Row) -> None:
        """What the profiler said of a row."""
        with self._lock:
            row = self.rows[name]
            row.pop("not_counted", None)
            row |= more
            self.write()
            self._say(row)

    def note(self, *notes: str) -> None:
        """Something that concerns no row alone."""
        with self._lock:
            for note in notes:
                if note not in self._notes:
                    self._notes.append(note)
                    print(note, flush=True)
            self.write()

    def write(self) -> None:
        """All of it."""
        found = {
            "machine": self._machine,
            "ncu": self.profiler or "not found",
            "rows": [self.rows[name] for name in self._short if name in self.rows],
            "left_out": self.left_out,
            "notes": self._notes,
            "seconds": round(time.monotonic() - self._begin, 1),
        }
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)

    def _say(self, row: Row) -> None:
        print(f"{time.monotonic() - self._begin:6.0f} s {line(row)}", flush=True)


class Counting:
    """Rows under the profiler, several children at a time of which one uses the device."""

    def __init__(
        self,
        profiler: str,
        asked: list[str],
        report: Report,
        options: argparse.Namespace,
        end: float,
    ) -> None:
        self._profiler = profiler
        self._asked = asked
        self._report = report
        self._options = options
        self._end = end

    def all_of(self, names: Sequence[str], beside: int) -> list[str]:
        """Count these rows; returns those that were not."""
        with concurrent.futures.ThreadPoolExecutor(beside) as pool:
            done = list(pool.map(self._one, names))
        return [name for name, good in zip(names, done, strict=True) if not good]

    def _one(self, name: str) -> bool:
        """Count a row, again without metrics that are refused."""
        asked = self._asked
        ended, read = self._run(name, asked)
        while not read.launches and (bad := counters.refused(read.notes, asked)):
            # It may name one at a time; what another child has met is not met again.
            self._report.note(*(f"left out, refused by ncu: {metric}" for metric in bad))
            self._asked = [metric for metric in self._asked if metric not in bad]
            asked = [metric for metric in self._asked if metric in asked and metric not in bad]
            ended, read = self._run(name, asked)
        if read.launches and ended.code == 0:
            kernels = [counters.figures(launch) for launch in read.launches]
            self._report.counted(name, {"counted": kernels})
            return True
        how = "killed, or no time was left" if ended.code is None else f"status {ended.code}"
        self._report.counted(name, {"not_counted": f"{how}: {ended.text[-TAIL:].strip()}"})
        return False

    def _run(self, name: str, asked: Sequence[str]) -> tuple[Ended, counters.Read]:
        """A child under the profiler, and what that printed."""
        limit = min(CHILD, self._end - time.monotonic())
        if limit < LEAST:
            return Ended(None, ""), counters.Read()
        log = self._options.out / f"ncu-{threading.get_ident():x}.txt"
        ended = run_limited(self._command(name, asked), limit, log)
        log.unlink(missing_ok=True)
        read = counters.parse(ended.text)
        self._report.note(*read.notes)
        return ended, read

    def _command(self, name: str, asked: Sequence[str]) -> list[str]:
        """The profiler around a child: caches cold, clocks as they are, one call."""
        return [
            self._profiler, "--csv", "--page", "raw", "--print-units", "base",
            "--clock-control", "none", "--profile-from-start", "off", "--metrics", ",".join(asked),
            sys.executable, __file__, "--child", name, "--records", str(self._options.records),
        ]  # fmt: skip


def child(name: str, records: Path) -> None:
    """One call of a row between the profiler's marks, while no other child uses the device."""
    job: Any = importlib.import_module("job_limits")
    measure: Any = importlib.import_module("job_measure")
    torch: Any = measure.torch
    load = next(each for each in suite.workloads() if each.name == name)
    kernel, _ = measure.kernel_for(load, {"records": str(records)})
    with measure.lock():
        signal.alarm(ALONE)  # whatever hangs ends with the process, and so does the lock
        call = job.call_of(load, kernel)
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def line(row: Row) -> str:
    """A row in words."""
    if "failed" in row:
        return f"FAILED {row['name']}: {row['failed'][:200]}"
    text = f"{row['name']}: {row['ms']:.4f} ms, floor {row['floor_ms']:.4f} ms"
    if "counted" in row:
        return f"{text}; {counters.limit_of(row['counted'], wall_ms=row['ms'])}"
    return f"{text}; not counted: {row['not_counted'][:200]}" if "not_counted" in row else text


if __name__ == "__main__":
    sys.exit(main())
