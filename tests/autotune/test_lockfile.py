"""tedsl.lock: what it pins is taken, what it does not know is an error under frozen=True."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sources import run_python

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.frontend.lockfile import LockFile
from tedsl.autotune.records.record_key import Context
from tedsl.autotune.search_space.space import Candidate, Knob, Realised, Space
from tedsl.errors import ScheduleError, TuneError
from tedsl.tensor.tensor import Tensor

CONTEXT = Context("w", "f", "[[8]]", '["float32"]', "cpu", "some cpu", "avx2", "tools 1", "code 1")


def candidate(value: int) -> Candidate:
    return Candidate((Knob("tile", (1, 2, 4, 8), value),), f"trace {value}")


def space(*legal: int, trace: str = "trace") -> Space:
    """A knob `tile`, of which only some choices are legal."""

    def realise(decisions: object) -> Realised:
        value = int(dict(decisions).get("tile", 1))  # type: ignore[call-overload]
        if value not in legal:
            raise ScheduleError(f"tile {value} does not fit")
        return Realised((Knob("tile", legal, value),), f"{trace} {value}")

    return Space(realise)


def test_what_is_pinned_comes_back(tmp_path: Path):
    path = tmp_path / "tedsl.lock"
    LockFile(path).pin(CONTEXT, "y", candidate(4), 1.2345e-3)
    found = LockFile(path).pinned(CONTEXT, space(1, 4), frozen=True)
    assert found is not None
    assert found.decisions == {"tile": 4}
    entry = LockFile(path).find(CONTEXT)
    assert entry is not None
    assert (entry.name, entry.seconds, entry.tools) == ("y", 1.23e-3, "tools 1")


def test_other_tools_use_the_same_schedule_and_other_devices_do_not(tmp_path: Path):
    lock = LockFile(tmp_path / "tedsl.lock")
    lock.pin(CONTEXT, "y", candidate(4), 1e-3)
    changed = {name: getattr(CONTEXT, name) for name in CONTEXT.__slots__}
    assert lock.find(Context(**{**changed, "toolchain": "tools 2", "codegen": "code 2"}))
    for name in ("workload", "sizes", "target", "device", "space", "layout"):
        assert lock.find(Context(**{**changed, name: "another"})) is None


def test_a_miss_is_an_error_when_frozen(tmp_path: Path):
    lock = LockFile(tmp_path / "tedsl.lock")
    assert lock.pinned(CONTEXT, space(1), frozen=False) is None
    with pytest.raises(TuneError, match="pins no schedule for this computation"):
        lock.pinned(CONTEXT, space(1), frozen=True)


def test_a_schedule_that_cannot_be_made_again(tmp_path: Path):
    lock = LockFile(tmp_path / "tedsl.lock")
    lock.pin(CONTEXT, "y", candidate(4), 1e-3)
    for changed, why in (
        (space(1, 2), "does not fit"),
        (space(1, 4, trace="new"), "another trace"),
    ):
        assert lock.pinned(CONTEXT, changed, frozen=False) is None
        with pytest.raises(TuneError, match=why):
            lock.pinned(CONTEXT, changed, frozen=True)


WHOLE: dict[str, Any] = {
    **dict.fromkeys(
        ("workload", "sizes", "target", "device", "space", "layout", "name", "trace", "tools"), ""
    ),
    "decisions": {},
    "seconds": 1.0,
}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<<<<<<< ours", "not JSON"),
        ("[]", 'no "format" and "schedules"'),
        ('{"format": 1}', 'no "format" and "schedules"'),
        ('{"format": 9, "schedules": []}', "its format is 9, this version reads 1"),
        ('{"format": 1, "schedules": {}}', '"schedules" is no list'),
        ('{"format": 1, "schedules": [7]}', "entry 1 has not exactly the fields decisions"),
        ('{"format": 1, "schedules": [{"name": 1}]}', "entry 1 has not exactly the fields"),
        (
            json.dumps({"format": 1, "schedules": [WHOLE, {**WHOLE, "seconds": "1"}]}),
            "'seconds' of entry 2 is '1'",
        ),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, why: str):
    path = tmp_path / "tedsl.lock"
    path.write_text(text)
    with pytest.raises(TuneError, match=f"is no lock file: .*{re.escape(why)}"):
        LockFile(path)
    assert path.read_text() == text


def test_processes_that_pin_at_once_lose_nothing(tmp_path: Path):
    path = tmp_path / "tedsl.lock"
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[3])\n"
        "from test_lockfile import *\n"
        "changed = {name: getattr(CONTEXT, name) for name in CONTEXT.__slots__}\n"
        "for n in range(10):\n"
        "    there = Context(**{**changed, 'workload': f'{sys.argv[2]} {n}'})\n"
        "    LockFile(Path(sys.argv[1])).pin(there, 'y', candidate(4), 1e-3)\n"
    )
    here = str(Path(__file__).parent)
    many = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(path), str(rank), here],
            env={"PYTHONPATH": ":".join(p for p in sys.path if p), "HOME": str(tmp_path)},
        )
        for rank in range(3)
    ]
    assert [process.wait(120) for process in many] == [0, 0, 0]
    assert len(LockFile(path)) == 30
    rows = json.loads(path.read_text())["schedules"]
    assert [row["workload"] for row in rows] == sorted(row["workload"] for row in rows)


def halves(n: int = 3000) -> Tensor:
    x = te.placeholder((n,), "float32", name="x")
    return te.compute((n,), lambda i: te.exp(x[i] * 0.5), name="y")


@pytest.mark.cpu
def test_every_rank_uses_what_the_first_wrote(tmp_path: Path):
    path = tmp_path / "tedsl.lock"
    first = tune(halves(), "cpu", trials=3, records=tmp_path / "a.sqlite", lock=path)
    assert not first.replayed
    text = path.read_text()
    for records in (tmp_path / "b.sqlite", False):
        again = tune(halves(), "cpu", records=records, lock=path, frozen=True)
        assert again.replayed
        assert again.winner.candidate.key == first.winner.candidate.key
    assert path.read_text() == text
    with pytest.raises(TuneError, match="pins no schedule"):
        tune(halves(3001), "cpu", lock=path, frozen=True, records=False)
    with pytest.raises(TuneError, match="contradict"):
        tune(halves(), "cpu", lock=path, frozen=True, fresh=True)


def test_the_lock_file_is_not_loaded_with_the_package():
    found = run_python(
        "import tedsl, sys; print('tedsl.autotune.frontend.lockfile' in sys.modules)"
    )
    assert found.strip() == "False"
