"""A worker that takes as long as it is told, notes when it did what, and fails as it is told.

A request's decisions say all: `compile` and `measure` seconds, `fault` when measured, `code`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from fault_worker import Faults

from tedsl.autotune.workers.worker_main import serve
from tedsl.backends.processes.serving import Message

COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))


class Timed:
    """Sleeps in place of work, and writes what it does to `log` of the set-up."""

    def __init__(self, setup: Message) -> None:
        self.setup = setup
        self.note("setup", "")

    @property
    def facts(self) -> Message:
        return {"pid": os.getpid(), "seconds": {"import": 0.5}}

    def note(self, what: str, key: str) -> None:
        """One line: what, which, when, by whom."""
        with Path(self.setup["log"]).open("a") as file:
            file.write(f"{what} {key or '-'} {time.monotonic()} {self.setup['role']}\n")

    def estimate(self, request: Message) -> Message:
        wishes = [each["decisions"] for each in request["candidates"]]
        time.sleep(sum(float(wish.get("estimate", 0.0)) for wish in wishes))
        return {"status": "ok", "found": [{"seconds": float(wish["n"])} for wish in wishes]}

    def realise(self, request: Message) -> Message:
        for each in request["wanted"]:
            Faults({"fault": each.get("fault", "")})
        knobs = [[[name, [v], v] for name, v in each.items()] for each in request["wanted"]]
        found = [{"knobs": k, "trace": ""} for k in knobs]
        refused = {"decisions": {"n": 3}, "reason": "not three", "error": "not three"}
        return {
            "status": "ok",
            "found": [refused if k[0][2] == 3 else f for k, f in zip(knobs, found, strict=True)],
        }

    def refer(self, request: Message) -> Message:
        self.note("refer", request["kind"])
        Faults({"fault": request["kind"].partition(":")[2]})
        time.sleep(1.0)
        self.note("referred", request["kind"])
        return {"status": "ok"}

    def compile(self, request: Message) -> Message:
        self.note("compile", request["key"])
        wishes = request["decisions"]
        time.sleep(float(wishes.get("compile", 0.0)))
        resources = {"compile_seconds": float(wishes.get("compile", 0.0)), "registers": 1.0}
        code = str(wishes.get("code", request["key"]))
        return {"status": "ok", "code": code, "resources": resources}

    def measure(self, request: Message) -> Message:
        self.note("measure", request["key"])
        wishes = request["decisions"]
        if wishes.get("fault") == "device":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        Faults({"fault": wishes.get("fault", "")})
        seconds = float(wishes.get("measure", 0.0))
        time.sleep(seconds)
        self.note("measured", request["key"])
        found = {"status": "ok", "samples": [float(wishes.get("time", 1.0))] * 3}
        if wishes.get("rows"):
            return {**found, "open": ["inputs"]} if request.get("referring") else found
        return (
            {**found, "open": ["sizes"]} if wishes.get("open") and request.get("apart") else found
        )

    def compile_more(self, request: Message) -> Message:
        self.note("compile_more", request["key"])
        wishes = request["decisions"]
        time.sleep(float(wishes.get("more", 0.0)))
        if wishes.get("open") == "refused":
            return {"status": "compile_error", "reason": "not at odd sizes", "text": ""}
        return {"status": "ok"}

    def check(self, request: Message) -> Message:
        self.note("check", request["key"])
        assert request["left"] == (["inputs"] if request["decisions"].get("rows") else ["sizes"])
        if "wrong" in (request["decisions"].get("open"), request["decisions"].get("rows")):
            return {"status": "wrong", "reason": "wrong output", "text": "at n=7: y[0] is 1, not 2"}
        return {"status": "ok"}

    def compare(self, request: Message) -> Message:
        times = [float(c["decisions"].get("time", 1.0)) for c in request["candidates"]]
        return {"status": "ok", "samples": [[t] * int(request["rounds"]) for t in times]}

    def verify(self, request: Message) -> Message:
        return {"status": "ok", "calls": int(request["calls"])}

    def watch(self, request: Message) -> Message:
        self.note("watch", str(len(request["candidates"])))
        again = {c["key"]: [2.0] * 3 for c in request["candidates"] if c["decisions"].get("drift")}
        return {"status": "ok", "drift": 0.0, "again": again}

    def fault(self) -> str | None:
        return "an illegal memory access was encountered"

    def prepare(self, request: Message) -> None:
        self.note("prepare", request["key"])


def read_log(path: Path) -> list[tuple[str, str, float, str]]:
    """The lines that workers wrote."""
    rows: list[Any] = [line.split(" ") for line in path.read_text().splitlines()]
    return [(what, key, float(when), role) for what, key, when, role in rows]


if __name__ == "__main__":
    serve(Timed)
