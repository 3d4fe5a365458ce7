"""The engine with real processes: overlap, limits that follow what was seen, faults by kind."""

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_worker import COMMAND, read_log

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.search_space.space import Candidate, Choice, Knob, Rejected
from tedsl.autotune.workers.device_lock import DeviceLock
from tedsl.autotune.workers.local_executor import Engine
from tedsl.autotune.workers.protocol import Done, Limits, Ready, strikes_of
from tedsl.errors import TuneError
from tedsl.processor import usable_cores

Make = Callable[..., Any]


def candidate(number: int, **wishes: Choice) -> Candidate:
    """A candidate that the worker of `engine_worker` treats as it says."""
    knobs = tuple(Knob(name, (value,), value) for name, value in {"n": number, **wishes}.items())
    return Candidate(knobs, "", "random")


def encode(candidate: Candidate) -> dict[str, Any]:
    decisions = candidate.decisions
    return {"key": str(decisions["n"]), "decisions": decisions}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    @contextmanager
    def engine(**limits: Any) -> Generator[Engine]:
        setup = {"log": str(tmp_path / "log")}
        lock = DeviceLock("a test", tmp_path)
        chosen = replace(Limits(20.0, 20.0, 20.0), **limits)
        with Engine(setup, encode, chosen, lock, COMMAND) as made:
            yield made

    return engine


def take(engine: Engine, count: int) -> dict[tuple[int, int], Outcome | None]:
    found: list[Done] = [engine.wait() for _ in range(count)]
    return {(done.batch, done.position): done.outcome for done in found}


def test_the_next_batch_is_compiled_while_one_is_measured(make: Make, tmp_path: Path):
    slow = {"compile": 0.2, "measure": 0.25}
    with make(workers=2, overlap=True) as engine:
        engine.begin(0, [candidate(n, **slow) for n in range(4)])
        engine.begin(1, [candidate(n, compile=1.5, measure=0.25) for n in range(4, 8)])
        found = take(engine, 8)
        assert all(o is not None and o.status is Status.OK for o in found.values())
        log = read_log(tmp_path / "log")
        last = max(when for what, _, when, _ in log if what == "compile")
        measured = [when for what, _, when, _ in log if what == "measured"]
        assert sum(when < last for when in measured) >= 1
        order = [int(key) for what, key, _, _ in log if what == "measure"]
        assert set(order[:4]) == set(range(4))  # the older batch first
        assert any(what == "prepare" for what, *_ in log)
        now = time.monotonic()
        assert engine.timeline.measure_seconds > 8 * 0.25
        assert 0.0 < engine.timeline.idle(now) < 1.0


def test_without_overlap_nothing_is_compiled_while_something_is_measured(
    make: Make, tmp_path: Path
):
    with make(workers=2) as engine:
        engine.begin(0, [candidate(n, compile=0.1, measure=0.1) for n in range(4)])
        take(engine, 4)
    log = read_log(tmp_path / "log")
    last = max(when for what, _, when, _ in log if what == "compile")
    assert min(when for what, _, when, _ in log if what == "measure") > last + 0.09


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("segfault", Status.CRASH, "signal 11 (SIGSEGV)"),
        ("abort", Status.CRASH, "signal 6 (SIGABRT)"),
        ("device", Status.DEVICE_FAULT, "an illegal memory access was encountered"),
        ("out of memory", Status.OUT_OF_MEMORY, "out of memory"),
        ("hang", Status.TIMEOUT, "longer than 1 s"),
    ],
)
def test_each_fault_is_a_kind_and_the_rest_goes_on(
    make: Make, fault: str, status: Status, reason: str
):
    with make(measure=1.0) as engine:
        engine.begin(0, [candidate(0), candidate(1, fault=fault), candidate(2)])
        found = take(engine, 3)
        bad = found[0, 1]
        assert bad is not None
        assert (bad.status, bad.reason) == (status, reason)
        assert strikes_of(bad) == 1
        assert all(o is not None and o.status is Status.OK for k, o in found.items() if k[1] != 1)
        restarted = status is not Status.OUT_OF_MEMORY
        engine.begin(1, [candidate(3)])
        take(engine, 1)
        assert engine.measurer.starts == 1 + restarted


