"""The search on recorded spaces: near the best within the stated number of evaluations.

A few seeds here; `tests/benchmarks/search_replay.py` runs fifty and draws the curves.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from replaying import SPACES, STRATEGIES, WITHOUT_TREES, figures, replay

from tedsl.autotune.search import boosted_trees
from tedsl.autotune.search.portfolio import PRIORS
from tedsl.autotune.search.simulate.recorded_space import RecordedSpace, read_space
from tedsl.autotune.tuner import DEPTH

FILES = sorted(path.name for path in SPACES.glob("*.csv.gz"))
HARD = ("convolution_milo_MI250X.csv.gz", "gemm_RTX_3060_laptop.csv.gz")
OURS = ("attention.csv.gz", "gemm.csv.gz", "softmax.csv.gz")
LOADED: dict[str, RecordedSpace] = {}


def space_of(name: str) -> RecordedSpace:
    if name not in LOADED:
        LOADED[name] = read_space(SPACES / name)
    return LOADED[name]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("depth", [1, DEPTH])
def test_near_the_best_within_400_evaluations(name: str, depth: int):
    runs = [replay(space_of(name), s, depth=depth, target=1.05) for s in range(4)]
    found = figures(runs)
    assert found["success"] == 1.0
    assert found["median"] <= 200


@pytest.mark.parametrize("name", OURS)
def test_within_3_percent_after_48_and_1_after_120(name: str):
    runs = [replay(space_of(name), seed, depth=DEPTH, trials=120) for seed in range(4)]
    assert np.median([run.after(48) for run in runs]) <= 1.03
    assert np.median([run.after(120) for run in runs]) <= 1.01


@pytest.mark.parametrize("name", FILES)
def test_numpy_alone_will_do(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(boosted_trees, "lightgbm", lambda: None)
    runs = [replay(space_of(name), s, strategies=WITHOUT_TREES, target=1.05) for s in (7, 8)]
    assert figures(runs)["success"] == 1.0


def means_after_100(first: str, seeds: Sequence[int]) -> list[float]:
    """For `first`, random and greedy local search: the mean logarithm of the ratio to the best."""

    def after_100(strategies: Mapping[str, float], name: str) -> float:
        runs = [replay(space_of(name), seed, strategies=strategies, trials=100) for seed in seeds]
        return float(np.mean(np.log([run.after(100) for run in runs])))

    labels = (first, "random", "greedy local search")
    return [float(np.mean([after_100(STRATEGIES[x][0], n) for n in HARD])) for x in labels]


@pytest.mark.skipif(not boosted_trees.installed(), reason="LightGBM is not installed")
def test_better_than_random_and_than_greedy_local_search():
    portfolio, random, greedy = means_after_100("portfolio", range(1, 9))
    assert portfolio < min(0.5 * random, greedy)


def test_better_than_both_without_trees(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(boosted_trees, "lightgbm", lambda: None)
    portfolio, random, greedy = means_after_100("portfolio without trees", range(1, 9))
    assert portfolio < min(0.5 * random, greedy)


def test_the_same_seed_gives_the_same_search():
    one, two = (replay(space_of(HARD[0]), 3, trials=80, depth=DEPTH) for _ in range(2))
    assert one == two


def test_a_search_that_promises_little_ends():
    space = space_of(OURS[0])
    short = replay(space, 0, horizon=600.0)
    long = replay(space, 0, horizon=1e7)
    assert short.stopped == "gain"
    assert len(short.ratios) < len(long.ratios)
    assert set(PRIORS) >= set(WITHOUT_TREES)


def test_trees_that_do_not_load_are_left_out(monkeypatch: pytest.MonkeyPatch):
    """LightGBM is loaded when there is enough to learn from: a search that is too short for that
    never loads it, and one whose LightGBM is broken goes on with the other strategies."""
    loaded: list[int] = []

    def broken() -> None:
        loaded.append(1)

    monkeypatch.setattr(boosted_trees, "installed", lambda: True)
    monkeypatch.setattr(boosted_trees, "lightgbm", broken)
    space = space_of(OURS[0])
    assert len(replay(space, 0, trials=3).ratios) == 3
    assert not loaded
    assert len(replay(space, 0, trials=60).ratios) == 60
    assert loaded
