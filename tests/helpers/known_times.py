"""A search whose times are known beforehand: real processes and records, nothing really measured.

    python known_times.py RECORDS TRIALS      with the log in $KNOWN_TIMES_LOG

As a worker it answers with a time that follows from the decisions, and writes one line for each
candidate that it measures.  As a program it tunes with such workers and prints the winner; it takes
$KNOWN_TIMES_THINKS seconds to think about each outcome, where that is set.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

LOG = "KNOWN_TIMES_LOG"
THINKS = "KNOWN_TIMES_THINKS"
CHOICES = tuple(range(8, 8 + 2 * 60, 2))
ROWS = (1, 2, 4, 8)


def seconds_of(decisions: dict[str, Any]) -> float:
    """A valley with its floor at piece 50, rows 4, and ripples."""
    piece, rows = int(decisions["piece"]), int(decisions["rows"])
    return 1e-3 * (1.0 + abs(piece - 50) / 40.0 + 0.2 * abs(rows - 4) + 0.01 * (piece % 7))


class Known:
    """A worker's session."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.facts: dict[str, Any] = {}

    def compile(self, request: dict[str, Any]) -> dict[str, Any]:
        resources = {"compile_seconds": 0.001, "registers": 1.0}
        return {"status": "ok", "code": request["key"], "resources": resources}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        with Path(os.environ[LOG]).open("a") as file:
            file.write(json.dumps(request["decisions"], sort_keys=True) + "\n")
        time.sleep(0.002)
        return {"status": "ok", "samples": [seconds_of(request["decisions"])] * 5}

    def compare(self, request: dict[str, Any]) -> dict[str, Any]:
        times = [seconds_of(c["decisions"]) for c in request["candidates"]]
        return {"status": "ok", "samples": [[t] * int(request["rounds"]) for t in times]}

    def verify(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "calls": int(request["calls"])}

    def estimate(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "found": [None for _ in request["candidates"]]}

    def watch(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "drift": 0.0, "again": {}}

    def fault(self) -> str | None:
        return None

    def prepare(self, request: dict[str, Any]) -> None:
        """Nothing is built ahead."""


def main(path: str, trials: int) -> None:
    """Tune, and print the winner and the state."""
    te: Any = importlib.import_module("tedsl")
    tune: Any = importlib.import_module("tedsl.autotune").tune

    def schedule(s: Any) -> None:
        stage = s["y"]
        rows, columns = stage.op.axis
        _, low = stage.split(rows, factor=s.knob("rows", ROWS, 1))
        _, inner = stage.split(columns, factor=s.knob("piece", CHOICES, CHOICES[0]))
        stage.vectorize(inner)
        stage.unroll(low)

    x = te.placeholder((64, 5000), "float32", name="x")
    y = te.compute((64, 5000), lambda i, j: x[i, j] * x[i, j] + 1.0, name="y")

    def think(event: Any) -> None:
        if type(event).__name__ == "Tried":
            time.sleep(float(os.environ.get(THINKS, "0")))

    found = tune(
        y,
        "cpu",
        trials=trials,
        seed=5,
        records=Path(path),
        schedule=schedule,
        progress=False,
        events=think,
        command=(sys.executable, "-P", str(Path(__file__).resolve()), "--worker"),
    )
    done = {"winner": found.winner.candidate.decisions, "tried": len(found.trials)}
    sys.stdout.write(json.dumps(done, sort_keys=True))


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        importlib.import_module("tedsl.autotune.workers.worker_main").serve(Known)
    else:
        main(sys.argv[1], int(sys.argv[2]))
