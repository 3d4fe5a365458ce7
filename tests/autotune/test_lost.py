"""What goes wrong around a search does not end it: files, rows, answers, clocks."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from intrinsics import gemm_text
from lost_searches import SCHEDULE, about, candidate, context, fill, search
from small_problems import N, chain

import tedsl as te
from tedsl import folders
from tedsl.autotune import tune
from tedsl.autotune.frontend.lockfile import LockFile
from tedsl.autotune.frontend.settings import Time
from tedsl.autotune.measure.reference_cache import References
from tedsl.autotune.multi.dispatcher import Choice, Dispatcher, Row
from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.database import Records
from tedsl.autotune.records.machine import describe_cpu
from tedsl.autotune.report import events
from tedsl.autotune.workers.device_lock import DeviceLock, FileLock
from tedsl.errors import BackendError, TuneError
from tedsl.folders import write_whole
from tedsl.runtime.cache import disk as cache
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload


@contextmanager
def full_after(monkeypatch: pytest.MonkeyPatch, pages: int) -> Generator[None]:
    """Record files have room for so many more pages than they have when they are opened.

    Pages are small, so that no row fits into what an empty table has.
    """
    plain = Records._prepare

    def prepare(self: Records, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA page_size = 512")
        plain(self, connection)
        if not self._in_memory and connection.execute("PRAGMA database_list").fetchone()[2]:
            (count,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {count + pages}")

    with monkeypatch.context() as patch:
        patch.setattr(Records, "_prepare", prepare)
        yield


@pytest.mark.cpu
def test_a_full_disk_under_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "r.sqlite"
    with full_after(monkeypatch, 0):
        found, said = search(records=path)
    assert len(about(said, "kept in memory")) == 1
    assert len(found.trials) == 2
    with closing(Records(path)) as records:  # it is sound
        assert all(run.state != "done" for run in records.all_runs())
    again, said = search(records=path)
    assert not again.replayed
    assert said == []


def test_what_was_on_record_is_known_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from_file = Records(tmp_path / "r.sqlite")
    fill(from_file, 3)
    from_file.close()
    with full_after(monkeypatch, 0), closing(Records(tmp_path / "r.sqlite")) as records:
        with pytest.warns(RuntimeWarning, match=r"cannot be written \(.*full"):
            fill(records, 40)
        assert len(records.all_runs()) == 43
        fill(records, 1)
        assert len(records.all_runs()) == 44
    with closing(Records(tmp_path / "r.sqlite")) as records:
        assert 3 <= len(records.all_runs()) < 43


@pytest.mark.cpu
def test_files_that_are_full(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    found, said = search(records=False, events="/dev/full")
    assert len(about(said, "events are not written")) == 1
    assert len(found.trials) == 2


@pytest.mark.cpu
def test_a_lock_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, lines: object) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(sys.modules[LockFile.__module__], "write_whole", full)
    _, said = search(records=False, lock=tmp_path / "tedsl.lock")
    assert len(about(said, "could not be written")) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_whole_leaves_nothing(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("before")

    def lines() -> Iterator[str]:
        yield "some"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_whole(path, lines())
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    for name in (".file.1.part", f".file.{os.getpid()}.part", f".file.{os.getpid()}.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    assert write_whole(path, ["after\n"]) == 1
    assert not (tmp_path / "victim").exists()


@pytest.fixture
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nothing can be made."""
    blocked = tmp_path / "home"
    blocked.write_text("")
    monkeypatch.setenv("HOME", str(blocked))
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", folders.ENVIRONMENT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache, "_configured", type(cache._configured)())
    return tmp_path


@pytest.mark.cpu
def test_a_home_that_cannot_be_written(no_home: Path):
    found, said = search()
    assert len(about(said, "kept in memory")) == 1
    assert len(found.trials) == 2


