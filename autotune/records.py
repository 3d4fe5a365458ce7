"""What was tried, in one SQLite file: a row per run and a row per candidate, failures included.

A run says what was tuned (workload hash, sizes, dtypes, space), where (target, device, CPU
features) and with what (toolchain); its candidates carry decisions, trace, samples and how they
ended.  Records are data: decisions are looked up again in the schedule function, nothing read here
is ever run.  Every change is one transaction in WAL mode, so a kill at any moment loses at most the
row being written, and several processes may share the file.  Imports `search` and `space`.
"""

from __future__ import annotations

import importlib
import json
import os
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tedsl.autotune.search import Outcome, Status
from tedsl.autotune.space import Candidate, Choice, read_decisions
from tedsl.errors import TuneError

if TYPE_CHECKING:
    import sqlite3

VERSION = 1
BUSY_SECONDS = 60.0

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS runs (
        id TEXT PRIMARY KEY, workload TEXT NOT NULL, family TEXT NOT NULL, sizes TEXT NOT NULL,
        dtypes TEXT NOT NULL, target TEXT NOT NULL, device TEXT NOT NULL, features TEXT NOT NULL,
        toolchain TEXT NOT NULL, codegen TEXT NOT NULL, space TEXT NOT NULL, seed INTEGER NOT NULL,
        trials INTEGER, seconds REAL, started REAL NOT NULL, finished REAL,
        state TEXT NOT NULL, winner TEXT)""",
    """CREATE TABLE IF NOT EXISTS candidates (
        run TEXT NOT NULL REFERENCES runs(id), key TEXT NOT NULL, number INTEGER NOT NULL,
        decisions TEXT NOT NULL, trace TEXT NOT NULL, origin TEXT NOT NULL, code TEXT NOT NULL,
        status TEXT NOT NULL, reason TEXT NOT NULL, error TEXT NOT NULL, seconds REAL,
        samples TEXT NOT NULL, final TEXT NOT NULL, resources TEXT NOT NULL, time REAL NOT NULL,
        PRIMARY KEY (run, key)) WITHOUT ROWID""",
    """CREATE INDEX IF NOT EXISTS runs_by_context
        ON runs (workload, target, device, toolchain, space)""",
)


@dataclass(frozen=True, slots=True)
class Context:
    """Where results are comparable: what is tuned, where, and with what.

    Attributes:
        workload: name-free hash of the computation, sizes included; `family` leaves them out.
        sizes, dtypes: shapes and element types of inputs and outputs, as JSON.
        target: `cpu` or `cuda`.
        device: name of the processor or GPU.
        features: of the processor, e.g. its vector extensions.
        toolchain: versions that change what is generated or how it runs.
        codegen: digest of the compiler's own sources; kept, but not part of the key.
        space: which schedule function was searched.
    """

    workload: str
    family: str
    sizes: str
    dtypes: str
    target: str
    device: str
    features: str
    toolchain: str
    codegen: str
    space: str = "rules"

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What must agree for a record to be used as it is."""
        return (self.workload, self.target, self.device, self.toolchain, self.space)


@dataclass(frozen=True, slots=True)
class Run:
    """One search.  `state` is running, done, exhausted or interrupted; `winner` a candidate key."""

    id: str
    context: Context
    seed: int
    trials: int | None
    seconds: float | None
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
    """One candidate as it was recorded; `codegen` is the digest of the compiler that made it."""

    run: str
    codegen: str
    key: str
    decisions: Mapping[str, Choice]
    trace: str
    outcome: Outcome


