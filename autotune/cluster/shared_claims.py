"""Several searches that write to one record file do not measure the same candidate twice.

Before a candidate is tried it is claimed in the file.  What another process has claimed is waited
for, and its outcome is taken from the file; when that process dies, its claims are free again and
are taken over.  Imports `local_executor` and `database`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tedsl.autotune.outcome import Outcome
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.search_space.space import Candidate
from tedsl.autotune.workers.local_executor import Engine
from tedsl.autotune.workers.protocol import Done, Verified
from tedsl.autotune.workers.utilization import Timeline

LOOK_SECONDS = 0.1
"""How often the file is looked at for what others are trying."""
LEASE_SECONDS = 900.0
"""How long a claim of another machine holds.  One of this machine holds as long as its process."""


@dataclass(frozen=True, slots=True, eq=False)
class _Elsewhere:
    """A candidate that another process is trying."""

    batch: int
    position: int
    candidate: Candidate
    deadline: float | None


class SharedEngine:
    """An engine that leaves to other processes what they are trying already.

    Args:
        engine: tries the rest.
        records: the file; it must be one that others can see.
        context: of the search.
        run: the id of the search, once it has begun.
    """

    def __init__(
        self, engine: Engine, records: Records, context: Context, run: Callable[[], str]
    ) -> None:
        self.engine = engine
        self.records = records
        self.context = context
        self.run = run
        self._elsewhere: list[_Elsewhere] = []
        self._ready: deque[Done] = deque()
        self._looked = 0.0

    @property
    def timeline(self) -> Timeline:
        """When the device had something to do for this process."""
        return self.engine.timeline

    def describe(
        self, candidates: Sequence[Candidate], until: float | None = None
    ) -> Sequence[Mapping[str, float] | None]:
        """What the static model says of candidates; see `Engine.describe`."""
        return self.engine.describe(candidates, until)

    def begin(
        self,
        number: int,
        candidates: Sequence[Candidate],
        *,
        known: Sequence[Outcome | None] = (),
        deadline: float | None = None,
        at_least: int = 0,
    ) -> None:
        """Take a batch; see `Engine.begin`."""
        known = [*known, *[None] * (len(candidates) - len(known))]
        unknown = [c.key for c, outcome in zip(candidates, known, strict=True) if outcome is None]
        mine = self._claimed(unknown)
        here: list[int] = []
        for position, (candidate, outcome) in enumerate(zip(candidates, known, strict=True)):
            if outcome is not None or candidate.key in mine:
                here.append(position)
            else:
                limit = None if position < at_least else deadline
                self._elsewhere.append(_Elsewhere(number, position, candidate, limit))
        self.engine.begin(
            number,
            [candidates[position] for position in here],
            known=[known[position] for position in here],
            deadline=deadline,
            at_least=at_least,
            positions=here,
        )

    def wait_until(self, until: float | None) -> Done | None:
        """The next candidate that is done, here or elsewhere; see `Engine.wait_until`."""
        while True:
            if self._ready:
                return self._ready.popleft()
            if not self._elsewhere:
                return self.engine.wait_until(until)
            done = self.engine.poll(LOOK_SECONDS)
            if done is not None:
                return done
            if until is not None and time.monotonic() > until:
                return None
            self._look()

    def drain(self) -> list[Done]:
        """What is done already, without a wait."""
        found = [*self._ready, *self.engine.drain()]
        self._ready.clear()
        return found

    def compare(
        self, candidates: Sequence[Candidate], rounds: int, seconds: float
    ) -> list[list[float]] | None:
        """Samples of several candidates taken in turn; see `Engine.compare`."""
        return self.engine.compare(candidates, rounds, seconds)

    def verify(self, candidate: Candidate, calls: int, seconds: float) -> Verified:
        """Call a candidate that is to win again and again; see `Engine.verify`."""
        return self.engine.verify(candidate, calls, seconds)

    def _look(self) -> None:
        """Take what others have finished since, and take over what they have let go."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        keys = [each.candidate.key for each in self._elsewhere]
        mine = self._claimed(keys)
        recorded = self.records.recorded(self.context, keys)
        left: list[_Elsewhere] = []
        for each in self._elsewhere:
            record = recorded.get(each.candidate.key)
            if record is not None:
                self._ready.append(Done(each.batch, each.position, record.outcome))
            elif each.candidate.key in mine:
                self.engine.begin(
                    each.batch, [each.candidate], deadline=each.deadline, positions=[each.position]
                )
            elif each.deadline is not None and time.monotonic() > each.deadline:
                self._ready.append(Done(each.batch, each.position, None))
            else:
                left.append(each)
        self._elsewhere = left
        self._looked = time.monotonic()

    def _claimed(self, keys: Sequence[str]) -> frozenset[str]:
        if not keys:
            return frozenset()
        return self.records.claim(self.run(), self.context, keys, LEASE_SECONDS)
