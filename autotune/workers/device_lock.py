"""One holder at a time, across processes: advisory locks on files in the user's cache folder.

The system releases a lock when its holder ends, however that happens.  Where no folder can be
written that is this user's alone, nothing is locked, with one warning: two searches may disturb
each other then, but each ends with a kernel.  Imports `folders`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tedsl.folders import ENVIRONMENT, private_folder

_POLL_SECONDS = 0.005


class FileLock:
    """The lock of what has this name.

    Args:
        name: of a device, or of a file.
        folder: where the file is; one folder per user.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._flock, self._take, self._give = _functions()
        self.held = False
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._file: int | None = None
        try:
            self._file = _opened(folder, f"{digest}.lock")
        except OSError as error:
            warnings.warn(
                f"nothing keeps other searches from measuring at the same time: {error}; "
                f"{ENVIRONMENT} names a folder that only you can write",
                RuntimeWarning,
                stacklevel=3,
            )

    def try_acquire(self) -> bool:
        """Take the lock if nobody else has it; True when it is held now."""
        if self._file is None:
            return True
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
        if self.held and self._file is not None:
            self._flock(self._file, self._give)
            self.held = False

    def close(self) -> None:
        """Release and forget the file."""
        self.release()
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


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


def _opened(folder: Path | None, name: str) -> int:
    """A lock's file, of this user and no link.

    Raises:
        OSError: there is none that can be opened.
    """
    if folder is None:
        folder = private_folder("locks")
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    return os.open(folder / name, flags, 0o600)
