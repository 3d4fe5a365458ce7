"""Runs rows in child processes, several at once, of which one at a time has a device.

A child compiles first (ours and its peers), beside others; then it says that it is ready.  Its turn
comes when no other child measures on its device.  With one device all others are stopped, so that
neither the processor nor the device does anything else, and go on afterwards; with several devices
they go on compiling, which wants a processor with cores to spare.  A child that takes too long is
killed, one that dies or raises is recorded with its reason, and a time budget ends the run with
what it has.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Row = dict[str, Any]
TICK = 0.2
TAIL = 1500


@dataclass(frozen=True)
class Plan:
    """How rows are run.

    Attributes:
        mode: the job of the children.
        settings: what it is told.
        suite: the module that has the rows.
        jobs: children at a time.
        prepare: seconds that a child may take until it is ready, those it is stopped not counted.
        measure: seconds that it may take from then on.
        seconds: of the whole run; None for no limit.
        quiet: stop the other children while one measures; not where there are several devices.
        devices: values of CUDA_VISIBLE_DEVICES, over which the children are spread; none for what
            the environment has.
        variables: of the children's environment.
        python: what runs them.
    """

    mode: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    suite: str = "suite"
    jobs: int = 1
    prepare: float = 300.0
    measure: float = 60.0
    seconds: float | None = None
    quiet: bool = True
    devices: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    python: str = sys.executable


@dataclass
class _Child:
    """A row that is under way."""

    name: str
    process: subprocess.Popen[bytes]
    device: str
    log: Path
    deadline: float
    limit: float
    started: float
    phase: str = "preparing"
    text: bytes = b""
    ready_after: float | None = None
    ready_at: float = 0.0

    def messages(self) -> list[Row]:
        """The whole lines that have come."""
        *lines, self.text = self.text.split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]

    def signal(self, number: int) -> None:
        """To the child and whatever it has started in its group."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return

    def tail(self) -> str:
        """The last that it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-TAIL:].strip()


class Runner:
    """One run over some rows."""

    def __init__(self, plan: Plan, on_row: Callable[[Row], None]) -> None:
        self._plan = plan
        self._on_row = on_row
        self._children: dict[int, _Child] = {}
        self._devices = tuple(plan.devices) or ("",)
        self._quiet = plan.quiet and len(self._devices) == 1
        self._measuring: dict[str, _Child] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="tedsl-benchmark-"))
        self._selector = selectors.DefaultSelector()
        self._begin = time.monotonic()
        self._count = 0

    def run(self, names: Sequence[str]) -> list[str]:
        """Run the rows in this order.

        Returns:
            The names of those for which there was no time.
        """
        waiting, left = list(names), list[str]()
        try:
            while waiting or self._children:
                if self._spent() and not self._measuring:
                    left += [child.name for child in self._children.values()] + waiting
                    break
                while waiting and self._has_room():
                    self._start(waiting.pop(0))
                self._listen()
                self._end_late()
                self._next_turn()
        finally:
            for child in list(self._children.values()):
                self._stop(child)
            self._selector.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        return left

    def _spent(self) -> bool:
        """True when the budget is; a row that measures then may finish, within its limit."""
        seconds = self._plan.seconds
        return seconds is not None and time.monotonic() - self._begin > seconds

    def _has_room(self) -> bool:
        """True when another child may start: none does beside one that measures."""
        silent = bool(self._measuring) and self._quiet
        return len(self._children) < self._plan.jobs and not silent and not self._spent()

    def _start(self, name: str) -> None:
        plan = self._plan
        children = [child.device for child in self._children.values()]
        device = min(self._devices, key=children.count)
        visible = {"CUDA_VISIBLE_DEVICES": device} if device else {}
        self._count += 1
        log = self._folder / f"{self._count}.txt"
        command = [plan.python, str(HERE / "child.py"), "--suite", plan.suite]
        command += ["--mode", plan.mode, "--row", name, "--settings", json.dumps(plan.settings)]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, **plan.variables, **visible},
            )
        now = time.monotonic()
        child = _Child(name, process, device, log, now + plan.prepare, plan.prepare, now)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        self._children[process.pid] = child

    def _listen(self) -> None:
        """Take what the children have said, for a moment."""
        for key, _ in self._selector.select(TICK):
            child: _Child = key.data
            stream = child.process.stdout
            assert stream is not None
            data = stream.read()
            if not data:
                self._died(child)
                continue
            child.text += data
            for message in child.messages():
                if "row" in message:
                    self._finish(child, message["row"])
                else:
                    child.phase = "ready"
                    child.ready_at = time.monotonic()
                    child.ready_after = child.ready_at - child.started

    def _died(self, child: _Child) -> None:
        """The end of the stream without an answer."""
        if child.process.pid not in self._children:
            return
        status = child.process.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        where = "measuring" if child.phase == "measuring" else "preparing"
        self._finish(child, self._failure(child, f"the process ended with {how} while {where}"))

    def _failure(self, child: _Child, reason: str) -> Row:
        return {"name": child.name, "failed": reason, "log": child.tail()}

    def _end_late(self) -> None:
        """Kill those whose time is over; one that waits for its turn has time."""
        now = time.monotonic()
        for child in list(self._children.values()):
            stopped = self._quiet and self._measuring and child.phase != "measuring"
            if child.phase != "ready" and not stopped and now > child.deadline:
                reason = f"did not end within {child.limit:g} s of {child.phase}"
                child.signal(signal.SIGKILL)
                child.process.wait()
                self._finish(child, self._failure(child, reason))

    def _next_turn(self) -> None:
        """On each free device, let the child that has waited longest measure; stop the others."""
        for device in self._devices:
            ready = [
                child
                for child in self._children.values()
                if child.phase == "ready" and child.device == device
            ]
            if device not in self._measuring and ready:
                self._measure(min(ready, key=lambda each: each.ready_at))

    def _measure(self, child: _Child) -> None:
        """It has its device from now on."""
        child.phase, child.limit = "measuring", self._plan.measure
        child.deadline = time.monotonic() + child.limit
        self._measuring[child.device] = child
        if self._quiet:
            for other in self._others(child):
                other.deadline -= time.monotonic()  # what is left of it
                other.signal(signal.SIGSTOP)
        stdin = child.process.stdin
        assert stdin is not None
        try:
            stdin.write(b"go\n")
            stdin.flush()
        except BrokenPipeError:
            return  # its stream ends next

    def _others(self, child: _Child) -> list[_Child]:
        return [each for each in self._children.values() if each is not child]

    def _finish(self, child: _Child, row: Row) -> None:
        """Report a row, end its process, let the others go on."""
        if child.process.pid not in self._children:
            return
        others = self._others(child)
        self._stop(child)
        if self._measuring.get(child.device) is child:
            del self._measuring[child.device]
            if self._quiet:
                for other in others:
                    other.deadline += time.monotonic()
                    other.signal(signal.SIGCONT)
        if child.ready_after is not None:
            row["prepared_seconds"] = round(child.ready_after, 1)
        self._on_row(row)

    def _stop(self, child: _Child) -> None:
        """Kill the group: the answer is here, and nothing of it may go on using the device."""
        del self._children[child.process.pid]
        stream, stdin = child.process.stdout, child.process.stdin
        if stream is not None:
            self._selector.unregister(stream)
            stream.close()
        child.signal(signal.SIGKILL)
        child.process.wait()
        if stdin is not None:
            try:
                stdin.close()
            except BrokenPipeError:
                return
