"""Worker processes that may crash or hang: started, asked, timed, killed and replaced from here.

One thread serves all of them: `submit` hands a request to an idle worker, `wait` returns replies
as they come, and a failure in place of a reply when a worker died or its time was up (what worked
on the request is killed then, with all it started).  Another process takes its place.
Imports `serving`.
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
from enum import StrEnum
from typing import Any

from tedsl.backends.parallel import ENVIRONMENT as COMPILING
from tedsl.backends.processes.serving import END_OF_PRINT, Message
from tedsl.errors import TuneError

_TAIL = 8192
"""Bytes kept of what a worker prints."""
_ENDING_SECONDS = 0.01
"""How often to look at a worker that has closed its pipe but not yet ended."""
_TERM_SECONDS = 2.0
_KILL_SECONDS = 10.0
"""How long a killed process may take to end: the driver may have to stop a kernel first."""
_AGAIN_SECONDS = 60.0
MOST_FAILURES = 3
"""Set-ups in a row that may fail once one has succeeded: a device may need a moment."""


class Failure(StrEnum):
    """How a worker failed to reply: it died, or did not end in time."""

    CRASH = "crash"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer: a message, or how it failed to give one."""

    message: Message = field(default_factory=dict[str, Any])
    failure: Failure | None = None
    reason: str = ""
    error: str = ""


