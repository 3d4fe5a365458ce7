"""Rows, lines, entries and answers that are damaged: told, left out, and nobody's end."""

from __future__ import annotations

import json
import sqlite3
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from lost_searches import about, candidate, context, fill, search

from tedsl.autotune.cluster.cluster import Farm
from tedsl.autotune.cluster.device_host import Place
from tedsl.autotune.frontend.lockfile import LockFile
from tedsl.autotune.outcome import Status
from tedsl.autotune.records.checked_rows import Reader, read_record, read_run
from tedsl.autotune.records.database import Records
from tedsl.errors import TuneError
from tedsl.runtime.cache.fingerprint import code_version

DAMAGE: list[tuple[str, Any]] = [
    ("status", "bogus"), ("status", b"\xff\xfe"), ("samples", "not JSON"), ("samples", "null"),
    ("samples", "7"), ("samples", '["a"]'), ("samples", "[" * 200_000), ("samples", "[1e999]"),
    ("decisions", "[" * 200_000), ("decisions", '{"piece":'), ("decisions", "[]"),
    ("decisions", '{"piece": {}}'), ("decisions", b"\xff"), ("resources", "7"),
    ("resources", '{"registers": "many"}'), ("seconds", "fast"), ("seconds", 0), ("seconds", -1.0),
    ("seconds", None), ("trace", b"\xc3\x28"), ("reason", 7), ("code", b"\x00\xff"),
]  # fmt: skip
RUNS: list[tuple[str, Any]] = [
    ("trials", "many"), ("seconds", "long"), ("state", "asleep"), ("seed", "x"), ("winner", 3),
    ("started", "yesterday"), ("started", 1e300), ("trials", b"\xff"),
]  # fmt: skip


@pytest.mark.cpu
def test_a_hundred_damaged_rows(tmp_path: Path):
    path = tmp_path / "r.sqlite"
    first, _ = search(records=path)
    with closing(sqlite3.connect(path)) as sql:
        (key,) = sql.execute("SELECT winner FROM runs").fetchone()
        count = 0
        for turn in range(5):
            for column, value in DAMAGE:
                like(sql, "candidates", "key", f"{key} {count}", column, value)
                count += 1
            for column, value in RUNS if turn == 0 else ():
                like(sql, "runs", "id", f"damaged {count}", column, value)
                count += 1
        sql.execute("INSERT INTO claims VALUES ('c', 'k', 'r', 'h', 'none', 'never')")
        sql.commit()
    assert count >= 100
    again, said = search(records=path)
    assert len(about(said, "left out")) == 1
    assert again.replayed
    assert again.winner.candidate.key == first.winner.candidate.key
    fresh, _ = search(records=path, fresh=True)
    assert not fresh.replayed


def like(
    sql: sqlite3.Connection, table: str, name: str, called: str, column: str, value: Any
) -> None:
    """One more row, with one column changed."""
    found = sql.execute(f"SELECT * FROM {table} LIMIT 1")
    names = [each[0] for each in found.description]
    row = dict(zip(names, found.fetchone(), strict=True))
    row |= {name: called}
    row |= {column: value}
    if value is None and column not in ("seconds", "trials", "winner"):
        return
    marks = ", ".join("?" * len(row))
    columns = ", ".join(row)
    cast = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
    marks = ", ".join(cast if each == column else "?" for each in row)
    sql.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values()))


def test_every_kind_of_damage_is_told(tmp_path: Path):
    with closing(Records(tmp_path / "r.sqlite")) as records:
        fill(records, 1)
        for table, damage, read in (("candidates", DAMAGE, read_record), ("runs", RUNS, read_run)):
            plain = dict(records._rows(f"SELECT * FROM {table}")[0])
            assert len(Reader("x").each(read, [plain])) == 1
            for column, value in damage:
                if column == "started":  # only orders, and is shown
                    assert read_run({**plain, column: value}).started is None
                    continue
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                row = {**plain, column: text}
                if isinstance(value, bytes) and column in ("trace", "code"):
                    continue  # text like any other, which fits nothing
                with pytest.warns(RuntimeWarning, match="left out"):
                    assert Reader("x").each(read, [row]) == [], (column, value)


