"""Candidates of many problems, tried on as many devices as there are: here, or through an executor.

A `Farm` cuts batches into chunks and sends each, as JSON text, down a lane: a thread that works for
one local GPU, or any `concurrent.futures.Executor`, whose processes may be on other machines.  What
gets lost on the way is sent again, alone; a candidate lost three times is given up.  Only devices
of one model answer, so that their times may be compared; closing comparisons stay on one device.
Imports `device_host`.
"""

from __future__ import annotations

import itertools
import json
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from tedsl.autotune.cluster.device_host import HOSTS, Place, attend, attend_at
from tedsl.autotune.cluster.host_answers import read_answer
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.search_space.space import Candidate
from tedsl.autotune.workers.protocol import STRIKES, Done, Verified, strikes_of
from tedsl.autotune.workers.utilization import Timeline
from tedsl.backends.processes.serving import Message
from tedsl.errors import InternalError, TuneError
from tedsl.runtime.cache.fingerprint import code_version

MakeExecutor = Callable[[], Executor]
LANE = 64
"""Requests that one local device has at once: what is compiled or described for one must not wait
until others are measured, nor until references for a dozen sizes are made."""
CHUNK = 4
"""Candidates sent to an executor together: they are compiled side by side there."""
BOUNCES = 40
"""How often work may meet devices of another model before that is an error."""
LOOK_SECONDS = 0.5
GRACE = 60.0
HELPFUL = ("estimate", "announce", "verify")
"""What a search can do without."""


@dataclass(slots=True, eq=False)
class _Lane:
    """A way to a host: `take` carries a request there."""

    take: Callable[[str], Future[str]]
    place: Place
    load: int = 0


@dataclass(slots=True, eq=False)
class _Chunk:
    """Candidates on their way together, by ticket."""

    op: str
    problem: str
    tickets: tuple[int, ...]
    request: Message
    deadline: float | None
    limit: float
    bounces: int = 0
    begin: float = 0.0
    lane: _Lane | None = None


@dataclass(slots=True, eq=False)
class _Box:
    """What has come for one problem."""

    setup: Message
    done: deque[tuple[int, Any]] = field(default_factory=deque[tuple[int, Any]])


