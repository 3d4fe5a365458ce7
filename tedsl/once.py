"""What is found out of an immutable object once, and kept with it as long as it lives.

A cache of bounded size forgets what a walk over more objects than it holds comes back to; what is
kept in the object is found again however many there are.  Imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar

Thing = TypeVar("Thing", bound="Remembers")
Found = TypeVar("Found")
Given = ParamSpec("Given")


class Remembers:
    """An immutable object that keeps what functions marked `once` found of it.

    The findings are no part of its value: a copy (`dataclasses.replace`) starts without them.
    """

    __slots__ = ("_found",)
    _found: dict[Callable[..., object], Any]


def once(find: Callable[[Thing], Found]) -> Callable[[Thing], Found]:
    """A function of one object, of which the object keeps what it gave; it is not to be changed."""

    @wraps(find)
    def found(of: Thing) -> Found:
        try:
            return of._found[found]  # pyright: ignore[reportPrivateUsage]
        except (AttributeError, KeyError):
            pass
        result = find(of)
        tell(found, of, result)
        return result

    return found


def known(find: Callable[[Thing], Any], of: Thing) -> bool:
    """True when the object has what `find` gives of it."""
    return find in getattr(of, "_found", ())


def tell(find: Callable[[Thing], Found], of: Thing, found: Found) -> None:
    """Let an object have what `find` gives of it, which was found another way."""
    try:
        of._found[find] = found  # pyright: ignore[reportPrivateUsage]
    except AttributeError:
        object.__setattr__(of, "_found", {find: found})


def share(find: Callable[[Thing], Any], old: Thing, new: Thing) -> None:
    """Let `new` take over what `find` gave of `old`, if it was asked: it is the same of both."""
    if known(find, old):
        tell(find, new, find(old))


def same(find: Callable[Given, Found]) -> Callable[Given, Found]:
    """A function that gives one object for equal arguments, also to threads that ask at once."""
    lock, kept = RLock(), lru_cache(maxsize=4096)(find)

    @wraps(find)
    def found(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        with lock:
            return kept(*args, **kwargs)  # pyright: ignore[reportArgumentType]

    return found
