"""A few kernels for many sizes: which of those that were timed, so that no size loses much.

Pure logic on a table of times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

Times = Mapping[int, Sequence[float]]
"""For each candidate its time at each size; infinite where it may not or does not run."""


def best_of(times: Times) -> list[float]:
    """The least time at each size."""
    return [min(column) for column in zip(*times.values(), strict=True)]


def slowdown(times: Times, chosen: Iterable[int], weights: Sequence[float]) -> float:
    """Geometric mean over the sizes of the time with the chosen candidates over the least time."""
    loss = _loss(times, list(chosen), weights, best_of(times))
    return math.exp(loss / sum(weights))


def cover(times: Times, weights: Sequence[float], within: float, most: int) -> list[int]:
    """Candidates of which at every size one is within `within` of the fastest; at most `most`.

    Greedy: always the candidate that brings the most weight of sizes within; of equal ones the one
    whose set has the least slowdown, then the earlier.  Where `most` are not enough, the set that
    loses least in the geometric mean is looked for instead, by adding and by exchanging.

    Returns:
        Candidates in the order of the weight they serve; each is the fastest of them somewhere.
    """
    best = best_of(times)
    near = {
        c: {n for n, t in enumerate(row) if t <= (1 + within) * best[n]} for c, row in times.items()
    }
    open_sizes = set(range(len(best)))
    chosen: list[int] = []
    while open_sizes and len(chosen) < most:
        gained = {c: sum(weights[n] for n in near[c] & open_sizes) for c in times}
        first = max(round(weight, 9) for weight in gained.values())
        equal = [c for c in times if round(gained[c], 9) == first]
        chosen.append(min(equal, key=partial(_with, times, weights, best, tuple(chosen))))
        open_sizes -= near[chosen[-1]]
    if open_sizes:
        chosen = _least_loss(times, weights, best, most)
    return _used(times, chosen, weights)


def serving(times: Times, chosen: Sequence[int]) -> list[int]:
    """For each size the place in `chosen` of the fastest there."""
    count = len(next(iter(times.values())))
    return [min(range(len(chosen)), key=lambda p: (times[chosen[p]][n], p)) for n in range(count)]


def _used(times: Times, chosen: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Those that are the fastest somewhere, by the weight they serve."""
    served = dict.fromkeys(chosen, 0.0)
    for size, place in enumerate(serving(times, chosen)):
        served[chosen[place]] += weights[size]
    return sorted((c for c in served if served[c]), key=lambda c: (-round(served[c], 9), c))


def _loss(
    times: Times, chosen: Sequence[int], weights: Sequence[float], best: Sequence[float]
) -> float:
    """The weighted sum of logarithms of slowdowns; a size that none serves counts as a factor of a
    million."""
    total = 0.0
    for n, (weight, least) in enumerate(zip(weights, best, strict=True)):
        ratio = min(times[c][n] for c in chosen) / least if math.isfinite(least) else math.inf
        total += weight * math.log(min(ratio, 1e6))
    return total


def _with(
    times: Times,
    weights: Sequence[float],
    best: Sequence[float],
    chosen: tuple[int, ...],
    more: int,
) -> tuple[float, int]:
    """How good a set is with one more; the earlier one of equal ones."""
    return _loss(times, [*chosen, more], weights, best), more


def _least_loss(
    times: Times, weights: Sequence[float], best: Sequence[float], most: int
) -> list[int]:
    """At most `most` candidates with a small loss: added one by one, then exchanged while that
    helps."""
    chosen: list[int] = []
    while len(chosen) < min(most, len(times)):
        left = [c for c in times if c not in chosen]
        chosen.append(min(left, key=lambda c: (_loss(times, [*chosen, c], weights, best), c)))
    now = _loss(times, chosen, weights, best)
    for _ in range(100):
        ways = [
            [*chosen[:place], c, *chosen[place + 1 :]]
            for place in range(len(chosen))
            for c in times
            if c not in chosen
        ]
        found = min(ways, key=lambda way: _loss(times, way, weights, best), default=chosen)
        loss = _loss(times, found, weights, best)
        if not loss < now - 1e-9:
            break
        chosen, now = found, loss
    return chosen
