"""What happens in a search, as it happens: one small frozen object per event, and its JSON line.

    started, ready, phase, proposed, refused, compiled, tried, new_best, compared, interrupted,
    finished

The tuner calls every listener with every event, in its own thread and in order.  Displays, files
and tests are listeners.  `at` is in seconds since the search began.  Imports `errors`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeAlias, cast

from tedsl.errors import TuneError

_Numbers: TypeAlias = Mapping[str, float]


class Stage(StrEnum):
    """What a search is busy with."""

    SETUP = "starting the workers"
    SEARCH = "searching"
    FINALS = "comparing the fastest"
    BUILD = "building the winner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened `at` seconds after the search had begun."""

    kind: ClassVar[str] = ""
    at: float

    def to_json(self) -> str:
        """One line of JSON: `event` is the kind, then the fields."""
        fields = {name: _plain(value) for name, value in asdict(self).items()}
        return json.dumps({"event": self.kind, **fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """A search begins.

    Attributes:
        outputs: names of what is computed.
        space: `rules`, or a digest of the user's function.
        trials, seconds: the budget; None where that is not bounded.
        floor: seconds below which the device cannot come, by its bandwidth and its peak; 0 where
            it is not known.
        known: candidates that are on record for this very search.
    """

    kind = "started"
    outputs: tuple[str, ...]
    target: str
    device: str
    workload: str
    space: str
    trials: int | None
    seconds: float | None
    seed: int
    floor: float = 0.0
    known: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady(Event):
    """A worker has begun to work.

    Attributes:
        role: `compile` or `measure`.
        since: when it had begun, in seconds since the search did; it is told when the search looks.
        seconds: that each part of its set-up took.
    """

    kind = "ready"
    role: str
    since: float = 0.0
    seconds: _Numbers = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase(Event):
    """The search is busy with something else now."""

    kind = "phase"
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(Event):
    """A candidate is going to be tried; `origin` is what thought of it."""

    kind = "proposed"
    number: int
    batch: int
    candidate: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """Choices that were drawn and that the schedule could not carry out: no trial."""

    kind = "refused"
    candidate: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled(Event):
    """A candidate is compiled and waits for the device."""

    kind = "compiled"
    number: int
    code: str
    resources: _Numbers = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried(Event):
    """A candidate's outcome.

    Attributes:
        status, reason: how it ended.
        time: seconds of one call; None unless it ran correctly.
        recorded: true when an earlier search had measured it.
        again: true when this replaces an earlier outcome, since the device had changed.
        idle: the share of the search so far in which the device had nothing to do.
    """

    kind = "tried"
    number: int
    candidate: str
    status: str
    time: float | None = None
    reason: str = ""
    recorded: bool = False
    again: bool = False
    idle: float = 0.0
    resources: _Numbers = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBest(Event):
    """A candidate is faster than all before it; `gain` is the default's time over its own."""

    kind = "new_best"
    number: int
    candidate: str
    time: float
    gain: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Event):
    """The closing comparison is done.

    Attributes:
        finalists: numbers of the trials that took part.
        times: the median of each.
        winner: the trial that won.
        incumbent: the trial that had to be beaten: the default, or the winner of an earlier search.
        against: the winner's time over the incumbent's: interval and estimate (low, middle, high).
        ties: trials that are as fast as the winner for all that is known.
    """

    kind = "compared"
    finalists: tuple[int, ...]
    times: tuple[float, ...]
    winner: int
    incumbent: int | None = None
    against: tuple[float, float, float] | None = None
    ties: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted(Event):
    """The search ends early."""

    kind = "interrupted"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The search is over; `state` is how it is recorded, `stopped` why no further batch came."""

    kind = "finished"
    state: str
    stopped: str
    trials: int
    winner: int | None
    candidate: str
    time: float | None
    idle: float
    compile_seconds: float
    measure_seconds: float


Listener: TypeAlias = Callable[[Event], object]
KINDS: Mapping[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        *(Started, WorkerReady, Phase, Proposed, Refused, Compiled),
        *(Tried, NewBest, Compared, Interrupted, Finished),
    )
}


def event_of(line: str) -> Event:
    """The event that `to_json` wrote.

    Raises:
        TuneError: the line is no event.
    """
    try:
        data = json.loads(line)
        kind = KINDS[data.pop("event")]
        fields: dict[str, Any] = {name: _frozen(value) for name, value in data.items()}
        if kind is Phase:
            fields["stage"] = Stage(str(fields["stage"]))
        return kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TuneError(f"{line.strip()[:80]!r} is no event of a search") from error


class EventFile:
    """A listener that appends every event to a file, one line each, as it happens.

    Args:
        path: the file; made with its folder when absent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Write one line; where that fails, say so once and write no more."""
        if self._failed:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("a", encoding="utf-8", buffering=1)
            self._file.write(event.to_json() + "\n")
            if isinstance(event, Finished):
                self.close()
        except OSError as error:
            self._failed = True
            with suppress(OSError):  # what is left in the buffer cannot be written either
                self.close()
            warnings.warn(
                f"events are not written to {self.path} any more: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def listener_of(events: str | Path | Listener) -> Listener:
    """What an `events=` asks for: a file of JSON lines, or the function itself.

    Raises:
        TuneError: neither a path nor something that can be called.
    """
    if isinstance(events, (str, Path)):
        return EventFile(Path(events))
    if not callable(events):
        raise TuneError(
            f"events={events!r} is no listener",
            subject="autotune",
            facts=[("allowed", "a path, for JSON lines; a function of one argument, the event")],
        )
    return events


def _plain(value: object) -> object:
    """A value as JSON can hold it: no infinite numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value)
        return {key: _plain(item) for key, item in pairs.items()}
    return value


def _frozen(value: object) -> object:
    """Lists of a JSON value as tuples."""
    if isinstance(value, list):
        return tuple(_frozen(item) for item in cast("list[object]", value))
    return value
