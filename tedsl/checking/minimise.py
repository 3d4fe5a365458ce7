"""`te.minimise`: a small program that fails as a given one does.

Each program that is tried is text, and runs in a process of its own, which may crash or hang; what
is printed in the end is the smallest of them.  Imports `step_check` and what it does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tedsl.checking.checked import Checks, Sizes
from tedsl.checking.simpler_programs import KINDS, Pair
from tedsl.checking.step_check import StepChecker, difference
from tedsl.checking.written_out import Writer
from tedsl.errors import ScheduleError, TedslError
from tedsl.processor import usable_cores
from tedsl.runtime.kernel import Kernel
from tedsl.saving import save
from tedsl.saving import text as text_file
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.graph import runtime_sizes
from tedsl.scheduling.trace.replay import replay_what_applies
from tedsl.scheduling.trace.trace import Trace
from tedsl.slips import suggests
from tedsl.target import Target, TargetKind
from tedsl.tensor.printer import operations
from tedsl.tensor.signatures import explained
from tedsl.tensor.tensor import ExternOp, PlaceholderOp

POINTS = 1 << 24
"""Points of iteration spaces that one comparison may have."""
WRONG = "wrong numbers: "
_FRAME = re.compile(r'File ".*?(tedsl/[\w/]+)\.py", line \d+, in (\w+)')
_ERROR = re.compile(r"^([\w.]+(?:Error|Exception|Interrupt)): ?(.*)", re.MULTILINE)


@suggests()
@dataclass(frozen=True, slots=True)
class Minimised:
    """What `te.minimise` found; `print` it.

    Attributes:
        source: the program, which runs by itself.
        failure: how it fails, as the given one does.
        tried: how many programs were run.
        finished: False where the time was over before nothing smaller was left to try.
    """

    source: str
    failure: str
    tried: int
    finished: bool

    def __str__(self) -> str:
        return self.source

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the program to a file that ends in `.py`."""
        return save(path, "a program", {".py": text_file(lambda: self.source)})


@explained
def minimise(
    what: Schedule | Kernel,
    target: str | None = None,
    *,
    sizes: Sizes | None = None,
    seconds: float = 120.0,
    limit: float = 30.0,
) -> Minimised:
    """Make a schedule that fails, and what it computes, smaller, while it fails in the same way.

    A failure is a number that is wrong against the definition, an error where it is built or called
    (of the same class, raised in the same function), a process that ends, or one that takes longer
    than `limit`.  Calls are left out, operations become inputs, extents, factors and expressions
    smaller.

    Args:
        what: a schedule, or the kernel of one.
        target: what to build for, as `te.build` takes it; by default that of the kernel, else cpu.
            For a GPU that is not there it is built only.
        sizes: what a symbolic size may be: a number, or several to draw from.
        seconds: how long to try.
        limit: seconds after which one program hangs.

    Returns:
        The smallest program found: `print` or `save` it.

    Raises:
        ScheduleError: nothing fails; a kernel without a schedule; or an operation that cannot be
            written down (`te.extern`).
    """
    schedule, target = _given(what, target)
    search = _Search(target, dict(sizes or {}), limit, time.monotonic() + seconds)
    pair = Pair(schedule.definition, schedule.trace.steps)
    source = search.written(pair)
    found = search.failure(source or "")
    if not found[0]:
        raise ScheduleError(
            "nothing fails: it is built, and its numbers are those of the definition",
            subject="minimise",
            facts=[("target", target)],
            hint="name the target, and the sizes, at which it fails: sizes={'n': 7}",
        )
    return search.run(pair, source or "", found)


def wrong_numbers(kernel: Kernel, sizes: Sizes | None = None, seed: int = 0) -> str:
    """What is wrong with the results of a kernel on random inputs, or nothing.

    Args:
        kernel: built from a schedule, for arrays of NumPy.
        sizes: what symbolic sizes may be; odd ones, 1 and 0 unless given.
        seed: of the inputs.
    """
    schedule: Any = kernel.schedule
    plan = schedule.plan
    checker = StepChecker(Checks(), dict(sizes or {}), seed, POINTS)
    rng = np.random.default_rng(seed)
    ran = False
    for wanted in checker.runs(schedule.definition, runtime_sizes(plan), plan.assumptions, rng):
        ran = True
        named = {
            stage.name: wanted.inputs[stage.op.outputs[0]]
            for stage in plan.stages
            if isinstance(stage.op, PlaceholderOp) and stage.op.outputs[0] in wanted.inputs
        }
        values = {var.name: value for var, value in wanted.size.values.items()}
        scalars = {name: values[name] for name in kernel.signature.keywords if name in values}
        made: Any = kernel(*[named[buffer.name] for buffer in kernel.module.inputs], **scalars)
        for place, got in enumerate(_listed(made)):
            complaint = difference(schedule, wanted, place, np.asarray(got))
            if complaint is not None:
                return f"{complaint} ({wanted.text})" if wanted.text else complaint
    if not ran:
        raise ScheduleError(
            f"no run of at most {POINTS} points was found",
            subject="wrong_numbers",
            hint="make constant extents smaller, or name small sizes",
        )
    return ""


def _listed(made: Any) -> list[Any]:
    """The results of a call."""
    return [*made] if isinstance(made, tuple) else [made]  # pyright: ignore[reportUnknownArgumentType]


