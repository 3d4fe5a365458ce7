"""What was found before, for a plan or a formula, kept for what follows: a step changes little."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

Found = TypeVar("Found")


class Memory:
    """Findings by all that they depend on, immutable or compared by identity.

    Args:
        size: how many are kept; a full memory starts again, and one of size 0 keeps nothing.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[tuple[object, ...], object] = {}

    def get(self, key: tuple[object, ...], find: Callable[[], Found]) -> Found:
        """What `find` gives, or gave for the same key; what it raises is not kept."""
        known = self._known.get(key, _MISSING)  # other threads may clear it at any moment
        if known is not _MISSING:
            return cast("Found", known)
        found = find()
        if self._size:
            if len(self._known) >= self._size:
                self._known.clear()
            self._known[key] = found
        return found


_MISSING = object()
NONE = Memory(0)
