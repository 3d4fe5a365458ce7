"""A machine with noise: samples of kernels taken in turn, forth and back, under models of what
real clocks do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Rng = np.random.Generator
Model = Callable[[Rng, int, int], np.ndarray]
"""Factors on the true time: (generator, samples, kernels) to an array of samples by kernels, in
which the samples of one row were taken one after another."""


def tails(rng: Rng, count: int, kernels: int) -> np.ndarray:
    """1% of scatter, and one sample in twenty that something else on the machine got into."""
    noise = np.exp(rng.normal(0, 0.01, (count, kernels)))
    hit = rng.random((count, kernels)) < 0.05
    return noise * (1 + hit * rng.exponential(0.5, (count, kernels)))


def drift(rng: Rng, count: int, kernels: int) -> np.ndarray:
    """1% of scatter on a clock that falls by a tenth and swings by 3% meanwhile."""
    steps = np.linspace(0, 1, count * kernels).reshape(count, kernels)
    slow = 1 + 0.1 * steps + 0.03 * np.sin(9 * steps + rng.uniform(0, 6))
    return slow * np.exp(rng.normal(0, 0.01, (count, kernels)))


def two_clocks(rng: Rng, count: int, kernels: int) -> np.ndarray:
    """A clock that jumps between two speeds 12% apart, every thirtieth sample or so."""
    flips = rng.random(count * kernels) < 1 / 30
    state = np.cumsum(flips) % 2
    noise = np.exp(rng.normal(0, 0.008, (count, kernels)))
    return noise * (1 + 0.12 * state.reshape(count, kernels))


def moods(rng: Rng, count: int, kernels: int) -> np.ndarray:
    """Each kernel has spells in which it is a little slower: neighbouring rounds are alike."""
    level = np.zeros((count, kernels))
    for place in range(1, count):
        level[place] = 0.5 * level[place - 1] + rng.normal(0, 0.008, kernels)
    return np.exp(level + rng.normal(0, 0.005, (count, kernels)))


def addresses(rng: Rng, count: int, kernels: int) -> np.ndarray:
    """Where the arrays of each happen to lie makes up to 0.2% of difference."""
    place = 1 + rng.uniform(-0.002, 0.002, kernels)
    return place * np.exp(rng.normal(0, 0.006, (count, kernels)))


MODELS: tuple[Model, ...] = (tails, drift, two_clocks, moods, addresses)


class Machine:
    """Samples of kernels with known times, all of them drawn beforehand."""

    def __init__(self, model: Model, times: Sequence[float], seed: int, most: int = 256) -> None:
        rng = np.random.default_rng(seed)
        factors = model(rng, most, len(times))
        factors[1::2] = factors[1::2, ::-1]  # every other round runs backwards
        self.samples = factors * np.asarray(times)
        self.taken = 0

    def take(self, places: Sequence[int], rounds: int) -> list[list[float]]:
        """The next samples of some kernels."""
        chosen = self.samples[self.taken : self.taken + rounds]
        self.taken += rounds
        return [[float(x) for x in chosen[:, place]] for place in places]
