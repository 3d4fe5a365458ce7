"""What a worker does with one problem: build a candidate, have it checked and timed.

Runs inside the child process (see `worker_main`).  While the device checks one candidate a thread
builds the next; it rests while something is timed.  Imports `bench` and `build`.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import statistics
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tedsl.autotune.measure.bench import NEAR, Bench, Finding, UnfinishedError
from tedsl.autotune.measure.pruning import Tiers, estimates
from tedsl.autotune.measure.reference_cache import References
from tedsl.autotune.search_space.problem import Problem
from tedsl.autotune.search_space.space import freeze, written
from tedsl.autotune.workers.protocol import CALLS
from tedsl.autotune.workers.scratch_dir import is_alive
from tedsl.backends.processes.serving import Message
from tedsl.backends.triton.emit.program import sorts_of
from tedsl.build import build, build_unseen, compile_unseen_calls, lower
from tedsl.checking.other_sizes import other_calls
from tedsl.cost.devices import device_for
from tedsl.devices import Device
from tedsl.errors import BackendError, InternalError, LowerError, ScheduleError, TuneError
from tedsl.ir.nodes import Module
from tedsl.lower import pipeline
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace
from tedsl.target import Target, TargetKind
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

KEPT = 48
WARM_UP = 8
WARM_UP_SECONDS = 0.4
"""Random candidates that a compiling process makes before it is ready, and for how long at most."""
YIELDING = 10
"""How far compiling processes stand back for what feeds a GPU."""
RIGHT = "right.json"
"""The file that describes a candidate that ran correctly."""
FIGURES = (
    *("registers", "stack", "shared", "num_warps"),
    *("instructions", "vectors", "fused", "spills"),
)
"""Of what a kernel's resources say, what is recorded."""
_MODULES = {
    "cpu": ("tedsl.build", "tedsl.backends.cpu", "tedsl.runtime.executors.by_target"),
    "cuda": ("triton", "tedsl.build", "tedsl.runtime.executors.triton"),
}
_DEVICE_MODULES = {"cpu": (), "cuda": ("torch",)}
"""What a process needs besides that sees the device: it takes seconds to load."""
_loading: dict[str, float] = {}
"""Seconds that `preload` took in this process or its parent, by target."""


