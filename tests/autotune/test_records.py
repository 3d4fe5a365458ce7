"""The record file: lookups, export and import, concurrent writers, a kill in the middle."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tedsl.autotune.records import Context, Records
from tedsl.autotune.search import Outcome, Status
from tedsl.autotune.space import Candidate, Knob
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


@pytest.mark.parametrize("field", ["workload", "target", "device", "toolchain", "space"])
def test_another_context_is_a_miss(records: Records, field: str):
    finished(records, context(), {4: 1e-3}, 4)
    assert records.best(context(**{field: "another"})) is None


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