@pytest.mark.parametrize("drop", ["DROP TABLE claims", "ALTER TABLE runs DROP COLUMN layout"])
def test_a_missing_table_or_column(tmp_path: Path, drop: str):
    path = tmp_path / "r.sqlite"
    with closing(Records(path)) as records:
        fill(records, 1)
    with closing(sqlite3.connect(path)) as sql:
        sql.execute(drop)
        sql.commit()
    with closing(Records(path)) as records:
        assert records.runs(context()) == []
        with pytest.warns(RuntimeWarning, match=r"no such"):
            fill(records, 1)
        assert len(records.runs(context())) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"samples": "null"}, {"resources": "7"}, {"samples": "[" * 100_000}, {"number": 10**30},
        {"decisions": "[" * 100_000}, {"seconds": 0}, {"status": "bogus"}, {"final": "{}"},
    ],
)  # fmt: skip
def test_lines_that_would_poison_a_file_are_refused(tmp_path: Path, change: dict[str, Any]):
    with closing(Records(None)) as records:
        fill(records, 1)
        records.export(tmp_path / "good.jsonl")
        run, row = (tmp_path / "good.jsonl").read_text().splitlines()
        bad = tmp_path / "bad.jsonl"
        bad.write_text(f"{run}\n{json.dumps({**json.loads(row), **change})}\n")
        with pytest.raises(TuneError, match=r"bad.jsonl:2 is no record"):
            records.load(bad)
        bad.write_bytes(b"\xff\xfe\n")
        with pytest.raises(TuneError, match=r"bad.jsonl:1 is no record"):
            records.load(bad)


@pytest.mark.parametrize(
    "spoilt",
    [
        "[" * 200_000,
        '{"format": 1, "schedules": [%s]}' % ('{"seconds": 1' + "0" * 400 + "}"),
    ],
)
def test_a_lock_file_that_is_none(tmp_path: Path, spoilt: str):
    path = tmp_path / "tedsl.lock"
    path.write_text(spoilt)
    with pytest.raises(TuneError, match="is no lock file"):
        LockFile(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds", "1" + "0" * 400), ("seconds", "1e999"), ("decisions", '{"a": %s}')],
)
def test_an_entry_of_a_lock_file_that_is_none(tmp_path: Path, name: str, value: str):
    path = tmp_path / "tedsl.lock"
    lock = LockFile(path)
    lock.pin(context(), "y", candidate(1), 1e-3)
    text = path.read_text()
    entry = json.loads(text)["schedules"][0]
    deep = value % ("[" * 900 + "]" * 900) if "%s" in value else value
    path.write_text(
        json.dumps({"format": 1, "schedules": [{**entry, name: "HERE"}]}).replace('"HERE"', deep)
    )
    if name == "decisions" and sys.getrecursionlimit() > 3000:
        return
    with pytest.raises(TuneError, match="is no lock file"):
        LockFile(path)


FACTS = {"device": "model A", "features": "", "toolchain": "", "codegen": code_version()}
GOOD = {
    "status": "ok", "seconds": 1.0, "samples": [1.0], "reason": "", "error": "", "code": "c",
    "resources": {},
}  # fmt: skip
BAD_OUTCOMES: list[Any] = [
    *({**GOOD, name: value} for name, value in (
        ("status", "new"), ("status", 3), ("seconds", 0), ("seconds", "1"), ("seconds", None),
        ("seconds", -1.0), ("seconds", True), ("samples", 7), ("samples", ["a"]), ("samples", [0]),
        ("samples", [None]), ("resources", []), ("resources", {"registers": "x"}), ("reason", 1),
        ("error", None), ("code", []), ("seconds", 10**400), ("samples", [10**400]),
    )),
    *({k: v for k, v in GOOD.items() if k != name} for name in GOOD),
    3, "text", [],
]  # fmt: skip
BAD_ANSWERS: list[str] = [
    "", "not JSON", "null", "3", "[]", "{}", '{"outcomes"', "[" * 200_000, '{"outcomes": 3}',
    '{"outcomes": []}', '{"outcomes": {}}', '{"error": 3}', '{"error": "x"}', '{"internal": []}',
    '{"other": 7}', '{"outcomes": [1, 2, 3, 4, 5, 6, 7, 8, 9]}',
    *(json.dumps({"outcomes": [bad]}) for bad in BAD_OUTCOMES),
    *(json.dumps({"outcomes": [bad, GOOD, GOOD, GOOD]}) for bad in BAD_OUTCOMES),
    *(json.dumps({"outcomes": [GOOD, bad]}) for bad in BAD_OUTCOMES),
]  # fmt: skip


