"""Rows that nobody chose: drawn from a grammar of PyTorch, verified, timed against PyTorch.

    python tests/benchmarks/drawn/run_drawn.py --target cpu|cuda --count 300 --seed 7 --seconds 3000
    python tests/benchmarks/drawn/run_drawn.py --target cuda --seed 7 --numbers 12 140  two of them

Each row is drawn by the seed and its number (`kinds.py`), imported by `tedsl.torch.trace`, built by
the default rules, verified against eager and against the same text in float64, and timed against
eager and `torch.compile` in blocks by turns.  Rows are built first, in as many processes as there
are processors, and timed afterwards from the caches on disk: alone, or one on each of `--devices`
GPUs.  Both end when the seconds are over, and rows are written down as they come.  A process that
hangs or crashes is killed: its row is named and counted, and so are rows that the importer does not
take.

`--out FOLDER` gets `drawn_<target>.jsonl` at once and `drawn_<target>.json` at the end: the
distribution, every row by its ratio, the worst ten with their text and schedule.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distribution import WORST, kept, shown, summary, worst
from kinds import row_of

Answer = dict[str, Any]
HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
NOT_RIGHT = ("wrong", "failed", "crash", "hang", "no room")
LIMITS = {"start": 180.0, "build": 120.0, "first call": 180.0, "peer": 240.0, "time": 120.0}
"""Seconds that a step may take; one that is not named, a minute."""


class Child:
    """A process that is asked for rows, started when it is first asked and again when it ended."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.command = list(command)
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: Any = None

    def ask(self, request: Answer, until: float) -> Answer:
        """The answer, or how the process failed to give one: `status` "crash" or "hang", `at` the
        step that it was at, or "no time" where it was killed as the seconds were over."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        step, rest = "start", b""
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return self._ended(step)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            since = time.monotonic()
            while True:
                now = time.monotonic()
                left = min(since + LIMITS.get(step, 60.0), until) - now
                if left <= 0 or not selector.select(left):
                    self.close()
                    late = time.monotonic() >= until
                    return {"status": "no time" if late else "hang", "at": step}
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    return self._ended(step)
                *lines, rest = (rest + data).split(b"\n")
                for found in map(json.loads, lines):
                    if "status" in found:
                        return found
                    step, since = found["step"], time.monotonic()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=self.environment,
                start_new_session=True,
            )
        return self.process

    def _ended(self, step: str) -> Answer:
        assert self.process is not None
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self.errors.seek(0)
        tail = self.errors.read().decode(errors="replace")[-1200:]
        self.close()
        return {"status": "crash", "at": step, "message": f"{how}: {tail}"}

    def close(self) -> None:
        """End the process and whatever it started."""
        process, self.process = self.process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.errors.close()


class Run:
    """One run: rows are prepared by several processes, then timed by one for each device."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.begin = time.monotonic()
        self.answers: dict[Any, Answer] = {}
        self.lock = threading.Lock()
        self.log = options.out / f"{options.name}.jsonl"
        self.log.write_text("", encoding="utf-8")

    def child(self, number: int) -> Child:
        """The process of this number for rows of this run, on a device of its own if there are so
        many."""
        options = self.options
        command = [options.python, str(HERE / "drawn_child.py"), "--target", options.target]
        for name in ("scale", "dtypes", "kinds", "seed", "threads", "turns", "peer"):
            command += [f"--{name}", str(getattr(options, name))]
        command += ["--folder", str(self.folder / "rows")]
        (self.folder / "rows").mkdir(exist_ok=True)
        # What runs on the processor is data that is drawn.
        more = {"OMP_NUM_THREADS": "2"} if options.target == "cuda" else {}
        return self.started(command, number, more)

    def started(
        self, command: Sequence[str], number: int, more: Mapping[str, str] | None = None
    ) -> Child:
        """A process of this number, with the caches of this run and what it is to know more."""
        kept_in = {"TRITON_CACHE_DIR": "triton", "TEDSL_CACHE_DIR": "tedsl"}
        kept_in["TORCHINDUCTOR_CACHE_DIR"] = "inductor"
        own = {name: str(self.folder / each) for name, each in kept_in.items()}
        # Several processes compile at once: each by itself.
        own["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        if self.options.devices > 1:
            own["CUDA_VISIBLE_DEVICES"] = str(number % self.options.devices)
        return Child(command, {**os.environ, **own, **(more or {})})

    def until(self, part: float = 1.0) -> float:
        """When so much of the time is over."""
        return self.begin + part * self.options.seconds

    def each(self, numbers: Sequence[Any], job: str, jobs: int, until: float) -> None:
        """Ask for rows, in so many processes."""
        waiting = list(numbers)

        def work(of_child: int) -> None:
            child = self.child(of_child)
            try:
                while time.monotonic() < until:
                    with self.lock:
                        if not waiting:
                            break
                        number = waiting.pop(0)
                    self.note(number, job, child.ask({"number": number, "job": job}, until))
            finally:
                child.close()

        count = min(jobs, len(waiting))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for number in waiting:
            self.note(number, job, {"status": "no time", "at": job})

    def note(self, number: Any, job: str, found: Answer) -> None:
        """Keep an answer, and write it down."""
        options = self.options
        kinds = [each for each in options.kinds.split(",") if each]
        row = row_of(options.seed, number, options.scale, options.dtypes.split(","), kinds)
        answer = {"name": row.name, "kind": row.kind, "number": number, "job": job, **found}
        answer["text"] = row.source()
        with self.lock:
            earlier = self.answers.get(number, {})
            if job == "time" and found["status"] == "no time":
                answer = {**earlier, "job": job}  # it is right, and has no times
            self.answers[number] = answer
            with self.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(answer) + "\n")
        if not options.quiet:
            told = found.get("message", "").splitlines()[:1]
            sys.stdout.write(f"{job:8}{row.name:36}{found['status']:10}{' '.join(told)[:100]}\n")
            sys.stdout.flush()

    def of(self, status: str) -> list[int]:
        """The numbers of rows with this answer: "right" ones were verified, and so on."""
        found = self.answers.items()
        return [number for number, answer in sorted(found) if answer["status"] == status]

    def results(self) -> Answer:
        """All that is kept of the run."""
        options, answers = self.options, [self.answers[n] for n in sorted(self.answers)]
        slowest = worst(answers)
        bad = [each for each in answers if each["status"] in NOT_RIGHT]
        asked = [
            "target",
            "seed",
            "count",
            "numbers",
            "scale",
            "dtypes",
            "kinds",
            "threads",
            "turns",
        ]
        asked += ["peer", "devices"]
        return {
            "asked": {name: getattr(options, name) for name in asked},
            "machine": {**machine(options.target), "commit": options.commit or commit()},
            "seconds": round(time.monotonic() - self.begin),
            **summary(answers),
            "worst ten": [kept(each, whole=True) for each in slowest[:WORST]],
            "not right": [kept(each, whole=True) for each in bad],
            "rows": [kept(each, whole=False) for each in answers],
        }