def test_a_dead_worker_is_replaced_in_a_moment(make: Make):
    with make() as engine:
        engine.begin(0, [candidate(0)])
        take(engine, 1)
        begin = time.monotonic()
        engine.begin(1, [candidate(n, fault="segfault") for n in range(1, 6)])
        engine.begin(2, [candidate(7)])
        found = take(engine, 6)
        assert [o.status for o in found.values() if o is not None].count(Status.CRASH) == 5
        assert time.monotonic() - begin < 5.0
        assert engine.measurer.starts == 6


@pytest.mark.parametrize(("load", "reason"), [(0.0, "longer than 1 s"), (2.0, "longer than 2 s")])
def test_a_hang_costs_little_once_times_are_known(
    make: Make, monkeypatch: pytest.MonkeyPatch, load: float, reason: str
):
    monkeypatch.setattr(os, "getloadavg", lambda: (load * usable_cores(), 0.0, 0.0))
    with make() as engine:
        engine.begin(0, [candidate(n) for n in range(10)])
        take(engine, 10)
        begin = time.monotonic()
        engine.begin(1, [candidate(20, fault="hang")])
        (bad,) = take(engine, 1).values()
        assert time.monotonic() - begin < 6.0
        assert bad is not None
        assert bad.status is Status.TIMEOUT
        assert bad.reason == reason


def test_a_compilation_is_bounded_by_those_before(make: Make):
    with make() as engine:
        engine.begin(0, [candidate(n, compile=0.01) for n in range(10)])
        take(engine, 10)
        engine.begin(1, [candidate(20, compile=60.0)])
        begin = time.monotonic()
        (bad,) = take(engine, 1).values()
        assert 0.8 < time.monotonic() - begin < 12.0
        assert bad is not None
        assert (bad.status, bad.reason) == (Status.TIMEOUT, "longer than 1 s")


def test_another_stands_by_where_measuring_overlaps(make: Make):
    with make(overlap=True) as engine:
        engine.begin(0, [candidate(0)])
        take(engine, 1)
        end = time.monotonic() + 20.0
        while not engine.measurers[1].facts and time.monotonic() < end:
            time.sleep(0.05)
        first = engine.measurer
        engine.begin(1, [candidate(1, fault="segfault"), candidate(2)])
        found = take(engine, 2)
        assert [o.status for o in found.values() if o is not None].count(Status.OK) == 1
        assert engine.measurer is not first
        assert engine.measurers[1].starts == 1


def test_more_stand_by_when_more_die(make: Make):
    with make(overlap=True) as engine:
        engine.begin(0, [candidate(n) for n in range(20)])
        take(engine, 20)
        assert [worker.starts for worker in engine.measurers] == [1, 1, 0, 0, 0, 0]
        engine.begin(1, [candidate(n, fault="segfault" if n % 2 else "") for n in range(20, 28)])
        take(engine, 8)
        begun = [worker.process is not None for worker in engine.measurers]
        assert sum(begun) >= 5
        assert sum(worker.starts - 1 for worker in engine.measurers) == 4


def refers(folder: Path) -> list[str]:
    """The kinds of inputs whose references have been made."""
    return [key for what, key, *_ in read_log(folder / "log") if what == "refer"]


