"""Room for what walks and makes expressions and loop nests: on the stack, since they are as deep as
they are and whoever calls may be deep in its own stack already, and between collections of garbage.
Imports nothing of the package.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

# Frames beyond what is allowed anyway.  A definition and what is substituted into it are nested a
# few hundred deep, and some walks take ten frames for a level; a kernel of a thousand stages has as
# many scopes of buffers, with three frames each.  They are frames of Python alone, which take no
# stack of the machine.
ROOM = 20_000
# Objects made between two collections, and collections between two of what is older: what is made
# of a graph of a thousand stages lives as long as its schedule, and to go through all of it again
# whenever it has grown by a quarter took a fifth of the time.
COLLECTED = (200_000, 10, 20)

Given = ParamSpec("Given")
Result = TypeVar("Result")


class _Room:
    """`with room:` gives `ROOM` frames more than the limit of recursion allows, and collects
    garbage as rarely as `COLLECTED` says; when nobody is inside any more, in any thread, both are
    as they were."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._usual = 0
        self._collected = gc.get_threshold()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._usual = sys.getrecursionlimit()
                sys.setrecursionlimit(self._usual + ROOM)
                self._collected = gc.get_threshold()
                if 0 < self._collected[0] < COLLECTED[0]:
                    gc.set_threshold(*COLLECTED)
            self._inside += 1

    def __exit__(self, *problem: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            if sys.getrecursionlimit() == self._usual + ROOM:
                sys.setrecursionlimit(self._usual)
            if gc.get_threshold() == COLLECTED:
                gc.set_threshold(*self._collected)


room = _Room()


def deep(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function that runs with `room`."""

    @wraps(function)
    def with_room(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with room:
            return function(*args, **kwargs)

    return with_room
