"""A child process that answers requests, one by one, and may crash or hang.

It speaks JSON lines: one request per line on standard input, one reply per line on what was its
standard output (anything printed by a compiler goes to standard error instead).  Data goes in and
out as JSON only; nothing is unpickled.

On Linux it is two processes.  The keeper imports what is slow to import and forks; the fork does
the work, and may crash or hang without harm.  When it ends the keeper says how and forks again,
which costs milliseconds where a fresh start costs seconds.  SIGUSR1 to the keeper kills the fork
and all it started (a request took too long), SIGTERM ends both.  Neither outlives the parent, since
the kernel ends them with it and a thread ends the fork when standard input closes.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from tedsl.errors import BackendError, InternalError, LowerError, ScheduleError, TedslError

Message = dict[str, Any]
Handler = Callable[[Message], Message]
END_OF_PRINT = b"\0"
"""What a keeper prints when the process that worked has ended, before another begins."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Service:
    """What a worker does once it is set up.

    Attributes:
        handlers: of requests, by their `op`: each gives a reply.
        facts: what the parent wants to know of the set-up.
        prepare: notes what will be asked for next, while another request is worked on.
        fault: what is wrong with the device, if it takes no more work.
    """

    handlers: Mapping[str, Handler]
    facts: Message = field(default_factory=dict[str, Any])
    prepare: Callable[[Message], None] | None = None
    fault: Callable[[], str | None] | None = None


def serve(
    open_service: Callable[[Message], Service], preload: Callable[[Message], None] | None = None
) -> None:
    """Answer requests until standard input closes.

    Errors that say something about the candidate become replies.  Any other exception ends the
    process, which the parent records as a crash with the end of the traceback.

    Args:
        open_service: makes the service from the set-up request, which comes first.
        preload: imports what a service of this set-up needs; it must start no thread and touch no
            device, since the process forks after it.
    """
    forks = sys.platform == "linux"
    die_with_parent(signal.SIGTERM if forks else signal.SIGKILL)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    line = _first_line(sys.stdin.fileno())
    if line is None:
        return
    setup: Message = json.loads(line)
    if preload is not None:
        preload(setup)
    if forks:
        _keep(setup, replies, open_service)
    else:
        _work(setup, replies, open_service)


def _keep(setup: Message, replies: BinaryIO, open_service: Callable[[Message], Service]) -> None:
    """Fork a process that works; say how it ended, and fork another, while the parent listens."""
    child = 0

    def end_child() -> None:
        if child:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)

    def end_both(*_: object) -> NoReturn:
        end_child()
        os._exit(0)

    def end_one(*_: object) -> None:
        end_child()

    signal.signal(signal.SIGTERM, end_both)
    signal.signal(signal.SIGUSR1, end_one)
    stops = {signal.SIGTERM, signal.SIGUSR1}
    while not _hung_up():
        signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the math libraries' threads
            child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
            with suppress(PermissionError):
                os.setpgid(0, 0)
            die_with_parent(signal.SIGKILL)
            _volunteer()
            _work(setup, replies, open_service)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(child, child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        _, status = os.waitpid(child, 0)
        end_child()  # and what it has left running
        child = 0
        with suppress(OSError):
            os.write(2, END_OF_PRINT)
        _write(replies, {"ended": os.waitstatus_to_exitcode(status)})


def _work(
    setup: Message, replies: BinaryIO, open_service: Callable[[Message], Service]
) -> NoReturn:
    """Open the service and answer requests."""
    requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
    prepare: list[Callable[[Message], None]] = []
    try:
        service = open_service(setup)
        if service.prepare is not None:
            prepare.append(service.prepare)
        reply: Message = {"ok": True, "facts": {"pid": os.getpid(), **service.facts}}
    except TedslError as error:
        service = Service({})
        reply = {"ok": False, "error": describe(error)}
    reader = threading.Thread(
        target=_read, args=(sys.stdin.fileno(), requests, prepare), daemon=True
    )
    reader.start()
    _write(replies, {"id": setup.get("id"), **reply})
    while True:
        request = requests.get()
        reply = _answer(service, request)
        _write(replies, {"id": request["id"], **reply})
        if reply.get("fatal"):
            os._exit(0)


def _write(replies: BinaryIO, message: Message) -> None:
    """One line to the parent; it may be gone."""
    with suppress(BrokenPipeError):
        replies.write(json.dumps(message).encode() + b"\n")


def _answer(service: Service, request: Message) -> Message:
    """The reply to a request.

    An error on a device that takes no more work is the candidate's fault, and ends this process.
    """
    handler = service.handlers.get(request["op"])
    try:
        if handler is None:
            raise InternalError(f"a worker cannot do {request['op']!r} now")
        return handler(request)
    except InternalError as error:
        return _faulted(service, error) or {"status": "internal", **describe(error)}
    except (ScheduleError, LowerError) as error:
        return _faulted(service, error) or {"status": "illegal", **describe(error)}
    except BackendError as error:
        return _faulted(service, error) or {"status": "compile_error", **describe(error)}
    except MemoryError as error:
        return {"status": "out_of_memory", "reason": "out of memory", "text": str(error)}
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":  # PyTorch's, which is not imported here
            return {
                "status": "out_of_memory",
                "reason": "out of device memory",
                "text": str(error),
            }
        fault = _faulted(service, error)
        if fault is None:
            raise
        return fault


def _faulted(service: Service, error: Exception) -> Message | None:
    """The last reply of a process whose device takes no more work; None when it does."""
    fault = service.fault() if service.fault is not None else None
    if fault is None:
        return None
    return {"status": "device_fault", "fatal": True, "reason": fault, "text": str(error)}


def describe(error: TedslError) -> Message:
    """An error as JSON: its class, its reason in one line, its whole text."""
    reason = error.reason.split("\n", 1)[0]
    return {"kind": type(error).__name__, "reason": reason, "text": str(error)}


def die_with_parent(by: int) -> None:
    """Ask the kernel for the signal `by` when the thread that started this process ends (Linux)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)


def _volunteer() -> None:
    """Ask the kernel to take this process first when the machine runs out of memory."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _first_line(descriptor: int) -> bytes | None:
    """The set-up request: all that comes until it is answered.  None when nothing comes."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(descriptor, 1 << 16)
        if not data:
            return None
        line += data
    return line


def _hung_up() -> bool:
    """True when the parent has closed standard input."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _read(
    descriptor: int,
    requests: queue.SimpleQueue[Message],
    prepare: list[Callable[[Message], None]],
) -> None:
    """Queue each request; when the parent is gone, end this process and all it started.

    Reads the descriptor itself: a buffered stream would be locked by this thread at exit.
    """
    pending = b""
    while data := os.read(descriptor, 1 << 16):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            try:
                request: Message = json.loads(line)
            except ValueError:
                continue  # the rest of a line that an earlier process had begun to read
            if request["op"] != "prepare":
                requests.put(request)
            elif prepare:
                prepare[0](request)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)
