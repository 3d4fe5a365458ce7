"""Ctrl-C: what was learnt is kept, and the best so far is returned, whenever it comes."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tune_program

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.records.database import Records
from tedsl.autotune.report.events import Event, Tried, event_of
from tedsl.autotune.workers.interrupt import DESPERATE, INSISTENT, Interrupts


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """What a shell starts in the background ignores Ctrl-C, and so does what that starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def test_contexts_may_be_nested():
    with Interrupts() as interrupts:
        with interrupts:
            press()
        press()
        assert interrupts.presses == 2
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        press()


def test_a_press_is_a_request_and_the_third_is_no_longer():
    woken: list[int] = []
    with Interrupts() as interrupts:
        interrupts.wake = lambda: woken.append(interrupts.presses)
        press(2)
        assert interrupts.requested
        assert woken == [1, 2]
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            press()
        assert interrupts.presses == INSISTENT
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        press()


def test_held_presses_are_heeded_later():
    with Interrupts() as interrupts:
        interrupts.hold()
        press(INSISTENT)
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            interrupts.heed()
        interrupts.heed()
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            press()
        press()  # what that left ends in peace
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            press()  # but nobody has to wait for its end
        assert interrupts.presses == DESPERATE


def test_a_programs_own_handler_stays():
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with Interrupts() as interrupts:
            press()
            assert not interrupts.requested
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_outside_the_main_thread_nothing_is_changed():
    found: list[bool] = []

    def enter() -> None:
        with Interrupts() as interrupts:
            found.append(interrupts._installed)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False]


class Program:
    """The tuning program in a process of its own."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.records = folder / "r.sqlite"
        self.events_file = folder / "events.jsonl"
        self.mark = f"TEDSL_TEST_MARK={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        path = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-P", tune_program.__file__, self.records, trials]
        self.process = subprocess.Popen(
            [*map(str, command), str(self.events_file)],
            env={**os.environ, "PYTHONPATH": path, name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def events(self) -> list[Event]:
        """What it has told so far; a line that is being written is left out."""
        if not self.events_file.exists():
            return []
        whole = self.events_file.read_text().rpartition("\n")[0]
        return [event_of(line) for line in whole.splitlines()]

    def wait_for(self, holds: Callable[[list[Event]], bool], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not holds(self.events()):
            assert time.monotonic() < end, "the program does not get there"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.005)

    def press(self, times: int, apart: float = 0.05) -> None:
        for place in range(times):
            if place:
                time.sleep(apart)
            self.process.send_signal(signal.SIGINT)

    def left_running(self) -> list[int]:
        """Processes that it started and that still run."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def check_records(self) -> tuple[str, str | None, int]:
        """State and winner of the run, and how many candidates it has.

        The file is whole, nothing is claimed, and all that was told of is in it.
        """
        sql = sqlite3.connect(self.records)
        try:
            assert sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert sql.execute("SELECT count(*) FROM claims").fetchone() == (0,)
            ((state, winner),) = sql.execute("SELECT state, winner FROM runs").fetchall()
            rows = sql.execute("SELECT number, samples, status FROM candidates").fetchall()
        finally:
            sql.close()
        told = {event.number for event in self.events() if isinstance(event, Tried)}
        assert {number for number, _, _ in rows} >= told
        assert all(json.loads(samples) for _, samples, status in rows if status == "ok")
        return state, winner, len(rows)


Start = Callable[[int], Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Program] = []

    def run(trials: int) -> Program:
        started.append(Program(tmp_path, trials))
        return started[-1]

    yield run
    for program in started:
        program.process.kill()
        program.process.communicate()


def has(kind: str, count: int = 1) -> Callable[[list[Event]], bool]:
    return lambda events: sum(event.kind == kind for event in events) >= count


def compares(events: list[Event]) -> bool:
    return any('"comparing' in event.to_json() for event in events)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("moment", "trials", "presses"),
    [
        (has("tried"), 1000, 2),
        (has("new_best", 2), 1000, 1),
        (has("tried", 9), 1000, 2),
        (has("proposed", 20), 1000, 1),
        (compares, 8, 2),
    ],
    ids=["first result", "second best", "ninth result", "a later batch", "closing comparison"],
)
def test_the_best_so_far_is_returned_and_all_is_kept(
    moment: Callable[[list[Event]], bool], trials: int, presses: int, start: Start
):
    program = start(trials)
    program.wait_for(moment)
    begin = time.monotonic()
    program.press(presses)
    out, err = program.process.communicate(timeout=60)
    took = time.monotonic() - begin
    assert program.process.returncode == 0, err.decode()
    found = json.loads(out)
    assert found["right"] and not found["exhausted"]
    assert found["interrupted"] or moment is compares  # which may have been decided just then
    state, winner, count = program.check_records()
    assert (state == "interrupted", count) == (found["interrupted"], found["tried"])
    assert winner is not None
    kinds = [event.kind for event in program.events()]
    assert ("interrupted" in kinds) == found["interrupted"]
    assert kinds[-1] == "finished"
    assert program.left_running() == []
    assert took < 20


@pytest.mark.cpu
@pytest.mark.parametrize(
    "moment", [has("started"), has("proposed"), has("compiled")], ids=["begin", "batch", "compiled"]
)
def test_before_anything_ran_there_is_nothing_to_return(
    moment: Callable[[list[Event]], bool], start: Start
):
    program = start(1000)
    program.wait_for(moment)
    program.press(1)
    out, err = program.process.communicate(timeout=60)
    state, _, count = program.check_records()
    assert state == "interrupted"
    assert program.left_running() == []
    if count:  # a result was there before the press was
        assert json.loads(out)["interrupted"]
    else:
        assert program.process.returncode == -signal.SIGINT
        assert b"KeyboardInterrupt" in err


@pytest.mark.cpu
def test_who_insists_is_let_out_at_once_and_nothing_is_lost(start: Start):
    program = start(1000)
    program.wait_for(has("tried", 3))
    program.press(3, apart=0.002)
    program.process.communicate(timeout=60)
    assert program.process.returncode in (0, -signal.SIGINT)
    state, _, count = program.check_records()
    assert state in ("interrupted", "running")
    assert count >= 3
    end = time.monotonic() + 10
    while program.left_running() and time.monotonic() < end:
        time.sleep(0.05)
    assert program.left_running() == []


@pytest.mark.cpu
@pytest.mark.parametrize("before", [0, 2])
def test_claims_are_released_whoever_insists_meanwhile(
    before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The third press comes just before they are, or just after."""
    finish, claimed = Records.finish, list[int]()

    def pressing(records: Records, *given: Any) -> None:
        press(before)
        claimed.extend(sql.execute("SELECT count(*) FROM claims").fetchone())
        finish(records, *given)
        press(2 - before)

    def hear(event: Event) -> None:
        if isinstance(event, Tried) and event.number == 3:
            press()

    monkeypatch.setattr(Records, "finish", pressing)
    path = tmp_path / "r.sqlite"
    x = te.placeholder((tune_program.N,), "float32", name="x")
    y = te.compute(x.shape, lambda i: x[i] * x[i] + 1.0, name="y")
    with closing(sqlite3.connect(path)) as sql:
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            tune(y, "cpu", trials=50, records=path, schedule=tune_program.schedule, events=hear)
        assert sql.execute("SELECT state FROM runs").fetchall() == [("interrupted",)]
        assert sql.execute("SELECT count(*) FROM claims").fetchone() == (0,)
    assert claimed[0] > 0
