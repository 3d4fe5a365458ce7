"""`save(path)`: the one verb for everything that writes a file; the ending says what is written.

Imports `errors` and `slips`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import cast

from tedsl.errors import BackendError, TedslError
from tedsl.slips import advice

Writer = Callable[[Path], object]


def text(make: Callable[[], str]) -> Writer:
    """A writer of what `make` gives."""
    return lambda path: path.write_text(make(), encoding="utf-8")


def save(
    path: str | PathLike[str],
    what: str,
    writers: Mapping[str, Writer],
    error: type[TedslError] = BackendError,
) -> Path:
    """Write a file; the folders above it are made.

    Args:
        path: the file.
        what: is written, in the text of an error.
        writers: by the endings that the file may have.
        error: the class of the error.

    Returns:
        The path.

    Raises:
        TedslError: another ending, no path, or a file that cannot be written; of class `error`.
    """
    if not str(path) or not isinstance(cast("object", path), (str, PathLike)):
        raise error(f"{path!r} is no path", subject="save", hint="give the name of a file")
    chosen = Path(path)
    writer = writers.get(chosen.suffix)
    if writer is None:
        raise error(
            f"{what} cannot be written to {chosen.name!r}",
            subject="save",
            facts=[("allowed", ", ".join(writers))],
            hint=advice(chosen.suffix.lstrip("."), [each.lstrip(".") for each in writers], ".{}"),
        )
    try:
        chosen.parent.mkdir(parents=True, exist_ok=True)
        writer(chosen)
    except OSError as found:
        raise error(
            f"{what} cannot be written: {found}",
            subject="save",
            hint="name a file in a folder that you may write to",
        ) from found
    return chosen
