"""The tables of the record file: how they are made and brought up to date, and their rows as JSON.

    runs         one search: what was tuned, where, with what, how it ended
    candidates   one candidate of a run: decisions, trace, samples, how it ended
    claims       candidates that a search is trying just now, so that another waits for the result

Imports `record_key`, `checked_outcomes` and `checked_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tedsl.autotune.records.checked_outcomes import checked_outcome
from tedsl.autotune.records.checked_text import is_number, numbers, read_json, read_object
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.search_space.space import read_decisions
from tedsl.errors import TuneError

if TYPE_CHECKING:
    import sqlite3

VERSION = 2
CONTEXT = tuple(f.name for f in fields(Context))

_FIRST = (
    """CREATE TABLE runs (
        id TEXT PRIMARY KEY, workload TEXT NOT NULL, family TEXT NOT NULL, sizes TEXT NOT NULL,
        dtypes TEXT NOT NULL, target TEXT NOT NULL, device TEXT NOT NULL, features TEXT NOT NULL,
        toolchain TEXT NOT NULL, codegen TEXT NOT NULL, space TEXT NOT NULL, seed INTEGER NOT NULL,
        trials INTEGER, seconds REAL, started REAL NOT NULL, finished REAL,
        state TEXT NOT NULL, winner TEXT)""",
    """CREATE TABLE candidates (
        run TEXT NOT NULL REFERENCES runs(id), key TEXT NOT NULL, number INTEGER NOT NULL,
        decisions TEXT NOT NULL, trace TEXT NOT NULL, origin TEXT NOT NULL, code TEXT NOT NULL,
        status TEXT NOT NULL, reason TEXT NOT NULL, error TEXT NOT NULL, seconds REAL,
        samples TEXT NOT NULL, final TEXT NOT NULL, resources TEXT NOT NULL, time REAL NOT NULL,
        PRIMARY KEY (run, key)) WITHOUT ROWID""",
    """CREATE INDEX runs_by_context
        ON runs (workload, target, device, toolchain, space)""",
)
_SECOND = (
    "ALTER TABLE runs ADD COLUMN layout TEXT NOT NULL DEFAULT 'unknown'",
    """CREATE TABLE claims (
        context TEXT NOT NULL, key TEXT NOT NULL, run TEXT NOT NULL, host TEXT NOT NULL,
        process INTEGER NOT NULL, until REAL NOT NULL,
        PRIMARY KEY (context, key)) WITHOUT ROWID""",
    "CREATE INDEX runs_by_family ON runs (family, target, space)",
)
_STEPS: tuple[tuple[str, ...], ...] = (_FIRST, _SECOND)
"""The statements that lead from each version to the next."""


def prepare(connection: sqlite3.Connection, place: object) -> None:
    """Bring the tables to this version: made in a new file, changed in one of an older tedsl.

    Raises:
        TuneError: the file was written by a newer tedsl.
    """
    found = _version(connection)
    if found == VERSION:
        return
    if found > VERSION:
        raise TuneError(
            f"{place} holds records of version {found}, this tedsl reads {VERSION}",
            hint="use another file, records=..., or the tedsl that wrote it",
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in _STEPS[_version(connection) :]:  # another process may have been first
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def insert(table: str, columns: Sequence[str], conflict: str = "ABORT") -> str:
    """The statement that writes one row of `columns`."""
    marks = ", ".join("?" * len(columns))
    return f"INSERT OR {conflict} INTO {table} ({', '.join(columns)}) VALUES ({marks})"


_COLUMNS: dict[str, tuple[str, dict[str, type | tuple[type, ...]]]] = {
    "run": (
        "runs",
        {
            **{name: str for name in ("id", *CONTEXT, "state")},
            "seed": int,
            "trials": (int, type(None)),
            "seconds": (int, float, type(None)),
            "started": (int, float),
            "finished": (int, float, type(None)),
            "winner": (str, type(None)),
        },
    ),
    "candidate": (
        "candidates",
        {
            **{name: str for name in ("run", "key", "decisions", "trace", "origin", "code")},
            **{name: str for name in ("status", "reason", "error", "samples", "final")},
            "resources": str,
            "number": int,
            "seconds": (int, float, type(None)),
            "time": (int, float),
        },
    ),
}


def check_columns(connection: sqlite3.Connection) -> None:
    """Ask for every column once.

    Raises:
        sqlite3.DatabaseError: a table or a column is missing, or the file is damaged.
    """
    for table, columns in _COLUMNS.values():
        connection.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 1").fetchall()
    connection.execute("SELECT context, key, run, host, process, until FROM claims LIMIT 1")


def _fits(value: object) -> bool:
    """True for what a column of the file can hold."""
    if isinstance(value, int):
        return not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value is None or isinstance(value, str) or is_number(value)


def read_line(line: str, place: str) -> tuple[str, dict[str, Any]]:
    """One exported line as a table and a row.  Only the known columns, with their types.

    Raises:
        TuneError: the line is no record.
    """
    try:
        data: dict[str, Any] = read_object(line)
        table, columns = _COLUMNS[data.pop("kind")]
        if table == "runs":
            data.setdefault("layout", "unknown")
        good = data.keys() == columns.keys() and all(
            isinstance(data[name], kind) for name, kind in columns.items()
        )
        good = good and all(_fits(value) for value in data.values())
        if table == "candidates" and good:
            read_decisions(data["decisions"])
            told = {name: read_json(data[name]) for name in ("samples", "resources")}
            checked_outcome({**data, **told})
            numbers(read_json(data["final"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        good, table, data = False, "", {}
    if not good:
        raise TuneError(
            f"{place} is no record: {line.strip()[:80]!r}",
            hint="import only files that `records export` wrote, whole",
        )
    return table, data