class TuneSession:
    """One problem on one target.

    Args:
        setup: `workload` (JSON), `target`, `sizes` by name, `seed`, `scratch` (a folder), `role`
            (`compile` or `measure`), `trace` (whether candidates come as traces, not decisions),
            `device` (the name of the GPU), `features` (its architecture and SMs; where a compiling
            worker is told them it does not touch the device).
        like: the session of the same computation at other sizes, whose kernels serve here too.
    """

    def __init__(self, setup: Message, like: TuneSession | None = None) -> None:
        begin = time.perf_counter()
        self.workload = _workload(str(setup["workload"])) if like is None else like.workload
        self.setup = setup
        self.target = str(setup["target"])
        self.unseen = _unseen(setup)
        self.by_trace = bool(setup["trace"])
        self.problem = Problem(self.workload.outputs, self.target, device=_device(setup))
        self.size = Extents(self.workload, setup["sizes"])
        self.scratch = Path(setup["scratch"])
        self.seed = int(setup["seed"])
        # Triton compiles a kernel anew for sizes of another sort.
        self.sorts = sorts_of(setup["sizes"]) if self.unseen else ""
        self.kernels: dict[str, Kernel] = {} if like is None else like.kernels
        self.modules: dict[str, Module] = {} if like is None else like.modules
        self.building = threading.Lock() if like is None else like.building
        self.threads = ThreadPoolExecutor(1, "tedsl-build")
        self.builder: Future[None] | None = None
        self.bench: Bench | None = None
        self.took_over = False
        opened = time.perf_counter()
        self.seconds = {"import": _loading.get(self.target, 0.0), "open": opened - begin}
        if setup["role"] == "measure":
            self.bench = Bench(
                *(self.workload, self.size, self.target, self.seed, self.scratch),
                like=None if like is None else like.bench,
            )
            checked = time.perf_counter()
            self.took_over = self._take_over(self.bench)
            took = time.perf_counter() - checked
            self.seconds |= {"device": self.bench.device_seconds, "take over": took}
            self.seconds["inputs"] = checked - opened - self.bench.device_seconds

    @cached_property
    def tiers(self) -> Tiers:
        """What is known of candidates before they run."""
        sizes = {var.name: value for var, value in self.size.values.items()}
        return Tiers.of(self.target, sizes, *_named(self.setup))

    @property
    def facts(self) -> Message:
        """How the reference was made, the seconds that each part of the set-up took, and whether
        this process has done what another did first."""
        if self.bench is None:
            return {"seconds": self.seconds}
        source = self.bench.stand.references.oracle.source
        return {"reference": source, "seconds": self.seconds, "took over": self.took_over}

    def compile(self, request: Message) -> Message:
        begin = time.perf_counter()
        refused = self.tiers.refusal(self.lowered(request))
        if refused is not None:
            return _pruned(refused, time.perf_counter() - begin)
        kernel = self.kernel(request)
        # On a GPU the device's own compiler runs when its figures are asked for, and what it made
        # is found again in Triton's cache by the measuring worker.
        resources = figures(kernel.resources)
        resources["compile_seconds"] = time.perf_counter() - begin
        refused = self.tiers.too_much(kernel.module.name, resources.get("shared", 0.0))
        if refused is not None:
            return _pruned(refused, resources["compile_seconds"])
        return {"status": "ok", "code": kernel.code, "resources": resources}

    def compile_more(self, request: Message) -> Message:
        """Compile what the checks of a candidate at other sizes launch."""
        schedule = self.schedule(request)
        calls = other_calls(self.workload, schedule.plan.assumptions)
        compile_unseen_calls(schedule, self.unseen, calls)
        return {"status": "ok"}

    def estimate(self, request: Message) -> Message:
        """What the static model says of some candidates."""
        return {
            "status": "ok",
            "found": estimates(self.tiers, request["candidates"], self.looked_at),
        }

    def realise(self, request: Message) -> Message:
        """What the rules make of some decisions."""
        space = self.problem.space()
        asked = ({n: freeze(v, n) for n, v in each.items()} for each in request["wanted"])
        found = [written(space.candidate(decisions, "random")) for decisions in asked]
        return {"status": "ok", "found": found}

    def refer(self, request: Message) -> Message:
        """Make what the outputs must be for a kind of inputs, before the measuring worker asks."""
        with suppress(TuneError):  # the measuring worker meets it too, and says so
            References(self.size, self.target, self.seed, self.scratch).get(str(request["kind"]))
        return {"status": "ok"}

    def lowered(self, request: Message) -> Module:
        """The program of a request; the last is kept, since it is built next."""
        key = str(request["key"])
        if key not in self.modules:
            self.modules = {key: lower(self.schedule(request), self.target)}
        return self.modules[key]

    def looked_at(self, request: Message) -> Module:
        """The program of a request as the static model sees it: where sizes come with the call,
        versions of kernels that none of the request's sizes takes are not lowered."""
        sizes: Mapping[str, int] = self.setup["sizes"]
        if not sizes:
            return self.lowered(request)
        plan = self.schedule(request).plan
        calls = [sizes, *request.get("at", ())]
        return pipeline.lower(plan, Target.parse(self.target), calls=calls)

    def measure(self, request: Message) -> Message:
        begin = time.perf_counter()
        kernel = self.kernel(request)
        bench = self._bench()
        built = time.perf_counter()
        known = [each for each in (request.get("bound"), request.get("fastest")) if each]
        fastest = min(known, default=None)
        try:
            finding = bench.check(kernel, fastest)
        except UnfinishedError as error:  # the device is busy with it until this process ends
            parts = {"build": built - begin, "device": time.perf_counter() - built}
            reason = f"longer than {error.seconds:.3g} s"
            failed = {"status": "timeout", "fatal": True, "running": True, "reason": reason}
            return {**failed, "text": "a single run has not ended", "parts": parts}
        checked = resumed = time.perf_counter()
        samples: list[float] = []
        left, closely = list[str](), dict[str, float]()
        if finding is None:
            self._wait_for_builder()
            resumed = time.perf_counter()
            samples = bench.time(kernel, fastest)
            if _may_win(request, statistics.median(samples)):
                closely = {"closely": 1.0}
                finding, left = self._check_closely(bench, kernel, request)
        waited = resumed - checked
        device = time.perf_counter() - built - waited
        parts = {"build": built - begin, "wait": waited, "device": device}
        if finding is not None:
            found = {"status": finding.status, "reason": finding.reason, "text": finding.text}
            return {**found, "parts": parts}
        found = {"status": "ok", "samples": samples, "parts": parts, "resources": closely}
        if left:
            return {**found, "open": left}
        self._keep_right(request)
        return found

    def _check_closely(
        self, bench: Bench, kernel: Kernel, request: Message
    ) -> tuple[Finding | None, list[str]]:
        """The closer checks of a candidate that may win, and what of them is left for later: inputs
        for which references are still being made, sizes that it is not compiled for yet."""
        key, left = str(request["key"]), list[str]()
        if request.get("referring") and not bench.has_rows():
            left.append("inputs")
        if request.get("apart") and bench.is_open(kernel, key):
            left.append("sizes")
        finding = None if "inputs" in left else bench.check_rows(kernel)
        if finding is None:  # what timing has left there, or would leave in the next call
            _, finding = bench.verify(kernel, CALLS if request.get("closely") else 1)
        if finding is None and "sizes" not in left:
            finding = bench.check_elsewhere(kernel, key)
        return finding, left

    def check(self, request: Message) -> Message:
        """What is `left` of the closer checks of a candidate that has been measured."""
        begin = time.perf_counter()
        kernel, bench = self.kernel(request), self._bench()
        self._wait_for_builder()
        built = time.perf_counter()
        finding = bench.check_rows(kernel) if "inputs" in request["left"] else None
        if finding is None:
            finding = bench.check_elsewhere(kernel, str(request["key"]))
        parts = {"build": built - begin, "device": time.perf_counter() - built}
        if finding is not None:
            found = {"status": finding.status, "reason": finding.reason, "text": finding.text}
            return {**found, "parts": parts}
        self._keep_right(request)
        return {"status": "ok", "parts": parts}

    def _keep_right(self, request: Message) -> None:
        """Note the first candidate that ran correctly, for a process that takes over."""
        path = self.scratch / RIGHT
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(request))
            partial.replace(path)

    def _take_over(self, bench: Bench) -> bool:
        """Where another process measured before: do what it did first, before there is a candidate
        that waits for it.  False where there is nothing to do yet, or no room; once a process has
        died of that, none tries it again."""
        right = self.scratch / RIGHT
        died = [p for p in self.scratch.glob(f"{RIGHT}.by*") if not is_alive(int(p.suffix[3:]))]
        if not right.exists() or died:
            return False
        mark = self.scratch / f"{RIGHT}.by{os.getpid()}"
        mark.touch()
        done = bench.take_over(self.kernel(json.loads(right.read_text())))
        mark.unlink()
        return done

    def compare(self, request: Message) -> Message:
        kernels = [self.kernel(item) for item in request["candidates"]]
        self._wait_for_builder()
        samples = self._bench().compare(kernels, int(request["rounds"]), float(request["seconds"]))
        return {"status": "ok", "samples": samples}

    def verify(self, request: Message) -> Message:
        """Call a candidate that is to win again and again; how often that was."""
        kernel = self.kernel(request)
        self._wait_for_builder()
        limits = int(request["calls"]), float(request["seconds"])
        calls, finding = self._bench().verify(kernel, *limits)
        if finding is None:
            return {"status": "ok", "calls": calls}
        found = {"status": finding.status, "reason": finding.reason, "text": finding.text}
        return {**found, "calls": calls}

    def watch(self, request: Message) -> Message:
        """Time the sentinel, and when it has drifted the given candidates anew."""
        bench = self._bench()
        self._wait_for_builder()
        drift = bench.drift()
        again: dict[str, list[float]] = {}
        if drift:
            again = {str(c["key"]): self.time_again(c) for c in request["candidates"]}
        return {"status": "ok", "drift": drift, "again": again}

    def make_ready(self) -> Message:
        """Make all that measuring will need, the first time apart from any candidate's."""
        self._bench().make_ready()
        return {"status": "ok", **self.facts}

    def time_again(self, request: Message) -> list[float]:
        """The times of a candidate that has been checked."""
        return self._bench().time(self.kernel(request), None)

    def is_like(self, setup: Message) -> bool:
        """True when another set-up is of the same computation, perhaps at other sizes."""
        return self.setup["workload"] == setup["workload"] and self.by_trace == setup["trace"]

    def close(self) -> None:
        """Let go of the thread."""
        self.threads.shutdown()

    def prepare(self, request: Message) -> None:
        """Build what is asked for next, in a thread, while the device checks something else."""
        if self.builder is None or self.builder.done():
            self.builder = self.threads.submit(self._build_ahead, request)

    def fault(self) -> str | None:
        """What is wrong with the device, if it takes no more work."""
        return None if self.bench is None else self.bench.arena.fault()

    def _build_ahead(self, request: Message) -> None:
        with suppress(ScheduleError, LowerError, BackendError):  # it is told when it is its turn
            self.kernel(request)

    def _wait_for_builder(self) -> None:
        """Nothing may take the interpreter from what is being timed."""
        if self.builder is not None:
            wait([self.builder])

    def kernel(self, request: Message) -> Kernel:
        """The kernel of a request; the last few are kept."""
        key = str(request["key"]) + self.sorts
        with self.building:
            kernel = self.kernels.pop(key, None)
            if kernel is None:
                while len(self.kernels) >= KEPT:
                    del self.kernels[next(iter(self.kernels))]
                schedule = self.schedule(request)
                kernel = self._alone(schedule) if self.unseen else build(schedule, self.target)
            self.kernels[key] = kernel
        return kernel

    def _alone(self, schedule: Schedule) -> Kernel:
        """What the device will run at these sizes, without it."""
        sizes = {var.name: value for var, value in self.size.values.items()}
        return build_unseen(schedule, self.unseen, sizes)

    def schedule(self, request: Message) -> Schedule:
        """The schedule that a request describes."""
        if self.by_trace:
            return replay(self.workload.outputs, Trace.from_json(request["trace"]))
        decisions = {name: freeze(value, name) for name, value in request["decisions"].items()}
        return self.problem.schedule(decisions)

    def _bench(self) -> Bench:
        if self.bench is None:
            raise InternalError("a compiling worker was asked to measure")
        return self.bench


