"""A search in which every tenth candidate fails, beside the same search in which none does.

    python tests/benchmarks/chaos.py --target cpu|cuda [--per-kind 20] [--out FILE]

Six kinds in turn: a segmentation fault, a fault of the device, a hang (of the host, and on a GPU of
the device), memory that is not there, a compilation of 60 s, a wrong answer.  Candidates are really
compiled, run and checked, by the real workers; see `tests/helpers/chaos_faults.py`.  The
computation has 40,000 elements on a CPU and 2^25 on a GPU, where 128 MiB in and as many out take as
long to check and to time as a kernel that is worth a search.  Prints one JSON object: the winner of
both searches, seconds of both, what was recorded of each kind, processes and GPU memory left over,
how much the device was idle.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "helpers"))

import chaos_faults

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.frontend.result import TuneResult
from tedsl.autotune.outcome import Status
from tedsl.autotune.report.events import Tried

SIZE = {"cpu": 40_000, "cuda": 1 << 25}
"""Elements; on a GPU a candidate then takes as long to measure as in a search for a real kernel."""
MARK = "TEDSL_CHAOS"
LONG = 0.3
"""Seconds without an outcome that are worth a word."""
Options = argparse.Namespace


def main() -> None:
    """Run both searches and print what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--per-kind", type=int, default=20, help="candidates of each kind of fault")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    report = compare(options.target, options.per_kind)
    text = json.dumps(report, indent=1)
    if options.out is not None:
        options.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


def compare(target: str, per_kind: int) -> dict[str, Any]:
    """Both searches over the same space, and what they leave behind."""
    count = per_kind * len(chaos_faults.FAULTS) * chaos_faults.EVERY // 2
    mark = os.environ[MARK] = uuid.uuid4().hex
    memory = _free_memory(target)
    sound = search(target, count, sound=True)
    faulty = search(target, count, sound=False)
    left = _left_running(mark)
    after = _free_memory(target)
    kinds = recorded_kinds(faulty)
    slower = faulty.seconds / sound.seconds - 1
    return {
        "target": target,
        "candidates": count,
        "winner without faults": winner_of(sound),
        "winner with faults": winner_of(faulty),
        "same winner": winner_of(sound) == winner_of(faulty),
        "fastest measured": [fastest_of(sound), fastest_of(faulty)],
        "seconds without faults": round(sound.seconds, 2),
        "seconds with faults": round(faulty.seconds, 2),
        "more time": round(slower, 3),
        "recorded": kinds,
        "others": [others_of(sound), others_of(faulty)],
        "reasons": [reasons_of(sound), reasons_of(faulty)],
        "each by its kind": all(set(found) == {k} for k, found in _by_kind(kinds)),
        "processes left": left,
        "GPU memory left (MiB)": round((memory - after) / 2**20, 1),
        "device idle": [round(sound.idle, 3), round(faulty.idle, 3)],
        "compile seconds": [round(sound.compile_seconds, 1), round(faulty.compile_seconds, 1)],
        "waits": [waits_of(sound), waits_of(faulty)],
        "measure seconds": [round(sound.measure_seconds, 1), round(faulty.measure_seconds, 1)],
    }


def search(target: str, count: int, sound: bool) -> TuneResult:
    """One search over all of the space."""
    size = SIZE[target]
    x = te.placeholder((size,), "float32", name="x")
    y = te.compute((size,), lambda i: x[i] * 2.0 + 1.0, name="y")
    command = (*chaos_faults.COMMAND, *((chaos_faults.SOUND,) if sound else ()))
    with tempfile.TemporaryDirectory() as folder:
        return tune(
            y,
            target,
            trials=count,
            seed=1,
            schedule=chaos_faults.scheduled(count, target),
            records=Path(folder) / "records.sqlite",
            command=command,
        )


def winner_of(found: TuneResult) -> int:
    """The piece that won."""
    return int(str(found.winner.candidate.decisions["piece"]))


def fastest_of(found: TuneResult) -> int:
    """The fastest piece of those that were measured."""
    pieces = (int(str(t.candidate.decisions["piece"])) for t in found.trials if t.outcome.seconds)
    return min(pieces, key=chaos_faults.seconds_of)


def reasons_of(found: TuneResult) -> dict[int, str]:
    """Why pieces failed, with the end of what was printed."""
    return {
        int(str(t.candidate.decisions["piece"])): f"{t.outcome.reason}: {t.outcome.error[-600:]}"
        for t in found.trials
        if t.outcome.status is not Status.OK
    }


def waits_of(found: TuneResult) -> dict[str, list[float]]:
    """Times without an outcome that were longer than `LONG`: how many and how long in all, by the
    outcome that ended them.  The first is that of the workers' start."""
    waits: dict[str, list[float]] = {}
    last = 0.0
    for event in found.events:
        if not isinstance(event, Tried):
            continue
        wait = event.at - last
        if wait > LONG:
            count, total = waits.get(event.status if last else "start", (0, 0.0))
            waits[event.status if last else "start"] = [count + 1, round(total + wait, 2)]
        last = event.at
    return waits


def recorded_kinds(found: TuneResult) -> dict[str, dict[str, int]]:
    """For each fault: how its candidates were recorded, counted."""
    kinds: dict[str, Counter[str]] = {}
    for trial in found.trials:
        fault = chaos_faults.fault_of(int(str(trial.candidate.decisions["piece"])))
        if fault:
            kinds.setdefault(fault, Counter())[trial.outcome.status.value] += 1
    return {fault: dict(counts) for fault, counts in sorted(kinds.items())}


def others_of(found: TuneResult) -> dict[str, int]:
    """How the candidates ended that meet no fault, counted."""
    pieces = ((int(str(t.candidate.decisions["piece"])), t) for t in found.trials)
    return dict(Counter(t.outcome.status.value for p, t in pieces if not chaos_faults.fault_of(p)))


def _by_kind(kinds: dict[str, dict[str, int]]) -> list[tuple[str, dict[str, int]]]:
    return [(chaos_faults.FAULTS[fault].value, counts) for fault, counts in kinds.items()]


def _left_running(mark: str) -> list[int]:
    """Other processes that were started under `mark` and still run a moment later."""
    end = time.monotonic() + 5.0
    while True:
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment = (path / "environ").read_bytes()
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            ours = int(path.name) != os.getpid() and mark.encode() in environment
            if ours and state not in "ZX":
                found.append(int(path.name))
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)


def _free_memory(target: str) -> int:
    """Free bytes of the GPU; 0 on the CPU."""
    if target == "cpu":
        return 0
    torch: Any = importlib.import_module("torch")
    return int(torch.cuda.mem_get_info()[0])


if __name__ == "__main__":
    main()
