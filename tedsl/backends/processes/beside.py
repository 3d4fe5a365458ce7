"""Processes beside this one that compile for it: Python runs in one thread at a time, and what
schedules, lowers and is Triton's front end is Python.

They are started when there is enough to do for the first time and end with this process, or when
nothing has been asked for a while.  They are new processes, no forks: this one may use a device.
What one of them does not answer, because it died or took too long, is done by whoever asked.
Imports `pool`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from tedsl import folders
from tedsl.backends.parallel import ENVIRONMENT, threads
from tedsl.backends.processes.pool import Pool, Reply, Worker
from tedsl.backends.processes.serving import Message
from tedsl.errors import TuneError

COMMAND = (sys.executable, "-P", "-m", "tedsl.backends.processes.beside_main")
START_SECONDS = 1.5
"""How long a process takes until it begins to work."""
MOST = 16
"""Processes; each holds a few hundred megabytes as long as it runs."""
SETUP_SECONDS = 120.0
SECONDS = 600.0
"""How long one may work on what it is asked."""
IDLE_SECONDS = 120.0
_TOLD = ("TEDSL_", "TRITON_")
"""How variables begin that say where and how kernels are compiled."""
_LOG = logging.getLogger("tedsl")


class _Asked(NamedTuple):
    request: Message
    reply: Future[Reply | None]


class Beside:
    """Some processes, and the thread that serves them: what it has started ends with it.

    Args:
        count: how many at most.
        module: what they import first.
        environment: variables of theirs.
    """

    def __init__(self, count: int, module: str, environment: Mapping[str, str]) -> None:
        self.environment = environment
        setup: Message = {"module": module, "environment": environment}
        self.workers = [Worker(COMMAND, setup, SETUP_SECONDS) for _ in range(count)]
        self._pool = Pool(self.workers)
        self._new: deque[_Asked] = deque()
        self._early = 0
        self._open = True
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="tedsl-beside", daemon=True)
        self._thread.start()

    def start(self, count: int) -> None:
        """Start some of them before there is something to ask."""
        with self._lock:
            if self._open:
                self._early = count
                self._pool.wake()

    def ask(self, request: Message) -> Reply | None:
        """The reply to a request; None where there is no process to ask any more."""
        asked = _Asked(request, Future())
        with self._lock:
            if not self._open:
                return None
            self._new.append(asked)
            self._pool.wake()
        return asked.reply.result()

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            if self._open:
                self._open = False
                self._pool.wake()
        self._thread.join()

    def _serve(self) -> None:
        owners: dict[Worker, _Asked] = {}
        try:
            while self._open:
                self._submit(owners)
                begin = time.monotonic()
                for worker, _, reply in self._pool.wait(IDLE_SECONDS, idle=True):
                    owners.pop(worker).reply.set_result(reply)
                if not owners and time.monotonic() - begin >= IDLE_SECONDS:
                    self._pool.kill_all()
        except (TuneError, OSError) as error:
            reason = error.reason if isinstance(error, TuneError) else error
            _LOG.warning("kernels are compiled in this process alone: %s", reason)
        finally:
            with self._lock:
                self._open = False
                self._pool.close()
            for asked in (*owners.values(), *self._new):
                asked.reply.set_result(None)

    def _submit(self, owners: dict[Worker, _Asked]) -> None:
        """Give what was asked to processes that have nothing to do, running ones first."""
        for worker in self.workers[: self._early]:
            self._pool.start(worker)
        self._early = 0
        free = [worker for worker in self.workers if not worker.busy]
        free.sort(key=lambda worker: (worker.process is None, not worker.settled))
        for worker in free:
            if not self._new:
                return
            owners[worker] = asked = self._new.popleft()
            self._pool.submit(worker, asked.request, SECONDS)


_running: list[Beside] = []
_changing = threading.Lock()


def _forget() -> None:
    """The processes are the parent's."""
    _running.clear()
    _changing.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_forget
    )


def beside(function: str, count: int, seconds: float) -> Beside | None:
    """The processes in which to call a function of JSON, started when so many calls of it are
    near; None where they would not pay.

    Args:
        function: `module:name`.
        count: of calls.
        seconds: that a call takes.
    """
    most = min(threads(), MOST)
    width = min(most, count)
    saved = count * seconds * (1 - 1 / max(1, width))
    if width < 2 or (saved < START_SECONDS and not _running):
        return None
    told = {name: value for name, value in os.environ.items() if name.startswith(_TOLD)}
    told.pop(ENVIRONMENT, None)
    told[folders.ENVIRONMENT] = str(folders.cache_root())
    with _changing:
        found = _running[0] if _running else None
        if found is None or found.environment != told:
            if found is not None:
                found.close()
            found = Beside(most, function.partition(":")[0], told)
            _running[:] = [found]
    found.start(width)
    return found


def made_beside(where: Beside | None, function: str, given: Message) -> Message | None:
    """What a function makes of JSON in another process; None where it is to be made in this one:
    there is no other, it was lost, or it met an error, which is met here again."""
    reply = None
    if where is not None:
        reply = where.ask({"op": "call", "function": function, "given": given})
    if reply is None:
        return None
    if reply.failure is not None:
        _LOG.warning("a process that compiled was lost (%s): done again in this one", reply.reason)
        return None
    return reply.message.get("made")


def close() -> None:
    """End the processes, if there are any."""
    with _changing:
        for each in _running:
            each.close()
        _running.clear()
