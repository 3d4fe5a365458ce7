"""What is expected of candidates at many sizes, and a search by it where all times are known."""

import math
import statistics
from typing import Any

import pytest
from known_sizes import KnownFarm, best_alone, case_text, search_alone, search_together

import tedsl as te
from tedsl.autotune.multi.size_transfer import Forecast
from tedsl.autotune.search_space.space import Candidate, Knob

POINTS = [
    (16, 4096, 4096), (64, 4096, 4096), (256, 4096, 4096), (1024, 4096, 4096),
    (4096, 4096, 4096), (8192, 8192, 8192), (512, 512, 512), (1024, 1024, 1024),
    (2048, 2048, 2048), (4096, 11008, 4096), (128, 11008, 4096), (1000, 3000, 2000),
]  # fmt: skip
SIZES = [{"m": m, "n": n, "k": k} for m, n, k in POINTS]


def named(*names: str) -> list[Candidate]:
    return [Candidate((Knob("name", (name,), name),)) for name in names]


def told(times: dict[str, tuple[float, ...]]) -> tuple[Forecast, list[Candidate]]:
    forecast, candidates = Forecast([0.5, 0.5]), named(*times)
    for candidate, seconds in zip(candidates, times.values(), strict=True):
        forecast.add(candidate.key, seconds)
    return forecast, candidates


def test_the_best_of_each_size_are_chosen_before_what_is_good_everywhere_else():
    forecast, candidates = told(
        {"a": (1.0, 4.0), "b": (4.0, 1.0), "c": (1.3, 3.9), "d": (9.0, 9.0)}
    )
    assert forecast.choose(candidates, 4) == [0, 1]
    assert forecast.centres(candidates) == [0, 1]
    assert forecast.most_promising(candidates[1].key, 1) == [1]
    assert forecast.is_near(candidates[2].key, 0, 1.6)
    assert not forecast.is_near(candidates[2].key, 1, 1.6)


def test_what_is_measured_corrects_what_is_expected():
    forecast, (a, b, c) = told({"a": (1.0, 2.0), "b": (1.0, 2.0), "c": (0.9, 1.9)})
    forecast.learn(a.key, 0, 10.0)
    assert forecast.expected(b.key) == [10.0, 20.0]
    forecast.learn(b.key, 0, 20.0)
    assert forecast.expected(b.key)[1] > forecast.expected(a.key)[1]
    forecast.forget(a.key)
    forecast.forget(b.key)
    assert forecast.expected(c.key) == [0.9, 1.9]


def test_nothing_is_expected_of_what_the_model_does_not_know():
    forecast, (a, unknown) = Forecast([1.0]), named("a", "b")
    forecast.add(a.key, (math.inf,))
    assert not forecast.knows(a.key)
    assert forecast.choose([a, unknown], 2) == []
    assert forecast.centres([a, unknown]) == []
    assert forecast.most_promising(unknown.key, 2) == []
    assert forecast.expected(unknown.key) == [math.inf]
    assert forecast.score(unknown.key, 4.0) == math.inf


def product() -> Any:
    m, n, k = (te.size_var(name) for name in "mnk")
    a = te.placeholder((m, k), "bfloat16", name="A")
    b = te.placeholder((k, n), "bfloat16", name="B")
    r = te.reduce_axis((0, k), name="r")
    return te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="C")


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_few_kernels_are_as_fast_as_a_search_for_each_size(spread: float):
    together = KnownFarm(spread)
    served = search_together(product(), SIZES, together, trials=40, kernels=4)
    assert [size for size, *_ in served] == SIZES
    found = [seconds for _, seconds, _ in served]
    best = [best_alone(size) for size in SIZES]
    alone = [search_alone(product(), size, KnownFarm(spread), trials=24) for size in SIZES]
    ratios = [a / b for a, b in zip(found, alone, strict=True)]
    assert statistics.geometric_mean(ratios) <= 1.05
    assert statistics.geometric_mean([a / b for a, b in zip(found, best, strict=True)]) <= 1.08
    assert len(together.counts) == len(SIZES)
    assert together.counts.total() < 0.7 * 40 * len(SIZES)


def test_what_does_not_pass_the_closest_checks_is_not_chosen():
    def served(farm: KnownFarm) -> list[Any]:
        return search_together(product(), SIZES[:6], farm, trials=16, kernels=2)

    farm = KnownFarm(0.1)
    first = served(farm)
    assert {case_text(decisions, size) for size, _, decisions in first} <= farm.closely
    wrong = [decisions for _, _, decisions in first]
    farm = KnownFarm(0.1, wrong)
    second = served(farm)
    assert not any(decisions in wrong for _, _, decisions in second)
    assert {case_text(decisions, size) for size, _, decisions in second} <= farm.closely
