"""A folder for one search, gone when it ends; what a killed search left is cleared by the next."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "tedsl-tune-"


@contextmanager
def scratch_folder() -> Generator[str, None, None]:
    """A fresh folder that only the user can read, named after this process."""
    clear_left_over()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as folder:
        yield folder


def clear_left_over() -> int:
    """Remove the user's folders whose process is gone; returns how many."""
    removed = 0
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        with suppress(OSError):
            own = not hasattr(os, "getuid") or path.lstat().st_uid == os.getuid()
            if owner.isdigit() and own and not path.is_symlink() and not is_alive(int(owner)):
                shutil.rmtree(path, ignore_errors=True)
                removed += 1
    return removed


def is_alive(pid: int) -> bool:
    """True when a process of this number runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
