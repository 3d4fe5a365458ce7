"""The define-by-run space: sampling, mutation, neighbours, canonical candidates."""

import random

import pytest
from toy_spaces import Recorder, tiles, toy

from tedsl.autotune.search_space.space import (
    MANY_KNOBS,
    MOST_CHANGES,
    Candidate,
    Rejected,
    canonical,
    difference,
    distance,
    freeze,
    read_decisions,
)
from tedsl.errors import InternalError, TuneError


def test_default_takes_no_decision():
    default = toy(tiles).default()
    assert default.decisions == {"tile_x": 8, "tile_y": 8, "fuse": "inline", "warps": 4}


def test_a_candidate_holds_only_the_knobs_met():
    space = toy(tiles)
    found = space.candidate({"fuse": "root", "at": 2, "stale": 1}, "record")
    assert isinstance(found, Candidate)
    assert found.decisions == {"tile_x": 8, "tile_y": 8, "fuse": "root", "warps": 4}
    assert found.key == canonical(found.decisions)


def test_samples_reach_every_branch():
    space, rng = toy(tiles), random.Random(1)
    samples = [space.sample(rng) for _ in range(300)]
    legal = [s for s in samples if isinstance(s, Candidate)]
    assert {s.decisions["fuse"] for s in legal} == {"inline", "root", "attach"}
    assert {s.decisions["at"] for s in legal if "at" in s.decisions} == {0, 1, 2}
    assert any(isinstance(s, Rejected) and s.reason.startswith("vectorize") for s in samples)


def test_of_many_knobs_some_are_drawn_with_one_run_of_the_function():
    made = list[int]()

    def wide(s: Recorder) -> None:
        made.append(len(s.decisions))
        for number in range(MANY_KNOBS + 1):
            s.knob(f"k{number}", (0, 1, 2))

    space = toy(wide)
    default = space.default()
    rng = random.Random(0)
    changed = list[int]()
    for _ in range(100):
        found = space.sample(rng)
        assert isinstance(found, Candidate)
        changed.append(difference(found, default))
    assert set(changed) == set(range(1, MOST_CHANGES + 1))
    assert len(made) <= 101


def test_choices_that_depend_on_earlier_choices():
    def nested(s: Recorder) -> None:
        outer = s.knob("outer", (4, 8, 16, 32), 4)
        s.knob("inner", tuple(range(1, int(str(outer)) + 1)), 1)

    space, rng = toy(nested), random.Random(0)
    for _ in range(100):
        found = space.sample(rng)
        assert isinstance(found, Candidate), found
        assert int(str(found.decisions["inner"])) <= int(str(found.decisions["outer"]))


def test_mutation_changes_one_or_two_knobs():
    space, rng = toy(tiles), random.Random(2)
    start = space.default()
    for _ in range(100):
        found = space.mutate(start, rng)
        if isinstance(found, Candidate):
            assert 1 <= difference(start, found) <= 3  # `at` may appear with `fuse`


def test_neighbours_come_nearest_first_and_miss_none():
    space = toy(tiles)
    found = [c for c in space.neighbours(space.default()) if isinstance(c, Candidate)]
    assert len(found) == 8 + 8 + 2 + 3
    assert {c.decisions["tile_x"] for c in found[:4]} <= {4, 8, 16}


def test_equal_traces_are_one_candidate():
    space = toy(lambda s: [s.knob("a", (1, 2)), s.knob("inert", (1, 2)) and "same"])
    one, two = (space.candidate({"inert": n}, "random") for n in (1, 2))
    assert isinstance(one, Candidate)
    assert isinstance(two, Candidate)
    assert one.key != two.key
    assert one.identity == two.identity


def test_decisions_survive_json():
    decisions = {"tile": (32, 8), "at": None, "fuse": "root", "f": 0.5, "b": True}
    assert read_decisions(canonical(decisions)) == decisions
    with pytest.raises(TuneError, match=r"knob 'x' has the choice .* of type set"):
        freeze({1}, "x")


def test_distance():
    assert distance(8, 32) == 2.0
    assert distance((8, 4), (16, 4)) == 1.0
    assert distance("a", "b") == 1.0
    assert distance(True, 1) == 1.0
    assert distance(0, 3) > 1.0


def test_an_illegal_default_is_the_users_to_fix():
    def broken(s: Recorder) -> None:
        s.knob("a", (1, 2), 3)

    with pytest.raises(TuneError, match="default choices are not legal"):
        toy(broken).default()


def test_an_internal_error_is_let_out():
    def bug(s: Recorder) -> None:
        raise InternalError("lost a stage")

    with pytest.raises(InternalError, match="lost a stage"):
        toy(bug).default()


def test_endless_knobs_are_refused():
    def endless(s: Recorder) -> None:
        for number in range(len(s.decisions) + 1):
            s.knob(f"k{number}", (0, 1))

    with pytest.raises(TuneError, match="still meets new knobs"):
        toy(endless).sample(random.Random(0))


def test_describe_names_every_knob():
    text = toy(tiles).describe()
    assert "972 combinations" in text
    assert "warps: 4  of (1 2 4 8)" in text


def test_a_neighbour_repairs_choices_that_no_longer_exist():
    def nested(s: Recorder) -> None:
        outer = s.knob("outer", (4, 32), 4)
        s.knob("inner", (1, int(str(outer))), 1)

    space = toy(nested)
    start = space.candidate({"outer": 32, "inner": 32}, "record")
    assert isinstance(start, Candidate)
    keys = [c.key for c in space.neighbours(start) if isinstance(c, Candidate)]
    assert set(keys) == {'{"inner":1,"outer":32}', '{"inner":1,"outer":4}'}