def commit() -> str:
    """What is measured, where git can tell."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine(target: str) -> Answer:
    """What the figures are of."""
    packages = ("torch", "triton", "llvmlite", "numpy")
    found: Answer = {"python": platform.python_version()}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    if target == "cuda":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        told = subprocess.run(query, capture_output=True, text=True, check=False)
        return {**found, "device": told.stdout.strip().splitlines()[:1]}
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {**found, "device": model[:1], "cores": os.cpu_count()}


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--numbers", type=int, nargs="+", help="these rows of the seed alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3000.0, help="of the whole run")
    parser.add_argument("--kinds", default="", help="classes, separated by commas; all without")
    parser.add_argument("--dtypes", default="", help="float32 on the CPU, with 16-bit ones on cuda")
    parser.add_argument("--scale", default="", help="how large rows are: tiny, cpu, cuda")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0 for all")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--peer", choices=("compile", "none"), default="compile")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--devices", type=int, default=1, help="GPUs that time rows at once")
    parser.add_argument("--commit", default="", help="what is measured, where git cannot tell")
    parser.add_argument("--prepare-only", action="store_true", help="verify, and time nothing")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--name", default="", help="of the files of results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    on_cpu = options.target == "cpu"
    if on_cpu and options.devices > 1:
        parser.error("--devices counts GPUs: on the CPU rows are timed one after the other")
    options.dtypes = options.dtypes or ("float32" if on_cpu else "float32,bfloat16,float16")
    options.scale = options.scale or options.target
    options.name = options.name or f"drawn_{options.target}"
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def run(options: argparse.Namespace) -> Answer:
    """Prepare, time, and sum up."""
    with tempfile.TemporaryDirectory(prefix="drawn-") as folder:
        made = Run(options, Path(folder))
        share = 1.0 if options.prepare_only else 0.7
        numbers = options.numbers or range(options.count)
        made.each(numbers, "prepare", options.jobs, made.until(share))
        # One process on each device has room where many had none.
        made.each(made.of("no room"), "prepare", options.devices, made.until(share))
        if not options.prepare_only:
            made.each(made.of("right"), "time", options.devices, made.until())
        return made.results()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print the distribution, keep it."""
    options = options_of(arguments)
    results = run(options)
    path = options.out / f"{options.name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(told(results) + "\n")


def told(results: Answer) -> str:
    """The worst rows with their text and schedule, what is not right, and the distribution."""
    lines = list[str]()
    for each in results["worst ten"]:
        lines += [f"{each['ratio']:.2f}  {each['name']}  {each['milliseconds']}", each["text"]]
        lines += [each["schedule"], ""]
    for each in results["not right"]:
        lines.append(f"{each['status']}  {each['name']}  {each.get('message', '')[:200]}")
    return "\n".join([*lines, "", shown(results)])


if __name__ == "__main__":
    main()
