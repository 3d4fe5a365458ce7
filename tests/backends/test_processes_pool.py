"""Real worker processes that crash, hang and abort: the parent notes it and goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_worker import COMMAND
from running import alive, gone

from tedsl.backends.processes.pool import Failure, Pool, Worker, exit_reason
from tedsl.backends.processes.serving import END_OF_PRINT
from tedsl.errors import TuneError


@pytest.fixture
def worker() -> Iterator[Worker]:
    yield Worker(COMMAND, {}, 30.0)


def test_replies_come_back(worker: Worker):
    with Pool([worker]) as pool:
        reply = pool.call(worker, {"op": "measure", "seconds": 0.5}, 10)
        assert reply.message["samples"] == [0.5] * 3
        pid = worker.facts["pid"]
        assert alive(pid)
    assert gone(pid)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("segfault", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("kill", "SIGKILL"),
        ("exit", "exit status 3"),
        ("bug in python", "exit status 1: KeyError: 'surprise'"),
    ],
)
def test_a_crash_is_noted_and_the_next_request_is_served(worker: Worker, fault: str, reason: str):
    with Pool([worker]) as pool:
        begin = time.monotonic()
        reply = pool.call(worker, {"op": "measure", "fault": fault}, 20)
        assert time.monotonic() - begin < 15.0  # seen when it happens, not when its time is up
        assert reply.failure is Failure.CRASH
        assert reason in reply.reason
        if fault == "bug in python":
            assert "KeyError: 'surprise'" in reply.error
        again = pool.call(worker, {"op": "measure"}, 20)
        assert again.message["status"] == "ok"
        assert worker.starts == 2


@pytest.mark.parametrize("fault", ["hang", "hang in native code", "hang with child"])
def test_a_hang_is_ended_with_all_it_started(worker: Worker, fault: str):
    with Pool([worker]) as pool:
        pool.call(worker, {"op": "measure"}, 20)
        pid = worker.facts["pid"]
        begin = time.monotonic()
        reply = pool.call(worker, {"op": "measure", "fault": fault}, 0.7)
        assert time.monotonic() - begin < 3.0
        assert reply.failure is Failure.TIMEOUT
        assert reply.reason == "longer than 0.7 s"
        assert gone(pid)
        if fault == "hang with child":
            assert gone(int(reply.error.rpartition("child ")[2]))
        assert pool.call(worker, {"op": "measure"}, 20).message["status"] == "ok"


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("out of memory", "out_of_memory", "out of memory"),
        ("backend", "compile_error", "ptxas said no"),
        ("lower", "illegal", "a tile is read at a shift"),
        ("schedule", "illegal", "not legal here"),
        ("internal", "internal", "lost a stage"),
    ],
)
def test_errors_are_replies_and_the_worker_lives(
    worker: Worker, fault: str, status: str, reason: str
):
    with Pool([worker]) as pool:
        reply = pool.call(worker, {"op": "measure", "fault": fault}, 20)
        assert reply.message["status"] == status
        assert reply.message["reason"] == reason
        pool.call(worker, {"op": "measure"}, 20)
        assert worker.starts == 1


def test_what_a_compiler_prints_is_no_reply(worker: Worker):
    with Pool([worker]) as pool:
        reply = pool.call(worker, {"op": "measure", "fault": "garbage"}, 20)
        assert reply.message["status"] == "ok"


def test_several_workers_answer_as_they_finish():
    workers = [Worker(COMMAND, {}, 30.0) for _ in range(2)]
    with Pool(workers) as pool:
        pool.submit(workers[0], {"op": "measure", "fault": "hang"}, 8.0)
        pool.submit(workers[1], {"op": "measure", "seconds": 2.0}, 8.0)
        ((who, request, reply),) = pool.wait(20)
        assert who is workers[1]
        assert request["seconds"] == 2.0
        assert reply.message["status"] == "ok"
        assert workers[0].busy


def test_a_wait_ends_when_what_was_killed_has_ended(tmp_path: Path):
    """Nothing may be measured until then, whereas its successor may take long to be set up."""
    worker = Worker(COMMAND, {"once": str(tmp_path / "once")}, 60.0)
    with Pool([worker]) as pool:
        pool.submit(worker, {"op": "measure", "fault": "hang"}, 0.5)
        while worker.busy:
            pool.wait(20)
        assert worker.stopping
        begin = time.monotonic()
        while worker.stopping:
            pool.wait(20, idle=True)
        assert time.monotonic() - begin < 15
        assert worker.setting_up


@pytest.mark.parametrize("running", [True, False])
def test_a_device_is_waited_for_only_while_it_runs_something(worker: Worker, running: bool):
    with Pool([worker]) as pool:
        pool.call(worker, {"op": "measure", "last": {"running": running}}, 20)
        assert worker.stopping
        assert worker.lingers is running
        while worker.stopping:
            pool.wait(20, idle=True)
        assert not worker.lingers


@pytest.mark.parametrize(
    ("fault", "text"),
    [("backend", "cannot start: ptxas said no"), ("abort", "set up: signal 6"), ("hang", "longer")],
)
def test_a_worker_that_cannot_be_set_up(fault: str, text: str):
    worker = Worker(COMMAND, {"fault": fault}, 3.0)
    with Pool([worker]) as pool, pytest.raises(TuneError, match=text):
        pool.call(worker, {"op": "measure"}, 20)


PARENT = """
import sys, time
from fault_worker import COMMAND
from tedsl.backends.processes.pool import Pool, Worker
worker = Worker(COMMAND, {}, 30.0)
pool = Pool([worker])
pool.call(worker, {"op": "measure"}, 20)
print(worker.facts["pid"], flush=True)
pool.call(worker, {"op": "measure", "fault": sys.argv[1]}, 60)
"""


@pytest.mark.parametrize("fault", ["hang", "hang in native code"])
def test_no_worker_outlives_a_killed_parent(fault: str):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", PARENT, fault], env=env, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(timeout=10)
    parent.stdout.close()
    assert gone(pid)


def test_exit_reasons():
    assert exit_reason(-11) == "signal 11 (SIGSEGV)"
    assert exit_reason(1) == "exit status 1"
    assert exit_reason(1, "Traceback\nKeyError: 'x'") == "exit status 1: KeyError: 'x'"
    assert exit_reason(-200) == "signal 200"


def test_what_the_next_process_prints_is_not_of_the_one_that_ended() -> None:
    worker = Worker(COMMAND, {}, 1.0)
    worker.printed = bytearray(b"Error: first\n" + END_OF_PRINT + b"Traceback (most")
    with Pool([worker]) as pool:
        reply = pool._ended(worker, 1)
        assert reply is not None and reply.reason == "exit status 1: Error: first"
        worker.ready()
        worker.printed += b" recent call last)\nError: second\n" + END_OF_PRINT
        reply = pool._ended(worker, 1)
    assert reply is not None and reply.reason == "exit status 1: Error: second"
