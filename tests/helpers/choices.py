"""What generators draw: numbers, items, orders and sets.  A generator is written once and drawn by
hypothesis in the tests, or, where that is not installed and speed counts, by a `Recorder`.

A recorder notes each draw as a number from 0, and 0 is the simplest: the same numbers make the same
thing again, and smaller or fewer numbers a simpler one (`shrinking`).
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any


class Choice:
    """Something to be drawn."""

    def taken(self, below: Callable[[int], int]) -> Any:
        """One value; `below(n)` is a number from 0 to n - 1."""
        raise NotImplementedError

    def strategy(self) -> Any:
        """The same for hypothesis."""
        raise NotImplementedError


Draw = Callable[[Choice], Any]


@dataclass(frozen=True, slots=True)
class _Integers(Choice):
    low: int
    high: int

    def taken(self, below: Callable[[int], int]) -> Any:
        return self.low + below(self.high - self.low + 1)

    def strategy(self) -> Any:
        return _hypothesis().integers(self.low, self.high)


@dataclass(frozen=True, slots=True)
class _Sampled(Choice):
    items: Sequence[Any]

    def taken(self, below: Callable[[int], int]) -> Any:
        return self.items[below(len(self.items))]

    def strategy(self) -> Any:
        return _hypothesis().sampled_from(self.items)


@dataclass(frozen=True, slots=True)
class _Lists(Choice):
    each: Choice
    low: int
    high: int
    unique: bool

    def taken(self, below: Callable[[int], int]) -> Any:
        size = self.low + below(self.high - self.low + 1)
        found = [self.each.taken(below) for _ in range(size)]
        return set(found) if self.unique else found

    def strategy(self) -> Any:
        kind = _hypothesis().sets if self.unique else _hypothesis().lists
        return kind(self.each.strategy(), min_size=self.low, max_size=self.high)


@dataclass(frozen=True, slots=True)
class _Permutations(Choice):
    items: list[Any]

    def taken(self, below: Callable[[int], int]) -> Any:
        left = list(self.items)
        return [left.pop(below(len(left))) for _ in self.items]

    def strategy(self) -> Any:
        return _hypothesis().permutations(self.items)


@dataclass(frozen=True, slots=True)
class _Composite(Choice):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]

    def taken(self, below: Callable[[int], int]) -> Any:
        return self.function(lambda choice: choice.taken(below), *self.args, **self.options)

    def strategy(self) -> Any:
        def drawn(draw: Any) -> Any:
            return self.function(drawing(draw), *self.args, **self.options)

        return _hypothesis().composite(drawn)()


def _hypothesis() -> Any:
    """Loaded only where a test draws: a machine with a GPU may not have it."""
    return importlib.import_module("hypothesis.strategies")


def integers(low: int, high: int) -> Choice:
    """A number from `low` to `high`, both included."""
    return _Integers(low, high)


def booleans() -> Choice:
    """False or True."""
    return _Sampled((False, True))


def sampled_from(items: Sequence[Any]) -> Choice:
    """One of the items, the first of which is the simplest."""
    return _Sampled(items)


def permutations(items: Sequence[Any]) -> Choice:
    """The items in any order."""
    return _Permutations(list(items))


def lists(each: Choice, *, min_size: int = 0, max_size: int) -> Choice:
    """As many as drawn."""
    return _Lists(each, min_size, max_size, unique=False)


def sets(each: Choice, *, min_size: int = 0, max_size: int) -> Choice:
    """At most as many as drawn, each once."""
    return _Lists(each, min_size, max_size, unique=True)


def composite(function: Callable[..., Any]) -> Callable[..., Choice]:
    """Make a function of `draw` and more a function of the rest, whose result is drawn."""

    @wraps(function)
    def made(*args: Any, **options: Any) -> Choice:
        return _Composite(function, args, options)

    return made


def drawing(draw: Callable[[Any], Any]) -> Draw:
    """How generators draw, from how hypothesis does."""
    return lambda choice: draw(choice.strategy())


def event(text: str) -> None:
    """Count something in hypothesis' statistics, where it runs."""
    module = sys.modules.get("hypothesis")
    if module is not None and module.currently_in_test_context():
        module.event(text)


class Recorder:
    """Draws from a generator of random numbers, or what is given, and notes each number drawn.

    Args:
        seed: of the generator.
        given: numbers to draw instead; after the last of them comes 0.
    """

    def __init__(self, seed: int | str = 0, given: Sequence[int] | None = None) -> None:
        self.random = random.Random(seed)
        self.given = given
        self.noted: list[int] = []

    def __call__(self, choice: Choice) -> Any:
        """Draw."""
        return choice.taken(self.below)

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        if count < 1:
            raise ValueError("there is nothing to draw from")
        place = len(self.noted)
        if self.given is None:
            found = self.random.randrange(count)
        else:
            found = min(self.given[place], count - 1) if place < len(self.given) else 0
        self.noted.append(found)
        return found