def _may_win(request: Message, seconds: float) -> bool:
    """Whether a candidate goes through the closer checks."""
    bound = request.get("bound")
    return bound is None or seconds <= NEAR * bound or bool(request.get("closely"))


def open_session(setup: Message) -> TuneSession:
    """The session of a set-up request."""
    return TuneSession(setup)


def preload(setup: Message) -> None:
    """Import what every session of a target needs, and a session of this problem.  Touches no
    device."""
    begin = time.perf_counter()
    kind = "cpu" if setup["target"] == "cpu" else "cuda"
    compiles = setup.get("role") == "compile"
    if compiles and kind == "cuda" and hasattr(os, "nice"):
        os.nice(YIELDING)
    for name in (*_MODULES[kind], *(() if _unseen(setup) else _DEVICE_MODULES[kind])):
        importlib.import_module(name)
    if "workload" in setup and not setup["trace"]:
        _warm_up(setup, WARM_UP if compiles else 0)
    _loading[kind] = time.perf_counter() - begin


@lru_cache(maxsize=1)
def _workload(text: str) -> Workload:
    """The workload of a set-up: of the same tensors for what runs ahead of a session and for the
    session, since what is derived is kept for tensors."""
    return Workload.from_json(text)


def _warm_up(setup: Message, candidates: int) -> None:
    """Run the lowering on the problem, and the rules on so many candidates: they import much of
    what they need when it is first used, and keep what they derive, for all that is forked after
    this."""
    outputs = _workload(str(setup["workload"])).outputs
    problem = Problem(outputs, str(setup["target"]), device=_device(setup))
    space, rng = problem.space(), random.Random(0)
    with suppress(ScheduleError, LowerError, BackendError):  # whoever asks for it is told
        lower(problem.schedule({}), problem.target)
    end = time.monotonic() + WARM_UP_SECONDS
    for _ in range(candidates):
        if time.monotonic() >= end:
            break
        space.sample(rng)