def _given(what: Schedule | Kernel, target: str | None) -> tuple[Schedule, str]:
    schedule = what.schedule if isinstance(what, Kernel) else what
    if not isinstance(schedule, Schedule):
        raise ScheduleError(
            "the kernel does not know its schedule",
            subject="minimise",
            hint="pass the schedule that it was built from",
        )
    for op in operations(schedule.definition):
        if isinstance(op, ExternOp):
            raise ScheduleError(
                f"{op.name} calls a function from outside, which cannot be written down",
                subject="minimise",
                hint="make it a te.placeholder, and try what is around it",
            )
    built = str(what.target) if isinstance(what, Kernel) else schedule.target
    return schedule, str(Target.parse(target or built or "cpu"))


class _Search:
    """Programs that are tried, and how they fail."""

    def __init__(self, target: str, sizes: Mapping[Any, Any], limit: float, end: float) -> None:
        self.target, self.limit, self.end = target, limit, end
        self.sizes = {getattr(key, "name", key): value for key, value in sizes.items()}
        self.tried: set[str] = set()

    def written(self, pair: Pair) -> str | None:
        """The program of a pair; None where there is none."""
        try:
            schedule, _ = replay_what_applies(pair.outputs, Trace(pair.steps))
            writer = Writer(schedule.definition)
        except TedslError:
            return None
        names = [writer.tensor(tensor) for tensor in schedule.definition]
        lines = ["import tedsl as te", "", *writer.lines, "", schedule.as_python(*names).rstrip()]
        lines.append(f"kernel = te.build(s, target={self.target!r}, cache=False)")
        if Target.parse(self.target).kind is not TargetKind.CUDA:
            known = runtime_sizes(schedule.plan)
            sizes = {name: value for name, value in self.sizes.items() if name in known}
            given = f", {sizes!r}" if sizes else ""
            lines.insert(1, "from tedsl.checking.minimise import wrong_numbers")
            lines.append(f"wrong = wrong_numbers(kernel{given})")
            lines.append(f"print({WRONG!r} + wrong if wrong else 'right')")
        return "\n".join(lines) + "\n"

    def failure(self, source: str) -> tuple[str, str]:
        """How a program fails, to be compared and in words; empty where it does not."""
        with tempfile.TemporaryDirectory(prefix="tedsl-minimise-") as folder:
            path = Path(folder) / "program.py"
            path.write_text(source, encoding="utf-8")
            ran = subprocess.Popen(
                [sys.executable, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            try:
                said, errors = ran.communicate(timeout=self.limit)
            except subprocess.TimeoutExpired:
                os.killpg(ran.pid, signal.SIGKILL)
                ran.communicate()
                return "hangs", f"takes longer than {self.limit:g} s"
        return judged(ran.returncode, said, errors)

    def run(self, pair: Pair, source: str, found: tuple[str, str]) -> Minimised:
        """Take what is smaller and fails alike, until there is nothing."""
        with ThreadPoolExecutor(usable_cores()) as pool:
            changed = True
            while changed:
                changed = False
                for kind in KINDS:
                    while True:
                        better = self._better(pool, kind(pair), source, found[0])
                        if better is None:
                            break
                        pair, source, found = better
                        changed = True
        comment = f"# {found[1]}\n"
        return Minimised(comment + source, found[1], len(self.tried), time.monotonic() < self.end)

    def _better(
        self, pool: ThreadPoolExecutor, pairs: Iterator[Pair], source: str, same: str
    ) -> tuple[Pair, str, tuple[str, str]] | None:
        """The first smaller program that fails in the same way."""
        written = ((pair, self.written(pair)) for pair in pairs)
        new = ((pair, text) for pair, text in written if text and text not in self.tried)
        smaller = ((pair, text) for pair, text in new if _size(text) < _size(source))
        while time.monotonic() < self.end:
            batch = list(islice(smaller, usable_cores()))
            if not batch:
                return None
            self.tried.update(text for _, text in batch)
            fails = pool.map(self.failure, [text for _, text in batch])
            for (pair, text), found in zip(batch, list(fails), strict=True):
                if found[0] == same:
                    return pair, text, found
        return None


def judged(status: int, said: str, errors: str) -> tuple[str, str]:
    """How a program failed that ended with `status` and printed that, as `_Search.failure`."""
    if status < 0:
        name = signal.Signals(-status).name
        return name, f"ends its process: {name}"
    if status:
        frames, told = _FRAME.findall(errors), _ERROR.findall(errors)
        if not told:
            return "fails", errors.strip().rpartition("\n")[2]
        kind, reason = told[-1]
        where = " ".join(frames[-1]) if frames else ""
        return f"{kind} {where}", f"{kind.rpartition('.')[2]}: {reason}"
    line = next((each for each in said.splitlines() if each.startswith(WRONG)), "")
    return (WRONG, line) if line else ("", "")


def _size(source: str) -> tuple[int, int, int]:
    """Of two programs that which has fewer lines is smaller, then fewer characters but for digits,
    then smaller numbers."""
    digits = [int(each) for each in re.findall(r"\d+", source)]
    return source.count("\n"), len(re.sub(r"\d+", "", source)), sum(digits)
