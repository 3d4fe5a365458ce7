"""Short searches of drawn rows, each in a fresh process with empty caches: what is done when.

    python tests/benchmarks/drawn/searches_of_rows.py --count 12 --seconds 20 --out DIR
    python tests/benchmarks/drawn/searches_of_rows.py --target cpu --scale cpu --count 4 --out DIR

For each row: the seconds of what comes before the search (imports, the trace), each phase of the
search, when workers were ready and what their set-up took, every request to a worker from when it
was sent until it was answered, what was tried when, and the times of the default and of what was
found, taken by turns afterwards.  Seconds are since the search was called.  A row that hangs or
crashes is killed, with all it started, and named; rows are written down as they come.

`--out DIR` gets `searches_<target>.jsonl` at once and `searches_<target>.json` at the end: a line
for each row, how many trials there were, the geometric mean of the gains and their tenth
percentile.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import run_drawn
from grammar import Row
from kinds import row_of
from run_drawn import Answer, Child, machine

from tedsl.autotune import tune
from tedsl.autotune.report.events import Compiled, Event, Phase, Proposed, Tried, WorkerReady
from tedsl.autotune.workers import local_executor
from tedsl.runtime.timing import compare, compare_cuda

Say = Callable[[Answer], None]
ROUNDS = 21
BESIDE = 150.0
"""Seconds that a row may take beside its search."""


def watched(requests: list[Answer]) -> None:
    """Note from now on what the engine asks of its workers."""
    engine: Any = local_executor.Engine
    submit, answered = engine._submit, engine._answered
    asked: dict[int, float] = {}

    def submitting(self: Any, worker: Any, request: Answer, *rest: Any) -> None:
        asked[id(worker)] = time.monotonic()
        submit(self, worker, request, *rest)

    def answering(self: Any, worker: Any, request: Answer, reply: Any) -> None:
        workers = [*self.compilers, *self.measurers]
        message, failure = reply.message, reply.failure
        found = {
            "worker": f"{worker.setup['role']} {workers.index(worker)}",
            "op": request["op"] + " " + str(request.get("kind", "")),
            "asked": asked.get(id(worker), worker.sent),
            "sent": worker.sent,
            "answered": time.monotonic(),
            "status": message.get("status", "") if failure is None else str(failure),
        }
        for name in ("parts", "resources", "reason"):
            if message.get(name):
                found[name] = message[name]
        requests.append(found)
        answered(self, worker, request, reply)

    engine._submit, engine._answered = submitting, answering


def searched(program: Any, options: argparse.Namespace) -> tuple[Any, Answer]:
    """A search, and what was done when, in seconds since it was called."""
    requests: list[Answer] = []
    watched(requests)
    heard: list[tuple[float, Event]] = []
    begin = time.monotonic()

    def hear(event: Event) -> None:
        heard.append((time.monotonic() - begin, event))

    limits = {"seconds": options.seconds} if options.seconds else {"trials": options.trials}
    found = tune(program, options.target, records=False, progress=False, events=hear, **limits)
    took = time.monotonic() - begin
    for request in requests:
        for name in ("asked", "sent", "answered"):
            request[name] = round(request[name] - begin, 3)
    tried = [(at, event) for at, event in heard if isinstance(event, Tried)]
    told: Answer = {
        "took": round(took, 2),
        "trials": len(found.trials),
        "ok": sum(bool(trial.outcome.samples) for trial in found.trials),
        "winner": found.winner.number,
        "against": None if found.against is None else str(found.against),
        "stopped": found.stopped,
        "idle": round(found.idle, 3),
        "workers": found.workers,
        "rejected": dict(found.rejected),
        "compile seconds": round(found.compile_seconds, 2),
        "measure seconds": round(found.measure_seconds, 2),
        "phases": [(e.stage.value, round(at, 2)) for at, e in heard if isinstance(e, Phase)],
        "ready": [
            (e.role, round(e.since, 2), {k: round(s, 2) for k, s in e.seconds.items()})
            for _, e in heard
            if isinstance(e, WorkerReady)
        ],
        "proposed": [
            (e.number, e.batch, e.origin, round(at, 2))
            for at, e in heard
            if isinstance(e, Proposed)
        ],
        "compiled": [(e.number, round(at, 2)) for at, e in heard if isinstance(e, Compiled)],
        "tried": [(e.number, e.status, e.time, e.reason, round(at, 2)) for at, e in tried],
        "requests": sorted(requests, key=lambda request: request["asked"]),
    }
    return found, told


def one(number: int, options: argparse.Namespace, say: Say) -> Answer:
    """A row from the drawing to the times of what was found."""
    seconds: dict[str, float] = {}
    since = time.perf_counter()

    def at(step: str) -> None:
        nonlocal since
        now = time.perf_counter()
        seconds[step] = round(now - since, 2)
        since = now
        say({"step": step})

    torch: Any = importlib.import_module("torch")
    tensors: Any = importlib.import_module("tensors")
    tracing: Any = importlib.import_module("tedsl.torch")
    at("import")
    row = drawn(number, options)
    function = function_of(row, options.folder)
    given = tensors.made(row, "cpu")
    at("draw")
    answer: Answer = {"name": row.name, "kind": row.kind, "number": number, "text": row.source()}
    with torch.no_grad():
        try:
            program = tracing.trace(function, *given)
        except tracing.NotTaken as error:
            return {**answer, "status": "not taken", "message": str(error)[:400]}
        at("trace")
        found, told = searched(program, options)
        at("search")
        answer |= told
        here = tensors.on_device(given, "cuda") if options.target == "cuda" else given
        kernels = {
            "default": program.build(target=options.target),
            "found": program.build(found.kernel),
        }
        exact, eager = function(*tensors.in_double(here)), function(*here)
        rounding = tensors.coarsest(row, options.target)
        wrong = {
            label: tensors.wrong(kernel(*here), eager, exact, rounding)
            for label, kernel in kernels.items()
        }
        del exact, eager
        at("verify")
        calls = {label: partial(kernel, *here) for label, kernel in kernels.items()}
        clock = compare_cuda if options.target == "cuda" else compare
        stats = clock(calls, repeats=ROUNDS, max_seconds=20.0)
        at("time")
    answer["microseconds"] = {label: s.median * 1e6 for label, s in stats.items()}
    answer["gain"] = stats["default"].median / stats["found"].median
    answer["schedule"] = found.kernel.schedule.as_python()
    answer["wrong"] = {label: text for label, text in wrong.items() if text}
    answer["beside"] = seconds
    return {**answer, "status": "wrong" if answer["wrong"] else "right"}


def drawn(number: int, options: argparse.Namespace) -> Row:
    """The row of a number."""
    kinds = [each for each in options.kinds.split(",") if each]
    return row_of(options.seed, number, options.scale, options.dtypes.split(","), kinds)


def function_of(row: Row, folder: Path) -> Callable[..., Any]:
    """The function of a row, from a file."""
    path = folder / "row.py"
    path.write_text(row.source(), encoding="utf-8")
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f


def child(options: argparse.Namespace) -> None:
    """Answer one request."""
    warnings.simplefilter("ignore")
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def say(message: Answer) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        request = json.loads(sys.stdin.readline())
        try:
            found = one(request["number"], options, say)
        except Exception as error:  # whatever it is, it is one more row that did not run
            found = {"status": "failed", "message": f"{type(error).__name__}: {error}"[:1500]}
        say(found)


def asked(number: int, options: argparse.Namespace, until: float) -> Answer:
    """The answer of a fresh process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="searched-") as folder:
        own = {
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "TEDSL_CACHE_DIR": f"{folder}/tedsl",
            "XDG_CACHE_HOME": folder,
        }
        command = [sys.executable, __file__, "--child", "--folder", folder]
        for name in ("target", "scale", "dtypes", "kinds", "seed", "seconds", "trials"):
            command += [f"--{name}", str(getattr(options, name))]
        process = Child(command, {**os.environ, **own})
        try:
            row = drawn(number, options)
            found = process.ask({"number": number}, until)
        finally:
            process.close()
    return {"name": row.name, "number": number, **found}


