"""A GPU that is this machine's processor: Triton compiles for one that is not there, and what would
be launched is computed by the CPU's default kernel.

As a worker of sessions it is the real thing but for that: compiling workers compile, the measuring
one goes through Triton's launcher as a call on a device does, checks and times.  Each compilation
and each prepared call becomes a line of the log in $JIT_WORKER_LOG.  `joint_search` makes a search
with such workers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tedsl.autotune.cluster.cluster import Farm
from tedsl.autotune.cluster.device_host import Place
from tedsl.autotune.frontend.settings import Options
from tedsl.autotune.measure.guarded_buffers import HostArena
from tedsl.autotune.workers.worker_main import serve
from tedsl.backends.processes.serving import Message
from tedsl.backends.triton.compile.offline import load_source
from tedsl.backends.triton.emit.module import emit
from tedsl.build import build, build_unseen, lower
from tedsl.runtime.arguments.signature import ArraySpec, Binding
from tedsl.runtime.arrays.allocation import numpy_at
from tedsl.runtime.arrays.views import CPU
from tedsl.runtime.cache.fingerprint import code_version
from tedsl.runtime.kernel import Kernel, Launch
from tedsl.target import Target

LOG = "JIT_WORKER_LOG"
COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))
DEVICE = "NVIDIA H200"
FEATURES = "sm_90, 132 processors, 139 GiB"


def note(**what: Any) -> None:
    """A line of the log."""
    with Path(os.environ[LOG]).open("a") as file:
        file.write(json.dumps(what) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines that workers wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Executor:
    """Has Triton's launcher compile for a call, and computes it with the CPU's kernel."""

    device = CPU
    from_cache = False
    source = asm = code = ""
    resources: Mapping[str, Any] = {}

    def __init__(self, schedule: Any) -> None:
        self.program = emit(lower(schedule, "cuda"), Target.parse("cuda"))
        self.kernel = build(list(schedule.outputs), "cpu")

    def check_runnable(self) -> None:
        pass

    def adopt(self, array: Any) -> Any:
        return array

    def workspaces(self, binding: Binding) -> tuple[ArraySpec, ...]:
        return ()

    def inlined(self, binding: Binding) -> None:
        pass

    def prepare(self, binding: Binding) -> Launch:
        module, program = self.program.module, self.program
        sizes = dict(zip(module.sizes, binding.sizes, strict=True))
        note(role="measure", called={var.name: value for var, value in sizes.items()})
        jit = importlib.import_module("triton.runtime.jit")
        language = importlib.import_module("triton.language")
        for _, known, specs in program.launches(sizes):
            for spec in specs:
                grid = spec.grid_for(known)
                if 0 in grid:
                    continue
                given = [
                    jit.MockTensor(getattr(language, param.element.value))
                    if param.var is None
                    else known[param.var]
                    for param in spec.params
                ]
                function = getattr(load_source(program.source), spec.name)
                function.warmup(*given, grid=grid, **spec.options())
        names = [buffer.name for buffer in module.inputs]
        order = [names.index(buffer.name) for buffer in self.kernel.signature.inputs]
        specs_of = (*binding.inputs, *binding.outputs)

        def launch(pointers: Sequence[int], arrays: Sequence[Any]) -> None:
            views = [numpy_at(p, spec) for p, spec in zip(pointers, specs_of, strict=False)]
            inputs, outputs = views[: len(names)], views[len(names) :]
            self.kernel(*[inputs[place] for place in order], out=tuple(outputs))

        return launch


def kernel_of(schedule: Any, target: str) -> Kernel:
    """What is built for the device that is not there."""
    module = lower(schedule, target)
    executor = Executor(schedule)
    return Kernel(module, Target.parse(target), executor, schedule=schedule.copy())


class Driver:
    """What Triton asks of a device in order to compile for it."""

    utils = SimpleNamespace(
        load_binary=lambda *_: (None, 1, 0, 0, 1024),
        get_device_properties=lambda _: {"max_shared_mem": 232448},
    )

    @staticmethod
    def launcher_cls(*_: Any) -> Callable[..., None]:
        return lambda *_: None

    @staticmethod
    def get_current_target() -> Any:
        return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)

    @staticmethod
    def get_current_device() -> int:
        return 0

    @staticmethod
    def get_current_stream(device: int) -> int:
        return device


def open_session(setup: Message) -> Any:
    """The real session of several problems, on the device that is not there."""
    sessions = importlib.import_module("tedsl.autotune.workers.session_server")
    role = str(setup["role"])

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        note(role=role, compiled=src.name, found=cache_hit)

    importlib.import_module("triton").knobs.compilation.listener = listen
    if role == "measure":
        runtime = importlib.import_module("triton.runtime")
        runtime.driver.set_active(Driver())
        bench = importlib.import_module("tedsl.autotune.measure.bench")
        bench.__dict__["open_arena"] = lambda _: HostArena()
        session = importlib.import_module("tedsl.autotune.workers.session")
        session.__dict__["build"] = kernel_of
    return sessions.Sessions(setup)


@contextmanager
def joint_search(
    outputs: Any, sizes: Sequence[Mapping[str, int]], workers: int, **options: Any
) -> Generator[Any]:
    """A search for several sizes with such workers, ready to run."""
    hosts = importlib.import_module("tedsl.autotune.cluster.device_host")
    joint = importlib.import_module("tedsl.autotune.multi.multi_size")
    records = importlib.import_module("tedsl.autotune.records.database")
    facts = {"device": DEVICE, "features": FEATURES, "toolchain": "", "codegen": code_version()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosts, "usable_cores", lambda: workers + 1)
        patch.setattr(hosts, "describe_gpu", lambda index=None: (DEVICE, FEATURES))
        patch.setattr(hosts, "facts_of", lambda target: facts)
        patch.setattr(joint, "build", lambda schedule, target: build_unseen(schedule, "sm_90"))
        with Farm(Place("cuda", command=COMMAND)) as farm:
            given = [(dict(size), 1.0) for size in sizes]
            chosen = Options(records=False, progress=False, **options)
            yield joint.Joint(outputs, "cuda", given, records.Records(None), chosen, farm)


def preload(setup: Message) -> None:
    """What is loaded before the fork: nothing that needs a device."""
    session = importlib.import_module("tedsl.autotune.workers.session")
    session.__dict__["_DEVICE_MODULES"] = {"cpu": (), "cuda": ()}
    session.preload(setup)


if __name__ == "__main__":
    serve(open_session, preload)
