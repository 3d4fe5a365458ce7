"""A few kernels for many sizes: the choice from a table of times."""

import math
import random

import pytest

from tedsl.autotune.multi.kernel_set_cover import best_of, cover, serving, slowdown

EVEN = [1.0] * 4


def test_one_that_is_good_everywhere_is_enough():
    times = {0: [1.04, 1.04, 1.0, 1.0], 1: [1.0, 1.0, 2.0, 2.0]}
    assert cover(times, EVEN, 0.05, 4) == [0]
    assert cover(times, EVEN, 0.01, 4) == [0, 1]
    assert serving(times, [0, 1]) == [1, 1, 0, 0]


def test_weights_say_which_sizes_come_first():
    times = {0: [1.0, 2.0], 1: [2.0, 1.0]}
    assert cover(times, [1.0, 3.0], 0.05, 1) == [1]
    assert cover(times, [3.0, 1.0], 0.05, 1) == [0]
    assert slowdown(times, [0], [3.0, 1.0]) == pytest.approx(2 ** (1 / 4))


def test_what_does_not_run_somewhere_serves_the_rest():
    times = {0: [1.0, math.inf, 1.0, 1.0], 1: [3.0, 1.0, 3.0, 3.0]}
    chosen = cover(times, EVEN, 0.05, 4)
    assert sorted(chosen) == [0, 1]
    assert [chosen[place] for place in serving(times, chosen)] == [0, 1, 0, 0]


def test_too_few_kernels_give_the_least_mean():
    times = {
        0: [1.0, 3.0, 3.0, 3.0],
        1: [3.0, 1.0, 3.0, 3.0],
        2: [1.2, 1.2, 1.2, 1.2],
        3: [3.0, 3.0, 1.0, 1.0],
    }
    assert cover(times, EVEN, 0.05, 1) == [2]
    assert sorted(cover(times, EVEN, 0.05, 2)) == [2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_every_size_is_within_the_bound_or_the_count_is_used_up(seed: int):
    rng = random.Random(seed)
    times = {c: [rng.lognormvariate(0, 0.3) for _ in range(9)] for c in range(30)}
    weights = [rng.random() + 0.1 for _ in range(9)]
    best = best_of(times)
    for most in (2, 4, 9):
        chosen = cover(times, weights, 0.08, most)
        assert 1 <= len(chosen) <= most
        worst = max(min(times[c][n] for c in chosen) / best[n] for n in range(9))
        if most == 9:
            assert worst <= 1.08
        alone = [slowdown(times, [c], weights) for c in times]
        assert slowdown(times, chosen, weights) <= min(alone) + 1e-12
