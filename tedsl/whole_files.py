"""Files that are written whole or not at all, under names that nobody can guess.

What is written beside a search must not end it: whoever calls these says what to do without.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


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