@pytest.mark.cpu
def test_a_home_that_cannot_be_written_where_all_is_said(
    no_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(folders.ENVIRONMENT, str(no_home / "cache"))
    _, said = search(records=no_home / "r.sqlite")
    assert said == []
    assert list((no_home / "cache" / "locks").iterdir())


def test_locks_and_sources_follow_the_cache_folder(no_home: Path, monkeypatch: pytest.MonkeyPatch):
    cache.set_cache_dir(no_home / "set")
    with closing(FileLock("a device")) as lock:
        assert lock.try_acquire()
    assert list((no_home / "set" / "locks").iterdir())
    files: Any = pytest.importorskip("tedsl.backends.triton.compile.source_files")
    assert files.source_file("x = 1\n").parent == no_home / "set" / "triton"
    (no_home / "set" / "triton").chmod(0o777)
    with pytest.raises(BackendError, match=f"chmod 700 {no_home}"):
        files.source_file("x = 2\n")


def test_a_lock_in_a_folder_of_others_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(folders.ENVIRONMENT, str(tmp_path))
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks").chmod(0o777)
    with pytest.warns(RuntimeWarning, match=r"nothing keeps other searches(.|\n)*mode 777"):
        lock = FileLock("a device")
    assert lock.try_acquire()
    lock.close()
    assert list((tmp_path / "locks").iterdir()) == []


@contextmanager
def read_only(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Files that are there can only be read: modes would not keep root from writing."""
    plain = Records._connect

    def connect(self: Records, place: str | Path, **more: Any) -> sqlite3.Connection:
        if isinstance(place, Path):
            return plain(self, f"{place.absolute().as_uri()}?mode=ro", uri=True)
        return plain(self, place, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Records, "_connect", connect)
        yield


@pytest.mark.cpu
@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_record_file_that_can_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str
):
    path = tmp_path / "r.sqlite"
    first, _ = search(records=path)
    with closing(sqlite3.connect(path)) as sql:
        sql.execute(f"PRAGMA journal_mode = {journal}")
    before = path.read_bytes()
    with read_only(monkeypatch):
        again, said = search(records=path)
        assert again.replayed
        assert again.winner.candidate.key == first.winner.candidate.key
        assert said == []
        fresh, said = search(records=path, fresh=True)
    assert not fresh.replayed
    assert len(about(said, "kept in memory")) == 1
    assert path.read_bytes() == before


def test_a_clock_that_stood_ahead_does_not_say_what_is_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with closing(Records(tmp_path / "r.sqlite")) as records:
        now = time.time()
        for ahead, number in ((0, 1), (31_536_000, 2), (0, 3), (-1000, 4)):
            monkeypatch.setattr(time, "time", lambda ahead=ahead: now + ahead)
            run = records.start(context(), seed=0, trials=1, seconds=None)
            records.add(run, 0, candidate(number), Outcome(Status.OK, 1.0, (1.0,)))
            records.finish(run, "done", candidate(number))
            best = records.best(context())
            assert best is not None
            assert best.key == candidate(number).key
        assert [run.winner for run in records.runs(context())] == [
            candidate(number).key for number in (4, 3, 2, 1)
        ]


def test_a_claim_of_a_clock_that_stood_ahead_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with closing(Records(tmp_path / "r.sqlite")) as records:
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 31_536_000)
        one = records.start(context(), seed=0, trials=1, seconds=None)
        assert records.claim(one, context(), ["k"], 60.0) == {"k"}
        monkeypatch.setattr(time, "time", lambda: now)
        other = records.start(context(), seed=0, trials=1, seconds=None)
        assert records.claim(other, context(), ["k"], 60.0) == {"k"}


@pytest.mark.cpu
@pytest.mark.parametrize(
    "parts",
    [{}, {"signature": b"1 2"}, {"module": b"x", "digest": b"y"},
     {"object": b"x", "signature": b"one two three"}, {"version": b"\xff"},
     {"module": b"\x80\x05K\x01.", "digest": b"y"}],
)  # fmt: skip
def test_cache_entries_that_are_whole_but_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, bytes]
):
    monkeypatch.setattr(cache, "_configured", type(cache._configured)())
    cache.set_cache_dir(tmp_path)
    x = np.linspace(-2, 2, N, dtype=np.float32)
    te.build(chain(), "cpu")
    store = cache.disk_cache()
    assert store is not None
    for path in store.root.glob("*.entry"):
        known = store.get(path.stem)
        if known is not None and known.keys() not in ({"version"}, {"object"}):
            store.put(path.stem, {**known, **parts} if parts else {})
    found = te.build(chain(), "cpu")(x)
    np.testing.assert_allclose(found, np.tanh(x * 2 + 1) * np.exp(-x), rtol=1e-5)


@pytest.mark.cpu
def test_a_device_that_another_process_keeps_does_not_stretch_the_time():
    device, _ = describe_cpu()
    with closing(DeviceLock(device)) as lock:
        lock.acquire()
        told: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = tune(
                chain(), "cpu", seconds=3.0, records=False, progress=False, events=told.append
            )
    assert found.winner.outcome.seconds is None
    assert told[-1].at < 5.0  # 3.3 and what a busy machine adds; 7 and more before


@pytest.mark.parametrize("seconds", [3.0, 8.0, 20.0, 100.0])
def test_all_that_a_search_waits_for_is_within_a_tenth_of_its_time(seconds: float):
    budget = Time.of(100.0, seconds)
    assert budget.latest is not None
    assert budget.end is not None
    assert budget.latest - 100.0 <= 1.1 * seconds + 1e-9
    assert 100.0 + 0.84 * seconds <= budget.end < 100.0 + seconds
    assert budget.verifying() <= 0.05 * seconds


@pytest.mark.cpu
def test_an_early_end_is_said(tmp_path: Path):
    worker = tmp_path / "worker.py"
    worker.write_text(ONCE.format(mark=str(tmp_path / "mark")))
    command = (sys.executable, "-P", str(worker))
    path = str(Path(__file__).parents[1] / "helpers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        with pytest.warns(RuntimeWarning, match="ended early, with the best so far"):
            found = tune(
                chain(), "cpu", trials=4, schedule=SCHEDULE, records=False, progress=False,
                command=command,
            )  # fmt: skip
    assert found.winner.outcome.seconds == 1.0
    assert found.interrupted


ONCE = """
import os
import time
from pathlib import Path
from fault_worker import Faults
from tedsl.autotune.workers.worker_main import serve

class Once(Faults):
    def __init__(self, setup):
        super().__init__({{}})
        self.role = setup["role"]
        if self.role == "measure" and Path({mark!r}).exists():
            os._exit(3)

    def measure(self, request):
        if Path({mark!r} + "1").exists():
            Path({mark!r}).touch()
            os._exit(3)
        Path({mark!r} + "1").touch()
        return super().measure(request)

serve(Once)
"""


def test_events_that_cannot_be_opened_are_said_once(tmp_path: Path):
    (tmp_path / "file").write_text("")
    listener = events.EventFile(tmp_path / "file" / "events.jsonl")
    with pytest.warns(RuntimeWarning, match="events are not written"):
        listener(events.Phase(at=0.0, stage=events.Stage.SEARCH))
    listener(events.Phase(at=1.0, stage=events.Stage.SEARCH))


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["seq-len", "in", "n m", "a/b", "../n", "size"])
def test_sizes_may_be_called_anything(tmp_path: Path, name: str):
    made = Dispatcher(
        [Choice(f"kernel of {name}"), Choice("other", "False")],
        [Row({name: 4}, 0, 1.0, 1.0), Row({name: 64}, 0, 1.0, 1.0)],
        lambda number, sizes: te.build(te.placeholder((1,), name="p") + 1.0, "cpu"),
        {name: (0, 0)},
    )
    assert made.number(**{name: 5}) == 0
    n = te.size_var(name)
    x = te.placeholder((n,), name="x")
    workload = Workload.of(te.compute((n,), lambda i: x[i] + 1.0, name="y"))
    assert References(Extents(workload, {name: 4}), "cpu", 3, tmp_path).get("random")
    assert len(list(tmp_path.glob("random-*.noise.json"))) == 1


@pytest.mark.cpu
def test_what_tensorizes_is_refused_with_the_reason():
    a = te.placeholder((16, 16), name="a")
    b = te.placeholder((16, 16), name="b")
    ia, ib = te.placeholder((4, 4), name="ia"), te.placeholder((4, 4), name="ib")
    k = te.reduce_axis((0, 4), name="k")
    meaning = te.compute((4, 4), lambda i, j: te.sum(ia[i, k] * ib[k, j], axis=k), name="m")
    intrin = te.decl_tensor_intrin(
        meaning, name="lost_gemm", cpu=te.llvm_function(gemm_text(4, 4, 4), "micro_gemm")
    )
    out = te.nn.matmul(a, b)

    def schedule(s: Any) -> None:
        stage = s[s.outputs[0]]
        i, j = stage.op.axis
        io, jo, ii, ji = stage.tile(i, j, 4, 4)
        ko, ki = stage.split(stage.op.reduce_axis[0], factor=4)
        stage.reorder(io, jo, ko, ii, ji, ki)
        stage.tensorize(ii, intrin)

    with pytest.raises(TuneError, match=r"lost_gemm.*declared in this process(.|\n)*"):
        tune(out, "cpu", trials=2, schedule=schedule, records=False, progress=False)
