"""One holder at a time, across processes: advisory locks on files in the user's cache folder.

The system releases a lock when its holder ends, however that happens.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.005


class FileLock:
    """The lock of what has this name.

    Args:
        name: of a device, or of a file.
        folder: where the file is; one folder per user.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        root = _folder() if folder is None else folder
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._file = os.open(root / f"{digest}.lock", flags, 0o600)
        self._flock, self._take, self._give = _functions()
        self.held = False

    def try_acquire(self) -> bool:
        """Take the lock if nobody else has it; True when it is held now."""
        if not self.held:
            try:
                self._flock(self._file, self._take)
            except BlockingIOError:
                return False
            self.held = True
        return True

    def acquire(self) -> None:
        """Wait until the lock is held."""
        while not self.try_acquire():
            time.sleep(_POLL_SECONDS)

    def release(self) -> None:
        """Let others have it."""
        if self.held:
            self._flock(self._file, self._give)
            self.held = False

    def close(self) -> None:
        """Release and forget the file."""
        self.release()
        os.close(self._file)


class DeviceLock(FileLock):
    """Held while something is measured on a device.

    Args:
        device: name of the device.
        folder: where the file is; one folder per user.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        super().__init__(f"device {device}", folder)


def _functions() -> tuple[Callable[[int, int], object], int, int]:
    """`flock` and its two operations; where the system has none, nothing is locked."""
    try:
        fcntl: Any = importlib.import_module("fcntl")
    except ImportError:
        return (lambda _file, _operation: None), 0, 0
    return fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN


def _folder() -> Path:
    platformdirs = importlib.import_module("platformdirs")
    return Path(platformdirs.user_cache_dir("tedsl", appauthor=False)) / "locks"