class Answers(Executor):
    """Answers each request once with the next of these, and rightly when it comes again."""

    def __init__(self, bad: list[str]) -> None:
        self.bad = iter(bad)
        self.asked: set[str] = set()

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        request = json.loads(args[0])
        done: Future[Any] = Future()
        keys = json.dumps([c["key"] for c in request["candidates"]])
        if request["op"] == "facts":
            done.set_result(json.dumps({"facts": FACTS}))
        elif keys in self.asked:
            done.set_result(json.dumps({"outcomes": [GOOD] * len(request["candidates"])}))
        else:
            self.asked.add(keys)
            done.set_result(next(self.bad, "spoilt"))
        return done


def test_a_hundred_bad_answers_are_losses():
    assert len(BAD_ANSWERS) >= 100
    executor = Answers(BAD_ANSWERS)
    with Farm(Place("cpu"), executor=executor) as farm:
        problem = farm.add({})
        farm.chunk = 1
        described = [{"key": str(n), "decisions": {}} for n in range(len(BAD_ANSWERS))]
        described = [d for d, bad in zip(described, BAD_ANSWERS, strict=True)
                     if "internal" not in bad[:12] and '"other"' not in bad[:10]]  # fmt: skip
        tickets = farm.begin(problem, described)
        found = dict(farm.wait(problem) for _ in tickets)
    assert all(outcome is not None for outcome in found.values())
    assert {o.status for o in found.values() if o is not None} == {Status.OK}


@pytest.mark.parametrize("op", ["estimate", "verify"])
def test_what_only_helps_may_be_lost(op: str):
    class Silent(Answers):
        def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
            if json.loads(args[0])["op"] == "facts":
                return super().submit(fn, *args)
            done: Future[Any] = Future()
            done.set_result('{"found": 7, "calls": "many"}')
            return done

    with Farm(Place("cpu"), executor=Silent([])) as farm:
        problem = farm.add({})
        asked = {"key": "1", "decisions": {}}
        if op == "estimate":
            assert farm.describe(problem, [asked]) == [None]
        else:
            assert farm.verify(problem, asked, 10, 1.0).calls == 0


@pytest.mark.parametrize("facts", [{}, {"device": 3}, {**FACTS, "codegen": None}, "x", None])
def test_facts_that_are_none_are_an_error_at_once(facts: Any):
    class Wrong(Answers):
        def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
            done: Future[Any] = Future()
            done.set_result(json.dumps({"facts": facts}))
            return done

    with (
        pytest.raises(TuneError, match=r"no host answers: its answer cannot be read"),
        Farm(Place("cpu"), executor=Wrong([])),
    ):
        pass


class Spoiling(ThreadPoolExecutor):
    """A real executor, every second answer of which is spoilt on the way."""

    count = 0

    def submit(self, fn: Any, /, *args: Any, **more: Any) -> Future[Any]:
        Spoiling.count += 1
        if Spoiling.count % 2 == 0:
            done: Future[Any] = Future()
            done.set_result(BAD_ANSWERS[Spoiling.count % 10])
            return done
        return super().submit(fn, *args, **more)


@pytest.mark.cpu
def test_a_search_whose_answers_get_spoilt():
    with Spoiling(1) as executor:
        found, _ = search(records=False, executor=executor)
    assert found.winner.outcome.status is Status.OK
    assert Spoiling.count > 4