def test_references_are_made_while_the_first_candidates_are_tried(make: Make, tmp_path: Path):
    with make(workers=6, overlap=True) as engine:
        engine.refer(("random", "rows"))
        engine.begin(0, [candidate(n) for n in range(2)])
        take(engine, 2)
        end = time.monotonic() + 20.0
        while len(refers(tmp_path)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
    log = read_log(tmp_path / "log")
    assert {(key, role) for what, key, _, role in log if what == "refer"} == {
        ("random", "compile"),
        ("rows", "compile"),
    }
    begun = max(when for what, _, when, _ in log if what == "refer")
    assert all(when < begun + 1.0 for what, _, when, _ in log if what == "measured")


def test_difficult_inputs_wait_for_their_references_and_the_device_does_not(
    make: Make, tmp_path: Path
):
    with make(workers=6, overlap=True) as engine:
        engine.refer(("rows", "masked", "huge"))
        engine.begin(0, [candidate(0, rows="right"), candidate(1, rows="wrong", time=0.1)])
        engine.begin(1, [candidate(n, measure=0.1) for n in range(2, 5)])
        found = take(engine, 5)
    log = read_log(tmp_path / "log")
    when = {(what, key): at for what, key, at, _ in log}
    made = max(at for (what, _), at in when.items() if what == "referred")
    assert max(when["measured", str(n)] for n in range(5)) < made < when["check", "0"]
    assert max(when["refer", kind] for kind in ("rows", "masked")) < when["measured", "4"]
    right, wrong = found[0, 0], found[0, 1]
    assert right is not None
    assert (right.status, right.seconds) == (Status.OK, 1.0)
    assert wrong is not None
    assert (wrong.status, wrong.seconds) == (Status.WRONG, None)


def test_a_reference_that_nobody_makes_is_not_waited_for(make: Make, tmp_path: Path):
    with make(workers=6, overlap=True) as engine:
        made = engine.refer(("rows:segfault",))
        engine.begin(0, [candidate(0, rows="right", measure=0.5)])
        (found,) = take(engine, 1).values()
        assert made[0].result() == {}
    assert found is not None
    assert found.status is Status.OK
    assert not any(what == "referred" for what, *_ in read_log(tmp_path / "log"))


def test_few_workers_have_no_time_for_references(make: Make, tmp_path: Path):
    with make(workers=2, overlap=True) as engine:
        engine.refer(("random", "rows"))
        engine.begin(0, [candidate(0)])
        take(engine, 1)
        assert not refers(tmp_path)


def test_on_a_cpu_references_would_disturb_what_is_measured(make: Make, tmp_path: Path):
    with make(workers=6) as engine:
        engine.refer(("random", "rows"))
        engine.begin(0, [candidate(n) for n in range(3)])
        take(engine, 3)
        assert not refers(tmp_path)


def test_workers_say_when_they_begin_and_what_took_how_long(make: Make):
    with make(workers=2, overlap=True) as engine:
        told: list[Ready] = []
        engine.on_ready = told.append
        engine.rouse()
        engine.begin(0, [candidate(n) for n in range(4)])
        take(engine, 4)
    assert sorted(each.role for each in told)[:2] == ["compile", "compile"]
    assert "measure" in {each.role for each in told}
    assert all(each.seconds == {"import": 0.5} for each in told)


def test_compiling_workers_make_candidates(make: Make):
    with make(workers=2) as engine:
        assert engine.width == 0
        engine.begin(0, [candidate(n, compile=0.1) for n in range(4)])
        take(engine, 4)
        assert engine.width == 2
        found = engine.realise([{"n": n} for n in range(5)])
        names = [each.decisions["n"] for each in found if isinstance(each, Candidate)]
        assert names == [0, 1, 2, 4]
        assert isinstance(found[3], Rejected)
        assert engine.realise([{"n": 9, "fault": "segfault"}]) == [None]
    assert engine.width == 0


def test_equal_code_is_measured_once(make: Make, tmp_path: Path):
    with make() as engine:
        engine.begin(0, [candidate(n, code="same", time=0.5) for n in range(3)])
        found = list(take(engine, 3).values())
    assert [o.seconds for o in found if o is not None] == [0.5] * 3
    assert sum(what == "measure" for what, *_ in read_log(tmp_path / "log")) == 1


def test_strikes_are_counted_over_runs_and_three_are_the_end(make: Make, tmp_path: Path):
    struck = [Outcome(Status.CRASH, resources={"strikes": float(n)}) for n in (1, 2, 3)]
    wrong = Outcome(Status.WRONG, reason="wrong output")
    with make() as engine:
        engine.begin(
            0,
            [
                candidate(0, fault="segfault"),
                candidate(1),
                candidate(2),
                candidate(3),
            ],
            known=[*struck, wrong],
        )
        found = take(engine, 4)
    assert strikes_of(found[0, 0] or wrong) == 2
    assert (found[0, 1] or wrong).status is Status.OK
    assert found[0, 2] is struck[2]
    assert found[0, 3] is wrong
    asked = [key for what, key, *_ in read_log(tmp_path / "log") if what == "measure"]
    assert sorted(asked) == ["0", "1"]


def test_a_deadline_leaves_the_rest_undone(make: Make):
    with make() as engine:
        engine.begin(
            0,
            [candidate(n, measure=0.4) for n in range(6)],
            deadline=time.monotonic() + 1.5,
            at_least=1,
        )
        found = take(engine, 6)
    done = [o for o in found.values() if o is not None]
    assert 1 <= len(done) < 6
    assert found[0, 0] is not None


def test_what_drifted_is_timed_again(make: Make, tmp_path: Path):
    with make() as engine:
        engine.begin(0, [candidate(n, drift=n == 7) for n in range(40)])
        found = [engine.wait() for _ in range(41)]
    again = [done for done in found if done.again]
    assert [(done.position, done.outcome and done.outcome.seconds) for done in again] == [(7, 2.0)]
    assert [key for what, key, *_ in read_log(tmp_path / "log") if what == "watch"] == ["32"]


def test_samples_in_turn(make: Make):
    with make() as engine:
        taken = engine.compare([candidate(0, time=2.0), candidate(1, time=3.0)], 4, 1.0)
    assert taken == [[2.0] * 4, [3.0] * 4]


def test_a_worker_that_cannot_begin_ends_the_search(tmp_path: Path):
    lock = DeviceLock("a test", tmp_path)
    setup = {"log": str(tmp_path / "no folder" / "log")}
    with (
        Engine(setup, encode, Limits(setup=10.0), lock, COMMAND) as engine,
        pytest.raises(TuneError, match="could not be set up: exit status 1: FileNotFoundError"),
    ):
        engine.begin(0, [candidate(0)])
        engine.wait()


def test_workers_say_what_they_expect_of_candidates(make: Make):
    with make(workers=2) as engine:
        found = engine.describe([candidate(n) for n in range(5)])
        assert found == [{"seconds": float(n)} for n in range(5)]
        slow = [candidate(6, estimate=600.0), candidate(7, estimate=600.0), candidate(8)]
        cut = engine.describe(slow, time.monotonic() + 0.5)
        assert cut == [None, None, None]
        engine.begin(0, [candidate(9)])  # nobody is busy with them any more
        (outcome,) = take(engine, 1).values()
        assert outcome is not None
        assert outcome.status is Status.OK


def test_a_wait_ends_when_it_is_told_to(make: Make):
    with make() as engine:
        engine.begin(0, [candidate(0, compile=600.0)])
        assert engine.wait_until(time.monotonic() + 0.1) is None


def test_what_may_win_is_checked_elsewhere_while_others_are_measured(make: Make, tmp_path: Path):
    with make(workers=2, overlap=True) as engine:
        engine.begin(0, [candidate(0, open="right", more=1.0), candidate(1, open="wrong")])
        engine.begin(1, [candidate(n, measure=0.1) for n in range(2, 5)])
        found = take(engine, 5)
        assert engine.by_code["1"].status is Status.WRONG
    log = read_log(tmp_path / "log")
    when = {(what, key): at for what, key, at, _ in log}
    assert when["measured", "0"] < when["compile_more", "0"] < when["check", "0"]
    assert when["measured", "4"] < when["check", "0"]  # the device did not wait
    assert {role for what, _, _, role in log if what == "compile_more"} == {"compile"}
    assert {role for what, _, _, role in log if what == "check"} == {"measure"}
    right, wrong = found[0, 0], found[0, 1]
    assert right is not None
    assert (right.status, right.seconds, right.samples) == (Status.OK, 1.0, (1.0,) * 3)
    assert wrong is not None
    assert (wrong.status, wrong.seconds) == (Status.WRONG, None)


def test_what_cannot_be_compiled_for_its_checks_has_not_passed(make: Make, tmp_path: Path):
    with make(workers=1, overlap=True) as engine:
        engine.begin(0, [candidate(0, open="refused"), candidate(1)])
        found = take(engine, 2)
    refused = found[0, 0]
    assert refused is not None
    assert (refused.status, refused.reason) == (Status.COMPILE_ERROR, "not at odd sizes")
    assert not any(what == "check" for what, *_ in read_log(tmp_path / "log"))


def test_what_is_measured_is_checked_after_the_deadline(make: Make):
    with make(workers=1, overlap=True) as engine:
        deadline = time.monotonic() + 3.0
        engine.begin(0, [candidate(0, open="right", more=4.0)], deadline=deadline)
        (found,) = take(engine, 1).values()
    assert found is not None
    assert found.status is Status.OK
    assert time.monotonic() > deadline


def test_what_is_compiled_to_the_same_is_compiled_once(make: Make, tmp_path: Path):
    def same(found: Candidate) -> dict[str, Any]:
        return {**encode(found), "same": "all", "problem": f"p{found.decisions['n']}"}

    with make() as engine:
        engine.encode = same
        engine.begin(0, [candidate(0, code="c")])
        take(engine, 1)
        engine.begin(1, [candidate(1, time=2.0), candidate(2, time=3.0)])
        found = take(engine, 2)
    assert [o.seconds for o in found.values() if o is not None] == [2.0, 3.0]
    log = read_log(tmp_path / "log")
    assert [key for what, key, *_ in log if what == "compile"] == ["0"]
