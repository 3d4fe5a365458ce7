"""Drawn pairs by the thousand, on a GPU, a CPU or Triton's interpreter, compared with the oracle.

    python tests/benchmarks/agree_on_device.py --target cuda --out FOLDER --seconds 540
    ... --kind schedules|rules|focused|even     drawn primitives, default rules with drawn
                                        decisions, many calls of few primitives, the same with each
                                        primitive as often as any other; without it all of them
    ... --target cpu | triton-interpret the same pairs there, without a GPU
    ... --target cuda:sm_90             compiled only (also --compile-only), without a GPU
    ... --target cuda:sm_90 --emit-only written only, and read by Triton: many times as many
    ... --seeds 0:50000 --jobs 16       which pairs, and how many processes
    ... --devices 4                     GPUs over which the processes are spread
    ... --check                         the loop IR is verified after each pass, and interpreted
                                        and compared too: finds without a GPU what one would show
    ... --one rules:123                 one pair: its text and what comes of it
    ... --join A.json B.json --out tests/benchmarks/results     runs of one commit as one file

Each core has a process (`agree_worker`) that draws, builds, runs and compares pair after pair, and
says what it is about to do; one that dies or takes too long is started again, and the pair counts.
Arrays lie between zones that nobody may write, outputs are NaN before the call, addresses as
unaligned as is accepted.  A failure is made smaller and written to FOLDER/failures.txt as soon as
it is met, counts to FOLDER/agreement.json.  A schedule that is refused when it is built, though its
primitives were accepted, is a failure.  One for which the device has no room
(registers of a tile, shared memory), which no check of a schedule can know, is "large".
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from agree_child import Child
from shrinking import shrink

HERE = Path(__file__).parent
KINDS = ("schedules", "rules", "focused", "even")
FINE = ("right", "large")
SAME = 2
"""Failures of one kind that are made smaller and written out."""
TRIES, PATIENCE = 300, 45.0
"""How often and how many seconds one failure is tried to be made smaller."""
LONG = 2.0
"""Seconds of a call by the cost model, from which one that did not end is no failure."""
PACKAGES = ("numpy", "triton", "torch", "llvmlite", "ml_dtypes", "sympy")


class Report:
    """What came of all pairs, written again and again."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.begin = time.monotonic()
        self.counts: dict[str, Counter[str]] = {}
        self.steps: Counter[str] = Counter()
        self.families: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.kept: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []
        self.written = 0.0

    def add(self, kind: str, found: dict[str, Any]) -> None:
        """Count one pair."""
        with self.lock:
            self.counts.setdefault(kind, Counter())[found["status"]] += 1
            self.steps.update(f"{kind}: {step}" for step in found.get("steps", ()))
            self.families.update(f"{each}: {found['status']}" for each in found.get("families", ()))
            self.seconds.update(found.get("seconds", {}))
            if time.monotonic() - self.written > 10:
                self.write()

    def fresh(self, name: str, which: dict[str, Any]) -> bool:
        """Count a failure; whether to look at it closely."""
        with self.lock:
            self.failed.append({**which, "name": name, "at": round(time.monotonic() - self.begin)})
            self.failures[name] += 1
            return self.failures[name] <= SAME

    def keep(self, failure: dict[str, Any], text: str) -> None:
        """Write a failure down at once."""
        with self.lock:
            self.kept.append(failure)
            with (self.options.out / "failures.txt").open("a", encoding="utf-8") as file:
                file.write(text + "\n" + "=" * 100 + "\n")
            self.write()

    def write(self) -> None:
        """The counts so far."""
        taken = time.monotonic() - self.begin
        total = sum(sum(each.values()) for each in self.counts.values())
        options = self.options
        found = {
            "commit": options.commit or commit(),
            "when": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            "target": options.target,
            "emit_only": options.emit_only,
            "check": options.check,
            "device": options.device,
            "devices": options.devices,
            "versions": versions(),
            "seeds": options.seeds,
            "extents": options.extents,
            "aligned": options.aligned,
            "jobs": options.jobs,
            "seconds": round(taken, 1),
            "pairs": total,
            "pairs_per_second": round(total / max(taken, 1e-9), 2),
            "counts": {kind: dict(each) for kind, each in sorted(self.counts.items())},
            "failures": dict(self.failures.most_common()),
            "failed": self.failed,
            "kept": self.kept,
            "seconds_by_step": {k: round(v, 1) for k, v in self.seconds.most_common()},
            "primitives": dict(sorted(self.steps.items())),
            "families": dict(sorted(self.families.items())),
        }
        path = options.out / "agreement.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        self.written = time.monotonic()


