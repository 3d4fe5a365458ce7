"""Worker processes that may crash or hang: started, asked, timed, killed and replaced from here.

One thread serves all of them: `submit` hands a request to an idle worker, `wait` returns replies
as they come, and a failure in place of a reply when a worker died or its time was up (its whole
process group is killed then).  A dead worker is started again, and set up, by its next request.
Imports `search` for the statuses.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tedsl.autotune.search import Status
from tedsl.errors import TuneError

Message = dict[str, Any]
COMMAND = (sys.executable, "-P", "-m", "tedsl.autotune.worker")
_TAIL = 8192
"""Bytes kept of what a worker prints."""
_ENDING_SECONDS = 0.01
"""How often to look at a worker that has closed its pipe but not yet ended."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer: a message, or how it failed to give one."""

    message: Message = field(default_factory=dict[str, Any])
    failure: Status | None = None
    reason: str = ""
    error: str = ""


class Worker:
    """One child process and the request it is busy with.

    Args:
        command: what to start.
        setup: the request sent first after every start.
        setup_seconds: time limit for it.

    `settled` is true once it has answered since its last start: all it loads is loaded.
    """

    def __init__(self, command: Sequence[str], setup: Message, setup_seconds: float) -> None:
        self.command = tuple(command)
        self.setup = setup
        self.setup_seconds = setup_seconds
        self.facts: Message = {}
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.request: Message | None = None
        self.limit = 0.0
        self.deadline = 0.0
        self.setting_up = False
        self.settled = False
        self.received = bytearray()
        self.printed = bytearray()
        self._number = 0

    @property
    def busy(self) -> bool:
        """True while a request is unanswered."""
        return self.request is not None

    def begin(self, request: Message, limit: float) -> None:
        """Send `request`, after a start and set-up when needed; `limit` is its time in seconds."""
        self.request, self.limit = request, limit
        if self.process is None:
            self._start()
            self._send({"op": "setup", **self.setup}, self.setup_seconds)
            self.setting_up = True
        else:
            self._send(request, limit)

    def ready(self) -> None:
        """The set-up is done: send the request that waited for it."""
        self.setting_up = False
        if self.request is not None:
            self._send(self.request, self.limit)

    def kill(self) -> int | None:
        """End the process and all it started; returns its exit status (None if none ran)."""
        process, self.process = self.process, None
        if process is None:
            return None
        before = process.poll()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return code if before is None else before

    def expects(self, message: Message) -> bool:
        """True for the reply to the newest request."""
        return message.get("id") == self._number

    def _start(self) -> None:
        paths = [path for path in sys.path if path and os.path.isdir(path)]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.starts += 1
        self.settled = False
        self.received.clear()
        self.printed.clear()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)

    def _send(self, message: Message, limit: float) -> None:
        self._number += 1
        self.deadline = time.monotonic() + limit
        line = json.dumps({**message, "id": self._number}).encode() + b"\n"
        process = self.process
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):  # its end is seen, and explained, when it is read
                process.stdin.write(line)
                process.stdin.flush()


