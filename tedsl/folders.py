"""Files that may be lost: where they are kept, one folder per user, which the environment may name,
and how they are written, whole or not at all, under names that nobody can guess.

What is written beside a search must not end it: who calls `write_whole` says what to do without.
"""

from __future__ import annotations

import importlib
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = "TEDSL_CACHE_DIR"


_chosen: list[Callable[[], Path | None]] = []


def chosen_by(choice: Callable[[], Path | None]) -> None:
    """Ask `choice` first for what the program has chosen; None stands for the default place."""
    _chosen[:] = [choice]


def cache_root() -> Path:
    """The folder chosen, else the variable TEDSL_CACHE_DIR, else the user's cache folder."""
    for choice in _chosen:
        path = choice()
        if path is not None:
            return path
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named)
    root: str = importlib.import_module("platformdirs").user_cache_dir("tedsl", appauthor=False)
    return Path(root)


def private_folder(name: str) -> Path:
    """The folder of this name among them, made when missing; where it cannot be, one of this user
    in the folder of temporary files.

    Raises:
        OSError: neither can be made.
        PermissionError: it belongs to someone else, or others may write it.
    """
    try:
        return _made(cache_root() / name)
    except PermissionError as error:
        if isinstance(error, UnsafeFolderError):
            raise
    except OSError:
        pass  # a full or a read-only disk, a file in the way
    user = os.getuid() if hasattr(os, "getuid") else 0
    return _made(Path(tempfile.gettempdir()) / f"tedsl-{user}" / name)


class UnsafeFolderError(PermissionError):
    """A folder in which someone else could place files for this user to use."""

    def __init__(self, folder: Path, fault: str) -> None:
        super().__init__(f"{folder} is not safe: {fault}")
        self.folder = folder
        self.fault = fault


def _made(folder: Path) -> Path:
    """A folder that only this user can write, and that can be written."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    fault = unsafe(folder)
    if fault:
        raise UnsafeFolderError(folder, fault)
    if not os.access(folder, os.W_OK):
        raise OSError(f"{folder} cannot be written")
    return folder


def unsafe(folder: Path) -> str:
    """Why others could place files there; nothing where they could not."""
    if not hasattr(os, "getuid"):
        return ""
    status = folder.stat()
    if status.st_uid != os.getuid():
        return "it belongs to another user"
    mode = stat.S_IMODE(status.st_mode)
    return f"others may write it (mode {mode:o})" if mode & 0o022 else ""


def write_whole(path: Path, lines: Iterable[str]) -> int:
    """Write a text file and move it into place; returns how many lines it got.

    Raises:
        OSError: it cannot be written; the file that was there is as it was, and nothing is left
            beside it.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(partial, flags, 0o666)
    count = 0
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            for line in lines:
                file.write(line)
                count += 1
        partial.replace(path)
    finally:
        with suppress(OSError):  # it is not there when it was moved
            partial.unlink()
    return count