class Runner(threading.Thread):
    """Keeps one process busy."""

    def __init__(self, number: int, work: Any, report: Report, folder: Path) -> None:
        super().__init__(daemon=True)
        self.work, self.report = work, report
        self.end = report.begin + report.options.seconds
        seen = report.options.devices
        device = str(number % seen) if seen > 1 else ""
        self.child = Child(of_worker(report.options, number), folder, device)

    def run(self) -> None:
        """Pair after pair."""
        try:
            while time.monotonic() < self.end:
                with self.report.lock:
                    kind, seed = next(self.work, ("", 0))
                if not kind:
                    return
                found = self.child.ask({"kind": kind, "seed": seed})
                if found["status"] == "hang" and found["at"] == "run":
                    told = self.child.ask({"kind": kind, "seed": seed, "predict": True})
                    if told.get("predicted", 0.0) > LONG:
                        found = {**told, "status": "large"}
                elif found["status"] == "hang" and found["at"] == "interpret":
                    found = {**found, "status": "large"}  # it has loops of many iterations
                self.report.add(kind, found)
                if found["status"] not in FINE:
                    self.failed(kind, seed, found)
        finally:
            self.child.close()

    def failed(self, kind: str, seed: int, found: dict[str, Any]) -> None:
        """Make a failure smaller and write it down."""
        name = signature(kind, found)
        which: dict[str, Any] = {"kind": kind, "seed": seed}
        if found["status"] == "hang":  # is it the pair, or was the device busy with others?
            which["again"] = self.child.ask({"kind": kind, "seed": seed})["status"]
        if not self.report.fresh(name, which):
            return
        shown = self.child.ask({"kind": kind, "seed": seed, "show": True})
        if "noted" not in shown:  # it cannot even be drawn
            text = f"{kind}:{seed}: {name}\n{found.get('trace', found.get('message', ''))}"
            self.report.keep({"kind": kind, "seed": seed, "name": name}, text)
            return
        stop = min(self.end, time.monotonic() + PATIENCE)
        tries, last = 0, found

        def fails(given: list[int]) -> list[int] | None:
            nonlocal tries, last
            tries += 1
            if tries > TRIES or time.monotonic() > stop:
                raise StopIteration
            again = self.child.ask({"kind": kind, "given": given})
            if signature(kind, again) != name:
                return None
            last = again
            return list(again.get("noted", given))

        given = shrink(shown["noted"], fails)
        small = self.child.ask({"kind": kind, "given": given, "show": True})
        text = f"{kind}:{seed}: {name}\n{last.get('message', '')}\n{last.get('trace', '')}\n"
        text += f"# drawn: {given}\n{small.get('text', '')}"
        keys = {"kind": kind, "seed": seed, "name": name, "given": given, "tries": tries}
        self.report.keep(keys, text)


def of_worker(options: argparse.Namespace, number: int) -> list[str]:
    """What is said to the worker of this number; it keeps to two processors of its own."""
    cores = sorted(os.sched_getaffinity(0))
    own = {cores[(number + more) % len(cores)] for more in range(2)}
    found = [
        "--target",
        options.target,
        "--extents",
        options.extents,
        "--cpus",
        ",".join(map(str, sorted(own))),
    ]
    for name in ("compile_only", "emit_only", "aligned", "check"):
        if getattr(options, name):
            found.append("--" + name.replace("_", "-"))
    return found


def plain(message: str) -> str:
    """A message without what differs from pair to pair."""
    text = message.splitlines()[0] if message else ""
    text = re.sub(r"\b[A-Za-z]+\d+[\w.]*", "X", text)
    return re.sub(r"\d+", "N", text)[:160]


def signature(kind: str, found: dict[str, Any]) -> str:
    """Failures that are likely to be one fault."""
    message = "" if found["status"] == "wrong" else plain(found.get("message", ""))
    lines = found.get("message", "").splitlines()
    if found["status"] == "wrong":
        message = "numbers" if any("olerance" in n or "not equal" in n for n in lines) else lines[0]
        message = re.sub(r"\d+", "N", message)[:60]
    return f"{kind}: {found['status']} {found.get('at', '')}: {message}"


