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
        if key in self._known:
            return cast("Found", self._known[key])
        found = find()
        if self._size:
            if len(self._known) >= self._size:
                self._known.clear()
            self._known[key] = found
        return found


NONE = Memory(0)
