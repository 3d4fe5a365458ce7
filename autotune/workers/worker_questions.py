"""What the workers of an engine are asked besides to try candidates: one question, many answers.

Compiling workers say what the static model makes of candidates and what decisions lead to, and make
references aside; the measuring worker compares.  All of it goes through the engine's thread.
Imports `protocol`, `processes.pool` and `space`.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial

from tedsl.autotune.search_space.space import Candidate, Decisions, Rejected, read_found
from tedsl.autotune.workers.protocol import Job, Limits, Order, Verified, understood, verified_of
from tedsl.backends.processes.pool import Message, Pool, Reply, Worker

Encode = Callable[[Candidate], Message]
DESCRIBED = 8
"""Candidates that a worker describes at a time."""
ASIDE = 3
"""Of so many compiling workers one may make references: nothing can win before they are made."""
SOON = 5.0
"""Seconds in which others say what decisions lead to."""
SEVERAL = 6
"""Fewer compiling workers have no time for that."""


class Asking:
    """The questions to an engine's workers; `Engine` has what they are put to."""

    encode: Encode
    limits: Limits
    compilers: list[Worker]
    on_tick: Callable[[], object] | None
    _new: queue.SimpleQueue[Job | Order]
    _pool: Pool
    _stop: threading.Event
    _roused: threading.Event

    def _raise(self) -> None:
        """Raise what ended the thread, or the wait."""
        raise NotImplementedError

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
        limit = len(candidates) * self.limits.compile + self.limits.measure + seconds
        reply = self.ask(request, limit)
        return reply.message["samples"] if reply.message.get("status") == "ok" else None

    def verify(self, candidate: Candidate, calls: int, seconds: float) -> Verified:
        """Call a candidate that is to win again and again, as often as the time allows."""
        more: Message = {"op": "verify", "calls": calls, "seconds": seconds}
        limit = self.limits.compile + self.limits.measure + seconds
        return verified_of(self.ask({**self.encode(candidate), **more}, limit))

    def describe(
        self, candidates: Sequence[Candidate], until: float | None = None
    ) -> list[dict[str, float] | None]:
        """What the static model says of candidates, asked of the compiling workers.

        With `until`, None for those of which nothing is known by then.
        """
        share = max(1, min(DESCRIBED, -(-len(candidates) // len(self.compilers))))
        if until is not None:
            share = 1  # what is cut off takes none of the others along
        described = [self.encode(candidate) for candidate in candidates]
        return self._shared("estimate", "candidates", described, share, until)

    @property
    def width(self) -> int:
        """How many compiling workers have nothing to do: the others may compile for long."""
        if self._stop.is_set():
            return 0
        return sum(worker.has_served and not worker.busy for worker in self.compilers)

    def realise(self, wanted: Sequence[Decisions]) -> list[Candidate | Rejected | None]:
        """What decisions lead to, asked of the compiling workers; None for what they could not say,
        or not soon: whoever asks waits for all of it.

        Only for the rules: of a user's function workers know nothing.
        """
        share = max(1, -(-len(wanted) // max(1, self.width)))
        until = time.monotonic() + SOON
        found = self._shared("realise", "wanted", [dict(each) for each in wanted], share, until)
        return [None if one is None else read_found(one) for one in found]

    def _shared(
        self, op: str, name: str, items: Sequence[Message], share: int, until: float | None
    ) -> list[Message | None]:
        """What the compiling workers answer to items, `share` of which make a request."""
        end = math.inf if until is None else until
        parts = [items[n : n + share] for n in range(0, len(items), share)]
        replies: list[Future[Reply]] = []
        for part in parts:
            replies.append(Future())
            request: Message = {"op": op, name: part}
            limit = len(part) * self.limits.compile
            self._new.put(Order(request, limit, replies[-1].set_result, compiles=True, until=end))
        self._pool.wake()
        found: list[Message | None] = []
        for part, reply in zip(parts, replies, strict=True):
            while not wait_for([reply], min(1.0, max(0.0, end - time.monotonic()))).done:
                self._raise()
                if time.monotonic() >= end:
                    break
            answers: list[Message | None] | None = None
            if reply.done():
                answers = understood(reply.result()).get("found")
            found += answers or [None] * len(part)
        return found

    def rouse(self) -> None:
        """Start all compiling workers before there is work for them."""
        self._roused.set()
        self._pool.wake()

    def refer(self, kinds: Sequence[str], **problem: str) -> list[Future[Message]]:
        """Have compiling workers make the references of these kinds of inputs beside their work,
        where the device is another (on the CPU that would disturb what is measured) and they are
        many; what they are when they are made."""
        found: list[Future[Message]] = []
        for kind in kinds if self.limits.overlap and len(self.compilers) >= SEVERAL else ():
            found.append(Future())
            request: Message = {"op": "refer", "kind": kind, **problem}
            take = partial(_understand, found[-1])
            self._new.put(Order(request, self.limits.setup, take, aside=True))
        self._pool.wake()
        return found

    def ask(self, request: Message, limit: float) -> Reply:
        """What the measuring worker answers to a request of another kind, in `limit` seconds.

        Batches may be under way meanwhile; the request comes before what waits to be measured.
        """
        found: Future[Reply] = Future()
        self._new.put(Order(request, limit, found.set_result))
        self._pool.wake()
        while not wait_for([found], 1.0).done:
            self._raise()
            if self.on_tick is not None:
                self.on_tick()
        return found.result()


def _understand(made: Future[Message], reply: Reply) -> None:
    """What a worker says is there."""
    made.set_result(understood(reply))
