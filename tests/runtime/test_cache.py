"""The on-disk cache: private, verified, bounded, safe under concurrent processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tedsl.errors import BackendError
from tedsl.runtime.cache import disk as cache
from tedsl.runtime.cache.disk import DiskCache, disk_cache, set_cache_dir

KEY = "a" * 64
OTHER = "b" * 64


def entry(store: DiskCache, key: str = KEY) -> Path:
    return store.root / f"{key}.entry"


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    store = DiskCache(tmp_path / "c")
    assert store.get(KEY) is None
    parts = {"object": b"\x00\x01\n" * 100, "empty": b"", "text": "é".encode()}
    assert store.put(KEY, parts)
    assert store.get(KEY) == parts
    assert DiskCache(tmp_path / "c").get(KEY) == parts
    assert store.put(KEY, {"object": b"new"})
    assert store.get(KEY) == {"object": b"new"}
    store.clear()
    assert store.get(KEY) is None


def test_folder_and_entries_are_private(tmp_path: Path) -> None:
    store = DiskCache(tmp_path / "c")
    store.put(KEY, {"x": b"1"})
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(store).stat().st_mode) == 0o600
    assert [path.name for path in store.root.iterdir()] == [entry(store).name]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "c"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(
        BackendError, match=r"others may write it \(mode 7\d\d\)(.|\n)*set_cache_dir"
    ):
        DiskCache(root)


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    with pytest.raises(BackendError, match=r"belongs to another user(.|\n)*cache=False"):
        DiskCache(tmp_path)


def test_entries_of_others_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskCache(tmp_path / "c")
    store.put(KEY, {"x": b"1"})
    entry(store).chmod(0o666)
    assert store.get(KEY) is None
    entry(store).chmod(0o600)
    assert store.get(KEY) == {"x": b"1"}
    entry(store, OTHER).symlink_to(entry(store))
    assert store.get(OTHER) is None
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert store.get(KEY) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "magic", "append", "renamed"])
def test_a_damaged_entry_counts_as_absent(tmp_path: Path, damage: str) -> None:
    store = DiskCache(tmp_path / "c")
    store.put(KEY, {"object": b"code" * 50})
    path = entry(store)
    data = bytearray(path.read_bytes())
    match damage:
        case "flip":
            data[-7] ^= 1
        case "cut":
            del data[-1]
        case "empty":
            data.clear()
        case "magic":
            data[0] ^= 1
        case "append":
            data += b"x"
        case _:
            path.rename(entry(store, OTHER))
            assert store.get(OTHER) is None
            return
    path.write_bytes(data)
    assert store.get(KEY) is None
    assert not path.exists()
    store.put(KEY, {"object": b"rebuilt"})
    assert store.get(KEY) == {"object": b"rebuilt"}


def test_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    store = DiskCache(tmp_path / "c", limit=6000)
    keys = [character * 64 for character in "abcdef"]
    now = time.time()
    for age, key in enumerate(keys[:3]):
        store.put(key, {"x": b"." * 1000})
        os.utime(entry(store, key), (now - 100 + age, now - 100 + age))
    assert store.get(keys[0]) is not None
    for key in keys[3:]:
        store.put(key, {"x": b"." * 1000})
    store.evict()
    held = {key for key in keys if entry(store, key).exists()}
    assert keys[0] in held
    assert keys[1] not in held
    assert keys[5] in held
    assert sum(path.stat().st_size for path in store.root.iterdir()) <= 6000


def test_stale_temporary_files_are_removed(tmp_path: Path) -> None:
    store = DiskCache(tmp_path / "c")
    old, young = store.root / ".x.1.aa.tmp", store.root / ".x.2.bb.tmp"
    old.write_bytes(b"")
    young.write_bytes(b"")
    os.utime(old, (0, 0))
    store.evict()
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_written_costs_nothing_but_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskCache(tmp_path / "c")
    store.root.rmdir()
    assert not store.put(KEY, {"x": b"1"})
    assert store.get(KEY) is None
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setattr(cache, "_configured", type(cache._configured)())
    set_cache_dir(blocked)
    with pytest.warns(RuntimeWarning, match=r"without its on-disk cache(.|\n)*set_cache_dir"):
        assert disk_cache() is None
    assert disk_cache() is None


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_configured", type(cache._configured)())
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "env"))
    store = disk_cache()
    assert store is not None
    assert store.root == tmp_path / "env" / "code"
    assert disk_cache() is store
    set_cache_dir(tmp_path / "set", limit=123)
    store = disk_cache()
    assert store is not None
    assert (store.root, store.limit) == (tmp_path / "set" / "code", 123)


WORKER = """
import sys
from pathlib import Path
from tedsl.runtime.cache.disk import DiskCache
store = DiskCache(Path(sys.argv[1]), limit=200_000)
for turn in range(150):
    key = f"{turn % 12:064x}"
    expected = {"object": key.encode() * 100}
    found = store.get(key)
    if found is not None and found != expected:
        sys.exit("a wrong entry was read")
    if not store.put(key, expected):
        sys.exit("an entry could not be written")
"""


def test_processes_share_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path / "c")]
    workers = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        for _ in range(4)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors
    assert not list((tmp_path / "c").glob("*.tmp"))
