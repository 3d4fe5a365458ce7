"""Builds, verifies and times drawn rows in a process of its own, asked by lines of JSON: the child
of `run_drawn.py`.

    {"number": 7, "job": "prepare"}     build ours and the peer, verify; both stay in caches on disk
    {"number": 7, "job": "time"}        the same from the caches, then time by turns

Before each step its name is written, so that whoever reads knows where a process ended or stopped.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grammar import Row
from kinds import row_of

Answer = dict[str, Any]
BLOCK = 0.004
"""Seconds of calls in a block."""
LEAST = 3
"""Calls in a block."""
PATIENCE = 60.0
"""Seconds of all turns, about."""


def main() -> None:
    """Answer until there are no more requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, choices=("cpu", "cuda"))
    parser.add_argument("--scale", required=True)
    parser.add_argument("--dtypes", required=True)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--peer", choices=("compile", "none"), default="compile")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    if options.threads and hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, usable[-options.threads :])
    warnings.simplefilter("ignore")
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def say(message: Answer) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        worker = Worker(options, say)
        for line in sys.stdin:
            request = json.loads(line)
            worker.step = ""
            try:
                found = worker.asked(request["number"], request["job"])
            except Exception as error:  # whatever it is, it is one more row that did not run
                text = str(error).strip() or type(error).__name__
                full = type(error).__name__ == "OutOfMemoryError"
                found = {"status": "no room" if full else "failed", "at": worker.step}
                found["message"] = f"{type(error).__name__}: {text}"[:1500]
            worker.freed()
            say({**found, "seconds": worker.seconds})


