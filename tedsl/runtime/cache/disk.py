"""The on-disk cache of generated code: raw bytes under a digest, in a folder only the user writes.

An entry is one file: a magic line, the SHA-256 of the rest, a JSON line with the sizes of its
parts, and the parts as raw bytes; nothing is unpickled here.  It is written to a temporary file
and moved into place, so that concurrent processes see a whole entry or none; it is verified when
read, and one that does not verify is treated as absent.  Imports `errors`
and `folders`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tedsl import folders
from tedsl.errors import BackendError
from tedsl.folders import ENVIRONMENT

DEFAULT_LIMIT = 1 << 30
_MAGIC = b"tedsl cache entry 1\n"
_SUFFIX = ".entry"
_STALE_SECONDS = 3600.0
_SCAN_EVERY = 16 << 20


class DiskCache:
    """A bounded map from a hex digest to named byte strings.

    Args:
        root: the folder; made (readable by the user only) when absent.
        limit: bytes to keep; the entries used longest ago go first.

    Raises:
        BackendError: the folder belongs to someone else, or others may write it.
    """

    def __init__(self, root: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.root = root
        self.limit = limit
        self._unscanned = _SCAN_EVERY  # bytes written since the last scan; scan at the first write
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(root)

    def get(self, key: str, *names: str) -> dict[str, bytes] | None:
        """The parts stored under `key`; None when absent, damaged, without one of the parts
        `names`, or not the user's own file."""
        path = self.root / f"{key}{_SUFFIX}"
        try:
            data = _read_private(path)
        except OSError:
            return None
        parts = _decode(data, key)
        if parts is not None and not parts.keys() >= set(names):
            parts = None
        with suppress(OSError):
            if parts is None:
                path.unlink()
            else:
                os.utime(path)
        return parts

    def put(self, key: str, parts: Mapping[str, bytes]) -> bool:
        """Store `parts` under `key`; False when the folder cannot be written (disk full,
        read-only).
        """
        data = _encode(parts, key)
        temporary = self.root / f".{key[:16]}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
        try:
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.replace(self.root / f"{key}{_SUFFIX}")
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            return False
        self._unscanned += len(data)
        if self._unscanned >= _SCAN_EVERY or self._unscanned >= self.limit // 8:
            self._unscanned = 0
            self.evict()
        return True

    def evict(self) -> None:
        """Remove entries, longest unused first, until the cache is within its limit."""
        now = time.time()
        found: list[tuple[float, int, str]] = []
        with suppress(OSError), os.scandir(self.root) as items:
            for item in items:
                with suppress(OSError):  # another process may have removed it
                    status = item.stat(follow_symlinks=False)
                    if item.name.endswith(_SUFFIX):
                        found.append((status.st_mtime, status.st_size, item.path))
                    elif item.name.endswith(".tmp") and now - status.st_mtime > _STALE_SECONDS:
                        os.unlink(item.path)
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                return
            with suppress(OSError):
                os.unlink(path)
            total -= size

    def clear(self) -> None:
        """Remove every entry."""
        for path in self.root.glob(f"*{_SUFFIX}"):
            with suppress(OSError):
                path.unlink()


def _check_private(root: Path) -> None:
    """Refuse a folder in which someone else could place code for this user to run."""
    fault = folders.unsafe(root)
    if not fault:
        return
    raise BackendError(
        f"the cache folder is not safe: {fault}",
        facts=[("folder", str(root)), ("allowed", "a folder that only you can write (mode 700)")],
        hint=f"chmod 700 it, choose another with te.runtime.set_cache_dir(path) or {ENVIRONMENT}, "
        "or build with cache=False",
    )


def _read_private(path: Path) -> bytes:
    """The bytes of a file that this user wrote; a link or someone else's file is an OSError."""
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    )
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        foreign = hasattr(os, "getuid") and status.st_uid != os.getuid()
        if foreign or (os.name == "posix" and status.st_mode & 0o022):
            raise PermissionError(f"{path} can be written by others")
        return file.read()


def _encode(parts: Mapping[str, bytes], key: str) -> bytes:
    header = {"key": key, "parts": [[name, len(data)] for name, data in parts.items()]}
    body = json.dumps(header).encode() + b"\n" + b"".join(parts.values())
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _decode(data: bytes, key: str) -> dict[str, bytes] | None:
    start = len(_MAGIC) + 65
    body = data[start:]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : start - 1] != (
        hashlib.sha256(body).hexdigest().encode()
    ):
        return None
    line, _, rest = body.partition(b"\n")
    try:
        header = cast(dict[str, Any], json.loads(line))
        if header["key"] != key:
            return None
        parts: dict[str, bytes] = {}
        for name, size in header["parts"]:
            parts[str(name)], rest = rest[:size], rest[size:]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # whole, but no entry
    return parts


class _Configured:
    """The process's cache, opened at first use."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.limit = DEFAULT_LIMIT
        self.opened: DiskCache | None = None
        self.unusable = False


_configured = _Configured()
folders.chosen_by(lambda: _configured.path)


def set_cache_dir(path: str | os.PathLike[str] | None, *, limit: int = DEFAULT_LIMIT) -> None:
    """Keep generated code in `path` from now on; None goes back to the default place.

    The default is the variable TEDSL_CACHE_DIR of the environment, else the user's cache folder
    (on Linux `~/.cache/tedsl`).

    Args:
        path: a folder that only this user can write.
        limit: bytes to keep there.
    """
    _configured.path = None if path is None else Path(path)
    _configured.limit = limit
    _configured.opened = None
    _configured.unusable = False


def disk_cache() -> DiskCache | None:
    """The cache in use; None (with one warning) where its folder cannot be made.

    Raises:
        BackendError: the folder is not safe.
    """
    if _configured.opened is None and not _configured.unusable:
        root = folders.cache_root()
        try:
            _configured.opened = DiskCache(root / "code", _configured.limit)
        except OSError as error:
            _configured.unusable = True
            warnings.warn(
                f"tedsl builds without its on-disk cache: cannot make {root} ({error}); "
                "te.runtime.set_cache_dir(path) chooses another folder",
                RuntimeWarning,
                stacklevel=2,
            )
    return _configured.opened
