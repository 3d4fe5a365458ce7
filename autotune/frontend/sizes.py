"""Which sizes to tune for: a list, a list with weights, or ranges that are drawn from.

    te.autotune(expr, sizes=[{"m": 128, "n": 512}, ({"m": 4096, "n": 512}, 10.0)])
    te.autotune(expr, sizes={"m": te.sizes.log_uniform(1, 4096), "n": 512})
    te.autotune(expr, sizes=te.sizes.draw({"m": te.sizes.uniform(64, 1024, multiple=64)}, 12))

Pure logic: imports only `errors` and the nodes of expressions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from tedsl.errors import TuneError
from tedsl.expr.nodes import Var

DRAWN = 8
"""How many sizes ranges stand for when it is not said."""
_STEPS = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


@dataclass(frozen=True, slots=True)
class Range:
    """A size that varies between two bounds, both included.

    Attributes:
        low, high: the bounds.
        multiple: sizes are multiples of it.
        logarithmic: as many between 1 and 2 as between 512 and 1024.
    """

    low: int
    high: int
    multiple: int = 1
    logarithmic: bool = False

    def __post_init__(self) -> None:
        first, last = -(-self.low // self.multiple), self.high // self.multiple
        if self.multiple < 1 or self.low < 1 or first > last:
            raise TuneError(
                f"there is no size between {self.low} and {self.high}",
                facts=[("multiple", str(self.multiple))],
                hint="give bounds of at least 1, the lower one first, with a multiple between them",
            )

    def at(self, share: float) -> int:
        """The size below which lies this share, between 0 and 1, of all."""
        first, last = -(-self.low // self.multiple), self.high // self.multiple
        if self.logarithmic:
            step = round(math.exp(math.log(first) + share * (math.log(last) - math.log(first))))
        else:
            step = round(first + share * (last - first))
        return min(last, max(first, step)) * self.multiple


Size: TypeAlias = Mapping[str, int]
OneSize: TypeAlias = "Mapping[str, int] | Mapping[Var, int] | Mapping[str | Var, int]"
Ranges: TypeAlias = (
    "Mapping[str, int | Range] | Mapping[Var, int | Range] | Mapping[str | Var, int | Range]"
)
Sizes: TypeAlias = "Ranges | Sequence[OneSize | tuple[OneSize, float]]"


def uniform(low: int, high: int, *, multiple: int = 1) -> Range:
    """Sizes from `low` to `high`, all equally frequent."""
    return Range(low, high, multiple)


def log_uniform(low: int, high: int, *, multiple: int = 1) -> Range:
    """Sizes from `low` to `high`, every octave equally frequent."""
    return Range(low, high, multiple, logarithmic=True)


def draw(ranges: Ranges, count: int = DRAWN) -> list[dict[str, int]]:
    """Sizes spread evenly over ranges: the points of a Halton sequence, the same at every call.

    Args:
        ranges: for each size its range, or its only value.
        count: how many; fewer come when the ranges do not hold so many.
    """
    if count < 1:
        raise TuneError(f"count={count} sizes are none", hint="give a count of at least 1")
    varying = [name_of(key) for key, value in ranges.items() if isinstance(value, Range)]
    if len(varying) > len(_STEPS):
        raise TuneError(
            f"{len(varying)} ranges are too many to be drawn from",
            facts=[("allowed", f"at most {len(_STEPS)}")],
            hint="give a list of sizes instead",
        )
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for number in range(8 * count):
        if len(found) == count:
            break
        size: dict[str, int] = {}
        for key, value in ranges.items():
            if isinstance(value, Range):
                place = varying.index(name_of(key))
                size[varying[place]] = value.at(_share(number, count, place))
            else:
                size[name_of(key)] = int(value)
        found.setdefault(tuple(size.values()), size)
    return list(found.values())


def weighted(sizes: Sizes) -> list[tuple[dict[str, int], float]]:
    """Each size with its weight; weights add up to 1.

    Raises:
        TuneError: no size, one given twice, different names, or a weight that is not above 0.
    """
    listed: list[tuple[dict[str, int], float]] = []
    if not isinstance(cast("object", sizes), Iterable):
        raise TuneError(
            f"sizes={sizes!r} is no list of sizes", hint="write sizes=[{'n': 1024}, {'n': 4096}]"
        )
    if isinstance(sizes, Mapping):
        listed = [(size, 1.0) for size in draw(sizes)]
    else:
        for item in sizes:
            size, weight = item if isinstance(item, tuple) else (item, 1.0)
            listed.append(({name_of(key): int(value) for key, value in size.items()}, weight))
    if not listed:
        raise TuneError("sizes=[] names no size", hint="give at least one: sizes=[{'n': 1024}]")
    names = set(listed[0][0])
    seen: set[tuple[int, ...]] = set()
    for size, weight in listed:
        point = tuple(size[name] for name in sorted(size))
        if set(size) != names or point in seen or not weight > 0:
            why = "has other names" if set(size) != names else "is given twice"
            raise TuneError(
                f"the size {size} {why if weight > 0 else f'has the weight {weight}'}",
                facts=[("first", str(listed[0][0]))],
                hint="give every size once, with the same names, and a weight above 0 if any",
            )
        seen.add(point)
    total = sum(weight for _, weight in listed)
    return [(size, weight / total) for size, weight in listed]


def are_many(sizes: object) -> bool:
    """True for several sizes or ranges; False for the values of one size."""
    if isinstance(sizes, Mapping):
        values = cast("Iterable[object]", sizes.values())
        return any(isinstance(value, Range) for value in values)
    return True


def one_size(sizes: OneSize | Sizes) -> dict[str, int]:
    """The values of one size.

    Raises:
        TuneError: there are several.
    """
    if isinstance(sizes, Mapping) and not are_many(sizes):
        return {name_of(key): int(cast("int", value)) for key, value in sizes.items()}
    raise TuneError(
        "several sizes were given where one is tuned for",
        hint="te.autotune(..., sizes=[...]) makes a dispatcher for several",
    )


def name_of(key: str | Var) -> str:
    """The name of a size."""
    return key.name if isinstance(key, Var) else key


def spread(sizes: Sequence[Size]) -> list[int]:
    """An order in which each size is far from those before it; the most central one first."""
    points = [tuple(math.log(max(1, v)) for _, v in sorted(size.items())) for size in sizes]
    near = [[math.dist(a, b) for b in points] for a in points]
    taken = [min(range(len(points)), key=lambda n: (sum(near[n]), n))]
    while len(taken) < len(points):
        left = [n for n in range(len(points)) if n not in taken]
        taken.append(max(left, key=lambda n: (min(near[n][t] for t in taken), -n)))
    return taken


def _share(number: int, count: int, place: int) -> float:
    """Between 0 and 1: both ends and evenly between for the first range, digits in reverse for
    others."""
    if place == 0:
        return (number % count) / max(1, count - 1)
    base, share, part, rest = _STEPS[place - 1], 0.0, 1.0, number + 1
    while rest:
        part /= base
        share += part * (rest % base)
        rest //= base
    return share


__all__ = [
    "DRAWN",
    "Range",
    "are_many",
    "draw",
    "log_uniform",
    "name_of",
    "one_size",
    "spread",
    "uniform",
    "weighted",
]
