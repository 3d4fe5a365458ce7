"""The search over toy spaces: finds the optimum, is deterministic, covers small spaces, stops."""

import math
from collections.abc import Sequence

import pytest
from toy_spaces import Others, Recorder, drive, judge, tile_cost, tiles, toy

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.search.budget import Stop, trials_of
from tedsl.autotune.search.candidate_table import Describe
from tedsl.autotune.search.portfolio import PRIORS, Search
from tedsl.autotune.search_space.space import Candidate
from tedsl.errors import InternalError, TuneError


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
        strategies = {"uniform": 1.0} if random_only else PRIORS
        search = Search(toy(tiles), trials=80, seed=seed, strategies=strategies)
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
    assert batch is not None
    first, second = batch.candidates[:2]
    assert first.origin == "default"
    assert second.decisions["tile_x"] == 32
    assert second.origin == "record"
    assert search.rejected[0].reason.startswith("vectorize: tile of more")


def test_what_is_known_too_early_changes_nothing():
    def order(eager: bool) -> list[str]:
        search = Search(toy(tiles), trials=64, seed=5, depth=2)
        under_way = [b for b in (search.ask(), search.ask()) if b is not None]
        keys: list[str] = []
        while under_way:
            keys.extend(c.key for c in under_way[0].candidates)
            first = under_way.pop(0)
            search.tell(first, [judge(c) for c in first.candidates])
            if eager and under_way:  # the next batch is done before the one after it is asked for
                second = under_way.pop(0)
                keys.extend(c.key for c in second.candidates)
                search.tell(second, [judge(c) for c in second.candidates])
            for _ in range(2 - len(under_way)):
                batch = search.ask()
                if batch is not None:
                    under_way.append(batch)
        return keys

    assert order(True) == order(False)
    assert len(order(True)) == 64


def test_batches_out_of_turn_are_refused():
    search = Search(toy(tiles), trials=64, seed=5, depth=2)
    one, two = search.ask(), search.ask()
    assert one is not None
    assert two is not None
    with pytest.raises(InternalError, match="more than 2 batches"):
        search.ask()
    with pytest.raises(InternalError, match="in the order asked"):
        search.tell(two, [])
    search.tell(one, [])
    assert two.first == one.first + len(one.candidates)


def test_coming_near_the_floor_ends_the_search():
    search = Search(toy(tiles), trials=400, seed=1, floor=1.2 * optimum())
    drive(search, judge)
    assert search.stopped is Stop.BOUND
    assert search.best is not None
    assert search.best.seconds <= 1.02 * 1.2 * optimum()
    assert len(search.done) < 400


def test_four_earlier_winners_at_most():
    warm = [{"tile_x": x} for x in (1, 2, 4, 16, 32, 64)]
    batch = Search(toy(tiles), trials=64, seed=0, warm=warm).ask()
    assert batch is not None
    assert sum(c.origin == "record" for c in batch.candidates) == 4


def describe(candidates: Sequence[Candidate], until: float | None = None) -> list[dict[str, float]]:
    return [{"seconds": tile_cost(c.decisions) ** 0.5} for c in candidates]


def test_the_static_model_chooses_when_nothing_may_be_measured():
    blind = Search(toy(tiles), trials=0, seed=0)
    assert blind.first_choice() == toy(tiles).default()
    assert blind.ask() is None
    assert blind.stopped is Stop.BUDGET
    told = Search(toy(tiles), trials=0, seed=0, describe=describe)
    chosen = told.first_choice()
    assert tile_cost(chosen.decisions) < tile_cost(toy(tiles).default().decisions)


def test_a_static_model_that_orders_well_helps():
    def best_of(seed: int, known: Describe | None) -> float:
        search = Search(toy(tiles), trials=10, seed=seed, describe=known)
        drive(search, judge)
        assert search.best is not None
        return search.best.seconds

    seeds = range(6)
    blind = math.prod(best_of(s, None) for s in seeds)
    assert math.prod(best_of(s, describe) for s in seeds) < blind


def test_the_default_waits_for_nothing_and_what_the_model_likes_comes_last():
    asked: list[int] = []

    def counted(candidates: Sequence[Candidate], until: float | None = None):
        asked.append(len(candidates))
        return describe(candidates)

    warm = [{"tile_x": 32, "tile_y": 64}]
    search = Search(toy(tiles), trials=64, seed=0, warm=warm, depth=2, describe=counted)
    known = search.ask()
    assert known is not None
    assert [c.origin for c in known.candidates] == ["default", "record"]
    assert not asked
    far = search.ask()
    assert far is not None
    assert {c.origin for c in far.candidates} == {"random"}
    search.tell(known, [judge(c) for c in known.candidates])
    liked = search.ask()
    assert liked is not None
    assert len(liked.candidates) == len(far.candidates)
    assert asked
    mean = [
        sum(tile_cost(c.decisions) for c in batch.candidates) / len(batch.candidates)
        for batch in (liked, far)
    ]
    assert mean[0] < mean[1]


def test_what_the_static_model_holds_for_hopeless_comes_later():
    def told(candidates: Sequence[Candidate], until: float | None = None):
        return [{"seconds": 1.0 if c.decisions["tile_x"] == 16 else 5.0} for c in candidates]

    search = Search(toy(tiles), trials=400, seed=0, describe=told)
    drive(search, judge)
    hopeful = [trial.candidate.decisions["tile_x"] == 16 for trial in search.done[1:]]
    first = hopeful.index(False)
    assert first > 20, "one in nine is not hopeless: by chance there would be two or three"
    assert len(search.done) == 400, "the search goes on with what is hopeless"


def test_candidates_made_elsewhere_change_nothing_but_who_makes_them():
    def order(elsewhere: Others | None) -> list[str]:
        space = toy(tiles)
        space.elsewhere = elsewhere
        return drive(Search(space, trials=60, seed=7, describe=describe), judge)

    here = order(None)
    for others in (Others(3), Others(8, silent=3), Others(0)):
        assert order(others) == here
        assert bool(others.asked) == bool(others.width)


def test_named_budgets():
    assert [trials_of(name) for name in ("none", "quick", "normal", "full")] == [0, 16, 64, 256]
    with pytest.raises(TuneError, match="budget='long' is unknown"):
        trials_of("long")


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
    assert batch is not None
    assert len(batch.candidates) > 3
    search.tell(batch, [Outcome(Status.OK, 1.0)] * 2)
    assert len(search.done) == 2
    assert search.ask()
