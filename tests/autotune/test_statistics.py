"""Intervals of a ratio and the closing comparison, on machines with known noise: equal kernels are
called equal, true differences are found."""

import math

import numpy as np
import pytest
from noise import MODELS, Machine, Model

from tedsl.autotune.measure.final_comparison import decide, finalists, preference
from tedsl.autotune.measure.paired_ratios import Ratio, ratio_of
from tedsl.autotune.outcome import Outcome, Status, Trial
from tedsl.autotune.search_space.space import Candidate, Knob

TRIALS = 200


def trial(number: int, seconds: float, code: str = "", **resources: float) -> Trial:
    outcome = Outcome(Status.OK, seconds, (seconds,), code=code, resources=resources)
    candidate = Candidate((Knob("n", (number,), number),), f"trace {number}", "random")
    return Trial(number, candidate, outcome)


def declared(model: Model, factor: float, seed: int) -> tuple[bool, bool]:
    """(called different, the second called faster) for a first kernel of 20 us."""
    machine = Machine(model, [20e-6, 20e-6 * factor], seed)
    first, second = trial(0, 20e-6, "a"), trial(1, 20e-6, "b")
    places = {id(first): 0, id(second): 1}
    found = decide(
        [first, second],
        first,
        lambda trials, rounds: machine.take([places[id(t)] for t in trials], rounds),
    )
    return len(found.ties) == 1, found.winner is second


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_equal_kernels_are_rarely_called_different(model: Model):
    different = [declared(model, 1.0, seed)[0] for seed in range(TRIALS)]
    assert sum(different) <= 0.05 * TRIALS


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_a_difference_of_three_percent_is_found(model: Model):
    found = [declared(model, 0.97, 1000 + seed)[1] for seed in range(TRIALS)]
    assert sum(found) >= 0.9 * TRIALS


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_intervals_hold_the_true_ratio(model: Model):
    missed = 0
    for seed in range(100):
        a, b = Machine(model, [1.0, 1.02], seed, 64).take([0, 1], 64)
        ratio = ratio_of(b, a, 0.05)
        assert ratio.low <= ratio.middle <= ratio.high
        missed += not ratio.low - 0.002 <= 1.02 <= ratio.high + 0.002
    assert missed <= 9


def test_a_ratio_of_few_samples_is_cautious():
    assert ratio_of([], []) == Ratio(0.0, 1.0, math.inf)
    assert not ratio_of([2.0], [1.0]).is_above
    assert not ratio_of([2.0, 2.1], [1.0, 1.0]).is_above
    assert ratio_of([2.0, 2.1, 2.05], [1.0, 1.0, 1.01]).is_above
    assert not ratio_of([1.0, 1.2, 1.1], [1.0, 1.0, 1.0]).is_above


def test_more_samples_make_it_narrow():
    rng = np.random.default_rng(0)
    a = [float(x) for x in np.exp(rng.normal(0, 0.02, 256))]
    b = [float(x) for x in np.exp(rng.normal(0, 0.02, 256))]
    widths = [ratio_of(a[:n], b[:n]) for n in (16, 64, 256)]
    spans = [r.high - r.low for r in widths]
    assert spans[0] > 1.5 * spans[1] > 2 * spans[2]
    assert str(widths[-1]).count(".") == 3


def test_finalists_are_the_close_ones_of_different_code_and_the_incumbent():
    ranked = [
        trial(3, 1.0, "a"),
        trial(2, 1.0, "a"),
        trial(5, 1.05, "b"),
        trial(6, 1.2, "c"),
        trial(0, 1.4, "d"),
    ]
    assert [t.number for t in finalists(ranked, ranked[-1])] == [3, 5, 0]
    slow = trial(9, 1.6, "e")
    assert [t.number for t in finalists([*ranked, slow], slow)] == [3, 5]


def exact(times: dict[int, float]):
    def compare(trials: object, rounds: int) -> list[list[float]]:
        assert isinstance(trials, list)
        return [[times[t.number] * (1 + 1e-4 * (n % 3)) for n in range(rounds)] for t in trials]

    return compare


def test_among_equals_fewer_registers_win_then_the_earlier():
    trials = [
        trial(4, 1.0, "a", registers=64.0),
        trial(7, 1.0, "b", registers=32.0),
        trial(9, 1.0, "c", registers=32.0),
    ]
    found = decide(trials, None, exact({4: 1.0, 7: 1.001, 9: 0.9995}))
    assert found.winner.number == 7
    assert [t.number for t in found.ties] == [7, 9, 4]
    assert sorted(trials, key=preference)[0].number == 7


def test_an_incumbent_stays_unless_another_is_faster_beyond_doubt():
    holder, other = trial(0, 1.0, "a", registers=99.0), trial(1, 0.99, "b", registers=1.0)
    kept = decide([other, holder], holder, exact({0: 1.0, 1: 0.998}))
    assert kept.winner is holder
    beaten = decide([other, holder], holder, exact({0: 1.0, 1: 0.98}))
    assert beaten.winner is other
    assert beaten.against is not None
    assert beaten.against.is_below
    assert f"{beaten.against.middle:.2f}" == "0.98"


def test_who_is_slower_beyond_doubt_is_sampled_no_more():
    asked: list[list[int]] = []
    times = {0: 1.0, 1: 1.001, 2: 1.3}
    rng = np.random.default_rng(1)

    def compare(trials: object, rounds: int) -> list[list[float]]:
        assert isinstance(trials, list)
        asked.append([t.number for t in trials])
        return [[times[t.number] * float(np.exp(rng.normal(0, 0.03))) for _ in range(rounds)]
                for t in trials]  # fmt: skip

    found = decide([trial(n, 1.0, str(n)) for n in range(3)], None, compare)
    assert asked[0] == [0, 1, 2]
    assert asked[-1] == [0, 1]
    assert len(asked) > 1
    assert len(found.samples[2]) < len(found.samples[0])


def test_without_samples_the_search_decides():
    trials = [trial(4, 1.0, "a"), trial(7, 0.9, "b")]
    found = decide(trials, None, lambda _trials, _rounds: None)
    assert found.winner.number == 7
    assert found.samples == ()


def test_slow_kernels_are_decided_by_few_rounds():
    taken = {0: [1.0, 1.01, 1.0], 1: [0.7, 0.71, 0.7]}
    trials = [trial(0, 1.0, "a"), trial(1, 0.7, "b")]
    found = decide(trials, trials[0], lambda ts, _rounds: [taken[t.number] for t in ts])
    assert found.winner.number == 1