class Worker:
    """One worker and the request it is busy with.

    Args:
        command: what to start.
        setup: the request sent first after every start.
        setup_seconds: time limit for it.

    `settled` is true once it has answered since its last start, or has taken over from one that
    did: all it loads is loaded.  `stopping` is true until a process has ended that is to end, and
    `lingers` as long as its device may still run what it began.  `sent` is when the last request
    was sent, set-ups apart, on the clock of `time.monotonic`.  `starts` counts how often a process
    began to work, as the first or in place of one that ended.
    """

    def __init__(self, command: Sequence[str], setup: Message, setup_seconds: float) -> None:
        self.command = tuple(command)
        self.setup = setup
        self.setup_seconds = setup_seconds
        self.facts: Message = {}
        self.starts = 0
        self.failures = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.request: Message | None = None
        self.limit = 0.0
        self.deadline = 0.0
        self.sent = 0.0
        self.setting_up = False
        self.settled = False
        self.stopping = False
        self.lingers = False
        self.fresh = False
        self.received = bytearray()
        self.printed = bytearray()
        self._number = 0

    @property
    def busy(self) -> bool:
        """True while a request is unanswered."""
        return self.request is not None

    @property
    def has_served(self) -> bool:
        """True once a set-up has succeeded."""
        return bool(self.facts)

    def begin(self, request: Message, limit: float) -> None:
        """Send `request`, after a start and set-up when needed; `limit` is its time in seconds."""
        self.request, self.limit = request, limit
        if self.process is None:
            self.start()
        elif self.setting_up:
            self.deadline = time.monotonic() + self.setup_limit
        else:
            self._send(request, limit)

    def start(self) -> None:
        """Start the process and have it set up."""
        paths = [path for path in sys.path if path and os.path.isdir(path)]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), COMPILING: "1"},
        )
        self.fresh = True
        self.received.clear()
        self.printed.clear()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
        self._write({"op": "setup", **self.setup})
        self.expect_again()

    def expect_again(self) -> None:
        """Another process takes the place of the one that worked, and is being set up."""
        self.starts += 1
        self.setting_up, self.settled = True, False
        self.deadline = time.monotonic() + self.setup_limit

    def ready(self) -> None:
        """The set-up is done: send the request that waited for it."""
        self.setting_up = False
        self.settled = bool(self.facts.get("took over"))
        self.failures = 0
        if self.request is not None:
            self._send(self.request, self.limit)

    def prepare(self, request: Message) -> None:
        """Say what will be asked for next, if the worker listens."""
        if self.process is not None and not self.setting_up:
            self._write({**request, "op": "prepare"})

    def stop_working(self) -> None:
        """Have what works on the request killed, with all it started; the keeper stays."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.process.pid, signal.SIGUSR1)

    def kill(self) -> int | None:
        """End the process and all it started; returns its exit status (None if none ran)."""
        process, self.process = self.process, None
        if process is None:
            return None
        before = process.poll()
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGTERM)  # a keeper ends its fork first
        code = _ended(process, _TERM_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if code is None:
            code = _ended(process, _KILL_SECONDS)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return code if before is None else before

    def expects(self, message: Message) -> bool:
        """True for the reply to the newest request."""
        return message.get("id") == self._number

    @property
    def setup_limit(self) -> float:
        """Seconds for a set-up: fewer once the first has left everything that takes long."""
        return min(self.setup_seconds, _AGAIN_SECONDS) if self.has_served else self.setup_seconds

    def _send(self, message: Message, limit: float) -> None:
        self._number += 1
        self.sent = time.monotonic()
        self.deadline = self.sent + limit
        self._write({**message, "id": self._number})

    def _write(self, message: Message) -> None:
        process = self.process
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):  # its end is seen, and explained, when it is read
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()


class Pool:
    """Some workers, served together.  Use as a context: leaving it leaves no process behind."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, tuple[Worker, bool]] = {}
        self._wake = os.pipe()
        for end in self._wake:
            os.set_blocking(end, False)
        self._selector.register(self._wake[0], selectors.EVENT_READ)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker, and let go of what `wake` uses."""
        self.kill_all()
        self._selector.close()
        for end in self._wake:
            os.close(end)

    def kill_all(self) -> None:
        """Kill every worker."""
        for worker in self.workers:
            self._end(worker)

    def submit(self, worker: Worker, request: Message, limit: float) -> None:
        """Give `request` to an idle worker; the time for a needed start does not count."""
        if worker.busy:
            raise TuneError("a request was given to a busy worker")
        if worker.process is not None and worker.process.poll() is not None:
            self._end(worker)
        worker.begin(request, limit)
        self._watch(worker)

    def start(self, worker: Worker) -> None:
        """Start a worker before there is a request for it."""
        if worker.process is None:
            worker.start()
            self._watch(worker)

    def wake(self) -> None:
        """Have `wait` return, from another thread."""
        with suppress(BlockingIOError):
            os.write(self._wake[1], b".")

    def wait(self, seconds: float, idle: bool = False) -> list[tuple[Worker, Message, Reply]]:
        """Replies that came within `seconds` (returns at the first), each with its request.

        With `idle`, wait for `wake` even when no worker is busy, and return when one is set up, or
        what was told to stop has ended.
        """
        end = time.monotonic() + seconds
        new = {worker for worker in self.workers if worker.setting_up and idle}
        killed = {worker for worker in self.workers if worker.stopping and idle}
        while True:
            busy = [worker for worker in self.workers if worker.busy]
            if not busy and not idle:
                return []
            active = [worker for worker in self.workers if worker.busy or worker.setting_up]
            now = time.monotonic()
            until = min((end, *(worker.deadline for worker in active))) - now
            if any(self._hung_up(worker) for worker in active):
                until = min(until, _ENDING_SECONDS)  # no pipe tells when it has ended
            woken = False
            for key, _ in self._selector.select(max(0.0, until)):
                if key.fd == self._wake[0]:
                    woken = bool(os.read(key.fd, 1 << 10))
                else:
                    self._drain(key.fd)
            done = [found for worker in active if (found := self._outcome(worker)) is not None]
            ready = any(not worker.setting_up for worker in new)
            ended = any(not worker.stopping for worker in killed)
            if done or woken or ready or ended or time.monotonic() >= end:
                return done

    def call(self, worker: Worker, request: Message, limit: float) -> Reply:
        """Submit and wait for the reply."""
        self.submit(worker, request, limit)
        while True:
            for who, _, reply in self.wait(limit):
                if who is worker:
                    return reply

    def _watch(self, worker: Worker) -> None:
        process = worker.process
        if process is None:
            return
        for stream, is_reply in ((process.stdout, True), (process.stderr, False)):
            if stream is not None and stream.fileno() not in self._watched and worker.fresh:
                self._selector.register(stream.fileno(), selectors.EVENT_READ)
                self._watched[stream.fileno()] = (worker, is_reply)
        worker.fresh = False

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
        """The reply to the worker's request, or its failure, once there is one.

        A worker without a request may be setting itself up; what it says of that is taken in.
        """
        request = worker.request
        while b"\n" in worker.received:
            line, _, rest = worker.received.partition(b"\n")
            worker.received = bytearray(rest)
            message: Message = json.loads(line)
            reply = self._understood(worker, message)
            if reply is not None and request is not None:
                worker.request = None
                return worker, request, reply
        failure = self._failure(worker)
        if failure is None or request is None:
            return None
        worker.request = None
        return worker, request, failure

    def _understood(self, worker: Worker, message: Message) -> Reply | None:
        """What one line of a worker says about its request, if anything."""
        if "ended" in message:
            return self._ended(worker, int(message["ended"]))
        if worker.setting_up:
            if "ok" not in message:
                return None  # a reply that came too late
            if message["ok"]:
                worker.facts = message["facts"]
                worker.ready()
            else:
                self._end(worker)
                self._retry(worker, setup_error(message["error"]))
            return None
        if not worker.expects(message):
            return None
        worker.settled = True
        if message.get("fatal"):
            worker.stopping, worker.lingers = True, bool(message.get("running"))
            worker.expect_again()
        return Reply(message)

    def _ended(self, worker: Worker, code: int) -> Reply | None:
        """The process that worked has ended, and its keeper starts another."""
        process = worker.process
        if process is not None and process.stderr is not None:
            self._drain_if_watched(process.stderr.fileno())
        # The next process may have begun to print.
        printed, _, worker.printed = worker.printed.partition(END_OF_PRINT)
        if worker.stopping:
            worker.stopping = worker.lingers = False  # as it was asked to
            return None
        text = _text(printed)
        reply = Reply(failure=Failure.CRASH, reason=exit_reason(code, text), error=text)
        if worker.setting_up:
            self._end(worker)
            self._retry(worker, _no_setup(reply))
            return None
        worker.expect_again()
        return reply

    def _retry(self, worker: Worker, error: TuneError) -> None:
        """Start a worker anew whose set-up failed, if it ever succeeded; its request waits.

        One that nothing was asked of is left alone when it fails too often.

        Raises:
            TuneError: `error`, when it never did, or failed too often since.
        """
        worker.failures += 1
        if not worker.has_served or worker.failures > MOST_FAILURES:
            worker.setting_up = False
            if worker.request is None:
                return
            worker.request = None
            raise error
        time.sleep(0.1 * worker.failures)
        worker.start()
        self._watch(worker)

    def _failure(self, worker: Worker) -> Reply | None:
        """How the worker failed, when it did; what worked on the request is dead afterwards."""
        process = worker.process
        if process is None:
            return Reply(failure=Failure.CRASH, reason="worker ended") if worker.busy else None
        if not worker.busy and not worker.setting_up:
            return None
        if process.poll() is not None and self._hung_up(worker):
            code = self._end(worker)
            text = _text(worker.printed)
            reply = Reply(failure=Failure.CRASH, reason=exit_reason(code, text), error=text)
            if not worker.setting_up:
                return reply
            self._retry(worker, _no_setup(reply))
            return None
        if time.monotonic() < worker.deadline:
            return None
        seconds = worker.setup_limit if worker.setting_up else worker.limit
        if process.stderr is not None:
            self._drain_if_watched(process.stderr.fileno())
        reason = f"longer than {seconds:.3g} s"
        reply = Reply(failure=Failure.TIMEOUT, reason=reason, error=_text(worker.printed))
        if worker.setting_up:
            self._end(worker)
            self._retry(worker, _no_setup(reply))
            return None
        worker.stop_working()
        worker.printed.clear()
        worker.stopping = worker.lingers = True
        worker.expect_again()
        return reply

    def _hung_up(self, worker: Worker) -> bool:
        """True once the pipe of replies is closed at the worker's side."""
        process = worker.process
        if process is None or process.stdout is None:
            return True
        return process.stdout.fileno() not in self._watched

    def _drain_if_watched(self, fd: int) -> None:
        if fd in self._watched:
            self._drain(fd)

    def _end(self, worker: Worker) -> int | None:
        """Kill a worker and stop watching it."""
        process = worker.process
        if process is not None:
            for stream in (process.stderr, process.stdout):
                if stream is not None:
                    self._drain_if_watched(stream.fileno())
            for stream in (process.stderr, process.stdout):
                if stream is not None and self._watched.pop(stream.fileno(), None):
                    self._selector.unregister(stream.fileno())
        worker.stopping = worker.lingers = False
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


def _no_setup(reply: Reply) -> TuneError:
    return TuneError(
        f"a worker could not be set up: {reply.reason}",
        facts=[("stderr", reply.error[-600:].replace("\n", " | "))],
        hint="run the default schedule by itself with te.build to see what is wrong",
    )


def _ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit status of a process that ends within `seconds`; None when it does not."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def _text(printed: bytearray) -> str:
    return printed.replace(END_OF_PRINT, b"").decode(errors="replace").strip()
