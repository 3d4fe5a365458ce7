"""What was tried, in one SQLite file: a row per run and a row per candidate, failures included.

A run says what was tuned, where and with what (its `Context`); its candidates carry decisions,
trace, samples and how they ended.  Records are data: decisions are looked up again in the schedule
function, nothing read here is ever run.  Every change is one transaction in WAL mode, so a kill at
any moment loses at most the row being written, and several processes may share the file: what one
is trying, the others wait for (see `claim`).  A file that cannot be
written, or a row that cannot be read, ends no search: it goes on with what can be read and keeps
the rest in memory, with one warning.  Imports `schema`, `checked_rows` and `space`.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import platform
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.checked_rows import (
    Reader,
    Record,
    Run,
    choices_of,
    read_record,
    read_run,
)
from tedsl.autotune.records.checked_text import is_number, read_json
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.records.schema import CONTEXT, check_columns, insert, prepare, read_line
from tedsl.autotune.search_space.space import Candidate, Choice
from tedsl.errors import TuneError
from tedsl.folders import write_whole

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
BUSY_SECONDS = 60.0
_RETRY_SECONDS = 0.01
_LATER = 1e-3
"""By how much a run begins after one that is said to begin in the future."""
_NEWEST = "ORDER BY CAST(r.started AS REAL) DESC, r.rowid DESC"
LONGEST_CLAIM = 3600.0
SEEDS = 4
"""How many winners of similar problems seed a search."""
NEAREST = 4
"""How many times as many are looked at, nearest sizes first, for those that differ most."""


class Records:
    """The file of records.  Several threads may use it.

    Args:
        path: the file; made with its folder when absent.  None keeps everything in memory.

    Raises:
        TuneError: the file is no record file, or was written by a newer version.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._turn = threading.RLock()
        self._sql = importlib.import_module("sqlite3")
        self._reader = Reader("the record file" if path is None else path)
        self._read_only: str | None = None
        self._in_memory = path is None
        self._connection = self._open()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def start(
        self, context: Context, *, seed: int, trials: int | None, seconds: float | None
    ) -> str:
        """Note that a run begins; returns its id."""
        run = uuid.uuid4().hex
        columns = ["id", *CONTEXT, "seed", "trials", "seconds", "started", "state"]
        now = time.time()
        values = [run, *asdict(context).values(), seed, trials, seconds, now, "running"]

        def work(sql: sqlite3.Connection) -> None:
            """No run is older than those before it, whatever the clock says."""
            (last,) = sql.execute("SELECT MAX(CAST(started AS REAL)) FROM runs").fetchone()
            if last is not None and last >= now:
                values[columns.index("started")] = last + _LATER
            sql.execute(insert("runs", columns), values)

        self._note(work)
        return run

    def finish(
        self, run: str, state: str, winner: Candidate | None, trials: int | None = None
    ) -> None:
        """Note that a run ended, and with which candidate; its claims are free again.

        `trials` is how many it had, where that was not settled when it began.
        """

        def work(sql: sqlite3.Connection) -> None:
            sql.execute("DELETE FROM claims WHERE run = ?", (run,))
            sql.execute(
                "UPDATE runs SET state = ?, finished = ?, winner = ?, "
                "trials = COALESCE(?, trials) WHERE id = ?",
                (state, time.time(), winner.key if winner else None, trials, run),
            )

        self._note(work)

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

        def work(sql: sqlite3.Connection) -> None:
            sql.execute(insert("candidates", list(row), "REPLACE"), list(row.values()))
            sql.execute("DELETE FROM claims WHERE run = ? AND key = ?", (run, candidate.key))

        self._note(work)

    def claim(
        self, run: str, context: Context, keys: Collection[str], seconds: float
    ) -> frozenset[str]:
        """Those of `keys` that this run is to try now; another run is trying the rest.

        A claim ends when its candidate is recorded, its run is finished, its process has died, or
        after `seconds`.  Nothing is claimed that has been recorded in this context already.
        """
        where, host, process = context.digest, platform.node(), os.getpid()
        now = time.time()
        row = ("context", "key", "run", "host", "process", "until")
        condition, values = _where(context.exact)

        def work(sql: sqlite3.Connection) -> frozenset[str]:
            for other in sql.execute("SELECT * FROM claims WHERE context = ?", (where,)).fetchall():
                if _is_void(other, host, now, seconds):
                    sql.execute(
                        "DELETE FROM claims WHERE context = ? AND key = ?", (where, other["key"])
                    )
            done = {
                found["key"]
                for found in sql.execute(
                    "SELECT c.key FROM candidates c JOIN runs r ON r.id = c.run WHERE " + condition,
                    values,
                )
            }
            for key in keys:
                if key not in done:
                    claim = (where, key, run, host, process, now + seconds)
                    sql.execute(insert("claims", row, "IGNORE"), claim)
            mine = sql.execute(
                "SELECT key FROM claims WHERE context = ? AND run = ?", (where, run)
            ).fetchall()
            return frozenset(found["key"] for found in mine)

        return self._note(work) & frozenset(keys)

    def refine(self, run: str, key: str, samples: Iterable[float], seconds: float) -> None:
        """Write the times that a finalist got in the closing comparison."""
        text = json.dumps(list(samples))

        def work(sql: sqlite3.Connection) -> None:
            sql.execute(
                "UPDATE candidates SET final = ?, seconds = ? WHERE run = ? AND key = ?",
                (text, seconds, run, key),
            )

        self._note(work)

    def runs(self, context: Context, *, near: bool = False) -> list[Run]:
        """Runs of exactly this context, newest first; with `near`, of other tools too."""
        condition, values = _where(context.near if near else context.exact)
        rows = self._rows(f"SELECT * FROM runs r WHERE {condition} {_NEWEST}", values)
        return [run for _, run in self._reader.each(read_run, rows)]

    def all_runs(self) -> list[Run]:
        """Every run in the file, newest first."""
        rows = self._rows(f"SELECT * FROM runs r {_NEWEST}")
        return [run for _, run in self._reader.each(read_run, rows)]

    def candidates(self, run: str) -> list[Record]:
        """What one run recorded, in the order tried."""
        rows = self._rows("SELECT * FROM candidates WHERE run = ? ORDER BY number, key", (run,))
        return [record for _, record in self._reader.each(read_record, rows)]

    def known(self, context: Context) -> dict[str, Record]:
        """The newest record of each candidate tried in exactly this context, by key."""
        return self._known(context.exact)

    def count(self, context: Context) -> int:
        """How many candidates were tried in exactly this context."""
        condition, values = _where(context.exact)
        rows = self._rows(
            "SELECT COUNT(DISTINCT c.key) FROM candidates c JOIN runs r ON r.id = c.run "
            f"WHERE {condition}",
            values,
        )
        return int(rows[0][0])

    def recorded(self, context: Context, keys: Collection[str]) -> dict[str, Record]:
        """`known`, for some candidates only."""
        return self._known(context.exact, keys)

    def best(self, context: Context) -> Record | None:
        """The winner of the newest finished run of this context, else its fastest candidate."""
        for run in self.runs(context):
            record = self.recorded(context, [run.winner]).get(run.winner) if run.winner else None
            if record is not None and record.outcome.status is Status.OK:
                return record
        ok = [r for r in self.known(context).values() if r.outcome.status is Status.OK]
        return min(ok, key=_by_time, default=None)

    def candidates_elsewhere(self, context: Context, limit: int = SEEDS) -> list[Record]:
        """What won here with other tools, newest winner first, then its fastest rivals.

        A new certificate compares them: their times mean nothing with the tools of today.
        """
        runs = self.runs(context, near=True)
        found: dict[str, Record] = {}
        for run in (run for run in runs if run.winner is not None):
            records = {r.key: r for r in self.candidates(run.id)}
            winner = records.get(run.winner or "")
            ok = [r for r in records.values() if r.outcome.status is Status.OK]
            for record in ([] if winner is None else [winner]) + sorted(ok, key=_by_time):
                found.setdefault(record.key, record)
                if len(found) >= limit:
                    return list(found.values())
        return list(found.values())

    def seeds(self, context: Context, limit: int = SEEDS) -> list[dict[str, Choice]]:
        """Winners of similar runs: this workload elsewhere first, then those of its family whose
        sizes are nearest; at most `limit`.

        They differ from one another as much as those on record can.  Their times mean nothing
        here; only their decisions are worth a try.
        """
        rows = self._rows(
            "SELECT c.decisions, r.sizes, r.workload = ? AS same, r.device = ? AS here FROM runs r "
            "JOIN candidates c ON c.run = r.id AND c.key = r.winner "
            "WHERE r.family = ? AND r.target = ? AND r.space = ? AND c.status = 'ok' "
            f"{_NEWEST}",
            (context.workload, context.device, context.family, context.target, context.space),
        )
        far = {row["sizes"]: size_distance(row["sizes"], context.sizes) for row in rows}
        rows.sort(key=lambda row: (-row["same"], -row["here"], far[row["sizes"]]))
        texts = list(dict.fromkeys(row["decisions"] for row in rows))[: NEAREST * limit]
        return _diverse([made for _, made in self._reader.each(choices_of, texts)], limit)

    def drop(self, runs: Sequence[str]) -> int:
        """Forget runs with all their candidates; returns how many runs there were."""
        count = 0
        with self._write() as sql:
            for run in runs:
                for table in ("claims", "candidates"):
                    sql.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
                count += sql.execute("DELETE FROM runs WHERE id = ?", (run,)).rowcount
        return count

    def merge(self, other: Records) -> int:
        """Take all rows of another file that are not here; returns how many."""
        before = self._connection.total_changes
        with self._write() as sql:
            for kind, row in other.lines():
                table = {"run": "runs", "candidate": "candidates"}[kind]
                sql.execute(insert(table, list(row), "IGNORE"), list(row.values()))
        return self._connection.total_changes - before

    def export(self, path: Path, *, winners_only: bool = False) -> int:
        """Write all records as JSON lines (a run, then its candidates); returns how many lines."""
        rows = self.lines(winners_only=winners_only)
        return write_whole(
            path, (json.dumps({"kind": kind, **row}, sort_keys=True) + "\n" for kind, row in rows)
        )

    def load(self, path: Path) -> int:
        """Read JSON lines that `export` wrote; rows already here stay.  Returns how many are new.

        Raises:
            TuneError: a line that is no record; nothing of the file is taken then.
        """
        before = self._connection.total_changes
        with self._write() as sql, path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                table, row = read_line(line, f"{path.name}:{number}")
                sql.execute(insert(table, list(row), "IGNORE"), list(row.values()))
        return self._connection.total_changes - before

    def lines(self, *, winners_only: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """The kind and the columns of every row: a run, then its candidates."""
        condition = "WHERE winner IS NOT NULL" if winners_only else ""
        for run in self._rows(f"SELECT * FROM runs {condition} ORDER BY started, id"):
            yield "run", dict(run)
            rows = self._rows(
                "SELECT * FROM candidates WHERE run = ? AND (? OR key = ?) ORDER BY number, key",
                (run["id"], not winners_only, run["winner"]),
            )
            for row in rows:
                yield "candidate", dict(row)

    def _known(
        self, agree: Mapping[str, str], keys: Collection[str] | None = None
    ) -> dict[str, Record]:
        condition, values = _where(agree)
        if keys is not None:
            condition += f" AND c.key IN ({', '.join('?' * len(keys))})"
            values += keys
        rows = self._rows(
            f"SELECT c.* FROM candidates c JOIN runs r ON r.id = c.run WHERE {condition} "
            "ORDER BY CAST(r.started AS REAL), r.rowid, c.time",
            values,
        )
        return {record.key: record for _, record in self._reader.each(read_record, rows)}

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._turn:
            try:
                return self._connection.execute(query, values).fetchall()
            except self._sql.DatabaseError as error:
                if not self._is_of_file(error):
                    raise
                self._go_on_without(error, copied=False)
                return self._connection.execute(query, values).fetchall()

    def _note(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction of a search, which no failure of the file may end: what cannot be written
        there is kept in memory from then on."""
        with self._turn:
            if self._read_only is not None:
                self._tell(self._read_only)
                self._read_only = None
            for copied in (True, False):
                try:
                    with self._transaction() as sql:
                        return work(sql)
                except self._sql.DatabaseError as error:
                    if not self._is_of_file(error):
                        raise
                    self._go_on_without(error, copied=copied)
            with self._transaction() as sql:
                return work(sql)

    def _is_of_file(self, error: Exception) -> bool:
        """True for what is wrong with the file or its disk, and not with what is written."""
        own = (self._sql.IntegrityError, self._sql.ProgrammingError, self._sql.DataError)
        return self.path is not None and not self._in_memory and not isinstance(error, own)

    def _go_on_without(self, error: Exception, *, copied: bool) -> None:
        """Keep records in memory from now on, with those of the file where they can be read."""
        self._tell(str(error))
        broken, self._connection = self._connection, self._connect(":memory:")
        if copied:
            with suppress(self._sql.DatabaseError):
                broken.backup(self._connection)
        with suppress(self._sql.DatabaseError):
            broken.close()
        try:
            self._prepare(self._connection)
            check_columns(self._connection)
        except (TuneError, self._sql.DatabaseError):
            self._connection.close()
            self._connection = self._connect(":memory:")
            self._prepare(self._connection)
        self._in_memory = True

    def _tell(self, why: str) -> None:
        warnings.warn(
            f"{self.path} cannot be written ({why}): what is tried from now on is kept in memory "
            "only; records=... names another file",
            RuntimeWarning,
            stacklevel=2,
        )

    @contextmanager
    def _write(self) -> Generator[sqlite3.Connection, None, None]:
        """One transaction that was asked for, and is all written, or nothing.

        Raises:
            TuneError: the file cannot be written.
        """
        try:
            with self._turn, self._transaction() as sql:
                yield sql
        except self._sql.DatabaseError as error:
            if not self._is_of_file(error):
                raise
            raise self._unusable(error) from error

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        finally:
            with suppress(self._sql.DatabaseError):
                if connection.in_transaction:  # SQLite may have ended it itself
                    connection.execute("ROLLBACK")

    def _connect(self, place: str | Path, **more: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = self._sql.connect(
            place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, **more
        )
        connection.text_factory = _decoded
        connection.row_factory = self._sql.Row
        return connection

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            connection = self._connect(":memory:")
            self._prepare(connection)
            return connection
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = self._connect(self.path)
        except OSError as error:
            return self._unwritable(error)
        except self._sql.DatabaseError as error:
            return self._unwritable(error)
        try:
            self._prepare(connection)
            check_columns(connection)
        except TuneError:
            connection.close()
            raise
        except self._sql.DatabaseError as error:
            connection.close()
            return self._unwritable(error)
        return connection

    def _unwritable(self, error: Exception) -> sqlite3.Connection:
        """What stands for a file that cannot be opened for writing: a copy of it in memory, or
        nothing where there is none.  That it will not be written is said when something is to be.

        Raises:
            TuneError: it is no record file, or another process keeps it locked.
        """
        texts = ("readonly", "read-only", "unable to open", "disk is full", "disk I/O", "no such")
        if not isinstance(error, OSError) and not any(text in str(error) for text in texts):
            raise self._unusable(error) from error
        connection = self._connect(":memory:")
        where = self.path.absolute().as_uri() if self.path is not None else ""
        for mode in ("mode=ro", "mode=ro&immutable=1"):
            with suppress(self._sql.DatabaseError):
                with closing(self._connect(f"{where}?{mode}", uri=True)) as there:
                    check_columns(there)
                    there.backup(connection)
                break
        self._prepare(connection)
        self._read_only = str(error)
        self._in_memory = True
        return connection

    def _unusable(self, error: Exception) -> TuneError:
        held = "locked" in str(error)
        do = "wait for the process that holds it" if held else "move the file away"
        return TuneError(
            f"{self.path} cannot be used as a record file: {error}",
            hint=f"{do}, or name another with records=...",
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Set up the connection, and the tables of a new file."""
        self._log_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        prepare(connection, self.path)

    def _log_ahead(self, connection: sqlite3.Connection) -> None:
        """Turn on the write-ahead log.  Where several processes do so in a new file, SQLite says
        "locked" at once to all but one, whatever the connection's time limit."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except self._sql.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                return


def default_path() -> Path:
    """The record file in the user's data folder."""
    platformdirs = importlib.import_module("platformdirs")
    return Path(platformdirs.user_data_dir("tedsl", appauthor=False)) / "records.sqlite"


def _where(agree: Mapping[str, str]) -> tuple[str, list[str]]:
    """The condition that a run `r` has these values, and the values."""
    return " AND ".join(f"r.{name} = ?" for name in agree), list(agree.values())


def _decoded(raw: bytes) -> str:
    """Text of a file that may be damaged; what is none can at least be looked at."""
    return raw.decode("utf-8", errors="replace")


def _is_void(claim: sqlite3.Row, host: str, now: float, seconds: float) -> bool:
    """True for a claim that nobody keeps: its process is gone, its time is over, or lies so far
    ahead that a clock was wrong."""
    process, until = claim["process"], claim["until"]
    if not isinstance(process, int) or not is_number(until):
        return True
    gone = claim["host"] == host and not _alive(process)
    return gone or until < now or until > now + 2 * max(seconds, LONGEST_CLAIM)


def _alive(process: int) -> bool:
    """True when a process of this number runs on this machine."""
    with suppress(PermissionError):  # it runs, for another user
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True


def _by_time(record: Record) -> tuple[float, str]:
    return (record.outcome.seconds or 0.0, record.key)


def size_distance(one: str, other: str) -> float:
    """How far apart two sizes are, given as JSON: a sum of octaves; infinite where they cannot be
    compared, extent by extent."""
    try:
        a, b = _numbers(read_json(one)), _numbers(read_json(other))
    except (ValueError, RecursionError):
        return math.inf
    if len(a) != len(b):
        return math.inf
    return sum(abs(math.log2(max(x, 1) / max(y, 1))) for x, y in zip(a, b, strict=True))


def _numbers(data: object) -> list[float]:
    """All numbers in JSON data, in order; those of an object by name."""
    if isinstance(data, dict):
        items = cast("dict[str, object]", data)
        return [number for name in sorted(items) for number in _numbers(items[name])]
    if isinstance(data, list):
        return [number for item in cast("list[object]", data) for number in _numbers(item)]
    return [float(cast("float", data))] if is_number(data) else []


def _diverse(found: Sequence[dict[str, Choice]], limit: int) -> list[dict[str, Choice]]:
    """The first, then always the one that differs most from all taken; of equal ones the first."""
    taken: list[dict[str, Choice]] = list(found[:1])
    left = list(found[1:])
    while left and len(taken) < limit:
        chosen = max(left, key=lambda each: min(_distance(each, other) for other in taken))
        left.remove(chosen)
        taken.append(chosen)
    return taken


def _distance(a: Mapping[str, Choice], b: Mapping[str, Choice]) -> int:
    """How many decisions differ."""
    return sum((name in a) != (name in b) or a.get(name) != b.get(name) for name in {**a, **b})
