"""The rows of a record file, checked before they are believed.

A record file is shared, and may have been written by another tedsl, damaged, or edited: a row that
holds what it cannot is left out, and said so once.  Imports `schema`, `record_key`,
`checked_outcomes` and `space`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tedsl.autotune.outcome import Outcome
from tedsl.autotune.records.checked_outcomes import checked_outcome
from tedsl.autotune.records.checked_text import is_number, read_json
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.records.schema import CONTEXT
from tedsl.autotune.search_space.space import Choice, read_decisions
from tedsl.errors import TuneError

T = TypeVar("T")
LATEST = 1e11
"""Seconds after 1970 that are some date, in the year 5138."""
STATES = ("running", "done", "exhausted", "interrupted")


@dataclass(frozen=True, slots=True)
class Run:
    """One search.  `started` is in seconds after 1970, None where the row has no date; `state` is
    running, done, exhausted or interrupted; `winner` a candidate key."""

    id: str
    context: Context
    seed: int
    trials: int | None
    seconds: float | None
    started: float | None
    state: str
    winner: str | None

    def covers(self, trials: int | None, seconds: float | None) -> bool:
        """True when this run had at least the budget asked for, or tried everything."""
        if self.state == "exhausted":
            return True
        if self.state != "done":
            return False
        enough = trials is None or (self.trials is not None and self.trials >= trials)
        return enough and (
            seconds is None or (self.seconds is not None and self.seconds >= seconds)
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One candidate as it was recorded, by one run."""

    run: str
    key: str
    decisions: Mapping[str, Choice]
    trace: str
    outcome: Outcome


class Reader:
    """Reads rows, leaving out those that cannot be read, with one warning for all.

    Args:
        place: of the rows, for the warning.
    """

    def __init__(self, place: object) -> None:
        self.place = place
        self._said = False

    def each(self, read: Callable[[Any], T], rows: Iterable[Any]) -> list[tuple[Any, T]]:
        """The rows that can be read, each with what it says."""
        found: list[tuple[Any, T]] = []
        for row in rows:
            try:
                found.append((row, read(row)))
            except ValueError as error:
                self._tell(str(error))
        return found

    def _tell(self, why: str) -> None:
        if not self._said:
            self._said = True
            warnings.warn(
                f"{self.place} has rows that cannot be read and are left out: {why[:200]}",
                RuntimeWarning,
                stacklevel=2,
            )


def read_run(row: Any) -> Run:
    """The run that a row holds.

    Raises:
        ValueError: it holds none.
    """
    texts = {name: _text(row, name) for name in ("id", "state", *CONTEXT)}
    if texts["state"] not in STATES:
        raise ValueError(f"a run in the state {texts['state']!r}")
    for name in ("seed", "trials", "seconds"):
        if not (is_number(row[name]) or (row[name] is None and name != "seed")):
            raise ValueError(f"a run with {name} {row[name]!r}")
    if row["winner"] is not None:
        _text(row, "winner")
    began = row["started"]
    return Run(
        id=texts["id"],
        context=Context(**{name: texts[name] for name in CONTEXT}),
        seed=int(row["seed"]),
        trials=None if row["trials"] is None else int(row["trials"]),
        seconds=row["seconds"],
        started=began if is_number(began) and 0 <= began < LATEST else None,
        state=texts["state"],
        winner=row["winner"],
    )


def read_record(row: Any) -> Record:
    """The candidate that a row holds.

    Raises:
        ValueError: it holds none.
    """
    names = ("run", "key", "decisions", "trace", "status", "reason", "error", "code")
    texts = {name: _text(row, name) for name in names}
    told = {name: texts[name] for name in ("status", "reason", "error", "code")}
    fields = {name: read_json(row[name]) for name in ("samples", "resources")}
    return Record(
        run=texts["run"],
        key=texts["key"],
        decisions=choices_of(texts["decisions"]),
        trace=texts["trace"],
        outcome=checked_outcome({**told, **fields, "seconds": row["seconds"]}),
    )


def choices_of(text: object) -> dict[str, Choice]:
    """Decisions that were written as text.

    Raises:
        ValueError: they were not.
    """
    read_json(text)
    try:
        return read_decisions(str(text))
    except (TuneError, RecursionError) as error:
        raise ValueError(f"decisions {str(text)[:60]!r}") from error


def _text(row: Any, name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is {str(value)[:60]!r}")
    return value
