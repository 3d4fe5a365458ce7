"""When the measuring worker had something to do: shows how much of a search its device was idle.

Kept in memory.  Imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One request to the measuring worker.

    Attributes:
        what: `measure` or `compare`.
        begin, end: seconds on the clock of `time.monotonic`.
        parts: seconds of it by phase, as far as the worker told; `device` is the time in which its
            device ran or was waited for.
    """

    what: str
    begin: float
    end: float
    parts: Mapping[str, float]


class Timeline:
    """The spans of one search, in order."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.spans: list[Span] = []
        self.compile_seconds = 0.0

    def add(self, what: str, begin: float, end: float, parts: Mapping[str, float]) -> None:
        """Note a request that was answered."""
        self.spans.append(Span(what, begin, end, parts))

    @property
    def measure_seconds(self) -> float:
        """Seconds in which the measuring worker had a request."""
        return sum(span.end - span.begin for span in self.spans)

    @property
    def device_seconds(self) -> float:
        """Seconds in which the device ran candidates, or was waited for; a request that did not
        say counts in full."""
        return sum(span.parts.get("device", span.end - span.begin) for span in self.spans)

    def idle(self, end: float) -> float:
        """The share of the search, up to `end`, in which the device had nothing to do."""
        whole = end - self.begin
        return max(0.0, 1.0 - self.device_seconds / whole) if whole > 0 else 0.0