def _unseen(setup: Message) -> str:
    """The architecture of a GPU for which a worker compiles without looking at it, or nothing."""
    alone = setup["target"] == TargetKind.CUDA and setup["role"] == "compile"
    return _named(setup)[1].partition(",")[0] if alone else ""


def _named(setup: Message) -> tuple[str, str]:
    """Name and features of the GPU, as whoever looked at it says."""
    return str(setup.get("device", "")), str(setup.get("features", ""))


def _device(setup: Message) -> Device | None:
    """The GPU that candidates are made for; it is not looked at, since who works with it is forked
    from this process."""
    name, features = _named(setup)
    gpu = setup["target"] == TargetKind.CUDA and name
    return device_for(TargetKind.CUDA, name, features) if gpu else None


def _pruned(reason: str, seconds: float) -> Message:
    """The reply for a candidate that cannot launch."""
    short = reason.partition(": ")[2] or reason
    return {
        "status": "pruned",
        "reason": re.sub(r"^\d+ ", "", short).partition(",")[0],
        "text": reason,
        "resources": {"compile_seconds": seconds},
    }


def figures(resources: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a kernel's parts: for each name, the largest over all parts."""
    found: dict[str, float] = {}
    for part in resources.values():
        for name in FIGURES:
            value = getattr(part, name, None)
            if isinstance(value, (int, float)):
                found[name] = max(found.get(name, 0.0), float(value))
    return found