def summary(answers: Sequence[Answer]) -> Answer:
    """How many trials there were, and what they gained."""
    times = [each for each in answers if "gain" in each]
    if not times:
        return {"rows": len(answers), "searched": 0}
    gains = sorted(each["gain"] for each in times)
    trials = sorted(each["ok"] for each in times)
    return {
        "rows": len(answers),
        "searched": len(times),
        "wrong": [each["name"] for each in times if each["status"] == "wrong"],
        "trials that ran": {
            "least": trials[0],
            "median": statistics.median(trials),
            "most": trials[-1],
            "at least 16": sum(count >= 16 for count in trials),
        },
        "took at most": max(each["took"] for each in times),
        "geomean": round(math.exp(statistics.fmean(math.log(gain) for gain in gains)), 4),
        "tenth percentile": round(gains[len(gains) // 10], 4),
        "median": round(statistics.median(gains), 4),
    }


def told(answer: Answer) -> str:
    """One row in one line."""
    if "gain" not in answer:
        return f"{answer['name']:32}{answer['status']}  {answer.get('message', '')[:100]}"
    ready = {role: since for role, since, _ in reversed(answer["ready"])}
    first = next((at for *_, at in answer["tried"]), math.nan)
    return (
        f"{answer['name']:32}{answer['status']:7}{answer['ok']:4} ok of {answer['trials']:3}  "
        f"took {answer['took']:5.1f}  compile ready {ready.get('compile', math.nan):5.2f}  "
        f"measure ready {ready.get('measure', math.nan):5.2f}  first tried {first:5.2f}  "
        f"gain {answer['gain']:.3f}"
    )


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--numbers", type=int, nargs="+", help="these rows of the seed alone")
    parser.add_argument("--seed", type=int, default=311128)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a search; 0: by trials")
    parser.add_argument("--trials", type=int, default=64, help="of a search without seconds")
    parser.add_argument("--whole", type=float, default=3000.0, help="seconds of all rows")
    parser.add_argument("--kinds", default="", help="classes, separated by commas; all without")
    parser.add_argument("--dtypes", default="", help="float32 on the CPU, with 16-bit ones on cuda")
    parser.add_argument("--scale", default="", help="how large rows are: tiny, cpu, cuda")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    some = "float32" if options.target == "cpu" else "float32,bfloat16,float16"
    options.dtypes = options.dtypes or some
    options.scale = options.scale or options.target
    return options


def main() -> None:
    """Search row by row; write down what comes."""
    options = options_of()
    if options.child:
        child(options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    run_drawn.LIMITS["trace"] = options.seconds + 90.0  # the search comes after it
    log = options.out / f"searches_{options.target}.jsonl"
    log.write_text("", encoding="utf-8")
    end = time.monotonic() + options.whole
    answers: list[Answer] = []
    for number in options.numbers or range(options.count):
        until = min(end, time.monotonic() + options.seconds + BESIDE)
        if time.monotonic() >= end:
            break
        answers.append(asked(number, options, until))
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(answers[-1]) + "\n")
        sys.stdout.write(told(answers[-1]) + "\n")
        sys.stdout.flush()
    names = ("target", "seed", "count", "numbers", "scale", "dtypes", "kinds", "seconds", "trials")
    results: Answer = {
        "asked": {name: getattr(options, name) for name in names},
        "machine": {**machine(options.target), "cores": os.cpu_count()},
        **summary(answers),
        "rows": answers,
    }
    path = options.out / f"searches_{options.target}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(summary(answers), indent=1) + "\n")


if __name__ == "__main__":
    main()
