"""Generated source and PTX as real files, which Triton needs, in a folder that only the user can
write."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from tedsl.errors import BackendError
from tedsl.folders import ENVIRONMENT, UnsafeFolderError, private_folder


def source_folder() -> Path:
    """The folder of generated sources, made when missing.

    Raises:
        BackendError: it belongs to someone else or others may write to it, or none can be made.
    """
    try:
        return private_folder("triton")
    except UnsafeFolderError as error:
        raise BackendError(
            f"others can write to {error.folder}, code must not be loaded from there",
            hint=f"chmod 700 {error.folder}, or name a folder of your own with {ENVIRONMENT}",
        ) from error
    except OSError as error:
        raise BackendError(
            f"there is no folder for generated sources: {error}",
            hint=f"name one that can be written with {ENVIRONMENT}",
        ) from error


def source_file(source: str) -> Path:
    """A Python file with exactly this text; its name is the text's hash."""
    return text_file(source, ".py")


def text_file(text: str, suffix: str) -> Path:
    """A file with exactly this text; its name is the text's hash and the suffix."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    folder = source_folder()
    path = folder / f"k{digest}{suffix}"
    try:
        if path.read_text(encoding="utf-8") == text:
            return path
    except FileNotFoundError:
        pass
    try:
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BackendError(
            f"the generated source cannot be written to {folder}: {error}",
            hint=f"name another folder with {ENVIRONMENT}",
        ) from error
    return path
