"""What an engine takes and gives: jobs, orders, limits, and what it says of those that are done.

Imports `outcome`, `processes.pool` and `space`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.search_space.space import Candidate
from tedsl.autotune.workers.utilization import Timeline
from tedsl.backends.processes.pool import Message, Reply
from tedsl.errors import InternalError

CALLS = 300
"""Calls after which a fault that one call in fifty has was met with 99.7 % (150 would do for 95 %)
if the time allowed so many."""
STRIKES = 3
"""Runs of the tuner in which a candidate may fail in a way that may pass, before it is given up."""
PASSING = (Status.TIMEOUT, Status.CRASH, Status.DEVICE_FAULT, Status.OUT_OF_MEMORY)
"""Failures that another try may not meet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds, how many workers compile, and whether that may overlap measuring."""

    compile: float = 30.0
    measure: float = 30.0
    setup: float = 300.0
    workers: int = 1
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A candidate of a batch with its outcome; None when the deadline came first.

    `again` is true for a candidate that was done before and was timed anew, since the device had
    become faster or slower meanwhile.
    """

    batch: int
    position: int
    outcome: Outcome | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate of a batch that is compiled and waits for the device."""

    batch: int
    position: int
    code: str
    resources: dict[str, float]


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has begun to work, at a time of the clock of `time.monotonic`; `seconds` of each
    part of its set-up, as far as it told."""

    at: float
    role: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verified:
    """How often a candidate that is to win was called again, and what that found; None where it
    was right each time."""

    calls: int = 0
    fault: Outcome | None = None


class Trier(Protocol):
    """What a search needs of an engine."""

    @property
    def timeline(self) -> Timeline:
        """When the device had something to do."""
        ...

    def begin(
        self,
        number: int,
        candidates: Sequence[Candidate],
        *,
        known: Sequence[Outcome | None] = (),
        deadline: float | None = None,
        at_least: int = 0,
    ) -> None:
        """Take a batch."""
        ...

    def wait_until(self, until: float | None) -> Done | None:
        """The next candidate that is done; None when none is by then (`time.monotonic`)."""
        ...

    def describe(
        self, candidates: Sequence[Candidate], until: float | None = None
    ) -> Sequence[Mapping[str, float] | None]:
        """What the static model says of candidates, as far as it is known by then."""
        ...

    def compare(
        self, candidates: Sequence[Candidate], rounds: int, seconds: float
    ) -> list[list[float]] | None:
        """Samples of several candidates taken in turn."""
        ...

    def verify(self, candidate: Candidate, calls: int, seconds: float) -> Verified:
        """Call a candidate that is to win again and again."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """A candidate on its way: compiled, measured, and, where that has left the closest checks open,
    compiled for them and checked.

    Attributes:
        op: what the worker that it waits for is asked to do.
        measured: what it comes to if it passes the checks that are open.
        left: of these checks, `inputs` that are difficult and `sizes` other than its own.
    """

    batch: int
    position: int
    described: Message
    deadline: float | None
    strikes: int = 0
    code: str = ""
    resources: dict[str, float] = field(default_factory=dict[str, float])
    op: str = "compile"
    measured: Outcome | None = None
    left: tuple[str, ...] = ()

    @property
    def same(self) -> str:
        """Equal for candidates that are compiled to the same; nothing where that is not known."""
        return str(self.described.get("same", ""))

    @property
    def problem(self) -> str:
        """Which of several problems it is of."""
        return str(self.described.get("problem", ""))

    @property
    def late(self) -> bool:
        """True when nothing new may be begun for it."""
        over = self.deadline is not None and time.monotonic() > self.deadline
        return over and self.measured is None


@dataclass(slots=True, eq=False)
class Order:
    """A request as it is, and what takes the reply: to the measuring worker, or to any that
    compiles; `aside`, to one of few."""

    request: Message
    limit: float
    take: Callable[[Reply], object]
    compiles: bool = False
    aside: bool = False
    until: float = math.inf
    """When nobody waits for the reply any more."""


def strikes_of(outcome: Outcome) -> int:
    """How often a candidate failed in a way that another try may not meet; 0 for all else."""
    return int(outcome.resources.get("strikes", 1)) if outcome.status in PASSING else 0


def understood(reply: Reply) -> Message:
    """What a worker says; empty when it failed.

    Raises:
        InternalError: the worker met one.
    """
    message = reply.message
    if message.get("status") == "internal":
        raise InternalError(message["reason"], facts=[("worker", str(message["text"]))])
    return message


def verified_of(reply: Reply) -> Verified:
    """What a worker's answer says of a candidate that is to win.

    Raises:
        InternalError: the worker met one.
    """
    calls = reply.message.get("calls", 0)
    if reply.failure is None and understood(reply).get("status") == "ok":
        return Verified(int(calls))
    return Verified(int(calls), outcome_of(reply))


def outcome_of(reply: Reply, code: str = "") -> Outcome:
    """What a worker's answer means.

    Raises:
        InternalError: the worker met one.
    """
    if reply.failure is not None:
        return Outcome(Status(reply.failure), reason=reply.reason, error=reply.error, code=code)
    message = understood(reply)
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
