"""The child process in which candidates are compiled and run: `python -m tedsl.autotune.worker`.

It speaks JSON lines: one request per line on standard input, one reply per line on what was its
standard output (anything printed by a compiler goes to standard error instead).  It may crash or
hang without harm: the parent kills it and starts another.  It never outlives the parent, since the
kernel kills it with its parent (Linux) and a thread ends it when standard input closes.  Data goes
in and out as JSON only; nothing is unpickled.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tedsl.errors import BackendError, InternalError, LowerError, ScheduleError, TedslError

Message = dict[str, Any]
_PR_SET_PDEATHSIG = 1
_SESSION = ("tedsl.autotune.session", "open_session")


class Session(Protocol):
    """What a worker does once it knows the problem.  Each method takes a request, gives a reply."""

    @property
    def facts(self) -> Message:
        """What the parent wants to know of the set-up: device, reference, bytes moved."""
        ...

    def compile(self, request: Message) -> Message:
        """Build a candidate, so that its code is in the on-disk cache."""
        ...

    def measure(self, request: Message) -> Message:
        """Build, check and time a candidate."""
        ...

    def compare(self, request: Message) -> Message:
        """Time several checked candidates in turn."""
        ...


def serve(open_session: Callable[[Message], Session]) -> None:
    """Answer requests until standard input closes.

    Errors that say something about the candidate become replies.  Any other exception ends the
    process, which the parent records as a crash with the end of the traceback.
    """
    die_with_parent()
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(sys.stdin.fileno(), requests), daemon=True)
    reader.start()
    session: Session | None = None
    while True:
        request = requests.get()
        if request["op"] == "setup":
            reply: Message
            try:
                session = open_session(request)
                reply = {"ok": True, "facts": session.facts}
            except TedslError as error:
                reply = {"ok": False, "error": describe(error)}
        else:
            reply = _answer(session, request)
        replies.write(json.dumps({"id": request["id"], **reply}).encode() + b"\n")


def _answer(session: Session | None, request: Message) -> Message:
    """The reply to a request about a candidate."""
    handlers: Mapping[str, Callable[[Message], Message]] = {}
    if session is not None:
        handlers = {
            "compile": session.compile,
            "measure": session.measure,
            "compare": session.compare,
        }
    handler = handlers.get(request["op"])
    if handler is None:
        raise InternalError(f"a worker cannot do {request['op']!r} now")
    try:
        return handler(request)
    except InternalError as error:
        return {"status": "internal", **describe(error)}
    except (ScheduleError, LowerError) as error:
        return {"status": "illegal", **describe(error)}
    except BackendError as error:
        return {"status": "compile_error", **describe(error)}
    except MemoryError as error:
        return {"status": "out_of_memory", "reason": "out of memory", "text": str(error)}
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # PyTorch's, which is not imported here
            raise
        return {"status": "out_of_memory", "reason": "out of device memory", "text": str(error)}


def describe(error: TedslError) -> Message:
    """An error as JSON: its class, its reason in one line, its whole text."""
    reason = error.reason.split("\n", 1)[0]
    return {"kind": type(error).__name__, "reason": reason, "text": str(error)}


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux only)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _read(descriptor: int, requests: queue.SimpleQueue[Message]) -> None:
    """Queue each request; when the parent is gone, end this process and all it started.

    Reads the descriptor itself: a buffered stream would be locked by this thread at exit.
    """
    pending = b""
    while data := os.read(descriptor, 1 << 16):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            requests.put(json.loads(line))
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)


def main() -> None:
    """Serve the real session, loaded only here."""
    module, name = _SESSION
    serve(getattr(importlib.import_module(module), name))


if __name__ == "__main__":
    main()
