"""Candidates as rows of numbers for the models: ordinal, with octaves for sizes.

A number is its logarithm where the choices are positive and span octaves, a bool 0 or 1, a tuple of
numbers one column each, anything else its place among the choices.  Where sizes are not all powers
of two, a second column counts the factors of two: 96 is nearer to 100 than to 64, but divides like
neither.  Names are those of the knobs, never of operators.  Imports `space` and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tedsl.autotune.search_space.space import Choice, Knob


def encode_knobs(knobs: Sequence[Knob]) -> dict[str, float]:
    """Column name to value for every knob met; absent knobs have no column."""
    return {name: value for knob in knobs for name, value in encode_choice(knob)}


def encode_choice(knob: Knob) -> Iterator[tuple[str, float]]:
    """The columns of one knob."""
    chosen = knob.chosen
    if isinstance(chosen, tuple) and all(is_numbers(c, len(chosen)) for c in knob.choices):
        for place, value in enumerate(chosen):
            column = [c[place] for c in knob.choices if isinstance(c, tuple)]
            yield from _number(f"{knob.name}[{place}]", value, column)
    elif all(isinstance(c, (bool, int, float)) for c in knob.choices):
        yield from _number(knob.name, chosen, knob.choices)
    else:
        yield knob.name, float(place_of(chosen, knob.choices))


def is_numbers(choice: Choice, length: int) -> bool:
    """True for a tuple of `length` numbers."""
    return (
        isinstance(choice, tuple)
        and len(choice) == length
        and all(isinstance(value, (int, float)) for value in choice)
    )


def place_of(chosen: Choice, choices: Sequence[Choice]) -> int:
    """The position of `chosen` among `choices`, where True is not 1."""
    for place, choice in enumerate(choices):
        if choice == chosen and type(choice) is type(chosen):
            return place
    return -1


def _number(name: str, value: Choice, choices: Sequence[Choice]) -> Iterator[tuple[str, float]]:
    numbers = [float(c) for c in choices if isinstance(c, (bool, int, float))]
    own = float(value) if isinstance(value, (bool, int, float)) else math.nan
    sizes = [n for n in numbers if n > 0]
    if len(sizes) < len(numbers) or max(sizes) < 4 * min(sizes):
        yield name, own
        return
    yield name, math.log2(own)
    whole = [int(n) for n in sizes if n.is_integer()]
    if len(whole) == len(sizes) and any(n & (n - 1) for n in whole):
        yield f"{name}:twos", float(twos(int(own)))


def twos(number: int) -> int:
    """How many times two divides a positive number."""
    return (number & -number).bit_length() - 1
