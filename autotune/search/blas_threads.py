"""One thread for numpy's linear algebra while the search thinks.

Its matrices are small, the other cores belong to the workers that compile, and sums taken in
another order could rank two candidates differently.  numpy's wheels bring OpenBLAS, which is asked
through its C interface; any other library is left as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np

PREFIXES = ("scipy_openblas", "openblas")
SUFFIXES = ("64_", "")


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Within it linear algebra runs on the calling thread alone."""
    found = _controls()
    before = [get() for get, _ in found]
    for _, put in found:
        put(1)
    try:
        yield
    finally:
        for count, (_, put) in zip(before, found, strict=True):
            put(count)


@functools.cache
def _controls() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """Functions that get and set the number of threads of each library that numpy brought."""
    package = Path(np.__file__).resolve().parent
    folders = (package.parent / "numpy.libs", package / ".dylibs")
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    found: list[tuple[Callable[[], int], Callable[[int], None]]] = []
    for file in files:
        if "openblas" in file.name:
            try:
                library: Any = ctypes.CDLL(str(file))
            except OSError:
                continue
            found.extend(_of(library))
    return tuple(found)


def _of(library: Any) -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """The two functions of a library, under the name that its build gave them."""
    for prefix in PREFIXES:
        for suffix in SUFFIXES:
            get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            put = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            if get is not None and put is not None:
                return [(get, put)]
    return []