class Pool:
    """Some workers, served together.  Use as a context: leaving it leaves no process behind."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, tuple[Worker, bool]] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker."""
        for worker in self.workers:
            self._end(worker)
        self._selector.close()

    def submit(self, worker: Worker, request: Message, limit: float) -> None:
        """Give `request` to an idle worker; the time for a needed start does not count."""
        if worker.busy:
            raise TuneError("a request was given to a busy worker")
        fresh = worker.process is None
        worker.begin(request, limit)
        process = worker.process
        if fresh and process is not None:
            for stream, is_reply in ((process.stdout, True), (process.stderr, False)):
                if stream is not None:
                    self._selector.register(stream.fileno(), selectors.EVENT_READ)
                    self._watched[stream.fileno()] = (worker, is_reply)

    def wait(self, seconds: float) -> list[tuple[Worker, Message, Reply]]:
        """Replies that came within `seconds` (returns at the first), each with its request."""
        end = time.monotonic() + seconds
        while True:
            busy = [worker for worker in self.workers if worker.busy]
            if not busy:
                return []
            now = time.monotonic()
            until = min(end, *(worker.deadline for worker in busy)) - now
            if any(self._hung_up(worker) for worker in busy):
                until = min(until, _ENDING_SECONDS)  # no pipe tells when it has ended
            for key, _ in self._selector.select(max(0.0, until)):
                self._drain(key.fd)
            done = [found for worker in busy if (found := self._outcome(worker)) is not None]
            if done or time.monotonic() >= end:
                return done

    def call(self, worker: Worker, request: Message, limit: float) -> Reply:
        """Submit and wait for the reply."""
        self.submit(worker, request, limit)
        while True:
            for who, _, reply in self.wait(limit):
                if who is worker:
                    return reply

    def _drain(self, fd: int) -> None:
        worker, is_reply = self._watched[fd]
        with suppress(BlockingIOError):
            data = os.read(fd, 1 << 16)
            if not data:
                self._selector.unregister(fd)
                del self._watched[fd]
            elif is_reply:
                worker.received += data
            else:
                worker.printed = (worker.printed + data)[-_TAIL:]

    def _outcome(self, worker: Worker) -> tuple[Worker, Message, Reply] | None:
        """The reply to the worker's request, or its failure, once there is one."""
        request = worker.request
        if request is None:
            return None
        while b"\n" in worker.received:
            line, _, rest = worker.received.partition(b"\n")
            worker.received = bytearray(rest)
            message: Message = json.loads(line)
            if not worker.expects(message):
                continue
            if worker.setting_up and message["ok"]:
                worker.facts = message["facts"]
                worker.ready()
                continue
            worker.request = None
            worker.settled = True
            if worker.setting_up:
                self._end(worker)
                raise setup_error(message["error"])
            return worker, request, Reply(message)
        failure = self._failure(worker)
        if failure is None:
            return None
        setting_up, worker.request = worker.setting_up, None
        if setting_up:
            raise TuneError(
                f"a worker could not be set up: {failure.reason}",
                facts=[("stderr", failure.error[-600:].replace("\n", " | "))],
                hint="run the default schedule by itself with te.build to see what is wrong",
            )
        return worker, request, failure

    def _failure(self, worker: Worker) -> Reply | None:
        """How the worker failed, when it did; it is dead afterwards."""
        process = worker.process
        if process is None:
            return Reply(failure=Status.CRASH, reason="worker ended")
        if process.poll() is not None and self._hung_up(worker):
            code = self._end(worker)
            text = _tail(worker)
            return Reply(failure=Status.CRASH, reason=exit_reason(code, text), error=text)
        if time.monotonic() < worker.deadline:
            return None
        self._end(worker)
        seconds = worker.setup_seconds if worker.setting_up else worker.limit
        return Reply(
            failure=Status.TIMEOUT, reason=f"longer than {seconds:g} s", error=_tail(worker)
        )

    def _hung_up(self, worker: Worker) -> bool:
        """True once the pipe of replies is closed at the worker's side."""
        process = worker.process
        if process is None or process.stdout is None:
            return True
        return process.stdout.fileno() not in self._watched

    def _end(self, worker: Worker) -> int | None:
        """Kill a worker and stop watching it."""
        process = worker.process
        if process is not None:
            for stream in (process.stderr, process.stdout):
                if stream is not None and stream.fileno() in self._watched:
                    self._drain(stream.fileno())
            for stream in (process.stderr, process.stdout):
                if stream is not None and self._watched.pop(stream.fileno(), None):
                    self._selector.unregister(stream.fileno())
        return worker.kill()


def exit_reason(code: int | None, printed: str = "") -> str:
    """An exit status in words: `signal 11 (SIGSEGV)`, or `exit status 1: KeyError: 'x'`."""
    if code is None or code >= 0:
        last = printed.rpartition("\n")[2][:160]
        return f"exit status {code}: {last}" if last else f"exit status {code}"
    with suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"


def setup_error(error: Mapping[str, str]) -> TuneError:
    """What a worker said about why it cannot begin, as the user's error."""
    return TuneError(
        f"the search cannot start: {error['reason']}",
        facts=[("error", error["text"].replace("\n", " | "))],
        hint="make te.build(...) of the same tensors run first",
    )


def _tail(worker: Worker) -> str:
    return worker.printed.decode(errors="replace").strip()
