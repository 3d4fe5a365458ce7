"""The candidates that a search knows of, as rows of one matrix.

`Listed` holds a whole space that can be listed, and finds neighbours among its points in one step;
`Drawn` holds what was drawn from a define-by-run space so far, and grows.  Strategies name
candidates by row and never see the space.  Imports `space`, `encoding` and `recorded_space`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tedsl.autotune.search.encoding import encode_choice, encode_knobs
from tedsl.autotune.search.simulate.recorded_space import Points
from tedsl.autotune.search_space.space import (
    MANY_KNOBS,
    Candidate,
    Decisions,
    Knob,
    Rejected,
    difference,
)

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Features: TypeAlias = Mapping[str, float]
"""What is known of a candidate's program before it runs, by name."""
Describe: TypeAlias = Callable[[Sequence[Candidate], "float | None"], Sequence[Features | None]]
"""Features of several candidates, as far as they are known by a time (`time.monotonic`); None for
those that have none."""

PREDICTED = "seconds"
"""The feature that is a model's estimate of the time itself."""
LISTED_MOST = 200_000
"""Spaces of more points are drawn from, not listed."""
FIRST_POOL = 96
POOL_STEP = 16
"""How many candidates are drawn for the models to rank, at first and then for each batch."""
LEAST_POOL = 8

CENTRES = 3
"""How many of the fastest have their surroundings ranked."""
NEAR_MOST = 16
"""How many neighbours of a candidate are drawn for the models to rank."""


class SearchSpace(Protocol):
    """What the search needs of a space."""

    def default(self) -> Candidate:
        """The candidate of no decisions."""
        ...

    def candidate(self, decisions: Decisions, origin: str) -> Candidate | Rejected:
        """What decisions lead to."""
        ...

    def sample(self, rng: random.Random) -> Candidate | Rejected:
        """A random candidate."""
        ...

    def mutate(self, parent: Candidate, rng: random.Random) -> Candidate | Rejected:
        """A random change."""
        ...

    def draws(
        self, parents: Sequence[Candidate | None], rng: random.Random
    ) -> Iterator[Candidate | Rejected]:
        """For each parent a random change of it, for each None a random candidate."""
        ...

    def cross(self, a: Candidate, b: Candidate, rng: random.Random) -> Candidate | Rejected:
        """Something of both."""
        ...

    def neighbours(self, centre: Candidate) -> Iterator[Candidate | Rejected]:
        """Every change of one knob, nearest choices first."""
        ...

    def look_around(self, centres: Sequence[Candidate], count: int) -> None:
        """The first `count` neighbours of each are going to be asked for."""
        ...

    def points(self) -> Points | None:
        """The whole space, where it can be listed."""
        ...


