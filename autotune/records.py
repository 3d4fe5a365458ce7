"""What was tried, in one SQLite file: a row per run and a row per candidate, failures included.

A run says what was tuned, where and with what (its `Context`); its candidates carry decisions,
trace, samples and how they ended.  Records are data: decisions are looked up again in the schedule
function, nothing read here is ever run.  Every change is one transaction in WAL mode, so a kill at
any moment loses at most the row being written, and several processes may share the file: what one
is trying, the others wait for (see `claim`).  Imports `schema`, `context`, `outcome` and `space`.
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
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tedsl.autotune.context import Context
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.schema import CONTEXT, insert, prepare, read_line
from tedsl.autotune.space import Candidate, Choice, read_decisions
from tedsl.errors import TuneError

if TYPE_CHECKING:
    import sqlite3

BUSY_SECONDS = 60.0
_RETRY_SECONDS = 0.01
SEEDS = 4
"""How many winners of similar problems seed a search."""
NEAREST = 4
"""How many times as many are looked at, nearest sizes first, for those that differ most."""


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
    """One candidate as it was recorded, by one run."""

    run: str
    key: str
    decisions: Mapping[str, Choice]
    trace: str
    outcome: Outcome


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
        columns = ["id", *CONTEXT, "seed", "trials", "seconds", "started", "state"]
        values = [run, *asdict(context).values(), seed, trials, seconds, time.time(), "running"]
        with self._write() as sql:
            sql.execute(insert("runs", columns), values)
        return run

    def finish(
        self, run: str, state: str, winner: Candidate | None, trials: int | None = None
    ) -> None:
        """Note that a run ended, and with which candidate; its claims are free again.

        `trials` is how many it had, where that was not settled when it began.
        """
        with self._write() as sql:
            sql.execute("DELETE FROM claims WHERE run = ?", (run,))
            sql.execute(
                "UPDATE runs SET state = ?, finished = ?, winner = ?, "
                "trials = COALESCE(?, trials) WHERE id = ?",
                (state, time.time(), winner.key if winner else None, trials, run),
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
            sql.execute(insert("candidates", list(row), "REPLACE"), list(row.values()))
            sql.execute("DELETE FROM claims WHERE run = ? AND key = ?", (run, candidate.key))

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
        with self._write() as sql:
            for other in sql.execute("SELECT * FROM claims WHERE context = ?", (where,)).fetchall():
                gone = other["host"] == host and not _alive(other["process"])
                if gone or other["until"] < now:
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
        return frozenset(found["key"] for found in mine) & frozenset(keys)

    def refine(self, run: str, key: str, samples: Iterable[float], seconds: float) -> None:
        """Write the times that a finalist got in the closing comparison."""
        with self._write() as sql:
            sql.execute(
                "UPDATE candidates SET final = ?, seconds = ? WHERE run = ? AND key = ?",
                (json.dumps(list(samples)), seconds, run, key),
            )

    def runs(self, context: Context, *, near: bool = False) -> list[Run]:
        """Runs of exactly this context, newest first; with `near`, of other tools too."""
        condition, values = _where(context.near if near else context.exact)
        rows = self._rows(
            f"SELECT * FROM runs r WHERE {condition} ORDER BY started DESC, id", values
        )
        return [_run(row) for row in rows]

    def all_runs(self) -> list[Run]:
        """Every run in the file, newest first."""
        rows = self._rows("SELECT * FROM runs ORDER BY started DESC, id")
        return [_run(row) for row in rows]

    def candidates(self, run: str) -> list[Record]:
        """What one run recorded, in the order tried."""
        rows = self._rows("SELECT * FROM candidates WHERE run = ? ORDER BY number, key", (run,))
        return [_record(row) for row in rows]

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
            "ORDER BY r.started DESC, r.id",
            (context.workload, context.device, context.family, context.target, context.space),
        )
        far = {row["sizes"]: size_distance(row["sizes"], context.sizes) for row in rows}
        rows.sort(key=lambda row: (-row["same"], -row["here"], far[row["sizes"]]))
        texts = list(dict.fromkeys(str(row["decisions"]) for row in rows))[: NEAREST * limit]
        return _diverse([read_decisions(text) for text in texts], limit)

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
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        count = 0
        with temporary.open("w", encoding="utf-8") as file:
            for kind, row in self.lines(winners_only=winners_only):
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
            "ORDER BY c.time",
            values,
        )
        return {row["key"]: _record(row) for row in rows}

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._turn:
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _write(self) -> Generator[sqlite3.Connection, None, None]:
        """One transaction: all of it is written, or nothing."""
        connection = self._connection
        with self._turn:
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
                place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
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
        held = "locked" in str(error)
        do = "wait for the process that holds it" if held else "move the file away"
        return TuneError(
            f"{self.path} cannot be used as a record file: {error}",
            hint=f"{do}, or name another with records=...",
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Set up the connection, and the tables of a new file."""
        connection.row_factory = self._sql.Row
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
        a, b = _numbers(json.loads(one)), _numbers(json.loads(other))
    except ValueError:
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
    return [float(data)] if isinstance(data, (int, float)) else []


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


def _run(row: sqlite3.Row) -> Run:
    context = Context(**{name: row[name] for name in CONTEXT})
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
        key=row["key"],
        decisions=read_decisions(row["decisions"]),
        trace=row["trace"],
        outcome=outcome,
    )
