"""One measurement at a time per device, also across processes; nothing heavy at import."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tedsl.autotune.workers.device_lock import DeviceLock
from tedsl.autotune.workers.scratch_dir import scratch_folder

HOLDER = """
import sys, time
from pathlib import Path
from tedsl.autotune.workers.device_lock import DeviceLock
lock = DeviceLock("gpu 0", Path(sys.argv[1]))
print(lock.try_acquire(), flush=True)
time.sleep(60)
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments], env=env, stdout=subprocess.PIPE, text=True
    )


def test_a_lock_excludes_and_ends_with_its_holder(tmp_path: Path):
    holder = python(HOLDER, str(tmp_path))
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "True"
    lock, other = DeviceLock("gpu 0", tmp_path), DeviceLock("gpu 1", tmp_path)
    assert not lock.try_acquire()
    assert other.try_acquire()
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert lock.try_acquire()
    assert lock.try_acquire()
    lock.release()
    lock.close()
    other.close()


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, tedsl.autotune\n"
        "heavy = {'sqlite3', 'rich', 'torch', 'triton', 'llvmlite', 'sympy', 'selectors',"
        " 'platformdirs'}\n"
        "import json; print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    out, _ = python(code).communicate(timeout=60)
    loaded = json.loads(out)
    assert not set(loaded) - {"selectors", "platformdirs"}


def test_folders_of_killed_searches_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = python("pass")
    ended.communicate()
    stale, other = tmp_path / f"tedsl-tune-{ended.pid}-abc", tmp_path / "tedsl-tune-notes"
    alive = tmp_path / f"tedsl-tune-{os.getpid()}-abc"
    for folder in (stale, other, alive):
        folder.mkdir()
    with scratch_folder() as folder:
        assert Path(folder).is_dir()
    assert not Path(folder).exists()
    assert not stale.exists()
    assert other.exists()
    assert alive.exists()
