"""One record file: killed and resumed at any moment, or shared by four searches at once."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import known_times
import pytest

pytestmark = pytest.mark.cpu
TRIALS = 40


def start(folder: Path, records: Path, thinks: float = 0.0) -> subprocess.Popen[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    env = {**os.environ, known_times.LOG: str(folder / "measured"), "PYTHONPATH": paths}
    env[known_times.THINKS] = str(thinks)
    command = [sys.executable, "-P", known_times.__file__, str(records), str(TRIALS)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return json.loads(out)


def measured(folder: Path) -> list[str]:
    path = folder / "measured"
    return path.read_text().splitlines() if path.exists() else []


def recorded(records: Path) -> set[str]:
    """The decisions on record; the file must be whole."""
    connection = sqlite3.connect(records, timeout=60)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        rows = connection.execute("SELECT decisions, samples, status FROM candidates").fetchall()
    except sqlite3.OperationalError:  # killed before the tables were made
        return set()
    finally:
        connection.close()
    for _, samples, status in rows:
        assert status == "ok" and len(json.loads(samples)) >= 5
    return {json.dumps(json.loads(decisions), sort_keys=True) for decisions, _, _ in rows}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    found = finish(start(folder, folder / "r.sqlite"))
    assert len(measured(folder)) == len(set(measured(folder))) == found["tried"] == TRIALS
    return found


def below(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have (Linux)."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended meanwhile
            found += [int(word) for word in path.read_text().split()]
    return [*found, *(each for child in found for each in below(child))]


def are_gone(pids: list[int], seconds: float) -> bool:
    """Whether all of these processes end in time; what nobody has waited for counts as gone."""
    end = time.monotonic() + seconds
    while left := [pid for pid in pids if runs(pid)]:
        if time.monotonic() > end:
            return not left
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_and_resume(folder: Path, kills: int, wanted: dict[str, Any], seconds: float) -> None:
    """Kill a search and all its workers at random moments; nothing on record is tried again."""
    rng = random.Random(7)
    records = folder / "r.sqlite"
    done: list[tuple[int, set[str]]] = []
    for _ in range(kills):
        process = start(folder, records)
        try:
            out, _ = process.communicate(timeout=rng.uniform(0.05, seconds))
            assert json.loads(out)["winner"] == wanted["winner"]
            records.unlink()  # it was through: the next begins anew
            (folder / "measured").unlink(missing_ok=True)
            done.clear()
        except subprocess.TimeoutExpired:
            workers = below(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)
            assert are_gone(workers, 30.0), "its workers end with it"
            done.append((len(measured(folder)), recorded(records) if records.exists() else set()))
    assert finish(start(folder, records))["winner"] == wanted["winner"]
    lines = measured(folder)
    for length, before in done:
        assert not before & set(lines[length:])
    for (_, earlier), (_, later) in pairwise(done):
        assert earlier <= later
    assert len(lines) - len(set(lines)) <= len(done)  # at most the one that was being measured


def test_a_killed_search_goes_on(tmp_path: Path, undisturbed: dict[str, Any]):
    kill_and_resume(tmp_path, 4, undisturbed, 6.0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_search_killed_a_hundred_times_goes_on(tmp_path: Path, undisturbed: dict[str, Any]):
    kill_and_resume(tmp_path, 100, undisturbed, 6.0)


def test_outcomes_are_on_record_before_the_search_has_thought_about_them(
    tmp_path: Path, undisturbed: dict[str, Any]
):
    records = tmp_path / "r.sqlite"
    with start(tmp_path, records, thinks=60.0) as process:
        while len(measured(tmp_path)) < 6:  # of a batch of eight
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
    time.sleep(0.05)  # its workers end with it
    assert len(recorded(records)) >= len(measured(tmp_path)) - 1
    assert finish(start(tmp_path, records))["winner"] == undisturbed["winner"]
    assert len(measured(tmp_path)) - len(set(measured(tmp_path))) <= 1


def test_four_searches_share_the_work(tmp_path: Path, undisturbed: dict[str, Any]):
    records = tmp_path / "r.sqlite"
    with ExitStack() as until_all_end:
        running = [until_all_end.enter_context(start(tmp_path, records)) for _ in range(4)]
        found = [finish(process) for process in running]
    assert [each["winner"] for each in found] == [undisturbed["winner"]] * 4
    times = Counter(measured(tmp_path))
    assert set(times.values()) == {1}
    assert set(times) == recorded(records)


def test_what_a_dead_search_had_claimed_is_taken_over(tmp_path: Path, undisturbed: dict[str, Any]):
    records = tmp_path / "r.sqlite"
    with start(tmp_path, records) as first, start(tmp_path, records) as second:
        while len(measured(tmp_path)) < 4:
            assert first.poll() is None
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGKILL)
        first.communicate(timeout=30)
        assert finish(second)["winner"] == undisturbed["winner"]
    assert len(measured(tmp_path)) - len(set(measured(tmp_path))) <= 1