class Worker:
    """Draws, builds, verifies and times rows."""

    def __init__(self, options: argparse.Namespace, say: Callable[[Answer], None]) -> None:
        self.options, self.say = options, say
        self.step, self.since = "", 0.0
        self.seconds: dict[str, float] = {}
        self.kernel: Any = None
        self.at("start")
        self.torch: Any = importlib.import_module("torch")
        self.tensors: Any = importlib.import_module("tensors")
        self.trace: Any = importlib.import_module("tedsl.torch")
        if options.threads:
            self.torch.set_num_threads(options.threads)

    def at(self, step: str) -> None:
        """What is done from now on."""
        now = time.perf_counter()
        if self.step:
            self.seconds[self.step] = round(now - self.since, 3)
        self.step, self.since = step, now
        self.say({"step": step})

    def freed(self) -> None:
        """Give back the device's memory: other processes draw rows on it."""
        self.kernel = None
        if self.options.target == "cuda":
            self.torch._dynamo.reset()
            gc.collect()
            self.torch.cuda.empty_cache()

    def asked(self, number: int, job: str) -> Answer:
        """The answer to one request."""
        options = self.options
        self.seconds = {}
        self.at("draw")
        dtypes, kinds = options.dtypes.split(","), [k for k in options.kinds.split(",") if k]
        row = row_of(options.seed, number, options.scale, dtypes, kinds)
        found: Answer = {"name": row.name, "kind": row.kind, "number": number}
        function = self.function(row)
        tensors = self.tensors.made(row, "cpu")
        if options.target == "cuda":
            tensors = self.tensors.on_device(tensors, "cuda")
        self.torch._dynamo.reset()
        with self.torch.no_grad():
            found |= self.built(function, tensors, self.tensors.coarsest(row, options.target))
            self.at("peer")
            peer = self.peer(function, tensors, found)
            if job == "time" and found["status"] == "right":
                self.at("time")
                contestants = {"tedsl": self.kernel, "eager": function, "compile": peer}
                here = {name: call for name, call in contestants.items() if call is not None}
                found["milliseconds"] = self.timed(here, tensors)
        self.at("")
        return found

    def function(self, row: Row) -> Callable[..., Any]:
        """The function of a row, from a file: `torch.compile` reads its source."""
        path = self.options.folder / f"row_{self.options.seed}_{row.name.rpartition(':')[2]}.py"
        path.write_text(row.source(), encoding="utf-8")
        spec: Any = importlib.util.spec_from_file_location(path.stem, path)
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.f

    def built(
        self, function: Callable[..., Any], tensors: Sequence[Any], rounding: float
    ) -> Answer:
        """Our kernel, compared with eager and with the same text in float64."""
        self.at("eager")
        eager = function(*tensors)
        exact = function(*self.tensors.in_double(tensors))
        moved = function(*self.tensors.rounded(tensors)) if rounding else None
        self.at("trace")
        self.kernel = None
        begin = time.perf_counter()
        try:
            program = self.trace.trace(function, *tensors)
        except self.trace.NotTaken as error:
            return {"status": "not taken", "message": str(error)[:400]}
        self.at("build")
        self.kernel = program.build(target=self.options.target)
        self.at("first call")  # Triton compiles then
        ours = self.kernel(*tensors)
        took = time.perf_counter() - begin
        self.at("verify")
        told = self.tensors.wrong(ours, eager, exact, rounding, moved)
        kernel = self.kernel.kernel
        found: Answer = {"status": "wrong" if told else "right", "build": round(took, 2)}
        found |= {"message": told} if told else {}
        found["kernels"] = len(kernel.module.funcs)
        found["fallbacks"] = [each.taken for each in kernel.schedule.fallbacks]
        found["schedule"] = kernel.schedule.as_python()
        return found

    def peer(self, function: Callable[..., Any], tensors: Sequence[Any], found: Answer) -> Any:
        """`torch.compile` of the same function; None where it fails, which is noted."""
        if self.options.peer == "none":
            return None
        compiled = self.torch.compile(function, dynamic=False)
        try:
            compiled(*tensors)
        except Exception as error:  # of any kind: the row is compared with eager alone
            found["peer"] = f"{type(error).__name__}: {str(error).strip()}"[:400]
            return None
        return compiled

    def timed(self, contestants: dict[str, Any], tensors: Sequence[Any]) -> Answer:
        """Milliseconds of a call in each turn: blocks of calls, whose order turns."""
        block = self.on_cuda if self.options.target == "cuda" else self.on_cpu
        found: dict[str, list[float]] = {name: [] for name in contestants}
        begin = time.perf_counter()
        for call in contestants.values():
            block(call, tensors)
        # A peer that takes seconds has fewer turns.
        turns = min(self.options.turns, max(1, int(PATIENCE / (time.perf_counter() - begin))))
        order = list(contestants)
        for _ in range(turns):
            for name in order:
                found[name].append(round(block(contestants[name], tensors) * 1e3, 5))
            order = [*order[1:], order[0]]
        return found

    def on_cpu(self, call: Callable[..., Any], tensors: Sequence[Any]) -> float:
        """Seconds of a call: the lower quartile of a block, as others use the processor too; of
        one thread the time that it ran.  The first call wakes threads, and is left out."""
        clock = time.process_time if self.options.threads == 1 else time.perf_counter
        call(*tensors)
        found, begin = list[float](), clock()
        while len(found) < LEAST or clock() - begin < BLOCK:
            since = clock()
            call(*tensors)
            found.append(clock() - since)
        return statistics.quantiles(found, n=4)[0] if len(found) > 1 else found[0]

    def on_cuda(self, call: Callable[..., Any], tensors: Sequence[Any]) -> float:
        """Seconds of a call by the device's clock, with its caches as calls in a row leave them,
        behind a wait that is long enough for the calls to be in its queue."""
        cuda = self.torch.cuda
        call(*tensors)
        cuda.synchronize()
        since = time.perf_counter()
        call(*tensors)
        cuda.synchronize()
        count = max(LEAST, min(100, round(BLOCK / max(1e-6, time.perf_counter() - since))))
        begin, end = (cuda.Event(enable_timing=True) for _ in "ab")
        cuda._sleep(2_000_000)
        begin.record()
        for _ in range(count):
            call(*tensors)
        end.record()
        cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3 / count


if __name__ == "__main__":
    main()