class Records:
    """The file of records.

    Args:
        path: the file; made with its folder when absent.  None keeps everything in memory.

    Raises:
        TuneError: the file is no record file, or was written by a newer version.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._sql = importlib.import_module("sqlite3")
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = self._open()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def start(
        self, context: Context, *, seed: int, trials: int | None, seconds: float | None
    ) -> str:
        """Note that a run begins; returns its id."""
        run = uuid.uuid4().hex
        names = [f.name for f in fields(Context)]
        columns = ["id", *names, "seed", "trials", "seconds", "started", "state"]
        values = [run, *asdict(context).values(), seed, trials, seconds, time.time(), "running"]
        with self._write() as sql:
            sql.execute(_insert("runs", columns), values)
        return run

    def finish(self, run: str, state: str, winner: Candidate | None) -> None:
        """Note that a run ended, and with which candidate."""
        with self._write() as sql:
            sql.execute(
                "UPDATE runs SET state = ?, finished = ?, winner = ? WHERE id = ?",
                (state, time.time(), winner.key if winner else None, run),
            )

    def add(self, run: str, number: int, candidate: Candidate, outcome: Outcome) -> None:
        """Write one candidate.  A second row for it in one run replaces the first."""
        row: dict[str, object] = {
            "run": run,
            "key": candidate.key,
            "number": number,
            "decisions": candidate.key,
            "trace": candidate.trace,
            "origin": candidate.origin,
            "code": outcome.code,
            "status": outcome.status.value,
            "reason": outcome.reason,
            "error": outcome.error,
            "seconds": outcome.seconds,
            "samples": json.dumps(outcome.samples),
            "final": "[]",
            "resources": json.dumps(dict(outcome.resources), sort_keys=True),
            "time": time.time(),
        }
        with self._write() as sql:
            sql.execute(_insert("candidates", list(row), "REPLACE"), list(row.values()))

    def refine(self, run: str, key: str, samples: Iterable[float], seconds: float) -> None:
        """Write the times that a finalist got in the closing comparison."""
        with self._write() as sql:
            sql.execute(
                "UPDATE candidates SET final = ?, seconds = ? WHERE run = ? AND key = ?",
                (json.dumps(list(samples)), seconds, run, key),
            )

    def runs(self, context: Context) -> list[Run]:
        """Runs of exactly this context, newest first."""
        rows = self._connection.execute(
            "SELECT * FROM runs WHERE workload = ? AND target = ? AND device = ? "
            "AND toolchain = ? AND space = ? ORDER BY started DESC, id",
            context.key,
        )
        return [_run(row) for row in rows]

    def known(self, context: Context) -> dict[str, Record]:
        """The newest record of each candidate tried in exactly this context, by key."""
        rows = self._connection.execute(
            "SELECT c.*, r.codegen FROM candidates c JOIN runs r ON r.id = c.run "
            "WHERE r.workload = ? AND r.target = ? AND r.device = ? AND r.toolchain = ? "
            "AND r.space = ? ORDER BY c.time",
            context.key,
        )
        return {row["key"]: _record(row) for row in rows}

    def best(self, context: Context) -> Record | None:
        """The winner of the newest finished run of this context, else its fastest candidate."""
        known = self.known(context)
        for run in self.runs(context):
            record = known.get(run.winner or "")
            if record is not None and record.outcome.status is Status.OK:
                return record
        ok = [r for r in known.values() if r.outcome.status is Status.OK]
        return min(ok, key=lambda r: (r.outcome.seconds or 0.0, r.key), default=None)

    def seeds(self, context: Context, limit: int = 4) -> list[dict[str, Choice]]:
        """Winners of similar runs: this workload elsewhere first, then its family; at most `limit`.

        Their times mean nothing here; only their decisions are worth a try.
        """
        rows = self._connection.execute(
            "SELECT c.decisions, r.workload = ? AS same, r.device = ? AS here FROM runs r "
            "JOIN candidates c ON c.run = r.id AND c.key = r.winner "
            "WHERE r.family = ? AND r.target = ? AND r.space = ? AND c.status = 'ok' "
            "ORDER BY same DESC, here DESC, r.started DESC, r.id",
            (context.workload, context.device, context.family, context.target, context.space),
        )
        texts = dict.fromkeys(str(row["decisions"]) for row in rows)
        return [read_decisions(text) for text in list(texts)[:limit]]

    def export(self, path: Path, *, winners_only: bool = False) -> int:
        """Write all records as JSON lines (a run, then its candidates); returns how many lines."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        count = 0
        with temporary.open("w", encoding="utf-8") as file:
            for kind, row in self._lines(winners_only):
                file.write(json.dumps({"kind": kind, **row}, sort_keys=True) + "\n")
                count += 1
        temporary.replace(path)
        return count

    def load(self, path: Path) -> int:
        """Read JSON lines that `export` wrote; rows already here stay.  Returns how many are new.

        Raises:
            TuneError: a line that is no record; nothing of the file is taken then.
        """
        before = self._connection.total_changes
        with self._write() as sql, path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                table, row = _parse(line, f"{path.name}:{number}")
                sql.execute(_insert(table, list(row), "IGNORE"), list(row.values()))
        return self._connection.total_changes - before

    def _lines(self, winners_only: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        condition = "WHERE winner IS NOT NULL" if winners_only else ""
        for run in self._connection.execute(f"SELECT * FROM runs {condition} ORDER BY started, id"):
            yield "run", dict(run)
            rows = self._connection.execute(
                "SELECT * FROM candidates WHERE run = ? AND (? OR key = ?) ORDER BY number, key",
                (run["id"], not winners_only, run["winner"]),
            )
            for row in rows:
                yield "candidate", dict(row)

    @contextmanager
    def _write(self) -> Generator[sqlite3.Connection, None, None]:
        """One transaction: all of it is written, or nothing."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _open(self) -> sqlite3.Connection:
        place = ":memory:" if self.path is None else self.path
        try:
            connection: sqlite3.Connection = self._sql.connect(
                place, timeout=BUSY_SECONDS, isolation_level=None
            )
        except self._sql.DatabaseError as error:
            raise self._unusable(error) from error
        try:
            self._prepare(connection)
        except TuneError:
            connection.close()
            raise
        except self._sql.DatabaseError as error:
            connection.close()
            raise self._unusable(error) from error
        return connection

    def _unusable(self, error: Exception) -> TuneError:
        return TuneError(
            f"{self.path} cannot be used as a record file: {error}",
            hint="move the file away, or name another with records=...",
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Set up the connection, and the tables of a new file."""
        connection.row_factory = self._sql.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if found not in (0, VERSION):
            raise TuneError(
                f"{self.path} holds records of version {found}, this tedsl reads {VERSION}",
                hint="use another file, records=..., or the tedsl that wrote it",
            )
        if found == 0:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")


def default_path() -> Path:
    """The record file in the user's data folder."""
    platformdirs = importlib.import_module("platformdirs")
    return Path(platformdirs.user_data_dir("tedsl", appauthor=False)) / "records.sqlite"


def _insert(table: str, columns: list[str], conflict: str = "ABORT") -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT OR {conflict} INTO {table} ({', '.join(columns)}) VALUES ({marks})"


def _run(row: sqlite3.Row) -> Run:
    context = Context(**{f.name: row[f.name] for f in fields(Context)})
    values = {name: row[name] for name in ("id", "seed", "trials", "seconds", "state", "winner")}
    return Run(context=context, **values)


def _record(row: sqlite3.Row) -> Record:
    outcome = Outcome(
        status=Status(row["status"]),
        seconds=row["seconds"],
        samples=tuple(json.loads(row["samples"])),
        reason=row["reason"],
        error=row["error"],
        code=row["code"],
        resources=json.loads(row["resources"]),
    )
    return Record(
        run=row["run"],
        codegen=row["codegen"],
        key=row["key"],
        decisions=read_decisions(row["decisions"]),
        trace=row["trace"],
        outcome=outcome,
    )


_COLUMNS: dict[str, tuple[str, dict[str, type | tuple[type, ...]]]] = {
    "run": (
        "runs",
        {
            **{name: str for name in ("id", *(f.name for f in fields(Context)), "state")},
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


def _parse(line: str, place: str) -> tuple[str, dict[str, Any]]:
    """One exported line as a table and a row.  Only the known columns, with their types."""
    try:
        data: dict[str, Any] = json.loads(line)
        table, columns = _COLUMNS[data.pop("kind")]
        good = data.keys() == columns.keys() and all(
            isinstance(data[name], kind) for name, kind in columns.items()
        )
        if table == "candidates" and good:
            Status(data["status"])
            read_decisions(data["decisions"])
            json.loads(data["samples"])
            json.loads(data["resources"])
    except (ValueError, KeyError, AttributeError, TypeError):
        good, table, data = False, "", {}
    if not good:
        raise TuneError(
            f"{place} is no record: {line.strip()[:80]!r}",
            hint="import only files that Records.export wrote, whole",
        )
    return table, data
