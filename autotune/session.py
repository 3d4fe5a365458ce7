"""What a worker does with one problem: build a candidate, check it, time it.

Runs inside the child process (see `worker`).  The inputs and the reference are made once, the
reference is kept in the run's scratch folder so that a restarted worker finds it.  Imports `build`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tedsl.autotune.arena import Arena, Guarded, Wanted, open_arena
from tedsl.autotune.builders import Problem
from tedsl.autotune.check import Tolerance
from tedsl.autotune.inputs import KINDS, Array, Extents, make_inputs
from tedsl.autotune.oracle import Oracle, argument_order, scalars_of
from tedsl.autotune.space import freeze
from tedsl.autotune.worker import Message
from tedsl.autotune.workload import Workload
from tedsl.build import build
from tedsl.errors import InternalError
from tedsl.expr.tensor import Tensor
from tedsl.runtime.arrays import NUMPY_DTYPES
from tedsl.runtime.fingerprint import fingerprint
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.replay import replay
from tedsl.scheduling.schedule import Schedule
from tedsl.scheduling.trace import Trace

RACE = 3
"""Runs after which a clearly slower candidate is dropped."""
REPEATS = 15
SAMPLE_SECONDS = 1.0
KEPT = 8


class TuneSession:
    """One problem on one target.

    Args:
        setup: `workload` (JSON), `target`, `sizes` by name, `seed`, `scratch` (a folder), `role`
            (`compile` or `measure`), `trace` (whether candidates come as traces, not decisions).
    """

    def __init__(self, setup: Message) -> None:
        self.workload = Workload.from_json(setup["workload"])
        self.target = str(setup["target"])
        self.by_trace = bool(setup["trace"])
        self.problem = Problem(self.workload.outputs, self.target)
        self.size = Extents(self.workload, setup["sizes"])
        self.scratch = Path(setup["scratch"])
        self.seed = int(setup["seed"])
        self.kernels: dict[str, Kernel] = {}
        self.bench: Bench | None = None
        if setup["role"] == "measure":
            self.bench = Bench(self)

    @property
    def facts(self) -> Message:
        """How the reference was made."""
        return {} if self.bench is None else {"reference": self.bench.oracle.source}

    def compile(self, request: Message) -> Message:
        begin = time.perf_counter()
        kernel = self.kernel(request)
        # On a GPU the device's own compiler runs when its figures are asked for, and what it made
        # is found again in Triton's cache by the measuring worker.
        resources = figures(kernel.resources)
        resources["compile_seconds"] = time.perf_counter() - begin
        return {"status": "ok", "code": fingerprint(kernel.module), "resources": resources}

    def measure(self, request: Message) -> Message:
        kernel = self.kernel(request)
        bench = self._bench()
        wrong = bench.check(kernel)
        if wrong is not None:
            reason = "wrong output" if "red zone" not in wrong else "wrote outside its output"
            return {"status": "wrong", "reason": reason, "text": wrong}
        return {"status": "ok", "samples": bench.time(kernel, request.get("bound"))}

    def compare(self, request: Message) -> Message:
        kernels = [self.kernel(item) for item in request["candidates"]]
        samples = self._bench().compare(kernels, int(request["rounds"]), float(request["seconds"]))
        return {"status": "ok", "samples": samples}

    def kernel(self, request: Message) -> Kernel:
        """The kernel of a request; the last few are kept."""
        key = str(request["key"])
        kernel = self.kernels.get(key)
        if kernel is None:
            while len(self.kernels) >= KEPT:
                del self.kernels[next(iter(self.kernels))]
            kernel = self.kernels[key] = build(self.schedule(request), self.target)
        return kernel

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


class Bench:
    """Guarded inputs and outputs, what the outputs must be, and a clock."""

    def __init__(self, session: TuneSession) -> None:
        self.session = session
        self.arena: Arena = open_arena(session.target)
        self.workload = session.workload
        self.size = session.size
        self.oracle = Oracle(self.size, session.target)
        self.tolerances = [
            Tolerance.of(self.size, t).times(self.oracle.factor) for t in self.workload.outputs
        ]
        self.inputs: dict[str, dict[Tensor, Guarded]] = {}
        self.sums: dict[str, dict[Tensor, int]] = {}
        self.wanted: dict[str, list[Wanted]] = {}
        for kind in KINDS:
            host = make_inputs(self.size, session.seed, kind)
            found, noises = self._reference(kind, host)
            self.wanted[kind] = [
                self.arena.want(array, replace(tolerance, noise=noise))
                for array, tolerance, noise in zip(found, self.tolerances, noises, strict=True)
            ]
            self.inputs[kind] = {t: self.arena.put(a, t.dtype) for t, a in host.items()}
            self.sums[kind] = {t: self.arena.checksum(g) for t, g in self.inputs[kind].items()}
        self.outputs = [
            self.arena.empty(self.size.shape(t), t.dtype) for t in self.workload.outputs
        ]

    def check(self, kernel: Kernel) -> str | None:
        """What is wrong with the kernel's results, or None."""
        arena = self.arena
        for kind in KINDS:
            for output in self.outputs:
                arena.poison(output)
            self._run(kernel, kind)
            for tensor, output, wanted in zip(
                self.workload.outputs, self.outputs, self.wanted[kind], strict=True
            ):
                wrong = arena.wrong(output, wanted, tensor.name)
                if wrong is not None:
                    return f"{kind} inputs: {wrong}"
                if not arena.intact(output):
                    return f"{kind} inputs: the red zone around {tensor.name} was written"
            for tensor, given in self.inputs[kind].items():
                if arena.checksum(given) != self.sums[kind][tensor]:
                    return f"{kind} inputs: the input {tensor.name} was written"
        return None

    def time(self, kernel: Kernel, bound: float | None) -> list[float]:
        """Seconds of single calls; few when the first are clearly above 1.5 times `bound`."""
        call = self._call(kernel, "random")
        race = self.arena.time({"": call}, RACE, SAMPLE_SECONDS)[""]
        if bound is not None and min(race) > 1.5 * bound:
            return list(race)
        repeats = REPEATS if statistics.median(race) < SAMPLE_SECONDS / REPEATS else RACE
        return list(self.arena.time({"": call}, repeats, SAMPLE_SECONDS)[""])

    def compare(self, kernels: list[Kernel], rounds: int, seconds: float) -> list[list[float]]:
        """Samples of several kernels, taken in turn."""
        calls = {str(n): self._call(kernel, "random") for n, kernel in enumerate(kernels)}
        found = self.arena.time(calls, rounds, seconds)
        return [list(found[name]) for name in calls]

    def _run(self, kernel: Kernel, kind: str) -> None:
        self._call(kernel, kind)()
        self.arena.finish()

    def _call(self, kernel: Kernel, kind: str) -> Any:
        """A call of the kernel with everything bound."""
        arguments = [self.inputs[kind][t].array for t in argument_order(kernel)]
        out = tuple(g.array for g in self.outputs)
        scalars = scalars_of(kernel, self.size)

        def call() -> object:
            return kernel(*arguments, out=out, **scalars)

        return call

    def _reference(self, kind: str, inputs: dict[Tensor, Array]) -> tuple[list[Array], list[float]]:
        """The wanted outputs and their noise, from the scratch folder when a worker made them."""
        paths = [
            self.session.scratch / f"{kind}.{n}.npy" for n in range(len(self.workload.outputs))
        ]
        noted = self.session.scratch / f"{kind}.noise.json"
        if all(path.exists() for path in (*paths, noted)):
            pairs = zip(paths, self.workload.outputs, strict=True)
            noises = [float(x) for x in json.loads(noted.read_text())]
            return [_load(path, t, self.size.shape(t)) for path, t in pairs], noises
        found = self.oracle.outputs(inputs, self.session.seed)
        for path, array in zip(paths, found, strict=True):
            partial = path.with_suffix(".part")
            with partial.open("wb") as file:
                np.save(file, array.reshape(-1).view(np.uint8), allow_pickle=False)
            partial.replace(path)
        noises = self.oracle.noise(inputs, found, self.session.seed)
        partial = noted.with_suffix(".part")
        partial.write_text(json.dumps(noises))
        partial.replace(noted)
        return found, noises


def open_session(setup: Message) -> TuneSession:
    """The session of a set-up request."""
    return TuneSession(setup)


def figures(resources: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a kernel's parts: for each name, the largest over all parts."""
    found: dict[str, float] = {}
    for part in resources.values():
        for name in ("registers", "stack", "shared", "num_warps"):
            value = getattr(part, name, None)
            if isinstance(value, (int, float)):
                found[name] = max(found.get(name, 0.0), float(value))
    return found


def _load(path: Path, tensor: Tensor, shape: tuple[int, ...]) -> Array:
    raw: Array = np.load(path, allow_pickle=False)
    return raw.view(NUMPY_DTYPES[tensor.dtype]).reshape(shape)
