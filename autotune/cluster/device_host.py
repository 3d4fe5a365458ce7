"""What tries candidates on one machine: a `Host` per device, and `attend`, by which it is asked.

`attend` takes a request as JSON text and gives the reply as JSON text, so that any executor can
carry both; it runs in whatever process the executor has, which must never crash or hang for a
candidate's sake: the compiling and measuring is done by processes of the host's own engine.  A host
lives in its process until it is idle for a while or the process ends.  Imports `local_executor`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from tedsl.autotune.outcome import Outcome
from tedsl.autotune.records.machine import describe_cpu, describe_gpu, facts_of
from tedsl.autotune.search_space.space import Candidate
from tedsl.autotune.workers.device_lock import DeviceLock
from tedsl.autotune.workers.local_executor import Engine
from tedsl.autotune.workers.protocol import Done, Limits
from tedsl.autotune.workers.scratch_dir import scratch_folder
from tedsl.autotune.workers.session_server import COMMAND, write_problem
from tedsl.backends.processes.serving import Message
from tedsl.backends.triton.emit.program import sorts_of
from tedsl.checking.random_inputs import ADVERSE, KINDS
from tedsl.errors import InternalError, TuneError
from tedsl.processor import usable_cores
from tedsl.workload.workload import digest

IDLE_SECONDS = 60.0
"""How long a host's processes wait for more; starting them anew takes seconds on a GPU."""
LOOK_SECONDS = 0.5
"""After how long whoever waits for references looks whether the host is closed."""
RECENT = 2
"""Problems that certainly are still open in the measuring process."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which device, and how it is worked with.

    Attributes:
        target: `cpu` or `cuda`.
        index: of the GPU; None for the current one.
        seconds: time limit for compiling, and for measuring, one candidate.
        command: what a worker is.
    """

    target: str
    index: int | None = None
    seconds: float = 30.0
    command: tuple[str, ...] = COMMAND

    def limits(self) -> Limits:
        """On a GPU one core is left to whatever feeds the device; on the CPU measuring waits."""
        gpu = self.target != "cpu"
        cores = usable_cores()
        workers = max(1, min(32, cores - 1)) if gpu else max(1, min(8, cores))
        return Limits(self.seconds, self.seconds, workers=workers, overlap=gpu)

    def worker(self) -> tuple[str, ...]:
        """The command of a worker that sees no other GPU."""
        if self.index is None:
            return self.command
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        name = shown[self.index] if self.index < len(shown) and shown[0] else str(self.index)
        return ("env", f"CUDA_VISIBLE_DEVICES={name}", *self.command)


