"""`python -m tedsl doctor`: what is installed, which targets work, what to do about the rest."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tedsl import nn
from tedsl.autotune.records.database import default_path
from tedsl.autotune.records.machine import describe_cpu, describe_gpu
from tedsl.build import build
from tedsl.devices import ARCHITECTURES
from tedsl.errors import BackendError, TedslError
from tedsl.packages import install
from tedsl.reference.reference import evaluate
from tedsl.runtime.cache.disk import disk_cache
from tedsl.target import Target
from tedsl.tensor.compute import placeholder

EXTRAS = {
    "torch": "kernels on a GPU are launched through it",
    "lightgbm": "searches learn with boosted trees",
    "matplotlib": "reports are drawn with it",
    "distributed": "searches may use other hosts",
}
COMPILED = tuple(f"cuda:{arch}" for arch in ARCHITECTURES)
ROWS, COLUMNS, TOLERANCE = 4, 100, 1e-5


class State(StrEnum):
    """How it stands with one thing."""

    WORKS = "works"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the thing, how it stands, what was found, and what to do if that is
    not enough."""

    subject: str
    state: State
    found: str
    do: str = ""

    def __str__(self) -> str:
        line = f"  {self.subject:<17} {self.state:<7} {self.found}".rstrip()
        return f"{line}\n  {'':<17} do      {self.do}" if self.do else line


def add(commands: Any) -> None:
    """Declare the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="check this installation",
        description="Print what is installed, build and run a softmax on every target, and say "
        "what to do about what does not work. Exits with 1 when the CPU target does not work.",
    )
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    groups = {"packages": packages, "machine": machine, "targets": targets, "places": places}
    found = {title: list(check()) for title, check in groups.items()}
    if options.json:
        rows = {title: [asdict(each) for each in group] for title, group in found.items()}
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        for title, group in found.items():
            sys.stdout.write("\n".join([title, *map(str, group)]) + "\n")
    needed = [each for each in found["packages"] if each.subject not in EXTRAS]
    return int(any(each.state is not State.WORKS for each in [*needed, found["targets"][0]]))


def packages() -> Iterator[Finding]:
    """Python, what tedsl needs, and what it can use."""
    yield Finding("python", State.WORKS, f"{platform.python_version()} in {sys.prefix}")
    for name in _required():
        version = _version(name)
        state = State.WORKS if version else State.ABSENT
        yield Finding(name, state, version, "" if version else install(name))
    for name, purpose in EXTRAS.items():
        version = _version(name)
        if version:
            yield Finding(name, State.WORKS, version)
        else:
            yield Finding(name, State.ABSENT, f"optional: {purpose}", install(name))


def machine() -> Iterator[Finding]:
    """The processor, and the GPU that PyTorch finds."""
    name, features = describe_cpu()
    wide = max((f for f in ("avx512f", "avx2", "sve", "neon") if f in features), default="")
    yield Finding("processor", State.WORKS, f"{name}{', ' if wide else ''}{wide}")
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        advice = "nothing: the CPU target needs none, and kernels can be compiled for GPUs here"
        yield Finding("GPU", State.ABSENT, "no NVIDIA device", advice)
        return
    try:
        device, facts = describe_gpu()
    except TedslError as error:
        yield Finding("GPU", State.BROKEN, error.reason, error.hint)
    else:
        yield Finding("GPU", State.WORKS, f"{device}, {facts}")


def targets() -> Iterator[Finding]:
    """Every target, tried: the CPU first."""
    yield _tried("cpu", _runs)
    yield _tried("triton-interpret", _runs)
    for target in COMPILED:
        yield _tried(target, _compiles)
    yield _tried("cuda", _runs)


def places() -> Iterator[Finding]:
    """Where tedsl writes."""
    try:
        cache = disk_cache()
    except BackendError as error:
        yield Finding("cache", State.BROKEN, str(error).replace("\n", " "), error.hint)
    else:
        if cache is None:
            advice = "te.runtime.set_cache_dir(path), or TEDSL_CACHE_DIR in the environment"
            yield Finding("cache", State.BROKEN, "the folder cannot be made", advice)
        else:
            sizes = [path.stat().st_size for path in cache.root.glob("*.entry")]
            held = f"{len(sizes)} entries, {sum(sizes) / 2**20:.1f} of {cache.limit >> 20} MiB"
            yield Finding("cache", State.WORKS, f"{cache.root}: {held}")
    records = default_path()
    if records.exists():
        yield Finding("records", State.WORKS, f"{records}: {records.stat().st_size >> 10} KiB")
    else:
        yield Finding("records", State.ABSENT, f"{records}: nothing has been tuned yet")


def _tried(target: str, check: Callable[[str], str]) -> Finding:
    begin = time.perf_counter()
    try:
        found = check(target)
    except TedslError as error:
        absent = isinstance(error, BackendError) and bool(error.hint)
        state = State.ABSENT if absent and target != "cpu" else State.BROKEN
        return Finding(target, state, str(error).partition("\n")[0], error.hint)
    return Finding(target, State.WORKS, f"{found} in {time.perf_counter() - begin:.2f} s")


def _runs(target: str) -> str:
    """Build a softmax, run it and compare it with its definition.

    Raises:
        TedslError: it cannot be built or run here, or gives something else.
    """
    x = placeholder((ROWS, COLUMNS), "float32", name="x")
    y = nn.softmax(x)
    kernel = build(y, target=target, cache=False)
    data = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    given: Any = data
    if Target.parse(target).kind.value == "cuda":
        given = importlib.import_module("torch").from_numpy(data).cuda()
    got: Any = kernel(given)
    array: Any = np.from_dlpack(got if target != "cuda" else got.cpu())
    wanted: Any = evaluate(y, {x: data})[0]
    error = float(abs(array - wanted).max())
    if not error < TOLERANCE:
        raise BackendError(
            f"a softmax is wrong by {error:.2g}",
            subject=f"target {target}",
            hint="report it, with this report and the versions in it",
        )
    return f"a softmax is right to {error:.0e}; built and run"


def _compiles(target: str) -> str:
    """Compile a softmax for a GPU that need not be there.

    Raises:
        TedslError: it cannot be compiled.
    """
    x = placeholder((ROWS, COLUMNS), "float32", name="x")
    kernel = build(nn.softmax(x), target=target, cache=False)
    (figures,) = kernel.resources.values()
    return f"a softmax takes {figures.registers} registers; compiled"


def _required() -> list[str]:
    """The packages that tedsl cannot do without, as its own metadata list them."""
    listed = metadata.requires("tedsl") or []
    return [re.split(r"[^\w.-]", each)[0] for each in listed if "extra ==" not in each]


def _version(package: str) -> str:
    """The version of an installed package; empty where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