def commit() -> str:
    """What is tested, where git can tell."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
    )
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Of Python and of what matters here."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device(target: str) -> str:
    """The GPU's name, or the processor's."""
    if target == "cuda" and (smi := shutil.which("nvidia-smi")):
        names = [smi, "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(names, capture_output=True, text=True)
        return done.stdout.partition("\n")[0].strip()
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"model name\s*: (.*)", text)
    return found.group(1) if found else platform.machine()


def asked() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="where counts and failures go")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--kind", default="all", choices=("all", *KINDS))
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--seeds", default="0:1000000", help="from:to")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--devices", type=int, default=1, help="GPUs to spread the processes over")
    parser.add_argument(
        "--extents",
        choices=("small", "large", "mixed"),
        help="as the tests draw them; larger ones; large one time in three, the default on a GPU",
    )
    parser.add_argument("--aligned", action="store_true", help="all arrays")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--emit-only", action="store_true")
    parser.add_argument("--check", action="store_true", help="the loop IR of each pair too")
    parser.add_argument("--commit", default="", help="what is tested, where git cannot tell")
    parser.add_argument("--one", default="", help="a pair, as kind:seed")
    parser.add_argument("--join", type=Path, nargs="+", help="results of several runs, to be added")
    options = parser.parse_args()
    slow = options.target == "triton-interpret"
    options.extents = options.extents or ("small" if slow else "mixed")
    options.compile_only |= options.emit_only or options.target.startswith("cuda:")
    if options.out is None and not options.one:
        parser.error("--out FOLDER says where the results go")
    options.device = device(options.target)
    return options


def main() -> int:
    """Run, or show one pair."""
    options = asked()
    if options.join:
        return joined(
            [json.loads(p.read_text(encoding="utf-8")) for p in options.join], options.out
        )
    folder = Path(tempfile.mkdtemp(prefix="agree-"))
    try:
        return one(options, folder) if options.one else all_of(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def joined(runs: list[dict[str, Any]], out: Path) -> int:
    """Write the sum of several runs of one commit and target, over different seeds."""
    same = {(run["commit"], run["target"], run["device"]) for run in runs}
    seeds = [run["seeds"] for run in runs]
    if len(same) > 1 or len(set(seeds)) < len(seeds):
        raise SystemExit(
            f"runs of one commit, target and device, and of other seeds: {same}, {seeds}"
        )
    total: dict[str, Any] = {**runs[-1], "seeds": seeds, "kept": [], "failed": []}
    for name in ("failures", "seconds_by_step", "primitives", "families"):
        total[name] = dict(sum((Counter(run.get(name, {})) for run in runs), Counter()))
    kinds = sorted({kind for run in runs for kind in run["counts"]})
    total["counts"] = {
        kind: dict(sum((Counter(run["counts"].get(kind, {})) for run in runs), Counter()))
        for kind in kinds
    }
    for run in runs:
        total["kept"] += run["kept"]
        total["failed"] += run.get("failed", [])
    for name in ("pairs", "seconds"):
        total[name] = sum(run[name] for run in runs)
    total["pairs_per_second"] = round(total["pairs"] / max(total["seconds"], 1e-9), 2)
    path = out / f"agreement_{total['target'].replace(':', '_').replace('-', '_')}.json"
    path.write_text(json.dumps(total, indent=1) + "\n", encoding="utf-8")
    return 0


def one(options: argparse.Namespace, folder: Path) -> int:
    """Show a pair and run it."""
    kind, seed = options.one.split(":")
    child = Child(of_worker(options, 0), folder)
    shown = child.ask({"kind": kind, "seed": int(seed), "show": True})
    found = child.ask({"kind": kind, "seed": int(seed)})
    child.close()
    print(shown.get("text", shown))
    print(json.dumps({k: v for k, v in found.items() if k != "noted"}, indent=1))
    print(found.get("trace", ""), found.get("message", ""))
    return int(found["status"] not in FINE)


def all_of(options: argparse.Namespace, folder: Path) -> int:
    """Run as many pairs as there is time for."""
    options.out.mkdir(parents=True, exist_ok=True)
    first, last = map(int, options.seeds.split(":"))
    kinds = (*KINDS, "schedules", "rules") if options.kind == "all" else (options.kind,)
    work = ((kinds[n % len(kinds)], n) for n in range(first, last))
    report = Report(options)
    runners = [Runner(n, work, report, folder) for n in range(options.jobs)]
    for each in runners:
        each.start()
    for each in runners:
        each.join()
    report.write()
    total = {kind: dict(each) for kind, each in report.counts.items()}
    print(json.dumps({"counts": total, "failures": dict(report.failures)}, indent=1))
    return int(bool(report.failures))


if __name__ == "__main__":
    sys.exit(main())
