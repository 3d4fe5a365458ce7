"""The search over toy spaces: finds the optimum, is deterministic, covers small spaces, stops."""

import math

import pytest
from toy_spaces import Recorder, drive, judge, tile_cost, tiles, toy

from tedsl.autotune.search import Outcome, Search, Status
from tedsl.autotune.space import Candidate


def optimum() -> float:
    best = {"tile_x": 32, "tile_y": 128, "fuse": "attach", "at": 1, "warps": 8}
    return tile_cost(best)


@pytest.mark.parametrize("seed", range(5))
def test_finds_a_near_optimum(seed: int):
    search = Search(toy(tiles), trials=150, seed=seed)
    drive(search, judge)
    assert search.best is not None
    assert search.best.seconds <= 1.1 * optimum()


def test_beats_random_search_on_average():
    def best_of(random_only: bool, seed: int) -> float:
        search = Search(toy(tiles), trials=80, seed=seed)
        if random_only:
            del search._arms[1:]
        drive(search, judge)
        assert search.best is not None
        return search.best.seconds

    seeds = range(12)
    ours = math.prod(best_of(False, s) for s in seeds) ** (1 / len(seeds))
    chance = math.prod(best_of(True, s) for s in seeds) ** (1 / len(seeds))
    assert ours < chance


def test_same_seed_and_outcomes_give_the_same_order():
    orders = [drive(Search(toy(tiles), trials=60, seed=s), judge) for s in (7, 7, 8)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_default_first_then_earlier_winners():
    warm = [{"tile_x": 32, "tile_y": 64}, {"tile_x": 256, "tile_y": 256}]
    search = Search(toy(tiles), trials=20, seed=0, warm=warm)
    batch = search.ask()
    assert batch[0].origin == "default"
    assert batch[1].decisions["tile_x"] == 32
    assert batch[1].origin == "record"
    assert search.rejected[0].reason.startswith("vectorize: tile of more")


def test_nothing_is_proposed_twice_and_the_budget_holds():
    keys = drive(Search(toy(tiles), trials=90, seed=3), judge)
    assert len(keys) == 90
    assert len(set(keys)) == 90


def test_a_small_space_is_covered_and_then_exhausted():
    def small(s: Recorder) -> None:
        if s.knob("a", ("x", "y")) == "y":
            s.knob("b", (1, 2, 3))
        s.knob("c", (1, 2))

    search = Search(toy(small), trials=100, seed=0)
    keys = drive(search, lambda c: Outcome(Status.OK, 1.0))
    assert len(set(keys)) == 2 + 3 * 2
    assert search.exhausted


def test_no_knobs_is_one_trial():
    search = Search(toy(lambda s: None), trials=10, seed=0)
    assert drive(search, lambda c: Outcome(Status.OK, 1.0)) == ["{}"]
    assert search.exhausted


def test_only_correct_candidates_win_and_ties_go_to_the_earlier():
    def outcome(candidate: Candidate) -> Outcome:
        if candidate.decisions["fuse"] == "root":
            return Outcome(Status.WRONG, seconds=1e-9)
        return Outcome(Status.OK, 1.0)

    search = Search(toy(tiles), trials=40, seed=0)
    drive(search, outcome)
    assert search.best is not None
    assert search.best.number == 0


def test_everything_fails():
    search = Search(toy(tiles), trials=30, seed=0)
    drive(search, lambda c: Outcome(Status.CRASH, reason="signal 6"))
    assert len(search.done) == 30
    assert search.best is None


def test_a_short_answer_drops_the_rest_of_the_batch():
    search = Search(toy(tiles), trials=64, seed=0)
    batch = search.ask()
    assert len(batch) > 3
    search.tell([Outcome(Status.OK, 1.0)] * 2)
    assert len(search.done) == 2
    assert search.ask()