class Farm:
    """Where candidates of any number of problems are tried.  Use as a context.

    Args:
        place: target, time limits and what workers are.
        devices: indices of local GPUs, one measuring process each; by default the current one.
        executor: what carries the work in place of local threads, or a function that makes it: then
            it is made again when it breaks.

    Attributes:
        facts: device, features, toolchain and code generator there.
    """

    def __init__(
        self,
        place: Place,
        devices: Sequence[int] | None = None,
        executor: Executor | MakeExecutor | None = None,
    ) -> None:
        self.place = place
        self.timeline = Timeline(time.monotonic())
        self._make = executor if not isinstance(executor, Executor) else None
        self._executor = executor if isinstance(executor, Executor) else None
        self._threads: list[ThreadPoolExecutor] = []
        self._boxes: dict[str, _Box] = {}
        self._under_way: dict[Future[str], _Chunk] = {}
        self._arrived: queue.SimpleQueue[Future[str]] = queue.SimpleQueue()
        self._tickets = itertools.count()
        self._strikes: dict[int, int] = {}
        self._lanes = [self._remote()] if executor is not None else self._local(devices)
        self.chunk = CHUNK if executor is not None else 1 << 30
        self.facts: dict[str, str] = {}

    @property
    def width(self) -> int:
        """How many devices there are, as far as is known."""
        return len(self._lanes)

    def __enter__(self) -> Farm:
        reply = self._call("facts", {}, [], {})
        self.facts = dict(reply["facts"])
        if self.facts["codegen"] != code_version():
            raise TuneError(
                "the executor's hosts have another tedsl than this process",
                subject="executor",
                facts=[("there", self.facts["codegen"][:16]), ("here", code_version()[:16])],
                hint="install the same version on all of them",
            )
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._under_way:
            future.cancel()
        HOSTS.release()
        for threads in self._threads:
            threads.shutdown()
        if self._make is not None and self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def add(self, setup: Message) -> str:
        """A problem to try candidates of; returns its name."""
        name = json.dumps(setup, sort_keys=True)
        self._boxes.setdefault(name, _Box(setup))
        return name

    def announce(self, problem: str) -> None:
        """Tell a host of a problem whose candidates are going to come: it may make references."""
        self._call("announce", self._boxes[problem].setup, [], {})

    def begin(
        self,
        problem: str,
        described: Sequence[Message],
        *,
        best: float | None = None,
        deadline: float | None = None,
        at_least: int = 0,
    ) -> list[int]:
        """Try candidates; returns a ticket for each, by which `wait` tells its outcome.

        Args:
            problem: as `add` named it.
            described: `key`, and `decisions` or `trace`.
            best: seconds of the fastest so far; what is clearly slower is timed less.
            deadline: `time.monotonic()` after which nothing new is begun.
            at_least: how many of the first are tried even then.
        """
        tickets = [next(self._tickets) for _ in described]
        size = min(self.chunk, -(-len(described) // len(self._lanes)) or 1)
        for start in range(0, len(described), size):
            part = slice(start, start + size)
            more: Message = {"best": best, "at_least": max(0, min(size, at_least - start))}
            self._send(
                self._chunk("measure", problem, tickets[part], described[part], more, deadline)
            )
        return tickets

    def wait(self, problem: str) -> tuple[int, Outcome | None]:
        """The ticket and the outcome of the next candidate of a problem that is done; None as an
        outcome when its deadline came first.

        Raises:
            TuneError: nothing can be tried any more.
            InternalError: a worker met one.
        """
        while not self._has_come(problem, None):
            pass
        return self._boxes[problem].done.popleft()

    def wait_until(self, problem: str, until: float | None) -> tuple[int, Outcome | None] | None:
        """As `wait`; None when nothing is done by then (`time.monotonic`)."""
        return self._boxes[problem].done.popleft() if self._has_come(problem, until) else None

    def _has_come(self, problem: str, until: float | None) -> bool:
        """Whether something of a problem has been done by then."""
        box = self._boxes[problem]
        while not box.done:
            if until is not None and time.monotonic() > until:
                return False
            self._pump()
        return True

    def compare(
        self, problem: str, described: Sequence[Message], rounds: int, seconds: float
    ) -> list[list[float]] | None:
        """Samples of several candidates of a problem, taken in turn on one device; None when they
        could not be had."""
        more = {"rounds": rounds, "seconds": seconds}
        return self._call("compare", self._boxes[problem].setup, described, more).get("samples")

    def verify(self, problem: str, described: Message, calls: int, seconds: float) -> Verified:
        """Call a candidate of a problem that is to win again and again, on one device."""
        more = {"calls": calls, "seconds": seconds}
        reply = self._call("verify", self._boxes[problem].setup, [described], more)
        return Verified(reply.get("calls", 0), reply.get("fault"))

    def describe(
        self, problem: str, described: Sequence[Message], until: float | None = None
    ) -> list[Mapping[str, float] | None]:
        """What the static model says of candidates; nothing when that takes longer."""
        reply = self._call("estimate", self._boxes[problem].setup, described, {}, until)
        found: list[Mapping[str, float] | None] | None = reply.get("found")
        return found or [None] * len(described)

    def _call(
        self,
        op: str,
        setup: Message,
        described: Sequence[Message],
        more: Message,
        until: float | None = None,
    ) -> Message:
        """Ask one host something, and wait for the answer; empty when it does not come by then."""
        name = self.add(setup)
        ticket = next(self._tickets)
        self._send(self._chunk(op, name, [ticket], described, more, None))
        box = self._boxes[name]
        while not any(number == ticket for number, _ in box.done):
            if until is not None and time.monotonic() > until:
                return {}
            self._pump()
        found = next(pair for pair in box.done if pair[0] == ticket)
        box.done.remove(found)
        reply: Message | None = found[1]
        return reply or {}

    def _chunk(
        self,
        op: str,
        problem: str,
        tickets: Sequence[int],
        described: Sequence[Message],
        more: Message,
        deadline: float | None,
    ) -> _Chunk:
        place = self.place
        request: Message = {
            "op": op,
            "target": place.target,
            "seconds_each": place.seconds,
            "wanted": self.facts["device"] if op != "facts" else "",
            "problem": self._boxes[problem].setup,
            "candidates": list(described),
            "best": None,
            **more,
        }
        limits = place.limits()
        each = limits.compile + limits.measure
        limit = 2 * limits.setup + each * len(described) + GRACE
        return _Chunk(op, problem, tuple(tickets), request, deadline, limit)

    def _send(self, chunk: _Chunk) -> None:
        """Send a chunk down the lane with the least on it."""
        lane = min(self._lanes, key=lambda lane: lane.load)
        left = None if chunk.deadline is None else max(0.0, chunk.deadline - time.monotonic())
        number = next(self._tickets)  # no two requests are equal: an executor may remember answers
        text = json.dumps({**chunk.request, "left": left, "id": number})
        lane.load += len(chunk.tickets)
        chunk.lane, chunk.begin = lane, time.monotonic()
        future = lane.take(text)
        self._under_way[future] = chunk
        future.add_done_callback(self._arrived.put)

    def _pump(self) -> None:
        """Take in what has come, and send again what is lost."""
        try:
            future = self._arrived.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            now = time.monotonic()
            late = [f for f, c in self._under_way.items() if now - c.begin > c.limit]
            for future in late:
                future.cancel()
                self._lost(self._taken(future), "no answer in time")
            return
        if future not in self._under_way:
            return  # given up meanwhile
        chunk = self._taken(future)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, InternalError):
            raise error
        if future.cancelled() or error is not None:
            self._lost(chunk, f"{type(error).__name__}: {error}" if error else "cancelled")
            return
        try:
            reply = read_answer(future.result(), chunk.op, len(chunk.request["candidates"]))
        except ValueError as bad:
            self._lost(chunk, f"its answer cannot be read: {bad}")
            return
        self._answered(chunk, reply)

    def _taken(self, future: Future[str]) -> _Chunk:
        chunk = self._under_way.pop(future)
        if chunk.lane is not None:
            chunk.lane.load -= len(chunk.tickets)
        return chunk

    def _answered(self, chunk: _Chunk, reply: Message) -> None:
        if "internal" in reply:
            raise InternalError(reply["internal"], facts=[("worker", reply["text"])])
        if "other" in reply:
            self._bounced(chunk, str(reply["other"]))
        elif "error" in reply and self._threads:
            raise TuneError(reply["error"], facts=[("worker", reply["text"].replace("\n", " | "))])
        elif "error" in reply:
            self._lost(chunk, reply["error"])
        elif chunk.op == "measure":
            box = self._boxes[chunk.problem].done
            now = time.monotonic()
            self.timeline.add("measure", chunk.begin, now, {})
            box.extend(zip(chunk.tickets, reply["outcomes"], strict=True))
        else:
            self._boxes[chunk.problem].done.append((chunk.tickets[0], reply))

    def _bounced(self, chunk: _Chunk, other: str) -> None:
        """A device of another model was met: its times would say nothing here."""
        chunk.bounces += 1
        if chunk.bounces > BOUNCES:
            raise TuneError(
                "the executor has no free host with the device that this search measures on",
                facts=[("wanted", self.facts["device"]), ("met", other)],
                hint="give an executor whose hosts all have one model of device",
            )
        time.sleep(min(1.0, 0.02 * chunk.bounces))
        self._send(chunk)

    def _lost(self, chunk: _Chunk, why: str) -> None:
        """Send what got lost again, one by one; three losses of a candidate are the end of it."""
        self._repair()
        items = zip(chunk.tickets, chunk.request["candidates"], strict=False)
        if chunk.op != "measure":
            items = zip(chunk.tickets, [chunk.request], strict=True)
        first = int(chunk.request.get("at_least", 0))
        for place, (ticket, described) in enumerate(items):
            count = self._strikes[ticket] = self._strikes.get(ticket, 0) + 1
            if count >= STRIKES and chunk.op in HELPFUL:
                self._boxes[chunk.problem].done.append((ticket, {}))
                continue
            if count >= STRIKES and chunk.op != "measure":
                raise TuneError(
                    f"no host answers: {why}",
                    subject="executor",
                    hint="see that the executor's processes can import this version of tedsl",
                )
            if count >= STRIKES:
                reason = f"its host was lost {count} times"
                outcome = Outcome(
                    Status.CRASH, reason=reason, error=why, resources={"strikes": float(count)}
                )
                self._boxes[chunk.problem].done.append((ticket, outcome))
                continue
            alone = dict(chunk.request)
            if chunk.op == "measure":
                alone |= {"candidates": [described], "at_least": 1 if place < first else 0}
            self._send(replace(chunk, tickets=(ticket,), request=alone, bounces=0))

    def _repair(self) -> None:
        """Make the executor again where that is left to the farm and it is broken."""
        if self._make is None or self._executor is None:
            return
        if getattr(self._executor, "_broken", False):
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _remote(self) -> _Lane:
        def take(text: str) -> Future[str]:
            if self._executor is None and self._make is not None:
                self._executor = self._make()
            if self._executor is None:
                raise TuneError("there is no executor", subject="executor")
            try:
                return self._executor.submit(attend, text)
            except RuntimeError as error:
                if self._make is None:
                    raise TuneError(
                        f"the executor takes no more work: {error}",
                        subject="executor",
                        hint="pass a function that makes the executor: it is made again then",
                    ) from error
            self._executor = self._make()
            return self._executor.submit(attend, text)

        return _Lane(take, self.place)

    def _local(self, devices: Sequence[int] | None) -> list[_Lane]:
        """A lane for each GPU; many threads each, so that chunks are compiled and described while
        another is measured, which goes on in the order they came."""
        lanes: list[_Lane] = []
        for index in [None] if devices is None else devices:
            threads = ThreadPoolExecutor(LANE, "tedsl-lane")
            self._threads.append(threads)

            place = replace(self.place, index=index)

            def take(
                text: str, threads: ThreadPoolExecutor = threads, place: Place = place
            ) -> Future[str]:
                return threads.submit(attend_at, place, text)

            lanes.append(_Lane(take, place))
        return lanes


class Share:
    """The part of a farm that one search has: what it takes for an engine."""

    def __init__(self, farm: Farm, setup: Message, encode: Callable[[Candidate], Message]) -> None:
        self.farm = farm
        self.problem = farm.add(setup)
        self.encode = encode
        self.best: float | None = None
        self._places: dict[int, tuple[int, int, int]] = {}
        self._known: deque[Done] = deque()

    @property
    def timeline(self) -> Timeline:
        """When the farm had something to do, for whatever problem."""
        return self.farm.timeline

    def begin(
        self,
        number: int,
        candidates: Sequence[Candidate],
        *,
        known: Sequence[Outcome | None] = (),
        deadline: float | None = None,
        at_least: int = 0,
        closely: bool = False,
    ) -> None:
        """Take a batch; see `Engine.begin`.  With `closely` all go through the closest checks."""
        fresh: list[tuple[int, int]] = []
        for position in range(len(candidates)):
            done = known[position] if position < len(known) else None
            strikes = 0 if done is None else strikes_of(done)
            if done is not None and not 0 < strikes < STRIKES:
                self._known.append(Done(number, position, done))
            else:
                fresh.append((position, strikes))
        more: Message = {"closely": True} if closely else {}
        described = [{**self.encode(candidates[position]), **more} for position, _ in fresh]
        tickets = self.farm.begin(
            self.problem, described, best=self.best, deadline=deadline, at_least=at_least
        )
        for ticket, (position, strikes) in zip(tickets, fresh, strict=True):
            self._places[ticket] = (number, position, strikes)

    def wait(self) -> Done:
        """The next candidate that is done."""
        while True:
            done = self.wait_until(None)
            if done is not None:
                return done

    def wait_until(self, until: float | None) -> Done | None:
        """The next candidate that is done; None when none is by then."""
        if self._known:
            return self._known.popleft()
        found = self.farm.wait_until(self.problem, until)
        while found is not None and found[0] not in self._places:
            found = self.farm.wait_until(self.problem, until)
        if found is None:
            return None
        ticket, outcome = found
        number, position, strikes = self._places.pop(ticket)
        if outcome is not None and outcome.seconds is not None:
            self.best = min(self.best or outcome.seconds, outcome.seconds)
        if outcome is not None and strikes and strikes_of(outcome):
            total = {"strikes": float(strikes + strikes_of(outcome))}
            outcome = replace(outcome, resources={**outcome.resources, **total})
        return Done(number, position, outcome)

    def compare(
        self, candidates: Sequence[Candidate], rounds: int, seconds: float
    ) -> list[list[float]] | None:
        """Samples of several candidates taken in turn."""
        described = [self.encode(candidate) for candidate in candidates]
        return self.farm.compare(self.problem, described, rounds, seconds)

    def verify(self, candidate: Candidate, calls: int, seconds: float) -> Verified:
        """Call a candidate that is to win again and again."""
        return self.farm.verify(self.problem, self.encode(candidate), calls, seconds)

    def describe(
        self,
        candidates: Sequence[Candidate],
        until: float | None = None,
        at: Sequence[Mapping[str, int]] = (),
    ) -> list[Mapping[str, float] | None]:
        """What the static model says of candidates, with their times `at` other sizes; nothing when
        that takes longer."""
        more: Message = {"at": [dict(sizes) for sizes in at]} if at else {}
        return self.farm.describe(
            self.problem, [{**self.encode(c), **more} for c in candidates], until
        )