class Host:
    """One device of this machine and the processes that work for it.  Safe to ask from several
    threads at once."""

    def __init__(self, place: Place) -> None:
        self.place = place
        gpu = place.target != "cpu"
        self.device, features = describe_gpu(place.index) if gpu else describe_cpu()
        self._opened: list[str] = []
        self._referred: dict[str, list[Future[Message]]] = {}
        self._closed = False
        self._same: dict[str, str] = {}
        self._boxes: dict[int, queue.SimpleQueue[Done | TuneError | InternalError]] = {}
        self._numbers = itertools.count()
        self._opening, self._knowing = threading.Lock(), threading.Lock()
        self._kept = ExitStack()
        self.scratch = self._kept.enter_context(scratch_folder())
        setup: Message = {
            "target": place.target,
            "scratch": self.scratch,
            "device": self.device,
            "features": features if gpu else "",
        }
        alone = self.device if not place.index else f"{self.device} #{place.index}"
        lock = DeviceLock(alone)
        engine = Engine(setup, told, place.limits(), lock, place.worker())
        self.engine = self._kept.enter_context(engine)
        self._reader = threading.Thread(target=self._read, name="tedsl-host", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        self._kept.close()

    def attend(self, request: Message) -> Message:
        """Do what is asked; `other` names the device where it is not the one that was wanted."""
        if request["wanted"] not in ("", self.device):
            return {"other": self.device}
        begin = time.monotonic()
        problem = self._known(request["problem"])
        if request["op"] in ("measure", "compare", "verify"):
            self._await_references(problem)
            with self._opening:
                self._open(problem)
        described: list[Message] = [
            {
                **item,
                "key": f"{problem}:{item['key']}",
                "same": f"{self._same[problem]}:{item['key']}",
                "problem": problem,
                "best": request["best"],
            }
            for item in request["candidates"]
        ]
        match request["op"]:
            case "measure":
                left, first = request["left"], int(request["at_least"])
                until = None if left is None else begin + left
                return {"outcomes": self._measure(described, until, first)}
            case "compare":
                rounds, seconds = int(request["rounds"]), float(request["seconds"])
                found = self.engine.compare([_travelled(d) for d in described], rounds, seconds)
                return {"samples": found}
            case "verify":
                calls, seconds = int(request["calls"]), float(request["seconds"])
                seen = self.engine.verify(_travelled(described[0]), calls, seconds)
                fault = None if seen.fault is None else outcome_json(seen.fault)
                return {"calls": seen.calls, "fault": fault}
            case "estimate":
                return {"found": self.engine.describe([_travelled(d) for d in described])}
            case "announce":  # it is enough that the problem is known now
                return {}
            case op:
                raise InternalError(f"a host cannot do {op!r}")

    def _known(self, setup: Message) -> str:
        """The name of a problem, whose references are begun where there are processors to spare."""
        problem = write_problem(self.scratch, setup)
        with self._knowing:
            if problem not in self._referred:
                self._same[problem] = self._compiled_as(setup)
                self._referred[problem] = self.engine.refer((*KINDS, *ADVERSE), problem=problem)
        return problem

    def _await_references(self, problem: str) -> None:
        """Wait until what a problem is checked against is made, where that is done aside: the
        measuring process would wait in its place, and other problems behind it."""
        while not self._closed and wait_for(self._referred[problem], LOOK_SECONDS).not_done:
            pass

    def _compiled_as(self, setup: Message) -> str:
        """Equal for problems whose candidates are compiled to the same: one computation, at sizes
        that the target's compiler does not tell apart."""
        sorts = sorts_of(setup["sizes"]) if self.place.target != "cpu" else ""
        return digest(json.dumps({**setup, "sizes": sorts}, sort_keys=True))

    def _open(self, problem: str) -> None:
        """Have the measuring process make what the problem needs."""
        if problem not in self._opened[-RECENT:]:
            limit = self.engine.limits.setup
            reply = self.engine.ask({"op": "open", "problem": problem, "key": ""}, limit)
            if reply.failure is not None or reply.message["status"] != "ok":
                why = reply.reason or reply.message.get("reason", "")
                raise TuneError(
                    f"the search cannot start: {why}",
                    facts=[("error", (reply.error or reply.message.get("text", ""))[-600:])],
                    hint="make te.build(...) of the same tensors run first",
                )
        if problem in self._opened:
            self._opened.remove(problem)
        self._opened.append(problem)

    def _measure(self, described: Sequence[Message], until: float | None, first: int) -> list[Any]:
        """Outcomes as JSON, in order; None for what the time did not suffice for."""
        number = next(self._numbers)
        box = self._boxes[number] = queue.SimpleQueue()
        candidates = [_travelled(item) for item in described]
        self.engine.begin(number, candidates, deadline=until, at_least=first)
        outcomes: list[Any] = [None] * len(described)
        for _ in described:
            done = box.get()
            if not isinstance(done, Done):
                raise done
            outcomes[done.position] = None if done.outcome is None else outcome_json(done.outcome)
        del self._boxes[number]
        return outcomes

    def _read(self) -> None:
        """Hand each outcome to whoever waits for it; a second one, after a drift, comes late and
        is left out, since the closing comparison times all that matter again."""
        while True:
            try:
                done = self.engine.wait()
            except (TuneError, InternalError) as error:
                for box in list(self._boxes.values()):
                    box.put(error)
                return
            box = self._boxes.get(done.batch)
            if box is not None and not done.again:
                box.put(done)


class Hosts:
    """The hosts of this process: each is made when first asked, and closed when idle."""

    def __init__(self) -> None:
        self._made: dict[Place, Host] = {}
        self._users: dict[Place, int] = {}
        self._timers: dict[Place, threading.Timer] = {}
        self._lock = threading.Lock()
        self._keepers = 0

    @contextmanager
    def kept(self) -> Generator[None]:
        """Within, hosts outlive the search that made them: the next finds its workers warm, and
        what has been measured of its problem."""
        self._keepers += 1
        try:
            yield
        finally:
            self._keepers -= 1
            self.release()

    def release(self) -> None:
        """A search is over: close all hosts, unless they are kept for the next."""
        if not self._keepers:
            self.close()

    def attend(self, place: Place, request: Message) -> Message:
        """Ask the host of a place."""
        with self._lock:
            timer = self._timers.pop(place, None)
            if timer is not None:
                timer.cancel()
            self._users[place] = self._users.get(place, 0) + 1
            if place not in self._made:
                self._made[place] = Host(place)
                _before_exit(self.close)
        try:
            return self._made[place].attend(request)
        except TuneError:
            self._drop(place, users=1)
            raise
        finally:
            self._leave(place)

    @property
    def running(self) -> int:
        """How many there are now."""
        return len(self._made)

    def close(self) -> None:
        """Close all."""
        with self._lock:
            made, self._made = self._made, {}
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
        for host in made.values():
            host.close()

    def _leave(self, place: Place) -> None:
        with self._lock:
            self._users[place] -= 1
            if not self._users[place] and place in self._made:
                timer = threading.Timer(IDLE_SECONDS, self._drop, [place])
                timer.daemon = True
                self._timers[place] = timer
                timer.start()

    def _drop(self, place: Place, users: int = 0) -> None:
        with self._lock:
            host = self._made.pop(place, None) if self._users[place] <= users else None
        if host is not None:
            host.close()


HOSTS = Hosts()
"""Of this process: what an executor runs here has nothing else to keep them in."""


def attend(text: str) -> str:
    """Answer one request; both are JSON.  This is what executors are given: what a worker is there
    follows from what is installed there, never from the request."""
    request: Message = json.loads(text)
    return attend_at(Place(request["target"], None, request["seconds_each"]), text)


def attend_at(place: Place, text: str) -> str:
    """Answer one request at a place of this machine."""
    request: Message = json.loads(text)
    try:
        if request["op"] == "facts":
            return json.dumps({"facts": facts_of(place.target)})
        return json.dumps(HOSTS.attend(place, request))
    except InternalError as error:
        return json.dumps({"internal": error.reason, "text": str(error)})
    except TuneError as error:
        return json.dumps({"error": error.reason, "text": str(error)})


def told(candidate: Candidate) -> Message:
    """The request that a travelled candidate stands for."""
    described: Message = json.loads(candidate.trace)
    return described


def _travelled(described: Message) -> Candidate:
    """A candidate that came as a request: the engine only passes it on."""
    return Candidate((), json.dumps(described))


def outcome_json(outcome: Outcome) -> Message:
    """An outcome as JSON, as `answers` reads it; the code without the name of the problem."""
    return {**asdict(outcome), "code": outcome.code.partition("@")[0]}


def _before_exit(close: Callable[[], None]) -> None:
    """Have `close` called before a process of `multiprocessing` waits for its threads."""
    if "multiprocessing.util" in sys.modules:
        util: Any = importlib.import_module("multiprocessing.util")
        util.Finalize(None, close, exitpriority=10)
