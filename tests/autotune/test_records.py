"""The record file: lookups, export and import, concurrent writers, a kill in the middle."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records import schema
from tedsl.autotune.records.database import Records, size_distance
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.search_space.space import Candidate, Knob
from tedsl.errors import TuneError


def context(**changes: str) -> Context:
    base = {
        "workload": "w1",
        "family": "f",
        "sizes": "[[8]]",
        "dtypes": '["float32"]',
        "target": "cpu",
        "device": "some cpu",
        "features": "avx2",
        "toolchain": "tedsl 0.1",
        "codegen": "abc",
    }
    return Context(**{**base, **changes})


def candidate(value: int) -> Candidate:
    return Candidate((Knob("tile", (1, 2, 4, 8, value), value),), f"trace {value}", "random")


def ok(seconds: float) -> Outcome:
    return Outcome(Status.OK, seconds, (seconds, seconds * 1.1), code="c0de")


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with closing(Records(tmp_path / "deep" / "records.sqlite")) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Records]:
    with closing(Records(tmp_path / "other.sqlite")) as opened:
        yield opened


def finished(records: Records, where: Context, times: dict[int, float], best: int) -> str:
    run = records.start(where, seed=1, trials=len(times), seconds=None)
    for number, (value, seconds) in enumerate(times.items()):
        records.add(run, number, candidate(value), ok(seconds))
    records.finish(run, "done", candidate(best))
    return run


def test_rows_come_back_as_written(records: Records):
    run = records.start(context(), seed=1, trials=8, seconds=2.5)
    crash = Outcome(Status.CRASH, reason="signal 11", error="segmentation fault\nin worker")
    records.add(run, 0, candidate(4), ok(1e-3))
    records.add(run, 1, candidate(8), crash)
    known = records.known(context())
    assert known[candidate(4).key].outcome == ok(1e-3)
    assert known[candidate(8).key].outcome == crash
    assert known[candidate(4).key].decisions == {"tile": 4}
    assert known[candidate(4).key].trace == "trace 4"


def test_best_is_the_winner_of_the_newest_run_else_the_fastest(records: Records):
    run = records.start(context(), seed=1, trials=8, seconds=None)
    records.add(run, 0, candidate(4), ok(2e-3))
    records.add(run, 1, candidate(8), ok(1e-3))
    best = records.best(context())
    assert best is not None
    assert best.decisions == {"tile": 8}
    records.finish(run, "done", candidate(4))
    best = records.best(context())
    assert best is not None
    assert best.decisions == {"tile": 4}


KEY = ["workload", "sizes", "target", "device", "features", "space", "layout"]


@pytest.mark.parametrize("field", [*KEY, "toolchain", "codegen"])
def test_another_context_is_a_miss(records: Records, field: str):
    finished(records, context(), {4: 1e-3}, 4)
    other = context(**{field: "another"})
    assert records.best(other) is None
    assert not records.known(other)
    assert bool(records.runs(other, near=True)) == (field in ("toolchain", "codegen"))


def test_winners_with_other_tools_come_first_for_a_new_certificate(records: Records):
    finished(records, context(toolchain="old"), {4: 3e-3, 8: 1e-3, 16: 2e-3}, 4)
    found = records.candidates_elsewhere(context(), 2)
    assert [record.decisions["tile"] for record in found] == [4, 8]
    assert records.candidates_elsewhere(context(device="another")) == []


def test_seeds_differ_from_one_another(records: Records):
    def two(a: int, b: int) -> Candidate:
        return Candidate((Knob("a", (a,), a), Knob("b", (b,), b)), f"{a} {b}", "random")

    for number, (a, b) in enumerate([(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (3, 3)]):
        run = records.start(context(workload=f"w{number + 2}"), seed=1, trials=1, seconds=None)
        records.add(run, 0, two(a, b), ok(1e-3))
        records.finish(run, "done", two(a, b))
    found = [(seed["a"], seed["b"]) for seed in records.seeds(context(), 3)]
    assert found[0] == (3, 3)
    assert len({a for a, _ in found}) == len({b for _, b in found}) == 3


def test_a_claim_keeps_others_away_until_it_ends(records: Records):
    a, b = (records.start(context(), seed=1, trials=1, seconds=None) for _ in range(2))
    keys = [candidate(4).key, candidate(8).key]
    assert records.claim(a, context(), keys, 60.0) == frozenset(keys)
    assert records.claim(b, context(), keys, 60.0) == frozenset()
    assert records.claim(b, context(codegen="another"), keys, 60.0) == frozenset(keys)
    records.add(a, 0, candidate(4), ok(1e-3))
    assert records.claim(b, context(), keys, 60.0) == frozenset()
    assert list(records.known(context())) == keys[:1]
    records.finish(a, "interrupted", None)
    assert records.claim(b, context(), keys, 60.0) == frozenset(keys[1:])


def test_claims_of_the_dead_and_old_claims_are_void(records: Records):
    a, b = (records.start(context(), seed=1, trials=1, seconds=None) for _ in range(2))
    keys = [candidate(4).key]
    assert records.claim(a, context(), keys, -1.0)
    assert records.claim(b, context(), keys, 60.0)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    records._connection.execute("UPDATE claims SET process = ?", (child.pid,))
    assert records.claim(a, context(), keys, 60.0)


def test_merge_and_drop(records: Records, other: Records):
    run = finished(records, context(), {4: 1e-3, 8: 2e-3}, 4)
    finished(other, context(workload="w2"), {4: 1e-3}, 4)
    assert other.merge(records) == 3
    assert other.merge(records) == 0
    assert len(other.all_runs()) == 2
    assert other.drop([run]) == 1
    assert not other.known(context())
    assert len(other.all_runs()) == 1


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path):
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    for statement in schema._FIRST:
        connection.execute(statement)
    connection.execute("PRAGMA user_version = 1")
    columns = [name for name in schema.CONTEXT if name != "layout"]
    base = context(layout="unknown")
    names = [*columns, "id", "seed", "trials", "started", "state"]
    row = [*(getattr(base, name) for name in columns), "r", 1, 1, 0.0, "done"]
    connection.execute(schema.insert("runs", names), row)
    connection.commit()
    connection.close()
    with closing(Records(path)) as records:
        assert [run.context for run in records.all_runs()] == [base]
        assert records.claim("r", base, ["k"], 1.0) == frozenset(["k"])


def test_seeds_come_from_other_devices_and_sizes(records: Records):
    finished(records, context(device="old cpu"), {4: 1e-3, 8: 2e-3}, 4)
    finished(records, context(workload="w2"), {16: 1e-3}, 16)
    finished(records, context(family="other", workload="w3"), {32: 1e-3}, 32)
    assert records.seeds(context()) == [{"tile": 4}, {"tile": 16}]


def test_budgets_that_a_run_covers(records: Records):
    finished(records, context(), {4: 1e-3, 8: 2e-3}, 4)
    run = records.runs(context())[0]
    assert run.covers(None, None)
    assert run.covers(2, None)
    assert not run.covers(3, None)
    assert not run.covers(2, 10.0)
    open_run = records.start(context(), seed=1, trials=2, seconds=None)
    assert records.runs(context())[0].id == open_run
    assert not records.runs(context())[0].covers(1, None)


def test_a_final_time_replaces_the_first(records: Records):
    run = finished(records, context(), {4: 1e-3}, 4)
    records.refine(run, candidate(4).key, [3e-3, 4e-3], 3.5e-3)
    best = records.best(context())
    assert best is not None
    assert best.outcome.seconds == 3.5e-3


def test_export_and_import(records: Records, other: Records, tmp_path: Path):
    finished(records, context(), {4: 1e-3, 8: 2e-3}, 4)
    lines = tmp_path / "all.jsonl"
    winners = tmp_path / "winners.jsonl"
    assert records.export(lines) == 3
    assert records.export(winners, winners_only=True) == 2
    assert other.load(winners) == 2
    assert other.load(lines) == 1
    assert other.load(lines) == 0
    assert other.known(context()) == records.known(context())
    again = tmp_path / "again.jsonl"
    other.export(again)
    assert again.read_text() == lines.read_text()


def test_import_refuses_what_is_no_record_and_takes_nothing(
    records: Records, other: Records, tmp_path: Path
):
    finished(records, context(), {4: 1e-3}, 4)
    good = tmp_path / "good.jsonl"
    records.export(good)
    bad = tmp_path / "bad.jsonl"
    for line in ("[1]", "not json", '{"kind": "run"}', '{"kind": "candidate", "run": 3}'):
        bad.write_text(good.read_text() + line + "\n")
        with pytest.raises(TuneError, match=r"bad.jsonl:3 is no record"):
            other.load(bad)
    assert other.best(context()) is None


def test_seeds_of_the_nearest_sizes_come_first(records: Records):
    for n in (64, 4096, 512, 1_000_000):
        made = replace(context(), workload=f"w{n}", sizes=f"[[{n}, 8]]")
        run = records.start(made, seed=0, trials=1, seconds=None)
        winner = candidate(n)
        records.add(run, 0, winner, Outcome(Status.OK, 1.0))
        records.finish(run, "done", winner)
    here = replace(context(), workload="w600", sizes="[[600, 8]]")
    assert records.seeds(here, 1) == [{"tile": 512}]
    assert size_distance("[[4, 8]]", "[[16, 8]]") == 2.0
    assert size_distance('{"m": 4, "n": 8}', '{"n": 1, "m": 4}') == 3.0
    assert size_distance("[[4]]", "[[4, 8]]") == size_distance("none", "[4]") == float("inf")


def test_another_file_is_refused(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not records\n" * 50)
    with pytest.raises(TuneError, match="cannot be used as a record file"):
        Records(path)
    assert "these are notes" in path.read_text()


def test_a_newer_file_is_refused(records: Records):
    records._connection.execute("PRAGMA user_version = 99")
    records.close()
    with pytest.raises(TuneError, match="records of version 99"):
        Records(records.path)


def writer(path: Path, tag: int, count: int) -> subprocess.Popen[bytes]:
    script = Path(__file__).parent.parent / "helpers" / "record_writer.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, str(script), str(path), str(tag), str(count)],
        env=env,
        stdout=subprocess.PIPE,
    )


def test_four_processes_write_one_file(tmp_path: Path):
    path = tmp_path / "records.sqlite"
    processes = [writer(path, tag, 40) for tag in range(4)]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    with closing(Records(path)) as records:
        assert len(records.runs(context())) == 4
        assert len(records.known(context())) == 160


def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path):
    for number in range(200):  # one opening of 400 met the others' locks
        path, together = tmp_path / f"{number}.sqlite", threading.Barrier(8)

        def opened(_: int, path: Path = path, together: threading.Barrier = together) -> int:
            together.wait()
            with closing(Records(path)) as records:
                return len(records.runs(context()))

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(opened, range(8))) == [0] * 8


def test_a_killed_writer_leaves_every_finished_row(tmp_path: Path):
    path = tmp_path / "records.sqlite"
    for attempt in range(3):
        process = writer(path, attempt, 100_000)
        assert process.stdout is not None
        written = [int(process.stdout.readline()) for _ in range(20 + 7 * attempt)]
        time.sleep(0.003 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        records = Records(path)
        known = records.known(context())
        assert {f'{{"tile":{attempt * 1_000_000 + n}}}' for n in written} <= known.keys()
        state = records._connection.execute("PRAGMA integrity_check").fetchone()[0]
        assert state == "ok"
        records.close()
