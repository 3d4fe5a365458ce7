"""`tedsl.lock`: the schedules that a program is pinned to, in a text file kept beside it.

With the file, every rank of a job and every run of a test uses the same schedules, whatever their
own records say; with `frozen=True` a computation that the file does not know is an error.  One
entry per computation, sizes, target and device; sorted JSON, so that changes read well in a diff.
The entries are decisions, looked up again in the schedule function: data, never code.  Imports
`record_key` and `space`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from tedsl.autotune.records.checked_rows import choices_of
from tedsl.autotune.records.checked_text import is_number, read_json
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.search_space.space import (
    Candidate,
    Choice,
    Rejected,
    Space,
    canonical,
    read_decisions,
)
from tedsl.autotune.workers.device_lock import FileLock
from tedsl.errors import TuneError
from tedsl.folders import write_whole

DEFAULT = Path("tedsl.lock")
FORMAT = 1
_KEY = ("workload", "sizes", "target", "device", "space", "layout")


@dataclass(frozen=True, slots=True)
class Entry:
    """One pinned schedule.

    Attributes:
        name: what the program calls its results; for readers only.
        decisions: name-free knobs and their choices.
        trace: digest of the trace they led to.
        seconds: what a call took when it was chosen.
        tools: versions it was chosen with.
    """

    name: str
    decisions: Mapping[str, Choice]
    trace: str
    seconds: float
    tools: str


class LockFile:
    """The file of pinned schedules.

    Args:
        path: the file; one that does not exist is an empty one.

    Raises:
        TuneError: the file is no lock file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries = _read(path)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, context: Context) -> Entry | None:
        """The entry of this computation on this device, whatever tools it was chosen with."""
        row = self._entries.get(_key(context))
        if row is None:
            return None
        return Entry(
            row["name"],
            read_decisions(canonical(row["decisions"])),
            row["trace"],
            float(row["seconds"]),
            row["tools"],
        )

    def pinned(self, context: Context, space: Space, *, frozen: bool) -> Candidate | None:
        """The candidate that the file pins for this computation; None when it knows none.

        Raises:
            TuneError: with `frozen`, when it knows none, or one that the schedule function no
                longer leads to.
        """
        entry = self.find(context)
        facts = [
            ("computation", f"{context.workload}, sizes {context.sizes}"),
            ("target", f"{context.target}, {context.device}"),
        ]
        if entry is None:
            if frozen:
                raise TuneError(
                    f"{self.path} pins no schedule for this computation",
                    subject="autotune",
                    facts=facts,
                    hint="run once without frozen=True on such a device, and commit the file",
                )
            return None
        found = space.candidate(entry.decisions, "lock")
        if isinstance(found, Candidate) and digest(found.trace) == entry.trace:
            return found
        if frozen:
            why = found.reason if isinstance(found, Rejected) else "it leads to another trace now"
            raise TuneError(
                f"the schedule that {self.path} pins cannot be made again: {why}",
                subject="autotune",
                facts=[*facts, ("chosen with", entry.tools), ("now", context.toolchain)],
                hint="run once without frozen=True, and commit the file",
            )
        return None

    def pin(self, context: Context, name: str, candidate: Candidate, seconds: float) -> None:
        """Write the winner of a computation, with what others wrote to the file meanwhile.

        Raises:
            OSError: the file cannot be written; what was in it is as it was.
        """
        row: dict[str, Any] = {
            **{field: value for field, value in asdict(context).items() if field in _KEY},
            "name": name,
            "decisions": candidate.decisions,
            "trace": digest(candidate.trace),
            "seconds": float(f"{seconds:.3g}"),
            "tools": context.toolchain,
        }
        with _locked(self.path):
            self._entries = {**_read(self.path), _key(context): row}
            rows = [self._entries[key] for key in sorted(self._entries)]
            text = json.dumps({"format": FORMAT, "schedules": rows}, indent=1, sort_keys=True)
            write_whole(self.path, [text + "\n"])


def digest(trace: str) -> str:
    """16 hex digits that name a trace."""
    return hashlib.sha256(trace.encode()).hexdigest()[:16]


def _key(context: Context) -> tuple[str, ...]:
    return tuple(str(getattr(context, name)) for name in _KEY)


_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys((*_KEY, "name", "trace", "tools"), str),
    "decisions": dict,
    "seconds": (int, float),
}


def _read(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """The rows of a file by key.

    Raises:
        TuneError: it is no lock file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    try:
        data: Any = read_json(text)
    except ValueError as error:
        raise _unreadable(path, f"not JSON: {error}") from error
    fault = _fault(data)
    if fault:
        raise _unreadable(path, fault)
    rows: list[dict[str, Any]] = data["schedules"]
    return {tuple(str(row[name]) for name in _KEY): row for row in rows}


def _fault(data: Any) -> str:
    """What keeps the contents of a file from being those of a lock file; nothing where nothing
    does."""
    if not isinstance(data, dict) or not {"format", "schedules"} <= data.keys():
        return 'it has no "format" and "schedules"'
    held = cast("dict[str, Any]", data)
    if held["format"] != FORMAT:
        return f"its format is {held['format']!r}, this version reads {FORMAT}"
    if not isinstance(held["schedules"], list):
        return '"schedules" is no list'
    for number, row in enumerate(cast("list[Any]", held["schedules"]), 1):
        if not isinstance(row, dict) or row.keys() != _TYPES.keys():
            return f"entry {number} has not exactly the fields {', '.join(sorted(_TYPES))}"
        entry = cast("dict[str, Any]", row)
        for name, kind in _TYPES.items():
            if not isinstance(entry[name], kind):
                return f"{name!r} of entry {number} is {str(entry[name])[:60]!r}"
        if not is_number(entry["seconds"]):
            return f"'seconds' of entry {number} is no number that a float can hold"
        try:
            choices_of(canonical(entry["decisions"]))
        except (ValueError, TuneError, RecursionError):
            return f"'decisions' of entry {number} are none"
    return ""


def _unreadable(path: Path, why: str) -> TuneError:
    return TuneError(
        f"{path} is no lock file: {why}",
        hint="take the committed file again (a merge conflict?), or delete it and tune anew",
    )


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Keep other processes from writing the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"tedsl.lock {path.resolve()}")
    try:
        lock.acquire()
        yield
    finally:
        lock.close()
