"""The batches of a search that are under way, with the outcomes that have come.

A search that is bounded by time goes on without the last candidates of a batch while few are under
way: these compile for long, or wait for what they are checked against.  One that is bounded by
trials alone waits for them, so that it proposes the same however long anything takes.  Imports
`portfolio` and `outcome`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tedsl.autotune.outcome import Outcome
from tedsl.autotune.search.portfolio import UNDER_WAY, Batch

STRAGGLERS = 2
"""Candidates of a batch that others need not wait for."""


@dataclass(slots=True, eq=False)
class Flight:
    """A batch under way, with the outcomes that have come."""

    batch: Batch
    known: list[Outcome | None]
    missing: int
    outcomes: list[Outcome | None]


@dataclass(slots=True, eq=False)
class UnderWay:
    """Batches in the order begun.

    Attributes:
        flights: those that the search waits for.
        late: those that it was told of without some outcomes.
    """

    flights: deque[Flight] = field(default_factory=deque[Flight])
    late: list[Flight] = field(default_factory=list[Flight])

    def __iter__(self) -> Iterator[Flight]:
        yield from self.flights
        yield from self.late

    def of(self, batch: int) -> Flight | None:
        """The batch of a number."""
        return next((flight for flight in self if flight.batch.number == batch), None)

    @property
    def missing(self) -> int:
        """How many candidates have no outcome yet."""
        return sum(flight.missing for flight in self)

    def has_few(self, following: int) -> bool:
        """Whether of the oldest batch only some are missing, and `following` more candidates may be
        under way."""
        few = self.flights[0].missing <= STRAGGLERS
        return few and self.missing + following <= UNDER_WAY

    def land(self) -> Flight:
        """The oldest batch, which is not waited for any more."""
        flight = self.flights.popleft()
        if flight.missing:
            self.late.append(flight)
        return flight