class Catalogue:
    """Candidates by row, with their columns; what is drawn from the space and is new becomes a row.

    Attributes:
        rejected: what was drawn and is not legal, each once.
        until: when nothing more is drawn or described, on the clock of `time.monotonic`; None
            leaves all the time there is.
    """

    def __init__(self, space: SearchSpace, describe: Describe | None) -> None:
        self.space = space
        self.describe = describe
        self.until: float | None = None
        self.rejected: list[Rejected] = []
        self._refused: set[str] = set()
        self._rows: dict[str, int] = {}
        self._candidates: list[Candidate] = []
        self._table = Table()

    def __len__(self) -> int:
        return len(self._candidates)

    @property
    def is_late(self) -> bool:
        """True when the time to draw is over."""
        return self.until is not None and time.monotonic() >= self.until

    def add(self, found: Candidate | Rejected) -> int | None:
        """The row of `found`, a new one if need be; None when it was refused."""
        if isinstance(found, Rejected):
            key = repr(sorted(found.decisions.items()))
            if key not in self._refused:
                self._refused.add(key)
                self.rejected.append(found)
            return None
        row = self._rows.get(found.identity)
        if row is None:
            row = self._rows[found.identity] = len(self._candidates)
            self._candidates.append(found)
        return row

    def candidate(self, row: int, origin: str) -> Candidate:
        """The candidate of a row; `origin` is noted where the candidate is listed."""
        return self._candidates[row]

    def columns(self) -> Floats:
        """Knobs and features of all rows, between 0 and 1; NaN where absent."""
        fresh = self._candidates[self._table.count :]
        if fresh:
            known: Sequence[Features | None] = [None] * len(fresh)
            if self.describe is not None and not self.is_late:
                known = self.describe(fresh, self.until)
            self._table.add([encode_knobs(candidate.knobs) for candidate in fresh], known)
        return self._table.scaled()

    def predicted(self) -> Floats:
        """Logarithm of the time that a model predicts for each row; NaN where it does not."""
        self.columns()
        return self._table.predicted()

    def draw(self, rng: random.Random) -> int | None:
        """A random row; None when there is no time for it."""
        return None if self.is_late else self.add(self.space.sample(rng))

    def several(self, rng: random.Random, count: int) -> list[int | None]:
        """Random rows; fewer when there is no time for more."""
        return self._take([None] * count, rng)

    def _take(self, parents: Sequence[Candidate | None], rng: random.Random) -> list[int | None]:
        """Rows drawn anew, or changed at random from `parents`, while there is time."""
        found: list[int | None] = []
        drawn = self.space.draws(parents, rng)
        while not self.is_late and (one := next(drawn, None)) is not None:
            found.append(self.add(one))
        return found

    def vary(self, row: int, rng: random.Random) -> int | None:
        """A random change of a row."""
        return None if self.is_late else self.add(self.space.mutate(self._candidates[row], rng))

    def cross(self, a: int, b: int, rng: random.Random) -> int | None:
        """A mixture of two rows."""
        if self.is_late:
            return None
        return self.add(self.space.cross(self._candidates[a], self._candidates[b], rng))

    def near(self, row: int) -> Iterator[int]:
        """Rows that differ in one knob, nearest choices first, while there is time."""
        others = self.space.neighbours(self._candidates[row])
        while not self.is_late and (found := next(others, None)) is not None:
            known = self.add(found)
            if known is not None:
                yield known

    def wide(self, row: int) -> Sequence[int]:
        """The nearest rows that differ in one knob, as many as are worth drawing for a ranking."""
        return list(islice(self.near(row), self.pool(NEAR_MOST)))

    def unlike(self, row: int, others: Sequence[int]) -> int:
        """In how many knobs a row differs at least from each of the others."""
        own = self._candidates[row]
        return min((difference(own, self._candidates[o]) for o in others), default=0)

    def grow(self, centres: Sequence[int], rng: random.Random, most: int | None = None) -> None:
        """Draw more candidates for the models to rank, half of them around `centres`; `most` bounds
        how many are drawn."""
        first, step = self.pool(FIRST_POOL), self.pool(POOL_STEP)
        want = step if len(self) >= first else first - len(self)
        want = want if most is None else min(want, most)
        around = centres[:CENTRES]
        if around and not self.is_late:
            self.space.look_around([self._candidates[c] for c in around], self.pool(NEAR_MOST))
        for centre in around:
            self.wide(centre)
        self._take(
            [
                self._candidates[centres[place // 2 % len(centres)]]
                if centres and place % 2
                else None
                for place in range(want)
            ],
            rng,
        )

    def pool(self, count: int) -> int:
        """How many candidates to draw where schedules of few knobs have `count`: each takes as much
        longer as there are more."""
        knobs = len(self._candidates[0].knobs) if self._candidates else 0
        if knobs <= MANY_KNOBS:
            return count
        return min(count, max(LEAST_POOL, count * MANY_KNOBS // knobs))

    def everything(self, tried: Sequence[int]) -> Iterator[int]:
        """Every row that can be reached, so that a small space is covered to the last point."""
        centres = list(tried)
        known = set(centres)
        for centre in centres:
            for row in self.near(centre):
                if row not in known:
                    known.add(row)
                    centres.append(row)
                    yield row


class Listed(Catalogue):
    """All points of a space.

    Every choice has a random number; a point is looked up by the sum over its choices.
    """

    def __init__(self, space: SearchSpace, points: Points, describe: Describe | None) -> None:
        super().__init__(space, describe)
        self.points = points
        self.codes = points.codes.astype(np.int64)
        numbers = np.random.default_rng(20)
        self._terms = [
            numbers.integers(0, 2**63, size=len(choices) + 1, dtype=np.uint64)
            for choices in points.choices
        ]  # the last of each stands for an absent knob, whose code is -1
        self._keys = np.zeros(len(self.codes), np.uint64)
        for column, terms in enumerate(self._terms):
            self._keys += terms[self.codes[:, column]]
        self._order = np.argsort(self._keys)
        self._sorted = self._keys[self._order]
        self._scaled: Floats | None = None
        self._near: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.codes)

    def add(self, found: Candidate | Rejected) -> int | None:
        if isinstance(found, Rejected):
            return super().add(found)
        key = np.uint64(0)
        taken = {knob.name: knob for knob in found.knobs}
        total = [key]
        for name, choices, terms in zip(
            self.points.names, self.points.choices, self._terms, strict=True
        ):
            place = choices.index(taken[name].chosen) if name in taken else -1
            total.append(terms[place])
        row = self._find(np.array([np.sum(np.array(total, np.uint64), dtype=np.uint64)]))
        return int(row[0])

    def candidate(self, row: int, origin: str) -> Candidate:
        return Candidate(self.points.knobs(row), origin=origin)

    def columns(self) -> Floats:
        if self._scaled is None:
            named: dict[str, Floats] = {}
            for place, (name, choices) in enumerate(
                zip(self.points.names, self.points.choices, strict=True)
            ):
                rows = [dict(encode_choice(Knob(name, choices, choice))) for choice in choices]
                for key in rows[0]:
                    values = np.array([*(row[key] for row in rows), np.nan])
                    named[key] = values[self.codes[:, place]]  # the last for -1, an absent knob
            self._table.fill(named)
            if self.describe:
                everyone = [self.candidate(row, "listed") for row in range(len(self))]
                self._table.note(self.describe(everyone, self.until))
            self._scaled = self._table.scaled()
        return self._scaled

    def draw(self, rng: random.Random) -> int | None:
        return rng.randrange(len(self))

    def several(self, rng: random.Random, count: int) -> list[int | None]:
        return [self.draw(rng) for _ in range(count)]

    def vary(self, row: int, rng: random.Random) -> int | None:
        near = self._neighbours(row)
        if not near:
            return None
        # twice in three among the nearer half, whose order is by distance
        return near[rng.randrange(len(near) if rng.random() < 0.35 else (len(near) + 1) // 2)]

    def cross(self, a: int, b: int, rng: random.Random) -> int | None:
        terms = [
            own[self.codes[a if rng.random() < 0.5 else b, column]]
            for column, own in enumerate(self._terms)
        ]
        found = self._find(np.array([np.sum(np.array(terms, np.uint64), dtype=np.uint64)]))
        return int(found[0]) if len(found) else None

    def near(self, row: int) -> Iterator[int]:
        yield from self._neighbours(row)

    def wide(self, row: int) -> Sequence[int]:
        deltas = self._deltas(row)
        keys = [self._keys[row] + delta for delta in deltas]
        for place, delta in enumerate(deltas):
            keys.extend(
                (self._keys[row] + delta[:, None] + other[None, :]).ravel()
                for other in deltas[place + 1 :]
            )
        found = np.unique(self._find(np.concatenate(keys)))
        return [int(other) for other in found if other != row]

    def unlike(self, row: int, others: Sequence[int]) -> int:
        if not others:
            return 0
        return int((self.codes[list(others)] != self.codes[row]).sum(axis=1).min())

    def grow(self, centres: Sequence[int], rng: random.Random, most: int | None = None) -> None:
        """Nothing to draw: all points are here."""

    def everything(self, tried: Sequence[int]) -> Iterator[int]:
        yield from range(len(self))

    def _deltas(self, row: int) -> list[npt.NDArray[np.uint64]]:
        """What each other choice of each knob changes the key by."""
        return [
            np.delete(terms, code) - terms[code]
            for terms, code in zip(self._terms, self.codes[row], strict=True)
        ]

    def _neighbours(self, row: int) -> list[int]:
        known = self._near.get(row)
        if known is None:
            keys = np.concatenate([self._keys[row] + delta for delta in self._deltas(row)])
            found = self._find(keys)
            steps = np.abs(self.codes[found] - self.codes[row]).sum(axis=1)
            order = np.lexsort((found, steps))
            known = self._near[row] = [int(other) for other in found[order]]
        return known

    def _find(self, keys: npt.NDArray[np.uint64]) -> Ints:
        """Rows of those keys that are there."""
        places = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return self._order[places[self._sorted[places] == keys]]


class Table:
    """Rows of named numbers that may gain columns, and their common scale."""

    def __init__(self) -> None:
        self.count = 0
        self._names: dict[str, int] = {}
        self._predicted: list[float] = []
        self._dense = np.empty((0, 0))
        self._scale: Floats | None = None

    def add(self, rows: Sequence[Features], known: Sequence[Features | None]) -> None:
        """Append rows: their knobs, and their features."""
        self.count += len(rows)
        self._widen([name for row in rows for name in row])
        for place, row in enumerate(rows, self.count - len(rows)):
            for name, value in row.items():
                self._dense[place, self._names[name]] = value
        self.note(known)

    def fill(self, named: Mapping[str, Floats]) -> None:
        """The knob columns of all rows at once."""
        self.count = max((len(values) for values in named.values()), default=0)
        self._widen(named)
        for name, values in named.items():
            self._dense[:, self._names[name]] = values
        self._scale = None

    def note(self, known: Sequence[Features | None]) -> None:
        """The features of the last rows."""
        self._widen([f"of {key}" for features in known for key in features or {}])
        for place, features in enumerate(known, self.count - len(known)):
            for key, value in (features or {}).items():
                self._dense[place, self._names[f"of {key}"]] = value
            estimate = (features or {}).get(PREDICTED, 0.0)
            self._predicted.append(float(np.log(estimate)) if estimate > 0 else np.nan)
        self._scale = None

    def _widen(self, names: Iterable[str]) -> None:
        """Room for all rows, and for columns of those names."""
        for name in names:
            self._names.setdefault(name, len(self._names))
        old = self._dense
        self._dense = np.full((self.count, len(self._names)), np.nan)
        self._dense[: old.shape[0], : old.shape[1]] = old

    def predicted(self) -> Floats:
        """The logarithm of the predicted time of each row, NaN where there is none."""
        found = np.full(self.count, np.nan)
        if self._predicted:
            found[-len(self._predicted) :] = self._predicted
        return found

    def scaled(self) -> Floats:
        """The rows, every column from 0 to 1; features that span octaves by their logarithm."""
        if self._scale is None:
            self._scale = self._to_unit(self._dense)
        return self._scale

    def _to_unit(self, dense: Floats) -> Floats:
        scaled = dense.copy()
        for name, column in self._names.items():
            values = scaled[:, column]
            known = values[np.isfinite(values)]
            if not len(known):
                continue
            if name.startswith("of ") and known.min() >= 0 and known.max() > 8 * (known.min() + 1):
                values, known = np.log2(values + 1), np.log2(known + 1)
            low, high = known.min(), known.max()
            scaled[:, column] = (values - low) / (high - low) if high > low else 0.0
        return scaled


def catalogue_of(space: SearchSpace, describe: Describe | None) -> Catalogue:
    """All points of a space that can be listed, else those drawn from it."""
    points = space.points()
    if points is not None and len(points.codes) <= LISTED_MOST:
        return Listed(space, points, describe)
    return Catalogue(space, describe)
