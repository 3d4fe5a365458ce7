"""Trying candidates for real: compile in parallel, measure one at a time, survive what goes wrong.

Compiling workers fill the on-disk cache and report a hash of the lowered code; candidates with
equal code share one measurement.  One measuring worker per device checks and times the rest under
the device's lock.  On a GPU the two overlap, once the compiling workers have loaded what they need;
on the CPU measuring waits until compiling is done, since both want the same cores.  Imports `pool`,
`search` and `space`.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tedsl.autotune.lock import DeviceLock
from tedsl.autotune.pool import COMMAND, Message, Pool, Reply, Worker
from tedsl.autotune.search import Outcome, Status
from tedsl.autotune.space import Candidate
from tedsl.errors import InternalError

Encode = Callable[[Candidate], Message]
Notify = Callable[[int, Outcome], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds, and how many workers compile."""

    compile: float = 30.0
    measure: float = 30.0
    setup: float = 300.0
    workers: int = 1
    overlap: bool = False


class Evaluator:
    """Compiles and measures candidates in worker processes.

    Args:
        setup: the request that prepares a worker; `role` is added.
        encode: a candidate as the request that describes it (`key` and how to schedule it).
        limits: time limits.
        lock: held while something is measured.
        command: what a worker is.
    """

    def __init__(
        self,
        setup: Message,
        encode: Encode,
        limits: Limits,
        lock: DeviceLock,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.encode = encode
        self.limits = limits
        self.lock = lock
        self.compilers = [
            Worker(command, {**setup, "role": "compile"}, limits.setup)
            for _ in range(limits.workers)
        ]
        self.measurer = Worker(command, {**setup, "role": "measure"}, limits.setup)
        self.pool = Pool([*self.compilers, self.measurer])
        self.by_code: dict[str, Outcome] = {}

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.lock.close()

    def evaluate(
        self,
        batch: Sequence[Candidate],
        notify: Notify,
        *,
        bound: float | None = None,
        deadline: float | None = None,
        at_least: int = 0,
        known: Sequence[Outcome | None] = (),
    ) -> None:
        """Try every candidate; `notify(position, outcome)` is called as each is done.

        Args:
            batch: candidates.
            notify: takes outcomes, in the order they come.
            bound: seconds of the best so far; clearly slower candidates are dropped after few runs.
            deadline: `time.monotonic()` after which nothing new is begun.
            at_least: how many of the first candidates are tried even then.
            known: outcomes that need no trial, by position.
        """
        todo: list[int] = []
        for position, _ in enumerate(batch):
            done = known[position] if position < len(known) else None
            if done is None:
                todo.append(position)
            else:
                notify(position, done)
        _Round(self, batch, deque(todo), notify, bound, deadline, at_least).run()

    def compare(
        self, candidates: Sequence[Candidate], rounds: int, seconds: float
    ) -> list[list[float]] | None:
        """Samples of several candidates taken in turn; None when they could not be had."""
        request: Message = {
            "op": "compare",
            "candidates": [self.encode(candidate) for candidate in candidates],
            "rounds": rounds,
            "seconds": seconds,
        }
        while not self.lock.try_acquire():
            time.sleep(0.01)
        limit = len(candidates) * self.limits.compile + self.limits.measure + seconds
        reply = self.pool.call(self.measurer, request, limit)
        self.lock.release()
        return reply.message["samples"] if reply.message.get("status") == "ok" else None


class _Round:
    """One batch on its way through the workers."""

    def __init__(
        self,
        owner: Evaluator,
        batch: Sequence[Candidate],
        waiting: deque[int],
        notify: Notify,
        bound: float | None,
        deadline: float | None,
        at_least: int,
    ) -> None:
        self.owner = owner
        self.batch = batch
        self.waiting = waiting
        self.notify = notify
        self.bound = bound
        self.deadline = deadline
        self.at_least = at_least
        self.compiled: deque[int] = deque()
        self.codes: dict[int, str] = {}
        self.resources: dict[int, dict[str, float]] = {}

    def run(self) -> None:
        """Until every candidate has its outcome, or the deadline has passed."""
        pool = self.owner.pool
        while True:
            self._begin()
            if not any(worker.busy for worker in pool.workers):
                if not self.compiled:
                    return
                time.sleep(0.01)  # another process measures on the device
                continue
            for worker, request, reply in pool.wait(0.02 if self.compiled else 1.0):
                position = int(request["position"])
                if worker is self.owner.measurer:
                    self.owner.lock.release()
                    self._measured(position, reply)
                else:
                    self._compiled(position, reply)

    def _begin(self) -> None:
        """Hand out work to idle workers."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.waiting = deque(p for p in self.waiting if p < self.at_least)
            self.compiled = deque(p for p in self.compiled if p < self.at_least)
        owner = self.owner
        for worker in owner.compilers:
            if self.waiting and not worker.busy:
                owner.pool.submit(
                    worker, self._request("compile", self.waiting.popleft()), owner.limits.compile
                )
        while self.compiled and not owner.measurer.busy and self._quiet():
            position = self.compiled[0]
            same = owner.by_code.get(self.codes[position])
            if same is not None:
                self.compiled.popleft()
                reason = same.reason or "same code as another candidate"
                self.notify(position, replace(same, reason=reason))
            elif owner.lock.try_acquire():
                self.compiled.popleft()
                request = self._request("measure", position)
                owner.pool.submit(owner.measurer, request, owner.limits.measure)
            else:
                return

    def _quiet(self) -> bool:
        """True when what the compiling workers do now does not disturb a measurement."""
        busy = [worker for worker in self.owner.compilers if worker.busy]
        return not busy or (self.owner.limits.overlap and all(worker.settled for worker in busy))

    def _request(self, op: str, position: int) -> Message:
        described = self.owner.encode(self.batch[position])
        return {"op": op, **described, "position": position, "bound": self.bound}

    def _compiled(self, position: int, reply: Reply) -> None:
        if reply.message.get("status") == "ok":
            self.codes[position] = str(reply.message["code"])
            self.resources[position] = dict(reply.message.get("resources", {}))
            self.compiled.append(position)
        else:
            self.notify(position, outcome_of(reply))

    def _measured(self, position: int, reply: Reply) -> None:
        outcome = outcome_of(reply, self.codes[position])
        outcome = replace(outcome, resources={**self.resources[position], **outcome.resources})
        if outcome.status is not Status.TIMEOUT:  # a slow machine must not condemn equal code
            self.owner.by_code[outcome.code] = outcome
        self.notify(position, outcome)


def outcome_of(reply: Reply, code: str = "") -> Outcome:
    """What a worker's answer means.

    Raises:
        InternalError: the worker met one.
    """
    if reply.failure is not None:
        return Outcome(reply.failure, reason=reply.reason, error=reply.error, code=code)
    message = reply.message
    if message["status"] == "internal":
        raise InternalError(message["reason"], facts=[("worker", str(message["text"]))])
    status = Status(message["status"])
    samples = tuple(float(sample) for sample in message.get("samples", ()))
    return Outcome(
        status,
        statistics.median(samples) if status is Status.OK else None,
        samples,
        str(message.get("reason", "")),
        str(message.get("text", "")),
        code,
        message.get("resources", {}),
    )
