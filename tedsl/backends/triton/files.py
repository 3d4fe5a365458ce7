"""Generated source as real files, which `@triton.jit` needs, in a folder that only the user can
write."""

from __future__ import annotations

import hashlib
import importlib
import os
import stat
import tempfile
from pathlib import Path

from tedsl.errors import BackendError


def source_folder() -> Path:
    """The folder of generated sources, made when missing.

    Raises:
        BackendError: it belongs to someone else or others may write to it.
    """
    platformdirs = importlib.import_module("platformdirs")
    folder = Path(platformdirs.user_cache_dir("tedsl")) / "triton"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = folder.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BackendError(
            f"others can write to {folder}, code must not be loaded from there",
            hint=f"chmod 700 {folder}, or set XDG_CACHE_HOME to a folder of your own",
        )
    return folder


def source_file(source: str) -> Path:
    """A file with exactly this text; its name is the text's hash."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:32]
    folder = source_folder()
    path = folder / f"k{digest}.py"
    try:
        if path.read_text(encoding="utf-8") == source:
            return path
    except FileNotFoundError:
        pass
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(source)
    Path(name).replace(path)
    return path
